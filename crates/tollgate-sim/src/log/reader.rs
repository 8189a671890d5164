//! Reads logs: files in the order of their times, lines as records, and a count of all that is not a request.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use tollgate::Timestamp;

use super::detect::{Parser, line_format};
use super::file::{FileReport, LogError, LogFile};
use super::format::Format;
use super::mapping::Mapping;
use super::pieces::{ENTRY_BYTES_MAX, LINE_BYTES_MAX, Piece};
use super::record::{Precision, Record};
use super::text::{Reason, excerpt};

/// Bad lines that are kept to show them.
const EXAMPLES_MAX: usize = 10;

/// The result of [`Reader::read`].
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one entry exists at a time, and a box would cost each line an allocation"
)]
pub enum Entry<'a> {
    /// A request.
    Record(Record<'a>),
    /// A line that is not a request. The reader has counted it.
    Bad,
    /// The end of the last log.
    End,
}

/// A line that is not a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadInput {
    /// The file.
    pub file: String,
    /// The number of the line, from one; of the entry in an archive.
    pub line: u64,
    /// Why it is not a request.
    pub reason: String,
    /// Its start, with everything escaped that is not printable ASCII.
    pub excerpt: String,
}

impl fmt::Display for BadInput {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, reason, excerpt } = self;
        write!(out, "{file}:{line}: {reason}: {excerpt}")
    }
}

/// How much of the logs is read, in bytes as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are read.
    pub read: u64,
    /// Bytes of all logs; `None` if one of them is a stream.
    pub total: Option<u64>,
}

/// Reads the requests of one or more logs.
///
/// Several logs are read by their times: the reader always takes the next line of the log that lags behind. So rotated
/// files may be given in any order, and logs of several servers are merged to within two lines of each log.
///
/// A line that is not a request is counted and reported, never dropped in silence. A log that is cut short or damaged is
/// read as far as it goes, and [`FileReport::damage`] says so.
pub struct Reader {
    files: Vec<LogFile>,
    /// The log that is being read.
    current: Option<usize>,
    /// The other logs that are not at their end, by their times.
    waiting: BinaryHeap<Reverse<(Timestamp, usize)>>,
    problems: Problems,
    /// Bytes of the logs that are at their end.
    finished: u64,
}

/// Lines that are not requests.
#[derive(Default)]
struct Problems {
    count: u64,
    examples: Vec<BadInput>,
}

impl Problems {
    fn add(&mut self, report: &mut FileReport, line: u64, reason: &str, bytes: &[u8]) {
        self.count += 1;
        report.bad += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(BadInput {
                file: report.name.clone(),
                line,
                reason: reason.to_owned(),
                excerpt: excerpt(bytes),
            });
        }
    }

    /// Adds a line that the reader of its log refuses. One of another format is called so while examples are kept.
    fn add_refused(&mut self, report: &mut FileReport, line: u64, reason: &str, bytes: &[u8]) {
        let is_shown = self.examples.len() < EXAMPLES_MAX;
        match is_shown.then(|| line_format(bytes)).flatten() {
            Some(format) => {
                let reason = format!("it is {format}, and a file has one format: give it as another file");
                self.add(report, line, &reason, bytes);
            }
            None => self.add(report, line, reason, bytes),
        }
    }
}

impl Reader {
    /// Opens logs and finds their formats. `-` is standard input. Gzip and zstd are decompressed.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened, if its format is unknown, or if the mapping names columns that it does not have.
    pub fn open(paths: &[PathBuf], mapping: &Mapping) -> Result<Self, LogError> {
        let files: Result<Vec<LogFile>, LogError> =
            paths.iter().map(|path| LogFile::open(path, mapping)).collect();
        Ok(Self::new(files?))
    }

    /// Reads a log from any source. `name` stands for it in messages.
    ///
    /// # Errors
    ///
    /// As [`Reader::open`].
    pub fn stream(
        name: &str,
        source: impl Read + Send + 'static,
        mapping: &Mapping,
    ) -> Result<Self, LogError> {
        Ok(Self::new(vec![LogFile::stream(name.to_owned(), Box::new(source), None, mapping)?]))
    }

    /// Reads a log from any source as a given format, whatever its first lines look like.
    ///
    /// # Errors
    ///
    /// As [`Reader::open`].
    pub fn stream_as(
        format: Format,
        name: &str,
        source: impl Read + Send + 'static,
        mapping: &Mapping,
    ) -> Result<Self, LogError> {
        Ok(Self::new(vec![LogFile::stream(name.to_owned(), Box::new(source), Some(format), mapping)?]))
    }

    fn new(files: Vec<LogFile>) -> Self {
        let waiting = files.iter().enumerate().map(|(index, file)| Reverse((file.at, index))).collect();
        Self { files, current: None, waiting, problems: Problems::default(), finished: 0 }
    }

