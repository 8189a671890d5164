//! Configurations of other programs, served by the real program.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tollgate_testkit::until;

use crate::admin;
use crate::program::{Server, run, stderr, stdout};
use crate::rls::{Client, question, shown};

const ENVOY: &str =
    "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2, name: daily}}]";
const LIMITADOR: &str = "- {namespace: n, max_value: 2, seconds: 86400, name: daily, conditions: [], variables: [\"descriptors[0]['user']\"]}";

const TIMED: &str = r#"tollgate_decision_duration_seconds_count{wire="rls"}"#;

fn rls(domain: &str, key: &str, value: &str) -> String {
    json!({ "domain": domain, "descriptors": [{ "entries": [{ "key": key, "value": value }] }] }).to_string()
}

/// A directory of files that no other test has, removed when the test is over.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = tollgate_testkit::folder(name);
        for (file, text) in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// envoyproxy/ratelimit's JSON: 200, 429 and 400, with protobuf's spelling of the answer.
#[test]
fn envoy_json() {
    let server = Server::start(ENVOY);
    assert!(server.banner.contains("d: each user: 2 requests a day; called daily"), "{}", server.banner);
    let answer = server.send("POST", "/json", &rls("d", "user", "a"));
    assert_eq!(answer.status, 200);
    let answer = answer.json();
    assert_eq!(answer["overallCode"], "OK");
    let status = &answer["statuses"][0];
    assert_eq!(status["currentLimit"], json!({"name": "daily", "requestsPerUnit": 2, "unit": "DAY"}));
    assert_eq!((&status["code"], &status["limitRemaining"]), (&json!("OK"), &json!(1)));
    assert!(status["durationUntilReset"].as_str().unwrap().ends_with('s'));
    server.send("POST", "/json", &rls("d", "user", "a"));
    let denied = server.send("POST", "/json", &rls("d", "user", "a"));
    assert_eq!((denied.status, denied.json()["overallCode"].clone()), (429, json!("OVER_LIMIT")));
    assert_eq!(denied.json()["statuses"][0].get("limitRemaining"), None);
    assert_eq!(
        server.send("POST", "/json", &rls("d", "other", "a")).json()["statuses"],
        json!([{ "code": "OK" }])
    );
    assert!(server.send("POST", "/json", "{}").problem(400).starts_with("domain: it is empty"));
    assert!(
        server
            .send("POST", "/json", r#"{"domain":"d"}"#)
            .problem(400)
            .starts_with("descriptors: there are none")
    );
    assert!(server.send("POST", "/json", "{").problem(400).starts_with("not valid JSON"));
    assert!(server.send("POST", "/check", "{}").problem(404).contains("envoyproxy/ratelimit"));
}

/// The plain question of `/v1/check` is one descriptor, and nothing passes the configuration by.
#[test]
fn plain_checks_of_a_foreign_configuration() {
    let server = Server::start(ENVOY);
    let body = r#"{"attributes":{"user":"a"}}"#;
    let answer = server.check(body);
    assert_eq!((&answer["allowed"], &answer["limits"][0]["remaining"]), (&json!(true), &json!(1)));
    assert_eq!(
        server.check(r#"{"attributes":{"user":"a","domain":"d"},"cost":0}"#)["limits"][0]["remaining"],
        1
    );
    server.check(body);
    let denied = server.check(body);
    assert_eq!(
        (&denied["allowed"], &denied["verdict"], &denied["limits"][0]["name"]),
        (&json!(false), &json!("deny"), &json!("daily"))
    );
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 0 && denied["headers"]["Retry-After"].is_string());
    let batch = server.send("POST", "/v1/check/batch", &format!("[{body},{{\"attributes\":{{}}}}]")).json();
    assert_eq!((&batch[0]["allowed"], &batch[1]["allowed"]), (&json!(false), &json!(true)));
    assert!(server.send("POST", "/v1/reservations", body).problem(404).contains("cannot reserve"));
    let two = Server::start_with(
        &[
            "serve",
            "--http",
            "127.0.0.1:0",
            "--policy",
            Directory::new("two", &[("a.yaml", "domain: a"), ("b.yaml", "domain: b")]).path(),
        ],
        "",
    );
    assert!(two.send("POST", "/v1/check", body).problem(400).starts_with("attributes.domain: is missing"));
}

/// Limitador's endpoints, its answers and its headers.
#[test]
fn limitador_endpoints() {
    let server = Server::start(LIMITADOR);
    let body =
        |delta: u64| json!({ "namespace": "n", "values": { "user": "a" }, "delta": delta }).to_string();
    let both = |path: &str, delta| {
        let answer = server.send("POST", path, &body(delta));
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    assert_eq!(both("/check", 2), (200, "null".to_owned()));
    assert_eq!(both("/check", 3), (429, "Too many requests".to_owned()));
    assert_eq!(both("/check_and_report", 1), (200, "null".to_owned()));
    assert_eq!(both("/check_and_report", 2), (429, "null".to_owned()));
    let asked = json!({ "namespace": "n", "values": { "user": "a" }, "delta": 1, "response_headers": "DraftVersion03" }).to_string();
    let answer = server.send("POST", "/check_and_report", &asked);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("2, 2;w=86400;name=\"daily\""));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(answer.header("x-ratelimit-reset"), Some("86400"));
    assert_eq!(both("/report", 5), (200, "null".to_owned()));
    assert_eq!(both("/check", 1), (429, "Too many requests".to_owned()));

    let limits = server.send("GET", "/limits/n", "").json();
    let limit = json!({ "id": null, "namespace": "n", "max_value": 2, "seconds": 86400, "name": "daily", "conditions": [], "variables": ["descriptors[0]['user']"] });
    assert_eq!(limits, json!([limit]));
    let counters = server.send("GET", "/counters/n", "").json();
    assert_eq!(counters[0]["limit"], limit);
    assert_eq!(counters[0]["set_variables"], json!({ "descriptors[0]['user']": "a" }));
    assert_eq!((&counters[0]["remaining"], counters.as_array().unwrap().len()), (&json!(0), 1));
    assert_eq!(server.send("GET", "/status", "").json()["config_version"], 1);
    server.send("GET", "/limits/other", "").problem(404);
    assert!(server.send("POST", "/check", r#"{"namespace":"n"}"#).problem(400).contains("values"));
    assert_eq!(server.send("POST", "/json", &rls("n", "user", "a")).status, 429);
}

/// Envoy is answered over gRPC by the same rules, of either format, and TG.CHECK and /v1/authz say where to ask.
#[test]
fn envoy_is_answered_over_grpc() {
    for (file, domain) in [(ENVOY, "d"), (LIMITADOR, "n")] {
        let server = Server::start(file);
        let client = Client::new(server.grpc.unwrap());
        let ask = || shown(&client.ask(question(domain, 1, "user=a")).unwrap());
        for (expected, left) in [("OK: OK", 1), ("OK: OK", 0), ("OVER: OVER", 0)] {
            let reported = ask();
            assert!(reported.starts_with(&format!("{expected} daily 2/DAY left {left} in ")), "{reported}");
        }
        assert_eq!(shown(&client.ask(question(domain, 1, "other=a|x=y")).unwrap()), "OK: OK | OK");
        assert_eq!(server.metric(TIMED), 4, "each decision is timed once");
        assert!(server.send("GET", "/v1/authz", "").problem(404).contains("POST /v1/check"));
    }
}

/// A file that changes is put in force while the server runs, with the counters that there are.
#[test]
fn a_foreign_file_is_reloaded() {
    let directory = Directory::new("reload", &[("config.yaml", ENVOY)]);
    let server = Server::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", directory.path()], "");
    for status in [200, 200, 429] {
        assert_eq!(server.send("POST", "/json", &rls("d", "user", "a")).status, status);
    }
    fs::write(directory.0.join("config.yaml"), ENVOY.replace("unit: 2,", "unit: 9,")).unwrap();
    let is_active = || {
        let look =
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}],"hitsAddend":0}]}"#;
        let answer = server.send("POST", "/json", look);
        (answer.status, answer.json()["statuses"][0]["limitRemaining"].clone()) == (200, json!(6))
    };
    until("the new file is in force", || is_active().then_some(()));
}

