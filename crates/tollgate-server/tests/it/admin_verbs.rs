//! Every verb from end to end: typed as a command, done by a running server, seen in what it then decides.

use std::process::Output;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) use tollgate_testkit::admin::{operate, status};

use crate::admin::{POLICY, Scratch, TOKEN, ask, server};
use crate::program::{Server, run, stderr, stdout, tollgate};
use crate::raw_http::request;
use crate::rls::{self, Client};

const KEY: &str = r#"{"attributes":{"api_key":"k"}}"#;

fn call(server: &Server, arguments: &[&str]) -> Output {
    operate(server, arguments).output().unwrap()
}

fn says(server: &Server, arguments: &[&str], expected: &str) {
    let output = call(server, arguments);
    let expected_status = status(&arguments.join(" "), &stdout(&output));
    assert_eq!(output.status.code(), Some(expected_status), "{arguments:?}: {}", stderr(&output));
    assert!(stdout(&output).contains(expected), "{arguments:?}: {expected:?} is not in {}", stdout(&output));
}

#[allow(clippy::disallowed_methods, reason = "the program runs on the real clock")]
fn pause(time: Duration) {
    thread::sleep(time);
}

/// Get, explain and reset: what is left, why, and as if never seen. A counter that everybody shares is not forgotten with a key.
#[test]
fn a_key_is_looked_at_and_reset() {
    let server = server(POLICY);
    says(&server, &["get", "api_key=k"], "5 of 5");
    for _ in 0..6 {
        server.check(KEY);
    }
    let output = stdout(&call(&server, &["get", "api_key=k"]));
    assert!(
        output.contains("denied now") && output.contains("0 of 5") && output.contains("995 of 1,000"),
        "{output}"
    );
    let output = stdout(&call(&server, &["explain", "api_key=k"]));
    assert!(
        output.contains("per-key: denies") && output.contains("0 of 5 are left: it admits the request in "),
        "{output}"
    );
    says(&server, &["reset", "api_key=k"], "1 counter reset");
    says(&server, &["get", "api_key=k"], "995 of 1,000");
    assert_eq!(server.remaining("k"), 5);
    says(&server, &["reset", "api_key=k", "--limit", "all"], "1 counter reset");
    says(&server, &["get", "api_key=k"], "1,000 of 1,000");
}

