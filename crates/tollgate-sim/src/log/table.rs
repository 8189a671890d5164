//! CSV and NDJSON: rows whose columns the caller maps.

use std::borrow::Cow;

use memchr::{memchr, memchr2};
use tollgate::{Ticks, Timestamp};

use super::json::{Json, Members};
use super::mapping::{Column, ColumnError, Mapping, Role, columns};
use super::record::{Precision, Record};
use super::stamp::{ClfDates, any_stamp};
use super::text::{Reason, address, millis, number, refuses, request_line_in, scaled, seconds, text};

/// Deepest object of NDJSON whose fields are read, as `request.headers.host`.
const DEPTH_MAX: usize = 4;

/// Fills a record from cells.
struct Cells<'a> {
    record: Record<'a>,
    has_time: bool,
}

impl<'a> Cells<'a> {
    fn new() -> Self {
        Self { record: Record::at(Timestamp::default(), Precision::Exact), has_time: false }
    }

    /// Takes a cell. An empty one and `-` say nothing.
    fn cell(&mut self, column: &'a Column, value: Cow<'a, str>, dates: &mut ClfDates) -> Result<(), Reason> {
        if value.is_empty() || value == "-" {
            return Ok(());
        }
        let wrong = |kind| Reason::from(format!("the column {} is not {kind}", column.name.escape_debug()));
        let record = &mut self.record;
        let bytes = value.trim().as_bytes();
        match column.role {
            Role::Time => {
                (record.arrival, record.precision) = any_stamp(bytes, dates)?;
                self.has_time = true;
            }
            Role::Cost => record.cost = Some(scaled(bytes, 0).ok_or_else(|| wrong("a cost"))?),
            Role::Status => {
                let status = number(bytes).and_then(|status| u16::try_from(status).ok());
                record.status = Some(status.ok_or_else(|| wrong("a status"))?);
            }
            Role::Bytes => record.bytes = Some(number(bytes).ok_or_else(|| wrong("a number of bytes"))?),
            Role::Seconds => record.duration = Some(seconds(bytes).ok_or_else(|| wrong("a duration"))?),
            Role::Millis => record.duration = Some(millis(bytes).ok_or_else(|| wrong("a duration"))?),
            Role::Micros => {
                let micros = scaled(bytes, 0).ok_or_else(|| wrong("a duration"))?;
                record.duration = Some(Ticks::from_micros(micros));
            }
            Role::Client => record.client = address(bytes),
            Role::Method => record.method = Some(value.clone()),
            Role::Host => record.host = Some(value.clone()),
            Role::User => record.user = Some(value.clone()),
            Role::UserAgent => record.user_agent = Some(value.clone()),
            Role::Target => self.target(value.clone()),
            Role::None => {}
        }
        if let Some(attribute) = &column.attribute {
            self.record.attributes.push((Cow::Borrowed(attribute), value));
        }
        Ok(())
    }

    /// A column of targets has paths, whole URLs, or request lines.
    fn target(&mut self, value: Cow<'a, str>) {
        let read = request_line_in(value.as_bytes(), text);
        if value.starts_with('/') || read.method.is_none() {
            self.record.target = Some(value);
            return;
        }
        self.record.method = read.method.map(|method| Cow::Owned(method.into_owned()));
        self.record.target = read.target.map(|target| Cow::Owned(target.into_owned()));
    }

    fn finish(mut self) -> Result<Record<'a>, Reason> {
        if !self.has_time {
            return Err("the row has no time".into());
        }
        self.record.refused = refuses(self.record.status);
        Ok(self.record)
    }
}

/// The columns of a CSV file, from its first line.
#[derive(Clone, Debug)]
pub(super) struct Csv {
    separator: u8,
    columns: Vec<Column>,
    dates: ClfDates,
}

impl Csv {
    /// Reads the line that names the columns.
    pub(super) fn new(header: &[u8], mapping: &Mapping) -> Result<Self, ColumnError> {
        let separator = separator(header);
        let mut names = Vec::new();
        let mut rest = Some(header);
        while let Some(line) = rest {
            let (name, after) = field(line, separator).unwrap_or((text(line), None));
            names.push(name.trim().to_owned());
            rest = after;
        }
        Ok(Self { separator, columns: columns(&names, mapping)?, dates: ClfDates::new() })
    }

