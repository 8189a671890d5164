//! Limitador's rules row by row, every kind of invalid file, and behaviour under concurrency.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::decide::{Action, Asked};
use crate::golden::{Bench, run};
use crate::rls::{Code, Descriptor, RlsRequest};
use crate::{CompatConfig, Format, Source};
use tollgate::fuzzing::poll_once;

/// Every row of the table gets its expected answer.
#[test]
fn the_golden_table_holds() {
    let (configurations, answers) = run(Format::Limitador, include_str!("golden.txt"));
    assert!(configurations >= 14 && answers >= 90, "{configurations} configurations, {answers} answers");
}

fn findings(file: &str) -> Result<String, String> {
    let source = Source { name: "f".to_owned(), bytes: file.as_bytes().to_vec() };
    match CompatConfig::compile(Format::Limitador, &[source]) {
        Ok((_, warnings)) => Ok(warnings.to_string()),
        Err(findings) => Err(findings.to_string()),
    }
}

/// All problems are reported at once, with position, field and what would be accepted.
#[test]
fn wrong_files_are_refused_with_every_reason() {
    const REST: &str = "seconds: 1, conditions: [], variables: []";
    let cases: [(String, &[&str]); 13] = [
        (format!("- {{max_value: 1, {REST}}}"), &["f:1:3: [0].namespace: has no value; accepted: the domain that is asked about"]),
        (format!("- {{namespace: '', max_value: 1, {REST}}}"), &["[0].namespace: has no value"]),
        (format!("- {{namespace: n, max_value: -1, {REST}}}"), &["f:1:29: [0].max_value: -1 is no such number"]),
        (format!("- {{namespace: n, name: basic, max_value: x, {REST}}}"), &["[0] \"basic\".max_value: x is no such number"]),
        ("- {namespace: n, max_value: 1, conditions: [], variables: []}".to_owned(), &["[0].seconds: is missing"]),
        ("- {namespace: n, max_value: 1, seconds: 40000000, conditions: [], variables: []}".to_owned(), &["accepted: a whole number up to 31622400"]),
        ("- {namespace: n, max_value: 1, seconds: 1}".to_owned(), &["[0].conditions: is missing; accepted: a list", "[0].variables: is missing"]),
        ("- {namespace: n, max_value: 1, seconds: 1, conditions: x, variables: []}".to_owned(), &["[0].conditions: is a single value"]),
        ("- {namespace: n, max_value: 1, seconds: 1, conditions: ['a =='], variables: ['(']}".to_owned(), &["[0].conditions[0]: not CEL", "[0].variables[0]: not CEL"]),
        ("- {namespace: n, max_value: 1, seconds: 1, conditions: ['timestamp(descriptors[0].a)'], variables: []}".to_owned(), &["the function timestamp does not exist"]),
        ("- {namespace: n, max_value: 1, seconds: 1, conditions: ['descriptors[0].a.matches(\"(\")'], variables: ['descriptors[0].a.matches(limit.name)']}".to_owned(), &["[0].conditions[0]: the pattern ( is no regular expression: unclosed group", "[0].variables[0]: the pattern of matches() is computed"]),
        (format!("- {{namespace: n, max_value: 1, maxvalue: 2, {REST}}}"), &["[0].maxvalue: unknown field; did you mean max_value?"]),
        ("- x\n- [y]\n".to_owned(), &["f:1:3: [0]: is a single value; accepted: a table", "f:2:3: [1]: is a list"]),
    ];
    for (file, expected) in cases {
        let text = findings(&file).expect_err(&file);
        let mut rest = text.as_str();
        for one in expected {
            let Some(at) = rest.find(one) else { panic!("{file}\nfindings: {text}\nexpected: {one}") };
            rest = &rest[at + one.len()..];
        }
    }
}

/// A file that is usable but probably a mistake gets a warning.
#[test]
fn odd_files_are_warned_of() {
    let cases = [
        ("- {namespace: n, seconds: 1, conditions: ~, variables: ~}", "max_value: is missing, so it is 0"),
        (
            "- {namespace: n, max_value: 1, seconds: 0, conditions: [], variables: []}",
            "a window of 0 seconds counts nothing",
        ),
        (
            "- {namespace: n, max_value: 1, seconds: 1, conditions: [\"req.method == 'GET'\"], variables: []}",
            "conditions[0]: req.method is no name that a request has, so the limit does not apply where it is looked at; accepted: descriptors[0]['req.method']",
        ),
        (
            "- {namespace: n, max_value: 1, seconds: 1, conditions: [], variables: []}\n- {namespace: n, max_value: 2, seconds: 1, conditions: [], variables: []}",
            "f:2:3: warning: [1]: another limit has the same namespace",
        ),
    ];
    for (file, expected) in cases {
        let text = findings(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(expected), "{file}: {text}");
    }
}

