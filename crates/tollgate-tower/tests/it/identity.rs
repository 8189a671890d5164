//! Who calls, as the layer reads it: credentials and known callers.

use http::Request;
use http_body_util::Full;
use tollgate_tower::attributes::callers::{Callers, LiveCallers};
use tollgate_tower::attributes::credential::{Credentials, Place};
use tower::{Layer, service_fn};

use crate::limited::{World, ask, from, hello};

const LIMITS: &str = "  - {name: per-key, by: [api_key], rate: 2/h, overrides: {vip: 4/h}}
  - {name: plan, by: [tenant], tier_by: plan, tiers: {free: 1/h, pro: 3/h}}
  - {name: per-ip, by: [ip], rate: 3/h}";

fn with(address: &str, name: &'static str, value: &str) -> Request<Full<bytes::Bytes>> {
    let mut request = from(address, "/");
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

/// What a policy names plainly holds for whoever sends it, and two different credentials are refused.
#[tokio::test]
async fn credentials_are_named_as_they_are() {
    let world = World::new("  - {name: per-key, by: [api_key], rate: 2/h, overrides: {vip: 4/h}}");
    let service = world.layer().layer(service_fn(hello));
    let mut passed = [0; 2];
    for _ in 0..5 {
        for (count, key) in passed.iter_mut().zip(["vip", "k1"]) {
            *count += u32::from(ask(&service, with("203.0.113.7", "x-api-key", key)).await.status == 200);
        }
    }
    assert_eq!(passed, [4, 2]);
    let mut two = with("203.0.113.7", "x-api-key", "random");
    two.headers_mut().insert("authorization", "Bearer vip".parse().unwrap());
    let refused = ask(&service, two).await;
    assert!(refused.status == 400 && refused.body.contains("different"), "{}", refused.body);
    assert!(!refused.body.contains("random") && !refused.body.contains("vip"), "{}", refused.body);
}

/// A known credential brings its caller's attributes, an unknown one is nobody's, and the callers change while requests are served.
#[tokio::test]
async fn callers_are_known_and_strangers_are_not() {
    let callers = |text: &str| Callers::read("callers.yaml", text.as_bytes()).unwrap();
    let live = LiveCallers::new(callers("callers: [{key: k1, tenant: acme, plan: free}]"));
    let world = World::new(LIMITS);
    let layer = world
        .layer()
        .callers(live.clone())
        .credentials(Credentials::new(vec![Place::Cookie("sid".to_owned())]));
    let service = layer.layer(service_fn(hello));
    let cookie = |address: &str, value: &str| with(address, "cookie", &format!("sid={value}"));
    assert_eq!(ask(&service, cookie("203.0.113.1", "k1")).await.status, 200);
    assert_eq!(
        ask(&service, cookie("203.0.113.2", "\"k1\"")).await.status,
        429,
        "the plan has one, from any address"
    );
    let mut strangers = Vec::new();
    for number in 0..5 {
        strangers.push(ask(&service, cookie("203.0.113.3", &format!("invented-{number}"))).await.status);
    }
    assert_eq!(strangers, [200, 200, 200, 429, 429]);
    live.replace(callers("callers: [{key: k1, tenant: other, plan: pro}]"));
    assert_eq!(
        ask(&service, cookie("203.0.113.4", "%6b1")).await.status,
        200,
        "another tenant has its own counter"
    );
}
