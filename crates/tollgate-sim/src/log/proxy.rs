//! Access logs of proxies in JSON, one object a line: Envoy, Caddy, Traefik; and Tollgate's own decisions.

use std::borrow::Cow;

use memchr::memmem;
use tollgate::{Ticks, Timestamp};

use super::json::{Items, Json, Members};
use super::record::{Precision, Record};
use super::stamp::{ClfDates, Stamped, any_stamp};
use super::text::{Reason, address, go_duration, millis, nanos, number, refuses, seconds};

/// A stamp that is a number or a text.
fn stamp_of(value: Json<'_>) -> Result<Stamped, Reason> {
    let digits = value.digits().ok_or("the stamp is neither a number nor a text")?;
    any_stamp(digits, &mut ClfDates::new())
}

/// A status; logs write 0 or `-` for a request that got no answer.
fn status_of(value: Json<'_>) -> Option<u16> {
    let status = value.digits().and_then(number).and_then(|number| u16::try_from(number).ok());
    status.filter(|status| *status != 0)
}

/// Reads a line of Envoy's JSON log, with the names of Envoy Gateway or of Istio.
pub(super) fn envoy(line: &[u8]) -> Result<Record<'_>, Reason> {
    let mut record = Record::at(Timestamp::default(), Precision::Exact);
    let (mut start, mut path, mut flags, mut answered) = (None, None, None, false);
    Members::each(line, |name, value| {
        match name.as_ref() {
            "start_time" => start = Some(stamp_of(value)?),
            "duration" => record.duration = value.digits().and_then(millis),
            "response_code" => {
                answered = true;
                record.status = status_of(value);
            }
            "response_flags" => flags = value.scalar(),
            "downstream_remote_address" | "downstream_direct_remote_address" => {
                record.client = record.client.or(value.scalar().and_then(|text| address(text.as_bytes())));
            }
            "method" | ":method" => record.method = value.scalar(),
            "path" | ":path" => path = path.take().or(value.scalar()),
            // The path before a route rewrote it is the one that the client sent.
            "x-envoy-origin-path" | "x-envoy-original-path" => path = value.scalar().or(path.take()),
            ":authority" | "authority" => record.host = value.scalar(),
            "user-agent" | "user_agent" => record.user_agent = value.scalar(),
            "bytes_sent" => record.bytes = value.digits().and_then(number),
            "x-forwarded-for" | "x_forwarded_for" | "forwarded_for" => {
                header(&mut record, "x-forwarded-for", value)
            }
            "x-request-id" | "request_id" => header(&mut record, "x-request-id", value),
            other if other.starts_with("x-") => {
                if let Some(value) = value.scalar() {
                    record.headers.push((name, value));
                }
            }
            _ => attribute(&mut record, name, value),
        }
        Ok(())
    })?;
    let (at, precision) = start.ok_or("no `start_time`")?;
    if !answered {
        return Err("no `response_code`".into());
    }
    (record.arrival, record.precision, record.target) = (at, precision, path);
    let limited = flags.is_some_and(|flags| flags.split(',').any(|flag| flag == "RL"));
    record.refused = limited || refuses(record.status);
    Ok(record)
}

fn header<'a>(record: &mut Record<'a>, name: &'static str, value: Json<'a>) {
    if let Some(value) = value.first() {
        record.headers.push((Cow::Borrowed(name), value));
    }
}

fn attribute<'a>(record: &mut Record<'a>, name: Cow<'a, str>, value: Json<'a>) {
    if let Some(value) = value.scalar() {
        record.attributes.push((name, value));
    }
}

/// Reads a line of Caddy's access log.
pub(super) fn caddy(line: &[u8]) -> Result<Record<'_>, Reason> {
    // Lines of the server itself have no request; one search is quicker than reading all their members.
    memmem::find(line, b"\"request\"").ok_or("no `request`")?;
    let mut record = Record::at(Timestamp::default(), Precision::Exact);
    let (mut end, mut request) = (None, None);
    Members::each(line, |name, value| {
        match name.as_ref() {
            "ts" => end = Some(stamp_of(value)?),
            "request" => request = Some(value),
            "duration" => {
                record.duration = match value {
                    Json::Text(text) => go_duration(text).or_else(|| seconds(text)),
                    other => other.digits().and_then(seconds),
                };
            }
            "status" => record.status = status_of(value),
            "size" => record.bytes = value.digits().and_then(number),
            "user_id" => record.user = value.scalar(),
            _ => {}
        }
        Ok(())
    })?;
    let (end, precision) = end.ok_or("no `ts`")?;
    let Some(Json::Object(request)) = request else { return Err("`request` is not an object".into()) };
    caddy_request(request, &mut record)?;
    (record.arrival, record.precision) = (end - record.duration.unwrap_or(Ticks::ZERO), precision);
    record.refused = refuses(record.status);
    Ok(record)
}

