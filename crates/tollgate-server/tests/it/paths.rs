//! One comparison of paths on every way in: a spelling that the gateway takes for `/login` passes a limit on `/login` nowhere.

use serde_json::{Value, json};
use tollgate_testkit::identity::gateway;

use crate::gateway_upstream::{Gateway, Upstream};
use crate::proxy::Folder;
use crate::rls::{Client, question};

const POLICY: &str = "limits: [{name: login, when: {path: /login}, rate: deny}]";

/// Whether each way in lets a path pass, by its name.
fn passes(gateway: &Gateway, rls: &Client, path: &str) -> Vec<(&'static str, bool)> {
    let server = &gateway.server;
    let attributes = json!({"attributes": {"path": path}}).to_string();
    let descriptors = json!({"domain": "d", "descriptors": [{"entries": [{"key": "path", "value": path}]}]});
    let asked = format!("GET /v1/authz HTTP/1.1\r\nHost: a\r\nX-Forwarded-Uri: {path}\r\n\r\n");
    let batch: Value = server.send("POST", "/v1/check/batch", &format!("[{attributes}]")).json();
    let resp = server.resp_exchange(format!("HELLO 3\r\nTG.CHECK path {path}\r\nQUIT\r\n").as_bytes());
    vec![
        ("gateway", gateway.get(path, "").status == 200),
        ("authz", server.exchange(asked.as_bytes()).status == 200),
        ("check", server.check(&attributes)["allowed"] == true),
        ("batch", batch[0]["allowed"] == true),
        ("json", server.send("POST", "/json", &descriptors.to_string()).status == 200),
        ("rls", rls.ask(question("d", 1, &format!("path={path}"))).unwrap().overall_code == 1),
        ("resp", !resp.contains("deny")),
    ]
}

/// Regression: `/LOGIN`, sent by Envoy, a Redis client or a program, passed a limit on `/login` that the gateway applied.
#[test]
fn no_protocol_lets_a_spelling_of_a_path_pass() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, POLICY, &[]);
    let rls = Client::new(gateway.server.grpc.unwrap());
    for path in [
        "/login",
        "/LOGIN",
        "/login/",
        "//login",
        "/a/../login",
        "/%6cogin",
        "/login;x=1",
        "/login.json",
        "/login?next=x",
        "/(S(x))/login",
        "/log%C4%B1n",
        "/x/..;/login",
        "/a%2f..%2flogin",
    ] {
        for (way, passed) in passes(&gateway, &rls, path) {
            assert!(!passed, "{path} passes {way}");
        }
    }
    for path in ["/logins", "/login/x", "/x/login", "/"] {
        for (way, passed) in passes(&gateway, &rls, path) {
            assert!(passed, "{path} is refused by {way}");
        }
    }
}

/// The config's `path_match: exact` holds on every way in.
#[test]
fn exact_paths_are_exact_on_every_protocol() {
    let folder = Folder::new("exact-paths-everywhere");
    let config = folder.write("config.yaml", "path_match: exact\n").display().to_string();
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, POLICY, &["--config", &config]);
    let rls = Client::new(gateway.server.grpc.unwrap());
    for (path, is_met) in [("/login", true), ("//login", true), ("/LOGIN", false), ("/login.json", false)] {
        for (way, passed) in passes(&gateway, &rls, path) {
            assert_eq!(passed, !is_met, "{path} {way}");
        }
    }
}
