//! `unlimited` and `deny` as values of a limit, as each protocol tells them.

use serde_json::json;

use crate::admin;
use crate::admin::operate;
use crate::gateway_upstream::{Gateway, Upstream};
use crate::program::{Server, stdout};
use crate::redis::{Cluster, Redis};
use crate::rls::{Client, question, shown};
use crate::shared::{on, quick};
use tollgate_testkit::rlqs::Quotas;

const POLICY: &str = "
domain: api
limits:
  - {name: bots, when: {agent: '*bot*'}, rate: deny}
  - {name: plan, by: [tenant], rate: 5/h, overrides: {vip: unlimited, evil: deny}}
";

/// HTTP, RLS, RLQS and RESP over one server.
fn every_protocol(server: &Server) {
    let denied = server.check(r#"{"attributes":{"tenant":"evil"}}"#);
    assert_eq!(denied["verdict"], "deny");
    assert_eq!(denied["reason"], "denied-by-policy");
    assert_eq!(denied["allowed"], false);
    assert!(denied.get("retry_after_ms").is_none() && denied["headers"].get("Retry-After").is_none());
    let status = json!([{"name": "plan", "allowed": false, "source": "policy", "mode": "enforce"}]);
    assert_eq!(denied["limits"], status);
    let free = server.check(r#"{"attributes":{"tenant":"vip"}}"#);
    let status =
        json!([{"name": "plan", "allowed": true, "unlimited": true, "source": "policy", "mode": "enforce"}]);
    assert_eq!((&free["verdict"], &free["limits"]), (&json!("allow"), &status));
    assert!(free["headers"].get("RateLimit").is_none(), "{free}");

    let client = Client::new(server.grpc.unwrap());
    let ask = |text| shown(&client.ask(question("api", 0, text)).unwrap());
    assert_eq!(ask("tenant=vip"), "OK: OK");
    assert_eq!(ask("tenant=evil"), "OVER: OVER plan 0/UNKNOWN left 0");
    assert_eq!(ask("tenant=x | agent=badbot"), "OVER: OK | OVER bots 0/UNKNOWN left 0");
    // The other descriptor was not charged.
    assert_eq!(ask("tenant=x +0"), "OK: OK plan 5/HOUR left 5 in 0");
    let mut quotas = Quotas::open(&client);
    assert_eq!(quotas.report(&[("tenant", "vip")], 1), "ALLOW_ALL for 15 s");
    assert_eq!(quotas.report(&[("tenant", "evil")], 1), "DENY_ALL for 15 s");

    let resp = server.resp_exchange(b"TG.CHECK tenant evil\r\nTG.CHECK tenant vip\r\nQUIT\r\n");
    let expected = "*8\r\n:0\r\n$4\r\ndeny\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n$4\r\nplan\r\n$-1\r\n\
                    *8\r\n:1\r\n$5\r\nallow\r\n:-1\r\n:-1\r\n:0\r\n:-1\r\n$4\r\nplan\r\n$-1\r\n+OK\r\n";
    assert_eq!(resp, expected);
    assert!(server.metric("tollgate_decisions_total{outcome=\"forbidden\",wire=\"http\"}") >= 1);
}

/// Every protocol tells a denial by policy without a time to retry, and an unlimited key without a number.
#[test]
fn every_protocol_tells_them() {
    every_protocol(&Server::start(POLICY));
}

/// The same with counters in Redis, and the same answers while Redis is gone.
#[test]
fn they_need_no_store() {
    let mut redis = Redis::start(&[]);
    let server = on(&redis.url(), POLICY);
    every_protocol(&server);
    redis.kill();
    let verdict = |tenant: &str| {
        let answer = server.check(&json!({"attributes": {"tenant": tenant}}).to_string());
        (answer["verdict"].as_str().unwrap().to_owned(), answer["limits"][0]["source"].clone())
    };
    assert_eq!(verdict("evil"), ("deny".to_owned(), json!("policy")));
    assert_eq!(verdict("vip"), ("allow".to_owned(), json!("policy")));
}

/// The gateway and `/v1/authz` answer 403 without Retry-After, and an unlimited caller gets the upstream's answer without quota headers.
#[test]
fn the_gateway_answers_403() {
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let policy = "limits:
  - {name: bots, when: {path: /bots}, rate: deny}
  - {name: admin, when: {path: /free}, by: [ip], rate: 1/h, overrides: {127.0.0.1: unlimited}}
";
    let gateway = Gateway::with(&["--upstream", &address], policy);
    let denied = gateway.get("/bots", "");
    assert_eq!((denied.status, denied.header("retry-after")), (403, None));
    assert_eq!(denied.json()["title"], "Request is denied by policy");
    for _ in 0..3 {
        let passed = gateway.get("/free", "");
        assert_eq!((passed.status, passed.header("ratelimit")), (200, None));
    }
    assert_eq!(upstream.seen().len(), 3);
    let asked = |path: &str| {
        let head = "GET /v1/authz HTTP/1.1\r\nHost: a\r\nX-Forwarded-Method: GET\r\n";
        let answer = gateway.server.exchange(format!("{head}X-Forwarded-Uri: {path}\r\n\r\n").as_bytes());
        (answer.status, answer.header("retry-after").map(str::to_owned))
    };
    assert_eq!(asked("/bots"), (403, None));
    // A gRPC call gets PERMISSION_DENIED.
    let call = gateway.exchange(
        "POST /bots HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nTE: trailers\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!((call.status, call.header("grpc-status")), (200, Some("7")));
}

/// An operator sees the values in `get` and `explain`, and a limit that denies can be killed.
#[test]
fn operators_see_them() {
    let server = admin::server(POLICY);
    let say = |arguments: &[&str]| stdout(&operate(&server, arguments).output().unwrap());
    let shown = say(&["get", "tenant=vip"]);
    assert!(shown.contains("passes now") && shown.contains("plan   unlimited"), "{shown}");
    let shown = say(&["explain", "tenant=evil"]);
    assert!(
        shown.contains("such a request is denied now")
            && shown.contains("quota: no requests (the override of tenant \"evil\")")
            && shown.contains("the policy denies it, and waiting does not help"),
        "{shown}"
    );
    say(&["kill", "plan", "--for", "1h"]);
    assert_eq!(server.check(r#"{"attributes":{"tenant":"evil"}}"#)["allowed"], true);
}

const BLOCKING: &str = "
domain: api
limits:
  - {name: login, by: [user], rate: 2/h, burst: 2, block_for: {after: 3, in: 10s, for: 2h}}
";

/// A block is seen by every server of a fleet and on every way in, shown to operators, and taken back by a reset for all.
#[test]
fn a_fleet_shares_blocks() {
    let redis = Redis::start(&[]);
    shares_blocks(&redis.url());
}

/// The same where the counters of a limit and its blocks may be on different nodes of a cluster.
#[test]
fn a_fleet_shares_blocks_in_a_cluster() {
    let cluster = Cluster::start(0, &[]);
    shares_blocks(&cluster.url());
}

fn shares_blocks(store: &str) {
    let (one, other) = (on(store, BLOCKING), on(store, BLOCKING));
    let client = Client::new(other.grpc.unwrap());
    let say = |arguments: &[&str]| stdout(&operate(&one, arguments).output().unwrap());
    quick(|user| {
        let ask = |server: &Server| server.check(&json!({"attributes": {"user": user}}).to_string());
        let reasons = [&one, &other, &one, &other, &one].map(|server| ask(server)["reason"].clone());
        let blocked = ask(&other);
        (reasons[4] == "penalty" && blocked["reason"] == "penalty").then_some(())?;
        assert_eq!(
            (&blocked["verdict"], &blocked["limits"][0]["source"]),
            (&json!("deny"), &json!("penalty"))
        );
        let rest = blocked["retry_after_ms"].as_u64().unwrap();
        assert!((7_100_000..=7_200_000).contains(&rest), "{rest}");
        let answer = client.ask(question("api", 0, &format!("user={user}"))).unwrap();
        assert!(shown(&answer).starts_with("OVER: OVER login 2/HOUR left 0"), "{}", shown(&answer));
        assert_eq!(Quotas::open(&client).report(&[("user", user)], 0), "DENY_ALL for 15 s");
        let key = format!("user={user}");
        assert!(say(&["get", &key]).contains("login  blocked"), "{}", say(&["get", &key]));
        assert!(say(&["explain", &key]).contains("after 3 denials; `tollgate reset` ends that"));
        say(&["reset", &key]);
        assert_eq!(ask(&other)["allowed"], true);
        Some(())
    });
}

const FAILURES: &str = "
limits:
  - {name: login, by: [user], rate: 2/h, count: failures, failures: [401, 5xx]}
";

/// `/v1/check` gives an id to report the end of a request by: a success gives the unit back, a failure keeps it, and once is enough.
fn reports(server: &Server, user: &str) {
    let ask = || server.check(&json!({"attributes": {"user": user}}).to_string());
    let report = |answer: &serde_json::Value, body: &str| {
        let path = format!("/v1/reports/{}", answer["report"].as_str().unwrap());
        server.send("POST", &path, body)
    };
    let remaining = |answer: &serde_json::Value| answer["limits"][0]["remaining"].as_u64();
    let first = ask();
    assert_eq!(remaining(&first), Some(1));
    let received = report(&first, r#"{"status": 200}"#);
    assert_eq!((received.status, received.json()["refunded"].as_u64()), (200, Some(1)));
    assert_eq!(report(&first, r#"{"status": 200}"#).status, 409);
    let second = ask();
    assert_eq!(remaining(&second), Some(1));
    assert_eq!(report(&second, r#"{"failed": true}"#).status, 200);
    let third = ask();
    assert_eq!(remaining(&third), Some(0));
    assert_eq!(report(&third, r#"{"status": 401}"#).json()["refunded"], 0);
    let denied = ask();
    assert_eq!((&denied["allowed"], denied.get("report")), (&json!(false), None));
    for wrong in [r#"{}"#, r#"{"status": 99}"#, r#"{"status": 200, "failed": true}"#, r#"{"ok": 1}"#, "x"] {
        assert_eq!(report(&third, wrong).status, 400, "{wrong}");
    }
    assert_eq!(
        server.send("POST", "/v1/reports/00000000000000000000000000000000", r#"{"failed": true}"#).status,
        404
    );
}

/// Reports work with counters in memory and in Redis.
#[test]
fn ends_are_reported() {
    reports(&Server::start(FAILURES), "u");
    let redis = Redis::start(&[]);
    reports(&on(&redis.url(), FAILURES), "u");
}

/// The gateway knows by itself how a request ended: only failures of the upstream count.
#[test]
fn the_gateway_counts_failures() {
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let policy = "limits: [{name: sick, by: [ip], rate: 2/h, count: failures}]";
    let gateway = Gateway::with(&["--upstream", &address], policy);
    let statuses =
        |times: usize, path: &str| (0..times).map(|_| gateway.get(path, "").status).collect::<Vec<_>>();
    assert_eq!(statuses(5, "/x"), [200; 5]);
    assert_eq!(statuses(3, "/status/500"), [500, 500, 429]);
    assert_eq!(statuses(1, "/x"), [429]);
}