const TWO: &str = "\
- {namespace: n, max_value: 100, seconds: 3600, conditions: [], variables: []}
- {namespace: n, max_value: 1000, seconds: 3600, conditions: [], variables: [\"descriptors[0].user\"]}
";

/// The bug in the original: it checks and then adds, so concurrent requests pass together. Here never more pass than
/// fit.
#[test]
fn requests_at_the_same_time_do_not_pass_together() {
    let bench = Bench::new(Format::Limitador, TWO);
    let entries = vec![("user".to_owned(), "u".to_owned())];
    let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
    let rls_request = RlsRequest { domain: "n".to_owned(), descriptors, hits_addend: 3 };
    let passed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    if bench.ask(&rls_request).overall == Code::Ok {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    // A request may be refused because of another that is itself refused; in the end less room is left than one request
    // needs.
    let passed = passed.into_inner();
    assert!((20..=33).contains(&passed), "{passed}");
    let look = RlsRequest {
        descriptors: vec![Descriptor { hits_addend: Some(0), ..rls_request.descriptors[0].clone() }],
        ..rls_request
    };
    let answer = bench.ask(&look);
    assert_eq!(
        answer.statuses[0].limit_remaining as usize,
        100 - 3 * passed,
        "what was refused was given back"
    );
}

fn decide(bench: &Bench, action: Action, delta: u64) -> (bool, Vec<u64>) {
    let entries = [("user".to_owned(), "u".to_owned())];
    let asked = Asked { namespace: "n", descriptors: vec![&entries], delta, action };
    let decision = poll_once(bench.active.decide(&asked, &bench.engine, bench.now)).unwrap();
    (decision.is_limited, decision.loads.iter().map(|load| load.remaining).collect())
}

/// A check changes nothing, a report always adds, and both together add if there is room.
#[test]
fn check_report_and_both() {
    let bench = Bench::new(Format::Limitador, TWO);
    assert_eq!(decide(&bench, Action::Check, 100), (false, vec![100, 1000]));
    assert_eq!(decide(&bench, Action::Check, 101), (true, vec![0, 1000]));
    assert_eq!(decide(&bench, Action::Report, 150), (false, vec![0, 850]));
    assert_eq!(decide(&bench, Action::Check, 1), (true, vec![0, 850]));
    assert_eq!(decide(&bench, Action::CheckAndReport, 1), (true, vec![0, 850]));
    assert_eq!(decide(&bench, Action::Report, u64::MAX), (false, vec![0, 0]));
}

/// Open counters are listed with what they have left, even after a limit was lowered below its count.
#[test]
fn counters_are_listed() {
    let mut bench = Bench::new(Format::Limitador, TWO);
    decide(&bench, Action::CheckAndReport, 40);
    let listed = |bench: &Bench| -> Vec<(usize, u64, u64)> {
        let CompatConfig::Limitador(config) = &*bench.active.rules else { panic!("another format") };
        let mut all = Vec::new();
        for limit in config.limits("n") {
            let counters = poll_once(bench.active.listed(limit, &bench.engine, bench.now));
            all.extend(
                counters
                    .iter()
                    .map(|one| (one.values.len(), one.remaining, one.expires_after.ceil_seconds())),
            );
        }
        all
    };
    assert_eq!(listed(&bench), [(0, 60, 3600), (1, 960, 3600)]);
    let lower = Bench::new(Format::Limitador, &TWO.replace("1000", "30").replace("100,", "10,"));
    bench.active =
        crate::ActiveConfig::new(lower.active.rules, &bench.engine, Some(&bench.active), bench.now).unwrap();
    assert_eq!(listed(&bench), [(0, 0, 3600), (1, 0, 3600)]);
    bench.now = bench.now + tollgate::Ticks::from_secs(3600);
    assert_eq!(listed(&bench), []);
}

/// A file of thousands of limits is read quickly, and not in quadratic time.
#[test]
fn many_limits_are_read_in_a_moment() {
    let one = |at: usize| {
        format!(
            "- {{namespace: n, max_value: {at}, seconds: 60, conditions: [], variables: [\"descriptors[0].v{at}\"]}}\n"
        )
    };
    let file: String = (0..5_000).map(one).collect();
    let source = Source { name: "f".to_owned(), bytes: file.into_bytes() };
    let (rules, warnings) = CompatConfig::compile(Format::Limitador, &[source]).unwrap();
    assert_eq!((rules.sentences().len(), warnings.len()), (5_000, 0));
}

const PAIR: &str =
    "- {namespace: n, max_value: 2, seconds: 60, conditions: [], variables: [\"descriptors[0]['k']\"]}";

fn one(value: &str, is_negative_hits: bool) -> RlsRequest {
    let entries = vec![("k".to_owned(), value.to_owned())];
    let descriptors = vec![Descriptor { entries, is_negative_hits, ..Descriptor::default() }];
    RlsRequest { domain: "n".to_owned(), descriptors, hits_addend: 1 }
}

/// Negative hits are given back, and are never refused.
#[test]
fn negative_hits_are_given_back() {
    let bench = Bench::new(Format::Limitador, PAIR);
    let ask = |is_negative| {
        let answer = bench.ask(&one("v", is_negative));
        (answer.overall, answer.statuses[0].limit_remaining)
    };
    assert_eq!([ask(false), ask(false), ask(false)], [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)]);
    assert_eq!([ask(true), ask(false), ask(false)], [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)]);
    assert_eq!([ask(true), ask(true), ask(true)], [(Code::Ok, 1), (Code::Ok, 2), (Code::Ok, 2)]);
}

/// A report of more than a counter can hold fills it, so that the next check is refused.
#[test]
fn a_huge_report_fills_the_counter() {
    for already in [0, 1] {
        let bench = Bench::new(Format::Limitador, PAIR);
        let entries = [("k".to_owned(), "v".to_owned())];
        let decide = |delta, action| {
            let asked = Asked { namespace: "n", descriptors: vec![&entries[..]], delta, action };
            poll_once(bench.active.decide(&asked, &bench.engine, bench.now)).unwrap().is_limited
        };
        assert!(!decide(already, Action::Report));
        assert!(!decide(u64::MAX, Action::Report));
        assert!(decide(1, Action::Check) && decide(1, Action::CheckAndReport));
    }
}

/// A counter with long values is not listed, and counts like any other.
#[test]
fn long_values_are_counted_and_not_listed() {
    let bench = Bench::new(Format::Limitador, PAIR);
    let CompatConfig::Limitador(config) = &*bench.active.rules else { panic!("another format") };
    let (short, long) = ("v".repeat(512), "v".repeat(513));
    for value in [&short, &long] {
        let codes = [(); 3].map(|()| bench.ask(&one(value, false)).overall);
        assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit]);
    }
    let limit = &config.namespace("n").unwrap()[0];
    let listed = poll_once(bench.active.listed(limit, &bench.engine, bench.now));
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].values[0].1.as_deref(), Some(short.as_str()));
}

