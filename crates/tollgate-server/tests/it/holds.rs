//! Permits and reservations over HTTP.

use serde_json::{Value, json};

use crate::program::Server;

const PERMITS: &str = "limits: [{name: in-flight, by: [api_key], concurrency: 2, permit_ttl: 1h}]";
const TOKENS: &str = "limits: [{name: tokens, by: [api_key], rate: 100/h}]";

fn id<'a>(answer: &'a Value, member: &str) -> &'a str {
    let id = answer[member].as_str().unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    id
}

/// A place in flight comes back when its permit is deleted, once; deleting it again changes nothing.
#[test]
fn permits_are_given_back_once() {
    let server = Server::start(PERMITS);
    let body = r#"{"attributes":{"api_key":"k"}}"#;
    let first = server.check(body);
    let second = server.check(body);
    assert_ne!(id(&first, "permit"), id(&second, "permit"));
    let refused = server.check(body);
    assert_eq!((&refused["allowed"], refused.get("permit")), (&json!(false), None));
    let path = format!("/v1/permits/{}", id(&first, "permit"));
    for _ in 0..2 {
        let released = server.send("DELETE", &path, "");
        assert_eq!((released.status, released.body.len()), (204, 0));
        assert_eq!(server.remaining("k"), 1);
    }
    // An id that was never given out is as good as one that has come back: nothing is held under it.
    assert_eq!(server.send("DELETE", &format!("/v1/permits/{}", "0".repeat(32)), "").status, 204);
    assert_eq!(server.remaining("k"), 1);
}

/// A look takes no place, and so gives no permit.
#[test]
fn a_look_takes_no_permit() {
    let server = Server::start(PERMITS);
    let looked = server.check(r#"{"attributes":{"api_key":"k"},"cost":0}"#);
    assert_eq!(looked.get("permit"), None);
    assert_eq!(server.remaining("k"), 2);
}

/// Items of a batch get permits of their own.
#[test]
fn batches_give_permits() {
    let server = Server::start(PERMITS);
    let item = json!({"attributes": {"api_key": "k"}});
    let answers = server.send("POST", "/v1/check/batch", &json!([item, item, item]).to_string()).json();
    assert_eq!(answers[2].get("permit"), None);
    for answer in &answers.as_array().unwrap()[..2] {
        server.send("DELETE", &format!("/v1/permits/{}", id(answer, "permit")), "");
    }
    assert_eq!(server.remaining("k"), 2);
}

fn reserve(server: &Server, cost: u64) -> Value {
    let body = json!({"attributes": {"api_key": "k"}, "cost": cost, "ttl_ms": 600_000});
    let response = server.send("POST", "/v1/reservations", &body.to_string());
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    response.json()
}

/// A reservation charges its estimate; committing gives back what was not used, or charges what was used beyond it.
#[test]
fn reservations_are_committed() {
    let server = Server::start(TOKENS);
    let reserved = reserve(&server, 40);
    assert_eq!((&reserved["allowed"], &reserved["expires_after_ms"]), (&json!(true), &json!(600_000)));
    assert_eq!(server.remaining("k"), 60);
    let commit = |reserved: &Value, body: &str| {
        server.send("POST", &format!("/v1/reservations/{}/commit", id(reserved, "reservation")), body)
    };
    // A commit that is wrong does not use the reservation up.
    assert!(commit(&reserved, r#"{"cost":-1}"#).problem(400).contains("cost: -1"));
    assert!(commit(&reserved, "{}").problem(400).contains("cost: missing"));
    let settled = commit(&reserved, r#"{"cost":10}"#);
    assert_eq!((settled.status, settled.json()), (200, json!({"refunded": 30, "charged": 0, "unpaid": 0})));
    assert_eq!(server.remaining("k"), 90);
    assert!(commit(&reserved, r#"{"cost":10}"#).problem(409).contains("settled once"));
    assert_eq!(server.remaining("k"), 90);

    let settled = commit(&reserve(&server, 10), r#"{"cost":200}"#).json();
    assert_eq!(settled, json!({"refunded": 0, "charged": 80, "unpaid": 110}));
    assert_eq!(server.remaining("k"), 0);
    let refused = reserve(&server, 1);
    assert_eq!((&refused["verdict"], refused.get("reservation")), (&json!("deny"), None));
}

/// Cancelling gives everything back, once.
#[test]
fn reservations_are_cancelled() {
    let server = Server::start(TOKENS);
    let reserved = reserve(&server, 40);
    let path = format!("/v1/reservations/{}", id(&reserved, "reservation"));
    assert_eq!(server.send("DELETE", &path, "").status, 204);
    assert_eq!(server.remaining("k"), 100);
    server.send("DELETE", &path, "").problem(409);
    let unknown = format!("/v1/reservations/{}", "0".repeat(32));
    assert!(server.send("DELETE", &unknown, "").problem(404).contains("no reservation has this id"));
    assert!(server.send("DELETE", "/v1/reservations/x", "").problem(404).contains("32 hexadecimal digits"));
    assert_eq!(server.remaining("k"), 100);
}

/// One that has expired stays charged at its estimate, and says so.
#[test]
fn an_expired_reservation_stays_charged() {
    let server = Server::start(TOKENS);
    let body = r#"{"attributes":{"api_key":"k"},"cost":40,"ttl_ms":1}"#;
    let reserved = server.send("POST", "/v1/reservations", body).json();
    let path = format!("/v1/reservations/{}", id(&reserved, "reservation"));
    #[allow(
        clippy::disallowed_methods,
        reason = "the test waits for a real millisecond, by asking meanwhile"
    )]
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(2) {
        assert_eq!(server.remaining("k"), 60);
    }
    assert!(server.send("DELETE", &path, "").problem(409).contains("stays charged at its estimate"));
    assert_eq!(server.remaining("k"), 60);
    let wrong = r#"{"attributes":{"api_key":"k"},"ttl_ms":3600001}"#;
    assert!(server.send("POST", "/v1/reservations", wrong).problem(400).contains("ttl_ms: 3600001"));
    assert_eq!(server.remaining("k"), 60);
}

/// A reservation holds the place of a concurrency limit until it is settled.
#[test]
fn a_reservation_holds_a_place() {
    let server = Server::start(PERMITS);
    let reserved = reserve(&server, 1);
    assert_eq!(reserved.get("permit"), None);
    assert_eq!(server.remaining("k"), 1);
    server.send("DELETE", &format!("/v1/reservations/{}", id(&reserved, "reservation")), "");
    assert_eq!(server.remaining("k"), 2);
}
