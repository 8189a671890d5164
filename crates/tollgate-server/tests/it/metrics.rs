//! `/metrics` of the real program: its numbers are the decisions made.

use std::io::{BufReader, Write};

use tollgate_testkit::ask::numbers;
use tollgate_testkit::{Scratch, until};

use crate::program::Server;
use crate::raw_http::{Response, request};
use crate::rls::{Client, question};

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 5/h}, {name: all, rate: 1M/h}]";

/// The numbers are the decisions: single checks, batches and reservations, and what was no question is not counted.
#[test]
fn numbers_are_the_decisions_made() {
    let server = Server::start(POLICY);
    for _ in 0..7 {
        server.send("POST", "/v1/check", r#"{"attributes":{"api_key":"k"}}"#);
    }
    let batch = r#"[{"attributes":{"api_key":"k"}},{"attributes":{"api_key":"other"}},{"attributes":{}}]"#;
    assert_eq!(server.send("POST", "/v1/check/batch", batch).status, 200);
    assert_eq!(server.send("POST", "/v1/reservations", r#"{"attributes":{"api_key":"r"}}"#).status, 200);
    assert_eq!(server.send("POST", "/v1/check", "{").status, 400);
    assert_eq!(server.send("GET", "/healthz", "").status, 200);
    let page = server.metrics();
    let numbers = numbers(&page);
    assert_eq!(numbers[r#"tollgate_decisions_total{outcome="allow",wire="http"}"#], 8);
    assert_eq!(numbers[r#"tollgate_decisions_total{outcome="deny",wire="http"}"#], 3);
    let of = |limit: &str, outcome: &str| {
        let labels = format!(r#"{{limit="{limit}",outcome="{outcome}",source="exact",wire="http"}}"#);
        numbers[format!("tollgate_limit_decisions_total{labels}").as_str()]
    };
    assert_eq!((of("per-key", "allow"), of("per-key", "deny")), (7, 3));
    assert_eq!((of("all", "allow"), of("all", "deny")), (11, 0));
    assert_eq!(numbers["tollgate_retry_after_seconds_count"], 3);
    // Of the three in the batch, one in sixteen is timed.
    assert!((8..=11).contains(&numbers[r#"tollgate_decision_duration_seconds_count{wire="http"}"#]));
    assert_eq!(numbers["tollgate_policy_limits"], 2);
    assert!(numbers["process_resident_memory_bytes"] > 1 << 20);
    assert!(numbers["tollgate_store_keys"] >= 1);
    assert_eq!(numbers["tollgate_log_lines_lost_total"], 0);
}

/// Decisions over RESP are counted there: those by the policy, and those whose limit came with the question.
#[test]
fn redis_clients_are_counted_too() {
    let server = Server::start(POLICY);
    let throttle = b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n1\r\n$1\r\n1\r\n$4\r\n3600\r\n".repeat(5);
    server.resp_exchange(
        &[&throttle[..], b"TG.CHECK api_key k COST 5\r\nTG.CHECK api_key k\r\nQUIT\r\n"].concat(),
    );
    let page = server.metrics();
    let numbers = numbers(&page);
    assert_eq!(numbers[r#"tollgate_decisions_total{outcome="allow",wire="resp"}"#], 3);
    assert_eq!(numbers[r#"tollgate_decisions_total{outcome="deny",wire="resp"}"#], 4);
    let labels = r#"{limit="per-key",outcome="deny",source="exact",wire="resp"}"#;
    assert_eq!(numbers[format!("tollgate_limit_decisions_total{labels}").as_str()], 1);
}

/// Envoy's questions are counted, timed and their connections seen.
#[test]
fn envoys_questions_are_counted_too() {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    for _ in 0..6 {
        client.ask(question("any", 0, "api_key=k | path=/x")).unwrap();
    }
    let page = server.metrics();
    let numbers = numbers(&page);
    assert_eq!(numbers[r#"tollgate_decisions_total{outcome="allow",wire="rls"}"#], 5);
    assert_eq!(numbers[r#"tollgate_decisions_total{outcome="deny",wire="rls"}"#], 1);
    assert_eq!(numbers[r#"tollgate_decision_duration_seconds_count{wire="rls"}"#], 6);
    assert_eq!(numbers[r#"tollgate_connections_open{wire="rls"}"#], 1);
}

/// Ten thousand keys over the wire, with whatever they say, add no series and no word of theirs to the page.
#[test]
fn traffic_adds_no_series() {
    let server = Server::start(POLICY);
    server.send("POST", "/v1/check", r#"{"attributes":{"api_key":"k"}}"#);
    let before = server.metrics().lines().count();
    let stream = server.connect();
    for round in 0..40 {
        let items: Vec<String> = (0..250)
            .map(|n| format!(r#"{{"attributes":{{"api_key":"needle{round}x{n}\"}}\n","a{n}":"v{round}"}}}}"#))
            .collect();
        let body = format!("[{}]", items.join(","));
        (&stream)
            .write_all(&request(
                "POST",
                "/v1/check/batch",
                "Content-Type: application/json\r\n",
                body.as_bytes(),
            ))
            .unwrap();
        assert_eq!(Response::read(&mut BufReader::new(&stream)).status, 200);
    }
    let page = server.metrics();
    assert_eq!(page.lines().count(), before);
    assert!(!page.contains("needle"));
    assert_eq!(server.metric(r#"tollgate_decisions_total{outcome="allow",wire="http"}"#), 10_001);
}

/// Reloads are counted, good and bad, and a bad one shows until a good one follows.
#[test]
fn reloads_are_counted() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", POLICY);
    let server =
        Server::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", &scratch.text("policy.yaml")], "");
    let is_good = |good| {
        let wanted = move |server: &Server| server.metric("tollgate_policy_last_reload_successful") == good;
        until("the reload", || wanted(&server).then_some(()));
    };
    is_good(1);
    scratch.replace("policy.yaml", "limits: [{name: a, rate: nonsense}]");
    is_good(0);
    assert_eq!(server.metric(r#"tollgate_policy_reloads_total{result="failed"}"#), 1);
    assert_eq!(server.metric("tollgate_policy_limits"), 2);
    scratch.replace("policy.yaml", &POLICY.replace("limits: [", "limits: [{name: more, rate: 1/s}, "));
    is_good(1);
    assert_eq!(server.metric(r#"tollgate_policy_reloads_total{result="ok"}"#), 1);
    assert_eq!(server.metric("tollgate_policy_limits"), 3);
}

/// A connection is counted while it is open, and not longer.
#[test]
fn connections_are_counted_while_they_are_open() {
    let server = Server::start(POLICY);
    let series = r#"tollgate_connections_open{wire="http"}"#;
    let mut streams: Vec<_> = (0..5).map(|_| server.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        assert_eq!(Response::read(&mut BufReader::new(&*stream)).status, 200);
    }
    // Connections of earlier requests may be about to end; the one that asks is open, too.
    assert!(server.metric(series) >= 6);
    drop(streams);
    let mut open = server.metric(series);
    for _ in 0..1_000 {
        if open == 1 {
            break;
        }
        std::thread::yield_now();
        open = server.metric(series);
    }
    assert_eq!(open, 1);
}
