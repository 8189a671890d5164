//! `tollgate replay` as a user runs it: its guide, its three reports, and logs that are bad.

use std::fs;

use serde_json::Value;

use crate::admin::Scratch;
use crate::guide;
use crate::program::{run, stderr, stdout};

const GUIDE: &str = include_str!("../../../../docs/replay.md");
const POLICY: &str = "limits: [{name: per-ip, by: [ip], rate: 2/min}]";

/// A line of a combined log.
fn line(ip: &str, second: u32, agent: &str) -> String {
    format!(
        "{ip} - - [16/Nov/2026:10:00:{second:02} +0000] \"GET /export HTTP/1.1\" 200 5 \"-\" \"{agent}\"\n"
    )
}

/// The guide's commands print what it says.
#[test]
fn the_guide_is_true() {
    let blocks = guide::blocks(GUIDE);
    let scratch = Scratch::new();
    scratch.file("policy.yaml", guide::first(&blocks, "yaml"));
    let mut last = guide::Last::default();
    for (language, block) in &blocks {
        if *language != "sh" {
            last.compare(language, block);
            continue;
        }
        let mut shell = guide::shell(&format!("set -eu\n{block}"));
        shell.current_dir(scratch.folder());
        last.ran(block, guide::succeeded(shell).0);
    }
    last.at_least(3);
    let page = fs::read_to_string(scratch.path("report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("198.51.100.7"), "{page}");
}

/// The page is one file that runs nothing and loads nothing, whatever clients sent; the JSON has the same numbers.
#[test]
fn a_hostile_log_makes_a_harmless_page() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let hostile = "</td><script>alert(1)</script><img src=x onerror=alert(2)>";
    let log: String = (0..5).map(|second| line("192.0.2.1", second, hostile)).collect();
    let log = scratch.file("access.log", &log);
    let (html, json) = (scratch.text("r.html"), scratch.text("r.json"));
    let output = run(&["replay", "--policy", &policy, &log, "--html", &html, "--json", &json], b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = fs::read_to_string(&html).unwrap();
    for forbidden in ["<script", "<img", "<link", "javascript:", "http://", "https://", "@import", "url("] {
        assert!(!page.contains(forbidden), "{forbidden} is on the page");
    }
    assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("@media print"));
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["totals"]["denied"], 3);
    assert_eq!(report["limits"][0]["touched"], 1);
    assert_eq!(report["top"][0]["key"], "192.0.2.1");
    assert_eq!(report["top"][0]["user_agent"], hostile);
    let text = stdout(&output);
    assert!(text.is_ascii(), "a file has no characters beyond ASCII: {text}");
}

/// Hashed keys are in no output, and the address cannot be found from its hash.
#[test]
fn hashed_keys_stay_in_the_house() {
    let scratch = Scratch::new();
    let policy = "limits: [{name: per-ip, by: [ip], rate: 2/min, overrides: {192.0.2.1: 3/min}}]";
    let policy = scratch.file("policy.yaml", policy);
    let log: String = (0..5).map(|second| line("192.0.2.1", second, "curl")).collect();
    let log = scratch.file("access.log", &(log + "192.0.2.1 is no line\n"));
    let (html, json) = (scratch.text("r.html"), scratch.text("r.json"));
    let hashed = || {
        let arguments =
            ["replay", "--policy", &policy, &log, "--html", &html, "--json", &json, "--hash-keys"];
        let output = run(&arguments, b"");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let all = stdout(&output) + &fs::read_to_string(&html).unwrap() + &fs::read_to_string(&json).unwrap();
        assert!(!all.contains("192.0.2.1"), "{all}");
        let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        report["top"][0]["key"].as_str().unwrap().to_owned()
    };
    assert_ne!(hashed(), hashed(), "the secret is another one each time");
}

/// The story: with hashed keys a mail address stood in the route and the user agent of its key. No report has it, and no
/// report has the key as a part of the route.
#[test]
fn hashed_reports_have_no_addresses_in_routes() {
    let scratch = Scratch::new();
    let (old, policy) = (
        scratch.file("old.yaml", "limits: [{name: per-user, by: [user], rate: 9/min}]"),
        scratch.file("policy.yaml", "limits: [{name: per-user, by: [user], rate: 2/min}]"),
    );
    let of = |path: &str| {
        format!(
            "192.0.2.1 - frieda [16/Nov/2026:10:00:01 +0000] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"bot (ops@example.com)\"\n"
        )
    };
    let of_address = of("/users/alice%40example.com/x").replace("frieda", "alice");
    let log = scratch.file("access.log", &(of("/u/frieda").repeat(5) + &of_address.repeat(5)));
    let (html, json) = (scratch.text("r.html"), scratch.text("r.json"));
    let arguments = ["replay", "--policy", &policy, &log, "--html", &html, "--json", &json, "--hash-keys"];
    for more in [&[][..], &["--against", &old]] {
        let output = run(&[&arguments[..], more].concat(), b"");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let all = stdout(&output) + &fs::read_to_string(&html).unwrap() + &fs::read_to_string(&json).unwrap();
        assert!(all.contains("/users/*/x") && all.contains("/u/*") && all.contains("bot *"), "{all}");
        assert!(!all.contains("alice") && !all.contains("@example") && !all.contains("frieda"), "{all}");
    }
}

