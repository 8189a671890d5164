//! `/v1/authz`, asked as proxies ask it.

use crate::program::Server;
use crate::raw_http::{Response, request};

const POLICY: &str = "limits:
  - {name: per-ip, by: [ip], rate: 3/h}
  - {name: login, when: {method: POST, path: /login}, by: [ip], rate: 1/h}
  - {name: per-key, by: [api_key], rate: 2/h}
  - {name: whales, by: [whale], rate: 1/h, cost: size}
  - {name: in-flight, by: [worker], concurrency: 1, permit_ttl: 60s}
";

fn ask(server: &Server, suffix: &str, headers: &str) -> Response {
    server.exchange(&request("GET", &format!("/v1/authz{suffix}"), headers, b""))
}

/// Requests as Traefik and Caddy send them: each client has its own count, and a refusal is ready for the client.
#[test]
fn forwarded_requests_are_counted_by_client() {
    let server = Server::start(POLICY);
    let from = |ip: &str| {
        format!(
            "X-Forwarded-For: {ip}\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Host: api.test\r\nX-Forwarded-Uri: /x?y\r\n"
        )
    };
    for remaining in ["2", "1", "0"] {
        let allowed = ask(&server, "", &from("203.0.113.7"));
        assert_eq!((allowed.status, allowed.body.len()), (200, 0));
        assert_eq!(allowed.header("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(allowed.header("ratelimit-policy"), Some("\"per-ip\";q=3;w=3600"));
    }
    let denied = ask(&server, "", &from("1.2.3.4, 203.0.113.7"));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() > 1_000);
    assert_eq!(denied.json()["violated-policies"][0], "per-ip");
    assert_eq!(ask(&server, "", &from("203.0.113.8")).status, 200);
    // A client of plain text gets plain text, and one that asked for the head alone gets no body.
    let text = ask(&server, "", &format!("{}Accept: text/html\r\n", from("203.0.113.7")));
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    let head = request("HEAD", "/v1/authz", &from("203.0.113.7"), b"");
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, &head).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = String::new();
    std::io::Read::read_to_string(&mut stream, &mut all).unwrap();
    assert!(all.starts_with("HTTP/1.1 429") && all.ends_with("\r\n\r\n"), "{all}");
}

/// However the path is spelled, it is the path that the limit names.
#[test]
fn spellings_do_not_evade_a_limit() {
    let server = Server::start(POLICY);
    let login = |ip: &str, path: &str| {
        let headers =
            format!("X-Forwarded-For: {ip}\r\nX-Original-Method: POST\r\nX-Original-URI: {path}\r\n");
        ask(&server, "/nginx", &headers).status
    };
    for (last, path) in
        ["/login?x", "//login", "/./login", "/a/../login", "/%6cogin", "/%2e/login"].iter().enumerate()
    {
        let ip = format!("203.0.113.{last}");
        assert_eq!((login(&ip, "/login"), login(&ip, path)), (200, 403), "{path}");
    }
    assert_eq!(login("203.0.113.99", "/%2Flogin"), 403);
}

