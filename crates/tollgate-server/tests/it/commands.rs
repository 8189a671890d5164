//! The commands that need no server: `policy check` and `decide`.

use crate::program::{run, stderr, stdout};

/// A good file is explained; warnings do not fail it.
#[test]
fn check_explains_a_policy() {
    let policy = "limits:\n  - { name: per-key, by: [api_key], rate: 100/s, burst: 200 }\n  - { name: all, by: [tenant], rate: 100/s, enforce_percent: 0 }\n";
    let output = run(&["policy", "check", "-"], policy.as_bytes());
    assert_eq!(output.status.code(), Some(0));
    let expected = "\
<stdin>: 2 limits
  per-key: each api_key may make 100 requests a second on average, 200 at once and at most 300 in any second
  all: each tenant may make 100 requests a second on average, 100 at once and at most 200 in any second; enforced for 0 % of keys, only counted for the others
";
    assert_eq!(stdout(&output), expected);
    assert!(stderr(&output).starts_with("<stdin>:3:"), "{}", stderr(&output));
    assert!(stderr(&output).contains("warning: limits[1] \"all\""), "{}", stderr(&output));
}

/// A policy that only limits clients that name a key is doubtful: a client need only leave it out, or invent another.
#[test]
fn check_warns_of_limits_by_credential_only() {
    let printed = |limits: &str| {
        let output = run(&["policy", "check", "-"], format!("limits: [{limits}]").as_bytes());
        assert_eq!(output.status.code(), Some(0));
        stderr(&output)
    };
    let per_key = "{name: per-key, by: [api_key], rate: 3/h}";
    let login = "{name: login, when: {method: POST, path: /login}, by: [ip], rate: 2/h}";
    for doubtful in
        [per_key.to_owned(), format!("{per_key}, {login}"), format!("{per_key}, {{name: all, rate: 9/h}}")]
    {
        let printed = printed(&doubtful);
        assert!(
            printed.starts_with(
                "<stdin>:1:30: warning: limits[0] \"per-key\".by: counts by api_key, which a stranger can invent"
            ),
            "{printed}"
        );
    }
    assert_eq!(printed(&format!("{per_key}, {{name: per-ip, by: [ip], rate: 9/h}}")), "");
    for fine in [login, "{name: tenant, by: [tenant], rate: 1/h}", "{name: caller, by: [caller], rate: 1/h}"]
    {
        assert_eq!(printed(fine), "");
    }
}

