//! Bad files: the text and the position of each finding.

use super::super::Severity;
use super::{findings, policy, warnings};

/// A file, and for each finding its position and a part of its text.
struct Case {
    file: &'static str,
    found: &'static [&'static str],
}

/// One limit as a file of three lines; its fields begin on line 2, column 5.
macro_rules! one {
    ($fields:literal, $($found:literal),+) => {
        Case { file: concat!("limits:\n  - name: a\n", $fields), found: &[$($found),+] }
    };
}

const ERRORS: &[Case] = &[
    // The file as a whole.
    Case { file: "", found: &["policy.yaml:1:1: the file is empty"] },
    Case { file: "# nothing\n", found: &["the file is empty"] },
    Case { file: "- 1\n", found: &["policy.yaml:1:1: the file is a list; accepted: a table with `limits:`"] },
    Case { file: "domain: x\n", found: &["1:1: limits: missing"] },
    Case { file: "limits: 5\n", found: &["1:9: limits: is a single value; accepted: a list of limits"] },
    Case { file: "limits: {}\n", found: &["1:9: limits: is a table"] },
    Case { file: "limits: [\n", found: &["not YAML"] },
    Case { file: "limits: []\n---\nlimits: []\n", found: &["policy.yaml:2:1: a second document"] },
    Case {
        file: "limit: []\n",
        found: &["1:1: limit: unknown field; did you mean limits?", "limits: missing"],
    },
    Case {
        file: "limits: []\nlimits: []\n",
        found: &["1:9: warning: limits: no limits", "2:1: limits: given twice"],
    },
    Case { file: "limits: []\ndomain:\n", found: &["warning", "domain: has no value"] },
    Case { file: "limits: *undefined\n", found: &["not YAML"] },
    Case { file: "a: &a [*a]\nlimits: []\n", found: &["1:8: a[0]: this alias is part of the value"] },
    Case {
        file: "limits: !!seq []\n",
        found: &["limits: !!seq is a tag of YAML; accepted: values without tags"],
    },
    Case {
        file: "limits: []\nshard_by: ''\n",
        found: &["warning", "2:11: shard_by: \"\" cannot be the name"],
    },
    Case { file: "limits: [5]\n", found: &["1:10: limits[0]: is a single value; accepted: a table"] },
    // Names.
    Case { file: "limits: [{rate: 1/s}]\n", found: &["1:10: limits[0].name: missing"] },
    Case { file: "limits: [{name: '', rate: 1/s}]\n", found: &["1:17: limits[0] \"\".name: \"\" cannot be"] },
    Case { file: "limits: [{name: [a], rate: 1/s}]\n", found: &["1:17: limits[0].name: is a list"] },
    Case { file: "limits: [{name: 'a\"b', rate: 1/s}]\n", found: &["cannot be the name of a limit"] },
    Case {
        file: "limits:\n  - {name: a, rate: 1/s}\n  - {name: b, rate: 1/s}\n  - {name: a, rate: 2/s}\n",
        found: &["policy.yaml:4:12: limits[2] \"a\".name: limits[0] on line 2 has this name too"],
    },
    // Fields.
    one!("    rats: 1/s\n    rate: 1/s\n", "3:5: limits[0] \"a\".rats: unknown field; did you mean rate?"),
    one!("    rate: 1/s\n    <<: {}\n", "4:5: limits[0] \"a\".<<: merge keys"),
    one!("    rate: 1/s\n    rate: 2/s\n", "4:5: limits[0].rate: given twice; accepted: each field once"),
    one!(
        "    rate: 1/s\n    mode: on\n",
        "4:11: limits[0] \"a\".mode: on is unknown",
        "enforce, shadow, off"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: open\n",
        "4:23: limits[0] \"a\".on_store_failure: open is unknown"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: [allow]\n",
        "4:23: limits[0] \"a\".on_store_failure: is a list; accepted: allow, local, deny, or a table such as"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {for: 1s}\n",
        "4:23: limits[0] \"a\".on_store_failure.first: missing: what it does first; accepted: allow or local"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {first: deny}\n",
        "4:31: limits[0] \"a\".on_store_failure.first: deny is unknown; accepted: allow, local"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {first: allow, deny_afer: 9s}\n",
        "on_store_failure.deny_afer: unknown field; did you mean deny_after?"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {first: allow, for: 1m}\n",
        "4:43: limits[0] \"a\".on_store_failure.for: 1m is too long; accepted: a time such as 1s, up to 5 s"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {first: allow, for: 1s, deny_after: 1s}\n",
        "on_store_failure.deny_after: it would close before it has counted by its share"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {first: allow, then: deny, deny_after: 9s}\n",
        "on_store_failure.deny_after: nothing comes after `then: deny`; accepted: no such field here, or `then: local`"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {first: local, for: 1s}\n",
        "on_store_failure.for: it says how a limit is open, which this one never is"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {first: allow, up_to: 0}\n",
        "on_store_failure.up_to: 0 is not how far a limit may be open; accepted: how many times this node's share"
    ),
    one!(
        "    rate: 1/s\n    on_store_failure: {first: local, deny_after: 60}\n",
        "on_store_failure.deny_after: 60 has no unit of time"
    ),
    one!(
        "    rate: 1/s\n    enforce_percent: 101\n",
        "4:22: limits[0] \"a\".enforce_percent: 101 is too large"
    ),
    one!("    rate: 1/s\n    enforce_percent: 50%\n", "enforce_percent: 50% is not a whole number"),
    // Rates.
    one!(
        "    rate: s/100\n",
        "3:11: limits[0] \"a\".rate: s/100 is upside down: the count comes first; accepted: 100/s"
    ),
    one!("    rate: 1s/100\n", "3:11: limits[0] \"a\".rate: 1s/100 is upside down"),
    one!("    rate: per 100\n", "3:11: limits[0] \"a\".rate: per 100 is upside down"),
    one!("    rate: 100\n", "rate: 100 has no period"),
    one!("    rate: .nan\n", "rate: .nan is not a rate"),
    one!("    rate: .inf/s\n", "rate: .inf is not a number that counts"),
    one!("    rate: -1/s\n", "rate: -1 is negative"),
    one!("    rate: 1.5/s\n", "rate: 1.5 is not a whole number"),
    one!("    rate: 0/s\n", "rate: a rate of 0 admits no request"),
    one!("    rate: 11M/s\n", "rate: faster than 10,000,000 a second"),
    one!("    rate: 1/2years\n", "accepted: 1 microsecond to 366 days"),
    one!("    rate: 1/ns\n", "finer than the clock"),
    one!("    rate:\n", "3:9: limits[0] \"a\".rate: has no value"),
    one!("    rate: [1/s]\n", "3:11: limits[0] \"a\".rate: is a list"),
    one!("    by: [x]\n", "2:5: limits[0] \"a\".rate: missing: it says nothing about how much passes"),
    // Numbers beside the rate.
    one!("    rate: 1/s\n    burst: 0\n", "4:12: limits[0] \"a\".burst: a burst of 0 admits no request"),
    one!(
        "    rate: 1/s\n    burst: 3\n    tier_by: p\n    tiers: {x: 1/s burst 0}\n",
        "6:16: limits[0] \"a\".tiers.x: a burst of 0 admits no request"
    ),
    one!(
        "    rate: 1/s\n    burst: 90\n    tier_by: p\n    tiers: {x: 1/month, y: 9/month}\n",
        "4:12: limits[0] \"a\".burst: 90 is out of range for tiers.x; accepted: 1 to 24: what refills in two years"
    ),
    one!(
        "    rate: 1/month burst 90\n",
        "3:11: limits[0] \"a\".rate: a burst of 90 is out of range; accepted: 1 to 24: what refills in two years"
    ),
    one!(
        "    rate: 1/month\n    algorithm: leaky-bucket\n    queue: 90\n",
        "5:12: limits[0] \"a\".queue: 90 is out of range; accepted: 0 to 23 beside a burst of 1"
    ),
    one!(
        "    rate: 9_999_991/s\n    algorithm: leaky-bucket\n",
        "3:11: limits[0] \"a\".rate: 9999991 units every 1000000 microseconds cannot be counted exactly; accepted: a rounder rate"
    ),
    one!(
        "    rate: 1/7us\n    algorithm: sliding-window\n",
        "3:11: limits[0] \"a\".rate: a precision of 10 is out of range; accepted: those that divide the period"
    ),
    one!(
        "    rate: 1/7us\n    algorithm: sliding-window\n    precision: 3\n",
        "5:16: limits[0] \"a\".precision: 3 is out of range; accepted: those that divide the period of 7 microseconds, such as 1"
    ),
    one!(
        "    rate: 5/s\n    algorithm: fixed-window\n    cost: 6\n",
        "cost: each request costs 6, and at most 5 pass at once: none ever will; accepted: a cost up to 5, or a rate of at least 6"
    ),
    one!("    rate: 1/s\n    burst: -3\n", "4:12: limits[0] \"a\".burst: -3 is negative"),
    one!("    rate: 1/s\n    burst: 1e3\n", "burst: 1e3 is not a whole number in decimal"),
    one!("    rate: 1/s burst 2\n    burst: 3\n", "3:11: limits[0] \"a\".rate: the burst is given twice"),
    one!(
        "    rate: 1/month\n    burst: 1000\n",
        "4:12: limits[0] \"a\".burst: ",
        "what refills in two years"
    ),
    one!(
        "    rate: 1/s\n    algorithm: sliding-window\n    burst: 3\n",
        "5:5: limits[0] \"a\".burst: algorithm sliding-window has no burst; accepted: burst with token-bucket, gcra"
    ),
    one!(
        "    rate: 1/s burst 5\n    algorithm: sliding-log\n",
        "3:11: limits[0] \"a\".rate: this algorithm has no burst"
    ),
    one!(
        "    rate: 1/s\n    precision: 5\n",
        "4:5: limits[0] \"a\".precision: algorithm token-bucket has no precision"
    ),
    one!(
        "    rate: 1/s\n    queue: 5\n",
        "queue: algorithm token-bucket has no queue; accepted: queue with leaky-bucket"
    ),
    one!("    rate: 1/s\n    timezone: UTC\n", "timezone: algorithm token-bucket has no timezone"),
    one!(
        "    rate: 1/day\n    algorithm: fixed-window\n    timezone: UTC\n",
        "5:5: limits[0] \"a\".timezone: a time zone matters only to calendar windows"
    ),
    one!(
        "    rate: 1/day\n    algorithm: fixed-window\n    align: calendar\n    timezone: Mars/Olympus\n",
        "6:15: limits[0] \"a\".timezone: ",
        "Mars/Olympus"
    ),
    one!(
        "    rate: 1/2days\n    algorithm: fixed-window\n    align: calendar\n",
        "3:11: limits[0] \"a\".rate: a calendar window is one unit of the calendar"
    ),
    one!("    rate: 1/s\n    algorithm: leaky\n", "4:16: limits[0] \"a\".algorithm: leaky is unknown"),
    one!("    rate: 1/s\n    algorithm: token_bucket\n", "did you mean token-bucket?"),
    // Concurrency.
    one!(
        "    rate: 1/s\n    concurrency: 5\n",
        "3:5: limits[0] \"a\".rate: algorithm concurrency has no rate",
        "two limits"
    ),
    one!(
        "    concurrency: 5\n    algorithm: gcra\n",
        "3:5: limits[0] \"a\".concurrency: algorithm gcra has no concurrency",
        "rate: missing"
    ),
    one!("    concurrency: 0\n", "3:18: limits[0] \"a\".concurrency: 0 is out of range"),
    one!("    concurrency: 5/s\n", "3:18: limits[0] \"a\".concurrency: 5/s is not a whole number"),
    one!(
        "    concurrency: 5\n    permit_ttl: 30\n",
        "4:17: limits[0] \"a\".permit_ttl: 30 has no unit of time"
    ),
    one!("    rate: 1/s\n    permit_ttl: 30s\n", "permit_ttl: algorithm token-bucket has no permit_ttl"),
    // Tiers and overrides.
    one!("    rate: 1/s\n    tier_by: plan\n", "4:5: limits[0] \"a\".tier_by: tier_by without tiers"),
    one!("    rate: 1/s\n    tiers: {free: 1/s}\n", "4:5: limits[0] \"a\".tiers: tiers without tier_by"),
    one!("    tier_by: plan\n    tiers: {}\n", "4:12: limits[0] \"a\".tiers: is empty"),
    one!(
        "    tier_by: plan\n    tiers: {free: lots}\n",
        "4:19: limits[0] \"a\".tiers.free: lots is not a rate"
    ),
    one!(
        "    rate: 1/s\n    overrides: {acme: 5/s}\n",
        "4:16: limits[0] \"a\".overrides: overrides are by the first"
    ),
    one!("    by: [x]\n    overrides: {acme: 5/s}\n", "rate: missing"),
    // By and when.
    one!("    rate: 1/s\n    by: [x, y, x]\n", "4:16: limits[0] \"a\".by[2]: x is named twice"),
    one!("    rate: 1/s\n    by: [a,b,c,d,e,f,g,h,i]\n", "by: 9 attributes; accepted: at most 8"),
    one!("    rate: 1/s\n    by: [[x]]\n", "4:10: limits[0] \"a\".by[0]: is a list"),
    one!("    rate: 1/s\n    by: ['']\n", "by[0]: \"\" cannot be the name of an attribute"),
    one!("    rate: 1/s\n    when: {path: []}\n", "when.path: an empty list never matches"),
    one!("    rate: 1/s\n    when: {path: }\n", "when.path: has no value"),
    one!("    rate: 1/s\n    when: [x]\n", "4:11: limits[0] \"a\".when: is a list"),
    one!("    rate: 1/s\n    when: 'path =='\n", "4:11: limits[0] \"a\".when: not CEL"),
    one!(
        "    rate: 1/s\n    when: path.begins('x')\n",
        "when: the function begins does not exist; accepted: bool, bytes"
    ),
    one!(
        "    rate: 1/s\n    when: has('a')\n",
        "when: not CEL at character 5: has() asks for an attribute, such as has(plan)"
    ),
    one!("    rate: 1/s\n    when: has(a, b)\n", "when: has() asks for one attribute; accepted: the name"),
    one!(
        "    rate: 1/s\n    when: \"[1].exists(x, has(x))\"\n",
        "when: has() asks for an attribute, and x is none"
    ),
    one!("    rate: 1/s\n    when: has(a) &\n", "when: not CEL at character"),
    one!("    rate: 1/s\n    when: 1 == 2\n", "when: the expression is never true"),
    one!(
        "    rate: 1/s\n    when: \"m == 'A' && m == 'B'\"\n",
        "when: never matches: m would have to be two things"
    ),
    // Cost and consistency.
    one!(
        "    rate: 10/s\n    cost: 50\n",
        "4:11: limits[0] \"a\".cost: each request costs 50, and at most 10 pass at once"
    ),
    one!("    rate: 10/s\n    cost: 0\n", "cost: a cost of 0 counts nothing"),
    one!("    rate: 10/s\n    cost: -1\n", "cost: -1 is negative"),
    one!("    rate: 10/s\n    cost: 1.5\n", "cost: 1.5 is not a whole number"),
    one!("    rate: 10/s\n    cost: .inf\n", "cost: .inf is not a number that counts"),
    one!("    rate: 10/s\n    cost: 'tokens +'\n", "4:11: limits[0] \"a\".cost: not CEL"),
    one!(
        "    concurrency: 5\n    consistency: leased\n",
        "4:18: limits[0] \"a\".consistency: concurrency cannot be leased"
    ),
    one!(
        "    rate: 5/s\n    algorithm: sliding-log\n    consistency: leased\n",
        "sliding-log cannot be leased"
    ),
    one!(
        "    rate: 5/s\n    algorithm: leaky-bucket\n    consistency: leased\n",
        "leaky-bucket cannot be leased"
    ),
    one!(
        "    rate: 5/day\n    algorithm: fixed-window\n    align: calendar\n    consistency: leased\n",
        "fixed-window cannot be leased: only the counter knows the bounds of calendar windows"
    ),
    one!("    rate: 5/s\n    lease: {ttl: 1s}\n", "lease: an exact limit has no leases"),
    one!(
        "    rate: 5/s\n    consistency: leased\n    lease: {max_share: 80%}\n",
        "lease.max_share: 80% is not a share of a limit"
    ),
    one!(
        "    rate: 5/s\n    consistency: auto\n    lease: {ttl: 5min}\n",
        "lease.ttl: 5min is not how long units may be held"
    ),
    one!("    rate: 5/s\n    consistency: auto\n    lease: {share: 5%}\n", "lease.share: unknown field"),
];

