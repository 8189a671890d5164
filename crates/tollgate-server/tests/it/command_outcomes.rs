//! Operators' commands report what happened: the story of each time that they did not.

use std::fs;

use serde_json::{Value, json};
use tollgate_testkit::Scratch;

use crate::admin::{TOKEN, server};
use crate::gateway_upstream::Upstream;
use crate::identity::gateway;
use crate::program::{Server, stderr, stdout, tollgate};
use crate::rls::{self, Client};

pub(crate) use tollgate_testkit::admin::{output_of as printed, says, shown};

/// Whether a check with these attributes passes.
fn passes(server: &Server, attributes: &Value) -> bool {
    server.check(&json!({ "attributes": attributes }).to_string())["allowed"] == true
}

/// `docs/http.md` said that `limits` has every limit that applied. It has every one that was asked; answers that ask none have fewer, and
/// the page lists them.
#[test]
fn answers_have_the_limits_that_were_asked() {
    let policy = "limits:
  - {name: per-key, by: [api_key], rate: 3/h}
  - {name: plan, by: [tenant], tier_by: plan, tiers: {free: 10/h, gold: unlimited, bad: deny}}
  - {name: tokens, by: [api_key], rate: 100/h, cost: tokens}";
    let server = server(policy);
    let asked = |plan: &str, tokens: &Value| {
        let attributes = json!({"api_key": "k", "tenant": "t", "plan": plan, "tokens": tokens});
        let answer = server.check(&json!({ "attributes": attributes }).to_string());
        let limits: Vec<String> =
            answer["limits"].as_array().unwrap().iter().map(|limit| limit["name"].to_string()).collect();
        (answer["verdict"].as_str().unwrap().to_owned(), limits.join(" ").replace('"', ""))
    };
    let all = "per-key plan tokens".to_owned();
    assert_eq!(asked("gold", &json!(5)), ("allow".to_owned(), all.clone()));
    assert_eq!(asked("free", &json!(96)), ("deny".to_owned(), all.clone()));
    assert_eq!(asked("free", &json!(500)), ("never".to_owned(), all));
    assert_eq!(asked("bad", &json!(5)), ("deny".to_owned(), "plan".to_owned()));
    assert_eq!(asked("free", &json!("x")), ("never".to_owned(), String::new()));
    let (code, _) = printed(&server, "block api_key=k --for 1m");
    assert_eq!((code, asked("free", &json!(5))), (Some(0), ("deny".to_owned(), String::new())));
    assert_eq!(server.check(r#"{"attributes":{"ip":"::1"}}"#)["limits"], json!([]));
}

/// The story: a limit that no request could meet looked like one that works.
#[test]
fn limits_without_requests_are_marked() {
    let server = server("limits: [{name: met, by: [ip], rate: 5/h}, {name: unmet, by: [adress], rate: 5/h}]");
    assert!(passes(&server, &json!({"ip": "192.0.2.1"})));
    let limits = shown(&server, "limits");
    let applied = [0, 1].map(|index| limits["limits"][index]["applied"].as_bool());
    assert_eq!(applied, [Some(true), Some(false)], "{limits}");
    let (_, table) = printed(&server, "limits");
    assert_eq!(table.matches("; no request yet since this server started").count(), 1, "{table}");
}

/// The story: `restore per-key` said "the policy holds again" while all limits were off, and `limits` said "enforce" of each of them.
#[test]
fn a_restore_reports_remaining_overrides() {
    let server = server("limits: [{name: a, by: [k], rate: 1/h}, {name: b, by: [k], rate: 1/h, mode: off}]");
    let key = json!({"k": "x"});
    assert!(passes(&server, &key) && !passes(&server, &key));
    says(&server, "kill --all --for 10m", &["off until"]);
    let limits = shown(&server, "limits");
    let rows: Vec<&Value> = limits["limits"].as_array().unwrap().iter().collect();
    assert_eq!(
        (&rows[0]["mode"], &rows[0]["effective_override"]["override"]),
        (&"off".into(), &"off".into()),
        "{limits}"
    );
    assert_eq!(
        (&rows[1]["mode"], rows[1].get("effective_override")),
        (&"off".into(), None),
        "it is off in the policy"
    );
    let (_, table) = printed(&server, "limits");
    assert!(!table.contains("enforce"), "{table}");
    says(&server, "kill a --for 1h", &["off until"]);
    says(
        &server,
        "restore a",
        &["restored, but the policy does not hold yet", "still overridden: all limits are off until"],
    );
    assert!(passes(&server, &key));
    says(
        &server,
        "percent a 50",
        &["enforced for 50 % of keys", "a milder override holds: all limits are off"],
    );
    says(&server, "shadow a --for 1h", &["shadow until"]);
    says(
        &server,
        "restore --all",
        &["restored, but the policy does not hold yet", "still overridden: a is shadow"],
    );
    assert!(passes(&server, &key));
    says(&server, "shadow --all --for 10m", &["shadow until"]);
    says(&server, "kill a --for 1h", &["off until"]);
    says(&server, "shadow --all --for 10m", &["shadow until", "a milder override holds: a is off until"]);
    says(&server, "restore --all", &["still overridden: a is off"]);
    assert_eq!(printed(&server, "restore --all").0, Some(1), "there was nothing to restore");
    says(&server, "restore a", &["restored: the policy holds again"]);
    assert!(!passes(&server, &key));
}

/// The story: `restore logn` said "there was nothing to restore" while login stayed off. An override of a limit that left the policy
/// can still be restored.
#[test]
fn a_restore_of_an_unknown_limit_is_an_error() {
    let scratch = Scratch::new();
    let file =
        scratch.file("policy.yaml", "limits: [{name: login, by: [k], rate: 1/h}, {name: old, rate: 1/h}]");
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &file]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    says(&server, "kill login", &["off until"]);
    says(&server, "kill old", &["off until"]);
    scratch.file("policy.yaml", "limits: [{name: login, by: [k], rate: 1/h}]");
    // The server may have seen the file by itself.
    assert_eq!(printed(&server, "reload --force").0, Some(0));
    let unknown = |name: &str, cure: &str| {
        let expected = format!("tollgate: the active policy has no limit {name:?}; {cure}\n");
        assert_eq!(printed(&server, &format!("restore {name}")), (Some(2), expected));
    };
    unknown("logn", "did you mean login?");
    says(&server, "restore old", &["restored: the policy holds again"]);
    unknown("old", "accepted: login");
    says(&server, "restore login", &["restored: the policy holds again"]);
    assert_eq!(printed(&server, "restore login"), (Some(1), "there was nothing to restore\n".to_owned()));
}

/// The story: `unblock apikey=k9` said that there is no such block, and not that no limit uses `apikey`.
#[test]
fn an_unblock_of_a_misspelt_attribute_says_which_is_meant() {
    let server = server("limits: [{name: a, by: [api_key], rate: 1/h}]");
    let block = "there is no block of exactly these attributes\n";
    says(&server, "block api_key=k9 --for 10m", &["is blocked"]);
    let doubt = "tollgate: warning: no limit uses apikey; did you mean api_key?\n";
    assert_eq!(printed(&server, "unblock apikey=k9"), (Some(1), format!("{block}{doubt}")));
    assert_eq!(printed(&server, "unblock api_key=k8"), (Some(1), block.to_owned()));
    says(&server, "unblock api_key=k9", &["unblocked"]);
    says(&server, "block apikey=k9 --for 10m --anyway", &["is blocked"]);
    assert_eq!(printed(&server, "unblock apikey=k9"), (Some(0), "unblocked\n".to_owned()));
}

/// The story: the column of the mode took more than half of a terminal, with milliseconds of tomorrow.
#[test]
fn limits_show_the_end_of_an_override_briefly() {
    let server = server("limits: [{name: a, by: [k], rate: 1/h}, {name: b, by: [k], rate: 1/h}]");
    says(&server, "shadow a --for 35m", &["shadow until"]);
    says(&server, "percent b 25 --for 48h", &["enforced for 25 % of keys until"]);
    let (_, table) = printed(&server, "limits");
    let mode = |row: usize| -> String {
        let words = table.lines().nth(row).unwrap().split("  ").map(str::trim);
        words.filter(|word| !word.is_empty()).nth(1).unwrap().to_owned()
    };
    let (near, far) = (mode(1), mode(2));
    assert_eq!((near.len(), &near[..13]), ("shadow until 00:03:15Z".len(), "shadow until "), "{table}");
    assert_eq!(
        (far.len(), &far[..21]),
        ("enforce 25 % until 2026-11-22T00:03:15Z".len(), "enforce 25 % until 20"),
        "{table}"
    );
}

/// The story: the answer to a wrong token began with "A token is needed".
#[test]
fn a_wrong_token_is_called_wrong() {
    let server = server("limits: [{name: a, by: [k], rate: 1/h}]");
    let url = format!("http://{}", server.address);
    let output =
        tollgate(&["get", "k=1", "--admin", &url, "--token", "wrong-token-0123456789"]).output().unwrap();
    let expected = "tollgate: wrong token: the token is not known; a token that a server made is gone when it is \
                    started again; give the right one with --token, TOLLGATE_ADMIN_TOKEN or --token-file FILE\n";
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(2), expected));
}

