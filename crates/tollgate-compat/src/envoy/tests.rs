//! The rules of the original, row by row; every kind of invalid file; and our tree against a plain transcription of the
//! rules.

use std::collections::HashMap;

use crate::golden::{Bench, run};
use crate::rls::{Code, Descriptor, Override, RlsRequest, Status, Unit};
use crate::{CompatConfig, Conversion, Format, Source};

/// Every row of the table gets its expected answer.
#[test]
fn the_golden_table_holds() {
    let (configurations, answers) = run(Format::Envoy, include_str!("golden.txt"));
    assert!(configurations >= 20 && answers >= 200, "{configurations} configurations, {answers} answers");
}

/// Invalid files, and all that must be reported about them.
const WRONG: [(&str, &[&str]); 24] = [
    ("domain: d\ndescriptors:\n  - key: a\n    rats: 1\n", &["f:4:5: descriptors[0].rats: unknown field"]),
    (
        "domain: ''\ndescriptors: []\n",
        &["f:1:9: domain: has no value; accepted: the domain that Envoy asks about"],
    ),
    ("descriptors: []\n", &["f:1:1: domain: has no value"]),
    ("domain: d\ndescriptors: {}\n", &["f:2:14: descriptors: is a table; accepted: a list of descriptors"]),
    (
        "domain: d\ndescriptors: [x]\n",
        &["f:2:15: descriptors[0]: is a single value; accepted: a table with `key:`"],
    ),
    ("domain: d\ndescriptors: [{value: x}]\n", &["descriptors[0].key: has no value"]),
    ("domain: d\ndescriptors: [{key: ''}]\n", &["f:2:21: descriptors[0].key: has no value"]),
    (
        "domain: d\ndescriptors: [{key: a}, {key: a}]\n",
        &["f:2:25: descriptors[1]: a second descriptor for a at this level"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, value: b}, {key: a, value: b}]\n",
        &["descriptors[1]: a second descriptor for a=b"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, descriptors: [{key: b}, {key: b}]}]\n",
        &["descriptors[0].descriptors[1]: a second descriptor for b"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minutes, requests_per_unit: 1}}]\n",
        &[
            "f:2:43: descriptors[0].rate_limit.unit: minutes is unknown; did you mean minute? accepted: second, minute",
        ],
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1}}]\n",
        &["rate_limit.unit: has no value"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, unlimited: true}}]\n",
        &["rate_limit.unit: an unlimited rule has no unit"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]\n",
        &["requests_per_unit: -1 is no such number"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 4294967296}}]\n",
        &["requests_per_unit: 4294967296 is no such number; accepted: a whole number up to 4294967295"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1.5}}]\n",
        &["1.5 is no such number"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: 5}]\n",
        &["descriptors[0].rate_limit: is a single value"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, value: b, share_threshold: true}]\n",
        &["share_threshold: there is no * in this value"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, shadow_mode: maybe}]\n",
        &["shadow_mode: maybe is neither; accepted: true or false"],
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}, {name: ''}, {}]}}]\n",
        &[
            "replaces[0].name: a rule cannot replace itself",
            "replaces[1].name: has no value",
            "replaces[2].name: has no value",
        ],
    ),
    ("domain: d\ndescriptors: [{key: [a]}]\n", &["descriptors[0].key: is a list"]),
    ("domain: d\ndescriptors:\n  - key: a\n    key: b\n", &["f:4:5: descriptors[0].key: given twice"]),
    ("domain: d\ndescriptors: [\n", &["not YAML"]),
    // All problems at once, in the order of the file.
    (
        "domain: d\nbogus: 1\ndescriptors:\n  - value: x\n  - key: a\n    rate_limit: {unit: eon, requests_per_unit: x}\n",
        &[
            "f:2:1: bogus: unknown field",
            "f:4:5: descriptors[0].key",
            "f:6:24: descriptors[1].rate_limit.unit: eon",
            "f:6:48: descriptors[1].rate_limit.requests_per_unit: x is",
        ],
    ),
];

