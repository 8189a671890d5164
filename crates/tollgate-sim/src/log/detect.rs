//! Finds the format of a log in its first lines: the reader that understands most of them wins.

use memchr::memchr;

use super::clf;
use super::format::{Detection, Format, Stamp};
use super::mapping::{ColumnError, Mapping};
use super::record::{Precision, Record};
use super::stamp::ClfDates;
use super::table::{Csv, Ndjson, is_header};
use super::text::{Reason, excerpt};
use super::{alb, haproxy, har, proxy};

/// Lines that are looked at.
const LINES_MAX: usize = 64;
/// Bytes in which a zero means that a file is not text.
const BINARY_HEAD: usize = 4_096;

/// Why the format of a log is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DetectError {
    /// The log has no line.
    #[error("the file is empty")]
    Empty,
    /// The bytes are no text.
    #[error("the file is not text: {0}; accepted: text, plain or in gzip or zstd; {known}", known = known())]
    Binary(&'static str),
    /// No reader understands a line.
    #[error("the format is unknown; the first line is `{first}`{hint}; {}", known())]
    Unknown {
        /// The start of the first line, escaped.
        first: String,
        /// The probable format of the lines, if there is one.
        hint: String,
    },
    /// The columns do not fit the mapping.
    #[error(transparent)]
    Columns(#[from] ColumnError),
    /// The caller named columns of a log that has none.
    #[error("--time, --key, --cost and --status name columns of CSV and NDJSON, and this log is {0}")]
    NotATable(Format),
}

fn known() -> String {
    let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
    format!("formats that are read: {}", names.join(", "))
}

/// The reader of one format, with what it remembers between lines.
#[derive(Clone, Debug)]
pub(super) enum Parser {
    Clf(ClfDates),
    Envoy,
    Alb,
    Caddy,
    Traefik,
    Haproxy,
    Csv(Csv),
    Ndjson(Ndjson),
    Har,
    Decisions,
}

impl Parser {
    /// Reads one line, or one entry of an archive.
    pub(super) fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Record<'a>, Reason> {
        match self {
            Self::Clf(dates) => clf::parse(line, dates),
            Self::Envoy => proxy::envoy(line),
            Self::Alb => alb::parse(line),
            Self::Caddy => proxy::caddy(line),
            Self::Traefik => proxy::traefik(line),
            Self::Haproxy => haproxy::parse(line),
            Self::Csv(csv) => csv.parse(line),
            Self::Ndjson(ndjson) => ndjson.parse(line),
            Self::Har => har::parse(line),
            Self::Decisions => proxy::decision(line),
        }
    }

    /// Whether a stamp had no zone, and was read as UTC.
    fn has_no_zone(&self) -> bool {
        match self {
            Self::Csv(csv) => csv.has_no_zone(),
            Self::Ndjson(ndjson) => ndjson.has_no_zone(),
            Self::Haproxy => true,
            _ => false,
        }
    }

    /// The reader of a given format, for a log that starts with `head`.
    pub(super) fn new(format: Format, head: &[u8], mapping: &Mapping) -> Result<Self, ColumnError> {
        Ok(match format {
            Format::Common | Format::Combined => Self::Clf(ClfDates::new()),
            Format::Envoy => Self::Envoy,
            Format::Alb => Self::Alb,
            Format::Caddy => Self::Caddy,
            Format::Traefik => Self::Traefik,
            Format::Haproxy => Self::Haproxy,
            Format::Csv => Self::Csv(Csv::new(lines(head).next().unwrap_or_default(), mapping)?),
            Format::Ndjson => Self::Ndjson(Ndjson::new(lines(head), mapping)?),
            Format::Har => Self::Har,
            Format::Decisions => Self::Decisions,
        })
    }
}

/// The first lines that are not blank, without their ends.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii_end)
        .filter(|line| !line.is_empty())
        .take(LINES_MAX)
}

