//! The short way of a request: through a layer that asks nobody but its engine, by a policy that counts by the client's address alone.
//! Neither a question nor a decision is made of it, and its answer is written by what was answered before. What is out of the ordinary
//! is left to the whole way, in `service`; both answer alike.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use tollgate::headers::{
    self, Accepts, Caller, DenialStatus, Dialect, Disclosure, Exposure, HeaderPolicy, Numbers,
    STRANGER_DENIED, Value,
};
use tollgate::{Answer, Audience, Brief, Decision, LimitStatus, Policy, Sole, Source, Timestamp};

use crate::attributes::CLIENT;
use crate::body::Body;
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
    /// When to come back; this is a refusal without its body.
    Retry(Arc<Response<()>>),
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
type Form = OnceLock<Option<Arc<Again>>>;

/// An answer to be written again with other numbers.
struct Again {
    form: headers::Form,
    /// Which of all forms it is.
    serial: u64,
    response: Response<()>,
}

/// What is known of a request. What it says is written when its response is: it is small, and goes through many hands until then.
pub(crate) enum Short {
    /// It passes, and its response is not touched.
    Passes,
    /// It passes, and its caller gets to see this.
    Told(Told),
    Refused(Denial),
    /// It is decided about; the answer is to be written the whole way.
    Decided(Timestamp),
    /// Nothing, and nothing was charged.
    Unknown,
}

/// What the caller of a request that passes gets to see.
pub(crate) struct Told {
    again: Arc<Again>,
    numbers: Numbers,
}

/// What a refused caller is sent.
pub(crate) enum Denial {
    /// When to come back.
    Stranger { response: Arc<Response<()>>, retry_seconds: u64 },
    /// Its quota.
    Quota(Told),
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
                is_usual.then(|| Tells::Retry(Arc::new(stranger())))
            }
        }
    }
}

/// A refusal that tells no more than when to come back.
fn stranger() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.reserve(3);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONTENT_TYPE, PROBLEM);
    response
}

impl Again {
    fn of(decision: &Decision, policy: &HeaderPolicy, at: Timestamp) -> Option<Arc<Self>> {
        static FORMS: AtomicU64 = AtomicU64::new(0);
        let audience = Audience { caller: Caller::Anonymous, accepts: Accepts::Json, cost: Some(1) };
        let answer = Answer::of(decision, policy, audience, at);
        let form = headers::Form::of(decision, &answer, policy, at)?;
        let mut response = refusal::said_in(answer).map(drop);
        for (value, is_differing) in response.headers_mut().values_mut().zip(form.differing()) {
            if is_differing {
                // To be written over: this one is copied and dropped without counting.
                *value = HeaderValue::from_static("0");
            }
        }
        // Relaxed: no two get the same number, and that is all there is to it.
        let serial = FORMS.fetch_add(1, Ordering::Relaxed);
        Some(Arc::new(Self { form, serial, response }))
    }

    /// Writes the values that differ from answer to answer over those of a copy.
    #[inline]
    fn write(&self, numbers: &Numbers, headers: &mut HeaderMap) {
        self.form.values(numbers, headers.values_mut(), |slot, value| {
            *slot = match value {
                Value::Number(number) => number::value(number),
                Value::RateLimit => {
                    let line = (self.serial, numbers.remaining, numbers.effective);
                    number::line(line, || self.form.rate_limit(numbers))
                }
            };
        });
    }
}

impl Told {
    /// Adds what the caller gets to see to the headers of a response.
    pub(crate) fn tell(&self, theirs: &mut HeaderMap) {
        let Self { again, numbers } = self;
        let mut own = again.response.headers().clone();
        if theirs.is_empty() {
            *theirs = own;
            again.write(numbers, theirs);
        } else {
            again.write(numbers, &mut own);
            refusal::tell(theirs, own);
        }
    }
}

