//! Routes: which upstream a request is sent to, what happens when one is lost, and when a request is sent a second time.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::program::{Server, run, stderr};
use crate::proxy::{Folder, free_port};

fn gateway(routes: &str) -> (Gateway, Folder) {
    let folder = Folder::new("gateway-routes");
    let config = folder.write("config.yaml", &format!("routes:\n{routes}"));
    (Gateway::with(&["--config", &config.display().to_string()], OPEN), folder)
}

/// The most specific route is taken, by host and by path; where there is none, a 404 says so.
#[test]
fn routes_by_host_and_path() {
    let [api, users, wild] = [Upstream::start(), Upstream::start(), Upstream::start()];
    let routes = format!(
        "- {{name: api, host: api.test, upstreams: ['http://{}']}}\n- {{name: users, host: api.test, path: '/users/{{id}}', upstreams: ['http://{}']}}\n- {{name: wild, host: '*.test', path: /v1, upstreams: ['http://{}']}}\n",
        api.address, users.address, wild.address
    );
    let (gateway, _folder) = gateway(&routes);
    let ask = |host: &str, path: &str| {
        let status = gateway.exchange(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).status;
        (status, [&api, &users, &wild].map(|upstream| upstream.seen().len()))
    };
    assert_eq!(ask("api.test", "/"), (200, [1, 0, 0]));
    assert_eq!(ask("API.test.:80", "/users/../users/7"), (200, [0, 1, 0]));
    assert_eq!(ask("api.test", "/users/7/posts"), (200, [1, 0, 0]));
    assert_eq!(ask("b.test", "/v1/x"), (200, [0, 0, 1]));
    assert_eq!(ask("b.test", "/v1x"), (404, [0, 0, 0]));
    assert_eq!(ask("other.example", "/v1"), (404, [0, 0, 0]));
    gateway.get("/nowhere", "").problem(404);
}

/// One run reports all wrong routes, each with its field; and what is right but not there when the server starts.
#[test]
fn wrong_routes_are_reported() {
    let folder = Folder::new("gateway-wrong");
    let refused = |text: &str| {
        let config = folder.write("config.yaml", text).display().to_string();
        let output =
            run(&["serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--config", &config], b"");
        assert!(!output.status.success());
        stderr(&output)
    };
    let reported = refused("routes: [{path: x, upstreams: [ftp://a]}, {upstreams: [], retries: 7}]");
    for problem in ["routes[0].path", "routes[0].upstreams[0]", "routes[1].upstreams", "routes[1].retries"] {
        assert!(reported.contains(problem), "{reported}");
    }
    assert!(refused("routes: [{upstreams: ['https://a'], ca: missing.pem}]").contains("missing.pem"));
    let foreign = b"- {namespace: a, max_value: 1, seconds: 60, conditions: [], variables: []}\n";
    let output = run(
        &["serve", "--http", "127.0.0.1:0", "--policy", "-", "--upstream", "http://127.0.0.1:1"],
        foreign,
    );
    assert!(stderr(&output).contains("policy convert"), "{}", stderr(&output));
    let output = run(&["serve", "--upstream", "127.0.0.1:3000"], b"");
    assert!(stderr(&output).contains("has no scheme"), "{}", stderr(&output));
}

/// A key goes to one upstream as long as that is there; when it is lost only its keys move, and they come back with it.
#[test]
fn sticky_without_state() {
    let upstreams = [Upstream::start(), Upstream::start(), Upstream::start()];
    let urls: Vec<String> =
        upstreams.iter().map(|upstream| format!("'http://{}'", upstream.address)).collect();
    let (gateway, _folder) = gateway(&format!(
        "- {{sticky: api_key, upstreams: [{}], health: {{path: /health, interval: 20ms, healthy: 1, unhealthy: 1}}}}\n",
        urls.join(", ")
    ));
    let clear = || upstreams.iter().for_each(|upstream| drop(upstream.seen()));
    let place = |key: usize| {
        clear();
        assert_eq!(gateway.get("/", &format!("X-API-Key: k{key}\r\n")).status, 200);
        let is_asked = |upstream: &Upstream| upstream.seen().iter().any(|seen| seen.line == "GET /");
        upstreams.iter().position(is_asked).unwrap()
    };
    let before: Vec<usize> = (0..60).map(place).collect();
    assert_eq!((0..60).map(place).collect::<Vec<_>>(), before, "a key stays");
    let mut shares = HashMap::new();
    before.iter().for_each(|place| *shares.entry(*place).or_insert(0) += 1);
    assert!(shares.len() == 3 && shares.values().all(|share| *share >= 8), "{shares:?}");
    upstreams[1].sicken();
    until(|| gateway.get("/", "").status == 200 && gateway.up() == 2);
    let without: Vec<usize> = (0..60).map(place).collect();
    for (old, new) in before.iter().zip(&without) {
        assert!(if *old == 1 { *new != 1 } else { new == old }, "{old} {new}");
    }
    upstreams[1].recover();
    until(|| gateway.up() == 3);
    assert_eq!((0..60).map(place).collect::<Vec<_>>(), before);
}

