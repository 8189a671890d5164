//! Admission to the admin interface: hosts, sites, tokens and roles, each as raw bytes on the wire.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::program::{Server, run, stderr, tollgate};
use crate::raw_http::request;

pub(crate) use tollgate_testkit::Scratch;
pub(crate) use tollgate_testkit::admin::{POLICY, TOKEN, ask, server};

const TOKENS: &str = "# role name token\nviewer vera viewer-token-0123456789\noperator otto operator-token-0123456789\nadmin ada admin-token-0123456789\n";

/// Each verb by each role: a viewer looks, an operator changes one thing, an admin all of them; without a token no call succeeds.
#[test]
fn roles() {
    let scratch = Scratch::new();
    let tokens = scratch.file("tokens", TOKENS);
    let server = Server::start_with(
        &["serve", "--http", "127.0.0.1:0", "--policy", "-", "--admin-tokens", &tokens],
        POLICY,
    );
    assert!(server.banner.contains("with 3 tokens of "), "{}", server.banner);
    assert!(!server.banner.contains("token-0123456789"), "{}", server.banner);
    let key = r#"{"attributes":{"api_key":"k"}}"#;
    let block = r#"{"attributes":{"api_key":"k"},"for":"1s"}"#;
    let diff = "/admin/v1/policy/diff/0123456789abcdef0123456789abcdef";
    // The least role: 0 viewer, 1 operator, 2 admin. The status is that of a role that may.
    let verbs = [
        ("GET", "/admin/v1/limits", "", 0, 200),
        ("POST", "/admin/v1/get", key, 0, 200),
        ("POST", "/admin/v1/explain", key, 0, 200),
        ("GET", "/admin/v1/top?limit=5", "", 0, 200),
        ("GET", diff, "", 0, 404),
        // There are no providers here.
        ("GET", "/admin/v1/outbound", "", 0, 404),
        ("POST", "/admin/v1/outbound/thaw", r#"{"provider":"x"}"#, 1, 404),
        ("POST", "/admin/v1/reset", key, 1, 200),
        ("POST", "/admin/v1/block", block, 1, 200),
        ("POST", "/admin/v1/unblock", key, 1, 200),
        ("POST", "/admin/v1/kill", r#"{"limit":"per-key"}"#, 1, 200),
        ("POST", "/admin/v1/shadow", r#"{"limit":"per-key"}"#, 1, 200),
        ("POST", "/admin/v1/percent", r#"{"limit":"per-key","percent":5}"#, 1, 200),
        ("POST", "/admin/v1/restore", r#"{"limit":"per-key"}"#, 1, 200),
        // Its policy comes from standard input, so it cannot be reloaded; an admin gets an error that says so.
        ("POST", "/admin/v1/reload", "{}", 1, 409),
        ("POST", "/admin/v1/reload", r#"{"force":true}"#, 2, 409),
        ("POST", "/admin/v1/policy/diff", POLICY, 1, 200),
        ("DELETE", diff, "", 1, 404),
        ("POST", "/admin/v1/kill", r#"{"all":true}"#, 2, 200),
        // There are no controllers of overload here, which only those learn who may switch them.
        ("POST", "/admin/v1/kill", r#"{"overload":"queue"}"#, 1, 404),
        ("POST", "/admin/v1/restore", r#"{"overload":"all"}"#, 2, 404),
        ("POST", "/admin/v1/shadow", r#"{"all":true}"#, 2, 200),
        ("POST", "/admin/v1/restore", r#"{"all":true}"#, 2, 200),
        ("GET", "/admin/v1/audit", "", 2, 200),
    ];
    for (method, path, body, least, status) in verbs {
        for (rank, role) in ["viewer", "operator", "admin"].into_iter().enumerate() {
            let answer = ask(&server, &format!("{role}-token-0123456789"), method, path, body);
            if rank >= least {
                assert_eq!(answer.status, status, "{method} {path} by {role}: {answer:?}");
            } else {
                let detail = answer.problem(403);
                assert!(detail.contains("needs the role"), "{method} {path} by {role}: {detail}");
            }
        }
        let bare = request(method, path, "", body.as_bytes());
        let bare = String::from_utf8(bare).unwrap().replacen("Host: test", "Host: 127.0.0.1", 1);
        let answer = server.exchange(bare.as_bytes());
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{method} {path}");
        assert!(answer.problem(401).contains("Authorization: Bearer TOKEN"));
    }
    let audit = ask(&server, "admin-token-0123456789", "GET", "/admin/v1/audit?limit=1000", "").json();
    let entries = audit["entries"].as_array().unwrap();
    let entry = |who: &str, verb: &str, about: &str, outcome: &str| {
        let found = entries.iter().any(|entry| {
            entry["who"] == who
                && entry["verb"] == verb
                && entry["about"] == about
                && entry["outcome"].as_str().unwrap().starts_with(outcome)
        });
        assert!(found, "{who} {verb} {about} {outcome} is not in {audit}");
    };
    entry("otto", "reset", "api_key=sha256:8254c329a92850f6d539dd376f4816ee", "");
    entry("otto", "block", "api_key=sha256:8254c329a92850f6d539dd376f4816ee", "until 20");
    entry("vera", "kill", "", "refused");
    entry("otto", "kill", "all limits", "refused");
    entry("ada", "kill", "all limits", "until 20");
    entry("vera", "reload", "", "refused: the role");
    entry("otto", "reload", "what the guard refuses", "refused: the role");
    entry("ada", "reload", "what the guard refuses", "refused: the policy does not come from a file");
    entry("otto", "percent", "per-key", "5 % until 20");
    assert!(!audit.to_string().contains("token-0123456789"), "a token is in the audit log");
}

/// A page that has a name of its own lead to the server (DNS rebinding), or asks from another site, is refused before its token is
/// looked at. No answer lets another site read it.
#[test]
fn hosts_and_sites() {
    let mut command =
        tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-", "--admin-host", "gate.example"]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, POLICY);
    let get = |host: &str, more: &str| {
        let head =
            format!("GET /admin/v1/limits HTTP/1.1\r\n{host}Authorization: Bearer {TOKEN}\r\n{more}\r\n");
        server.exchange(head.as_bytes())
    };
    let own = format!("Host: {}\r\n", server.address);
    for host in [own.as_str(), "Host: localhost:99\r\n", "Host: gate.example\r\n", "Host: [::1]\r\n"] {
        let answer = get(host, "");
        assert_eq!(answer.status, 200, "{host}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    for host in [
        "Host: evil.example\r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
    ] {
        let answer = get(host, "");
        assert!([421, 400].contains(&answer.status), "{host}: {answer:?}");
    }
    assert!(get("Host: evil.example\r\n", "").problem(421).contains("--admin-host NAME"));
    let absolute = format!(
        "GET http://evil.example/admin/v1/limits HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    assert_eq!(server.exchange(absolute.as_bytes()).status, 421);
    assert_eq!(get(&own, &format!("Origin: http://{}\r\n", server.address)).status, 200);
    for site in ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        get(&own, site).problem(403);
    }
    let preflight = format!("OPTIONS /admin/v1/kill HTTP/1.1\r\n{own}Origin: http://evil.example\r\n\r\n");
    let answer = server.exchange(preflight.as_bytes());
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None));
}

/// After five wrong tokens a minute, guesses from an address must wait; a right token from the same address never does. The log has no token.
#[test]
fn guesses_are_counted() {
    let mut server = server(POLICY);
    for number in 0..5 {
        let detail =
            ask(&server, &format!("wrong-token-number-{number}"), "GET", "/admin/v1/limits", "").problem(401);
        assert!(detail.contains("not known"), "{detail}");
    }
    let refused = ask(&server, "wrong-token-number-5", "GET", "/admin/v1/limits", "");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=12).contains(&wait), "{wait}");
    assert!(refused.problem(429).contains("too many wrong tokens"));
    assert_eq!(ask(&server, TOKEN, "GET", "/admin/v1/limits", "").status, 200);
    server.await_log("a wrong admin token");
    server.signal("-TERM");
    server.wait();
    let log = server.rest_of_log();
    assert!(log.contains("a wrong admin token") && !log.contains("wrong-token-number"), "{log}");
}

/// A wrong question is answered with what would be accepted, and changes nothing.
#[test]
fn wrong_questions() {
    let server = server(POLICY);
    let cases = [
        ("POST", "/admin/v1/kill", r#"{}"#, 400, "name one limit"),
        ("POST", "/admin/v1/kill", r#"{"limit":"per-key","all":true}"#, 400, "name one limit"),
        ("POST", "/admin/v1/kill", r#"{"limit":"nope"}"#, 404, "no limit \"nope\""),
        ("POST", "/admin/v1/kill", r#"{"limit":"per-key","overload":"all"}"#, 400, "beside no limit"),
        ("POST", "/admin/v1/percent", r#"{"overload":"all"}"#, 400, "only the paths kill"),
        ("POST", "/admin/v1/kill", r#"{"limit":"per-key","for":"25h"}"#, 400, "accepted: 1s to 24h"),
        ("POST", "/admin/v1/block", r#"{"attributes":{"a":"b"},"for":"31d"}"#, 400, "accepted: 1s to 30d"),
        ("POST", "/admin/v1/block", r#"{"attributes":{"a":"b"},"for":"soon"}"#, 400, "accepted: 1s to 30d"),
        ("POST", "/admin/v1/kill", r#"{"limit":"per-key","for":"1ms"}"#, 400, "out of range"),
        ("POST", "/admin/v1/kill", r#"{"limit":"per-key","percent":5}"#, 400, "only the path percent"),
        ("POST", "/admin/v1/kill", r#"{"limt":"per-key"}"#, 400, "unknown field"),
        ("POST", "/admin/v1/percent", r#"{"limit":"per-key"}"#, 400, "accepted: 0 to 100"),
        ("POST", "/admin/v1/percent", r#"{"limit":"per-key","percent":101}"#, 400, "accepted: 0 to 100"),
        ("POST", "/admin/v1/block", r#"{"attributes":{},"for":"1m"}"#, 409, "would deny everybody"),
        ("POST", "/admin/v1/block", r#"{"attributes":{"a":"b"}}"#, 400, "for: missing"),
        ("POST", "/admin/v1/block", r#"{"attributes":{"a":"b","a":"c"},"for":"1m"}"#, 400, "given twice"),
        (
            "POST",
            "/admin/v1/reset",
            r#"{"attributes":{"api_key":"k"},"limits":["x"]}"#,
            404,
            "no limit \"x\"",
        ),
        ("POST", "/admin/v1/explain", "{", 400, "not valid JSON"),
        ("GET", "/admin/v1/top?limit=0", "", 400, "accepted: 1 to 1000"),
        ("GET", "/admin/v1/tail?x=1", "", 400, "the query accepts"),
        ("GET", "/admin/v1/kill", "", 405, "accepts POST"),
        ("GET", "/admin/v1/nothing", "", 404, "under /admin/v1/ are"),
        ("POST", "/admin/v1/policy/diff", "limits: [{name: a, rate: s/5}]", 422, "upside down"),
        ("POST", "/admin/v1/policy/diff?for=1h", POLICY, 400, "accepted: 1s to 10m"),
    ];
    for (method, path, body, status, expected) in cases {
        let detail = ask(&server, TOKEN, method, path, body).problem(status);
        assert!(detail.contains(expected), "{method} {path} {body}: {detail}");
    }
    let large = format!(r#"{{"attributes":{{"a":"{}"}}}}"#, "x".repeat(70_000));
    ask(&server, TOKEN, "POST", "/admin/v1/get", &large).problem(413);
    let limits = ask(&server, TOKEN, "GET", "/admin/v1/limits", "").json();
    assert!(
        limits["limits"].as_array().unwrap().iter().all(|limit| limit.get("own_override").is_none()),
        "{limits}"
    );
    assert_eq!(limits["blocks"].as_array().unwrap().len(), 0);
}

/// A token is made, different each time, and shown; or written where only its owner can read it, and then not shown.
#[test]
fn a_token_is_made() {
    let token_of = |server: &Server| {
        let (_, rest) =
            server.banner.split_once("/admin/v1/ with token ").expect("the banner shows the token");
        rest.lines().next().unwrap().to_owned()
    };
    let (one, other) = (Server::start(POLICY), Server::start(POLICY));
    let token = token_of(&one);
    assert!(token.len() >= 64 && token != token_of(&other), "{token}");
    assert_eq!(ask(&one, &token, "GET", "/admin/v1/audit", "").status, 200);
    assert_eq!(ask(&other, &token, "GET", "/admin/v1/audit", "").status, 401);

    let scratch = Scratch::new();
    let path = scratch.file("token", "an older one");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let server = Server::start_with(
        &["serve", "--http", "127.0.0.1:0", "--policy", "-", "--admin-token-file", &path],
        POLICY,
    );
    let written = fs::read_to_string(&path).unwrap();
    assert!(
        !server.banner.contains(written.trim()) && server.banner.contains("the token in "),
        "{}",
        server.banner
    );
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let server_url = format!("http://{}", server.address);
    let output = run(&["limits", "--server", &server_url, "--token-file", &path], b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// Tokens that could be guessed, and files that are not what they should be, are refused at the start, without showing a token.
#[test]
fn refused_tokens() {
    let scratch = Scratch::new();
    let twice = scratch.file("twice", "viewer a 0123456789abcdef\nadmin a 0123456789abcdeg\n");
    let wrong = scratch.file("wrong", "root a 0123456789abcdef\n");
    let empty = scratch.file("empty", "# nothing\n");
    let cases: [(&[&str], i32, &str); 5] = [
        (&["serve", "--admin-token", "short"], 2, "accepted: 16 to 256"),
        (&["serve", "--http", "127.0.0.1:0", "--admin-tokens", &twice], 2, ":2: the name \"a\""),
        (
            &["serve", "--http", "127.0.0.1:0", "--admin-tokens", &wrong],
            2,
            "accepted: viewer, operator or admin",
        ),
        (&["serve", "--http", "127.0.0.1:0", "--admin-tokens", &empty], 2, "no token"),
        (
            &["serve", "--http", "127.0.0.1:0", "--admin-tokens", "no/such/file"],
            2,
            "no/such/file: no such file; check the path",
        ),
    ];
    for (arguments, status, expected) in cases {
        let output = run(arguments, b"");
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
        assert!(message.contains(expected) && !message.contains("0123456789"), "{arguments:?}: {message}");
    }
}

/// Every example of the description is a question that the server understands, so a client that imports it can send each
/// of them at once.
#[test]
fn examples_of_the_description_are_understood() {
    let server = server(POLICY);
    let document = ask(&server, TOKEN, "GET", "/v1/openapi.json", "").json();
    // The story: a client that imported the description of a server on another port asked port 8080.
    assert_eq!(document["servers"][0]["url"], "/");
    let mut sent = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let Some(content) = operation["requestBody"]["content"].as_object() else { continue };
            for body in content.values() {
                let example = &body["example"];
                assert!(!example.is_null(), "{method} {path} has no example");
                let text = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
                let path = path.replace("{id}", &"0".repeat(32));
                let answer = ask(&server, TOKEN, &method.to_uppercase(), &path, &text);
                assert!(![400, 415, 422].contains(&answer.status), "{method} {path} {text}: {answer:?}");
                sent += 1;
            }
        }
    }
    assert!(sent >= 15, "only {sent} examples");
}

/// Every path of the admin interface is described, also those of one comparison.
#[test]
fn every_admin_path_is_described() {
    let server = server(POLICY);
    let document = ask(&server, TOKEN, "GET", "/v1/openapi.json", "").json();
    let reported = ask(&server, TOKEN, "GET", "/admin/v1/nothing", "").problem(404);
    let (_, names) = reported.split_once("under /admin/v1/ are ").unwrap();
    let names: Vec<&str> = names.split([',', ' ']).filter(|name| !["", "and"].contains(name)).collect();
    assert!(names.contains(&"limits") && names.contains(&"fleet"), "{names:?}");
    for name in names {
        assert!(document["paths"][format!("/admin/v1/{name}")].is_object(), "{name} is not described");
    }
    let comparison = &document["paths"]["/admin/v1/policy/diff/{id}"];
    for (method, status) in [("GET", 404), ("DELETE", 404), ("POST", 405)] {
        let path = format!("/admin/v1/policy/diff/{}", "0".repeat(32));
        assert_eq!(ask(&server, TOKEN, method, &path, "").status, status);
        assert_eq!(comparison[method.to_lowercase()].is_object(), status == 404, "{method}");
    }
}