fn caddy_request<'a>(request: &'a [u8], record: &mut Record<'a>) -> Result<(), Reason> {
    let mut members = Members::of(request)?;
    while let Some((name, value)) = members.next()? {
        match name.as_ref() {
            "remote_ip" | "remote_addr" => {
                record.client = value.scalar().and_then(|text| address(text.as_bytes()));
            }
            "client_ip" => attribute(record, name, value),
            "method" => record.method = value.scalar(),
            "host" => record.host = value.scalar(),
            "uri" => record.target = value.scalar(),
            "headers" => {
                if let Json::Object(headers) = value {
                    header_map(headers, record)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Headers as an object of lists.
fn header_map<'a>(headers: &'a [u8], record: &mut Record<'a>) -> Result<(), Reason> {
    let mut members = Members::of(headers)?;
    while let Some((name, value)) = members.next()? {
        match value {
            Json::Array(inside) => {
                for item in Items::of(inside) {
                    push_header(record, &name, item?);
                }
            }
            other => push_header(record, &name, other),
        }
    }
    Ok(())
}

/// Adds a header with its name in lower case. The user agent has its own field.
pub(super) fn push_header<'a>(record: &mut Record<'a>, name: &str, value: Json<'a>) {
    let Some(value) = value.scalar() else { return };
    if name.eq_ignore_ascii_case("user-agent") {
        record.user_agent = Some(value);
    } else if value != "REDACTED" {
        record.headers.push((Cow::Owned(name.to_ascii_lowercase()), value));
    }
}

/// Reads a line of Traefik's access log in JSON.
pub(super) fn traefik(line: &[u8]) -> Result<Record<'_>, Reason> {
    let mut record = Record::at(Timestamp::default(), Precision::Exact);
    let mut start = None;
    Members::each(line, |name, value| {
        match name.as_ref() {
            "StartUTC" => start = Some(stamp_of(value)?),
            "StartLocal" if start.is_none() => start = Some(stamp_of(value)?),
            "Duration" => record.duration = value.digits().and_then(nanos),
            "ClientHost" => record.client = value.scalar().and_then(|text| address(text.as_bytes())),
            "ClientAddr" if record.client.is_none() => {
                record.client = value.scalar().and_then(|text| address(text.as_bytes()));
            }
            "ClientUsername" => record.user = value.scalar(),
            "RequestHost" => record.host = value.scalar(),
            "RequestMethod" => record.method = value.scalar(),
            "RequestPath" => record.target = value.scalar(),
            "DownstreamStatus" => record.status = status_of(value),
            "DownstreamContentSize" => record.bytes = value.digits().and_then(number),
            "RouterName" | "ServiceName" | "entryPointName" => attribute(&mut record, name, value),
            other => {
                if let Some(header) = other.strip_prefix("request_") {
                    push_header(&mut record, header, value);
                }
            }
        }
        Ok(())
    })?;
    let (start, precision) = start.ok_or("no `StartUTC` and no `StartLocal`")?;
    (record.arrival, record.precision) = (start, precision);
    record.refused = refuses(record.status);
    Ok(record)
}

/// Reads a decision as `tollgate tail --json` writes it, or a request of a trace, which has `at`, `attributes` and maybe
/// a `cost`.
pub(super) fn decision(line: &[u8]) -> Result<Record<'_>, Reason> {
    let mut record = Record::at(Timestamp::default(), Precision::Exact);
    let (mut at, mut allowed, mut missed, mut is_described) = (None, None, None, false);
    Members::each(line, |name, value| {
        match name.as_ref() {
            "at" => at = Some(stamp_of(value)?.0),
            "allowed" => allowed = Some(value == Json::True),
            "missed" => missed = value.scalar(),
            "cost" => {
                let cost = value.scalar().and_then(|cost| cost.parse().ok());
                record.cost = Some(cost.ok_or("`cost` is no whole number")?);
            }
            "attributes" => {
                let Json::Object(attributes) = value else {
                    return Err("`attributes` is not an object".into());
                };
                is_described = true;
                let mut members = Members::of(attributes)?;
                while let Some((name, value)) = members.next()? {
                    let value = match value {
                        Json::Text(raw) => super::json::unescaped(raw),
                        other => other.scalar().ok_or("an attribute is neither a text nor a number")?,
                    };
                    record.attributes.push((name, value));
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    if let Some(missed) = missed {
        return Err(format!("the reader of the decisions was too slow and lost {missed} of them here").into());
    }
    record.arrival = at.ok_or("no `at`")?;
    if allowed.is_none() && !is_described {
        return Err("neither `allowed` nor `attributes`".into());
    }
    record.refused = allowed == Some(false);
    Ok(record)
}