/// The story: with 120 keys `top --once` gave the sum of 20 as the total, and said nothing of the others.
#[test]
fn the_total_of_top_is_of_all_keys() {
    let server = server("limits: [{name: per-key, by: [api_key], rate: 1/h}]");
    for key in (0..120).chain(0..120) {
        passes(&server, &json!({ "api_key": format!("k{key}") }));
    }
    let (_, frame) = printed(&server, "top --once");
    let total: Vec<&str> =
        frame.lines().find(|line| line.starts_with("total ")).unwrap().split_whitespace().collect();
    assert_eq!(
        (total[1], total[2], &total[total.len() - 2..]),
        ("240", "120", &["120", "keys"][..]),
        "{frame}"
    );
    assert!(frame.contains("and 100 more keys; --keys N shows more\n"), "{frame}");
    assert!(!printed(&server, "top --once --keys 200").1.contains("more keys"));
    assert_eq!(shown(&server, "top --once --keys 30")["keys"].as_array().map(Vec::len), Some(30));
}

/// The story: a reset by what a limit counts by found no limit, because the limit has a `when`, also where it was named; and of a tenant
/// without its plan it forgot another tier's counter, and said "1 counter reset".
#[test]
fn a_reset_finds_the_counters_of_a_key() {
    let server = server(
        "limits:
- {name: login, when: {path: /login}, by: [ip], rate: 1/h}
- {name: plan, by: [tenant], tier_by: plan, tiers: {free: 1/h, pro: 1/day}}
- {name: pair, by: [user, ip], rate: 1/h}
",
    );
    let login = json!({"ip": "192.0.2.1", "path": "/login"});
    for words in ["reset ip=192.0.2.1", "reset ip=192.0.2.1 --limit login"] {
        assert!(passes(&server, &login) && !passes(&server, &login));
        says(&server, words, &["1 counter reset: login"]);
        assert!(passes(&server, &login), "{words}");
        says(&server, words, &["1 counter reset: login"]);
        says(&server, words, &["no counter existed: nothing was counted for these attributes by login"]);
    }
    says(
        &server,
        "reset ip=192.0.2.1 --limit pair --limit login",
        &["no counter existed", "pair counts no such request: the request has no user"],
    );
    says(
        &server,
        "reset ip=192.0.2.1 path=/x --limit login",
        &["nothing was reset", "login counts no such request: path is \"/x\""],
    );
    let plans = ["free", "pro"].map(|plan| json!({"tenant": "t", "plan": plan}));
    for plan in &plans {
        assert!(passes(&server, plan) && !passes(&server, plan));
    }
    // The story: `get` without the plan was about another tier, and said nothing of the counters of the plans.
    says(&server, "get tenant=t", &["plan: this is a request without plan; with one it counts apart"]);
    says(
        &server,
        "explain tenant=t",
        &["the request has no plan: requests with one have counters of their own"],
    );
    let reset = shown(&server, "reset tenant=t");
    assert_eq!(reset, json!({"counters": 2, "limits": ["plan"], "untouched": []}));
    assert!(plans.iter().all(|plan| passes(&server, plan)));
    says(&server, "reset tenant=t", &["2 counters reset: plan"]);
}

