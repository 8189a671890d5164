//! The bodies of the targets of the log readers. The tests of `tollgate-sim` include this file.

use std::io::{Cursor, Read, Result};

use tollgate_sim::log::{Format, LogError, Mapping, Reader};

/// Gives a few bytes at a time, so that lines are cut everywhere.
struct Trickle(Cursor<Vec<u8>>, usize);

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.1 = self.1 % 7 + 1;
        let size = self.1.min(into.len());
        self.0.read(&mut into[..size])
    }
}

/// The content of a log, and what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    records: Vec<String>,
    bad: u64,
    examples: Vec<String>,
}

fn read(reader: std::result::Result<Reader, LogError>) -> Option<Outcome> {
    let mut reader = match reader {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "refused without a reason");
            return None;
        }
    };
    let mut records = Vec::new();
    reader.for_each(|record| records.push(format!("{record:?}"))).unwrap();
    let examples: Vec<String> = reader.examples().iter().map(ToString::to_string).collect();
    for example in &examples {
        assert!(!example.chars().any(char::is_control), "an excerpt that a terminal would obey: {example:?}");
    }
    assert_eq!(reader.records(), u64::try_from(records.len()).unwrap());
    Some(Outcome { records, bad: reader.bad_lines(), examples })
}

/// Reads the bytes as a format. No bytes make it panic; what it reads is the same wherever it is cut; and every line that
/// is not blank is counted.
fn log(format: Format, bytes: &[u8]) {
    if is_compressed(bytes) {
        return log_any(bytes);
    }
    let mapping = Mapping::default();
    let whole = read(Reader::stream_as(format, "log", Cursor::new(bytes.to_vec()), &mapping));
    let cut = read(Reader::stream_as(format, "log", Trickle(Cursor::new(bytes.to_vec()), 0), &mapping));
    assert_eq!(whole, cut);
    if let (Some(whole), true) = (whole, format != Format::Har) {
        let text = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let lines =
            text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii_end().is_empty()).count();
        let header = usize::from(format == Format::Csv && lines > 0);
        assert_eq!(whole.records.len() + usize::try_from(whole.bad).unwrap() + header, lines);
    }
}

fn is_compressed(bytes: &[u8]) -> bool {
    matches!(bytes, [0x1F, 0x8B, ..] | [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..])
}

/// Any bytes, whose format is looked for. Of damaged compression, as much is read as the decoder gives out before it sees
/// the damage, which depends on how the bytes come.
pub fn log_any(bytes: &[u8]) {
    let mapping = Mapping::default();
    let whole = read(Reader::stream("log", Cursor::new(bytes.to_vec()), &mapping));
    let cut = read(Reader::stream("log", Trickle(Cursor::new(bytes.to_vec()), 0), &mapping));
    assert!(whole == cut || is_compressed(bytes), "{whole:?} and {cut:?}");
}

/// nginx and Apache.
pub fn log_clf(bytes: &[u8]) {
    log(Format::Combined, bytes);
}

/// Envoy.
pub fn log_envoy(bytes: &[u8]) {
    log(Format::Envoy, bytes);
}

/// AWS load balancers.
pub fn log_alb(bytes: &[u8]) {
    log(Format::Alb, bytes);
}

/// Caddy.
pub fn log_caddy(bytes: &[u8]) {
    log(Format::Caddy, bytes);
}

/// Traefik.
pub fn log_traefik(bytes: &[u8]) {
    log(Format::Traefik, bytes);
}

/// HAProxy.
pub fn log_haproxy(bytes: &[u8]) {
    log(Format::Haproxy, bytes);
}

/// Separated values.
pub fn log_csv(bytes: &[u8]) {
    log(Format::Csv, bytes);
}

/// One JSON object a line.
pub fn log_ndjson(bytes: &[u8]) {
    log(Format::Ndjson, bytes);
}

/// HTTP archives.
pub fn log_har(bytes: &[u8]) {
    log(Format::Har, bytes);
}

/// Tollgate's decisions.
pub fn log_decisions(bytes: &[u8]) {
    log(Format::Decisions, bytes);
}
