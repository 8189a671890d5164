//! One log of several: its detection, its place in time, and its lines while it is open.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Timestamp;
use tollgate::policy::source::plain_cause;

use super::detect::{DetectError, Parser};
use super::format::{Detection, Format};
use super::mapping::Mapping;
use super::pieces::{Piece, Pieces};
use super::record::Precision;
use super::source::{Source, decompressed};

/// The name that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// Why logs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file cannot be opened.
    #[error("{file}: {}", plain_cause(source))]
    Open {
        /// The file.
        file: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The format of a file is not known.
    #[error("{file}: {source}")]
    Format {
        /// The file.
        file: String,
        /// The problem with it.
        source: DetectError,
    },
}

/// The facts about one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// The name that the caller gave; `-` is standard input.
    pub name: String,
    /// The format; `None` for an empty file.
    pub detection: Option<Detection>,
    /// Requests that were read.
    pub records: u64,
    /// Lines that are not requests.
    pub bad: u64,
    /// Why the file ended early, and what was read of it: cut compression, a failing disk.
    pub damage: Option<String>,
}

/// Where the bytes of a log come from.
pub(super) enum Input {
    /// A regular file, which can be opened again.
    File(PathBuf),
    /// Anything else, which is open already.
    Stream,
}

/// A log whose bytes are being read.
pub(super) struct OpenLog {
    pub(super) pieces: Pieces,
    pub(super) parser: Parser,
    /// Number of the last line, or of the last entry of an archive.
    pub(super) line: u64,
    /// The first line that is not blank names columns.
    pub(super) before_header: bool,
    /// A stamp without a fraction is exact, because others have one.
    pub(super) is_exact: bool,
    count: Arc<AtomicU64>,
}

impl OpenLog {
    pub(super) fn next(&mut self) -> Option<Piece> {
        self.line += 1;
        if matches!(self.parser, Parser::Har) { self.pieces.entry() } else { self.pieces.line() }
    }

    /// Bytes that were read from the file so far, as they are stored.
    pub(super) fn bytes_read(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// One log of a reader.
pub(super) struct LogFile {
    pub(super) report: FileReport,
    pub(super) input: Input,
    pub(super) open: Option<OpenLog>,
    /// The reader of its lines, as its first lines ask for; `None` for an empty file.
    parser: Option<Parser>,
    /// The smaller of the last two arrivals, so that one line with a wrong clock does not move the log in time.
    pub(super) at: Timestamp,
    pub(super) previous: Timestamp,
    /// Bytes of the file as it is stored; `None` for a stream.
    pub(super) size: Option<u64>,
}

impl LogFile {
    /// Opens a file and finds its format. A regular file is closed again until its turn comes.
    pub(super) fn open(path: &Path, mapping: &Mapping) -> Result<Self, LogError> {
        let name = path.display().to_string();
        let failed = |source| LogError::Open { file: name.clone(), source };
        if name == STANDARD_INPUT {
            return Self::stream(name, Box::new(io::stdin()), None, mapping);
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let mut log = Self::stream(name, Box::new(file), None, mapping)?;
        if metadata.is_file() {
            log.size = Some(metadata.len());
            log.input = Input::File(path.to_owned());
            log.open = None;
        }
        Ok(log)
    }

    /// Takes a source that is open. `format` is looked for in the first lines if the caller does not give it.
    pub(super) fn stream(
        name: String,
        source: Source,
        format: Option<Format>,
        mapping: &Mapping,
    ) -> Result<Self, LogError> {
        let count = Arc::new(AtomicU64::new(0));
        let source = decompressed(source, Arc::clone(&count))
            .map_err(|source| LogError::Open { file: name.clone(), source })?;
        let mut pieces = Pieces::new(source);
        let head = pieces.head();
        let (detection, parser) = detected(head, format, mapping)
            .map_err(|source| LogError::Format { file: name.clone(), source })?
            .unzip();
        let at = parser.as_ref().and_then(|parser: &Parser| first_arrival(parser, head)).unwrap_or_default();
        // An empty log has no lines to parse, but may be damaged: its end says so.
        let open = OpenLog {
            pieces,
            before_header: matches!(parser, Some(Parser::Csv(_))),
            parser: parser.clone().unwrap_or(Parser::Decisions),
            is_exact: is_exact(detection.as_ref()),
            line: 0,
            count,
        };
        let report = FileReport { name, detection, records: 0, bad: 0, damage: None };
        Ok(Self { report, input: Input::Stream, open: Some(open), parser, at, previous: at, size: None })
    }

    /// Opens a regular file again, when its turn comes.
    pub(super) fn reopen(&mut self) -> Result<(), LogError> {
        let (None, Input::File(path)) = (&self.open, &self.input) else { return Ok(()) };
        let failed = |source| LogError::Open { file: self.report.name.clone(), source };
        let count = Arc::new(AtomicU64::new(0));
        let file = File::open(path).map_err(failed)?;
        let mut pieces = Pieces::new(decompressed(Box::new(file), Arc::clone(&count)).map_err(failed)?);
        // Steps over a byte order mark.
        let _ = pieces.head();
        let parser = self.parser.clone().unwrap_or(Parser::Decisions);
        let before_header = matches!(parser, Parser::Csv(_));
        let is_exact = is_exact(self.report.detection.as_ref());
        self.open = Some(OpenLog { pieces, parser, line: 0, before_header, is_exact, count });
        Ok(())
    }
}

/// Whether all stamps of a log are exact. Lines of nginx are so one by one, by their appended fields.
fn is_exact(detection: Option<&Detection>) -> bool {
    detection.is_some_and(|found| {
        found.precision == Precision::Exact && !matches!(found.format, Format::Common | Format::Combined)
    })
}

/// The format of a log and its reader. `None` for a log without a line.
fn detected(
    head: &[u8],
    format: Option<Format>,
    mapping: &Mapping,
) -> Result<Option<(Detection, Parser)>, DetectError> {
    let found = match format {
        None => Format::detect(head, mapping),
        Some(format) => Format::assume(format, head, mapping),
    };
    match found {
        Ok(detection) => {
            let parser = Parser::new(detection.format, head, mapping)?;
            Ok(Some((detection, parser)))
        }
        Err(DetectError::Empty) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The arrival of the first request, by which the logs take turns.
fn first_arrival(parser: &Parser, head: &[u8]) -> Option<Timestamp> {
    // An archive is one document; its first entry is not looked for.
    let mut parser = parser.clone();
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    lines.find_map(|line| parser.parse(line).ok().map(|record| record.arrival))
}