    /// Reads the next line that is not blank.
    ///
    /// # Errors
    ///
    /// If a file that could be opened before cannot be opened again.
    pub fn read(&mut self) -> Result<Entry<'_>, LogError> {
        let (index, range) = loop {
            let Some(index) = self.turn()? else { return Ok(Entry::End) };
            if let Some(range) = self.line(index) {
                break (index, range);
            }
        };
        let LogFile { report, open, at, previous, .. } = &mut self.files[index];
        let Some(open) = open else { return Ok(Entry::Bad) };
        let (line, number, is_exact) = (open.pieces.bytes(range), open.line, open.is_exact);
        match open.parser.parse(line) {
            Ok(mut record) => {
                report.records += 1;
                if is_exact {
                    record.precision = Precision::Exact;
                }
                *at = record.arrival.min(*previous);
                *previous = record.arrival;
                Ok(Entry::Record(record))
            }
            Err(reason) => {
                self.problems.add_refused(report, number, &reason, line);
                Ok(Entry::Bad)
            }
        }
    }

    /// Runs on every request to the end of the last log.
    ///
    /// # Errors
    ///
    /// As [`Reader::read`].
    pub fn for_each(&mut self, mut each: impl FnMut(Record<'_>)) -> Result<(), LogError> {
        loop {
            match self.read()? {
                Entry::Record(record) => each(record),
                Entry::Bad => {}
                Entry::End => return Ok(()),
            }
        }
    }

    /// The log whose next line is read: the current one, until another one lags behind it.
    fn turn(&mut self) -> Result<Option<usize>, LogError> {
        if let Some(current) = self.current {
            let at = self.files[current].at;
            match self.waiting.peek() {
                Some(Reverse((other, _))) if *other < at => self.waiting.push(Reverse((at, current))),
                _ => return Ok(Some(current)),
            }
        }
        self.current = self.waiting.pop().map(|Reverse((_, index))| index);
        if let Some(index) = self.current {
            self.files[index].reopen()?;
        }
        Ok(self.current)
    }

    /// Where the next line of a log stands in its buffer. `None` at its end, and after a line that is no text to parse.
    fn line(&mut self, index: usize) -> Option<std::ops::Range<usize>> {
        let LogFile { report, open, .. } = &mut self.files[index];
        let Some(log) = open else {
            self.current = None;
            return None;
        };
        match log.next() {
            Some(Piece::Whole(range)) => {
                let line = log.pieces.bytes(range.clone());
                let range = range.start..range.start + line.trim_ascii_end().len();
                if range.is_empty() {
                    return None;
                }
                if log.before_header {
                    log.before_header = false;
                    return None;
                }
                return Some(range);
            }
            Some(Piece::TooLong { start, bytes }) => {
                let reason = too_long(bytes, &log.parser);
                self.problems.add(report, log.line, &reason, &start);
            }
            Some(Piece::Cut(range)) => {
                let bytes = log.pieces.bytes(range);
                self.problems.add(report, log.line, "the file breaks off within it", bytes);
            }
            None => {
                report.damage = log.pieces.damage().map(str::to_owned);
                self.finished += log.bytes_read();
                *open = None;
                self.current = None;
            }
        }
        None
    }

    /// The logs, in the order in which they were given. Counts grow while the logs are read.
    pub fn files(&self) -> impl Iterator<Item = &FileReport> {
        self.files.iter().map(|file| &file.report)
    }

    /// The coarsest stamps that the first lines of the logs have.
    #[must_use]
    pub fn precision(&self) -> Precision {
        let found = self.files().filter_map(|file| file.detection.as_ref());
        match found.map(|detection| detection.precision).find(|precision| *precision == Precision::Second) {
            Some(coarse) => coarse,
            None => Precision::Exact,
        }
    }

    /// Requests that were read.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.files().map(|file| file.records).sum()
    }

    /// Lines that are not requests.
    #[must_use]
    pub fn bad_lines(&self) -> u64 {
        self.problems.count
    }

    /// The first lines that are not requests.
    #[must_use]
    pub fn examples(&self) -> &[BadInput] {
        &self.problems.examples
    }

    /// How much of the logs is read.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let open: u64 = self.files.iter().filter_map(|file| Some(file.open.as_ref()?.bytes_read())).sum();
        Progress { read: self.finished + open, total: self.files.iter().map(|file| file.size).sum() }
    }
}

fn too_long(bytes: u64, parser: &Parser) -> Reason {
    let (kind, max) = match parser {
        Parser::Har => ("an entry", ENTRY_BYTES_MAX),
        _ => ("a line", LINE_BYTES_MAX),
    };
    format!("{kind} of {bytes} bytes, which is more than {max}").into()
}

#[cfg(test)]
mod tests;
