//! Decisions over HTTP: their exact shape, denials, waits, shadows, batches.

use std::io::{BufReader, Write};

use serde_json::{Value, json};

use crate::program::{SLOW_POLICY, Server};
use crate::raw_http::{Response, request};
use crate::rls::{self, Client};

/// An answer has exactly the members of the design, and no others.
#[test]
fn the_answer_has_the_exact_shape() {
    let server = Server::start(SLOW_POLICY);
    let mut answer = server.check(r#"{"attributes":{"api_key":"k"},"cost":1}"#);
    let headers = answer["headers"].take();
    let limit = json!({
        "name": "per-key", "allowed": true, "limit": 5, "remaining": 4,
        "reset_after_ms": 720_000, "source": "exact", "mode": "enforce",
    });
    assert_eq!(answer, json!({"allowed": true, "verdict": "allow", "limits": [limit], "headers": null}));
    assert_eq!(headers["RateLimit-Policy"], r#""per-key";q=5;w=3600"#);
    assert_eq!(
        headers["RateLimit"].as_str().map(|value| value.starts_with(r#""per-key";r=4;t="#)),
        Some(true)
    );
    assert_eq!(headers["X-RateLimit-Remaining"], "4");
    assert_eq!(headers.get("Retry-After"), None);
}

/// A denial is an answer: status 200, with the exact wait in milliseconds and in headers.
#[test]
fn a_denial_tells_when_to_retry() {
    let server = Server::start(SLOW_POLICY);
    let body = r#"{"attributes":{"api_key":"k"},"cost":5}"#;
    assert_eq!(server.check(body)["allowed"], true);
    let denied = server.check(r#"{"attributes":{"api_key":"k"}}"#);
    assert_eq!((&denied["allowed"], &denied["verdict"]), (&json!(false), &json!("deny")));
    let retry = denied["retry_after_ms"].as_u64().unwrap();
    assert!((600_000..=720_000).contains(&retry), "{retry}");
    assert_eq!(denied["limits"][0]["retry_after_ms"], retry);
    assert_eq!(denied["limits"][0]["remaining"], 0);
    assert_eq!(
        (&denied["cause"], &denied["reason"]),
        (&json!("per-key"), &json!("5 requests an hour, burst 5"))
    );
    let header: u64 = denied["headers"]["Retry-After"].as_str().unwrap().parse().unwrap();
    assert!(header >= retry.div_ceil(1_000), "{header} s is too early for {retry} ms");
    // Another key is another counter.
    assert_eq!(server.check(r#"{"attributes":{"api_key":"other"}}"#)["allowed"], true);
}

/// The story: a program sent the address of its clients with the port of the connection, so each connection had a counter of its
/// own. All spellings of an address are one key on every way in. A text that is no address is refused where programs ask.
#[test]
fn an_address_has_one_key_and_no_other_text_is_one() {
    let server =
        Server::start("limits: [{name: a, by: [ip], rate: 20/h}, {name: b, by: [client_ip], rate: 20/h}]");
    let client = Client::new(server.grpc.unwrap());
    let mut left = 20;
    for spelling in [
        "203.0.113.7",
        "203.0.113.7:49152",
        "::ffff:203.0.113.7",
        "::FFFF:CB00:7107",
        "[::ffff:203.0.113.7]:80",
    ] {
        let answer = server.check(&json!({ "attributes": { "ip": spelling } }).to_string());
        let answer_of_resp = server.resp_exchange(format!("TG.CHECK ip {spelling}\r\nQUIT\r\n").as_bytes());
        let answer_of_rls = client.ask(rls::question("d", 1, &format!("ip={spelling}"))).unwrap();
        left -= 3;
        assert_eq!(answer["limits"][0]["remaining"], left + 2, "{spelling}: {answer}");
        assert!(answer_of_resp.contains(&format!("\r\n:{}\r\n", left + 1)), "{spelling}: {answer_of_resp}");
        assert_eq!(answer_of_rls.statuses[0].limit_remaining, u32::try_from(left).unwrap(), "{spelling}");
    }
    for (name, wrong) in
        [("ip", "1.2.3"), ("ip", "010.0.0.1"), ("ip", ""), ("client_ip", "localhost"), ("ip", "1.2.3.4.5:80")]
    {
        let body = json!({ "attributes": { name: wrong } });
        let said = format!(
            "{name}: {wrong:?} is not an address; accepted: an address or a network, such as 203.0.113.7"
        );
        for (path, body) in [
            ("/v1/check", body.clone()),
            ("/v1/reservations", body.clone()),
            ("/v1/check/batch", json!([body])),
        ] {
            let refused = server.send("POST", path, &body.to_string());
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert_eq!(refused.status, 400, "{path}: {detail}");
            assert!(detail.contains(&said), "{path}: {detail}");
        }
        if !wrong.is_empty() {
            let refused = server.resp_exchange(format!("TG.CHECK {name} {wrong}\r\nQUIT\r\n").as_bytes());
            assert!(refused.contains(&format!("-ERR TG.CHECK: {said}")), "{refused}");
            // An error would open most Envoys, so the text counts as it is there.
            let asked = client.ask(rls::question("d", 1, &format!("{name}={wrong}"))).unwrap();
            assert_eq!(asked.statuses[0].limit_remaining, 19, "{wrong}");
        }
    }
    for fine in ["none", "2001:db8::/56", "10.0.0.0/8"] {
        assert_eq!(
            server.check(&json!({ "attributes": { "ip": fine } }).to_string())["allowed"],
            true,
            "{fine}"
        );
    }
    let texts = Server::start("attributes: [{ip: text}]\nlimits: [{name: a, by: [ip], rate: 20/h}]");
    assert_eq!(texts.check(r#"{"attributes":{"ip":"a-hash"}}"#)["allowed"], true);
}

/// A request that can never pass gets that answer, without a time to retry; so does one whose cost cannot be computed, with the reason.
#[test]
fn never_and_faults() {
    let server = Server::start("limits: [{name: tokens, by: [tenant], rate: 5/h, cost: used}]");
    let never = server.check(r#"{"attributes":{"tenant":"t","used":6}}"#);
    assert_eq!((&never["allowed"], &never["verdict"]), (&json!(false), &json!("never")));
    assert_eq!(never.get("retry_after_ms"), None);
    assert_eq!(never.get("fault"), None);
    let reason = "5 units an hour, burst 5; the request costs more than the 5 that can pass at once";
    assert_eq!((&never["cause"], &never["reason"]), (&json!("tokens"), &json!(reason)));
    let faulty = server.check(r#"{"attributes":{"tenant":"t","used":"many"}}"#);
    assert_eq!(faulty["verdict"], "never");
    assert!(faulty["fault"].as_str().unwrap().contains("limit tokens: its cost cannot be computed"));
    assert_eq!((&faulty["cause"], &faulty["reason"]), (&json!("tokens"), &faulty["fault"]));
    assert_eq!(server.check(r#"{"attributes":{"tenant":"t","used":5}}"#)["allowed"], true);
}

/// Whatever refuses, the cause and the reason are at the top level, in a batch and for a reservation too; the header never tells
/// to come back earlier than the JSON.
#[test]
fn a_refusal_names_its_cause_everywhere() {
    let server = Server::start(
        "limits: [{name: per-key, by: [api_key], rate: 1/h}, {name: in-flight, by: [worker], concurrency: 1, permit_ttl: 60s}]",
    );
    let key = r#"{"attributes":{"api_key":"k"}}"#;
    let worker = r#"{"attributes":{"worker":"w"}}"#;
    let batch = server.send("POST", "/v1/check/batch", &format!("[{key},{key},{worker},{worker}]")).json();
    let reserved = server.send("POST", "/v1/reservations", key).json();
    let rate = ("per-key", "1 request an hour, burst 1");
    let permits = ("in-flight", "1 request in flight");
    for (answer, (cause, reason)) in [(&batch[1], rate), (&batch[3], permits), (&reserved, rate)] {
        assert_eq!((&answer["cause"], &answer["reason"]), (&json!(cause), &json!(reason)), "{answer}");
        let advice = answer["retry_after_ms"].as_u64().unwrap();
        let header: u64 = answer["headers"]["Retry-After"].as_str().unwrap().parse().unwrap();
        assert!(header * 1_000 >= advice, "{answer}");
    }
    for allowed in [&batch[0], &batch[2]] {
        assert!(allowed.get("cause").is_none() && allowed.get("reason").is_none(), "{allowed}");
    }
    // A permit may come back at any time: look again soon. When it expires is in the limit's own numbers.
    assert_eq!(batch[3]["retry_after_ms"], 1_000);
    assert!(batch[3]["limits"][0]["retry_after_ms"].as_u64().unwrap() > 50_000, "{}", batch[3]);
}

/// A shaping limit allows with a wait; a limit in shadow reports its refusal and does not refuse.
#[test]
fn waits_and_shadows() {
    let server = Server::start(
        "limits: [{name: shaped, by: [a], algorithm: leaky-bucket, rate: 1/h, queue: 2}, \
                  {name: watched, by: [b], rate: 1/h, mode: shadow}]",
    );
    server.check(r#"{"attributes":{"a":"x"}}"#);
    let shaped = server.check(r#"{"attributes":{"a":"x"}}"#);
    assert_eq!((&shaped["allowed"], &shaped["verdict"]), (&json!(true), &json!("wait")));
    assert!((3_500_000..=3_600_000).contains(&shaped["wait_ms"].as_u64().unwrap()), "{shaped}");
    server.check(r#"{"attributes":{"b":"x"}}"#);
    let watched = server.check(r#"{"attributes":{"b":"x"}}"#);
    assert_eq!((&watched["allowed"], &watched["verdict"]), (&json!(true), &json!("allow")));
    assert_eq!(watched["limits"][0]["allowed"], false);
    assert_eq!(watched["limits"][0]["mode"], "shadow");
}

/// A batch is answered item by item, in order; one wrong item, and nothing of it is charged.
#[test]
fn batches() {
    let server = Server::start(SLOW_POLICY);
    let item = |cost: i64| json!({"attributes": {"api_key": "k"}, "cost": cost});
    let send = |items: &Value| server.send("POST", "/v1/check/batch", &items.to_string());
    let answers = send(&json!([item(2), item(2), item(2), item(1)])).json();
    let allowed: Vec<&Value> = answers.as_array().unwrap().iter().map(|answer| &answer["allowed"]).collect();
    assert_eq!(allowed, [true, true, false, true]);
    assert_eq!(send(&json!([])).json(), json!([]));
    assert_eq!(server.remaining("fresh"), 5);
    let fresh = json!({"attributes": {"api_key": "fresh"}});
    let detail = send(&json!([fresh, item(-1)])).problem(400);
    assert!(detail.starts_with("[1]: cost: -1 is not accepted"), "{detail}");
    let long = json!({"attributes": {"api_key": "x".repeat(4097)}});
    assert!(send(&json!([fresh, long])).problem(400).contains("[1]: attributes.api_key"));
    assert!(send(&Value::Array(vec![fresh.clone(); 1_001])).problem(400).contains("more than 1000"));
    assert_eq!(server.remaining("fresh"), 5);
    assert_eq!(send(&Value::Array(vec![fresh; 1_000])).json().as_array().unwrap().len(), 1_000);
    assert_eq!(server.remaining("fresh"), 0);
}

/// One connection serves many requests, also when they are sent ahead of their answers.
#[test]
fn connections_are_kept_and_pipelined() {
    let server = Server::start(SLOW_POLICY);
    let mut stream = server.connect();
    let one = request("POST", "/v1/check", "", br#"{"attributes":{"api_key":"k"}}"#);
    for expected in [4, 3] {
        stream.write_all(&one).unwrap();
        let answer = Response::read(&mut BufReader::new(&stream)).json();
        assert_eq!(answer["limits"][0]["remaining"], expected);
    }
    stream.write_all(&one.repeat(3)).unwrap();
    let mut answers = BufReader::new(&stream);
    for expected in [2, 1, 0] {
        assert_eq!(Response::read(&mut answers).json()["limits"][0]["remaining"], expected);
    }
}

/// The server says that it lives.
#[test]
fn health() {
    let server = Server::start(SLOW_POLICY);
    let response = server.send("GET", "/healthz", "");
    assert_eq!((response.status, response.json()), (200, json!({"status": "ok"})));
}