impl Format {
    /// Finds the format of a log from its first bytes, and what its stamps mean. The last line may be cut.
    ///
    /// # Errors
    ///
    /// If the bytes are empty or no text, if no reader understands a line, or if columns are missing.
    pub fn detect(head: &[u8], mapping: &Mapping) -> Result<Detection, DetectError> {
        let head = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head);
        is_readable(head)?;
        if har::is_archive(head) {
            return if mapping.is_empty() { Ok(archive()) } else { Err(DetectError::NotATable(Format::Har)) };
        }
        let first = lines(head).next().ok_or(DetectError::Empty)?;
        let format = match best(head) {
            Some(format) if mapping.is_empty() => format,
            // JSON of any program is a table, if the caller says what its fields mean.
            _ if first.starts_with(b"{") => Format::Ndjson,
            Some(format) => return Err(DetectError::NotATable(format)),
            None if memchr(0, &head[..head.len().min(BINARY_HEAD)]).is_some() => {
                return Err(DetectError::Binary("it has bytes of zero"));
            }
            None if is_header(first) || !mapping.is_empty() => Format::Csv,
            None => return Err(DetectError::Unknown { first: excerpt(first), hint: hint(first) }),
        };
        let parser = Parser::new(format, head, mapping)?;
        describe(format, parser, head)
            .ok_or(DetectError::Unknown { first: excerpt(first), hint: hint(first) })
    }

    /// The detection of a log whose format the caller knows.
    pub(super) fn assume(format: Format, head: &[u8], mapping: &Mapping) -> Result<Detection, DetectError> {
        if lines(head).next().is_none() {
            return Err(DetectError::Empty);
        }
        if format == Format::Har {
            return Ok(archive());
        }
        let parser = Parser::new(format, head, mapping)?;
        let unknown = Detection {
            format,
            stamp: format.stamp(),
            precision: Precision::Second,
            duration: false,
            has_no_zone: false,
        };
        Ok(describe(format, parser, head).map_or(unknown, |found| Detection { format, ..found }))
    }
}

/// The format that is no table and understands most lines.
fn best(head: &[u8]) -> Option<Format> {
    let candidates = [
        (Format::Combined, Parser::Clf(ClfDates::new())),
        (Format::Decisions, Parser::Decisions),
        (Format::Envoy, Parser::Envoy),
        (Format::Caddy, Parser::Caddy),
        (Format::Traefik, Parser::Traefik),
        (Format::Alb, Parser::Alb),
        (Format::Haproxy, Parser::Haproxy),
    ];
    let mut best = (0, None);
    for (format, mut parser) in candidates {
        let good = lines(head).filter(|line| parser.parse(line).is_ok()).count();
        if good > best.0 {
            best = (good, Some(format));
        }
    }
    best.1
}

/// The common format of the lines that are understood. `None` if none is.
fn describe(format: Format, mut parser: Parser, head: &[u8]) -> Option<Detection> {
    let (mut fine, mut coarse, mut duration, mut first) = (0, 0, false, None);
    // The first line of CSV names the columns.
    for line in lines(head).skip(usize::from(format == Format::Csv)) {
        if let Ok(record) = parser.parse(line) {
            match record.precision {
                Precision::Exact => fine += 1,
                Precision::Second => coarse += 1,
            }
            duration |= record.duration.is_some();
            first = first.or(Some(line));
        }
    }
    let first = match (first, format) {
        (Some(first), _) => first,
        // A table without rows is understood, and so is one whose rows are all bad: they are shown.
        (None, Format::Csv | Format::Ndjson) => &[][..],
        (None, _) => return None,
    };
    let is_clf = format == Format::Combined;
    // A referer and a user agent are two more fields in quotes.
    let quotes = first.iter().filter(|byte| **byte == b'"').count();
    let format = if is_clf && quotes < 6 { Format::Common } else { format };
    // Traefik writes this format with the arrival, and with a duration such as 12ms.
    let stamp = if is_clf && first.ends_with(b"ms") { Stamp::Arrival } else { format.stamp() };
    // Many programs leave out a fraction of zero, so one fraction is enough. An appended field is there or not.
    let exact = fine > 0 && (!is_clf || coarse == 0);
    let precision = if exact { Precision::Exact } else { Precision::Second };
    Some(Detection { format, stamp, precision, duration, has_no_zone: parser.has_no_zone() })
}

/// The detection of every archive.
const fn archive() -> Detection {
    Detection {
        format: Format::Har,
        stamp: Stamp::Arrival,
        precision: Precision::Exact,
        duration: true,
        has_no_zone: false,
    }
}

/// The format that a single line is in, unless that is a table.
pub(super) fn line_format(line: &[u8]) -> Option<Format> {
    best(line)
}

/// Refuses files of other kinds, with what they look like.
fn is_readable(head: &[u8]) -> Result<(), DetectError> {
    let what = match head {
        [0xFD, b'7', b'z', b'X', b'Z', ..] => "it looks like xz; pipe it through `xz -dc`",
        [b'B', b'Z', b'h', ..] => "it looks like bzip2; pipe it through `bzip2 -dc`",
        [b'P', b'K', 3, 4, ..] => "it looks like a zip archive; pipe it through `unzip -p`",
        [4, 0x22, 0x4D, 0x18, ..] => "it looks like lz4; pipe it through `lz4 -dc`",
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => "it looks like UTF-16; convert it with `iconv -t UTF-8`",
        [0x1F, 0x8B, ..] => "it looks like gzip within gzip; pipe it through `gzip -dc`",
        _ if head.get(257..262) == Some(b"ustar") => "it looks like a tar archive; pipe it through `tar -xO`",
        _ => return Ok(()),
    };
    Err(DetectError::Binary(what))
}