/// The built-in policy is explained: what applies, what does not and why, which tier has more. Nothing is charged.
#[test]
fn the_built_in_policy_is_explained() {
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0"]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    let attributes = ["explain", "api_key=k", "tenant=t", "plan=free", "path=/login", "method=GET"];
    let output = stdout(&call(&server, &attributes));
    for expected in [
        "such a request passes now",
        "per-key: passes, 200 of 200 left",
        "(the tier plan=free)",
        "- with plan=pro it may make 100 requests a second on average, 200 at once and at most 300 in any second",
        "login: does not apply",
        "- the request has no ip",
        "- method is \"GET\", and it applies to POST",
        "- path.startsWith('/v1/chat') is not true",
    ] {
        assert!(output.contains(expected), "{expected:?} is not in {output}");
    }
    let json: Value = serde_json::from_str(&stdout(&call(
        &server,
        &["explain", "tenant=acme", "--cost", "6000", "--json"],
    )))
    .unwrap();
    assert_eq!(json["allowed"], false);
    let plan = json["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "plan").unwrap();
    assert_eq!(plan["state"]["chosen"], "the override of tenant \"acme\"");
    assert_eq!(plan["what_would_change_it"][0], "a cost of 6,000 never passes: at most 5,000 at once");
}

/// A block denies at once, tells its end truly, charges nothing, and is over when it said.
#[test]
fn a_block_is_true_about_its_time() {
    let server = server(POLICY);
    says(
        &server,
        &["block", "api_key=k", "--for", "2s", "--note", "a\u{1b}[31m script"],
        "api_key=sha256:8254c329a92850f6d539dd376f4816ee is blocked until 20",
    );
    let denied = server.check(KEY);
    assert_eq!(
        (&denied["allowed"], &denied["verdict"], &denied["reason"]),
        (&false.into(), &"deny".into(), &"operator-block".into())
    );
    assert!(denied["detail"].as_str().unwrap().starts_with("blocked by an operator until 20"), "{denied}");
    let wait = denied["retry_after_ms"].as_u64().unwrap();
    assert!((1..=2_000).contains(&wait), "{wait}");
    assert_eq!(denied["headers"]["Retry-After"], wait.div_ceil(1_000).to_string());
    assert_eq!(server.check(r#"{"attributes":{"api_key":"other"}}"#)["allowed"], true);
    let reserved = server.send("POST", "/v1/reservations", KEY).json();
    assert_eq!((&reserved["allowed"], reserved.get("reservation")), (&false.into(), None));
    says(&server, &["get", "api_key=k"], "denied: blocked by an operator until 20");
    pause(Duration::from_millis(wait));
    let free = server.check(KEY);
    assert_eq!((&free["allowed"], &free["limits"][0]["remaining"]), (&true.into(), &4.into()), "{free}");
    let output = stdout(&call(&server, &["audit"]));
    assert!(output.contains("a\\u{1b}[31m script") && !output.contains('\u{1b}'), "{output}");
}

/// A block is a denial on every wire, each in its own words, with the time to come back. A comparison leaves it out.
#[test]
fn a_block_holds_on_every_wire() {
    let server = server(POLICY);
    let asked = r#"{"attributes":{"ip":"127.0.0.1"}}"#;
    let (authz, rls) =
        (request("GET", "/v1/authz", "", b""), rls::question("d", 1, "ip=127.0.0.1 | other=x"));
    let client = Client::new(server.grpc.unwrap());
    let begun = ask(&server, TOKEN, "POST", "/admin/v1/policy/diff?for=1m", POLICY).json();
    assert_eq!(server.exchange(&authz).status, 200);
    assert!(rls::shown(&client.ask(rls.clone()).unwrap()).starts_with("OK: "));
    says(&server, &["block", "ip=127.0.0.1", "--for", "1h"], "is blocked until");

    assert_eq!(server.check(asked)["reason"], "operator-block");
    let refused = server.exchange(&authz);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert_eq!((refused.status, (3_500..=3_600).contains(&wait)), (429, true), "{wait}");
    let answer = client.ask(rls).unwrap();
    assert_eq!(rls::shown(&answer), "OVER: OVER | OVER");
    let header =
        answer.response_headers_to_add.iter().find(|header| header.key.eq_ignore_ascii_case("retry-after"));
    assert!(header.is_some(), "{answer:?}");
    let reported = server.resp_exchange(b"HELLO 3\r\nTG.CHECK ip 127.0.0.1\r\nQUIT\r\n");
    assert!(reported.contains("allowed\r\n#f\r\n") && reported.contains("operator-block"), "{reported}");
    let path = format!("/admin/v1/policy/diff/{}", begun["comparison"]["id"].as_str().unwrap());
    let standing = ask(&server, TOKEN, "GET", &path, "").json();
    assert_eq!((&standing["decisions"], &standing["changed"]), (&2.into(), &0.into()), "{standing}");
}

/// A block can be removed. The status says when there was none to remove.
#[test]
fn a_block_is_taken_back() {
    let server = server(POLICY);
    says(&server, &["block", "api_key=k", "region:=7", "--for", "1h", "--anyway"], "is blocked until");
    assert_eq!(server.check(KEY)["allowed"], true, "it lacks the region");
    assert_eq!(server.check(r#"{"attributes":{"api_key":"k","region":7}}"#)["allowed"], false);
    says(&server, &["limits"], "api_key=sha256:8254c329a92850f6d539dd376f4816ee region=7");
    assert_eq!(call(&server, &["unblock", "api_key=k"]).status.code(), Some(1));
    says(&server, &["unblock", "region:=7", "api_key=k"], "unblocked");
    assert_eq!(server.check(r#"{"attributes":{"api_key":"k","region":7}}"#)["allowed"], true);
}

/// A kill switch opens its limit, and ends by itself although no request comes in between.
#[test]
fn a_kill_switch_ends_by_itself() {
    let server = server("limits: [{name: per-key, by: [api_key], rate: 1/h}]");
    assert_eq!(server.check(KEY)["allowed"], true);
    assert_eq!(server.check(KEY)["allowed"], false);
    says(&server, &["kill", "per-key", "--for", "1s"], "off until 20");
    let open = server.check(KEY);
    assert_eq!((&open["allowed"], open["limits"].as_array().unwrap().len()), (&true.into(), 0));
    pause(Duration::from_millis(1_050));
    assert_eq!(server.check(KEY)["allowed"], false);
    says(&server, &["kill", "--all"], "off until 20");
    assert_eq!(server.check(KEY)["allowed"], true);
    says(&server, &["limits"], "all limits: off until 20");
    says(&server, &["restore", "--all"], "the policy holds again");
    assert_eq!(server.check(KEY)["allowed"], false);
    assert_eq!(call(&server, &["restore", "--all"]).status.code(), Some(1));
}

/// Shadow counts and never denies; a percentage is of keys, nought is none of them.
#[test]
fn shadow_and_percent() {
    let server = server("limits: [{name: per-key, by: [api_key], rate: 1/h}]");
    server.check(KEY);
    says(&server, &["shadow", "per-key", "--for", "10m"], "shadow until 20");
    for allowed in [true, true] {
        let answer = server.check(KEY);
        assert_eq!((&answer["allowed"], &answer["limits"][0]["mode"]), (&allowed.into(), &"shadow".into()));
    }
    says(&server, &["explain", "api_key=k"], "would deny, but only counts");
    says(&server, &["percent", "per-key", "0", "--for", "48h"], "enforced for 0 % of keys until 20");
    assert_eq!(server.check(KEY)["limits"][0]["mode"], "shadow");
    says(&server, &["percent", "per-key", "100"], "enforced for 100 % of keys");
    assert_eq!(server.check(KEY)["allowed"], false);
    says(&server, &["restore", "per-key"], "the policy holds again");
}

/// Errors name their cause and the remedy.
#[test]
fn failures_name_the_cure() {
    let server = server(POLICY);
    let url = format!("http://{}", server.address);
    let localhost = url.replace("127.0.0.1", "localhost");
    assert_eq!(run(&["limits", "--server", &localhost, "--token", TOKEN], b"").status.code(), Some(0));
    let cases: [(&[&str], &str); 9] = [
        (
            &["get", "a=b", "--server", "http://127.0.0.1:1", "--token", TOKEN],
            "start one with `tollgate serve`",
        ),
        (&["get", "a=b", "--server", &url], "the server printed one when it started"),
        (
            &["get", "a=b", "--server", &url, "--token", "another-token-0123456789"],
            "wrong token: the token is not known",
        ),
        (&["get", "a=b", "--server", "https://127.0.0.1", "--token", TOKEN], "name the CA that signed"),
        (&["get", "a=b", "--server", "ftp://127.0.0.1", "--token", TOKEN], "accepted: --admin http://"),
        (&["get", "a=b", "a=c", "--server", &url, "--token", TOKEN], "a is given twice"),
        (&["kill", "--server", &url, "--token", TOKEN], "is missing; see `tollgate kill --help`"),
        (&["kill", "nope", "--server", &url, "--token", TOKEN], "the active policy has no limit \"nope\""),
        (&["get", "a=b", "--server", &url, "--token-file", "no/such/file"], "no such file; check the path"),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments, b"");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("0123456789"), "a token is in {}", stderr(&output));
    }
}

/// Two files: which limits change, and how many decisions of a trace do, on the trace's own time.
#[test]
fn a_candidate_is_compared_on_a_trace() {
    let scratch = Scratch::new();
    let old = scratch.file(
        "old.yaml",
        "limits: [{name: a, by: [k], rate: 2/min burst 2}, {name: p, by: [k], concurrency: 1}]",
    );
    let new = scratch.file("new.yaml", "limits: [{name: a, by: [k], rate: 2/min burst 1}, {name: p, by: [k], concurrency: 1}, {name: b, rate: 1/s}]");
    let mut trace = String::new();
    for (at, key) in
        [("10:00:00", "x"), ("10:00:01", "x"), ("10:00:30", "x"), ("10:00:30.5", "y"), ("10:00:31", "z")]
    {
        trace.push_str(&format!(
            "{{\"at\":\"2030-01-01T{at}Z\",\"attributes\":{{\"k\":\"{key}\"}},\"cost\":1}}\n"
        ));
    }
    trace.push_str("\n{\"at\":1893492032000,\"attributes\":{\"k\":\"z\"}}\n");
    let trace = scratch.file("trace.jsonl", &trace);
    let output = run(&["policy", "diff", &old, &new, "--trace", &trace], b"");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    for expected in [
        "changed a: burst\n  - a: each k may make 2 requests a minute on average, 2 at once and at most 4 in any minute\n  + a: each k may make 2 requests a minute on average, 1 at once and at most 3 in any minute\n",
        "added b\n  + b: everybody together",
        "1 unchanged",
        "keys most affected:\n",
        "  a x: 1 newly denied\n",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
    // The second of x finds no burst, and neither does the last of z, a second after the first; y comes half a second after x, which
    // is too soon for b.
    assert!(text.contains("of 6 decisions change: "), "{text}");
    let json = run(&["policy", "diff", &old, &new, "--trace", &trace, "--json"], b"");
    let json: Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert_eq!(json["decisions"]["decisions"], 6);
    assert_eq!(json["decisions"]["by_limit"]["a"], json!({"newly_denied": 2, "newly_allowed": 0}), "{json}");
    let keys = json["decisions"]["keys"].as_array().unwrap();
    assert!(keys.iter().any(|key| key["limit"] == "a" && key["newly_denied"] == 1), "{json}");
    assert_eq!(json["decisions"]["by_limit"]["b"]["newly_denied"], 1, "{json}");
    assert_eq!((&json["decisions"]["changed"], &json["decisions"]["newly_allowed"]), (&3.into(), &0.into()));

    let same = run(&["policy", "diff", &old, &old, "--trace", &trace], b"");
    assert_eq!(same.status.code(), Some(0), "an equal policy changes nothing: {}", stdout(&same));
    // A trace is put in order of time, and every line of it must be a request.
    let late = scratch.file(
        "late.jsonl",
        "{\"at\":1893492002000,\"attributes\":{\"k\":\"x\"}}\n{\"at\":1893492001000,\"attributes\":{\"k\":\"x\"}}\n",
    );
    let output = run(&["policy", "diff", &old, &new, "--trace", &late], b"");
    assert!(stdout(&output).contains("1 of 2 decisions change: 1 newly denied"), "{}", stdout(&output));
    let bad = scratch.file("bad.jsonl", "{\"at\":1893492002000,\"attributes\":{}}\n{\"attributes\":{}}\n");
    for (trace, expected) in [(bad.as_str(), "bad.jsonl:2: no `at`"), (old.as_str(), "old.yaml: ")] {
        let output = run(&["policy", "diff", &old, &new, "--trace", trace], b"");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    assert_eq!(run(&["policy", "diff", &old], b"").status.code(), Some(2));
}

/// A candidate beside a running server: it decides about the same requests, and no counter of the server is touched.
#[test]
fn a_candidate_is_compared_on_live_requests() {
    let server = server(POLICY);
    let scratch = Scratch::new();
    let stricter = scratch
        .file("new.yaml", "limits: [{name: per-key, by: [api_key], rate: 2/h}, {name: all, rate: 1000/h}]");
    let begun = {
        let text = std::fs::read_to_string(&stricter).unwrap();
        ask(&server, TOKEN, "POST", "/admin/v1/policy/diff?for=30s", &text).json()
    };
    assert_eq!(
        (&begun["changes"][0]["name"], &begun["unchanged"]),
        (&"per-key".into(), &1.into()),
        "{begun}"
    );
    let path = format!("/admin/v1/policy/diff/{}", begun["comparison"]["id"].as_str().unwrap());
    // A reservation is a decision like others.
    server.send("POST", "/v1/reservations", KEY);
    for _ in 0..6 {
        server.check(KEY);
    }
    let standing = ask(&server, TOKEN, "GET", &path, "").json();
    assert_eq!(
        (
            &standing["running"],
            &standing["decisions"],
            &standing["newly_denied"],
            &standing["by_limit"]["per-key"]["newly_denied"]
        ),
        (&true.into(), &7.into(), &3.into(), &3.into()),
        "{standing}"
    );
    let key = &standing["keys"][0];
    assert_eq!(
        (&key["limit"], &key["newly_denied"], &key["newly_allowed"]),
        (&"per-key".into(), &3.into(), &0.into())
    );
    assert!(key["key"].as_str().is_some_and(|key| key.starts_with("api_key=")), "{standing}");
    assert!(
        ask(&server, TOKEN, "POST", "/admin/v1/policy/diff?for=1s", POLICY)
            .problem(409)
            .contains("is running")
    );
    assert_eq!(ask(&server, TOKEN, "DELETE", &path, "").json()["running"], false);
    server.check(KEY);
    assert_eq!(ask(&server, TOKEN, "GET", &path, "").json()["decisions"], 7, "it has ended");
    assert_eq!(server.remaining("k"), 0);
    says(&server, &["get", "api_key=k"], "995 of 1,000");

    let equal = scratch.file("equal.yaml", POLICY);
    let child = operate(&server, &["policy", "diff", &equal, "--live", "--for", "1s"]).spawn().unwrap();
    for _ in 0..20 {
        server.check(KEY);
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("2 unchanged\n\n0 of "), "{}", stdout(&output));
}

/// `tollgate block path=/v1/*` said "is blocked", and blocked nothing: a block is compared with what requests have. A pattern, and a
/// spelling that no request has, is refused with what is accepted; what is accepted then blocks, however a caller spells it.
#[test]
fn a_block_takes_values_that_requests_have() {
    let server = server(POLICY);
    for (value, accepted) in [
        ("path=/v1/*", "only single ones are known here"),
        ("path=/users/{id}", "only single ones are known here"),
        ("path=/café", "path: /caf%C3%A9"),
        ("method=get", "method: GET"),
        ("host=Example.com", "host: example.com"),
        ("tenant=acme-*", "only single ones are known here"),
        ("api_key=k*", "its whole text"),
    ] {
        let output = call(&server, &["block", value, "--for", "1m"]);
        assert_ne!(output.status.code(), Some(0), "{value}: {}", stdout(&output));
        assert!(stderr(&output).contains(accepted), "{value}: {}", stderr(&output));
    }
    for verb in ["get", "explain", "reset"] {
        let output = call(&server, &[verb, "path=/v1/*"]);
        assert_ne!(output.status.code(), Some(0), "{verb}: {}", stdout(&output));
        assert!(stderr(&output).contains("is a pattern"), "{verb}: {}", stderr(&output));
    }
    let blocks = ask(&server, TOKEN, "GET", "/admin/v1/limits", "").json();
    assert!(blocks["blocks"].as_array().is_none_or(Vec::is_empty), "{blocks}");
    says(&server, &["block", "path=/caf%C3%A9", "--for", "1m"], "is blocked");
    for path in ["/caf%C3%A9", "/caf%c3%a9", "/café", "//café"] {
        let asked = json!({ "attributes": { "api_key": "k", "path": path } });
        assert_eq!(server.check(&asked.to_string())["allowed"], false, "{path}");
    }
    assert_eq!(server.remaining("k"), 5);
}

/// The story: `block apikey=k2`, `X-API-Key=k2`, `api_key=`, `tenant=!a`, `plan=free|pro` and, with `attributes:` declared,
/// `tenantt=acme` all said "is blocked until", and blocked nothing. What no request can have is refused with what is accepted, and a
/// name that only may be wrong is doubted.
#[test]
fn a_block_takes_names_that_requests_have() {
    let open = server(POLICY);
    let declared = server("attributes: [api_key, tenant, ip]\nlimits: [{name: a, by: [tenant], rate: 5/h}]");
    let refused = [
        (&open, "X-API-Key=k2", "no request has an attribute X-API-Key"),
        (&open, "apikey=k2", "no limit uses apikey; did you mean api_key?"),
        (&open, "api_key=", "its whole text"),
        (&open, "api_key=!k1", "its whole text"),
        (&open, "api_key=k1|k2", "its whole text"),
        (&open, "domain=api", "no attribute under a policy of Tollgate's own"),
        (&open, "tenant=", "the tenant of a request"),
        (&open, "tenant=!a", "a single value"),
        (&open, "plan=free|pro", "a single value"),
        (&open, "ip=", "is not an address"),
        (&declared, "tenantt=acme", "did you mean tenant?"),
        (&declared, "tenantt:=7", "did you mean tenant?"),
    ];
    for (server, value, accepted) in refused {
        let output = call(server, &["block", value, "--for", "1m"]);
        assert_ne!(output.status.code(), Some(0), "{value}: {}", stdout(&output));
        assert!(stderr(&output).contains(accepted), "{value}: {}", stderr(&output));
        let blocks = ask(server, TOKEN, "GET", "/admin/v1/limits", "").json();
        assert!(blocks["blocks"].as_array().is_none_or(Vec::is_empty), "{value}: {blocks}");
    }
    let anyway = call(&open, &["block", "apikey=k2", "--for", "1m", "--anyway"]);
    assert_eq!(anyway.status.code(), Some(0), "{}", stderr(&anyway));
    for question in ["get", "explain", "reset"] {
        let warning = stderr(&call(&open, &[question, "apikey=k2"]));
        assert_eq!(warning, "tollgate: warning: no limit uses apikey; did you mean api_key?\n", "{question}");
    }
    for (server, values) in [
        (&open, &["ip=10.0.0.0/8"][..]),
        (&open, &["api_key=k1"]),
        (&declared, &["tenant=acme"]),
        (&declared, &["command=cl.throttle", "key=a|b"]),
    ] {
        let output = call(server, &[&["block"], values, &["--for", "1m"]].concat());
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{values:?}");
    }
}

/// `domain: edge` was added, and neither `policy diff` nor the reload said a word: with it a server answers no other domain.
#[test]
fn a_change_of_the_whole_policy_is_reported() {
    let server = server(POLICY);
    let scratch = Scratch::new();
    let old = scratch.file("old.yaml", POLICY);
    let new = scratch.file("new.yaml", &format!("domain: edge\n{POLICY}"));
    let expected =
        "changed policy: domain\n  - answers every domain\n  + answers the domain edge only\n2 unchanged\n";
    for arguments in [&["policy", "diff", &old, &new][..], &["policy", "diff", &new, "--live"]] {
        let output = call(&server, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).contains(expected), "{arguments:?}: {}", stdout(&output));
        // Of a server the texts were compared alone, and nothing said so.
        let is_live = arguments.contains(&"--live");
        let says_so =
            stdout(&output).contains("only the texts of the policies were compared; --last 1h compares");
        assert_eq!(says_so, is_live, "{}", stdout(&output));
        let output = call(&server, &[arguments, &["--json"]].concat());
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["policy"][0]["field"], "domain", "{document}");
    }
}

/// A reload on request: nothing to do, refused by the guard, forced, and what is no policy, which no force puts in force. Each is in
/// the audit log.
#[test]
fn a_refused_reload_is_forced() {
    let scratch = Scratch::new();
    let file = scratch.file("policy.yaml", POLICY);
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &file]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    says(&server, &["reload"], "nothing to reload");
    scratch.file("policy.yaml", "limits: [{name: per-key, by: [api_key], rate: 5/s}]");
    let refused = call(&server, &["reload"]);
    assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
    let why = stderr(&refused);
    assert!(why.contains("looks like an accident") && why.contains("tollgate reload --force"), "{why}");
    assert_eq!(server.remaining("k"), 5);
    let forced = call(&server, &["reload", "--force", "--json"]);
    assert_eq!(forced.status.code(), Some(0), "{}", stderr(&forced));
    let reported: Value = serde_json::from_slice(&forced.stdout).unwrap();
    assert_eq!((&reported["reloaded"], reported["version"].is_string()), (&true.into(), true), "{reported}");
    assert_eq!(
        (&reported["changed"], &reported["removed"]),
        (&json!(["per-key"]), &json!(["all"])),
        "{reported}"
    );
    let limits = ask(&server, TOKEN, "GET", "/admin/v1/limits", "").json();
    assert_eq!(limits["limits"].as_array().map(Vec::len), Some(1), "{limits}");
    scratch.file("policy.yaml", "limits: [{name: per-key, rate: s/5}]");
    let broken = ask(&server, TOKEN, "POST", "/admin/v1/reload", r#"{"force":true}"#);
    assert!(broken.problem(409).contains("limits[0] \"per-key\".rate"), "{broken:?}");
    let audit = stdout(&call(&server, &["audit"]));
    for outcome in ["active already", "1 changed, 0 added, 1 removed, 0 restarted", "looks like an accident"]
    {
        assert!(audit.contains(outcome), "{outcome:?} is not in {audit}");
    }
}

/// A candidate decides about the requests of the last hour in virtual time: at once, with the keys that it would affect, and no
/// counter of the server is touched. What an operator blocks is no request to a policy.
#[test]
fn a_candidate_is_compared_with_the_last_hour() {
    let server = server(POLICY);
    let scratch = Scratch::new();
    (0..5).for_each(|_| drop(server.check(KEY)));
    server.send("POST", "/v1/reservations", KEY);
    ask(&server, TOKEN, "POST", "/admin/v1/block", r#"{"attributes":{"api_key":"bad"},"for":"10m"}"#);
    server.check(r#"{"attributes":{"api_key":"bad"}}"#);
    let stricter = "limits: [{name: per-key, by: [api_key], rate: 2/h}, {name: all, rate: 1000/h}]";
    let answer = ask(&server, TOKEN, "POST", "/admin/v1/policy/diff?last=1h", stricter).json();
    let decisions = &answer["decisions"];
    assert_eq!((&decisions["decisions"], &decisions["newly_denied"]), (&6.into(), &3.into()), "{answer}");
    assert_eq!((&decisions["one_client_in"], &decisions["cut_minutes"]), (&1.into(), &0.into()), "{answer}");
    assert_eq!(decisions["keys_changed"], 1, "{answer}");
    let (key, limit) = (&decisions["keys"][0], &decisions["by_limit"]["per-key"]);
    assert_eq!(
        (&key["limit"], &key["newly_denied"], &limit["newly_allowed"]),
        (&"per-key".into(), &3.into(), &0.into())
    );
    assert!(key["key"].as_str().unwrap().starts_with("api_key=sha256:"), "{answer}");
    assert_eq!(server.remaining("k"), 0);

    let freeing = scratch.file("new.yaml", "limits: [{name: per-key, by: [api_key, path], rate: 100/h}]");
    let printed = operate(&server, &["policy", "diff", &freeing, "--live", "--last", "1h"]).output().unwrap();
    let text = stdout(&printed);
    assert_eq!(printed.status.code(), Some(1), "{}", stderr(&printed));
    for expected in [
        "1 of 7 decisions change: 0 newly denied, 1 newly allowed",
        "note: not kept, because the active policy did not read it all the time: path; limits that read it see requests without it",
        "by per-key: 1 newly allowed",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
    for (query, expected) in [("last=2h", "accepted: 1s to 1h"), ("last=1h&for=1s", "give one of them")] {
        let problem =
            ask(&server, TOKEN, "POST", &format!("/admin/v1/policy/diff?{query}"), POLICY).problem(400);
        assert!(problem.contains(expected), "{problem}");
    }
    let kept = ask(&server, TOKEN, "GET", "/admin/v1/requests", "").json();
    let text = kept.to_string();
    assert!(text.contains("sha256:") && !text.contains("\\\"k\\\""), "credentials are digests: {text}");
}