/// The story: a limit that beside whole seconds and durations had one number, which was not the truth. The range holds it;
/// where there is no proven range, the text, the page and the JSON say that the number is an estimate.
#[test]
fn numbers_of_whole_seconds_are_ranges_or_estimates() {
    let scratch = Scratch::new();
    let timed = |second: u32, seconds: &str| {
        line("192.0.2.1", second, "curl").replace('\n', &format!(" {seconds}\n"))
    };
    let log = [timed(9, "0.000"), timed(10, "0.500"), timed(10, "0.500")].concat();
    let (log, html, json) =
        (scratch.file("access.log", &log), scratch.text("r.html"), scratch.text("r.json"));
    for (shape, is_estimated) in [
        ("algorithm: fixed-window", false),
        ("algorithm: fixed-window, align: first-hit", true),
        ("algorithm: sliding-window, estimate: interpolate", true),
    ] {
        let policy = format!("limits: [{{name: per-ip, by: [ip], rate: 2/10s, {shape}}}]");
        let policy = scratch.file("policy.yaml", &policy);
        let output = run(&["replay", "--policy", &policy, &log, "--html", &html, "--json", &json], b"");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let (text, page) = (stdout(&output), fs::read_to_string(&html).unwrap());
        let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        for report in [&text, &page] {
            let words = [" %, an estimate), and touched ", "an estimate for per-ip: only two readings"];
            let said = words.map(|words| report.contains(words));
            assert_eq!(said, [is_estimated; 2], "{shape}: {report}");
            let range = "would have denied 0 to 1 of 3 requests";
            assert!(is_estimated || report.contains(range), "{shape}: {report}");
        }
        for report in [&report["totals"], &report["limits"][0]] {
            let is_called = report["is_range_estimated"].as_bool().unwrap_or(false);
            assert_eq!(is_called, is_estimated, "{shape}: {report}");
        }
    }
}

/// Attributes come from the same config as live: here the client behind a trusted proxy, and a mapped header.
#[test]
fn attributes_are_read_as_live() {
    let scratch = Scratch::new();
    let policy = scratch.file(
        "policy.yaml",
        "limits: [{name: per-ip, by: [ip], rate: 2/min}, {name: tenant, by: [tenant], rate: 100/min}]",
    );
    let config = scratch
        .file("config.yaml", "trusted_proxies: [10.0.0.1/32]\nattributes: {tenant: {header: X-Tenant}}\n");
    let request = |client: &str, second: u32| {
        format!(
            "{{\"level\":\"info\",\"ts\":17000000{second:02}.5,\"logger\":\"http.log.access\",\"request\":{{\"remote_ip\":\
             \"10.0.0.1\",\"client_ip\":\"10.0.0.1\",\"proto\":\"HTTP/1.1\",\"method\":\"GET\",\"host\":\"a.example\",\
             \"uri\":\"/\",\"headers\":{{\"X-Forwarded-For\":[\"{client}\"],\"X-Tenant\":[\"acme\"]}}}},\
             \"duration\":0.01,\"size\":5,\"status\":200}}\n"
        )
    };
    let log: String = (0..8).map(|n| request(if n < 4 { "192.0.2.1" } else { "192.0.2.2" }, n)).collect();
    let log = scratch.file("caddy.log", &log);
    let output = run(&["replay", "--policy", &policy, "--config", &config, &log, "--json", "-"], b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&report["limits"][0]["keys"], &report["limits"][0]["denied"]),
        (&2.into(), &4.into()),
        "{report}"
    );
    assert_eq!((&report["limits"][1]["keys"], &report["limits"][1]["denied"]), (&1.into(), &0.into()));
}