/// When no upstream passes its checks the answer is 503, at once, with a time to come back.
#[test]
fn no_healthy_upstream() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&format!(
        "- {{upstreams: ['http://{}'], health: {{path: /health, interval: 20ms, healthy: 1, unhealthy: 1}}}}\n",
        upstream.address
    ));
    upstream.sicken();
    until(|| gateway.up() == 0);
    let answers: Vec<_> = (0..40).map(|_| gateway.get("/", "")).collect();
    assert!(answers.iter().all(|refused| refused.lack_of_capacity("no-upstream").contains("health checks")));
    let first = answers[0].header("retry-after");
    assert!(answers.iter().any(|refused| refused.header("retry-after") != first), "all come back at once");
    upstream.recover();
    until(|| gateway.get("/", "").status == 200);
}

/// A request that reached no upstream is sent to another one, whatever it is; the one that fails is left alone after a while.
#[test]
fn a_dead_upstream_is_not_noticed() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&format!(
        "- {{upstreams: ['http://127.0.0.1:{}', 'http://{}']}}\n",
        free_port(),
        upstream.address
    ));
    for number in 0..60 {
        let body = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        let answer = gateway.all(body.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("hello"), "{number}: {answer}");
    }
    assert_eq!(upstream.seen().len(), 60);
    let failures = gateway.metric("tollgate_gateway_failures_total", "connect");
    assert!((5..40).contains(&failures), "{failures} attempts at the dead one");
}

/// A server that takes requests and hangs up on each.
fn rude() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 1_024];
            if stream.read(&mut head).is_ok_and(|read| read > 0) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    (port, count)
}

/// A request that an upstream may have acted on is never sent again, not even a GET: what comes back is a 502.
#[test]
fn a_request_that_may_have_run_is_not_retried() {
    let (port, count) = rude();
    let (gateway, _folder) = gateway(&format!("- {{upstreams: ['http://127.0.0.1:{port}'], retries: 3}}\n"));
    for (sent, method) in ["GET", "POST", "DELETE"].into_iter().enumerate() {
        let answer =
            gateway.exchange(&format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        answer.problem(502);
        assert_eq!(count.load(Ordering::SeqCst), sent + 1, "{method}");
    }
}

/// An upstream closes connections that rest, as all do: a request without a body that may be
/// repeated, and meets such a one, is answered by a new one.
#[test]
fn a_connection_that_ended_is_not_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = vec![0; 4_096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            // And then it is closed, although the answer did not say so.
        }
    });
    let (gateway, _folder) = gateway(&format!("- {{upstreams: ['http://127.0.0.1:{port}']}}\n"));
    for number in 0..50 {
        let method = if number % 2 == 0 { "GET" } else { "DELETE" };
        let answer = gateway.exchange(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(answer.status, 200, "{number}");
    }
}

/// As many requests are at an upstream as may be; the next one waits, and gets a time to retry.
#[test]
fn places_at_an_upstream() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&format!(
        "- {{upstreams: ['http://{}'], connections: 2, per_client: 100%, retries: 0, timeouts: {{connect: 200ms}}}}\n",
        upstream.address
    ));
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = gateway.connect();
        stream.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        held.push(stream);
    }
    until(|| upstream.count() == 2);
    gateway.get("/", "").lack_of_capacity("upstream-busy");
    drop(held);
    until(|| gateway.get("/", "").status == 200);
}

/// A request that has waited for a place at every upstream does not begin anew, however many retries there are.
#[test]
fn a_wait_for_a_place_is_not_repeated() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&format!(
        "- {{upstreams: ['http://{}'], connections: 1, retries: 3, timeouts: {{connect: 200ms}}}}\n",
        upstream.address
    ));
    let mut held = gateway.connect();
    held.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(|| upstream.count() == 1);
    assert_eq!(gateway.get("/", "").status, 503);
    assert_eq!(gateway.metric("tollgate_gateway_failures_total", "busy"), 1);
}

/// Two gateways that are each other's upstream say so, after a few rounds.
#[test]
fn a_loop_ends() {
    let addresses = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let gateway = |own: &str, other: &str| {
        let upstream = format!("http://{other}");
        let listen = ["serve", "--http", "127.0.0.1:0", "--gateway", own, "--policy", "-"];
        Gateway::of(Server::start_with(&[&listen[..], &["--upstream", &upstream]].concat(), OPEN))
    };
    let [one, other] = &addresses;
    let gateways = [gateway(one, other), gateway(other, one)];
    assert!(gateways[0].get("/", "").problem(508).contains("upstreams lead"));
}
