//! `tollgate suggest`: its guide, its refusals, and that its policy keeps what it promises.

use std::fmt::Write;
use std::fs;

use serde_json::Value;
use tollgate_testkit::Scratch;

use crate::guide::{Last, blocks, shell, succeeded};
use crate::program::{run, stderr, stdout, tollgate};

const GUIDE: &str = include_str!("../../../../docs/suggest.md");

/// A log of `keys` keys. On each of three days every key sends as many requests at once as `at_once` says.
fn log(keys: u64, at_once: [u64; 3]) -> String {
    let mut text = "time,api_key\n".to_owned();
    for (day, count) in at_once.iter().enumerate() {
        for hour in ["00", "20"] {
            for key in 0..keys {
                for _ in 0..*count {
                    writeln!(text, "2030-01-0{}T{hour}:00:00.000Z,k{key}", day + 1).unwrap();
                }
            }
        }
    }
    text
}

/// The status and both outputs of a suggestion.
fn suggested(folder: &Scratch, more: &[&str]) -> (Option<i32>, String, String) {
    let arguments = [&["suggest", "--by", "api_key", "log.csv"], more].concat();
    let output = tollgate(&arguments).current_dir(folder.folder()).output().unwrap();
    (output.status.code(), stdout(&output), stderr(&output))
}

fn folder(log: &str) -> Scratch {
    let folder = Scratch::new();
    fs::write(folder.path("log.csv"), log).unwrap();
    folder
}

/// Every command of the guide prints what the guide shows.
#[test]
fn the_guide_is_true() {
    let folder = Scratch::new();
    let mut last = Last::default();
    for (language, block) in &blocks(GUIDE) {
        if *language == "sh" {
            let mut shell = shell(&format!("set -eu\n{block}"));
            shell.current_dir(folder.folder());
            last.ran(block, succeeded(shell).0);
        } else {
            last.compare(language, block);
        }
    }
    last.at_least(2);
}

