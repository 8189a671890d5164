//! Limits that do not apply: a check that meets no limit says so on every way in, an undeclared attribute is reported, and `explain`
//! lists every limit with its reason.

use crate::admin::server;
use crate::admin_verbs::operate;
use crate::program::{Server, stderr, stdout};
use crate::wire::request;

const POLICY: &str = "
attributes: [api_key, ip, path]
limits:
  - {name: per-key, by: [api_key], rate: 5/h}
  - {name: search, rate: 9/h, when: {path: '/search/{term}', ip: {not: 10.0.0.0/8}}}
";

fn metric(server: &Server, name: &str) -> u64 {
    let page = String::from_utf8(server.send("GET", "/metrics", "").body).unwrap();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap()
}

fn said(server: &Server, arguments: &[&str]) -> (Option<i32>, String) {
    let output = operate(server, arguments).output().unwrap();
    (output.status.code(), stdout(&output) + &stderr(&output))
}

/// A typing mistake in an attribute used to look like a request within its limits.
#[test]
fn a_check_without_a_limit_says_so() {
    let mut server = server(POLICY);
    let limited = server.check(r#"{"attributes":{"api_key":"k"}}"#);
    assert_eq!((&limited["allowed"], &limited["no_limit_applies"]), (&true.into(), &serde_json::Value::Null));
    assert_eq!(metric(&server, "tollgate_decisions_without_limit_total{wire=\"http\"}"), 0);
    let answer = server.check(r#"{"attributes":{"apikey":"k","ip":"192.0.2.1"}}"#);
    assert_eq!(answer["allowed"], true);
    assert_eq!(answer["no_limit_applies"], true, "{answer}");
    assert_eq!(answer["reason"], "no limit applies to these attributes", "{answer}");
    assert_eq!(metric(&server, "tollgate_decisions_without_limit_total{wire=\"http\"}"), 1);
    assert_eq!(metric(&server, "tollgate_undeclared_attributes_total{wire=\"http\"}"), 1);
    server.await_log("does not declare in `attributes`");
    // A proxy hears it in a header. What Tollgate reads by itself, such as the host, no caller has named.
    let asked = |target: &str| {
        let headers = format!("X-Forwarded-Uri: {target}\r\n");
        server.exchange(&request("GET", "/v1/authz", &headers, b""))
    };
    let authz = asked("/");
    assert_eq!((authz.status, authz.header("tollgate-limits")), (200, Some("none")));
    let authz = asked("/search/a");
    assert_eq!((authz.status, authz.header("tollgate-limits")), (200, None));
    assert_eq!(metric(&server, "tollgate_decisions_without_limit_total{wire=\"authz\"}"), 1);
    assert_eq!(metric(&server, "tollgate_undeclared_attributes_total{wire=\"authz\"}"), 0);
}

/// `explain` lists every limit, and `percent` is refused where there is one key.
#[test]
fn every_limit_is_explained() {
    let server = server(POLICY);
    let (status, text) = said(&server, &["explain", "path=/search", "ip=10.1.2.3"]);
    assert_eq!(status, Some(0), "{text}");
    for wanted in [
        "such a request passes now: no limit applies to it, so it is not counted",
        "per-key: does not apply",
        "the request has no api_key",
        "search: does not apply",
        "path is \"/search\", and it applies to /search/{term} only",
        "ip is \"10.1.2.3\", and it applies to all but 10.0.0.0/8",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is not in {text}");
    }
    let (status, text) = said(&server, &["percent", "search", "5"]);
    assert!(status != Some(0) && text.contains("has no `by`, so it has one key only"), "{text}");
    let (status, text) = said(&server, &["block", "ip=2001:db8::7", "--for", "10m"]);
    assert!(status == Some(0) && text.contains("ip=2001:db8::/64 is blocked until"), "{text}");
    let blocked = server.check(r#"{"attributes":{"ip":"2001:db8::8"}}"#);
    assert_eq!(blocked["allowed"], false, "{blocked}");
}