/// A method in small letters once passed a limit on `POST`, and the service behind the proxy served it as `POST`. So is a format suffix
/// another spelling of the path. A field that the service may read as the credential is refused, since only the proxy could drop it.
#[test]
fn spellings_of_methods_suffixes_and_fields() {
    let server = Server::start(POLICY);
    let held = |ip: &str, method: &str, path: &str, more: &str| {
        let line = format!("X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {path}\r\n");
        ask(&server, "", &format!("X-Forwarded-For: {ip}\r\n{line}{more}"))
    };
    for method in ["post", "Post", "pOST", "POST, GET"] {
        let refused = held("203.0.113.1", method, "/login", "");
        assert!(refused.problem(400).starts_with("method: "), "{method}");
        let nginx = format!("X-Original-Method: {method}\r\nX-Original-URI: /login\r\n");
        let refused = ask(&server, "/nginx", &nginx);
        assert_eq!((refused.status, refused.header("tollgate-status")), (403, Some("400")), "{method}");
    }
    assert_eq!(held("203.0.113.1", "PROPFIND", "/login", "").status, 200);
    let paths = ["/login.json", "/login%2ejson", "/login.", "/login/.json", "/LOGIN.Xml/", "/log%c4%b1n"];
    for (last, path) in (2..).zip(paths) {
        let ip = format!("203.0.113.{last}");
        assert_eq!(held(&ip, "POST", "/login", "").status, 200);
        assert_eq!(held(&ip, "POST", path, "").status, 429, "{path}");
    }
    for name in ["X_API_Key", "X_API-Key", "X.API.Key"] {
        let refused = held("203.0.113.9", "GET", "/", &format!("{name}: k\r\n"));
        assert!(refused.problem(400).contains("x-api-key"), "{name}");
    }
    assert_eq!(held("203.0.113.9", "GET", "/", "My_Field: k\r\n").status, 200);
    // A request that asks for another method passes a limit on that one, unless it is refused.
    for name in ["X-HTTP-Method-Override", "X_HTTP-Method_Override", "X-HTTP-Method"] {
        let refused = held("203.0.113.9", "POST", "/", &format!("{name}: DELETE\r\n"));
        assert!(refused.problem(400).contains("method_override: keep"), "{name}");
    }
    let refused = held("203.0.113.9", "POST", "/?_method=DELETE", "");
    assert!(refused.problem(400).starts_with("_method: it asks for another method"));
    assert_eq!(held("203.0.113.9", "GET", "/?_method=DELETE", "").status, 200);
}

/// `X-Forwarded-Uri: http://other.test/login` was taken for `/login` of the host that the proxy named. An absolute target is for that host,
/// or refused, as at the gateway.
#[test]
fn absolute_targets_are_for_the_host_of_the_proxy() {
    let server = Server::start(POLICY);
    let asked = |names: [&str; 2], suffix: &str, target: &str| {
        let [host, uri] = names;
        let headers = format!("X-Forwarded-For: 203.0.113.7\r\n{host}: app.test\r\n{uri}: {target}\r\n");
        ask(&server, suffix, &headers)
    };
    let forwarded = |target: &str| asked(["X-Forwarded-Host", "X-Forwarded-Uri"], "", target);
    let original = |target: &str| asked(["X-Original-Host", "X-Original-URI"], "/nginx", target);
    assert_eq!(
        (forwarded("http://app.test/x").status, original("https://APP.test:443/x").status),
        (200, 200)
    );
    for wrong in ["http://other.test/x", "http://user@app.test/x", "http://app.test:8443/x", "http:///x"] {
        assert!(forwarded(wrong).problem(400).starts_with("host: "), "{wrong}");
        let refused = original(wrong);
        assert_eq!((refused.status, refused.header("tollgate-status")), (403, Some("400")), "{wrong}");
    }
}

/// A proxy that knows only 401 and 403 is answered the meant status in a header, for every refusal there is.
#[test]
fn refusals_in_the_proxys_words() {
    let server = Server::start(POLICY);
    let key = "X-API-Key: secret-1\r\n";
    let nginx = "/nginx";
    for _ in 0..2 {
        let allowed = ask(&server, nginx, key);
        assert_eq!((allowed.status, allowed.header("tollgate-status")), (200, Some("200")));
    }
    let denied = ask(&server, nginx, "Authorization: Bearer secret-1\r\n");
    assert_eq!((denied.status, denied.header("tollgate-status")), (403, Some("429")));
    assert!(denied.header("retry-after").is_some());
    assert_eq!(denied.header("tollgate-problem"), std::str::from_utf8(&denied.body).ok());
    let wrong = ask(&server, nginx, "X-Original-URI: /%00\r\n");
    assert_eq!((wrong.status, wrong.header("tollgate-status")), (403, Some("400")));
    assert_eq!(wrong.header("tollgate-problem"), std::str::from_utf8(&wrong.body).ok());
    // Elsewhere every status is answered as it is. The query may be the client's own and means nothing.
    let plain = ask(&server, "?deny=403&headers=original", &format!("{key}X-Original-URI: /%00\r\n"));
    let answered = (plain.header("tollgate-status"), plain.header("tollgate-problem"));
    assert_eq!((plain.status, answered), (429, (None, None)));
}

