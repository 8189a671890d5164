//! Browsers that another site makes ask for decisions: refused as the admin interface refuses them, before anything is charged.

use crate::program::{SLOW_POLICY, Server, tollgate};
use crate::raw_http::Response;

const CHECK: &str = r#"{"attributes":{"api_key":"k"}}"#;
const ID: &str = "0123456789abcdef0123456789abcdef";

/// Asks as a browser does that was led to the server's own address.
fn ask(server: &Server, method: &str, path: &str, fields: &str) -> Response {
    // No type, as a page may send a body to another site without asking first.
    let body = if method == "POST" { CHECK } else { "" };
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n{fields}", server.address);
    server.exchange(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

/// Any page that an operator visits could use up anybody's quota at a server on loopback, by plain POSTs that a browser sends to any site.
/// Every path that decides, settles or shows counters now refuses them, and nothing is charged.
#[test]
fn pages_of_other_sites_are_refused_on_every_path() {
    let server = Server::start(SLOW_POLICY);
    let paths = [
        ("POST", "/v1/check".to_owned()),
        ("POST", "/v1/check/batch".to_owned()),
        ("POST", "/v1/reservations".to_owned()),
        ("POST", format!("/v1/reservations/{ID}/commit")),
        ("DELETE", format!("/v1/reservations/{ID}")),
        ("DELETE", format!("/v1/permits/{ID}")),
        ("POST", "/json".to_owned()),
        ("POST", "/check".to_owned()),
        ("POST", "/report".to_owned()),
        ("POST", "/check_and_report".to_owned()),
        ("GET", "/limits/api".to_owned()),
        ("GET", "/counters/api".to_owned()),
        ("GET", "/status".to_owned()),
        ("GET", "/metrics".to_owned()),
        ("GET", "/v1/openapi.json".to_owned()),
        ("GET", "/v1/authz".to_owned()),
        ("POST", "/v1/authz/nginx".to_owned()),
        ("OPTIONS", "/v1/check".to_owned()),
        ("OPTIONS", "/v1/authz".to_owned()),
        ("GET", "/unknown".to_owned()),
    ];
    let sites = [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
    ];
    for (method, path) in &paths {
        for site in sites {
            let refused = ask(&server, method, path, site);
            assert!(refused.problem(403).contains("another site"), "{method} {path} {site}");
            assert_eq!(refused.header("access-control-allow-origin"), None);
            assert_eq!(refused.json()["type"], "urn:tollgate:problem:cross-site");
        }
    }
    for probe in ["/healthz", "/readyz"] {
        assert_eq!(ask(&server, "GET", probe, sites[0]).status, 200, "{probe} charges nothing");
    }
    assert_eq!(server.check(CHECK)["limits"][0]["remaining"], 4, "nothing was charged before");
}

/// A page whose own name leads to this server (DNS rebinding) is of the same site for its browser. The server does not know the name.
/// Programs may call it by any name that no page has; so may its own pages by its own names.
#[test]
fn a_name_that_a_page_chose_is_refused_and_programs_are_not() {
    let server = Server::start_with(
        &["serve", "--http", "127.0.0.1:0", "--policy", "-", "--admin-host", "gate.example"],
        SLOW_POLICY,
    );
    let status = |fields: &str| {
        let body = format!("Content-Length: {}\r\n\r\n{CHECK}", CHECK.len());
        server.exchange(format!("POST /v1/check HTTP/1.1\r\n{fields}{body}").as_bytes()).status
    };
    assert_eq!(status("Host: evil.example\r\nOrigin: http://evil.example\r\n"), 421);
    assert_eq!(status("Host: evil.example\r\nSec-Fetch-Site: same-origin\r\n"), 421);
    assert_eq!(status("Host: tollgate:8080\r\n"), 200);
    assert_eq!(status("Host: gate.example\r\nOrigin: https://gate.example\r\n"), 200);
    let own = format!("Host: {0}\r\nOrigin: http://{0}\r\nSec-Fetch-Site: same-origin\r\n", server.address);
    assert_eq!(status(&own), 200);
}

/// A proxy that asks about a browser's request hands on that browser's fields, whatever site it comes from: it is the proxy that asks.
#[test]
fn a_proxy_may_ask_about_any_site() {
    let server = Server::start(SLOW_POLICY);
    let browser = "Origin: http://other.example\r\nSec-Fetch-Site: cross-site\r\n";
    let forwarded = format!("{browser}X-Forwarded-Uri: /x\r\nX-Forwarded-For: 203.0.113.7\r\n");
    assert_eq!(ask(&server, "GET", "/v1/authz", &forwarded).status, 200);
    let original = format!("{browser}X-Original-URI: /x\r\n");
    assert_eq!(ask(&server, "GET", "/v1/authz/nginx", &original).status, 200);
    ask(&server, "GET", "/v1/authz", browser).problem(403);
}

/// The story: browsers tell nothing of themselves when a page of `http://evil.example` sends a GET to its own name, and that name leads to
/// this machine by now: it read the metrics, and used up quotas at `/v1/authz`. Where no token and no certificate keeps it out, the
/// server goes by no name with a dot but its own.
#[test]
fn a_page_whose_name_leads_here_reads_nothing() {
    let named = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--admin-host", "gate.example"];
    let server = Server::start_with(&named, "limits: [{name: all, rate: 5/h}]");
    let status = |host: &str, path: &str, fields: &str| {
        server.exchange(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").as_bytes()).status
    };
    // A page may add what it likes to a request to its own name.
    let proxied = "X-Forwarded-Uri: /\r\nX-Forwarded-For: 192.0.2.1\r\n";
    for (path, fields) in [
        ("/metrics", ""),
        ("/v1/authz", ""),
        ("/v1/authz", proxied),
        ("/counters/api", ""),
        ("/v1/openapi.json", ""),
    ] {
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example."]
        {
            assert_eq!(status(host, path, fields), 421, "{host} {path}");
        }
    }
    let metrics = server.exchange(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(metrics.problem(421).contains("--admin-host NAME"));
    for host in
        ["localhost:1", "127.0.0.1", "[::1]", "gate.example", "tollgate", "app.localhost", "192.0.2.7"]
    {
        assert_eq!(status(host, "/metrics", ""), 200, "{host}");
    }
    assert_eq!(status("evil.example", "/healthz", ""), 200, "probes tell nothing");
    assert_eq!(server.exchange(b"GET /metrics HTTP/1.0\r\n\r\n").status, 200, "no browser speaks it");
    let left = server.check(r#"{"attributes":{}}"#);
    assert_eq!(left["limits"][0]["remaining"], 4, "nothing was charged before");
}

/// A token keeps every page out, so programs that bring it may call the server by any name.
#[test]
fn a_token_makes_names_unimportant() {
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-"]);
    command.env("TOLLGATE_AUTH_TOKEN", "0123456789abcdef");
    let server = Server::spawn(command, SLOW_POLICY);
    let ask = |fields: &str| {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: tollgate.example\r\n{fields}\r\n");
        server.exchange(head.as_bytes()).status
    };
    assert_eq!((ask("Authorization: Bearer 0123456789abcdef\r\n"), ask("")), (200, 401));
}
