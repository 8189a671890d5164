//! HTTP archives (HAR): one JSON document, whose entries are found one by one, so that no more than one is in memory.

use tollgate::Timestamp;

use super::json::{Items, Json, Members};
use super::proxy::push_header;
use super::record::{Precision, Record};
use super::stamp::rfc3339;
use super::text::{Reason, millis, number, refuses, split_authority, text};

/// Longest name that is compared.
const NAME_MAX: usize = 8;
/// Depth of the array of entries: the document, its `log`, the array.
const ENTRIES_DEPTH: usize = 3;

/// The role of a byte of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The first byte of an entry.
    Start,
    /// The last byte of an entry.
    End,
    Other,
}

/// Finds the entries in the bytes of a document.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    depth: usize,
    /// Depth of the entries' array while the bytes are in it.
    inside: bool,
    text: bool,
    escaped: bool,
    /// The last text, or its start.
    name: Vec<u8>,
}

impl Entries {
    /// Takes the next byte.
    pub(super) fn byte(&mut self, byte: u8) -> Mark {
        if self.text {
            self.text_byte(byte);
            return Mark::Other;
        }
        match byte {
            b'"' => {
                self.text = true;
                self.name.clear();
            }
            b'{' | b'[' => {
                self.depth += 1;
                if self.depth == ENTRIES_DEPTH && byte == b'[' && self.name == b"entries" {
                    self.inside = true;
                }
                if self.inside && self.depth == ENTRIES_DEPTH + 1 && byte == b'{' {
                    return Mark::Start;
                }
            }
            b'}' | b']' => {
                let was = self.depth;
                self.depth = self.depth.saturating_sub(1);
                if self.inside && was == ENTRIES_DEPTH + 1 {
                    return if byte == b'}' { Mark::End } else { Mark::Other };
                }
                if self.inside && was == ENTRIES_DEPTH {
                    self.inside = false;
                }
            }
            _ => {}
        }
        Mark::Other
    }

    fn text_byte(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.text = false,
            _ if self.name.len() < NAME_MAX => self.name.push(byte),
            _ => {}
        }
    }

    /// Whether the document is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.depth == 0 && !self.text
    }
}

/// Whether a document starts as an archive does.
pub(super) fn is_archive(head: &[u8]) -> bool {
    let inside = || head.trim_ascii_start().strip_prefix(b"{")?.trim_ascii_start().strip_prefix(b"\"log\"");
    let value = || inside()?.trim_ascii_start().strip_prefix(b":");
    value().is_some_and(|value| value.trim_ascii_start().starts_with(b"{"))
}

/// Reads one entry.
pub(super) fn parse(entry: &[u8]) -> Result<Record<'_>, Reason> {
    let mut record = Record::at(Timestamp::default(), Precision::Exact);
    let mut started = None;
    Members::each(entry, |name, value| {
        match (name.as_ref(), value) {
            ("startedDateTime", Json::Text(stamp)) => started = Some(rfc3339(stamp)?),
            ("time", Json::Number(time)) => record.duration = millis(time),
            ("request", Json::Object(request)) => request_object(request, &mut record)?,
            ("response", Json::Object(response)) => response_object(response, &mut record)?,
            _ => {}
        }
        Ok(())
    })?;
    (record.arrival, record.precision) = started.ok_or("no `startedDateTime`")?;
    record.refused = refuses(record.status);
    Ok(record)
}

fn request_object<'a>(request: &'a [u8], record: &mut Record<'a>) -> Result<(), Reason> {
    let mut members = Members::of(request)?;
    while let Some((name, value)) = members.next()? {
        match (name.as_ref(), value) {
            ("method", value) => record.method = value.scalar(),
            ("url", value) => url(value, record),
            ("headers", Json::Array(headers)) => {
                for header in Items::of(headers) {
                    if let Json::Object(header) = header? {
                        header_object(header, record)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Splits a URL into the host and the target.
fn url<'a>(value: Json<'a>, record: &mut Record<'a>) {
    let Some(url) = value.scalar() else { return };
    let (host, target) = split_authority(url.as_bytes());
    record.host = host.map(|host| text(host).into_owned().into());
    record.target = Some(text(target).into_owned().into());
}

fn header_object<'a>(header: &'a [u8], record: &mut Record<'a>) -> Result<(), Reason> {
    let (mut header_name, mut header_value) = (None, None);
    let mut members = Members::of(header)?;
    while let Some((name, value)) = members.next()? {
        match name.as_ref() {
            "name" => header_name = value.scalar(),
            "value" => header_value = Some(value),
            _ => {}
        }
    }
    if let (Some(name), Some(value)) = (header_name, header_value) {
        push_header(record, &name, value);
    }
    Ok(())
}

fn response_object(response: &[u8], record: &mut Record<'_>) -> Result<(), Reason> {
    let mut members = Members::of(response)?;
    while let Some((name, value)) = members.next()? {
        match (name.as_ref(), value) {
            // A request that got no answer has the status 0.
            ("status", Json::Number(status)) => {
                let status = number(status).and_then(|status| u16::try_from(status).ok());
                record.status = status.filter(|status| *status != 0);
            }
            ("bodySize", Json::Number(size)) => record.bytes = number(size),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tollgate::Ticks;

    use super::*;

    #[test]
    fn an_entry_of_a_browser() {
        let entry = br#"{"startedDateTime":"2024-03-01T12:00:00.250Z","time":12.75,
            "request":{"method":"POST","url":"https://api.example.com/v1/chat?x=1","headers":[
                {"name":"User-Agent","value":"Mozilla/5.0"},{"name":"X-Api-Key","value":"k\u0031"}]},
            "response":{"status":429,"bodySize":-1,"content":{"size":10}}}"#;
        let record = parse(entry).unwrap();
        assert_eq!(record.arrival.unix_micros(), 1_709_294_400_250_000);
        assert_eq!(record.duration, Some(Ticks::from_micros(12_750)));
        assert_eq!(record.host.as_deref(), Some("api.example.com"));
        assert_eq!(record.target.as_deref(), Some("/v1/chat?x=1"));
        assert_eq!(record.user_agent.as_deref(), Some("Mozilla/5.0"));
        assert_eq!(record.headers, [("x-api-key".into(), "k1".into())]);
        assert_eq!((record.status, record.bytes, record.refused), (Some(429), None, true));
        assert!(parse(br#"{"time":1}"#).unwrap_err().contains("startedDateTime"));
    }

    /// Only the objects of `log.entries` are entries, whatever texts look like them.
    #[test]
    fn entries_are_found_by_their_place() {
        let document = br#"{"log":{"comment":"\"entries\":[{","pages":[{"entries":[{"no":1}]}],"entries":[{"a":"}"},7,{"b":[{}]}],"x":[{}]}}"#;
        let mut entries = Entries::default();
        let (mut found, mut start) = (Vec::new(), 0);
        for (at, byte) in document.iter().enumerate() {
            match entries.byte(*byte) {
                Mark::Start => start = at,
                Mark::End => found.push(&document[start..=at]),
                Mark::Other => {}
            }
        }
        assert_eq!(found, [&br#"{"a":"}"}"#[..], br#"{"b":[{}]}"#]);
        assert!(entries.is_complete());
        assert!(is_archive(b" {\n \"log\" : { \"version\""));
        assert!(!is_archive(br#"{"log":"text","time":1}"#));
    }
}