/// nginx reads only the head of an answer. So the body of a refusal is there as well.
#[test]
fn the_head_has_the_body_of_a_refusal() {
    let policy = "limits:
  - {name: exports, when: {path: /export}, by: [ip], rate: deny}
  - {name: dear, when: {path: /dear}, by: [ip], rate: 1/h, cost: size}
";
    let server = Server::start(policy);
    let answered = |headers: &str| {
        let answer = ask(&server, "/nginx", headers);
        let problem = answer.header("tollgate-problem").map(str::to_owned);
        (answer.header("tollgate-status").map(str::to_owned), problem, answer)
    };
    let (status, problem, forbidden) = answered("X-Original-URI: /export\r\n");
    assert_eq!((status.as_deref(), forbidden.header("retry-after")), (Some("403"), None));
    let problem: serde_json::Value = serde_json::from_str(&problem.unwrap()).unwrap();
    assert_eq!((&problem["cause"], &problem["reason"]), (&"exports".into(), &"denied-by-policy".into()));
    let (status, problem, costly) = answered("X-Original-URI: /dear\r\n");
    assert_eq!(
        (status.as_deref(), problem.as_deref()),
        (Some("400"), std::str::from_utf8(&costly.body).ok())
    );
    // A client of plain text gets no header with text of several lines.
    assert_eq!(answered("X-Original-URI: /export\r\nAccept: text/html\r\n").1, None);
}

/// With `anonymous: retry-after` a caller without a credential learns when to come back and nothing else; one with a credential sees
/// its own limits. The platform's limits are shown to neither.
#[test]
fn anonymous_callers_can_get_fewer_headers() {
    let folder = crate::proxy::Folder::new("authz-anonymous");
    let config = folder.write("config.yaml", "headers: {anonymous: retry-after}").display().to_string();
    let policy = "limits:
  - {name: per-ip, by: [ip], rate: 3/h}
  - {name: platform, rate: 1000/h}
";
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--config", &config];
    let server = Server::start_with(&arguments, policy);
    let anonymous = ask(&server, "", "X-Forwarded-For: 203.0.113.7\r\n");
    assert_eq!((anonymous.status, anonymous.header("ratelimit-policy")), (200, None));
    let known = ask(&server, "", "X-Forwarded-For: 203.0.113.7\r\nX-API-Key: k\r\n");
    assert_eq!(known.header("ratelimit-policy"), Some("\"per-ip\";q=3;w=3600"));
    assert_eq!(known.header("x-ratelimit-remaining"), Some("1"));
}

/// A peer that is not trusted is counted as itself, whatever it says.
#[test]
fn strangers_cannot_forge() {
    let arguments =
        ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--trusted-proxy", "10.0.0.0/8,192.0.2.1"];
    let mut server = Server::start_with(&arguments, POLICY);
    for last in 1..=3 {
        let allowed = ask(&server, "", &format!("X-Forwarded-For: 203.0.113.{last}\r\n"));
        let left = (3 - last).to_string();
        assert_eq!((allowed.status, allowed.header("x-ratelimit-remaining")), (200, Some(left.as_str())));
    }
    let denied = ask(&server, "", "X-Forwarded-For: 203.0.113.9\r\n");
    assert_eq!((denied.status, denied.header("x-ratelimit-remaining")), (429, Some("0")));
    assert!(denied.header("retry-after").is_some());
    server.await_log("no trusted proxy");
}

