//! The views of operators' commands are true: the stories of keys, rules and times that were shown otherwise.

use std::fs;

use serde_json::{Value, json};
use tollgate_testkit::Scratch;

use crate::admin::{TOKEN, server};
use crate::command_outcomes::{printed, says, shown};
use crate::gateway_upstream::Upstream;
use crate::identity::gateway;
use crate::program::{Server, run, stderr, stdout, tollgate};

/// A server with a token and these arguments.
fn with(arguments: &[&str], policy: &str) -> Server {
    let mut command = tollgate(&[&["serve", "--http", "127.0.0.1:0"], arguments].concat());
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    Server::spawn(command, policy)
}

#[track_caller]
fn is_refused(server: &Server, words: &str, expected: &str) {
    let (code, text) = printed(server, words);
    assert_ne!(code, Some(0), "{words}: {text}");
    assert!(text.contains(expected), "{words}: {expected:?} is not in {text}");
}

/// The story: the gateway refused `/users/77` by a limit on the template of its path, and `explain` of that path said that no limit applies:
/// the request has no route. What the gateway derives from the path is derived for operators, too.
#[test]
fn templates_of_paths_are_explained_as_the_gateway_decides() {
    let (upstream, folder) = (Upstream::start(), Scratch::new());
    fs::write(folder.path("config.yaml"), "attributes: {route: {path: [\"/users/{id}\"]}}\n").unwrap();
    let policy = "limits: [{name: route, by: [route], rate: 2/h}]";
    let gateway = gateway(&upstream, policy, &["--config", &folder.text("config.yaml")]);
    let server = &gateway.server;
    let ask = || gateway.get("/users/77", "").status;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    for path in ["/users/77", "/users/8", "/USERS/9/"] {
        let attributes = format!("path={path} method=GET ip=127.0.0.1");
        says(server, &format!("explain {attributes}"), &["such a request is denied now", "route: denies"]);
        says(server, &format!("get {attributes}"), &["such a request is denied now", "0 of 2"]);
        let shown = shown(server, &format!("explain {attributes}"));
        assert_eq!(shown["as_given"], json!({"allowed": true, "limits": []}), "a program tells no route");
    }
    says(server, "explain path=/other", &["the request has no route"]);
    says(server, "explain path=/users/7 route=/mine", &["such a request passes now", "2 of 2"]);
    says(server, "reset path=/users/77", &["1 counter reset: route"]);
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
}

