//! `/v1/authz`: a proxy holds a request and asks whether it may pass. The status is the answer. The headers, and the
//! body of a refusal, are for the client that sent the request.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use tollgate::headers::{Accepts, Caller};
use tollgate::store::Store;
use tollgate::{Answer, Audience, Ticks, Verdict};
use tollgate_compat::ActiveConfig;

use crate::decision_json::Hold;
use crate::problem::{Kind, Problem, problem_details, problem_text, response};
use crate::protocol::Protocol;
use crate::service::Service;
use crate::telemetry::Stopwatch;
use tollgate_tower::attributes::{Family, IDENTITY};

/// The intended status of the answer, for proxies that accept only some statuses.
const STATUS: HeaderName = HeaderName::from_static("tollgate-status");
/// The body of a refusal, for proxies that read only the head of the answer.
const PROBLEM: HeaderName = HeaderName::from_static("tollgate-problem");
/// Maximum length of that header. A proxy has room for one head of 4 KiB, and its other headers are in it as well.
const PROBLEM_BYTES_MAX: usize = 2_048;
/// The permit of a concurrency limit, for a proxy that gives it back by `DELETE /v1/permits/{id}`.
const PERMIT: HeaderName = HeaderName::from_static("tollgate-permit");

/// Maximum time that an answer waits for the slot of its request. Proxies treat silence as a failure, and some then let
/// the request pass: the timeouts of the files in `deploy/` are longer than this.
const WAIT_MAX: Ticks = Ticks::from_millis(500);

/// `none` if no limit applies to the request, so that an operator who sets up a proxy notices it.
const LIMITS: HeaderName = HeaderName::from_static("tollgate-limits");

/// How a proxy asks and what answer it expects. The path of the request selects it. A query would not do, because some
/// proxies pass on the client's query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyKind {
    /// Traefik, Caddy and other proxies that send `X-Forwarded-*` and accept every status.
    Plain,
    /// nginx, which is configured to send `X-Original-*` and accepts only 403.
    Nginx,
}

impl ProxyKind {
    const fn family(self) -> Family {
        match self {
            ProxyKind::Plain => Family::Forwarded,
            ProxyKind::Nginx => Family::Original,
        }
    }
}

/// The result, and the form that the proxy expects.
#[derive(Debug)]
pub(super) struct Verified {
    /// If the proxy does not describe its request well enough, the request is refused like any other: a proxy that
    /// treats an unexpected status as a failure may let it pass.
    outcome: Result<AuthzResult, Problem>,
    proxy: ProxyKind,
    is_head: bool,
}

/// Whether a request may pass.
#[derive(Debug)]
struct AuthzResult {
    answer: Answer,
    permit: Option<String>,
    /// Whether it passes because no limit applies to it.
    is_unlimited: bool,
}

/// Answers a proxy.
pub(super) async fn authorize<S: Store>(
    service: &Service<S>,
    peer: IpAddr,
    request: &Parts,
    proxy: ProxyKind,
) -> Verified {
    let outcome = check_request(service, peer, request, proxy.family()).await;
    Verified { outcome, proxy, is_head: request.method == Method::HEAD }
}