/// Each bad file is refused with the position, the field and the reason.
#[test]
fn bad_files_are_explained() {
    for case in ERRORS {
        let said = findings(case.file).to_string();
        for wanted in case.found {
            assert!(said.contains(wanted), "{}\nsaid:   {said}\nwanted: {wanted}", case.file);
        }
    }
    assert!(ERRORS.len() >= 40);
}

/// Each finding of a one-limit file stands alone: one mistake is not reported as several.
#[test]
fn one_mistake_is_one_finding() {
    for case in ERRORS.iter().filter(|case| case.file.starts_with("limits:\n  - name: a\n")) {
        let found = findings(case.file);
        let wanted = if case.file.contains("algorithm: gcra") { 2 } else { 1 };
        assert_eq!(found.len(), wanted, "{}\n{found}", case.file);
    }
}

/// Every problem is reported at once, in the order of the file.
#[test]
fn all_problems_are_reported_at_once() {
    let said = findings(
        "domain: ''\nlimit: []\nlimits:\n  - name: login\n    by: [ip, ip]\n    rate: s/5\n    mode: of\n\
         \x20 - rate: 5/s\n    burst: 1.5\n    cost: 'x y'\n  - name: login\n    rate: 1/s\n    when: {path: []}\n\
         \x20 - name: plan\n    tier_by: plan\n    tiers: {free: 0/s, pro: 5/M}\n",
    );
    let places: Vec<(u32, &str)> =
        said.iter().map(|finding| (finding.line, finding.field.as_str())).collect();
    assert_eq!(
        places,
        [
            (1, "domain"),
            (2, "limit"),
            (5, "limits[0].by[1]"),
            (6, "limits[0].rate"),
            (7, "limits[0].mode"),
            (8, "limits[1].name"),
            (9, "limits[1].burst"),
            (10, "limits[1].cost"),
            (11, "limits[2].name"),
            (13, "limits[2].when.path"),
            (16, "limits[3].tiers.free"),
            (16, "limits[3].tiers.pro"),
        ],
        "{said}"
    );
    assert_eq!(said.iter().next().map(|finding| finding.severity), Some(Severity::Error));
}

