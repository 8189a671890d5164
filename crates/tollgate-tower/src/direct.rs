//! The short way of a request: through a layer that asks nobody but its engine, by a policy that counts by the client's address alone.
//! Neither a question nor a decision is made of it, and its answer is written by what was answered before. What is out of the ordinary
//! is left to the whole way, in `service`; both answer alike.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use tollgate::headers::{
    self, Accepts, Caller, DenialStatus, Dialect, Disclosure, Exposure, HeaderPolicy, STRANGER_DENIED, Value,
};
use tollgate::{Answer, Audience, Brief, Decision, LimitStatus, Policy, Sole, Source, Timestamp};

use crate::attributes::CLIENT;
use crate::decide::Decide;
use crate::layer::{Settings, Shared};
use crate::refusal::{self, PROBLEM};
use crate::{grpc, number, peer};

/// What a layer knows ahead of its requests.
pub(crate) struct Direct {
    tells: Tells,
}

/// What callers are told, who are all strangers here.
enum Tells {
    /// When to come back; these are the headers of a refusal.
    Retry(HeaderMap),
    /// Their quota.
    Quota,
}

/// How a layer decides and answers, until that changes. Its services share it.
pub(crate) struct Known {
    changes: u64,
    sole: Option<Sole>,
    admitted: Form,
    denied: Form,
}

/// How the next answer of a kind is written, once there was one; none where answers may differ in more than numbers.
type Form = OnceLock<Option<Again>>;

/// An answer to be written again with other numbers.
struct Again {
    form: headers::Form,
    headers: HeaderMap,
    status: StatusCode,
}

/// What is known of a request.
pub(crate) enum Short {
    /// It passes, and its response is not touched.
    Passes,
    /// It passes, and its caller gets to see these.
    Told(HeaderMap),
    Refused(Response<Bytes>),
    /// It is decided about; the answer is to be written the whole way.
    Decided(Timestamp),
    /// Nothing, and nothing was charged.
    Unknown,
}

impl Direct {
    /// What is known of the requests of such a layer; none where each of them has to be looked at.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        let is_alone = settings.skipped.is_empty()
            && settings.cost.is_none()
            && settings.authenticated.is_none()
            && settings.refuse.is_none()
            && !settings.settling.is_any()
            && !settings.settling.refunds_unserved
            && !settings.reader.mapped.iter().any(|mapped| mapped.name == CLIENT);
        let tells = Tells::of(&settings.headers).filter(|_| is_alone)?;
        Some(Self { tells })
    }
}

impl Tells {
    fn of(headers: &HeaderPolicy) -> Option<Self> {
        match (headers.anonymous, headers.disclosure) {
            (Exposure::Full, Disclosure::Always) => Some(Tells::Quota),
            (Exposure::Full, _) | (Exposure::None, Disclosure::Never) => None,
            (Exposure::RetryAfter | Exposure::None, _) => {
                let is_usual = headers.denial == DenialStatus::TooManyRequests
                    && !headers.dialects.contains(Dialect::Discord);
                is_usual.then(|| Tells::Retry(strangers()))
            }
        }
    }
}

/// The headers of a refusal that tells no more than when to come back.
fn strangers() -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(3);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONTENT_TYPE, PROBLEM);
    headers
}

impl Again {
    fn of(decision: &Decision, policy: &HeaderPolicy, at: Timestamp) -> Option<Self> {
        let audience = Audience { caller: Caller::Anonymous, accepts: Accepts::Json, cost: Some(1) };
        let answer = Answer::of(decision, policy, audience, at);
        let form = headers::Form::of(decision, &answer, policy, at)?;
        let (mut head, _) = refusal::said_in(answer).into_parts();
        for (value, is_differing) in head.headers.values_mut().zip(form.differing()) {
            if is_differing {
                // To be written over: this one is copied and dropped without counting.
                *value = HeaderValue::from_static("0");
            }
        }
        Some(Self { form, headers: head.headers, status: head.status })
    }

