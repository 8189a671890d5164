//! `tollgate policy test`: its guide, its exit status, and its output for programs.

use std::fs;

use serde_json::Value;
use tollgate_testkit::Scratch;

use crate::guide::{Last, blocks, shell, succeeded};
use crate::program::{stderr, stdout, tollgate};

const GUIDE: &str = include_str!("../../../../docs/policy-test.md");
const POLICY: &str = "limits:\n- {name: per-key, by: [api_key], rate: 2/h}\n- {name: search, by: [api_key], when: {path: /search}, rate: 1/h}\n";

/// A directory with a policy and a test file.
fn folder(test: &str) -> Scratch {
    let folder = Scratch::new();
    fs::write(folder.path("policy.yaml"), POLICY).unwrap();
    fs::write(folder.path("policy.test.yaml"), test).unwrap();
    folder
}

/// The status and both outputs of a test run.
fn tested(folder: &Scratch, more: &[&str]) -> (Option<i32>, String, String) {
    let arguments = [&["policy", "test", "policy.test.yaml"], more].concat();
    let output = tollgate(&arguments).current_dir(folder.folder()).output().unwrap();
    (output.status.code(), stdout(&output), stderr(&output))
}

/// Every command of the guide prints what the guide shows.
#[test]
fn the_guide_is_true() {
    let blocks = blocks(GUIDE);
    let folder = Scratch::new();
    let mut files = blocks.iter().filter(|(language, _)| language.starts_with("yaml")).map(|(_, text)| text);
    for name in ["policy.yaml", "policy.test.yaml"] {
        fs::write(folder.path(name), files.next().unwrap()).unwrap();
    }
    let mut last = Last::default();
    for (language, block) in &blocks {
        if *language == "sh" {
            let mut shell = shell(&format!("set -eu\n{block}"));
            shell.current_dir(folder.folder());
            last.ran(block, succeeded(shell).0);
        } else {
            last.compare(language, block);
        }
    }
    last.at_least(3);
}

/// The story: a case with a misspelled attribute passed, although the policy declares its attributes.
#[test]
fn undeclared_attributes_are_refused() {
    let folder = folder(
        "policy: policy.yaml\ncases:\n- {name: a, requests: [{attributes: {apikey: a}, expect: allow}]}\n",
    );
    assert_eq!(tested(&folder, &[]).0, Some(0), "a policy that declares none knows no other names");
    fs::write(folder.path("policy.yaml"), format!("attributes: [api_key, path]\n{POLICY}")).unwrap();
    let (status, out, errors) = tested(&folder, &[]);
    assert_eq!(status, Some(2), "{out}{errors}");
    let expected = "policy.test.yaml:3:37: cases[0] \"a\".requests[0].attributes.apikey: ";
    let text = out + &errors;
    assert!(text.contains(expected) && text.contains("api_key"), "{text}");
}