/// The story: a request was refused because a limit could not compute its cost, and `explain` said that this limit lets it pass.
#[test]
fn a_limit_without_its_cost_is_shown_to_deny() {
    let server = server("limits: [{name: a, by: [t], rate: 9/h}, {name: b, by: [t], rate: 9/h, cost: size}]");
    let decision = server.check(r#"{"attributes":{"t":"x"}}"#);
    assert_eq!((&decision["allowed"], &decision["cause"]), (&false.into(), &"b".into()), "{decision}");
    says(
        &server,
        "explain t=x",
        &[
            "such a request is denied now",
            "\nb: denies\n",
            "- its cost cannot be computed",
            "\na: passes, 9 of 9",
        ],
    );
}

/// The story: `explain key=k1` of a user who meant `api_key` said that no limit applies, without a doubt: `key` is the name
/// of a key that `CL.THROTTLE` counts. Where it has counted the key, that one is meant.
#[test]
fn a_key_that_no_call_has_counted_is_in_doubt() {
    let server = server("limits: [{name: per-key, by: [api_key], rate: 3/h}]");
    let doubt =
        "no limit uses key, and no CL.THROTTLE or THROTTLE has counted this key; did you mean api_key?";
    for words in ["explain key=k1", "get key=k1"] {
        says(&server, words, &[doubt]);
    }
    server.resp_exchange(b"CL.THROTTLE k1 0 1 3600\r\nQUIT\r\n");
    let (_, text) = printed(&server, "explain key=k1");
    assert!(!text.contains("did you mean"), "{text}");
}

/// A short look at denials that finds none says so, and how to see those that were before. It printed nothing.
#[test]
fn a_look_that_finds_nothing_says_so() {
    let server = server("limits: [{name: per-key, by: [api_key], rate: 3/h}]");
    let remembered = "no such denial within this second; --since 10m shows those that the server remembers";
    says(&server, "tail --denied --once", &[remembered]);
    says(&server, "tail --would-deny --once", &[remembered]);
    let (_, json) = printed(&server, "tail --denied --once --json");
    assert!(json.is_empty(), "{json}");
}

/// The story: of a key that `CL.THROTTLE` counts and denies, `get` and `explain` said that it passes, not counted, because no limit of
/// the policy applies. Such a call tells its limit, so only the call can tell whether it passes.
#[test]
fn a_call_that_carries_its_limit_is_not_shown_to_pass() {
    let server = server("limits: [{name: per-key, by: [api_key], rate: 3/h}, {name: all, rate: 99/h}]");
    let throttle = || server.resp_exchange(b"CL.THROTTLE x 0 1 3600\r\nQUIT\r\n");
    says(&server, "get key=x command=cl.throttle", &["nothing is counted for its key"]);
    assert!(throttle().starts_with("*5\r\n:0\r\n"));
    assert!(throttle().starts_with("*5\r\n:1\r\n"));
    for words in ["get key=x command=cl.throttle", "explain key=x command=cl.throttle"] {
        let (_, text) = printed(&server, words);
        assert!(
            text.starts_with("whether such a call passes now depends on the limit that it carries\n"),
            "{text}"
        );
        assert!(text.contains("cl.throttle, by limits of its own: all back in "), "{text}");
        assert!(!text.contains("per-key") && !text.contains("not counted"), "{text}");
        let shown = shown(&server, words);
        assert_eq!((&shown["allowed"], &shown["carries_its_limit"]), (&Value::Null, &true.into()), "{shown}");
    }
    says(&server, "get key=x", &["such a request passes now", "cl.throttle, by limits of its own"]);
    says(&server, "block key=x --for 10m", &["is blocked"]);
    says(&server, "get key=x command=cl.throttle", &["such a call is denied now"]);
    says(&server, "unblock key=x", &["unblocked"]);
    says(&server, "kill --all --for 10m", &["off until"]);
    says(&server, "get key=x command=cl.throttle", &["such a call passes now, whatever limit it carries"]);
}

/// The story: the gateway charged `/LOGIN/` to the limit on `/login` and refused it, and `explain` of the very attributes that `tail` had
/// shown said that no limit applies; `reset` of them forgot nothing. All of them read what the gateway reads.
#[test]
fn loosely_spelled_paths_are_explained_as_the_gateway_decides() {
    let policy = "limits: [{name: login, when: {path: /login, host: app.test}, by: [ip], rate: 1/h}, {name: each, by: [path], rate: 99/h}]";
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, policy, &[]);
    let server = &gateway.server;
    let ask = |path: &str| gateway.get(path, "").status;
    for path in ["/LOGIN/", "//login", "/login.json", "/login;x"] {
        assert_eq!((ask(path), ask(path)), (200, 429), "{path}");
        let attributes = format!("ip=127.0.0.1 method=GET path={path} host=app.test:8443");
        says(server, &format!("explain {attributes}"), &["such a request is denied now", "login: denies"]);
        says(server, &format!("get {attributes}"), &["such a request is denied now", "login "]);
        let shown = shown(server, &format!("explain {attributes}"));
        assert_eq!(shown["allowed"], false, "{shown}");
        // Regression: sent as it stands, `/LOGIN/` passed a check. Every protocol compares a path in the same way.
        assert!(
            !passes(server, &json!({"ip": "127.0.0.1", "path": path, "host": "app.test:8443"})),
            "{path}"
        );
        assert_ne!(shown["as_given"]["allowed"], true, "{shown}");
        // What the gateway counted, and what the check did: each by its own path.
        says(server, &format!("reset {attributes}"), &["counters reset: login, each"]);
        assert_eq!((ask(path), ask(path)), (200, 429), "{path}: it was forgotten");
        says(server, "reset ip=127.0.0.1 --limit login", &["1 counter reset: login"]);
    }
    let plain = shown(server, "explain ip=127.0.0.1 path=/other host=app.test");
    assert_eq!(plain.get("as_given"), None, "it makes no difference: {plain}");
}

