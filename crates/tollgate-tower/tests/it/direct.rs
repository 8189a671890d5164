//! The short way of a request is the whole way: two layers around engines that hash alike, of which one has to look at each request, never
//! answer differently.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use proptest::prelude::*;
use tollgate::headers::{DenialStatus, Dialect, Dialects, Disclosure, Exposure, HeaderPolicy};
use tollgate::{Engine, ManualClock, MemoryStore, Policy, Ruled, Ruling, Scope, Secret, Ticks};
use tollgate_tower::RateLimitLayer;
use tower::service_fn;

use crate::limited::{Got, Layer, ask, from};

/// What happens.
#[derive(Clone, Debug)]
enum Event {
    Ask { peer: &'static str, headers: Vec<(&'static str, &'static str)>, method: &'static str },
    Later(u64),
    Swap(&'static str),
    Rule(u64),
}

const PEERS: [&str; 6] = ["10.0.0.1", "203.0.113.255", "::ffff:10.0.0.1", "2001:db8::7", "9.9.9.9", "none"];
const POLICIES: [&str; 6] = [
    "- {name: per-ip, by: [ip], rate: 2/s}",
    "- {name: per-ip, by: [ip], rate: 5000/s, burst: 3}",
    "- {name: 'a name; of 7 words', by: [ip], rate: 3/m, algorithm: gcra}",
    "- {name: per-ip, by: [ip], rate: 1000000/h, burst: 5000, cost: 2500}",
    "- {name: windows, by: [ip], rate: 2/m, algorithm: fixed-window}",
    "- {name: per-ip, by: [ip], rate: 2/s}\n- {name: all, rate: 3/s}",
];
/// What the service says by itself.
const SAID: [&[(&str, &str)]; 5] = [
    &[],
    &[("content-type", "text/plain")],
    &[("content-type", "text/plain"), ("ratelimit", "\"own\";r=1"), ("x-ratelimit-limit", "7")],
    &[("age", "3")],
    &[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1"), ("f", "1"), ("g", "1"), ("h", "1")],
];

fn events() -> impl Strategy<Value = Vec<Event>> {
    let headers = prop::sample::select(vec![
        vec![],
        vec![],
        vec![("accept", "application/json")],
        vec![("accept", "text/plain")],
        vec![("content-type", "application/grpc")],
        vec![("access-control-request-method", "PUT")],
        vec![("x-forwarded-for", "1.2.3.4")],
    ]);
    let method = prop::sample::select(vec!["GET", "GET", "OPTIONS"]);
    let asked = (prop::sample::select(PEERS.to_vec()), headers, method);
    let event = prop_oneof![
        20 => asked.prop_map(|(peer, headers, method)| Event::Ask { peer, headers, method }),
        6 => prop_oneof![0..2_000u64, 0..40_000_000u64].prop_map(Event::Later),
        1 => prop::sample::select(POLICIES.to_vec()).prop_map(Event::Swap),
        1 => (0..2_000_000u64).prop_map(Event::Rule),
    ];
    prop::collection::vec(event, 1..60)
}

fn header_policies() -> impl Strategy<Value = HeaderPolicy> {
    let spoken = prop::sample::select(vec![
        Dialects::default(),
        Dialects::default(),
        Dialects::new([Dialect::Ietf11, Dialect::XRateLimitDelta]).unwrap(),
        Dialects::new([Dialect::Ietf11]).unwrap(),
        Dialects::new([Dialect::Discord]).unwrap(),
        Dialects::new([Dialect::IetfNext, Dialect::Stripe]).unwrap(),
    ]);
    let anonymous =
        prop::sample::select(vec![Exposure::None, Exposure::RetryAfter, Exposure::Full, Exposure::Full]);
    let disclosure = prop::sample::select(vec![
        Disclosure::Always,
        Disclosure::Always,
        Disclosure::Always,
        Disclosure::NearExhaustion,
        Disclosure::DeniedOnly,
        Disclosure::Never,
    ]);
    let denial = prop::sample::select(vec![
        DenialStatus::TooManyRequests,
        DenialStatus::TooManyRequests,
        DenialStatus::ServiceUnavailable,
    ]);
    (spoken, anonymous, disclosure, denial).prop_map(|(dialects, anonymous, disclosure, denial)| {
        HeaderPolicy { dialects, anonymous, disclosure, denial, ..HeaderPolicy::default() }
    })
}

fn policy(limits: &str) -> Policy {
    Policy::compile("policy.yaml", format!("limits:\n{limits}\n").as_bytes()).unwrap().0
}

/// All that a caller got, each header by its name with its values in order.
fn heard(got: &Got) -> (u16, BTreeMap<String, Vec<String>>, String) {
    let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in &got.headers {
        headers.entry(name.to_string()).or_default().push(value.to_str().unwrap().to_owned());
    }
    (got.status, headers, got.body.clone())
}

fn asked(event: &Event) -> Option<Request<Full<Bytes>>> {
    let Event::Ask { peer, headers, method } = event else { return None };
    let mut request = match *peer {
        "none" => Request::new(Full::default()),
        peer => from(peer, "/"),
    };
    *request.method_mut() = method.parse().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    Some(request)
}

async fn played(
    limits: &str,
    headers: &HeaderPolicy,
    trusts: bool,
    said: &'static [(&'static str, &'static str)],
    events: &[Event],
) -> Result<(), TestCaseError> {
    let time = ManualClock::new();
    let engine = || {
        let store = MemoryStore::new(1 << 20, time.now());
        Arc::new(Engine::with_store(policy(limits), store, Secret::repeatable(3)))
    };
    let engines = [engine(), engine()];
    let layered = |engine: &Arc<Engine>| -> Layer {
        let layer = RateLimitLayer::new(Arc::clone(engine)).clock(time.clock()).headers(headers.clone());
        if trusts { layer.behind(["9.9.9.9"]).unwrap() } else { layer }
    };
    let speak = service_fn(move |_: Request<Full<Bytes>>| async move {
        let mut response = Response::new(Full::from("hello"));
        let own: HeaderMap =
            said.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        *response.headers_mut() = own;
        Ok(response)
    });
    let short = tower::Layer::layer(&layered(&engines[0]), speak);
    let whole = tower::Layer::layer(&layered(&engines[1]).skip(|_| false), speak);
    for event in events {
        match event {
            Event::Later(micros) => time.advance(std::time::Duration::from_micros(*micros)),
            Event::Swap(limits) => engines.iter().for_each(|engine| {
                engine.swap(policy(limits), time.now()).unwrap();
            }),
            Event::Rule(ticks) => engines.iter().for_each(|engine| {
                let ruled = Ruled { ruling: Ruling::Shadow, until: time.now() + Ticks::from_micros(*ticks) };
                engine.rule(Scope::All, ruled, time.now()).unwrap();
            }),
            Event::Ask { .. } => {
                let [Some(one), Some(other)] = [asked(event), asked(event)] else { continue };
                let (got, wanted) = (ask(&short, one).await, ask(&whole, other).await);
                prop_assert_eq!(heard(&got), heard(&wanted), "{:?}", event);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]
    /// Whatever the policy, what callers may see, what the service says, and what an operator does meanwhile.
    #[test]
    fn the_short_way_is_the_whole_way(
        limits in prop::sample::select(POLICIES.to_vec()),
        headers in header_policies(),
        trusts: bool,
        said in prop::sample::select(SAID.to_vec()),
        events in events(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(played(limits, &headers, trusts, said, &events))?;
    }
}
