//! The recipes that hash clients to Tollgate nodes, with the real nginx, HAProxy and Envoy: with three nodes that share nothing each key
//! has exactly its limit, and a node that is lost gives its own keys a new one, and no others.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::gateway_upstream::{Gateway, Upstream, until};
use crate::proxy::{Folder, Proxy, free_port};

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 3/h}, {name: per-ip, when: {path: /anonymous}, by: [ip], rate: 3/h}]";
const KEYS: usize = 30;

/// A recipe with a test's own addresses, which stand behind `before`.
fn adapted(folder: &Folder, recipe: &str, before: &str, nodes: &[Gateway], port: u16) -> String {
    let ports = nodes.iter().map(|node| node.address.port()).chain([port]);
    let named = [8_001, 8_002, 8_003, 8_000].map(|port| format!("{before}{port}"));
    let replaced: Vec<(&str, String)> =
        named.iter().zip(ports).map(|(named, port)| (named.as_str(), format!("{before}{port}"))).collect();
    folder.adapt(recipe, "recipe.yaml", &replaced).display().to_string()
}

fn nginx(nodes: &[Gateway]) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("sticky-nginx"), free_port());
    let recipe = adapted(&folder, "deploy/nginx/sticky.conf", "127.0.0.1:", nodes, port);
    (Proxy::nginx(&folder, port, &format!("include {recipe};")), folder)
}

fn haproxy(nodes: &[Gateway]) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("sticky-haproxy"), free_port());
    let recipe = adapted(&folder, "deploy/haproxy/sticky.cfg", "127.0.0.1:", nodes, port);
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f", &recipe]).stderr(Stdio::null());
    (Proxy::start(command, port), folder)
}

fn envoy(nodes: &[Gateway]) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("sticky-envoy"), free_port());
    let recipe = adapted(&folder, "deploy/envoy/sticky.yaml", "port_value: ", nodes, port);
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

fn exact(start: impl Fn(&[Gateway]) -> (Proxy, Folder)) {
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let mut nodes: Vec<Gateway> = (0..3).map(|_| Gateway::with(&["--upstream", &address], POLICY)).collect();
    let (proxy, _folder) = start(&nodes);
    // A proxy that has not found its nodes yet says 503.
    until(|| proxy.get("/", "").status == 200);
    let key = |number: usize| format!("X-API-Key: key-{number}\r\n");
    let all = |proxy: &Proxy| (0..KEYS).map(|number| passed(proxy, "/x", &key(number))).collect::<Vec<_>>();
    assert_eq!(all(&proxy), [3; KEYS], "each key has its limit, and no more");
    assert_eq!(all(&proxy), [0; KEYS]);
    // The same key in another header is the same, and so is an address without any; what a client says of itself changes nothing.
    assert_eq!(passed(&proxy, "/x", "Authorization: Bearer key-1\r\n"), 0);
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
    // Whoever checks the nodes has noticed when all is well for longer than it takes to notice.
    let mut rounds = 0;
    until(|| {
        crate::scratch::rest(Duration::from_millis(200));
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
fn memory_is_exact_behind_haproxy() {
    exact(haproxy);
}

#[test]
fn memory_is_exact_behind_envoy() {
    exact(envoy);
}
