//! The identity of a caller: credentials and registered callers.

use http::Request;
use http_body_util::Full;
use tollgate_tower::attributes::callers::{ActiveCallers, Callers};
use tollgate_tower::attributes::credential::{CredentialLocation, Credentials};
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

/// A policy names a credential in plain text. Two different credentials in a request are refused.
#[tokio::test]
async fn policies_name_credentials_in_plain_text() {
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

/// A registered credential has the attributes of its caller, and an unregistered one is anonymous. The callers can be
/// replaced while requests are served.
#[tokio::test]
async fn only_registered_credentials_are_identities() {
    let callers = |text: &str| Callers::read("callers.yaml", text.as_bytes()).unwrap();
    let live = ActiveCallers::new(callers("callers: [{key: k1, tenant: acme, plan: free}]"));
    let world = World::new(LIMITS);
    let layer = world
        .layer()
        .callers(live.clone())
        .credentials(Credentials::new(vec![CredentialLocation::Cookie("sid".to_owned())]));
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