    /// The headers of the next answer.
    fn headers(&self, status: &LimitStatus<'_>, at: Timestamp) -> HeaderMap {
        let mut headers = self.headers.clone();
        self.form.values(status, at, headers.values_mut(), |slot, value| {
            let value = match value {
                Value::Number(number) => Ok(number::value(number)),
                Value::Text(text) => HeaderValue::from_bytes(text),
            };
            // What the form writes is printable, so it is always sendable.
            if let Ok(value) = value {
                *slot = value;
            }
        });
        headers
    }

    fn answer(&self, status: &LimitStatus<'_>, at: Timestamp) -> Short {
        let headers = self.headers(status, at);
        if status.outcome.is_allowed() {
            return Short::Told(headers);
        }
        let body = self.form.body(status).map(Bytes::from).unwrap_or_default();
        Short::Refused(refused(self.status, headers, body))
    }
}

fn refused(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Whether a refused caller can read a problem.
fn reads_problems(headers: &HeaderMap) -> bool {
    !grpc::is_call(headers) && refusal::accepts(headers) == Accepts::Json
}

impl<D: Decide> Shared<D> {
    /// What is known now.
    pub(crate) fn known(&self) -> Arc<Known> {
        // Before the rest: what is newer than the number is only taken to be older than it is.
        let changes = self.decide.changes().unwrap_or(u64::MAX);
        let latest = self.latest.load();
        if let Some(latest) = latest.as_ref().filter(|latest| latest.changes == changes) {
            return Arc::clone(latest);
        }
        let sole = self.direct.as_ref().and_then(|_| self.decide.sole(CLIENT));
        let known = Arc::new(Known { changes, sole, admitted: Form::new(), denied: Form::new() });
        self.latest.store(Some(Arc::clone(&known)));
        known
    }

    /// Keeps how the answer to a decision is written, for the next ones.
    pub(crate) fn learn(&self, known: &Known, decision: &Decision, at: Timestamp) {
        if decision.limits().all(|status| status.source == Source::Exact) {
            let form = if decision.is_allowed() { &known.admitted } else { &known.denied };
            form.get_or_init(|| Again::of(decision, &self.settings.headers, at));
        }
    }

    /// What can be said of a request the short way. A decision that is made is written where it is wanted.
    #[inline]
    pub(crate) fn short<B>(
        &self,
        known: &mut Arc<Known>,
        request: &Request<B>,
        decided: &mut Option<Decision>,
    ) -> Short {
        let (Some(direct), Some(changes)) = (&self.direct, self.decide.changes()) else {
            return Short::Unknown;
        };
        if known.changes != changes {
            *known = self.known();
        }
        let Some(sole) = &known.sole else { return Short::Unknown };
        match &direct.tells {
            Tells::Retry(strangers) => self.briefly(sole, strangers, request),
            Tells::Quota => self.in_full(known, sole, request, decided),
        }
    }

    #[inline]
    fn briefly<B>(&self, sole: &Sole, strangers: &HeaderMap, request: &Request<B>) -> Short {
        let (peer, headers) = (peer::of(request.extensions()), request.headers());
        let at = self.decide.now();
        let engine = self.decide.engine();
        let said = self.settings.reader.with_client(peer, headers, |client| engine.brief(sole, client, at));
        match said {
            Some(Brief::Passes) => Short::Passes,
            Some(Brief::Refused { retry_seconds }) => stranger(headers, strangers, retry_seconds),
            None => Short::Unknown,
        }
    }

    #[inline(never)]
    fn in_full<B>(
        &self,
        known: &Known,
        sole: &Sole,
        request: &Request<B>,
        decided: &mut Option<Decision>,
    ) -> Short {
        let (peer, headers) = (peer::of(request.extensions()), request.headers());
        if is_preflight(request.method(), headers) {
            return Short::Unknown;
        }
        let at = self.decide.now();
        let write = |policy: &Arc<Policy>, status: &LimitStatus<'_>| {
            let is_allowed = status.outcome.is_allowed();
            if !is_allowed && !reads_problems(headers) {
                return None;
            }
            let form = if is_allowed { &known.admitted } else { &known.denied };
            let again = form.get()?.as_ref()?;
            again.form.fits(policy, status).then(|| again.answer(status, at))
        };
        let engine = self.decide.engine();
        let said = self
            .settings
            .reader
            .with_client(peer, headers, |client| engine.said(sole, client, at, write, decided));
        match said {
            Some(short) => short,
            None if decided.is_some() => Short::Decided(at),
            None => Short::Unknown,
        }
    }
}