/// A limit that reads a name without a value never applies in Limitador. Its conversion applies, and says so.
#[test]
fn names_without_a_value_are_reported_as_a_change() {
    let file =
        "- {namespace: n, max_value: 5, seconds: 60, conditions: [\"m == 'POST'\"], variables: [user]}";
    let bench = Bench::new(Format::Limitador, file);
    let converted = bench.active.rules.converted(None).unwrap();
    for name in ["m", "user"] {
        let change = format!("{name} has no value in Limitador, so the limit does not apply there");
        assert!(converted.changes.iter().any(|found| found.contains(&change)), "{:?}", converted.changes);
    }
    assert_eq!(converted.text.matches("# CHANGED: ").count(), 2, "{}", converted.text);
}

/// Files that Limitador ships name entries with dots (`req.method`), leave lists empty or null, write
/// expressions with and without quotes, and begin an item on the line of its dash or below. This file has all of these
/// and every field. It converts whole.
#[test]
fn files_as_limitador_ships_them_convert_whole() {
    let file = "---
- namespace: shop
  max_value: 20
  seconds: 60
  conditions:
    - \"descriptors[0]['req.method'] == 'GET'\"
    - \"descriptors[0]['req.path'] != '/status'\"
  variables: []
-
  id: orders
  namespace: shop
  max_value: 5
  seconds: 10
  name: orders of a user
  conditions:
    - \"descriptors[0]['req.method'] == 'POST'\"
  variables:
    - descriptors[0]['user']
-
  namespace: shop
  max_value: 1000000
  seconds: 3600
  conditions:
  variables:
";
    let bench = Bench::new(Format::Limitador, file);
    let converted = bench.active.rules.converted(None).unwrap();
    assert_eq!((converted.limits, converted.lost.len()), (3, 0), "{}", converted.text);
    assert!(!converted.text.contains("NOT CONVERTED"), "{}", converted.text);
    let policy = tollgate::Policy::compile("converted", converted.text.as_bytes()).unwrap();
    let matched = |pairs: &[(&str, &str)]| {
        let mut request = tollgate::CheckRequest::new();
        for (name, value) in pairs {
            request = request.with(name, *value).unwrap();
        }
        policy.matches(&request).unwrap().iter().count()
    };
    assert_eq!(matched(&[("req.method", "GET"), ("req.path", "/x")]), 2, "{}", converted.text);
    assert_eq!(matched(&[("req.method", "GET"), ("req.path", "/status")]), 1, "{}", converted.text);
    assert_eq!(matched(&[("req.method", "POST"), ("user", "u1")]), 2, "{}", converted.text);
    assert_eq!(matched(&[("req.method", "POST")]), 1, "{}", converted.text);
}