/// Bad logs get clear messages, and nothing is lost: what cannot be read is counted and shown.
#[test]
fn bad_logs_are_reported() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let good = line("192.0.2.1", 1, "curl");
    let mixed = scratch.file("mixed.log", &format!("{good}{good}{good}garbage \u{1b}[2J here\n{good}"));
    let output = run(&["replay", "--policy", &policy, &mixed, "--json", "-"], b"");
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&report["input"]["bad_lines"], &report["totals"]["requests"]), (&1.into(), &4.into()));
    assert!(report["input"]["bad_examples"][0].as_str().unwrap().contains("mixed.log:4: "), "{report}");
    let empty = scratch.file("empty.log", "");
    let binary = scratch.path("binary.log");
    fs::write(&binary, [0u8, 159, 146, 150, 10, 0, 1, 2, 3, 10]).unwrap();
    let missing = scratch.text("missing.log");
    for log in [empty.as_str(), binary.to_str().unwrap(), &missing] {
        let output = run(&["replay", "--policy", &policy, log], b"");
        assert_eq!(output.status.code(), Some(2), "{log}: {}", stdout(&output));
        assert!(stderr(&output).starts_with("tollgate: "), "{log}: {}", stderr(&output));
    }
    let output = run(&["replay", "--policy", &policy, "--without", "zzz", &mixed], b"");
    assert!(stderr(&output).contains("--without: no policy has a limit"), "{}", stderr(&output));
    let both = ["replay", "--policy", &policy, "--against", &policy, "--clients"];
    let output = run(&[&both[..], &["retry", &mixed]].concat(), b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--against: accepted with --clients gone only"), "{}", stderr(&output));
    let output = run(&[&both[..], &["gone", &mixed]].concat(), b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let piped = run(&["replay", "--policy", &policy, "-", "--json", "-"], good.as_bytes());
    assert_eq!(piped.status.code(), Some(0), "{}", stderr(&piped));
    // As everywhere else, `--json` alone prints the answer as JSON.
    for arguments in [&["-", "--json"][..], &["--json", "--clients", "gone", "-"]] {
        let bare = run(&[&["replay", "--policy", &policy], arguments].concat(), good.as_bytes());
        assert_eq!((bare.status.code(), stdout(&bare)), (Some(0), stdout(&piped)), "{}", stderr(&bare));
    }
}

/// A gzip of one member that is cut between two lines: its text, and no end.
fn cut_gzip(text: &str) -> Vec<u8> {
    let header = [0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3];
    if text.is_empty() {
        return header.to_vec();
    }
    let length = u16::try_from(text.len()).unwrap();
    // A stored block that is not the last one.
    [&header[..], &[0], &length.to_le_bytes(), &(!length).to_le_bytes(), text.as_bytes()].concat()
}

/// The story: a log that was cut between two lines had no bad line, so no report said that it was cut; with nothing in it,
/// it was called empty; and hashed keys removed the fact with the examples.
#[test]
fn a_damaged_log_is_called_so() {
    const CUT: &str = "cut.log.gz: the compressed data is cut short; only what came before was read";
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let lines: String = (0..5).map(|second| line("192.0.2.1", second, "curl")).collect();
    fs::write(scratch.path("cut.log.gz"), cut_gzip(&lines)).unwrap();
    let (log, html, json) = (scratch.text("cut.log.gz"), scratch.text("r.html"), scratch.text("r.json"));
    for more in [&[][..], &["--hash-keys"]] {
        let arguments = ["replay", "--policy", &policy, &log, "--html", &html, "--json", &json];
        let output = run(&[&arguments[..], more].concat(), b"");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(
            stdout(&output).contains("damaged: ") && stdout(&output).contains(CUT),
            "{}",
            stdout(&output)
        );
        assert!(fs::read_to_string(&html).unwrap().contains(CUT));
        let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        assert!(report["input"]["damage"][0].as_str().unwrap().ends_with(CUT), "{report}");
        assert_eq!((&report["totals"]["requests"], &report["input"]["bad_lines"]), (&5.into(), &0.into()));
    }
    let output = run(&["suggest", "--by", "ip", &log], b"");
    assert!(stdout(&output).contains("# damaged: ") && stdout(&output).contains(CUT), "{}", stdout(&output));
    fs::write(scratch.path("cut.log.gz"), cut_gzip("")).unwrap();
    for arguments in [&["replay", "--policy", &policy, &log][..], &["suggest", "--by", "ip", &log]] {
        let output = run(arguments, b"");
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        let errors = stderr(&output);
        assert!(errors.contains("the log is damaged") && errors.contains(CUT), "{errors}");
    }
}

/// The key that each limit would deny most is in the text and on the page, not only in the JSON.
#[test]
fn the_worst_client_of_each_limit_is_shown() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let log: String = (0..5).map(|second| line("192.0.2.1", second, "curl")).collect();
    let (log, html) = (scratch.file("access.log", &log), scratch.text("r.html"));
    let output = run(&["replay", "--policy", &policy, &log, "--html", &html], b"");
    let worst = "denied most: 192.0.2.1, 3 of its 5 requests, 100.00 % of the denials of this limit";
    assert!(stdout(&output).contains(worst), "{}", stdout(&output));
    assert!(fs::read_to_string(&html).unwrap().contains(worst));
}