/// The story: with a callers file that is broken, or changed, `reload` said "nothing to reload: the file is active".
#[test]
fn a_reload_reads_the_callers_file() {
    let scratch = Scratch::new();
    let policy = scratch.text("policy.yaml");
    let callers = scratch.text("callers.yaml");
    fs::write(&policy, "limits: [{name: a, by: [tenant], rate: 1/h}]").unwrap();
    fs::write(&callers, "callers: [{key: k1, tenant: acme}]").unwrap();
    for source in [policy.as_str(), "-"] {
        let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", source, "--callers", &callers];
        fs::write(&callers, "callers: [{key: k1, tenant: acme}]").unwrap();
        let mut command = tollgate(&arguments);
        command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        let server = Server::spawn(command, "limits: [{name: a, by: [tenant], rate: 1/h}]");
        says(&server, "reload", &["nothing to reload"]);
        fs::write(&callers, "callers: [{key: k1, tenant: acme}, {key: k2, tenant: zoo}]").unwrap();
        // The server may have seen it by itself a moment earlier.
        let (code, text) = printed(&server, "reload");
        let is_reported =
            text.contains("the callers file was reloaded, 2 known") || text.contains("nothing to reload");
        assert!(code == Some(0) && is_reported, "{text}");
        assert!(passes(&server, &json!({"api_key": "k2"})) && !passes(&server, &json!({"api_key": "k2"})));
        fs::write(&callers, "callers: [{sha256: zz, plan: x}]").unwrap();
        for _ in 0..2 {
            let (code, text) = printed(&server, "reload");
            assert_eq!(code, Some(1), "{text}");
            assert!(
                text.contains("the callers file was not reloaded, and those before stay known"),
                "{text}"
            );
        }
        assert!(!passes(&server, &json!({"api_key": "k2"})), "it is still known");
        fs::write(&policy, "limits: [{name: a, by: [tenant], rate: 2/h}]").unwrap();
        if source != "-" {
            let (code, text) = printed(&server, "reload");
            assert_eq!(code, Some(1), "{text}");
            assert!(text.contains("the callers file was not reloaded"), "{text}");
            let limits = shown(&server, "limits");
            assert!(limits["limits"][0]["sentence"].as_str().unwrap().contains('2'), "{limits}");
        }
        fs::remove_file(&callers).unwrap();
        assert!(printed(&server, "reload").1.contains("no such file"));
    }
}

