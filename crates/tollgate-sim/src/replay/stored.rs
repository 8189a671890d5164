//! A record that outlives its line: all of its text in one buffer, which is used again for later records.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate::{Ticks, Timestamp};

use crate::log::{Precision, Record};

/// A stretch of the buffer; `None` where the log has no such field.
type Stretch = Option<(usize, usize)>;

/// The owned copy of a [`Record`].
#[derive(Clone, Debug, Default)]
pub(super) struct StoredRecord {
    text: String,
    arrival: Timestamp,
    precision: Precision,
    duration: Option<Ticks>,
    client: Option<IpAddr>,
    user: Stretch,
    method: Stretch,
    target: Stretch,
    host: Stretch,
    user_agent: Stretch,
    headers: Vec<(Stretch, Stretch)>,
    attributes: Vec<(Stretch, Stretch)>,
    status: Option<u16>,
    bytes: Option<u64>,
    cost: Option<u64>,
    refused: bool,
}

impl StoredRecord {
    /// Replaces the content, and keeps the buffers.
    pub(super) fn store(&mut self, record: &Record<'_>) {
        let text = &mut self.text;
        text.clear();
        self.arrival = record.arrival;
        self.precision = record.precision;
        self.duration = record.duration;
        self.client = record.client;
        self.user = kept(text, record.user.as_deref());
        self.method = kept(text, record.method.as_deref());
        self.target = kept(text, record.target.as_deref());
        self.host = kept(text, record.host.as_deref());
        self.user_agent = kept(text, record.user_agent.as_deref());
        for (pairs, given) in
            [(&mut self.headers, &record.headers), (&mut self.attributes, &record.attributes)]
        {
            pairs.clear();
            pairs.extend(
                given.iter().map(|(name, value)| (kept(text, Some(&**name)), kept(text, Some(&**value)))),
            );
        }
        self.status = record.status;
        self.bytes = record.bytes;
        self.cost = record.cost;
        self.refused = record.refused;
    }

    /// The record, borrowed.
    pub(super) fn record(&self) -> Record<'_> {
        let text = |piece: Stretch| piece.map(|(from, to)| Cow::Borrowed(&self.text[from..to]));
        let pairs = |pairs: &[(Stretch, Stretch)]| {
            let pair = |(name, value): &(Stretch, Stretch)| {
                (text(*name).unwrap_or_default(), text(*value).unwrap_or_default())
            };
            pairs.iter().map(pair).collect()
        };
        Record {
            arrival: self.arrival,
            precision: self.precision,
            duration: self.duration,
            client: self.client,
            user: text(self.user),
            method: text(self.method),
            target: text(self.target),
            host: text(self.host),
            user_agent: text(self.user_agent),
            headers: pairs(&self.headers),
            attributes: pairs(&self.attributes),
            status: self.status,
            bytes: self.bytes,
            cost: self.cost,
            refused: self.refused,
        }
    }

    pub(super) const fn arrival(&self) -> Timestamp {
        self.arrival
    }

    pub(super) const fn precision(&self) -> Precision {
        self.precision
    }
}

/// Appends a text to the buffer, and returns where it is.
fn kept(buffer: &mut String, text: Option<&str>) -> Stretch {
    text.map(|text| {
        let from = buffer.len();
        buffer.push_str(text);
        (from, buffer.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stored record equals the original, whatever the buffer held before.
    #[test]
    fn a_record_survives_its_line() {
        let record = Record {
            arrival: Timestamp::from_unix_seconds(7),
            precision: Precision::Second,
            duration: Some(Ticks::from_millis(3)),
            client: "2001:db8::1".parse().ok(),
            user: Some("ann".into()),
            method: Some("GET".into()),
            target: Some("/a?b=c".into()),
            host: None,
            user_agent: Some("curl/8".into()),
            headers: vec![("x-tenant".into(), "acme".into())],
            attributes: vec![("plan".into(), "free".into()), ("n".into(), "".into())],
            status: Some(200),
            bytes: Some(12),
            cost: None,
            refused: true,
        };
        let mut stored = StoredRecord::default();
        stored.store(&Record { user: Some("a much longer name than before".into()), ..record.clone() });
        stored.store(&record);
        assert_eq!(stored.record(), record);
    }
}