    pub(super) const fn has_no_zone(&self) -> bool {
        self.dates.has_no_zone
    }

    pub(super) fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Record<'a>, Reason> {
        let Self { separator, columns, dates } = self;
        let columns: &'a [Column] = columns;
        let mut row = Cells::new();
        let (mut rest, mut count) = (Some(line), 0);
        while let Some(line) = rest {
            let (value, after) = field(line, *separator)?;
            if let Some(column) = columns.get(count) {
                row.cell(column, value, dates)?;
            }
            count += 1;
            rest = after;
        }
        if count != columns.len() {
            return Err(format!("{count} fields; the header has {}", columns.len()).into());
        }
        row.finish()
    }
}

/// The separator that the header has most of.
fn separator(header: &[u8]) -> u8 {
    let count = |separator: &u8| header.iter().filter(|byte| *byte == separator).count();
    // The first of equals, so a header of one column has commas.
    [b'\t', b';', b'|', b','].into_iter().max_by_key(count).unwrap_or(b',')
}

/// Splits off a field; the second part is `None` after the last one.
fn field(line: &[u8], separator: u8) -> Result<(Cow<'_, str>, Option<&[u8]>), Reason> {
    let Some(inside) = line.strip_prefix(b"\"") else {
        return Ok(match memchr(separator, line) {
            Some(at) => (text(&line[..at]), Some(&line[at + 1..])),
            None => (text(line), None),
        });
    };
    let mut from = 0;
    loop {
        let unfinished = "a field in quotes does not end on its line";
        let end = from + memchr(b'"', &inside[from..]).ok_or(unfinished)?;
        match inside.get(end + 1) {
            Some(b'"') => from = end + 2,
            next => {
                let value = text(&inside[..end]);
                let value = if from > 0 { Cow::Owned(value.replace("\"\"", "\"")) } else { value };
                return match next {
                    None => Ok((value, None)),
                    Some(byte) if *byte == separator => Ok((value, Some(&inside[end + 2..]))),
                    Some(_) => Err("something follows a field in quotes".into()),
                };
            }
        }
    }
}

/// The fields of an NDJSON file, from its first lines.
#[derive(Clone, Debug)]
pub(super) struct Ndjson {
    columns: Vec<Column>,
    dates: ClfDates,
}

impl Ndjson {
    /// Finds the roles of the fields that `lines` have. A field that comes up later is an attribute.
    pub(super) fn new<'l>(
        lines: impl Iterator<Item = &'l [u8]>,
        mapping: &Mapping,
    ) -> Result<Self, ColumnError> {
        let mut names: Vec<String> = Vec::new();
        for line in lines {
            // A line that breaks off has named some fields; it is a bad line later.
            let _ = walk(line, "", 0, &mut |name, _| {
                if !names.iter().any(|known| *known == name) {
                    names.push(name.into_owned());
                }
                Ok(())
            });
        }
        Ok(Self { columns: columns(&names, mapping)?, dates: ClfDates::new() })
    }

    pub(super) const fn has_no_zone(&self) -> bool {
        self.dates.has_no_zone
    }

    pub(super) fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Record<'a>, Reason> {
        let Self { columns, dates } = self;
        let columns: &'a [Column] = columns;
        let mut row = Cells::new();
        walk(line, "", 0, &mut |name, value| {
            let Some(value) = value.scalar() else { return Ok(()) };
            match columns.iter().find(|column| column.name == name) {
                Some(column) => row.cell(column, value, dates),
                None => {
                    row.record.attributes.push((name, value));
                    Ok(())
                }
            }
        })?;
        row.finish()
    }
}

/// Receives the name and the value of a field.
type Field<'f, 'a> = &'f mut dyn FnMut(Cow<'a, str>, Json<'a>) -> Result<(), Reason>;

/// Runs on every field of an object, and on those of the objects in it, with dots in their names.
fn walk<'a>(object: &'a [u8], before: &str, depth: usize, field: Field<'_, 'a>) -> Result<(), Reason> {
    let each = |name: Cow<'a, str>, value: Json<'a>| {
        let name = if before.is_empty() { name } else { Cow::Owned(format!("{before}.{name}")) };
        match value {
            Json::Object(inside) if depth < DEPTH_MAX => walk(inside, &name, depth + 1, field),
            value => field(name, value),
        }
    };
    Members::each(object, each)
}