/// A policy of our own has neither interface, and says so.
#[test]
fn a_native_policy_names_its_own_ways() {
    let server = Server::start(crate::program::SLOW_POLICY);
    for path in ["/limits/n", "/counters/n", "/status"] {
        assert!(server.send("GET", path, "").problem(404).contains("POST /v1/check"), "{path}");
    }
    assert!(server.send("POST", "/report", "{}").problem(404).contains("Tollgate policy"));
    let answer = server.send("POST", "/json", &rls("any", "api_key", "a"));
    assert_eq!(
        (answer.status, &answer.json()["overallCode"]),
        (200, &json!("OK")),
        "/json answers for every policy"
    );
    assert_eq!(server.metric(TIMED), 1);
}

/// A directory is read as a mounted configuration is: below it, in order, without what begins with a dot.
#[test]
fn directories() {
    let files = [
        ("b/two.yaml", "domain: two\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]"),
        ("a.yaml", ENVOY),
        (".hidden/a.yaml", ENVOY),
        ("..data", "garbage: ["),
    ];
    let directory = Directory::new("several", &files);
    let output = run(&["policy", "check", directory.path()], b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let expected = format!(
        "{}: envoyproxy/ratelimit configuration, 2 rules\n  d: each user: 2 requests a day; called daily\n  two: each k: 1 request a day\n",
        directory.path()
    );
    assert_eq!(stdout(&output), expected);

    let mixed = Directory::new("mixed", &[("a.yaml", ENVOY), ("b.yaml", LIMITADOR)]);
    let output = run(&["policy", "check", mixed.path()], b"");
    assert_eq!(output.status.code(), Some(2), "it cannot be read as one policy");
    assert!(stderr(&output).contains("its files have different formats: "), "{}", stderr(&output));

    let native = Directory::new("native", &[("policy.yaml", crate::program::SLOW_POLICY)]);
    assert_eq!(run(&["policy", "check", native.path()], b"").status.code(), Some(0));
    let natives = Directory::new(
        "natives",
        &[("a.yaml", crate::program::SLOW_POLICY), ("b.yaml", crate::program::SLOW_POLICY)],
    );
    let output = run(&["policy", "check", natives.path()], b"");
    assert!(
        stderr(&output).contains("there are 2 files in this directory; a policy is one file: name it"),
        "{}",
        stderr(&output)
    );
}

/// Envoy's files may share parts by anchors and merge keys; what a table says itself comes first.
#[test]
fn merge_keys() {
    let file = "domain: d\ndescriptors:\n  - &a {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n  - {<<: *a, key: b}\n  - {<<: [{key: c}, *a], shadow_mode: true}\n";
    let output = run(&["policy", "check", "-"], file.as_bytes());
    assert_eq!(
        stdout(&output).lines().skip(1).collect::<Vec<_>>(),
        [
            "  d: each a: 1 request a day",
            "  d: each b: 1 request a day",
            "  d: each c: 1 request a day; counted, never refused (shadow_mode)"
        ],
        "{}",
        stderr(&output)
    );
    let output = run(&["policy", "check", "-"], b"domain: d\ndescriptors: [{<<: x, key: b}]\n");
    assert!(stderr(&output).contains("descriptors[0].<<: "), "{}", stderr(&output));
}

/// Wrong files of every format are refused with every reason, and a server does not start with them.
#[test]
fn wrong_files() {
    for (file, expected) in [
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: eon}\n  - value: b\n",
            "<stdin>:4:24: descriptors[0].rate_limit.unit: eon is unknown",
        ),
        (
            "- {namespace: n, seconds: x, conditions: [], variables: ['((']}\n",
            "<stdin>:1:27: [0].seconds: x is no such number",
        ),
    ] {
        for (arguments, status) in [
            (&["policy", "check", "-"][..], 1),
            (&["serve", "--http", "127.0.0.1:0", "--policy", "-"], 2),
            (&["policy", "convert", "-"], 2),
        ] {
            let output = run(arguments, file.as_bytes());
            assert_eq!(output.status.code(), Some(status), "{arguments:?}");
            assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
        }
    }
}

