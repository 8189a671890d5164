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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_envoy_gateway() {
        let line = br#"{":authority":"api.example.com","bytes_received":0,"bytes_sent":18,"connection_termination_details":null,"downstream_local_address":"10.244.0.9:10080","downstream_remote_address":"[2001:db8::7]:46552","duration":3,"method":"GET","protocol":"HTTP/1.1","requested_server_name":null,"response_code":429,"response_code_details":"request_rate_limited","response_flags":"RL","route_name":"httproute/default/backend/rule/0","start_time":"2024-03-01T12:00:00.250Z","upstream_host":null,"user-agent":"curl/8.5.0","x-api-key":"k1","x-envoy-origin-path":"/get?x=1","x-forwarded-for":"198.51.100.4","x-request-id":"9b0f"}"#;
        let record = envoy(line).unwrap();
        assert_eq!(record.arrival.unix_micros(), 1_709_294_400_250_000);
        assert_eq!(record.duration, Some(Ticks::from_millis(3)));
        assert_eq!(record.client, Some("2001:db8::7".parse().unwrap()));
        assert_eq!(record.host.as_deref(), Some("api.example.com"));
        assert_eq!(record.target.as_deref(), Some("/get?x=1"));
        assert_eq!((record.status, record.bytes, record.refused), (Some(429), Some(18), true));
        assert!(record.headers.contains(&("x-forwarded-for".into(), "198.51.100.4".into())));
        assert!(record.headers.contains(&("x-api-key".into(), "k1".into())));
        assert!(
            record.attributes.contains(&("route_name".into(), "httproute/default/backend/rule/0".into()))
        );
    }

    /// Istio has other names, and a request without an answer has no status. The flag alone means refused.
    #[test]
    fn a_line_of_istio() {
        let line = br#"{"start_time":"2024-03-01T12:00:00.250Z","authority":"shop","path":"/cart","method":"POST","response_code":0,"response_flags":"UAEX,RL","duration":"-","user_agent":"-","request_id":"1","downstream_remote_address":"10.0.0.3:1"}"#;
        let record = envoy(line).unwrap();
        assert_eq!((record.status, record.duration, record.refused), (None, None, true));
        assert_eq!((record.target.as_deref(), record.user_agent), (Some("/cart"), None));
        assert!(envoy(br#"{"start_time":"2024-03-01T12:00:00Z"}"#).unwrap_err().contains("response_code"));
        assert!(envoy(br#"{"response_code":200}"#).unwrap_err().contains("start_time"));
    }

    #[test]
    fn a_line_of_caddy() {
        let line = br#"{"level":"info","ts":1646861401.5241024,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"127.0.0.1","remote_port":"41342","client_ip":"203.0.113.5","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/","headers":{"User-Agent":["curl/7.82.0"],"Accept":["*/*"],"Cookie":["REDACTED"],"X-Forwarded-For":["203.0.113.5","10.0.0.1"]},"tls":{"resumed":false}},"bytes_read":0,"user_id":"","duration":0.000929675,"size":10900,"status":200,"resp_headers":{"Server":["Caddy"]}}"#;
        let record = caddy(line).unwrap();
        assert_eq!(record.arrival.unix_micros(), 1_646_861_401_524_102 - 929);
        assert_eq!(record.client, Some("127.0.0.1".parse().unwrap()));
        assert_eq!(record.user_agent.as_deref(), Some("curl/7.82.0"));
        let names: Vec<&str> = record.headers.iter().map(|(name, _)| name.as_ref()).collect();
        assert_eq!(names, ["accept", "x-forwarded-for", "x-forwarded-for"], "redacted headers are left out");
        assert_eq!((record.status, record.bytes, record.user), (Some(200), Some(10_900), None));
        let text = br#"{"ts":"2024-03-01T12:00:10Z","request":{"remote_addr":"[::1]:5"},"duration":"1m2.5s","status":503}"#;
        let record = caddy(text).unwrap();
        assert_eq!(record.arrival.unix_micros(), 1_709_294_410_000_000 - 62_500_000);
        assert_eq!((record.client, record.refused), (Some("::1".parse().unwrap()), true));
        assert!(caddy(br#"{"level":"warn","ts":1.5,"msg":"x"}"#).unwrap_err().contains("request"));
        assert!(caddy(br#"{"ts":1.5,"request":7}"#).unwrap_err().contains("not an object"));
    }

    #[test]
    fn a_line_of_traefik() {
        let line = br#"{"ClientAddr":"10.42.0.1:57024","ClientHost":"10.42.0.1","ClientPort":"57024","ClientUsername":"-","DownstreamContentSize":19,"DownstreamStatus":404,"Duration":1234567,"OriginStatus":0,"RequestHost":"example.com","RequestMethod":"GET","RequestPath":"/a?b=c","RouterName":"web@docker","StartLocal":"2024-03-01T13:00:00.123456789+01:00","StartUTC":"2024-03-01T12:00:00.123456789Z","entryPointName":"web","level":"info","msg":"","request_X-Api-Key":"k1","time":"2024-03-01T12:00:00Z"}"#;
        let record = traefik(line).unwrap();
        assert_eq!(record.arrival.unix_micros(), 1_709_294_400_123_456);
        assert_eq!(record.duration, Some(Ticks::from_micros(1_234)));
        assert_eq!(record.client, Some("10.42.0.1".parse().unwrap()));
        assert_eq!((record.user, record.status, record.bytes), (None, Some(404), Some(19)));
        assert_eq!(record.headers, [("x-api-key".into(), "k1".into())]);
        assert!(traefik(br#"{"level":"info","msg":"x"}"#).unwrap_err().contains("StartUTC"));
    }

    /// The line is the one that the server's own test of `tail` expects.
    #[test]
    fn a_decision_of_tail() {
        let line = br#"{"at":"2023-11-14T22:13:20.000Z","wire":"http","allowed":false,"verdict":"deny","limit":"per-key","attributes":{"api_key":"k\n1","tokens":"7"},"retry_after_ms":412,"reason":"100 requests a second, burst 200","source":"exact"}"#;
        let record = decision(line).unwrap();
        assert_eq!(record.arrival, Timestamp::from_unix_seconds(1_700_000_000));
        assert_eq!(record.attributes, [("api_key".into(), "k\n1".into()), ("tokens".into(), "7".into())]);
        assert!(record.refused);
        let reason = decision(br#"{"missed":3}"#).unwrap_err();
        assert!(reason.contains("lost 3"), "{reason}");
        assert!(decision(br#"{"at":"2023-11-14T22:13:20Z"}"#).unwrap_err().contains("allowed"));
    }
}