/// The story: a reload back to a former algorithm said "restarted", and the old counter went on.
#[test]
fn a_reload_to_the_previous_policy_reports_resumed_counters() {
    let scratch = Scratch::new();
    let policy = scratch.text("policy.yaml");
    let write =
        |more: &str| fs::write(&policy, format!("limits: [{{name: a, by: [k], rate: 9/h{more}}}]")).unwrap();
    write("");
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &policy]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    passes(&server, &json!({"k": "x"}));
    for (more, expected, left) in [
        (", algorithm: gcra", "restarted a: it counts by other counters than before", "9 of 9"),
        ("", "resumed a: it counts again by the counters that it had earlier", "8 of 9"),
    ] {
        write(more);
        let (code, text) = printed(&server, "reload");
        // The server may have seen it by itself a moment earlier, and then there is nothing to tell.
        assert!(code == Some(0) && (text.contains(expected) || text.contains("nothing to reload")), "{text}");
        says(&server, "get k=x", &[left]);
    }
}

/// The story: a reload that put a limit in shadow, or changed its `when`, said "reloaded" and nothing else, as for a changed comment.
#[test]
fn a_reload_lists_every_change() {
    let scratch = Scratch::new();
    let policy = scratch.text("policy.yaml");
    let write =
        |more: &str| fs::write(&policy, format!("limits: [{{name: a, by: [k], rate: 9/h{more}}}]")).unwrap();
    write("");
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &policy]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    for (more, field) in [
        (", mode: shadow", "mode"),
        (", when: {path: /x}", "when"),
        (", on_store_failure: deny", "on_store_failure"),
        (", block_for: 10m", "block_for"),
    ] {
        write(more);
        let (code, text) = printed(&server, "reload --force");
        let is_listed = text.contains("changed a: ") && text.contains(field);
        // The server may have seen it by itself a moment earlier, and then there is nothing to list.
        assert!(code == Some(0) && (is_listed || text.contains("nothing to reload")), "{text}");
    }
}

