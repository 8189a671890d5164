//! The recipes that hash clients to Tollgate nodes, with the real nginx, HAProxy and Envoy: with three nodes that share nothing each key
//! has exactly its limit, and a node that is lost gives its own keys a new one, and no others.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::gateway_upstream::{Gateway, Upstream, until};
use crate::proxy::{Folder, Proxy, free_port};

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 3/h}, {name: per-ip, when: {path: /anonymous}, by: [ip], rate: 3/h}]";
const KEYS: usize = 30;

/// How a proxy learns who its client is.
#[derive(Clone, Copy, PartialEq)]
enum Clients {
    /// As the recipe has it.
    Peers,
    /// From the first line of a connection, so that a test can be anybody.
    ProxyProtocol,
}

/// A recipe with a test's own addresses, which stand behind `before`.
fn adapted(
    folder: &Folder,
    recipe: &str,
    before: &str,
    (nodes, port): (&[Gateway], u16),
    (clients, old, new): (Clients, &str, &str),
) -> String {
    let ports = nodes.iter().map(|node| node.address.port()).chain([port]);
    let named = [8_001, 8_002, 8_003, 8_000].map(|port| format!("{before}{port}"));
    let replaced: Vec<(&str, String)> =
        named.iter().zip(ports).map(|(named, port)| (named.as_str(), format!("{before}{port}"))).collect();
    let file = folder.adapt(recipe, "recipe.yaml", &replaced);
    if clients == Clients::ProxyProtocol {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.matches(old).count(), 1, "{old}");
        std::fs::write(&file, text.replace(old, new)).unwrap();
    }
    file.display().to_string()
}

type Start = fn(&[Gateway], Clients) -> (Proxy, Folder);

fn nginx(nodes: &[Gateway], clients: Clients) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("sticky-nginx"), free_port());
    let (old, new) = (
        format!("listen 127.0.0.1:{port};"),
        format!(
            "listen 127.0.0.1:{port} proxy_protocol; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;"
        ),
    );
    let recipe =
        adapted(&folder, "deploy/nginx/sticky.conf", "127.0.0.1:", (nodes, port), (clients, &old, &new));
    (Proxy::nginx(&folder, port, &format!("include {recipe};")), folder)
}

fn haproxy(nodes: &[Gateway], clients: Clients) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("sticky-haproxy"), free_port());
    let (old, new) = (format!("bind 127.0.0.1:{port}"), format!("bind 127.0.0.1:{port} accept-proxy"));
    let recipe =
        adapted(&folder, "deploy/haproxy/sticky.cfg", "127.0.0.1:", (nodes, port), (clients, &old, &new));
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f", &recipe]).stderr(Stdio::null());
    (Proxy::start(command, port), folder)
}

fn envoy(nodes: &[Gateway], clients: Clients) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("sticky-envoy"), free_port());
    let filter = "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol";
    let old = "      filter_chains:";
    let new = format!(
        "      listener_filters: [{{ name: proxy_protocol, typed_config: {{ \"@type\": {filter} }} }}]\n      filter_chains:"
    );
    let recipe =
        adapted(&folder, "deploy/envoy/sticky.yaml", "port_value: ", (nodes, port), (clients, old, &new));
    let mut command = Command::new(crate::envoy::program());
    command
        .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "off", "-c", &recipe])
        .stderr(Stdio::null());
    (Proxy::start(command, port), folder)
}

/// How many of five requests pass.
fn passed(proxy: &Proxy, path: &str, field: &str) -> usize {
    (0..5)
        .filter(|_| {
            let answer = proxy.get(path, field);
            let body = String::from_utf8_lossy(&answer.body);
            match answer.status {
                200 => true,
                429 => false,
                other => panic!("{field}{path}: {other}, {body}"),
            }
        })
        .count()
}

/// The ways in which Tollgate finds one key, the plain one first.
fn spellings(key: &str) -> [String; 9] {
    [
        format!("X-API-Key: {key}\r\n"),
        format!("x-api-key:   {key} \r\n"),
        format!("Authorization: Bearer {key}\r\n"),
        format!("Authorization: BEARER {key}\r\n"),
        format!("authorization: bEaReR   {key}\r\n"),
        format!("X-API-Key:\r\nAuthorization: Bearer {key}\r\n"),
        format!("X-API-Key:  \r\nAuthorization: bearer {key}\r\n"),
        format!("X-API-Key: {key}\r\nAuthorization: Bearer {key}\r\n"),
        format!("X-API-Key: {key}\r\nAuthorization: Basic {key}\r\n"),
    ]
}

/// A value that is no credential, so that the address counts.
const NONE: [&str; 6] = [
    "Authorization: Basic 1\r\n",
    "Authorization: Basic 2\r\n",
    "Authorization: Basic 3\r\n",
    "Authorization: Bearer\r\n",
    "X-API-Key:\r\n",
    "X-Tollgate-Key: 1\r\nX-Tollgate-Address: 1\r\n",
];

fn three(upstream: &Upstream) -> Vec<Gateway> {
    let address = format!("http://{}", upstream.address);
    let arguments = ["--upstream", &address, "--trusted-proxy", "127.0.0.0/8"];
    (0..3).map(|_| Gateway::with(&arguments, POLICY)).collect()
}