async fn check_request<S: Store>(
    service: &Service<S>,
    peer: IpAddr,
    request: &Parts,
    family: Family,
) -> Result<AuthzResult, Problem> {
    let parts = (&request.method, &request.uri, &request.headers);
    let attributes = service.reader.of_held(peer, parts, family);
    let attributes = attributes.map_err(|error| Problem::invalid(error.to_string()))?;
    let question = attributes.request()?;
    let now = service.now();
    let is_trusted = service.reader.trusted.contains(peer);
    if !is_trusted && let Some(skipped) = service.distrusted.due(now) {
        tracing::warn!(%peer, skipped, "/v1/authz was asked by a peer that is no trusted proxy: what it says of others is not believed");
    }
    if let Some(compat) = service.compat() {
        return Err(elsewhere(&compat));
    }
    let watch = Stopwatch::start();
    let mut decision = service.check_within(&question, WAIT_MAX, now, Protocol::Authz).await;
    let hold = service.holds.keep_permit(&mut decision, now);
    if let Some(compat) = service.overtaken(&decision) {
        return Err(elsewhere(&compat));
    }
    service.meter.took(Protocol::Authz, watch.elapsed());
    if let Verdict::Wait(wait) = decision.verdict() {
        tokio::time::sleep(Duration::from(wait)).await;
    }
    let is_identified = question.attributes().iter().any(|attribute| attribute.name == IDENTITY);
    let caller = if is_identified { Caller::Authenticated } else { Caller::Anonymous };
    let accept = request.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let accepts = accept.map_or(Accepts::Json, Accepts::from_header);
    let audience = Audience { caller, accepts, cost: Some(question.units()) };
    let answer = Answer::of(&decision, &service.headers, audience, service.on_wall(now));
    let permit = if let Hold::Permit { id } = hold { Some(id) } else { None };
    Ok(AuthzResult { answer, permit, is_unlimited: decision.meets_no_limit() })
}

/// The error that points to the interface of the active compat rules.
fn elsewhere(compat: &ActiveConfig) -> Problem {
    let format = compat.rules.format().name();
    let detail = format!("the active policy is {format}: ask by RLS, POST /json or POST /v1/check");
    Problem::new(Kind::WrongFormat, detail)
}

impl Verified {
    /// Converts it into a response.
    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let problem_header = if self.proxy == ProxyKind::Nginx { self.problem() } else { None };
        let mut response = match self.outcome {
            Ok(result) => result.into_response(),
            Err(problem) => problem_details(&problem),
        };
        if self.proxy == ProxyKind::Nginx {
            let meant = HeaderValue::from(response.status().as_u16());
            response.headers_mut().insert(STATUS, meant);
            if let Some(value) = problem_header {
                response.headers_mut().insert(PROBLEM, value);
            }
            if !response.status().is_success() {
                *response.status_mut() = StatusCode::FORBIDDEN;
            }
        }
        if self.is_head {
            *response.body_mut() = Full::default();
        }
        response
    }

    /// The body of a refusal as a header, if it is JSON and short enough.
    fn problem(&self) -> Option<HeaderValue> {
        let text = match &self.outcome {
            Ok(result) => {
                let body = result.answer.body.as_ref().filter(|body| body.content_type.contains("json"))?;
                in_ascii(&body.text)
            }
            Err(problem) => in_ascii(&problem_text(problem)),
        };
        HeaderValue::from_str(&text).ok().filter(|value| value.len() <= PROBLEM_BYTES_MAX)
    }
}

/// The same JSON in characters that a header may have. Only its strings have others.
fn in_ascii(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            ascii.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(ascii, "\\u{unit:04x}"); // Writing to text does not fail.
            }
        }
    }
    ascii
}

impl AuthzResult {
    fn into_response(self) -> Response<Full<Bytes>> {
        let status = StatusCode::from_u16(self.answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let content_type = self.answer.body.as_ref().map(|body| HeaderValue::from_static(body.content_type));
        let body = self.answer.body.map(|body| body.text.into_owned().into_bytes());
        let mut response = response(status, content_type, body.unwrap_or_default());
        let headers = response.headers_mut();
        for (name, value) in self.answer.headers.iter() {
            // Names are constants of the core and values printable, so both are always sendable.
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
            {
                headers.insert(name, value);
            }
        }
        if let Some(permit) = self.permit.and_then(|id| HeaderValue::from_str(&id).ok()) {
            headers.insert(PERMIT, permit);
        }
        if self.is_unlimited {
            headers.insert(LIMITS, HeaderValue::from_static("none"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::in_ascii;

    /// A header holds ASCII alone, and the JSON in it means what the body means.
    #[test]
    fn json_in_ascii_is_the_same_json() {
        let body = r#"{"detail":"größe \n … 𝄞"}"#;
        let header = in_ascii(body);
        assert!(header.is_ascii(), "{header}");
        let read = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
        assert_eq!(read(&header), read(body));
    }
}