/// A log that begins with the newest line is refused by both commands, in the same words.
#[test]
fn a_log_out_of_order_is_refused() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let log: String = (0..60).rev().map(|second| line("192.0.2.1", second, "curl")).collect();
    let log = scratch.file("access.log", &log);
    for arguments in
        [&["replay", "--policy", &policy, &log][..], &["suggest", "--by", "ip", "--anyway", &log]]
    {
        let output = run(arguments, b"");
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        let errors = stderr(&output);
        assert!(errors.contains("it is not in the order of time, so no count would be right"), "{errors}");
    }
}

/// Terminal and page say the same facts: the window in which lines were put in order, the memory of each key, who is newly
/// denied and who is freed, and what a queue delays.
#[test]
fn the_text_and_the_page_have_the_same_facts() {
    let scratch = Scratch::new();
    let queue = "limits: [{name: queue, by: [ip], rate: 30/min, algorithm: leaky-bucket, queue: 3}]";
    let (old, new) = (scratch.file("old.yaml", queue), scratch.file("new.yaml", POLICY));
    let log: String = (0..9).map(|second| line("192.0.2.1", second, "curl")).collect();
    let late = (10..50).step_by(10).map(|second| line("192.0.2.2", second, "curl"));
    let (log, html) =
        (scratch.file("access.log", &(log + &late.collect::<String>())), scratch.text("r.html"));
    let report = |policy: &str, against: &str| {
        let output = run(
            &["replay", "--policy", policy, "--against", against, &log, "--html", &html, "--hash-keys"],
            b"",
        );
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (stdout(&output), fs::read_to_string(&html).unwrap())
    };
    let (text, page) = report(&old, &new);
    for fact in [
        "lines were put in the order of arrival within 2 s",
        "bytes for each of 2 keys",
        "would have waited in its queue, and then passed",
    ] {
        assert!(text.contains(fact) && page.contains(fact), "{fact}: {text}");
    }
    assert!(text.contains("\nNEWLY DENIED "), "{text}");
    assert!(page.contains("<h3>Newly denied: "), "{page}");
    let (text, page) = report(&new, &old);
    assert!(text.contains("\nFREED ") && page.contains("<h3>Freed: "), "{text}");
}

/// A cost that no request of the log has is an error: the engine would deny every request, which says nothing about it.
#[test]
fn a_cost_that_the_log_lacks_is_an_error() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", "limits: [{name: a, by: [ip], rate: 9/min, cost: tokens * 2}]");
    let log = scratch.file("access.log", &line("192.0.2.1", 1, "curl"));
    let output = run(&["replay", "--policy", &policy, &log], b"");
    assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
    let errors = stderr(&output);
    assert!(
        errors.contains("limit a computes the cost from tokens, which none of 1 request of the log has"),
        "{errors}"
    );
}

/// The story: after a replay of ten million lines the page could not be written, and nothing else was shown.
#[test]
fn a_report_is_shown_although_its_page_cannot_be_written() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let log = scratch.file("access.log", &line("192.0.2.1", 1, "curl"));
    let output =
        run(&["replay", "--policy", &policy, &log, "--html", &scratch.text("no/folder/r.html")], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).contains("would have denied 0 of 1 request"), "{}", stdout(&output));
    assert!(stderr(&output).contains("name a file that can be written"), "{}", stderr(&output));
}

/// The story: a log whose lines were all left out, or nearly all, ended with 0 and "would not have changed any of 0 decisions",
/// which a workflow posts on a pull request. Now nothing is reported of it, and a few lines that are left out are a warning.
#[test]
fn a_log_without_requests_is_an_error() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let good: String = (0..10).map(|second| line("192.0.2.1", second, "curl")).collect();
    let table: String = (0..50).map(|n| format!("{},192.0.2.{n},/a\n", 1_893_456_000 + n)).collect();
    let table = scratch.file("table.csv", &format!("time,addr,path\n{table}"));
    let twice = ["--key", "ip=addr", "--key", "ip=path"];
    let mostly = scratch.file("mostly.log", &(good.clone() + &"garbage\n".repeat(30)));
    let partly = scratch.file("partly.log", &(good + &"garbage\n".repeat(3)));
    let replay = ["replay", "--policy", &policy, "--against", &policy];
    let suggest = ["suggest", "--by", "ip", "--anyway"];
    for command in [&replay[..], &suggest] {
        let output = run(&[command, &twice, &[&table]].concat(), b"");
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        assert!(
            stderr(&output).contains("none of 50 lines is a request that a server accepts:\n"),
            "{}",
            stderr(&output)
        );
        let output = run(&[command, &[&mostly]].concat(), b"");
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
        assert!(stderr(&output).contains("30 of 40 lines are no requests"), "{}", stderr(&output));
        let output = run(&[command, &[&partly]].concat(), b"");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let warning = "warning: 3 of 13 lines are no requests, and are left out of the report";
        assert!(stderr(&output).contains(warning), "{}", stderr(&output));
    }
}