/// A network is one client, whichever of its addresses it comes from, and whatever it says of itself.
fn networks(start: Start) {
    let upstream = Upstream::start();
    let nodes = three(&upstream);
    let (proxy, _folder) = start(&nodes, Clients::ProxyProtocol);
    let status = |source: &str, field: &str| {
        let (family, destination) =
            if source.contains(':') { ("TCP6", "::1") } else { ("TCP4", "127.0.0.1") };
        let line = format!("PROXY {family} {source} {destination} 4711 80\r\n");
        let request = format!("GET /anonymous HTTP/1.1\r\nHost: a.test\r\n{field}Connection: close\r\n\r\n");
        proxy.send(&format!("{line}{request}")).status
    };
    // A proxy that has not found its nodes yet says 503.
    until(|| status("192.0.2.1", "") != 503);
    for number in 0..6 {
        let hosts = ["::1", "::2", ":1:2:3:4", ":ffff::9", ":5::", "::a:b"];
        let sources = hosts.map(|host| format!("2001:db8:1:{number}{host}"));
        let passed = sources.iter().chain(&sources).filter(|source| status(source, "") == 200).count();
        assert_eq!(passed, 3, "network {number}");
    }
    // An IPv4 address is one client, however it came to be one of IPv6: by a tunnel, which has 65,536 networks, a translator, or a socket.
    for number in 16..22 {
        let tunnelled =
            ["1::1", "2::1", "3::7", "ffff:1::"].map(|rest| format!("2002:cb00:71{number:x}:{rest}"));
        let others = ["64:ff9b::", "::ffff:", ""].map(|before| format!("{before}203.0.113.{number}"));
        let sources: Vec<String> = tunnelled.into_iter().chain(others).collect();
        let passed = sources.iter().chain(&sources).filter(|source| status(source, "") == 200).count();
        assert_eq!(passed, 3, "203.0.113.{number}");
    }
    for number in 0..6 {
        let source = format!("198.51.100.{number}");
        let passed = NONE.iter().filter(|field| status(&source, field) == 200).count();
        assert_eq!(passed, 3, "{source}");
    }
}

fn exact(start: Start) {
    let upstream = Upstream::start();
    let mut nodes = three(&upstream);
    let (proxy, _folder) = start(&nodes, Clients::Peers);
    // A proxy that has not found its nodes yet says 503.
    until(|| proxy.get("/", "").status == 200);
    let key = |number: usize| format!("X-API-Key: key-{number}\r\n");
    let all = |proxy: &Proxy| (0..KEYS).map(|number| passed(proxy, "/x", &key(number))).collect::<Vec<_>>();
    assert_eq!(all(&proxy), [3; KEYS], "each key has its limit, and no more");
    assert_eq!(all(&proxy), [0; KEYS]);
    // The same key in another header is the same, and so is an address without any; what a client says of itself changes nothing.
    for number in 0..6 {
        for field in spellings(&format!("key-{number}")) {
            assert_eq!(passed(&proxy, "/x", &field), 0, "{field}");
        }
    }
    assert_eq!(passed(&proxy, "/anonymous", "X-Forwarded-For: 203.0.113.7\r\n"), 3);
    assert_eq!(
        passed(&proxy, "/anonymous", "X-Forwarded-For: 203.0.113.8\r\nForwarded: for=203.0.113.9\r\n"),
        0
    );
    let shares: Vec<u64> = nodes
        .iter()
        .map(|node| node.metric("tollgate_decisions_total{outcome=\"allow\"", "gateway"))
        .collect();
    assert!(shares.iter().all(|share| *share >= 9), "each node has keys: {shares:?}");
    // A node is lost.
    drop(nodes.remove(1));
    let is_served =
        |number| matches!(proxy.get("/", &format!("X-API-Key: probe-{number}\r\n")).status, 200 | 429);
    // The health checks have noticed when all is well for longer than they take.
    let mut rounds = 0;
    until(|| {
        tollgate_testkit::rest(Duration::from_millis(200));
        rounds = if (0..40).all(is_served) { rounds + 1 } else { 0 };
        rounds == 15
    });
    let after = all(&proxy);
    assert!(after.iter().all(|passed| matches!(passed, 0 | 3)), "a key begins anew, or goes on: {after:?}");
    let moved = after.iter().filter(|passed| **passed == 3).count();
    assert!((3..=KEYS * 6 / 10).contains(&moved), "only the keys of one node begin anew: {moved}");
    assert_eq!(all(&proxy), [0; KEYS], "and they are exact there");
}

#[test]
fn memory_is_exact_behind_nginx() {
    exact(nginx);
}

#[test]
fn networks_are_one_client_behind_nginx() {
    networks(nginx);
}

#[test]
fn memory_is_exact_behind_haproxy() {
    exact(haproxy);
}

#[test]
fn networks_are_one_client_behind_haproxy() {
    networks(haproxy);
}

#[test]
fn memory_is_exact_behind_envoy() {
    exact(envoy);
}

#[test]
fn networks_are_one_client_behind_envoy() {
    networks(envoy);
}
