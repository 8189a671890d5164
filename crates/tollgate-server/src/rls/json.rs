//! Envoy's request and answer in protobuf's JSON mapping: field names in camel case or as in the protocol, numbers as
//! numbers or text, and defaults left out.

use serde_json::{Map, Number, Value, json};
use tollgate_tower::unique_json::UniqueValue;

use super::{Answer, Code, Descriptor, NO_LIMIT_APPLIES, Override, RlsRequest, Status, Unit};
use crate::json_error;
use crate::request_json::whole;

#[cfg(test)]
mod tests;

/// A question that is accepted.
const ACCEPTED: &str =
    r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "u1"}]}]}"#;

/// Parses the request in a body.
pub(crate) fn rls_request(body: &[u8]) -> Result<RlsRequest, String> {
    let UniqueValue(document) =
        serde_json::from_slice(body).map_err(|error| json_error::explained(&error, &ACCEPTED))?;
    let mut fields = MessageFields::of(&document, "")?;
    let rls_request = RlsRequest {
        domain: fields.text("domain", "domain")?,
        descriptors: fields.list("descriptors", "descriptors", descriptor)?,
        hits_addend: u32::try_from(fields.number("hits_addend", "hitsAddend")?.unwrap_or(0))
            .map_err(|_| "hits_addend: too large; accepted: numbers up to 4294967295".to_owned())?,
    };
    fields.end()?;
    Ok(rls_request)
}

fn descriptor(value: &Value, path: &str) -> Result<Descriptor, String> {
    let mut fields = MessageFields::of(value, path)?;
    let descriptor = Descriptor {
        entries: fields.list("entries", "entries", entry)?,
        limit: match fields.take("limit", "limit")? {
            None | Some(Value::Null) => None,
            Some(value) => limit(value, &format!("{path}.limit"))?,
        },
        hits_addend: fields.number("hits_addend", "hitsAddend")?,
        is_negative_hits: fields.truth("is_negative_hits", "isNegativeHits")?,
    };
    fields.end()?;
    Ok(descriptor)
}

fn entry(value: &Value, path: &str) -> Result<(String, String), String> {
    let mut fields = MessageFields::of(value, path)?;
    let entry = (fields.text("key", "key")?, fields.text("value", "value")?);
    fields.end()?;
    Ok(entry)
}

/// The limit that a descriptor carries. A limit with an unknown or missing unit counts as none, as over gRPC.
fn limit(value: &Value, path: &str) -> Result<Option<Override>, String> {
    let accepted = "accepted: SECOND, MINUTE, HOUR, DAY, WEEK, MONTH and YEAR";
    let mut fields = MessageFields::of(value, path)?;
    let requests = fields.number("requests_per_unit", "requestsPerUnit")?.unwrap_or(0);
    let requests_per_unit = u32::try_from(requests)
        .map_err(|_| format!("{path}.requests_per_unit: too large; accepted: numbers up to 4294967295"))?;
    let unit = match fields.take("unit", "unit")? {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) if name == "UNKNOWN" => None,
        Some(Value::String(name)) if let Some(unit) = Unit::of(name) => Some(unit),
        Some(Value::Number(number)) => number.as_u64().and_then(numbered),
        Some(_) => return Err(format!("{path}.unit: no unit; {accepted}")),
    };
    fields.end()?;
    Ok(unit.map(|unit| Override { requests_per_unit, unit }))
}

/// A unit by its number in the protocol.
fn numbered(number: u64) -> Option<Unit> {
    Some(match number {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        7 => Unit::Week,
        _ => return None,
    })
}

/// The fields of one message, each of which may have either of two names.
struct MessageFields<'v> {
    path: &'v str,
    fields: &'v Map<String, Value>,
    taken: usize,
}

impl<'v> MessageFields<'v> {
    fn of(value: &'v Value, path: &'v str) -> Result<Self, String> {
        match value {
            Value::Object(fields) => Ok(Self { path, fields, taken: 0 }),
            _ if path.is_empty() => Err(format!("the body is no object; accepted: {ACCEPTED}")),
            _ => Err(format!("{path}: is no object")),
        }
    }

    fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn take(&mut self, name: &str, camel: &str) -> Result<Option<&'v Value>, String> {
        let named = self.fields.get(name);
        let other = if camel == name { None } else { self.fields.get(camel) };
        self.taken += usize::from(named.is_some()) + usize::from(other.is_some());
        match (named, other) {
            (Some(_), Some(_)) => Err(format!("{}: given twice; give it once", self.name(name))),
            (one, other) => Ok(one.or(other)),
        }
    }

    fn text(&mut self, name: &str, camel: &str) -> Result<String, String> {
        match self.take(name, camel)? {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(format!("{}: is no text", self.name(name))),
        }
    }

    fn truth(&mut self, name: &str, camel: &str) -> Result<bool, String> {
        match self.take(name, camel)? {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(truth)) => Ok(*truth),
            Some(_) => Err(format!("{}: accepted: true and false", self.name(name))),
        }
    }

    /// A whole number, as a number, as text, or wrapped as `{"value": 5}`.
    fn number(&mut self, name: &str, camel: &str) -> Result<Option<u64>, String> {
        let value = match self.take(name, camel)? {
            Some(Value::Object(wrapped)) if wrapped.len() == 1 => wrapped.get("value"),
            value => value,
        };
        let number = match value {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Number(number)) => number.as_u64().or_else(|| as_whole(number)),
            Some(Value::String(text)) => text.parse().ok(),
            Some(_) => None,
        };
        number.map(Some).ok_or_else(|| format!("{}: accepted: whole numbers from 0", self.name(name)))
    }

    fn list<T>(
        &mut self,
        name: &str,
        camel: &str,
        read: fn(&Value, &str) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let path = self.name(name);
        match self.take(name, camel)? {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => items
                .iter()
                .enumerate()
                .map(|(index, item)| read(item, &format!("{path}[{index}]")))
                .collect(),
            Some(_) => Err(format!("{path}: is no list")),
        }
    }

    /// Refuses unknown fields.
    fn end(self) -> Result<(), String> {
        if self.taken == self.fields.len() {
            return Ok(());
        }
        let known = "domain, descriptors, entries, key, value, limit, requests_per_unit, unit, hits_addend and is_negative_hits";
        let other = self.fields.keys().find(|name| !known.contains(snake(name).as_str()));
        let name = other
            .map_or_else(|| "a field in the wrong place".to_owned(), |name| name.chars().take(64).collect());
        Err(format!("{}: unknown; accepted: {known}, each where it belongs", self.name(&name)))
    }
}

/// A whole number written as `3.0` or `3e0`, which protobuf's JSON mapping accepts.
fn as_whole(number: &Number) -> Option<u64> {
    u64::try_from(whole(number.as_f64()?)?).ok()
}

fn snake(name: &str) -> String {
    name.chars()
        .flat_map(|c| if c.is_uppercase() { vec!['_', c.to_ascii_lowercase()] } else { vec![c] })
        .collect()
}

/// Converts an answer to JSON.
pub(crate) fn document(answer: &Answer) -> Value {
    let mut document = Map::new();
    document.insert("overallCode".to_owned(), code(answer.overall).into());
    document.insert("statuses".to_owned(), answer.statuses.iter().map(status).collect());
    if !answer.headers.is_empty() {
        let header = |(key, value): &(String, String)| json!({ "key": key, "value": value });
        document.insert("responseHeadersToAdd".to_owned(), answer.headers.iter().map(header).collect());
    }
    if let Some(refusal) = &answer.refusal {
        let metadata = json!({ "cause": refusal.cause, "reason": refusal.reason });
        document.insert("dynamicMetadata".to_owned(), metadata);
    } else if answer.meets_no_limit {
        document.insert("dynamicMetadata".to_owned(), json!({ NO_LIMIT_APPLIES: true }));
    }
    Value::Object(document)
}

fn status(status: &Status) -> Value {
    let mut document = Map::new();
    document.insert("code".to_owned(), code(status.code).into());
    if let Some(limit) = &status.current_limit {
        let mut current = Map::new();
        if !limit.name.is_empty() {
            current.insert("name".to_owned(), limit.name.clone().into());
        }
        if limit.requests_per_unit > 0 {
            current.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
        }
        if let Some(unit) = limit.unit {
            current.insert("unit".to_owned(), unit.name().to_ascii_uppercase().into());
        }
        document.insert("currentLimit".to_owned(), Value::Object(current));
    }
    if status.limit_remaining > 0 {
        document.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = status.until_reset {
        document.insert("durationUntilReset".to_owned(), format!("{}s", reset.ceil_seconds()).into());
    }
    Value::Object(document)
}

const fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}