/// What a stranger is told who is refused. Who reads something else than problems is told so the whole way: nothing was charged.
#[inline(never)]
fn stranger(request: &HeaderMap, strangers: &HeaderMap, retry_seconds: u64) -> Short {
    if !reads_problems(request) {
        return Short::Unknown;
    }
    let mut headers = strangers.clone();
    if let Some(slot) = headers.values_mut().nth(1) {
        *slot = number::value(retry_seconds);
    }
    let body = Bytes::from_static(STRANGER_DENIED.as_bytes());
    Short::Refused(refused(StatusCode::TOO_MANY_REQUESTS, headers, body))
}

/// Whether a browser asks by itself whether it may ask. What it asks so says nothing about quotas.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

#[cfg(test)]
mod tests {
    use tollgate::{Engine, ManualClock};

    use super::*;
    use crate::RateLimitLayer;
    use crate::decide::Own;
    use crate::peer::Peer;

    type Layer = RateLimitLayer<Own<tollgate::MemoryStore>>;

    fn layer(limit: &str, time: &ManualClock) -> Layer {
        let file = format!("limits: [{{name: first, {limit}}}]");
        let (policy, _) = Policy::compile("policy.yaml", file.as_bytes()).unwrap();
        RateLimitLayer::new(Engine::new(policy, time.now())).clock(time.clock())
    }

    /// What a layer says of so many requests of one address, each of which goes the whole way if it has to.
    fn said(layer: &Layer, requests: usize) -> Vec<&'static str> {
        let mut request = Request::new(());
        request.extensions_mut().insert(Peer([10, 0, 0, 1].into()));
        let (mut known, at) = (layer.shared.known(), layer.shared.decide.now());
        let each = std::iter::repeat_with(|| {
            let mut decided = None;
            match layer.shared.short(&mut known, &request, &mut decided) {
                Short::Passes => "passes",
                Short::Told(_) => "told",
                Short::Refused(_) => "refused",
                Short::Decided(at) => {
                    decided.iter().for_each(|decision| layer.shared.learn(&known, decision, at));
                    "decided"
                }
                Short::Unknown => {
                    let question = tollgate::CheckRequest::new().with(CLIENT, "10.0.0.1").unwrap();
                    let _ = layer.shared.decide.engine().check_now(&question, at);
                    "unknown"
                }
            }
        });
        each.take(requests).collect()
    }

    /// The short way is taken: by strangers from the second request on, and by whom quotas are told once each kind of answer was written.
    #[test]
    fn the_short_way_is_taken() {
        let time = ManualClock::new();
        let strangers = layer("by: [ip], rate: 3/m", &time);
        assert_eq!(said(&strangers, 5), ["unknown", "passes", "passes", "refused", "refused"]);
        let full = HeaderPolicy { anonymous: Exposure::Full, ..HeaderPolicy::default() };
        let shown = layer("by: [ip], rate: 3/m", &time).headers(full);
        assert_eq!(said(&shown, 6), ["decided", "told", "told", "decided", "refused", "refused"]);
    }

    /// It is not taken where each request has to be looked at, or is counted by something else.
    #[test]
    fn the_short_way_is_left_out() {
        let time = ManualClock::new();
        let by_address = || layer("by: [ip], rate: 3/m", &time);
        let looked_at = [
            by_address().skip(|_| false),
            by_address().cost(|_| 1),
            by_address().authenticated(|_| true),
            by_address().refuse_with(|_| None),
            by_address().count_failures(),
            by_address().attribute(CLIENT, crate::attributes::source::Source::Client),
            layer("by: [method], rate: 3/m", &time),
            layer("by: [ip], rate: 3/m, mode: shadow", &time),
            layer("rate: 3/m", &time),
        ];
        for layer in looked_at {
            assert_eq!(said(&layer, 2), ["unknown", "unknown"]);
        }
    }
}
