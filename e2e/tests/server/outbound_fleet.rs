//! Outbound proxies on one Redis: they share the limits of each provider, and a refusal that one of them gets stops all.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tollgate_testkit::until;

use crate::gateway_upstream::{OPEN, Upstream};
use crate::program::{Server, tollgate};
use crate::proxy::Folder;
use crate::raw_http::Response;
use crate::redis::Redis;
use crate::shared::quick;

const POLICY: &str =
    "limits: [{name: daily, by: [api_key], algorithm: fixed-window, align: first-hit, rate: 6/day}]";
/// Calls a second of a leaky bucket.
const PACE: u32 = 20;

/// A server with an outbound proxy on a store.
pub(crate) struct Proxy {
    _server: Server,
    address: String,
}

impl Proxy {
    fn on(store: &str, folder: &Folder, upstream: &Upstream) -> Self {
        Self::with(POLICY, store, folder, upstream)
    }

    fn with(policy: &str, store: &str, folder: &Folder, upstream: &Upstream) -> Self {
        Self::before(&format!("url: 'http://{}/give'", upstream.address), policy, store, folder)
    }

    /// Before the provider `api` with these fields in the config, and this policy.
    pub(crate) fn before(provider: &str, policy: &str, store: &str, folder: &Folder) -> Self {
        let policy = folder.write("policy.yaml", policy).display().to_string();
        let config = format!("outbound: {{providers: {{api: {{{provider}, policy: {policy}}}}}}}");
        let config = folder.write("config.yaml", &config).display().to_string();
        let arguments = ["serve", "--http", "127.0.0.1:0", "--outbound", "127.0.0.1:0", "--config", &config];
        let store = ["--policy", "-", "--store", store, "--store-deadline", "50ms"];
        let server = Server::spawn(tollgate(&[&arguments[..], &store].concat()), OPEN);
        let shown = server.banner.lines().find_map(|line| line.trim().strip_prefix("outbound http://"));
        let address = shown.unwrap_or_else(|| panic!("no outbound proxy in {}", server.banner)).to_owned();
        Self { _server: server, address }
    }

    /// A call whose client waits only so long for the answer.
    fn call_and_give_up(&self, gives_up_after: Duration) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(gives_up_after)).unwrap();
        let head =
            format!("GET /api/200 HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer k\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).unwrap();
        let _ = stream.read(&mut [0; 1]);
    }

    /// A call that may not wait.
    fn call(&self, status: u16, key: &str, fields: &str) -> Response {
        self.get(&format!("/api/{status}"), key, &format!("Tollgate-Max-Wait: 0s\r\n{fields}"))
    }

    pub(crate) fn get(&self, path: &str, key: &str, fields: &str) -> Response {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(80))).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\n{fields}\r\n",
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

/// Two APIs behind one host and credential: a freeze of one stops it in both proxies, and the other goes on. Once it
/// stopped all APIs behind that host.
#[test]
fn a_freeze_is_of_one_provider() {
    let (redis, folder, upstream) = (Redis::start(&[]), Folder::new("outbound-apart"), Upstream::start());
    let url = format!("url: 'http://{}/give'", upstream.address);
    let providers = format!("{url}}}, frozen: {{{url}");
    let open = "limits: [{name: open, rate: 1000/s}]";
    let [one, other] = [(); 2].map(|()| Proxy::before(&providers, open, &redis.url(), &folder));
    let call = |proxy: &Proxy, path: &str| proxy.get(path, "k", "Tollgate-Max-Wait: 0s\r\n").status;
    one.get("/frozen/429", "k", "Tollgate-Max-Wait: 0s\r\nGive-Retry-After: 80000\r\n");
    until("the freeze is known to both", || (call(&other, "/frozen/200") == 429).then_some(()));
    assert_eq!([&one, &other].map(|proxy| call(proxy, "/api/200")), [200; 2]);
    assert_eq!(call(&one, "/frozen/200"), 429);
}

/// Clients of two proxies that give up after half a second, and call again, get what a shared leaky bucket admits. Once
/// they used up its slots without a call: 6 of 100 left.
#[test]
#[allow(clippy::disallowed_methods, reason = "the test measures a real rate")]
fn clients_that_give_up_waste_no_slots() {
    const MEASURED: Duration = Duration::from_secs(4);
    let policy = format!(
        "limits: [{{name: shape, by: [api_key], algorithm: leaky-bucket, rate: {PACE}/s, queue: 100, on_store_failure: deny}}]"
    );
    let (redis, folder, upstream) = (Redis::start(&[]), Folder::new("outbound-give-up"), Upstream::start());
    let proxies = [(); 2].map(|()| Proxy::with(&policy, &redis.url(), &folder, &upstream));
    for proxy in &proxies {
        until("the proxy counts in the store", || (proxy.call(200, "first", "").status == 200).then_some(()));
    }
    upstream.seen();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..40 {
            let proxy = &proxies[client % 2];
            scope.spawn(move || {
                while begin.elapsed() < MEASURED {
                    proxy.call_and_give_up(Duration::from_millis(500));
                }
            });
        }
    });
    let sent = u128::try_from(upstream.seen().len()).unwrap();
    let allowed = begin.elapsed().as_millis() * u128::from(PACE) / 1_000 + 1;
    // Slots are a pace apart. A call leaves as much before its slot as the store took to answer.
    assert!(sent <= allowed + allowed / 20 + 2, "{sent} of {allowed}");
    assert!(sent >= allowed / 2, "{sent} of {allowed}");
}