/// The story: a limit by an attribute that nothing supplies was reported at the start, but not after the reload that brought
/// it, and not by `config check`. All of them say it in the same words.
#[test]
fn a_limit_that_never_applies_is_reported_everywhere() {
    const SAID: &str = "limits[0] \"a\".by[0]: no request through the gateway or /v1/authz has tenannt_id, since the config maps \
                        nothing to it: there the limit never applies";
    let scratch = Scratch::new();
    let (policy, config) = (scratch.text("policy.yaml"), scratch.text("config.yaml"));
    fs::write(&policy, "limits: [{name: a, by: [ip], rate: 9/h}]").unwrap();
    fs::write(&config, "attributes: {plan: {header: X-Plan}}").unwrap();
    let serve = ["serve", "--http", "127.0.0.1:0", "--policy", &policy, "--config", &config];
    let mut command = tollgate(&serve);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let mut server = Server::spawn(command, "");
    let (code, text) = printed(&server, "reload");
    assert_eq!((code, text.as_str()), (Some(0), "nothing to reload: the file is active\n"));
    let check = |more: &[&str]| {
        let output = tollgate(&[&["config", "check", &config], more].concat()).output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let both = format!("{config}: accepted\n{policy}: accepted\n");
    assert_eq!(check(&["--policy", &policy]), (Some(0), both.clone(), String::new()));
    fs::write(&policy, "limits: [{name: a, by: [tenannt_id], rate: 9/h}]").unwrap();
    // The first may come after the server saw the change by itself. The policy that is active has the doubt all the same.
    for _ in 0..2 {
        let (code, text) = printed(&server, "reload");
        assert!(code == Some(0) && text.contains(&format!("{policy}:1:25: warning: {SAID}")), "{text}");
    }
    let warnings = &shown(&server, "reload")["warnings"];
    assert!(
        warnings[0].as_str().unwrap().contains(SAID) && warnings.as_array().unwrap().len() == 1,
        "{warnings}"
    );
    server.await_log("there the limit never applies");
    let (code, out, errors) = check(&["--policy", &policy]);
    assert_eq!((code, out), (Some(0), both), "{errors}");
    assert!(errors.starts_with(&format!("{policy}:1:25: warning: {SAID}")), "{errors}");
    let (_, json, _) = check(&["--policy", &policy, "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["files"][0]["policy"]["warnings"][0].as_str().unwrap().contains(SAID), "{json}");
    fs::write(&policy, "limits: [{name: a, rte: 9/h}]").unwrap();
    let (code, _, errors) = check(&["--policy", &policy]);
    assert!(code == Some(1) && errors.contains("rte: unknown field; did you mean rate?"), "{errors}");
    let (code, _, errors) = check(&["--policy", &scratch.text("none.yaml")]);
    assert!(code == Some(2) && errors.contains("none.yaml: no such file"), "{errors}");
}

/// The story: the findings about a file of 30 mistakes were cut off in the middle of the fourth one.
#[test]
fn a_refused_reload_says_every_finding() {
    let scratch = Scratch::new();
    let policy = scratch.text("policy.yaml");
    fs::write(&policy, "limits: [{name: a, by: [ip], rate: 9/h}]").unwrap();
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &policy]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    let wrong: String = (0..30).map(|n| format!("  - {{name: l{n}, rate: 9/parsec}}\n")).collect();
    fs::write(&policy, format!("limits:\n{wrong}")).unwrap();
    let (code, text) = printed(&server, "reload");
    assert_eq!(code, Some(1), "{text}");
    let findings: Vec<&str> = text.lines().filter(|line| line.contains(".rate: ")).collect();
    assert_eq!((findings.len(), text.contains('…')), (30, false), "{text}");
    assert!(findings[29].starts_with(&format!("{policy}:31:")), "{text}");
}

/// The story: `reset` of nothing ended with 0, where `unblock` and `restore` of nothing end with 1.
#[test]
fn commands_that_do_nothing_end_with_one() {
    let server = server("limits: [{name: a, by: [ip], rate: 9/h}]");
    assert!(passes(&server, &json!({"ip": "192.0.2.1"})));
    for (words, expected) in [
        ("reset ip=192.0.2.1", Some(0)),
        ("reset ip=192.0.2.1", Some(1)),
        ("reset ip=192.0.2.1 --json", Some(1)),
        ("reset tenant=t", Some(1)),
        ("unblock ip=192.0.2.1", Some(1)),
        ("restore a", Some(1)),
        ("restore --all", Some(1)),
    ] {
        let (code, text) = printed(&server, words);
        assert_eq!(code, expected, "{words}: {text}");
    }
}

/// The story: of a limit that had passed, Envoy was sent the time until all of its quota is back, where the page, the header and the
/// denial tell the time until more is there.
#[test]
fn envoy_is_sent_when_more_is_there() {
    let server = Server::start(
        "limits: [{name: two, by: [api_key], rate: 2/h}, {name: day, by: [d], rate: 9/day, algorithm: fixed-window}]",
    );
    let client = Client::new(server.grpc.unwrap());
    let seconds = |entries: &str| {
        let answer = client.ask(rls::question("d", 1, entries)).unwrap();
        let reset = answer.statuses[0].duration_until_reset.as_ref().unwrap().seconds;
        let header = answer.response_headers_to_add.iter().find(|header| header.key == "RateLimit");
        (reset, header.map(|header| header.value.clone()).unwrap_or_default())
    };
    // After one of two, and after both: the next one comes in half an hour; a denial says the same.
    for _ in 0..3 {
        let (reset, header) = seconds("api_key=a");
        assert!((1_790..=1_800).contains(&reset), "{reset}");
        assert!(header.is_empty() || header.contains(&format!("t={reset}")), "{reset}: {header}");
    }
}