/// The config maps attributes, and a key is hashed as `sha256sum` does it, so that a policy may name it.
#[test]
fn a_config_maps_attributes() {
    let folder = tollgate_testkit::folder("authz");
    let config = folder.join("config.yaml");
    let text =
        "attributes:\n  tenant: {header: X-Tenant}\n  route: {path: '/users/{id}'}\n  worker: {query: w}\n";
    std::fs::write(&config, text).unwrap();
    let policy = "limits:
  - {name: tenants, by: [tenant], rate: 1/h}
  - {name: routes, by: [route], rate: 1/h}
  - {name: in-flight, by: [worker], concurrency: 1, permit_ttl: 60s}
  - {name: keys, by: [api_key], rate: 1/h, overrides: {'sha256:ba7816bf8f01cfea414140de5dae2223': 5/h}}
";
    let config = config.to_str().unwrap();
    let server =
        Server::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", "-", "--config", config], policy);
    std::fs::remove_dir_all(&folder).unwrap();
    let status = |headers: &str| ask(&server, "", headers).status;
    assert_eq!(
        (status("X-Tenant: acme\r\n"), status("X-Tenant: acme\r\n"), status("X-Tenant: other\r\n")),
        (200, 429, 200)
    );
    let users =
        ["/users/1", "/users/2", "/users/2/x"].map(|path| status(&format!("X-Forwarded-Uri: {path}\r\n")));
    assert_eq!(users, [200, 429, 200]);
    assert_eq!(ask(&server, "", "X-API-Key: abc\r\n").header("x-ratelimit-limit"), Some("5"));
    let held = ask(&server, "", "X-Forwarded-Uri: /?w=1\r\n");
    let permit = held.header("tollgate-permit").unwrap();
    assert_eq!(status("X-Forwarded-Uri: /?w=1\r\n"), 429);
    assert_eq!(server.send("DELETE", &format!("/v1/permits/{permit}"), "").status, 204);
    assert_eq!(status("X-Forwarded-Uri: /?w=1\r\n"), 200);
}

/// A shaping limit holds the answer until the request's turn has come.
#[test]
fn a_shaped_request_is_held() {
    let policy = "limits: [{name: shape, by: [ip], algorithm: leaky-bucket, rate: 5/s, queue: 3}]";
    let server = Server::start(policy);
    #[allow(clippy::disallowed_methods, reason = "the test measures a real wait")]
    let start = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(ask(&server, "", "").status, 200);
    }
    let waited = start.elapsed().as_millis();
    assert!(waited >= 390, "{waited} ms");
}

/// An answer was held for as long as the queue of a shaping limit, 20 s here, and a proxy that opens on silence let the request pass after
/// its time-out. A turn that is further away than half a second is refused at once, with the true time, and takes no slot.
#[test]
fn a_shaped_request_is_not_held_longer_than_proxies_wait() {
    let policy = "limits: [{name: shape, by: [ip], algorithm: leaky-bucket, rate: 1/s, burst: 1, queue: 20}]";
    let server = Server::start(policy);
    #[allow(clippy::disallowed_methods, reason = "the test measures a real wait")]
    let start = std::time::Instant::now();
    assert_eq!(ask(&server, "", "").status, 200);
    let refused = ask(&server, "", "");
    let (status, took) = (refused.status, start.elapsed());
    // A machine so busy that half a second passed between the two has admitted the second.
    assert!(status == 429 || status == 200 && took.as_millis() >= 500, "{status} after {took:?}");
    if status == 429 {
        let retry_after = refused.json()["retry-after-ms"].as_u64().unwrap();
        assert!((1..=500).contains(&retry_after), "{retry_after}");
    }
    let metrics = String::from_utf8(server.send("GET", "/metrics", "").body).unwrap();
    assert!(metrics.contains(r#"tollgate_decisions_total{outcome="wait",wire="authz"} 0"#) || status == 200);
    // Requests that come at once all look before the first of them takes its slot; each is answered before a proxy gives up.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let each = || {
            let server = &server;
            scope.spawn(move || {
                #[allow(clippy::disallowed_methods, reason = "the test measures a real wait")]
                let start = std::time::Instant::now();
                (ask(server, "", "X-Forwarded-For: 203.0.113.9\r\n").status, start.elapsed())
            })
        };
        let asked: Vec<_> = (0..8).map(|_| each()).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert!(answers.iter().any(|(status, _)| *status == 429), "{answers:?}");
    assert!(answers.iter().all(|(_, took)| took.as_millis() < 2_000), "{answers:?}");
}