/// The probable format of a line that no reader accepts, and why its reader does not.
fn hint(line: &[u8]) -> String {
    let reason = match () {
        () if haproxy::has_date(line) => ("HAProxy", haproxy::parse(line).err()),
        () if clf::has_date(line) => ("nginx or Apache", clf::parse(line, &mut ClfDates::new()).err()),
        () if alb::is_line(line) => ("AWS ALB", alb::parse(line).err()),
        () => ("", None),
    };
    if let (name, Some(reason)) = reason {
        return format!(" ({name}? {reason})");
    }
    let hint = match line.trim_ascii_start().first() {
        Some(b'[') => " (a JSON array? write one object a line: `jq -c '.[]'`)",
        Some(b'{') => " (JSON without a time that is known? name it with --time)",
        _ if line.starts_with(b"#") => " (a W3C log? write it as CSV with a header, and name its columns)",
        _ if line.contains(&b',') => " (CSV? its first line must name the columns)",
        _ => "",
    };
    hint.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(head: &str) -> String {
        match Format::detect(head.as_bytes(), &Mapping::default()) {
            Ok(detection) => detection.to_string(),
            Err(error) => panic!("{head}: {error}"),
        }
    }

    #[test]
    fn sentences_say_what_the_stamps_mean() {
        let common = r#"192.0.2.1 - - [01/Mar/2024:12:00:00 +0000] "GET / HTTP/1.1" 200 5"#;
        assert_eq!(
            sentence(common),
            "nginx/Apache common: stamps in whole seconds, at the end, without durations, so arrivals are taken as the stamps"
        );
        assert_eq!(
            sentence(&format!("{common} \"-\" \"-\" 0.250 1709294400.250\n")),
            "nginx/Apache combined: stamps in milliseconds or finer, at the end, with durations, so arrival = end - duration"
        );
        assert_eq!(
            sentence(&format!("{common} \"-\" \"-\" 1 \"r\" \"http://x\" 12ms\n")),
            "nginx/Apache combined: stamps in whole seconds, at arrival, with durations"
        );
        assert_eq!(
            sentence("time;key\n2024-03-01T12:00:00Z;a\n"),
            "CSV: stamps in whole seconds, at arrival, without durations"
        );
        for table in ["time;key\n2024-03-01 12:00:00;a\n", "{\"time\":\"2024-03-01T12:00:00\",\"key\":1}"] {
            assert!(sentence(table).ends_with("; the stamps have no zone and are read as UTC"), "{table}");
        }
    }

    /// Some bad lines before the good ones do not hide the format.
    #[test]
    fn the_reader_of_most_lines_wins() {
        let head = "starting up\nlistening on :80\n\n192.0.2.1 - - [01/Mar/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n";
        assert_eq!(Format::detect(head.as_bytes(), &Mapping::default()).unwrap().format, Format::Common);
        let bom = "\u{feff}time,key\n1709294400.5,a\n";
        assert_eq!(Format::detect(bom.as_bytes(), &Mapping::default()).unwrap().format, Format::Csv);
    }

    #[test]
    fn other_formats_are_named_in_the_error() {
        for (head, complaint) in [
            (&b""[..], "empty"),
            (b"\n \r\n", "empty"),
            (b"\x7fELF\0\0\0", "bytes of zero"),
            (b"\xFD7zXZ\0", "xz -dc"),
            (b"\xFF\xFEt\0", "UTF-16"),
            (
                b"hello world\n",
                "the first line is `hello world`; formats that are read: nginx/Apache common,",
            ),
            (b"[{\"time\":1}]", "jq -c"),
            (b"1,2,3\n4,5,6\n", "first line must name the columns"),
            (b"{\"level\":\"info\"}\n", "name it with --time; the columns are level"),
            (
                b"192.0.2.1 - - [01/Mar/2024:12:00:00 CET] \"GET / HTTP/1.1\" 200 5\n",
                "(nginx or Apache? the zone `CET` is unknown: expected an offset such as +0200); formats",
            ),
            (
                b"192.0.2.1 - - [30/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n",
                "is not a date: expected",
            ),
            (b"10.0.1.2:3 [06/Feb/2009:12:14:14.655] in b/s 1/2/3 200 4\n", "(HAProxy? no five timers"),
            (b"http 2018-07-02T22:23:00.186641Z app/x\n", "(AWS ALB? 3 fields"),
        ] {
            let error = Format::detect(head, &Mapping::default()).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
        let mapping = Mapping::default().with_key("x");
        let combined = b"192.0.2.1 - - [01/Mar/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5";
        assert_eq!(
            Format::detect(combined, &mapping),
            Err(DetectError::NotATable(Format::Combined)),
            "flags that name columns are not ignored"
        );
    }
}