/// Doubtful files compile, with a warning that says why they are doubtful.
#[test]
fn doubtful_files_are_warned_about() {
    for (fields, wanted) in [
        ("by: [k], rate: 1/s, enforce_percent: 0", "enforce_percent: 0 per cent never denies anybody"),
        ("by: [k], rate: 1/s, mode: shadow, enforce_percent: 50", "enforce_percent: it has no effect"),
        ("rate: 5/100us, algorithm: fixed-window", "rate: its windows of 100 microseconds"),
        ("rate: 50/5ms, algorithm: sliding-window", "rate: its windows of 500 microseconds"),
        ("rate: 5/month, algorithm: fixed-window", "a month is 30 days"),
        (
            "rate: 1/s, when: \"plan != 'internal'\"",
            "when: a request without plan is not limited: the comparison does not hold without it; \
             accepted: (!has(plan) || plan != 'internal') to limit it too, or has(plan) && plan != 'internal' if it is meant so",
        ),
        (
            "rate: 1/s, when: \"!(plan == 'internal')\"",
            "(!has(plan) || !(plan == 'internal')) to limit it too",
        ),
        ("rate: 1/s, when: \"!(plan in ['internal', 'test'])\"", "a request without plan is not limited"),
        ("rate: 1/s, when: \"m == 'GET' && plan != 'x'\"", "accepted: (!has(plan) || ...) to limit it too"),
        ("rate: 1/s, when: \"m == 'GET' || plan != 'x'\"", "a request without plan is not limited"),
        ("rate: 1/s, when: \"!(m == 'GET' || plan == 'x')\"", "a request without m is not limited"),
        ("rate: 1/s, by: [ip], when: \"!plan.startsWith('x')\"", "a request without plan is not limited"),
        ("rate: 1/s, when: \"(m != 'A' || m == 'B') && true\"", "a request without m is not limited"),
    ] {
        let said = warnings(&format!("limits: [{{name: a, {fields}}}]")).to_string();
        assert!(said.starts_with("policy.yaml:1:"), "{said}");
        assert!(said.contains(": warning: limits[0] \"a\"") && said.contains(wanted), "{fields}: {said}");
    }
    let said = warnings("shard_by: tenant\nlimits: [{name: a, rate: 1/s}]").to_string();
    assert!(said.contains("1:11: warning: shard_by: no limit counts by tenant"), "{said}");
}

