//! The gateway's limits: by the server's own engine and active policy, with its blocks, its kill switches and its numbers.

use std::io::{BufReader, Write};

use crate::gateway_upstream::{Gateway, Upstream, until};
use crate::program::{run, stderr, tollgate};
use crate::proxy::Folder;
use crate::raw_http::Response;

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 5/h}
  - {name: login, when: {path: /login}, by: [ip], rate: 3/h}
  - {name: in-flight, when: {path: /upgrade}, by: [ip], concurrency: 1}
";

const TOKEN: &str = "admin-token-0123456789";

fn with(upstream: &Upstream, more: &[&str]) -> Gateway {
    let address = format!("http://{}", upstream.address);
    Gateway::with(&[&["--upstream", &address], more].concat(), POLICY)
}

/// Exactly the limit passes, the others never reach the upstream, and the same engine answers the other wires.
#[test]
fn exactly_the_limit_passes() {
    let upstream = Upstream::start();
    let gateway = with(&upstream, &["--trusted-proxy", "127.0.0.0/8"]);
    let answers: Vec<_> = (0..8).map(|_| gateway.get("/x", "X-API-Key: k1\r\n")).collect();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
    assert_eq!(upstream.seen().len(), 5);
    assert_eq!(answers[0].header("ratelimit-policy"), Some("\"per-key\";q=5;w=3600"));
    let denied = &answers[5];
    assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() >= 720);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"][0], "per-key");
    // The same counter, as another wire sees it: keys are hashed the same way.
    let held = "GET /v1/authz HTTP/1.1\r\nHost: a\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /x\r\nX-API-Key: k1\r\n\r\n";
    assert_eq!(gateway.server.exchange(held.as_bytes()).status, 429);
    let metrics = gateway.server.send("GET", "/metrics", "");
    let text = String::from_utf8(metrics.body).unwrap();
    let place = format!("route=\"upstream\",upstream=\"http://{}\"", upstream.address);
    for line in [
        "tollgate_decisions_total{outcome=\"allow\",wire=\"gateway\"} 5".to_owned(),
        "tollgate_decisions_total{outcome=\"deny\",wire=\"gateway\"} 3".to_owned(),
        format!("tollgate_gateway_answers_total{{{place},class=\"2xx\"}} 5"),
        format!("tollgate_gateway_failures_total{{{place},class=\"connect\"}} 0"),
        format!("tollgate_gateway_upstream_up{{{place}}} 1"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// Every spelling of a path is one path, and a forged address is ignored.
#[test]
fn spellings_and_forgeries_do_not_help() {
    let upstream = Upstream::start();
    let gateway = with(&upstream, &[]);
    let spellings = ["/login", "//login", "/%6cogin", "/a/../login?x=1"];
    let forged = |n: usize| {
        format!(
            "X-Forwarded-For: 203.0.113.{n}\r\nX-Real-IP: 203.0.113.{n}\r\nConnection: x-forwarded-for\r\n"
        )
    };
    let statuses: Vec<u16> =
        spellings.iter().enumerate().map(|(n, path)| gateway.get(path, &forged(n)).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let lines: Vec<String> = upstream.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /login"; 3]);
    let denied = gateway.get("/login", "");
    assert_eq!((denied.status, denied.header("retry-after").is_some()), (429, true));
}

/// The story: the gateway never sent `RateLimit` nor `X-RateLimit-*`, because it took every client for a stranger. By default a
/// caller sees the limits that it owns, and never the platform's; `anonymous: retry-after` hides them from callers without a key.
#[test]
fn callers_see_the_limits_that_they_own() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-owned"));
    let policy = "limits:
  - {name: per-ip, by: [ip], rate: 5/h}
  - {name: platform, rate: 4/h}
";
    let address = format!("http://{}", upstream.address);
    let gateway = Gateway::with(&["--upstream", &address], policy);
    let passed = gateway.get("/", "");
    assert_eq!(passed.header("ratelimit-policy"), Some("\"per-ip\";q=5;w=3600"));
    assert!(passed.header("ratelimit").unwrap().starts_with("\"per-ip\";r=4;"), "{:?}", passed.headers);
    assert_eq!(
        (passed.header("x-ratelimit-limit"), passed.header("x-ratelimit-remaining")),
        (Some("5"), Some("4"))
    );
    (0..3).for_each(|_| assert_eq!(gateway.get("/", "").status, 200));
    let refused = gateway.get("/", "");
    assert_eq!((refused.status, refused.header("ratelimit")), (429, None));
    assert!(
        refused.header("retry-after").is_some()
            && !String::from_utf8_lossy(&refused.body).contains("platform")
    );
    let config = folder
        .write(
            "config.yaml",
            &format!("headers: {{anonymous: retry-after}}\nroutes: [{{upstreams: ['{address}']}}]"),
        )
        .display()
        .to_string();
    let gateway = Gateway::with(&["--config", &config], policy);
    assert_eq!(gateway.get("/", "").header("ratelimit"), None);
    assert!(gateway.get("/", "X-API-Key: k\r\n").header("ratelimit").is_some());
}

/// The story: after a limit on a host or a path had refused, another spelling of it passed to the same place behind a server that is not
/// as strict. Whatever is sent on was counted, and what cannot be sent on in one spelling is refused.
#[test]
fn other_spellings_are_the_same_host_and_path() {
    const POLICY: &str = "limits:
  - {name: host, when: {host: api.test}, rate: 1/h}
  - {name: login, when: {method: POST, path: /login}, rate: 1/h}
  - {name: port, when: {host: 'other.test:8443'}, rate: 1/h}
";
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let gateway = Gateway::with(&["--upstream", &address], POLICY);
    let status = |line: &str, host: &str| {
        let length = if line.starts_with("POST") { "Content-Length: 0\r\n" } else { "" };
        gateway.exchange(&format!("{line} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n")).status
    };
    assert_eq!(status("GET /", "api.test"), 200);
    for host in
        ["api.test", "API.test", "api.test.", "api.test:", "api.test:080", "api.test:1", "api.test:65535"]
    {
        assert_eq!(status("GET /", host), 429, "{host}");
    }
    for host in ["api.test:abc", "api.test:99999", "api.test:0", "[::1]x", "a;b", "api.test..", ".api.test"] {
        assert_eq!(status("GET /", host), 400, "{host}");
    }
    // A limit that names a port is for that port.
    assert_eq!(status("GET /", "other.test:1"), 200);
    assert_eq!(status("GET /", "Other.Test:08443"), 200);
    assert_eq!(status("GET /", "other.test:8443"), 429);
    assert_eq!(status("GET /", "other.test"), 200);
    assert_eq!(status("POST /login", "a.test"), 200);
    for path in ["/login", "/login/", "/LOGIN", "/login;x", "/login.", "/login%20", "//Login;a=b/"] {
        assert_eq!(status(&format!("POST {path}"), "a.test"), 429, "{path}");
    }
    assert_eq!(status("POST /x/..;/login", "a.test"), 400);
    assert_eq!(status("POST /logins", "a.test"), 200);
    let seen: Vec<(String, String)> =
        upstream.seen().into_iter().map(|seen| (seen.header("host"), seen.line)).collect();
    let expected = [
        ("api.test", "GET /"),
        ("other.test:1", "GET /"),
        ("other.test:8443", "GET /"),
        ("other.test", "GET /"),
        ("a.test", "POST /login"),
        ("a.test", "POST /logins"),
    ];
    assert_eq!(seen, expected.map(|(host, line)| (host.to_owned(), line.to_owned())));
}

/// A limit by an attribute that falls back covers clients without a key, too; and a field cannot make another method of a request.
#[test]
fn callers_without_a_key_are_limited_by_address() {
    let folder = Folder::new("caller");
    let config = folder.write("config.yaml", "attributes: {caller: {first_of: [api_key, ip]}}\n");
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let arguments = ["--upstream", &address, "--config", config.to_str().unwrap()];
    let gateway = Gateway::with(&arguments, "limits: [{name: a, by: [caller], rate: 2/h}]");
    let statuses = |fields: &str| (0..3).map(|_| gateway.get("/", fields).status).collect::<Vec<_>>();
    assert_eq!(statuses("X-HTTP-Method-Override: DELETE\r\n"), [200, 200, 429]);
    assert!(upstream.seen().iter().all(|seen| seen.header("x-http-method-override").is_empty()));
    assert_eq!(statuses("X-API-Key: k1\r\n"), [200, 200, 429]);
    assert_eq!(statuses("Authorization: Basic x\r\n"), [429; 3]);
}

/// Values of an attribute that the config calls exact differ as they are written.
#[test]
fn paths_are_exact_where_the_config_says_so() {
    let folder = Folder::new("exact-paths");
    let config = folder.write("config.yaml", "path_match: exact\n");
    let upstream = Upstream::start();
    let gateway = with(&upstream, &["--config", config.to_str().unwrap()]);
    let statuses = |path: &str| (0..4).map(|_| gateway.get(path, "").status).collect::<Vec<_>>();
    assert_eq!(statuses("/login"), [200, 200, 200, 429]);
    assert_eq!(statuses("/Login"), [200; 4]);
}

/// A place in flight is taken as long as a tunnel lasts, and free after it.
#[test]
fn a_tunnel_holds_its_place() {
    let upstream = Upstream::start();
    let gateway = with(&upstream, &[]);
    let head = b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let mut stream = gateway.connect();
    stream.write_all(head).unwrap();
    assert_eq!(Response::read(&mut BufReader::new(&stream)).status, 101);
    let ask = || {
        let mut stream = gateway.connect();
        stream.write_all(head).unwrap();
        Response::read(&mut BufReader::new(&stream)).status
    };
    assert_eq!((ask(), ask()), (429, 429));
    drop(stream);
    until(|| ask() == 101);
}

/// A body is not asked for when the request is refused.
#[test]
fn a_refused_upload_is_not_read() {
    let upstream = Upstream::start();
    let gateway = with(&upstream, &[]);
    (0..5).for_each(|_| drop(gateway.get("/x", "X-API-Key: k\r\n")));
    let head = "POST /x HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(gateway.exchange(head).status, 429);
}

/// A refusal has the same `cause` and `reason` at the gateway and at `/v1/check`. The story: a penalty and a policy's `deny` had no
/// `reason` at the gateway.
#[test]
fn refusals_have_the_words_of_every_protocol() {
    let upstream = Upstream::start();
    let policy = "limits:
  - {name: quota, when: {path: /quota}, by: [ip], rate: 1/h}
  - {name: penalty, when: {path: /penalty}, by: [ip], rate: 1/h, block_for: {after: 1, in: 1h, for: 1h}}
  - {name: closed, when: {path: /closed}, by: [ip], tier_by: method, tiers: {GET: deny}}
";
    let address = format!("http://{}", upstream.address);
    let gateway = Gateway::with(&["--upstream", &address], policy);
    for (name, requests, reason) in [
        ("quota", 2, "1 request an hour, burst 1"),
        ("penalty", 3, "penalty"),
        ("closed", 1, "denied-by-policy"),
    ] {
        for _ in 1..requests {
            gateway.get(&format!("/{name}"), "");
        }
        let refused = gateway.get(&format!("/{name}"), "").json();
        assert_eq!((&refused["cause"], &refused["reason"]), (&name.into(), &reason.into()), "{refused}");
        let asked = format!(r#"{{"attributes": {{"ip": "127.0.0.1", "method": "GET", "path": "/{name}"}}}}"#);
        let checked = gateway.server.send("POST", "/v1/check", &asked).json();
        assert_eq!((&checked["cause"], &checked["reason"]), (&refused["cause"], &refused["reason"]));
    }
}

/// An operator's change and a reloaded policy apply to the gateway at once.
#[test]
fn operator_overrides_apply() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-operate"));
    let path = folder.write("policy.yaml", POLICY).display().to_string();
    let address = format!("http://{}", upstream.address);
    let command = tollgate(&[
        "serve",
        "--http",
        "127.0.0.1:0",
        "--gateway",
        "127.0.0.1:0",
        "--policy",
        &path,
        "--upstream",
        &address,
        "--admin-token",
        TOKEN,
    ]);
    let gateway = Gateway::of(crate::program::Server::spawn(command, ""));
    (0..5).for_each(|_| drop(gateway.get("/x", "X-API-Key: k\r\n")));
    assert_eq!(gateway.get("/x", "X-API-Key: k\r\n").status, 429);
    let operate = |arguments: &[&str]| {
        let mut command = tollgate(arguments);
        command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        command.env("TOLLGATE_SERVER", format!("http://{}", gateway.server.address));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    operate(&["kill", "per-key", "--for", "1h"]);
    assert_eq!(gateway.get("/x", "X-API-Key: k\r\n").status, 200);
    operate(&["block", "path=/secret", "--for", "1h"]);
    assert_eq!(gateway.get("/a/../secret", "").status, 429);
    folder.write("policy.yaml", &format!("{POLICY}  - {{name: once, when: {{path: /y}}, rate: 1/h}}\n"));
    until(|| gateway.get("/y", "").status == 429);
}

/// A queued request is counted while it waits, and its waiting time is measured.
#[test]
fn waiting_requests_are_counted() {
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let policy = "limits: [{name: shaped, algorithm: leaky-bucket, rate: 1 every 4s, queue: 2}]";
    let gateway = Gateway::with(&["--upstream", &address], policy);
    assert_eq!(gateway.get("/x", "").status, 200);
    assert_eq!(gateway.server.metric("tollgate_waiting_requests"), 0);
    let mut waits = gateway.connect();
    waits.write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(|| gateway.server.metric("tollgate_waiting_requests") == 1);
    assert_eq!(gateway.server.metric("tollgate_wait_duration_seconds_count"), 1);
    assert_eq!(Response::read(&mut BufReader::new(&waits)).status, 200);
    assert_eq!(gateway.server.metric("tollgate_waiting_requests"), 0);
}

/// The operator configures what callers see: here all see the quota, and a denial is the 503 that clients of NGINX know.
#[test]
fn disclosure_to_callers_is_configurable() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-headers"));
    let text = format!(
        "headers: {{dialects: [x-ratelimit-delta], anonymous: full, denied: 503}}\nroutes: [{{upstreams: ['http://{}']}}]",
        upstream.address
    );
    let config = folder.write("config.yaml", &text).display().to_string();
    let gateway = Gateway::with(&["--config", &config], "limits: [{name: per-ip, by: [ip], rate: 1/h}]");
    let passed = gateway.get("/", "");
    assert_eq!((passed.status, passed.header("x-ratelimit-remaining")), (200, Some("0")));
    assert_eq!(passed.header("ratelimit"), None);
    let denied = gateway.get("/", "");
    assert_eq!(denied.status, 503);
    assert!(denied.header("retry-after").is_some(), "{:?}", denied.headers);
    let wrong = folder.write("wrong.yaml", "headers: {denied: 418}").display().to_string();
    let output = run(&["serve", "--http", "127.0.0.1:0", "--config", &wrong], b"");
    assert!(stderr(&output).contains("headers.denied: 418 is not accepted; accepted: 429 or 503"));
}