/// A failing case ends with 1, and says which request got what instead of what, and why.
#[test]
fn a_failing_case_says_what_came_instead() {
    let folder = folder(
        "policy: policy.yaml\ncases:\n- name: wrong\n  requests:\n  - {attributes: {api_key: a}, repeat: 3, expect: allow}\n  \
         - {at: +30m, attributes: {api_key: a}, expect: deny}\n  - {attributes: {api_key: b}, expect: allow, limit: search}\n",
    );
    let (status, out, errors) = tested(&folder, &[]);
    let expected = "\
FAIL policy.test.yaml:3: wrong
     policy.test.yaml:5: request 3 at 0 s: expected allow, got deny by per-key, retry in 30 min, 0 left of per-key
       per-key: each api_key may make 2 requests an hour on average, 2 at once and at most 4 in any hour
     policy.test.yaml:6: request 4 at 30 min: expected deny, got allow, 0 left of per-key
       per-key: each api_key may make 2 requests an hour on average, 2 at once and at most 4 in any hour
     policy.test.yaml:7: request 5 at 30 min: expected allow under search, got allow
       search does not apply: the request has no path
1 case: 0 passed, 1 failed
";
    assert_eq!((status, out.as_str(), errors.as_str()), (Some(1), expected, ""));
    let (status, out, _) = tested(&folder, &["--json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &found["failed"], &found["passed"]), (Some(1), &1.into(), &0.into()));
    let mismatch = &found["files"][0]["cases"][0]["mismatches"][0];
    assert_eq!((&mismatch["line"], &mismatch["request"]), (&5.into(), &3.into()), "{found}");
}

/// A file that cannot be tested ends with 2, and the error says why at its place: a limit that is not there, a policy that is not one, a
/// filter that finds nothing.
#[test]
fn an_untestable_policy_is_an_error() {
    let case =
        |fields: &str| format!("policy: policy.yaml\ncases: [{{name: a, requests: [{{{fields}}}]}}]\n");
    for (test, more, expected) in [
        (
            case("expect: allow, limit: per-kye"),
            &[][..],
            "policy.test.yaml:2:53: cases[0] \"a\".requests[0].limit: the policy has no limit per-kye; did you mean per-key? accepted: per-key, search\n",
        ),
        (case("expect: yes"), &[], "accepted: allow, deny, wait, never\n"),
        (case("expect: allow"), &["--policy", "none.yaml"], "none.yaml: no such file; check the path\n"),
        (case("expect: allow"), &["--policy", "policy.test.yaml"], "cases: unknown field"),
        (
            case("expect: allow"),
            &["--filter", "b"],
            "tollgate: --filter: no case has \"b\" in its name; accepted: a part of one\n",
        ),
        (case("expect: allow"), &["--junit", "none/report.xml"], "tollgate: none/report.xml: "),
    ] {
        let (status, _, errors) = tested(&folder(&test), more);
        assert_eq!(status, Some(2), "{test} {more:?}: {errors}");
        assert!(errors.contains(expected), "{test} {more:?}: {errors}");
    }
}

/// The same test gives the same result each time, also where the policy chooses a percentage of keys.
#[test]
fn results_are_repeatable() {
    let requests: String = (0..200)
        .map(|key| format!("  - {{attributes: {{api_key: k{key}}}, repeat: 3, expect: allow}}\n"))
        .collect();
    let folder = folder(&format!("policy: policy.yaml\ncases:\n- name: some\n  requests:\n{requests}"));
    fs::write(
        folder.path("policy.yaml"),
        "limits: [{name: part, by: [api_key], rate: 2/h, enforce_percent: 50}]",
    )
    .unwrap();
    let (first, again) = (tested(&folder, &[]), tested(&folder, &[]));
    assert_eq!(first, again);
    let denied = first.1.matches("got deny by part").count();
    assert!((60..140).contains(&denied), "{denied} of 200 keys");
}

/// Calendar windows follow the start of the case.
#[test]
fn calendar_windows_follow_the_start() {
    let folder = folder(
        "policy: policy.yaml\nstart: 2030-01-31T23:00:00Z\ncases:\n- name: a month ends\n  requests:\n  \
         - {attributes: {api_key: a}, expect: allow}\n  - {attributes: {api_key: a}, expect: deny, retry_after: 1h}\n  \
         - {at: 2030-02-01T00:00:00Z, attributes: {api_key: a}, expect: allow}\n- name: a month goes on\n  \
         start: 2030-01-30T23:00:00Z\n  requests:\n  - {attributes: {api_key: a}, expect: allow}\n  \
         - {attributes: {api_key: a}, expect: deny, retry_after: 25h}\n",
    );
    let policy = "limits: [{name: month, by: [api_key], algorithm: fixed-window, rate: 1/month, align: calendar, timezone: UTC}]";
    fs::write(folder.path("policy.yaml"), policy).unwrap();
    let (status, out, errors) = tested(&folder, &[]);
    assert_eq!(status, Some(0), "{out}{errors}");
}