fn findings(file: &str) -> Result<String, String> {
    let source = Source { name: "f".to_owned(), bytes: file.as_bytes().to_vec() };
    match CompatConfig::compile(Format::Envoy, &[source]) {
        Ok((_, warnings)) => Ok(warnings.to_string()),
        Err(findings) => Err(findings.to_string()),
    }
}

/// All problems are reported at once, with position, field and what would be accepted.
#[test]
fn wrong_files_are_refused_with_every_reason() {
    for (file, expected) in WRONG {
        let text = findings(file).expect_err(file);
        let mut rest = text.as_str();
        for one in expected {
            let Some(at) = rest.find(one) else { panic!("{file}\nfindings: {text}\nexpected: {one}") };
            rest = &rest[at + one.len()..];
        }
    }
}

/// Fields that the original loads and then ignores are loaded, with a warning.
#[test]
fn a_field_without_effect_is_a_finding() {
    let cases = [
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}}]\n",
            "rate_limit.shadow_mode: means nothing here, and is ignored; it belongs beside a descriptor's key",
        ),
        (
            "domain: d\ndescriptors: [{key: a, unit: day}]\n",
            "unit: means nothing here, and is ignored; it belongs inside rate_limit",
        ),
        ("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day}}]\n", "0 refuses every request"),
        ("domain: d\ndescriptors: []\n---\ndomain: e\n", "a second document begins here, and is not read"),
    ];
    for (file, expected) in cases {
        let text = findings(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains("warning: ") && text.contains(expected), "{file}: {text}");
    }
    let clean = "domain: d\ndescriptors:\n  - {key: a, detailed_metric: true, value_to_metric: yes, metadata: {any: [thing, 1]}}\n  - key: b\n    value:\n    rate_limit:\n    descriptors:\n";
    assert_eq!(findings(clean).as_deref(), Ok(""));
}

/// Rules may have up to 32 entries; deeper files are refused and cause no crash.
#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| {
        let open: String = (0..depth).map(|at| format!("[{{key: k{at}, descriptors: ")).collect();
        format!("domain: d\ndescriptors: {open}[]{}", "}]".repeat(depth))
    };
    assert!(findings(&nested(30)).is_ok());
    for deep in [40, 5_000] {
        let text = findings(&nested(deep)).unwrap_err();
        assert!(text.contains("deep") || text.contains("nesting") || text.contains("limit"), "{text}");
    }
}

/// Two files with one domain form one domain, with a warning; a rule that both contain is an error of the second.
#[test]
fn domains_of_several_files_are_joined() {
    let source = |name: &str, text: &str| Source { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
    let one = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]";
    let other = "domain: d\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]";
    let (rules, warnings) =
        CompatConfig::compile(Format::Envoy, &[source("1.yaml", one), source("2.yaml", other)]).unwrap();
    assert_eq!((rules.sentences().len(), rules.domains()), (2, vec!["d"]));
    assert!(
        warnings.to_string().starts_with("2.yaml:1:9: warning: domain: domain d is in another file"),
        "{warnings}"
    );
    let errors =
        CompatConfig::compile(Format::Envoy, &[source("1.yaml", one), source("2.yaml", one)]).unwrap_err();
    assert!(
        errors.to_string().contains("2.yaml:2:15: descriptors[0]: a second descriptor for a"),
        "{errors}"
    );
}

/// A reload with other numbers keeps the counts, and a reload without a rule forgets nothing.
#[test]
fn counters_survive_a_reload() {
    let file = |requests: u32| {
        format!(
            "domain: d\ndescriptors: [{{key: z}}, {{key: k, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]"
        )
    };
    let mut bench = Bench::new(Format::Envoy, &file(2).replace("{key: z}, ", ""));
    let rls_request = ask(&[("k", "v")]);
    bench.ask(&rls_request);
    bench.ask(&rls_request);
    assert_eq!(bench.ask(&rls_request).overall, Code::OverLimit);
    let next = Bench::new(Format::Envoy, &file(5));
    bench.active =
        crate::ActiveConfig::new(next.active.rules, &bench.engine, Some(&bench.active), bench.now).unwrap();
    let answer = bench.ask(&rls_request);
    assert_eq!((answer.overall, answer.statuses[0].limit_remaining), (Code::Ok, 1));
    assert_eq!(bench.active.version, 2);
}

