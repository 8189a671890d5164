//! Limits that do not apply: a check that meets no limit says so on every way in, an undeclared attribute is reported, and `explain`
//! lists every limit with its reason.

use envoy_types::pb::google::protobuf::value::Kind;

use crate::admin::server;
use crate::admin_verbs::operate;
use crate::gateway_upstream::{Gateway, Upstream};
use crate::program::{Server, stderr, stdout};
use crate::raw_http::request;
use crate::rlqs::Quotas;
use crate::rls::{self, Client};

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

fn printed(server: &Server, arguments: &[&str]) -> (Option<i32>, String) {
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

/// The story: `{"IP": …}` passed a limit by `ip`, and nothing said why. The answer says what was probably meant, also where
/// another limit applies.
#[test]
fn an_attribute_in_another_case_has_a_hint() {
    let server = Server::start(
        "limits: [{name: per-ip, by: [ip], rate: 9/s}, {name: vip, by: [Tier, ip], rate: 9/s}]",
    );
    let hint = |body: &str| server.check(body)["hint"].as_str().unwrap_or_default().to_owned();
    let (ip, tier) = ("no limit reads IP; did you mean ip?", "no limit reads tier; did you mean Tier?");
    for (attributes, expected) in [
        (r#"{"IP":"192.0.2.1"}"#, ip),
        (r#"{"IP":"192.0.2.1","tier":"a"}"#, ip),
        (r#"{"tier":"a"}"#, tier),
        (r#"{"ip":"192.0.2.1"}"#, ""),
        (r#"{"ip":"192.0.2.1","IP":"x"}"#, ""),
        (r#"{"ipp":"192.0.2.1"}"#, ""),
    ] {
        assert_eq!(hint(&format!(r#"{{"attributes":{attributes}}}"#)), expected, "{attributes}");
    }
}

/// The wire's number of requests without a limit.
fn without_limit(server: &Server, wire: &str) -> u64 {
    metric(server, &format!("tollgate_decisions_without_limit_total{{wire=\"{wire}\"}}"))
}

/// Envoy heard "OK" alike for a request within its limits and for one that no limit is about, so a typing mistake in a descriptor
/// showed nowhere. A request of another domain was not even counted.
#[test]
fn envoy_hears_that_no_limit_applies() {
    let server = server("domain: api\nlimits: [{name: per-key, by: [api_key], rate: 5/h}]");
    let client = Client::new(server.grpc.unwrap());
    let reported = |domain: &str, descriptors: &str| {
        let answer = client.ask(rls::question(domain, 0, descriptors)).unwrap();
        assert!(rls::shown(&answer).starts_with("OK"), "{answer:?}");
        let fields = answer.dynamic_metadata.map(|metadata| metadata.fields).unwrap_or_default();
        fields.get("no_limit_applies").and_then(|value| value.kind.clone())
    };
    assert_eq!(reported("api", "api_key=a"), None);
    // A limit that a descriptor brings along is one.
    assert_eq!(reported("api", "user=a @9/HOUR"), None);
    assert_eq!(without_limit(&server, "rls"), 0);
    for (domain, descriptors) in [("api", "apikey=a"), ("api", "x=1 | y=2"), ("elsewhere", "api_key=a")] {
        assert_eq!(reported(domain, descriptors), Some(Kind::BoolValue(true)), "{domain}: {descriptors}");
    }
    assert_eq!(without_limit(&server, "rls"), 3);
    let json = r#"{"domain":"api","descriptors":[{"entries":[{"key":"apikey","value":"a"}]}]}"#;
    let answer = String::from_utf8(server.send("POST", "/json", json).body).unwrap();
    assert!(answer.contains(r#""dynamicMetadata":{"no_limit_applies":true}"#), "{answer}");
    assert_eq!(without_limit(&server, "rls"), 4);
    // A request that returns a permit does not ask to pass.
    assert_eq!(reported("elsewhere", "api_key=a -1"), None);
    assert_eq!(without_limit(&server, "rls"), 4);
}

/// Requests that an Envoy lets pass by itself, since no limit applies to their bucket, are counted from its reports.
#[test]
fn buckets_without_a_limit_are_counted() {
    let mut server = server("domain: api\nlimits: [{name: per-key, by: [api_key], rate: 500/s}]");
    let client = Client::new(server.grpc.unwrap());
    let mut quotas = Quotas::open(&client);
    quotas.report(&[("api_key", "a")], 4);
    assert_eq!(without_limit(&server, "rlqs"), 0);
    assert!(quotas.report(&[("apikey", "a")], 7).starts_with("ALLOW_ALL"));
    assert_eq!(without_limit(&server, "rlqs"), 7);
    server.await_log("no limit applies to a request with these attributes");
}

/// A gateway's clients are strangers, and hear nothing of which requests have no limit: the metric and the log do.
#[test]
fn the_gateway_counts_and_logs_unlimited_requests() {
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let mut gateway =
        Gateway::with(&["--upstream", &address], "limits: [{name: login, when: {path: /login}, rate: 5/h}]");
    assert_eq!(gateway.get("/login", "").status, 200);
    assert_eq!(without_limit(&gateway.server, "gateway"), 0);
    let answer = gateway.get("/lgoin", "");
    assert_eq!((answer.status, answer.header("tollgate-limits")), (200, None));
    assert_eq!(without_limit(&gateway.server, "gateway"), 1);
    gateway.server.await_log("no limit applies to a request with these attributes");
}

/// Files of other programs answer as those do, so the metric alone tells.
#[test]
fn compat_rules_count_requests_without_a_limit() {
    let envoy = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]";
    let server = Server::start(envoy);
    let ask = |key: &str| {
        let entries = format!(r#"[{{"key":"{key}","value":"a"}}]"#);
        let body = format!(r#"{{"domain":"d","descriptors":[{{"entries":{entries}}}]}}"#);
        String::from_utf8(server.send("POST", "/json", &body).body).unwrap()
    };
    assert!(ask("user").contains("limitRemaining"));
    assert_eq!(without_limit(&server, "rls"), 0);
    assert_eq!(ask("usr"), r#"{"overallCode":"OK","statuses":[{"code":"OK"}]}"#);
    assert_eq!(without_limit(&server, "rls"), 1);
    let limitador = "- {namespace: n, max_value: 3, seconds: 86400, conditions: [], variables: [\"descriptors[0]['user']\"]}";
    let server = Server::start(limitador);
    for (name, counted) in [("user", 0), ("usr", 1)] {
        let body = format!(r#"{{"namespace":"n","values":{{"{name}":"a"}},"delta":1}}"#);
        assert_eq!(server.send("POST", "/check_and_report", &body).status, 200);
        assert_eq!(without_limit(&server, "limitador"), counted, "{name}");
    }
}

/// `explain` lists every limit, and `percent` is refused where there is one key.
#[test]
fn every_limit_is_explained() {
    let server = server(POLICY);
    let (status, text) = printed(&server, &["explain", "path=/search", "ip=10.1.2.3"]);
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
    let (status, text) = printed(&server, &["percent", "search", "5"]);
    assert!(status != Some(0) && text.contains("has no `by`, so it has one key only"), "{text}");
    let (status, text) = printed(&server, &["block", "ip=2001:db8::7", "--for", "10m"]);
    assert!(status == Some(0) && text.contains("ip=2001:db8::/64 is blocked until"), "{text}");
    let blocked = server.check(r#"{"attributes":{"ip":"2001:db8::8"}}"#);
    assert_eq!(blocked["allowed"], false, "{blocked}");
}