/// One run reports every problem with its place.
#[test]
fn check_reports_every_problem() {
    let output = run(
        &["policy", "check", "-"],
        b"limits:\n  - { name: a, rate: s/100 }\n  - { name: b, rats: 5/s }\n",
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let problems = stderr(&output);
    let expected = "<stdin>:2:22: limits[0] \"a\".rate: s/100 is upside down: the count comes first; accepted: 100/s, if that is what was meant\n";
    assert!(problems.starts_with(expected), "{problems}");
    assert!(problems.contains("<stdin>:3:16: limits[1] \"b\".rats: "), "{problems}");
}

/// Several files are each looked at, whatever the others are like.
#[test]
fn check_looks_at_every_file() {
    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/../tollgate/src/policy/example.yaml");
    let empty = tollgate_testkit::folder("empty");
    let empty = empty.to_str().unwrap();
    let output = run(&["policy", "check", "no-such-file.yaml", "-", empty, good], b"\x7fELF\x02\xd0\xff\0");
    std::fs::remove_dir(empty).unwrap();
    assert_eq!(output.status.code(), Some(2), "one could not be read");
    assert!(stdout(&output).starts_with(&format!("{good}: 7 limits\n  per-key: ")), "{}", stdout(&output));
    let problems = stderr(&output);
    let lines: Vec<&str> = problems.lines().collect();
    assert_eq!(lines[0], "tollgate: no-such-file.yaml: no such file; check the path");
    assert_eq!(lines[1], "<stdin>:1:6: byte 5 (0xd0) is not UTF-8; accepted: a file in UTF-8");
    let expected = format!(
        "tollgate: {empty}: there is no file in this directory; name a file, or a directory with one"
    );
    assert_eq!(lines[2], expected);
    assert_eq!(run(&["policy", "check", good], b"").status.code(), Some(0));
}

/// Wrong usage is status 2, and help is an answer.
#[test]
fn usage() {
    for arguments in [&["policy", "check"][..], &[], &["serv"], &["decide", "novalue"], &["decide", "a:=x"]] {
        let output = run(arguments, b"");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
    for command in
        [&["--help"][..], &["serve", "--help"], &["policy", "check", "--help"], &["decide", "--help"]]
    {
        let output = run(command, b"");
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(stdout(&output).contains("Usage: tollgate"), "{command:?}");
    }
    assert!(
        stdout(&run(&["decide", "--help"], b"")).contains("Exit status: 0 when every request was allowed")
    );
}

const TWO_A_SECOND: &[u8] =
    b"limits: [{name: per-key, by: [api_key], rate: 2/s}, {name: watched, rate: 1/s, mode: shadow}]";

/// A person can watch a limit act: two pass, two are refused, and as time goes on one passes again.
#[test]
fn decide_shows_a_limit_at_work() {
    let arguments = [
        "decide",
        "--policy",
        "-",
        "api_key=k",
        "--times",
        "4",
        "--every",
        "200ms",
        "--at",
        "2030-01-01T00:00:00Z",
    ];
    let output = run(&arguments, TWO_A_SECOND);
    assert_eq!(output.status.code(), Some(1));
    let expected = "\
request        time  verdict                   per-key  (watched)
      1        +0 s  allow                     1/2      0/1
      2      +0.2 s  allow                     0/2      0/1 *
      3      +0.4 s  deny, retry in 100 ms     0/2 *    0/1 *
      4      +0.6 s  allow                     0/2      0/1 *

Each limit shows what remains of how much.
* refused by this limit
(name) only counts: this limit is in shadow and never refuses
";
    assert_eq!(stdout(&output), expected);
    assert_eq!(stderr(&output), "");
}

/// The status tells a script whether all were allowed.
#[test]
fn decide_has_a_status() {
    let decide =
        |more: &[&str]| run(&[&["decide", "--policy", "-", "api_key=k"], more].concat(), TWO_A_SECOND);
    assert_eq!(decide(&["--times", "2"]).status.code(), Some(0));
    assert_eq!(decide(&["--times", "3"]).status.code(), Some(1));
    let never = decide(&["--cost", "3"]);
    assert_eq!(never.status.code(), Some(1));
    assert!(stdout(&never).contains("never"), "{}", stdout(&never));
    let unreadable = run(&["decide", "--policy", "no-such-file.yaml"], b"");
    assert_eq!(unreadable.status.code(), Some(2));
    assert_eq!(stderr(&unreadable), "tollgate: no-such-file.yaml: no such file; check the path\n");
    let twice = run(&["decide", "a=1", "a=2"], b"");
    assert_eq!(twice.status.code(), Some(2));
    assert!(stderr(&twice).contains("attributes.a: given twice"));
}

/// A text of digits compares as the number that it is, since some protocols carry only text; another text is no number.
#[test]
fn decide_compares_numbers_in_texts() {
    let policy =
        b"limits: [{name: five, when: 'n == 5', rate: 1/s}, {name: used, by: [n], rate: 9/s, cost: tokens}]";
    let decide = |attributes: &[&str]| run(&[&["decide", "--policy", "-"], attributes].concat(), policy);
    let number = stdout(&decide(&["n:=5", "tokens:=4"]));
    assert!(number.contains("five") && number.contains("5/9"), "{number}");
    let text = stdout(&decide(&["n=5", "tokens=4"]));
    assert!(text.contains("five") && text.contains("5/9"), "{text}");
    let text = stdout(&decide(&["n=many", "tokens:=4"]));
    assert!(!text.contains("five") && text.contains("5/9"), "{text}");
    let faulty = decide(&["n=5", "tokens=many"]);
    assert_eq!(faulty.status.code(), Some(1));
    assert!(stdout(&faulty).contains("limit used: its cost cannot be computed"), "{}", stdout(&faulty));
}

/// As JSON each decision is a line of its own, shaped as the server answers it.
#[test]
fn decide_prints_json_lines() {
    let output = run(&["decide", "--policy", "-", "api_key=k", "--times", "3", "--json"], TWO_A_SECOND);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdicts: Vec<&serde_json::Value> = lines.iter().map(|line| &line["verdict"]).collect();
    assert_eq!(verdicts, ["allow", "allow", "deny"]);
    assert_eq!(lines[2]["retry_after_ms"], 500);
    assert_eq!(lines[2]["limits"][1]["mode"], "shadow");
}

/// Attributes that no limit asks for are said to meet none.
#[test]
fn decide_says_when_no_limit_applies() {
    let output =
        run(&["decide", "--policy", "-", "unused=value"], b"limits: [{name: a, by: [b], rate: 1/s}]");
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("No limit applies to these attributes"), "{}", stdout(&output));
    assert_eq!(stderr(&output), "tollgate: warning: no limit uses unused\n");
    let misspelt = stderr(&run(&["decide", "api_kye=k1"], b""));
    assert_eq!(misspelt, "tollgate: warning: no limit uses api_kye; did you mean api_key?\n");
}

/// The story: a config that was checked as a policy had a finding for each of its fields, and none said what it is. And a
/// commit hook could not refuse warnings.
#[test]
fn a_config_is_no_policy_and_warnings_may_be_denied() {
    let config = "path_match: exact\nattributes: {tenant: {header: X-Tenant}}\n";
    let output = run(&["policy", "check", "-"], config.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    let said = "<stdin>: is a config, and not a policy: `tollgate config check` checks it; accepted: a policy, with \
                `limits:`\n";
    assert_eq!(stderr(&output), said);
    let stranger = b"limits: [{name: a, by: [api_key], rate: 1/s}]";
    for (arguments, expected) in
        [(&["policy", "check", "-"][..], 0), (&["policy", "check", "-", "--deny-warnings"], 1)]
    {
        let output = run(arguments, stranger);
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}");
        assert!(stderr(&output).contains("warning: "), "{}", stderr(&output));
    }
    let known = b"limits: [{name: a, by: [ip], rate: 1/s}]";
    assert_eq!(run(&["policy", "check", "-", "--deny-warnings"], known).status.code(), Some(0));
}
