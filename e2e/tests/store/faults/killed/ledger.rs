//! The decisions of a process that may be killed at any moment. Each line is written to the kernel before its caller is
//! answered, so no admission is missed; an admission without a line was not answered.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use tollgate::Source;
use tollgate::lease::LeaseReport;

use crate::record::{Mode, RecordedDecision};

/// Bytes of a line. A page holds a whole number of them, so that none is written in part.
const LINE_BYTES: usize = 64;

/// One decision, and the state of its process's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) seen: RecordedDecision,
    pub(super) source: Source,
    /// Units that the process had leased in total, and held.
    pub(super) drawn: u64,
    pub(super) held: u64,
}

const SOURCES: [Source; 8] = [
    Source::Exact,
    Source::Lease,
    Source::DenyCache,
    Source::Local,
    Source::Overflow,
    Source::Open,
    Source::Closed,
    Source::Full,
];

impl Line {
    pub(super) fn new(seen: RecordedDecision, source: Source, report: &LeaseReport) -> Self {
        Self { seen, source, drawn: report.acquired, held: report.held }
    }

    fn bytes(&self) -> [u8; LINE_BYTES] {
        let source = SOURCES.iter().position(|known| *known == self.source).unwrap() as u64;
        let words = [
            u64::from(self.seen.key),
            u64::from(self.seen.node),
            u64::from(self.seen.admitted),
            source,
            self.seen.sent,
            self.seen.replied,
            self.drawn,
            self.held,
        ];
        let mut bytes = [0; LINE_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Self {
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let mut next = || words.next().unwrap();
        let (key, node, admitted) = (next(), next(), next() == 1);
        let source = SOURCES[usize::try_from(next()).unwrap()];
        let mode = match source {
            Source::Exact | Source::Lease | Source::DenyCache => Mode::Exact,
            Source::Local | Source::Overflow => Mode::Local,
            Source::Open => Mode::Open,
            Source::Closed | Source::Full | Source::Policy | Source::Penalty => Mode::Closed,
        };
        let seen = RecordedDecision {
            key: u32::try_from(key).unwrap(),
            cost: 1,
            sent: next(),
            replied: next(),
            admitted,
            mode,
            node: u8::try_from(node).unwrap(),
            late: false,
        };
        Self { seen, source, drawn: next(), held: next() }
    }
}

/// The file of one process.
#[derive(Debug)]
pub(super) struct Ledger(File);

impl Ledger {
    pub(super) fn create(path: &Path) -> Self {
        Self(File::options().create(true).append(true).open(path).unwrap())
    }

    /// Returns once the line outlives this process.
    pub(super) fn write(&self, line: &Line) {
        let written = (&self.0).write(&line.bytes()).unwrap();
        assert_eq!(written, LINE_BYTES, "a line was written in part");
    }

    /// All lines that were written.
    pub(super) fn read(path: &Path) -> Vec<Line> {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes.len() % LINE_BYTES, 0, "a line was written in part");
        bytes.chunks_exact(LINE_BYTES).map(Line::read).collect()
    }
}