/// Usual files have no findings.
#[test]
fn good_files_have_no_findings() {
    for fields in [
        "rate: 1/s, mode: off",
        "rate: 1/s, by: ip",
        "rate: '100 per 5 minutes', algorithm: gcra, burst: 7",
        "rate: 10/s, algorithm: leaky-bucket, queue: 20",
        "rate: 10/s, algorithm: leaky-bucket, consistency: auto",
        "rate: 1/month, algorithm: fixed-window, align: calendar",
        "rate: 10/h, algorithm: fixed-window, align: first-hit",
        "rate: 10/s, algorithm: sliding-window, precision: 20, estimate: interpolate",
        "rate: 10/s, when: {path: [/a, /b*], method: '*'}",
        "rate: 10/s, when: \"m == 'A' || m == 'B'\"",
        "rate: 10/s, when: \"!has(plan) || plan != 'internal'\"",
        "rate: 10/s, when: \"has(plan) && !(plan in ['internal'])\"",
        "rate: 10/s, when: \"!has(plan)\"",
        "rate: 10/s, when: \"plan.startsWith('x') && plan != 'xy'\"",
        "rate: 10/s, when: \"!(plan != 'x')\"",
        "rate: 10/s, when: \"!!(plan == 'x')\"",
        "rate: 10/s, when: \"!(m != 'GET' || plan != 'x')\"",
        "rate: 10/s, by: [plan], when: \"plan != 'internal'\"",
        "rate: 1k/s, cost: 'has(tokens) ? tokens : 1'",
        "rate: 1k/s, cost: tokens",
        "rate: 1k/s, cost: 2 * tokens",
        "rate: 1k/s, cost: usage.tokens",
        "by: [t], tier_by: plan, tiers: {free: 1, pro: 5}, concurrency: 3, overrides: {acme: 7}",
        "by: [t], tier_by: plan, tiers: {free: 1, pro: 5}, algorithm: concurrency",
    ] {
        let said = warnings(&format!("limits: [{{name: a, {fields}}}]")).to_string();
        assert_eq!(said, "", "{fields}");
    }
}

/// An alias means the value of its anchor.
#[test]
fn aliases_are_the_values_they_stand_for() {
    let policy =
        policy("limits:\n  - {name: a, by: &by [x], rate: &r 5/s}\n  - {name: b, by: *by, rate: *r}\n");
    assert_eq!(policy.limits()[1].by()[0].name(), "x");
    assert_eq!(policy.limits()[0].quotas(), policy.limits()[1].quotas());
}