/// A rule compares values as they stand, also a path in a spelling that no request has at the gateway. The policy that it becomes must
/// still compile, and mean the same: it declares such an attribute as a text.
#[test]
fn conversions_compare_values_as_they_stand() {
    let envoy = "domain: d
descriptors:
  - {key: path, value: /café, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: method, value: get, rate_limit: {unit: minute, requests_per_unit: 10}}
";
    let output = run(&["policy", "convert", "-"], envoy.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("attributes: [{ method: text }, { path: text }]"), "{text}");
    let check = run(&["policy", "check", "-"], text.as_bytes());
    assert_eq!(check.status.code(), Some(0), "{}\n{text}", stderr(&check));
}

/// The story: the limit of a general rule beside longer ones was one `!has` after the other, which said how and not why.
/// A rule is for descriptors with its entries and no others, and the file says that once.
#[test]
fn rules_beside_longer_ones_are_readable() {
    let longer = ["method", "path", "country"]
        .map(|key| format!("      - {{key: {key}, rate_limit: {{unit: minute, requests_per_unit: 1}}}}\n"));
    let envoy = format!(
        "domain: d\ndescriptors:\n  - key: remote_address\n    value: 10.0.0.1\n  - key: remote_address\n    \
         rate_limit: {{unit: minute, requests_per_unit: 9}}\n    descriptors:\n{}",
        longer.concat()
    );
    let output = run(&["policy", "convert", "-"], envoy.as_bytes());
    let text = stdout(&output);
    let expected = "domain: d
defaults: { extra_attributes: none, algorithm: fixed-window, align: epoch }
limits:

  # remote_address
  - name: remote_address
    when: { remote_address: { not: \"10.0.0.1\" } }
    by: [remote_address]
    rate: 9/min

  # remote_address, method
  - name: remote_address-method
    when: { remote_address: { not: \"10.0.0.1\" } }
    by: [remote_address, method]
    rate: 1/min
";
    assert!(text.contains(expected), "{text}");
    let check = run(&["policy", "check", "-"], text.as_bytes());
    assert_eq!(check.status.code(), Some(0), "{}\n{text}", stderr(&check));
    let sentence = "  remote_address: when remote_address is missing or is not 10.0.0.1 and the request has only \
                    remote_address, each remote_address may make 9 requests in each window of one minute and at \
                    most 18 in any minute\n";
    assert!(stdout(&check).contains(sentence), "{}", stdout(&check));
}

/// A converted policy compiles, and has each limit and note.
#[test]
fn conversions_compile() {
    let envoy = "domain: d
descriptors:
  - {key: path, value: '/a/*', rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: path, value: '/a/b', rate_limit: {unit: week, requests_per_unit: 5, name: \"it's\"}, shadow_mode: true}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 100}}
  - {key: path, value: /free, rate_limit: {unlimited: true}}
  - {key: ip, value: 10.0.0.1}
  - key: ip
    rate_limit: {unit: month, requests_per_unit: 7}
    descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 3}, quota_mode: true}]
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: none, value: v, rate_limit: {unit: day, requests_per_unit: 0}, shadow_mode: true}
  - {key: x-y, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: z, descriptors: [{key: z, rate_limit: {unit: day, requests_per_unit: 1}}]}
";
    let output = run(&["policy", "convert", "-"], envoy.as_bytes());
    // A rule whose requests would pass is named; one that refuses nothing is not. Each change of meaning is listed.
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let expected = "<stdin>: 8 limits converted, with 5 changes of meaning:
  every limit: the order of a descriptor's entries does not matter, and a descriptor that has a key twice is refused
  every limit: a request that one limit refuses is counted by no limit; there, the others count it
  every limit: all spellings of an address in ip count alike, and an IPv6 address by its /64; `attributes: [{ip: text}]` counts the texts
  every limit: a condition on path holds for other spellings, too; `attributes: [{path: text}]` compares the texts
  ip, user: quota_mode has no counterpart: here this limit refuses by itself
<stdin>: for Envoy's descriptors; behind the gateway remove extra_attributes, or no limit applies
<stdin>: 1 rule NOT CONVERTED; what these refuse would pass:
  z, z: a request has the attribute z once, and this rule asks for it twice
";
    assert!(stderr(&output).ends_with(expected), "{}", stderr(&output));
    let text = stdout(&output);
    for expected in [
        "when: \"path.startsWith('/a/') && !(path in ['/a/b', '/free'])\"",
        "attributes: [ip, none, path, user, x-y]",
        "by: [path]",
        "name: it-s",
        "rate: 5 per 7d",
        "mode: shadow",
        "rate: 7 per 30d",
        "when: { ip: { not: \"10.0.0.1\" } }",
        "by: [ip, user]",
        "# CHANGED: quota_mode has no counterpart",
        "# CHANGED for every limit: the order of",
        "by: [none]\n    rate: deny\n",
        "rate: deny\n    mode: shadow\n",
        "# for Envoy's descriptors; behind the gateway remove extra_attributes, or no limit applies\n",
        "# LEFT OUT, as it refuses nothing: everything passes without a limit",
        "by: [x-y]\n    rate: 1/day\n",
        "NOT CONVERTED: a request has the attribute z once",
        "now possible: `algorithm: sliding-window` never admits more than the rate in any period",
        "now possible: `align: calendar`",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert_eq!(text.matches("NOT CONVERTED").count(), 1, "{text}");
    let check = run(&["policy", "check", "-"], text.as_bytes());
    assert_eq!(check.status.code(), Some(0), "{}\n{text}", stderr(&check));
    assert!(stdout(&check).starts_with("<stdin>: 8 limits"), "{}", stdout(&check));
    // The story: a file whose only rule without a limit is a harmless `unlimited` had the note of a lost rule.
    let harmless = "domain: d
descriptors:
  - {key: path, value: /free, rate_limit: {unlimited: true}}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 100}}
";
    let output = run(&["policy", "convert", "-"], harmless.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stdout(&output).contains("NOT CONVERTED"), "{}", stdout(&output));
    assert!(stdout(&output).contains("# LEFT OUT, as it refuses nothing"), "{}", stdout(&output));

    let limitador = "
- {namespace: n, max_value: 10, seconds: 90, name: basic, conditions: [\"descriptors[0]['method'] == 'POST'\", \"descriptors[0].path.startsWith('/a')\"], variables: [\"descriptors[0]['user']\"]}
- {namespace: n, max_value: 10, seconds: 60, conditions: [\"descriptors[1].x == 'y'\"], variables: []}
- {namespace: n, max_value: 10, seconds: 60, conditions: [], variables: [\"descriptors[0].a + 'x'\"]}
- {namespace: n, max_value: 0, seconds: 60, conditions: [\"descriptors[0].plan == 'none'\"], variables: []}
";
    let output = run(&["policy", "convert", "-", "--to", "native"], limitador.as_bytes());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("<stdin>: 2 rules NOT CONVERTED"), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("<stdin>: 2 limits converted, with 3 changes of meaning:"),
        "{}",
        stderr(&output)
    );
    assert!(
        text.contains("when: \"(path.startsWith('/a')) && (method == 'POST')\"")
            && text.contains("rate: 10 per 90s")
            && text.contains("when: \"plan == 'none'\"\n    rate: deny\n"),
        "{text}"
    );
    assert_eq!(text.matches("NOT CONVERTED").count(), 2, "{text}");
    assert_eq!(run(&["policy", "check", "-"], text.as_bytes()).status.code(), Some(0), "{text}");
    // Nothing is printed where nothing changes.
    let same = b"- {namespace: n, max_value: 10, seconds: 60, conditions: [], variables: []}\n";
    let output = run(&["policy", "convert", "-"], same);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert!(!stdout(&output).contains("CHANGED for"), "{}", stdout(&output));
    assert_eq!(run(&["policy", "convert", "-"], b"limits: []").status.code(), Some(1));
    let two = format!("{LIMITADOR}\n{}", LIMITADOR.replace("namespace: n", "namespace: m"));
    assert_eq!(run(&["policy", "convert", "-"], two.as_bytes()).status.code(), Some(2));
    assert_eq!(run(&["policy", "convert", "-", "--domain", "m"], two.as_bytes()).status.code(), Some(0));
}

/// An operator's override applies to every protocol of compat rules; one that means nothing there is refused and says what is accepted.
#[test]
fn operating_foreign_rules() {
    let server = admin::server(LIMITADOR);
    let post = |path: &str, body: &str| admin::ask(&server, admin::TOKEN, "POST", path, body);
    let body = json!({ "namespace": "n", "values": { "user": "a" }, "delta": 1 }).to_string();
    let plain = r#"{"attributes":{"user":"a"}}"#;
    assert_eq!(post("/admin/v1/block", r#"{"attributes":{"user":"a"},"for":"60s"}"#).status, 200);
    assert_eq!(server.send("POST", "/check", &body).status, 429);
    assert_eq!(server.send("POST", "/check_and_report", &body).status, 429);
    assert_eq!(server.send("POST", "/json", &rls("n", "user", "a")).status, 429);
    let denied = server.check(plain);
    assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("operator-block")));
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 50_000 && denied["detail"].is_string());
    assert_eq!(post("/admin/v1/unblock", r#"{"attributes":{"user":"a"}}"#).status, 200);
    assert_eq!(server.send("POST", "/report", &body.replace('1', "5")).status, 200);
    assert_eq!(server.send("POST", "/check", &body).status, 429);
    assert_eq!(post("/admin/v1/kill", r#"{"all":true,"for":"60s"}"#).status, 200);
    assert_eq!(server.send("POST", "/check", &body).status, 200);
    assert_eq!(server.check(plain)["allowed"], true);
    let refused = [
        ("get", plain),
        ("explain", plain),
        ("reset", plain),
        ("kill", r#"{"limit":"ask-by-rls-or-json","for":"60s"}"#),
        ("restore", r#"{"limit":"ask-by-rls-or-json"}"#),
        ("percent", r#"{"all":true,"percent":5,"for":"60s"}"#),
        ("policy/diff", "limits: []"),
    ];
    for (verb, body) in refused {
        let detail = post(&format!("/admin/v1/{verb}"), body).problem(409);
        assert!(
            detail.contains("the active policy is Limitador limits; accepted: block"),
            "{verb}: {detail}"
        );
    }
    let limits = admin::ask(&server, admin::TOKEN, "GET", "/admin/v1/limits", "").json();
    assert_eq!((&limits["limits"], limits["compat"].as_array().unwrap().len()), (&json!([]), 1));
    let metrics = String::from_utf8(server.send("GET", "/metrics", "").body).unwrap();
    assert!(metrics.contains(r#"wire="limitador""#), "{metrics}");
}

/// Of a batch with one wrong question none is charged, and a key that is given twice is refused.
#[test]
fn wrong_questions_charge_nothing() {
    let files = Directory::new("batch", &[("a.yaml", ENVOY), ("b.yaml", "domain: b")]);
    let server = Server::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", files.path()], "");
    let good = r#"{"attributes":{"user":"a","domain":"d"}}"#;
    let wrong = format!(r#"[{good},{{"attributes":{{"user":"a"}}}}]"#);
    assert!(
        server.send("POST", "/v1/check/batch", &wrong).problem(400).starts_with("[1]: attributes.domain")
    );
    assert_eq!(server.check(good)["limits"][0]["remaining"], 1);
    let limitador = Server::start(LIMITADOR);
    let twice = r#"{"namespace":"n","values":{"user":"a","user":"b"},"delta":1}"#;
    assert!(limitador.send("POST", "/check", twice).problem(400).contains("\"user\" is given twice"));
}

/// `/status` tells when the server started, whatever was loaded since, and since when the file on disk is wrong.
#[test]
fn limitador_status() {
    let directory = Directory::new("status", &[("limits.yaml", LIMITADOR)]);
    let server = Server::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", directory.path()], "");
    let status = || server.send("GET", "/status", "").json();
    let first = status();
    assert_eq!(first["config_err_since"], json!(null));
    let write = |text: &str| fs::write(directory.0.join("limits.yaml"), text).unwrap();
    write(&LIMITADOR.replace("max_value: 2", "max_value: x"));
    let failed =
        until("the wrong file is noticed", || Some(status()).filter(|s| s["config_err_since"].is_string()));
    assert!(failed["config_err_since"].as_str() > first["started_at"].as_str(), "{failed}");
    write(&LIMITADOR.replace("max_value: 2", "max_value: 3"));
    let second = until("the right one is in force", || Some(status()).filter(|s| s["config_version"] == 2));
    assert_eq!((&second["config_err_since"], &second["started_at"]), (&json!(null), &first["started_at"]));
    assert!(second["config_applied_at"].as_str() > first["config_applied_at"].as_str());
}

/// The story: a rule may count by an entry whose name Tollgate takes for another product's way to name a header. What was converted did not
/// compile. Such names are declared in `attributes:`, with all others, and then taken at their word.
#[test]
fn names_that_look_like_others_are_declared() {
    let envoy = "domain: d
descriptors:
  - {key: Authorization, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: headers, value: odd, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 9}}
";
    let output = run(&["policy", "convert", "-"], envoy.as_bytes());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(text.contains("\nattributes: [Authorization, headers, user]\n"), "{text}");
    let check = run(&["policy", "check", "-"], text.as_bytes());
    assert_eq!(check.status.code(), Some(0), "{}\n{text}", stderr(&check));
    // They count, as the rules did.
    let server = Server::start(&text);
    let allowed =
        |attributes: &str| server.check(&format!(r#"{{"attributes":{attributes}}}"#))["allowed"] == true;
    assert_eq!([(); 3].map(|()| allowed(r#"{"Authorization":"a"}"#)), [true, true, false]);
    assert_eq!([(); 2].map(|()| allowed(r#"{"headers":"odd"}"#)), [true, false]);
    // Where no name needs it, nothing is declared, and other names stay welcome.
    let plain = run(
        &["policy", "convert", "-"],
        envoy.replace("Authorization", "key").replace("headers", "kind").as_bytes(),
    );
    assert!(!stdout(&plain).contains("\nattributes:"), "{}", stdout(&plain));
}