/// The story: a limit denied the POST requests of an address, and `get` of that address said that a request passes, and
/// not a word of the limit. It shows the counter, and says on what it depends.
#[test]
fn a_limit_that_may_apply_is_shown() {
    let server = server("limits: [{name: writes, by: [ip], when: {method: POST}, rate: 2/h}]");
    for _ in 0..3 {
        server.check(r#"{"attributes":{"ip":"192.0.2.1","method":"POST"}}"#);
    }
    let incomplete =
        "incomplete: whether writes applies depends on method; where it applies, it denies now\n";
    let expected =
        [incomplete, "a request with these attributes alone passes now", "0 of 2", "writes: last denied "];
    says(&server, "get ip=192.0.2.1", &expected);
    let expected = [incomplete, "  - where it applies: 0 of 2 are left: it admits", "  - last denied "];
    says(&server, "explain ip=192.0.2.1", &expected);
    says(&server, "get ip=192.0.2.2", &["incomplete: whether writes applies depends on method\n", "2 of 2"]);
    let shown = shown(&server, "get ip=192.0.2.1");
    assert_eq!((&shown["allowed"], &shown["limits"][0]["applies"]), (&json!(true), &json!(false)));
    assert_eq!(shown["limits"][0]["counter"]["remaining"], 0);
}

/// The story: another program's file was changed, and `reload` said "reloaded" and not what; from a policy to such a file it said that
/// a limit was added that is in no file. It names rules, and so do the numbers.
#[test]
fn a_reload_of_compat_rules_reports_the_changes() {
    let folder = Scratch::new();
    let file = folder.text("policy.yaml");
    let rule = |key: &str, units: u32| {
        format!("  - {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {units}}}}}\n")
    };
    let envoy = |rules: &[String]| {
        fs::write(&file, format!("domain: d\ndescriptors:\n{}", rules.concat())).unwrap();
    };
    envoy(&[rule("a", 2), rule("b", 2)]);
    let server = with(&["--policy", &file], "");
    assert_eq!(server.metric("tollgate_policy_limits"), 2);
    // Each step looks like an accident, so that the server does not take it by itself first.
    envoy(&[rule("a", 2_000), rule("q", 1)]);
    let (_, text) = printed(&server, "reload --force");
    for expected in [
        "reloaded\n",
        "changed d: each a\n  - d: each a: 2 requests an hour\n  + d: each a: 2000 requests an hour\n",
        "added d: each q\n",
        "removed d: each b\n",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
    envoy(&[rule("a", 2_000), rule("q", 1_000)]);
    let done = shown(&server, "reload --force");
    assert_eq!(
        (&done["changed"], &done["added"], &done["removed"]),
        (&json!(["d: each q"]), &json!([]), &json!([]))
    );
    says(&server, "audit", &["1 changed, 1 added, 1 removed", "1 changed, 0 added, 0 removed"]);
    fs::write(&file, "limits: [{name: own, by: [k], rate: 1/h}]").unwrap();
    says(&server, "reload --force", &["added own", "removed d: each a", "removed d: each q"]);
    envoy(&[rule("a", 2_000)]);
    let (_, text) = printed(&server, "reload --force");
    assert!(text.contains("removed own") && text.contains("added d: each a"), "{text}");
    let metrics = String::from_utf8(server.send("GET", "/metrics", "").body).unwrap();
    for page in [text, metrics, printed(&server, "limits").1] {
        assert!(!page.contains("ask-by-rls-or-json"), "{page}");
    }
}

/// The story: `get` and `explain` of a key that `block_for` refuses said how long that lasts, and the key was denied for longer, since its
/// counter needed longer. Both times are shown, and the later one is the one of the decision.
#[test]
fn a_penalty_has_the_time_of_the_decision() {
    let server = server(
        "limits: [{name: login, by: [k], algorithm: sliding-window, rate: 3/h, block_for: {after: 1, in: 10s, for: 60s}}]",
    );
    let check = || server.check(r#"{"attributes":{"k":"x"}}"#);
    (0..4).for_each(|_| drop(check()));
    for words in ["get k=x", "explain k=x"] {
        let state = &shown(&server, words)["limits"][0]["state"];
        let decided = check()["retry_after_ms"].as_u64().unwrap();
        let (refused, retry) =
            (state["refused_for_ms"].as_u64().unwrap(), state["retry_after_ms"].as_u64().unwrap());
        assert!(refused <= 60_000 && retry >= decided && retry - decided < 60_000, "{state} {decided}");
        assert!(retry > 3_000_000, "the counter needs longer: {state}");
        assert_eq!((&state["remaining"], &state["limit"]), (&0.into(), &3.into()), "{state}");
    }
    says(
        &server,
        "get k=x",
        &["login  blocked", "login: refuses the key for another ", "; the request passes in 1 h"],
    );
    says(
        &server,
        "explain k=x",
        &["denied for another ", ", and its counter admits it in 1 h", "source: penalty"],
    );
}

/// The story: with `anonymous: retry-after` the gateway hid quotas from callers without a credential, and `/v1/check` and `/json` wrote
/// them into the headers that are for the caller.
#[test]
fn quotas_are_hidden_from_strangers_on_every_wire() {
    let folder = Scratch::new();
    fs::write(folder.path("config.yaml"), "headers: {anonymous: retry-after}\n").unwrap();
    let server = with(
        &["--policy", "-", "--config", &folder.text("config.yaml")],
        "limits: [{name: per-ip, by: [ip], rate: 1/h}]",
    );
    let names =
        |answer: &Value| -> Vec<String> { answer["headers"].as_object().unwrap().keys().cloned().collect() };
    let known = server.check(r#"{"attributes":{"ip":"192.0.2.1","api_key":"k"}}"#);
    assert!(names(&known).iter().any(|name| name.starts_with("X-RateLimit")), "{known}");
    let ask = || server.check(r#"{"attributes":{"ip":"192.0.2.2"}}"#);
    let passed = ask();
    assert_eq!((names(&passed), &passed["limits"][0]["limit"]), (vec![], &1.into()), "{passed}");
    let denied = names(&ask());
    assert!(denied.iter().any(|name| name == "Retry-After"), "{denied:?}");
    assert!(!denied.iter().any(|name| name.contains("RateLimit")), "{denied:?}");
    let rls = |entries: Value| {
        let body = json!({"domain": "d", "descriptors": [{"entries": entries}]}).to_string();
        server.send("POST", "/json", &body).json().to_string()
    };
    let ip = json!({"key": "ip", "value": "192.0.2.3"});
    let stranger = rls(json!([ip]));
    assert!(!stranger.contains("RateLimit"), "{stranger}");
    let known = rls(json!([ip, {"key": "api_key", "value": "k"}]));
    assert!(known.contains("RateLimit"), "{known}");
}

/// The story: `block command=CL.THROTTLE` and `block api_key=sha256:6ab9` said "is blocked" and blocked no request; `get` said that nothing
/// counts such a key. What no request has is refused with what is accepted.
#[test]
fn nearly_right_spellings_are_refused() {
    let server = server("limits: [{name: per-key, by: [api_key], rate: 3/h}]");
    let digest = "sha256:6ab9f1eb8f7d3388f4f9d586f66e99fd";
    for verb in ["get", "explain", "reset", "block --for 1m"] {
        is_refused(&server, &format!("{verb} key=x command=CL.THROTTLE"), "accepted: cl.throttle");
        is_refused(&server, &format!("{verb} key=x command=Throttle"), "accepted: throttle");
        for wrong in ["sha256:6ab9", &digest.to_uppercase(), &digest[..38]] {
            is_refused(&server, &format!("{verb} api_key={wrong}"), "begins as a digest and is none");
        }
    }
    says(&server, &format!("block api_key={digest} --for 1m"), &["is blocked"]);
    assert_eq!(server.check(r#"{"attributes":{"api_key":"k1"}}"#)["allowed"], false);
    // A key that the command counts apart, and has not counted yet.
    says(&server, "reset key=never command=cl.throttle", &["no counter existed", "by cl.throttle"]);
    let answer = server.resp_exchange(b"CL.THROTTLE never 0 1 3600\r\nQUIT\r\n");
    assert!(answer.starts_with("*5\r\n:0\r\n"), "{answer}");
    says(&server, "reset key=never command=cl.throttle", &["1 counter reset"]);
    says(&server, "reset tenant=x", &["no limit has a counter for these attributes"]);
}

/// The story: `callers add` took a credential with a space before it, and a digest that had lost its end, which no request has; and of an
/// attribute that is given twice it said that the file is not one caller to a line.
#[test]
fn callers_that_no_request_has_are_refused() {
    let folder = Scratch::new();
    let file = folder.text("callers.yaml");
    let add = |words: &[&str]| {
        let output = run(&[&["callers", "add"], words, &["--file", &file]].concat(), b"");
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    for (credential, why) in [
        (" k3", "white space around it"),
        ("k3 ", "white space around it"),
        ("k\t3", "a control character"),
        ("sha256:6ab9", "begins as a digest and is none"),
        ("SHA256:6ab9f1eb8f7d3388f4f9d586f66e99fd", "begins as a digest and is none"),
    ] {
        let (code, printed) = add(&[credential, "plan=a"]);
        assert_eq!(code, Some(2), "{credential:?}: {printed}");
        assert!(printed.contains(why) && !printed.contains("k3"), "{credential:?}: {printed}");
    }
    let (code, printed) = add(&["k9", "plan=a", "plan=b"]);
    assert!(code == Some(2) && printed.contains("plan is given twice"), "{printed}");
    assert_eq!(add(&["k9", "plan=a"]).0, Some(0));
}

/// The story: one rule that no policy can say made `policy convert` write nothing at all. The others are written, it is a note, and the
/// command fails and names it.
#[test]
fn a_conversion_writes_the_rules_that_have_a_limit() {
    let envoy = "domain: d
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: api_key, value: 'k*', rate_limit: {unit: day, requests_per_unit: 1}}
";
    let output = run(&["policy", "convert", "-"], envoy.as_bytes());
    let (text, problems) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{problems}");
    assert!(text.contains("by: [user]") && text.contains("# NOT CONVERTED: a policy refuses it: "), "{text}");
    assert!(
        problems.contains("1 rule NOT CONVERTED; what these refuse would pass:\n  api_key=k*: "),
        "{problems}"
    );
    assert!(!problems.contains("the converted policy:"), "{problems}");
    assert!(problems.contains("1 limit converted, with 1 change of meaning:"), "{problems}");
    let check = run(&["policy", "check", "-"], text.as_bytes());
    assert_eq!(check.status.code(), Some(0), "{}", stderr(&check));
}

/// The page about `percent` spoke of `--all`, which the command did not take.
#[test]
fn a_share_of_all_limits() {
    let server = server("limits: [{name: a, by: [k], rate: 1/h}, {name: b, rate: 9/h}]");
    says(&server, "percent --all 0 --for 12h", &["enforced for 0 % of keys until"]);
    let limits = shown(&server, "limits");
    assert_eq!(
        (&limits["limits"][0]["percent"], &limits["limits"][1]["percent"]),
        (&0.into(), &100.into()),
        "{limits}"
    );
    says(&server, "restore --all", &["restored"]);
    says(&server, "percent a 5", &["enforced for 5 % of keys until"]);
    for wrong in ["percent 5", "percent a --all 5", "percent --all", "percent --all 101"] {
        assert_eq!(printed(&server, wrong).0, Some(2), "{wrong}");
    }
}