fn ask(entries: &[(&str, &str)]) -> RlsRequest {
    let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    RlsRequest {
        domain: "d".to_owned(),
        descriptors: vec![Descriptor { entries, ..Descriptor::default() }],
        hits_addend: 1,
    }
}

// --- A plain transcription of the original's rules: texts put together, and a map for each level. ---

#[derive(Clone, Debug)]
struct Rule {
    key: String,
    value: String,
    limit: Option<(u32, bool, bool, bool)>, // Requests an hour, unlimited, shadow, quota.
    shared: bool,
    children: Vec<Rule>,
}

impl Rule {
    fn composite(&self) -> String {
        if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let literal: usize = parts.iter().map(|part| part.len()).sum();
    if literal > text.len() || !text.starts_with(parts[0]) || !text.ends_with(parts[parts.len() - 1]) {
        return false;
    }
    let mut rest = &text[parts[0].len()..text.len() - parts[parts.len() - 1].len()];
    for part in &parts[1..parts.len() - 1] {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// The rule of a descriptor, and the name of its counter.
fn naive<'r>(rules: &'r [Rule], entries: &[(String, String)]) -> Option<(&'r Rule, String)> {
    let mut level = rules;
    let mut name = String::new();
    for (index, (key, value)) in entries.iter().enumerate() {
        let whole = format!("{key}_{value}");
        let exact = level.iter().find(|rule| !rule.value.is_empty() && rule.composite() == whole);
        let wild =
            level.iter().find(|rule| rule.composite().contains('*') && fits(&rule.composite(), &whole));
        let any = level.iter().find(|rule| rule.composite() == *key);
        let rule = exact.or(wild).or(any)?;
        name.push_str(&format!("{key}\u{0}{}\u{0}", if rule.shared { &rule.value } else { value }));
        if index + 1 == entries.len() {
            return rule.limit.is_some().then_some((rule, name));
        }
        level = &rule.children;
    }
    None
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % most
    }

    fn of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }

    fn rules(&mut self, depth: usize) -> Vec<Rule> {
        self.rules_of(depth, &["k", "l"])
    }

    fn rules_of(&mut self, depth: usize, keys: &[&str]) -> Vec<Rule> {
        let mut rules: Vec<Rule> = Vec::new();
        for _ in 0..self.below(5) + usize::from(depth == 0) {
            let value = self.of(&["", "", "a", "b", "ab", "a*", "*b", "a*b", "*", "*a*"]).to_owned();
            let rule = Rule {
                key: self.of(keys).to_owned(),
                shared: value.contains('*') && self.below(2) == 0,
                value,
                limit: (self.below(3) > 0).then(|| {
                    (
                        u32::try_from(self.below(5)).unwrap(),
                        self.below(6) == 0,
                        self.below(5) == 0,
                        self.below(4) == 0,
                    )
                }),
                children: if depth < 2 { self.rules_of(depth + 1, keys) } else { Vec::new() },
            };
            if rules.iter().all(|known| known.composite() != rule.composite()) {
                rules.push(rule);
            }
        }
        rules
    }

    fn rls_request(&mut self) -> RlsRequest {
        let descriptors = (0..1 + self.below(3))
            .map(|_| Descriptor {
                entries: (0..1 + self.below(3))
                    .map(|_| {
                        (
                            self.of(&["k", "l"]).to_owned(),
                            self.of(&["", "a", "b", "ab", "aab", "ba", "a*", "c"]).to_owned(),
                        )
                    })
                    .collect(),
                limit: (self.below(8) == 0).then_some(Override { requests_per_unit: 2, unit: Unit::Hour }),
                hits_addend: (self.below(3) == 0).then(|| self.below(3) as u64),
                is_negative_hits: self.below(12) == 0,
            })
            .collect();
        RlsRequest { domain: "d".to_owned(), descriptors, hits_addend: u32::try_from(self.below(3)).unwrap() }
    }
}