/// The story: what a damaged gzip gave after the damage was counted, under "only what came before was read". A damaged log
/// is a warning, and it says that lines may be wrong.
#[test]
fn a_damaged_log_is_a_warning() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let lines: String = (0..5).map(|second| line("192.0.2.1", second, "curl")).collect();
    // After the text an empty last block, and another checksum and length.
    let damaged = [cut_gzip(&lines), vec![1, 0, 0, 0xFF, 0xFF], vec![9; 8]].concat();
    fs::write(scratch.path("damaged.log.gz"), damaged).unwrap();
    let log = scratch.text("damaged.log.gz");
    for command in [&["replay", "--policy", &policy][..], &["suggest", "--by", "ip", "--anyway"]] {
        let output = run(&[command, &[&log]].concat(), b"");
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert!(errors.contains("warning: ") && errors.contains("lines of it may be wrong"), "{errors}");
    }
}

/// The story: a table with the column `addr` and a policy by `ip` gave "log the address of the client". The message has the
/// flag that helps, and what the log has.
#[test]
fn a_missing_attribute_comes_with_what_the_log_has() {
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    let table = scratch.file("table.csv", "time,addr,path\n1893456000,192.0.2.1,/a\n");
    let output = run(&["replay", "--policy", &policy, &table], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--key ip=addr; the log has addr, path"), "{}", stderr(&output));
    let log = scratch.file("access.log", &line("192.0.2.1", 1, "curl"));
    let output = run(&["suggest", "--by", "client", &log], b"");
    let has = "the log has bytes, ip, method, path, user_agent";
    assert!(stderr(&output).contains(has), "{}", stderr(&output));
}

/// The story: a user agent of more than 4,096 bytes removed its request from the report, and a line that no server accepts
/// could not be found in the log.
#[test]
fn a_long_user_agent_is_no_reason_to_leave_a_request_out() {
    let scratch = Scratch::new();
    let policy = "limits: [{name: agent, by: [user_agent, path], rate: 2/min}]";
    let policy = scratch.file("policy.yaml", policy);
    let long: String = (0..3).map(|second| line("192.0.2.1", second, &"é".repeat(3_000))).collect();
    let bad = line("192.0.2.1", 7, "curl").replace("/export", "/%00");
    let log = scratch.file("access.log", &(long + &bad));
    let output = run(&["replay", "--policy", &policy, &log, "--json", "-"], b"");
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&report["totals"]["requests"], &report["totals"]["denied"]),
        (&3.into(), &1.into()),
        "{report}"
    );
    let example = report["input"]["undecidable_examples"][0].as_str().unwrap();
    assert!(example.starts_with("2026-11-16T10:00:07Z: "), "{example}");
}

/// The report of two policies has the totals of the second one, and says how many clients its list leaves out.
#[test]
fn the_other_policy_has_its_own_totals() {
    let scratch = Scratch::new();
    let (old, new) = (
        scratch.file("old.yaml", "limits: [{name: a, by: [ip], rate: 9/min}]"),
        scratch.file("new.yaml", POLICY),
    );
    let log: String = (0..30)
        .flat_map(|client| (0..3).map(move |_| line(&format!("192.0.2.{client}"), 1, "curl")))
        .collect();
    let (log, html) = (scratch.file("access.log", &log), scratch.text("r.html"));
    let output = run(&["replay", "--policy", &old, "--against", &new, &log, "--html", &html], b"");
    let (text, page) = (stdout(&output), fs::read_to_string(&html).unwrap());
    for fact in [
        "An estimate: this change would have newly denied 33 % of 90 requests (30; 30 clients",
        "new.yaml would have denied 30 of 90 requests (33.33 %); an estimate",
        "an estimate: the comparison of the policies, with requests spread evenly over each second",
        "and 10 more, which are not shown",
    ] {
        assert!(text.contains(fact) && page.contains(fact), "{fact}: {text}");
    }
}