/// The output is a policy as it is, and the log passes through it: a recorded test of the log has no denial.
#[test]
fn the_output_is_a_policy_that_denies_nothing() {
    let folder = folder(&log(100, [4, 5, 6]));
    let (status, out, errors) = suggested(&folder, &["--headroom", "1", "--untouched", "99%"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{out}");
    assert!(
        out.ends_with("  - name: per-api-key\n    by: [api_key]\n    rate: 10/min\n    burst: 6\n"),
        "{out}"
    );
    fs::write(folder.path("policy.yaml"), &out).unwrap();
    let record =
        ["policy", "test", "--record", "log.csv", "--policy", "policy.yaml", "--max-requests", "5000"];
    let recorded = tollgate(&record).current_dir(folder.folder()).output().unwrap();
    let text = stdout(&recorded);
    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    assert_eq!((text.matches("expect: allow").count(), text.matches("expect: deny").count()), (3_000, 0));
    fs::write(folder.path("recorded.yaml"), &text).unwrap();
    let test = tollgate(&["policy", "test", "recorded.yaml"]).current_dir(folder.folder()).output().unwrap();
    assert_eq!(test.status.code(), Some(0), "{}{}", stdout(&test), stderr(&test));
    // One unit less denies someone, and the recorded test finds it.
    fs::write(folder.path("policy.yaml"), out.replace("burst: 6", "burst: 5")).unwrap();
    let test = tollgate(&["policy", "test", "recorded.yaml"]).current_dir(folder.folder()).output().unwrap();
    assert_eq!(test.status.code(), Some(1), "{}", stdout(&test));
}

/// A log that cannot carry a limit ends with 1 and says why. The report is printed all the same, and `--anyway` suggests
/// with a warning in the policy.
#[test]
fn a_log_that_cannot_carry_a_limit_is_refused() {
    let short: String =
        log(100, [4, 0, 0]).lines().map(|line| line.replace("T20:00:", "T00:06:") + "\n").collect();
    for (log, cause) in [
        (log(99, [4, 4, 4]), "99 keys are too few; at least 100 are needed"),
        (
            log(100, [2, 5, 5]),
            "days differ by more than 2 times: 2030-01-01 needed a burst of 2, 2030-01-03 one of 5",
        ),
        (
            short,
            "the log covers 6 min, which is less than 7 periods of 1 min: give a longer log, or a shorter --period",
        ),
    ] {
        let folder = folder(&log);
        let (status, out, errors) = suggested(&folder, &["--untouched", "99%"]);
        assert_eq!(status, Some(1), "{out}");
        let expected = format!(
            "tollgate: warning: nothing is suggested: {cause}; --anyway suggests a limit all the same\n"
        );
        assert_eq!(errors, expected);
        assert!(out.contains("all keys") && out.lines().all(|line| line.starts_with('#')), "{out}");
        let (status, out, errors) =
            suggested(&folder, &["--untouched", "99%", "--anyway", "--write", "policy.yaml"]);
        assert_eq!(
            (status, errors),
            (Some(0), format!("tollgate: warning: do not trust this: {cause}\n")),
            "{out}"
        );
        assert!(out.ends_with("policy.yaml written\n"), "{out}");
        let policy = fs::read_to_string(folder.path("policy.yaml")).unwrap();
        assert!(policy.contains(&format!("# WARNING: {cause}.\n")), "{policy}");
        let check =
            tollgate(&["policy", "check", "policy.yaml"]).current_dir(folder.folder()).output().unwrap();
        assert_eq!(check.status.code(), Some(0), "{}", stderr(&check));
    }
    let flood = folder(&log(1, [5_001, 0, 0]));
    let (status, out, errors) = suggested(&flood, &["--anyway"]);
    assert_eq!(status, Some(1), "{out}");
    assert!(
        errors.contains("no rate up to 5000/min returns its burst within one period; try --period s"),
        "{errors}"
    );
}

/// Stamps of whole seconds give a range, and the larger end is used.
#[test]
fn whole_seconds_give_a_range() {
    let folder = Scratch::new();
    let mut log = String::new();
    for second in 0..2 {
        for key in 0..100 {
            for _ in 0..3 {
                writeln!(
                    log,
                    "192.0.2.{key} - - [01/Jan/2030:00:00:0{second} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\""
                )
                .unwrap();
            }
        }
    }
    for key in 0..100 {
        writeln!(
            log,
            "192.0.2.{key} - - [01/Jan/2030:01:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\""
        )
        .unwrap();
    }
    fs::write(folder.path("access.log"), log).unwrap();
    let arguments = ["suggest", "--by", "ip", "--untouched", "99%", "--json", "access.log"];
    let output = tollgate(&arguments).current_dir(folder.folder()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(found["stamps_are_coarse"], true, "{found}");
    // At 10/min: six may have come at once, and at least three did within a second.
    let point = &found["points"][3];
    assert_eq!((&point["rate"], &point["burst"]), (&"10/min".into(), &6.into()), "{found}");
    assert!(point["burst_least"].as_u64().is_some_and(|least| (3..=6).contains(&least)), "{found}");
    assert_eq!(found["suggestion"]["burst"], 9, "{found}");
}

/// Unreadable input is an error: an attribute that the log does not have, a file that is none, a name that no policy
/// accepts.
#[test]
fn an_unreadable_log_is_an_error() {
    let folder = folder(&log(1, [1, 1, 1]));
    for (arguments, expected) in [
        (
            &["suggest", "--by", "tenant", "log.csv"][..],
            "none of 6 requests has tenant; name its column with --key tenant=COLUMN; the log has api_key",
        ),
        (
            &["suggest", "--html", "r.html", "log.csv"],
            "--by NAME is missing, the attribute that the limit counts by; the log has api_key; \
             try `tollgate suggest --by api_key log.csv`",
        ),
        (&["suggest", "none.csv"], "none.csv: "),
        (&["suggest", "--by", "api_key", "none.csv"], "none.csv: "),
        (&["suggest", "--by", "", "log.csv"], "--by"),
        (&["suggest", "--by", "api_key", "--untouched", "0%", "log.csv"], "such as 99.9%"),
        (&["policy", "test", "--record", "none.csv", "--policy", "none.yaml"], "none.yaml: no such file"),
        (&["policy", "test", "--record", "log.csv"], "--policy"),
    ] {
        let output = tollgate(arguments).current_dir(folder.folder()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

/// The story: `suggest access.log` said that `--by NAME` is missing, and no name that the log has. It reads the first lines
/// and names them, with the command to try.
#[test]
fn without_by_the_error_names_the_attributes_of_the_log() {
    let folder = Scratch::new();
    let line = "192.0.2.1 - - [01/Jan/2030:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n";
    for (name, text, expected) in [
        (
            "access.log",
            line,
            "; the log has bytes, ip, method, path, user_agent; try `tollgate suggest --by ip access.log`\n",
        ),
        (
            "addr.csv",
            "time,addr,shop\n2030-01-01T00:00:00Z,192.0.2.1,a\n",
            "; the log has addr, shop; try `tollgate suggest --by ip --key ip=addr addr.csv`\n",
        ),
        (
            "shop.csv",
            "time,shop\n2030-01-01T00:00:00Z,a\n",
            "; the log has shop; try `tollgate suggest --by NAME shop.csv`\n",
        ),
        ("empty.log", "", "the log is empty: give one that has requests\n"),
    ] {
        fs::write(folder.path(name), text).unwrap();
        let output = tollgate(&["suggest", name]).current_dir(folder.folder()).output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()));
        assert!(stderr(&output).ends_with(expected), "{}", stderr(&output));
    }
}

/// A log of ten minutes in which two of so many keys send far more than the others.
fn with_two_abusers(keys: u64) -> String {
    let mut text = "time,api_key\n".to_owned();
    for minute in 0..10 {
        for key in 0..keys {
            for _ in 0..if key < 2 { 40 } else { 1 } {
                writeln!(text, "2030-01-01T00:{minute:02}:00.000Z,k{key}").unwrap();
            }
        }
    }
    text
}

/// The story: three abusers among 300 clients decided the limit that a new user was given, and only the sentence after it
/// named them. The limit is that of the others, and beside it stand the few keys, how often each would be denied, and the
/// limit that leaves them alone: in the text, in the policy, on the page and in JSON.
#[test]
fn a_few_keys_unlike_the_others_do_not_decide_the_limit() {
    let folder = folder(&with_two_abusers(1_000));
    let (status, report, errors) = suggested(&folder, &["--html", "r.html"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{report}");
    let second =
        "If these 2 are no abuse, set 75/min, burst 60 instead: it would have denied no request of any key.";
    for part in [
        "# 2 of 1000 keys are unlike the others: sha256:",
        "# At 1/min each of them needs a burst of 391 or more, and each other key one of 1 at most.\n",
        "# The smallest burst with which a rate denies no request of the other 998 keys, and of all keys:\n",
        "# Who would notice 2/min, burst 2: 2 of 1000 keys, by a replay of the log\n#   KEY",
        "  400       380     95.00\n",
        second,
        "# To leave these alone, too: rate: 75/min, burst: 60.\nlimits:",
        "    rate: 2/min\n    burst: 2\n",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let page = fs::read_to_string(folder.path("r.html")).unwrap();
    for part in [second, "<h1>Set this limit: 2/min, burst 2</h1>", "998 of 1000 keys untouched"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (_, json, _) = suggested(&folder, &["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let unlike = &json["unlike"];
    assert_eq!((&json["suggestion"]["rate"], &json["untouched"]), (&"2/min".into(), &Value::Null));
    assert_eq!((&unlike["keys"], &unlike["limit_of_all"]["rate"]), (&2.into(), &"75/min".into()));
    let noticed = &unlike["noticed"];
    assert_eq!((&noticed["keys"], &noticed["is_estimated"]), (&2.into(), &false.into()), "{noticed}");
    assert_eq!(
        (&noticed["denied_most"][1]["requests"], &noticed["denied_most"][1]["denied"]),
        (&400.into(), &380.into()),
        "{noticed}"
    );
    // A pipe cannot be read again.
    let piped = run(&["suggest", "--by", "api_key", "-"], with_two_abusers(1_000).as_bytes());
    assert_eq!(piped.status.code(), Some(0), "{}", stderr(&piped));
    let piped = stdout(&piped);
    assert!(piped.contains("give the log as a file") && piped.contains("rate: 2/min"), "{piped}");
}

/// A limit that is not suggested has no counts of denials, and `--anyway` has them.
#[test]
fn a_refused_limit_is_not_replayed() {
    let folder = folder(&with_two_abusers(60));
    let (status, report, errors) = suggested(&folder, &[]);
    assert_eq!(status, Some(1), "{report}");
    assert!(
        errors.contains("60 keys are too few") && !report.contains("Who would notice"),
        "{errors}{report}"
    );
    let (status, report, _) = suggested(&folder, &["--anyway"]);
    assert_eq!(status, Some(0), "{report}");
    assert!(report.contains("Who would notice 2/min, burst 2: 2 of 60 keys"), "{report}");
}

/// A share that is wanted is kept, whatever the few keys need; they are named beside it.
#[test]
fn a_wanted_share_is_kept() {
    let folder = folder(&with_two_abusers(1_000));
    let (status, report, errors) = suggested(&folder, &["--untouched", "99.9%"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{report}");
    let said = "the other 998 keys need no more than 2/min, burst 2. If the other 2 are abuse, leave --untouched out: sha256:";
    assert!(report.contains("rate: 75/min") && report.contains(said), "{report}");
    let (_, report, _) = suggested(&folder, &["--untouched", "99%"]);
    assert!(report.contains("rate: 2/min") && !report.contains("unlike the others"), "{report}");
}

/// Where a fifth of the keys sends far more than the others, none of them is left out: the limit is theirs.
#[test]
fn many_abusers_are_not_left_out() {
    let mut log = "time,api_key\n".to_owned();
    for minute in 0..10 {
        for key in 0..300 {
            for _ in 0..if key < 60 { 40 } else { 1 } {
                writeln!(log, "2030-01-01T00:{minute:02}:00.000Z,k{key}").unwrap();
            }
        }
    }
    let folder = folder(&log);
    let (status, report, errors) = suggested(&folder, &[]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{report}");
    assert!(report.contains("it leaves 1 out") && report.contains("rate: 75/min"), "{report}");
    let (_, json, _) = suggested(&folder, &["--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["unlike"], Value::Null);
}

/// The story: of 403 keys 99.9 % are all, so three abusers decided; the refusal named days that differ, offered a limit that
/// denies no client, and wrote no page without a word. It names the few keys and the limit of the others, and
/// the page has that limit. A page that cannot be made is said not to be written.
#[test]
fn a_refusal_names_the_few_keys_and_the_limit_of_the_others() {
    let few = folder(&with_two_abusers(403));
    let (status, report, errors) =
        suggested(&few, &["--untouched", "99.9%", "--html", "r.html", "--write", "p.yaml"]);
    assert_eq!(status, Some(1), "{report}");
    // Credentials are shown by their hashes.
    for part in [
        "nothing is suggested: 2 of 403 keys need far more than the others, and decide the limit (sha256:",
        "; without --untouched it is the limit of the others: 2/min, burst 2\ntollgate: warning: p.yaml is not written\n",
    ] {
        assert!(errors.contains(part), "{errors}");
    }
    assert_eq!(errors.lines().count(), 2, "{errors}");
    assert!(
        report.contains("the log through the limit of the other keys, and who would notice: r.html"),
        "{report}"
    );
    let page = fs::read_to_string(few.path("r.html")).unwrap();
    for part in [
        "<h1>Set this limit: 2/min, burst 2</h1>",
        "401 of 403 keys untouched",
        "    rate: 2/min\n    burst: 2\n",
        "nothing is suggested: 2 of 403 keys",
        "<td class=\"t\">sha256:",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (status, report, errors) = suggested(&few, &["--untouched", "99%"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{report}");
    assert!(report.ends_with("    rate: 2/min\n    burst: 2\n"), "{report}");

    let alike = folder(&log(200, [4, 4, 4]));
    let (status, report, errors) = suggested(&alike, &["--untouched", "99.9%", "--html", "r.html"]);
    assert_eq!(status, Some(1), "{report}");
    assert!(
        errors.contains(
            "200 keys are too few for 99.9 % of them, which is all of them: at least 1000 are needed, or \
             --untouched 99.5%, the finest share of which so many keys leave one out"
        ) && errors.contains("r.html is not written"),
        "{errors}"
    );
    assert!(!alike.path("r.html").exists());
}

/// The story: a new user's nginx log had a few hundred addresses, and `suggest` ended with 1, because 99.9 % of them are all.
/// Without `--untouched` it takes the finest share that the keys can carry, and says which.
#[test]
fn an_ordinary_log_is_answered_without_a_share() {
    for (keys, share, said) in [
        (
            100,
            "99 %",
            "99 % is the finest share that 100 keys carry: it leaves 1 out. 99.9 % takes 1000 keys.",
        ),
        (403, "99.5 %", "99.5 % is the finest share that 403 keys carry: it leaves 2 out."),
        (999, "99.8 %", "99.8 % is the finest share that 999 keys carry: it leaves 1 out."),
        (1_000, "99.9 %", "of 99.9 % of the keys, and of all keys:"),
    ] {
        let folder = folder(&log(keys, [4, 4, 4]));
        let (status, report, errors) = suggested(&folder, &["--html", "r.html"]);
        assert_eq!((status, errors.as_str()), (Some(0), ""), "{report}");
        assert!(report.contains(said), "{report}");
        assert!(report.ends_with("who would notice: r.html\n"), "{report}");
        assert_eq!(report.contains("is the finest share"), keys < 1_000, "{report}");
        assert!(fs::read_to_string(folder.path("r.html")).unwrap().contains("<h1>Set this limit: "));
        let (_, json, _) = suggested(&folder, &["--json"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["untouched"], &json["untouched_is_default"]), (&share.into(), &true.into()));
    }
}

/// The page leads with the limit to set, its policy and how many keys it leaves alone; what it denies is no alarm.
#[test]
fn the_page_leads_with_the_limit_to_set() {
    let folder = folder(&with_two_abusers(200));
    let (status, report, errors) = suggested(&folder, &["--untouched", "99%", "--html", "r.html"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{report}");
    let page = fs::read_to_string(folder.path("r.html")).unwrap();
    let places = [
        "<title>Set this limit: 2/min, burst 2",
        "198 of 200 keys untouched",
        "<pre>",
        "It would have denied",
    ]
    .map(|part| page.find(part).unwrap_or_else(|| panic!("{part}: {page}")));
    assert!(places.is_sorted(), "{places:?}");
    assert!(!page.contains("verdict bad"), "{page}");
}