impl Denial {
    /// The response that its caller is sent.
    pub(crate) fn response<R>(&self) -> Response<Body<R>> {
        match self {
            Denial::Stranger { response, retry_seconds } => {
                let mut response = Response::clone(response);
                if let Some(slot) = response.headers_mut().values_mut().nth(1) {
                    *slot = number::value(*retry_seconds);
                }
                response.map(|()| Body::refused(Bytes::from_static(STRANGER_DENIED.as_bytes())))
            }
            Denial::Quota(Told { again, numbers }) => {
                let mut response = again.response.clone();
                again.write(numbers, response.headers_mut());
                response
                    .map(|()| Body::refused(again.form.body(numbers).map(Bytes::from).unwrap_or_default()))
            }
        }
    }
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
            form.get_or_init(|| Again::of(decision, &self.settings.headers, self.decide.on_wall(at)));
        }
    }

    /// What can be said of a request the short way. A decision that is made is written where it is wanted.
    #[inline]
    pub(crate) fn short<B>(
        &self,
        known: &Known,
        request: &Request<B>,
        decided: &mut Option<Decision>,
    ) -> Short {
        let (Some(direct), Some(sole)) = (&self.direct, &known.sole) else { return Short::Unknown };
        match &direct.tells {
            Tells::Retry(response) => self.briefly(sole, response, request),
            Tells::Quota => self.in_full(known, sole, request, decided),
        }
    }

    /// Nothing is said either when what is known is true no more: the next request finds what is.
    pub(crate) fn look_again(&self, known: &mut Arc<Known>) {
        if self.direct.is_some() && self.decide.changes().is_some_and(|changes| changes != known.changes) {
            *known = self.known();
        }
    }

    #[inline]
    fn briefly<B>(&self, sole: &Sole, response: &Arc<Response<()>>, request: &Request<B>) -> Short {
        let (peer, headers) = (peer::of(request.extensions()), request.headers());
        let at = self.decide.now();
        let engine = self.decide.engine();
        let said = self.settings.reader.with_client(peer, headers, |client| engine.brief(sole, client, at));
        match said {
            Some(Brief::Passes) => Short::Passes,
            // Who reads something else than problems is told so the whole way: nothing was charged.
            Some(Brief::Refused { retry_seconds }) if reads_problems(headers) => {
                Short::Refused(Denial::Stranger { response: Arc::clone(response), retry_seconds })
            }
            Some(Brief::Refused { .. }) | None => Short::Unknown,
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
        let tell = |policy: &Arc<Policy>, status: &LimitStatus<'_>| {
            let is_allowed = status.outcome.is_allowed();
            if !is_allowed && !reads_problems(headers) {
                return None;
            }
            let form = if is_allowed { &known.admitted } else { &known.denied };
            let again = form.get()?.as_ref().filter(|again| again.form.fits(policy, status))?;
            let told = Told {
                again: Arc::clone(again),
                numbers: again.form.numbers(status, self.decide.on_wall(at)),
            };
            Some(if is_allowed { Short::Told(told) } else { Short::Refused(Denial::Quota(told)) })
        };
        let engine = self.decide.engine();
        let said = self
            .settings
            .reader
            .with_client(peer, headers, |client| engine.said(sole, client, at, tell, decided));
        match said {
            Some(short) => short,
            None if decided.is_some() => Short::Decided(at),
            None => Short::Unknown,
        }
    }
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
        let (known, at) = (layer.shared.known(), layer.shared.decide.now());
        let each = std::iter::repeat_with(|| {
            let mut decided = None;
            match layer.shared.short(&known, &request, &mut decided) {
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
        let hidden = HeaderPolicy { anonymous: Exposure::RetryAfter, ..HeaderPolicy::default() };
        let strangers = layer("by: [ip], rate: 3/m", &time).headers(hidden);
        assert_eq!(said(&strangers, 5), ["unknown", "passes", "passes", "refused", "refused"]);
        let shown = layer("by: [ip], rate: 3/m", &time);
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