fn written(rules: &[Rule]) -> String {
    let one = |rule: &Rule| {
        let limit = match rule.limit {
            None => String::new(),
            Some((_, true, ..)) => ", rate_limit: {unlimited: true}".to_owned(),
            Some((requests, ..)) => format!(", rate_limit: {{unit: hour, requests_per_unit: {requests}}}"),
        };
        let (shadow, quota) = rule.limit.map_or((false, false), |(_, _, shadow, quota)| (shadow, quota));
        format!(
            "{{key: {}, value: '{}'{limit}, shadow_mode: {shadow}, quota_mode: {quota}, share_threshold: {}, descriptors: {}}}",
            rule.key,
            rule.value,
            rule.shared,
            written(&rule.children)
        )
    };
    format!("[{}]", rules.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// The answer of the transcription: the overall code, and each status as code, remaining and limit.
fn transcribed(
    rules: &[Rule],
    rls_request: &RlsRequest,
    counts: &mut HashMap<String, u64>,
) -> (Code, Vec<(Code, u32, Option<u32>)>) {
    let (mut statuses, mut refused, mut quotas) = (Vec::new(), false, Vec::new());
    for descriptor in &rls_request.descriptors {
        let brought = descriptor.limit.map(|limit| {
            let name: String =
                descriptor.entries.iter().map(|(key, value)| format!("{key}\u{0}{value}\u{0}")).collect();
            ((limit.requests_per_unit, false, false, false), name)
        });
        let met = brought
            .or_else(|| naive(rules, &descriptor.entries).and_then(|(rule, name)| Some((rule.limit?, name))));
        let Some(((requests, unlimited, shadow, quota), name)) = met else {
            statuses.push((Code::Ok, 0, None));
            continue;
        };
        if unlimited {
            statuses.push((Code::Ok, u32::MAX, None));
            continue;
        }
        let count = counts.entry(name).or_default();
        let hits = descriptor.hits_addend.unwrap_or(u64::from(rls_request.hits_addend.max(1)));
        *count = if descriptor.is_negative_hits { count.saturating_sub(hits) } else { *count + hits };
        let over = *count > u64::from(requests) && !shadow && !descriptor.is_negative_hits;
        let code = if over { Code::OverLimit } else { Code::Ok };
        refused |= over && !quota;
        if quota {
            quotas.push(over);
        }
        statuses.push((
            code,
            u32::try_from(u64::from(requests).saturating_sub(*count)).unwrap(),
            Some(requests),
        ));
    }
    let over = refused || !quotas.is_empty() && quotas.iter().all(|over| *over);
    (if over { Code::OverLimit } else { Code::Ok }, statuses)
}

/// For random trees and questions, all answers equal those of the transcription.
#[test]
fn decisions_are_those_of_a_plain_transcription() {
    let mut random = Random(2026);
    let (mut limited, mut refused) = (0, 0);
    for _ in 0..300 {
        let rules = random.rules(0);
        let bench = Bench::new(Format::Envoy, &format!("domain: d\ndescriptors: {}", written(&rules)));
        let mut counts = HashMap::new();
        for _ in 0..40 {
            let rls_request = random.rls_request();
            let expected = transcribed(&rules, &rls_request, &mut counts);
            let answer = bench.ask(&rls_request);
            let shown = |status: &Status| {
                (
                    status.code,
                    status.limit_remaining,
                    status.current_limit.as_ref().map(|limit| limit.requests_per_unit),
                )
            };
            let actual = (answer.overall, answer.statuses.iter().map(shown).collect());
            assert_eq!(actual, expected, "{}\n{rls_request:?}", written(&rules));
            limited += expected.1.iter().filter(|status| status.2.is_some()).count();
            refused += usize::from(expected.0 == Code::OverLimit);
        }
    }
    assert!(
        limited > 3_000 && refused > 1_000,
        "{limited} limited, {refused} refused: the trees are too tame"
    );
}

/// Sentences state what each rule does.
#[test]
fn sentences_explain() {
    let bench = Bench::new(
        Format::Envoy,
        "domain: d\ndescriptors:\n- {key: ip, value: 10.0.0.1}\n- key: t\n  value: 'a*'\n  share_threshold: true\n  descriptors:\n  - {key: u, rate_limit: {unit: day, requests_per_unit: 1, name: n, replaces: [{name: m}]}, shadow_mode: true, quota_mode: true}\n- {key: z, rate_limit: {unit: week, requests_per_unit: 0}}\n- {key: f, rate_limit: {unlimited: true}}\n",
    );
    assert_eq!(
        bench.active.rules.sentences(),
        [
            "d: ip=10.0.0.1: not limited",
            "d: all t=a* together, each u: 1 request a day; counted, never refused (shadow_mode); refused when every quota of the request is used up (quota_mode); called n; in place of m",
            "d: each z: refused always",
            "d: each f: not limited",
        ]
    );
}

/// Numbers each rule of a tree by its requests, so that a limit of the converted policy is known by its capacity. Rules
/// that a policy cannot express are left out: a key that its path has already, and a star in a value beside other rules
/// for the same key whose inner parts CEL does not order.
fn numbered(rules: &mut Vec<Rule>, path: &[String], next: &mut u32) {
    rules.retain(|rule| !path.contains(&rule.key));
    for rule in rules {
        rule.limit = rule.limit.map(|_| {
            *next += 1;
            (*next, false, false, false)
        });
        let path: Vec<String> = path.iter().chain([&rule.key]).cloned().collect();
        numbered(&mut rule.children, &path, next);
    }
}

/// Every order of the entries.
fn orders(entries: &[(String, String)]) -> Vec<Vec<(String, String)>> {
    if entries.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..entries.len() {
        let mut rest = entries.to_vec();
        let first = rest.remove(at);
        all.extend(orders(&rest).into_iter().map(|rest| [vec![first.clone()], rest].concat()));
    }
    all
}

/// For random trees with siblings and random descriptors, a converted policy applies the limits of exactly the rules
/// that the original matches in some order of the entries, and two descriptors share a counter where they share one there.
#[test]
fn conversions_meet_what_the_rules_meet() {
    const KEYS: [&str; 4] = ["k", "l", "m", "n-o"];
    let mut random = Random(11);
    let (mut compared, mut met, mut unmet_by_more) = (0, 0, 0);
    for _ in 0..300 {
        let mut rules = random.rules_of(0, &KEYS);
        numbered(&mut rules, &[], &mut 0);
        let bench = Bench::new(Format::Envoy, &format!("domain: d\ndescriptors: {}", written(&rules)));
        let Ok(Conversion { text, lost, .. }) = bench.active.rules.converted(None) else { continue };
        assert!(!text.contains("!has("), "{text}");
        let policy = tollgate::Policy::compile("converted", text.as_bytes())
            .unwrap_or_else(|findings| panic!("{findings}\n{text}"));
        if !lost.is_empty() {
            continue;
        }
        let mut counters: HashMap<(u64, Vec<String>), String> = HashMap::new();
        for _ in 0..60 {
            let mut entries: Vec<(String, String)> = Vec::new();
            for _ in 0..=random.below(3) {
                let key = random.of(&KEYS).to_owned();
                let value = random.of(&["", "a", "b", "ab", "aab", "ba", "c"]).to_owned();
                if entries.iter().all(|(known, _)| *known != key) {
                    entries.push((key, value));
                }
            }
            let mut expected: Vec<(u64, String)> = orders(&entries)
                .iter()
                .filter_map(|entries| naive(&rules, entries))
                .filter_map(|(rule, name)| Some((u64::from(rule.limit?.0), name)))
                .collect();
            expected.sort();
            let mut request = tollgate::CheckRequest::new();
            for (key, value) in &entries {
                request.push(key, value.as_str()).unwrap();
            }
            let limits = policy.matches(&request).unwrap();
            let mut actual = Vec::new();
            for found in &limits {
                let limit = &policy.limits()[found.limit as usize];
                let rule = limit.quotas()[0].capacity();
                let by = limit.by().iter().zip(found.by);
                let by = by.map(|(_, at)| request.attributes()[usize::from(at)].value.to_string()).collect();
                actual.push(rule);
                let name = expected.iter().find(|(number, _)| *number == rule).map(|(_, name)| name.clone());
                let name = name.unwrap_or_else(|| panic!("{entries:?}: limit of rule {rule}\n{text}"));
                let known = counters.entry((rule, by)).or_insert_with(|| name.clone());
                assert_eq!(*known, name, "{entries:?}\n{text}");
            }
            actual.sort_unstable();
            let expected: Vec<u64> = expected.into_iter().map(|(number, _)| number).collect();
            assert_eq!(actual, expected, "{entries:?}\n{text}");
            compared += 1;
            met += usize::from(!expected.is_empty());
            unmet_by_more += usize::from(expected.is_empty() && entries.len() > 1);
        }
        let names: std::collections::HashSet<&String> = counters.values().collect();
        let rules: std::collections::HashSet<(u64, &String)> =
            counters.iter().map(|((rule, _), name)| (*rule, name)).collect();
        assert_eq!(rules.len(), counters.len(), "two counters of one name: {names:?}\n{text}");
    }
    assert!(
        compared > 5_000 && met > 1_000 && unmet_by_more > 1_000,
        "{compared} compared, {met} met, {unmet_by_more} not: the trees are too tame"
    );
}

/// The example that envoyproxy/ratelimit ships, in short: rules with the same beginning, of which the longer one counts.
#[test]
fn the_example_of_the_original_converts_to_readable_limits() {
    let file = "domain: rl
descriptors:
  - key: foo
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors:
      - {key: bar, rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: bar, value: bkthomps, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: bar, value: banned, rate_limit: {unit: minute, requests_per_unit: 0}}
      - {key: baz, value: not-so-shady, rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: baz, value: shady, rate_limit: {unit: minute, requests_per_unit: 3}, shadow_mode: true}
      - {key: bay, rate_limit: {unlimited: true}}
";
    let expected = "# Converted from envoyproxy/ratelimit configuration. The counters start anew. CHANGED says what means something else here,
# `now possible` what a limit could do better.
# for Envoy's descriptors; behind the gateway remove extra_attributes, or no limit applies
# CHANGED for every limit: the order of a descriptor's entries does not matter, and a descriptor that has a key twice is refused
# CHANGED for every limit: a request that one limit refuses is counted by no limit; there, the others count it
# now possible: `algorithm: sliding-window` never admits more than the rate in any period, where a fixed window admits up to twice as much around its edge; the default, a token bucket, admits a burst and then a steady rate
domain: rl
defaults: { extra_attributes: none, algorithm: fixed-window, align: epoch }
limits:

  # foo
  - name: foo
    by: [foo]
    rate: 2/min

  # foo, bar
  - name: foo-bar
    when: { bar: { not: [bkthomps, banned] } }
    by: [foo, bar]
    rate: 3/min

  # foo, bar=bkthomps
  - name: foo-bar-bkthomps
    when: { bar: bkthomps }
    by: [foo]
    rate: 1/min

  # foo, bar=banned
  - name: foo-bar-banned
    when: { bar: banned }
    by: [foo]
    rate: deny

  # foo, baz=not-so-shady
  - name: foo-baz-not-so-shady
    when: { baz: not-so-shady }
    by: [foo]
    rate: 3/min

  # foo, baz=shady
  - name: foo-baz-shady
    when: { baz: shady }
    by: [foo]
    rate: 3/min
    mode: shadow

  # foo, bay
  # LEFT OUT, as it refuses nothing: everything passes without a limit; the limits beside it leave out what it names
";
    let bench = Bench::new(Format::Envoy, file);
    assert_eq!(bench.active.rules.converted(None).unwrap().text, expected);
}
