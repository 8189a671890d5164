//! Outbound proxies on one Redis: they share the limits of each provider, and a refusal that one of them gets stops all.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use tollgate_testkit::until;

use crate::gateway_upstream::{OPEN, Upstream};
use crate::program::{Server, tollgate};
use crate::proxy::Folder;
use crate::raw_http::Response;
use crate::redis::Redis;
use crate::shared::quick;

const POLICY: &str =
    "limits: [{name: daily, by: [api_key], algorithm: fixed-window, align: first-hit, rate: 6/day}]";

/// A server with an outbound proxy on a store.
struct Proxy {
    _server: Server,
    address: String,
}

impl Proxy {
    fn on(store: &str, folder: &Folder, upstream: &Upstream) -> Self {
        let policy = folder.write("policy.yaml", POLICY).display().to_string();
        let config = format!(
            "outbound: {{providers: {{api: {{url: 'http://{}/give', policy: {policy}}}}}}}",
            upstream.address
        );
        let config = folder.write("config.yaml", &config).display().to_string();
        let arguments = ["serve", "--http", "127.0.0.1:0", "--outbound", "127.0.0.1:0", "--config", &config];
        let store = ["--policy", "-", "--store", store, "--store-deadline", "50ms"];
        let server = Server::spawn(tollgate(&[&arguments[..], &store].concat()), OPEN);
        let shown = server.banner.lines().find_map(|line| line.trim().strip_prefix("outbound http://"));
        let address = shown.unwrap_or_else(|| panic!("no outbound proxy in {}", server.banner)).to_owned();
        Self { _server: server, address }
    }

    /// A call that may not wait.
    fn call(&self, status: u16, key: &str, fields: &str) -> Response {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!(
            "GET /api/{status} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\nTollgate-Max-Wait: 0s\r\n{fields}\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        Response::read(&mut BufReader::new(&stream))
    }
}

/// Two proxies let as many calls leave as the limit of their provider admits, together; and a proxy that starts later goes
/// on from there.
#[test]
fn two_proxies_share_one_limit() {
    let (redis, folder, upstream) = (Redis::start(&[]), Folder::new("outbound-fleet"), Upstream::start());
    let proxies = [(); 2].map(|()| Proxy::on(&redis.url(), &folder, &upstream));
    let used = quick(|key| {
        upstream.seen();
        let calls = (0..12).map(|call| proxies[call % 2].call(200, key, "").status);
        let sent = calls.filter(|&status| status == 200).count();
        assert_eq!(upstream.seen().len(), sent);
        (sent == 6).then(|| key.to_owned())
    });
    let late = Proxy::on(&redis.url(), &folder, &upstream);
    until("the late proxy knows", || (late.call(200, &used, "").status == 429).then_some(()));
}

/// A refusal with `Retry-After` that one proxy gets stops the other, which has not called at all.
#[test]
fn a_refusal_stops_every_proxy() {
    let (redis, folder, upstream) = (Redis::start(&[]), Folder::new("outbound-frozen"), Upstream::start());
    let [one, other] = [(); 2].map(|()| Proxy::on(&redis.url(), &folder, &upstream));
    let refused = one.call(429, "k", "Give-Retry-After: 3600\r\n");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("3600")));
    let answer = until("the other proxy is stopped", || {
        let response = other.call(200, "k", "");
        Some(response)
            .filter(|response| response.status == 429)
            .map(|response| response.json())
            .filter(|answer| answer["numbers"] == "server")
    });
    assert_eq!(answer["type"], "urn:tollgate:problem:call-too-late", "{answer}");
    assert!(answer["retry_after_ms"].as_u64().unwrap() > 3_000_000, "{answer}");
}