/// Whether a line could be the header of CSV: several names, and none of them a number or JSON.
pub(super) fn is_header(line: &[u8]) -> bool {
    memchr2(b'{', b'[', line).is_none() && {
        let separator = separator(line);
        memchr(separator, line).is_some()
            && line.split(|byte| *byte == separator).all(|name| !name.is_empty() && number(name).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_csv() {
        let header = b"time,client_ip,method,path,status,duration_ms,api_key,tokens";
        let mapping = Mapping { cost: Some("tokens".into()), ..Mapping::default() };
        let mut csv = Csv::new(header, &mapping).unwrap();
        let line = br#"2024-03-01T12:00:00.5Z,[2001:db8::1]:99,GET,"/a,""b""",429,12.5,k1,7"#;
        let record = csv.parse(line).unwrap();
        assert_eq!(record.arrival.unix_micros(), 1_709_294_400_500_000);
        assert_eq!(record.client, Some("2001:db8::1".parse().unwrap()));
        assert_eq!((record.method.as_deref(), record.target.as_deref()), (Some("GET"), Some("/a,\"b\"")));
        assert_eq!((record.status, record.cost, record.refused), (Some(429), Some(7), true));
        assert_eq!(record.duration, Some(Ticks::from_micros(12_500)));
        assert!(record.attributes.contains(&("api_key".into(), "k1".into())));
        assert!(record.attributes.contains(&("path".into(), "/a,\"b\"".into())));
        for (line, complaint) in [
            ("2024-03-01T12:00:00Z,::1,GET", "3 fields; the header has 8"),
            ("2024-03-01T12:00:00Z,::1,GET,/,200,1,k,1,extra", "9 fields; the header has 8"),
            (",::1,GET,/,200,1,k,1", "no time"),
            ("soon,::1,GET,/,200,1,k,1", "is not a time"),
            ("1709294400,::1,GET,/,200,1,k,many", "tokens is not a cost"),
            ("1709294400,::1,GET,/,ok,1,k,1", "status is not a status"),
            ("1709294400,::1,GET,\"/,200,1,k,1", "does not end"),
            ("1709294400,::1,GET,\"/\"x,200,1,k,1", "follows a field in quotes"),
        ] {
            let reason = csv.parse(line.as_bytes()).unwrap_err();
            assert!(reason.contains(complaint), "{line}: {reason}");
        }
    }

    /// Tabs, semicolons and bars separate too, and cells that are empty say nothing.
    #[test]
    fn separators_are_found() {
        for separator in ["\t", ";", "|", ","] {
            let header = ["ts", "key", "status"].join(separator);
            let mut csv = Csv::new(header.as_bytes(), &Mapping::default()).unwrap();
            let line = ["1709294400", "k", ""].join(separator);
            let record = csv.parse(line.as_bytes()).unwrap();
            assert_eq!((record.precision, record.status), (Precision::Second, None));
            assert_eq!(record.attributes, [("key".into(), "k".into())]);
        }
    }

    #[test]
    fn fields_of_ndjson() {
        let line = br#"{"@timestamp":1709294400250,"request":{"ip":"192.0.2.1","path":"/a"},"tier":"pro","n":3,"none":null}"#;
        let mapping = Mapping::default().with_key("client=request.ip");
        let mut ndjson = Ndjson::new([&line[..]].into_iter(), &mapping).unwrap();
        let record = ndjson.parse(line).unwrap();
        assert_eq!(record.arrival.unix_micros(), 1_709_294_400_250_000);
        let attributes: Vec<(&str, &str)> =
            record.attributes.iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
        assert_eq!(
            attributes,
            [("client", "192.0.2.1"), ("request.path", "/a"), ("tier", "pro"), ("n", "3")]
        );
        let late = ndjson.parse(br#"{"@timestamp":"2024-03-01T12:00:00Z","new":"x"}"#).unwrap();
        assert_eq!(late.attributes, [("new".into(), "x".into())]);
        assert!(ndjson.parse(br#"{"tier":"pro"}"#).unwrap_err().contains("no time"));
        assert!(ndjson.parse(b"plain text").unwrap_err().contains("not a JSON object"));
        let error = Ndjson::new([&line[..]].into_iter(), &Mapping::default().with_key("tiers")).unwrap_err();
        assert!(error.to_string().contains("did you mean tier?"), "{error}");
    }
}
