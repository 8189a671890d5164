//! Decisions by other programs' rules in the metrics: by rule, near and in shadow, each counted once, and bounded with
//! any traffic.

use tollgate::fuzzing::poll_once;
use tollgate::{Engine, ManualClock, MemoryStore};
use tollgate_compat::{CompatConfig, Format, REQUEST_LIMIT, Source, guard};

use super::super::ledger::LIMITS_SHOWN;
use super::super::ledger::rules::VALUES_SHOWN;
use super::*;
use crate::policy_file::Rules;
use crate::protocol::Protocol;
use crate::rls::{Descriptor, Override, RlsRequest, Unit};
use crate::service::{Service, rls};

fn rules(format: Format, text: &str) -> Rules {
    let source = Source { name: "f".to_owned(), bytes: text.as_bytes().to_vec() };
    Rules::Compat(CompatConfig::compile(format, &[source]).unwrap().0, guard().unwrap())
}

fn served(time: &ManualClock, format: Format, text: &str) -> Service<MemoryStore> {
    let service =
        Service::new(Engine::builder().policy(guard().unwrap()).clock(time.clock()).build(), time.clock());
    service.replace(rules(format, text), time.now()).unwrap();
    service
}

/// A request of one descriptor, with entries such as `key=value`.
fn rls_request(domain: &str, entries: &[(&str, &str)]) -> RlsRequest {
    let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
    RlsRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 }
}

fn ask_rls(service: &Service<MemoryStore>, time: &ManualClock, rls_request: &RlsRequest) {
    poll_once(rls::answer(service, rls_request, time.now())).unwrap();
}

fn page(service: &Service<MemoryStore>, time: &ManualClock) -> HashMap<String, u64> {
    series(&service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE))
}

/// The count of a limit's outcome over RLS.
fn of(page: &HashMap<String, u64>, limit: &str, outcome: &str) -> Option<u64> {
    let labels = format!("{{limit=\"{limit}\",outcome=\"{outcome}\",source=\"exact\",wire=\"rls\"}}");
    page.get(&format!("tollgate_limit_decisions_total{labels}")).copied()
}

const ENVOY: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: user, value: root, rate_limit: {unlimited: true}}
  - {key: quiet, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: series, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: file, value: a/*, share_threshold: true, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
  - key: team
    descriptors:
      - {key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
";

/// Each rule of envoyproxy/ratelimit has numbers under its name, which contains request values where the rule asks for
/// them.
#[test]
fn rules_are_counted_by_name() {
    let time = ManualClock::new();
    let service = served(&time, Format::Envoy, ENVOY);
    assert_eq!(
        page(&service, &time)["tollgate_limit_near_total{limit=\"d.user\"}"],
        0,
        "shown before it is met"
    );
    for _ in 0..12 {
        for entries in [
            &[("user", "u")][..],
            &[("user", "root")],
            &[("quiet", "q")],
            &[("series", "v\"}\n")],
            &[("file", "a/b")],
            &[("team", "t"), ("user", "u")],
            &[("nothing", "x")],
        ] {
            ask_rls(&service, &time, &rls_request("d", entries));
        }
    }
    let page = page(&service, &time);
    assert_eq!((of(&page, "d.user", "allow"), of(&page, "d.user", "deny")), (Some(10), Some(2)));
    assert_eq!(page["tollgate_limit_near_total{limit=\"d.user\"}"], 2);
    assert_eq!(of(&page, "d.user_root", "allow"), Some(12));
    assert_eq!(
        (of(&page, "d.quiet", "would_allow"), of(&page, "d.quiet", "would_deny")),
        (Some(1), Some(11))
    );
    let series = page.keys().filter(|series| series.contains("limit=\"d.series_v")).collect::<Vec<_>>();
    assert_eq!(series.len(), 3, "allow, deny and near: {series:?}");
    assert_eq!(of(&page, "d.file_a/*", "deny"), Some(3), "a shared count has the pattern");
    assert_eq!(
        (of(&page, "d.team_t.user_u", "allow"), of(&page, "d.team_t.user_u", "deny")),
        (Some(1), Some(11))
    );
    let all = 6 * 12;
    assert_eq!(sum(&page, "tollgate_limit_decisions_total", ""), all, "what no rule is about is none's");
    assert_eq!(sum(&page, "tollgate_decisions_total", ""), all + 12);
}

/// Limits that requests carry are counted together, under compat rules and under a policy.
#[test]
fn limits_of_requests_are_counted_together() {
    let time = ManualClock::new();
    let own =
        Service::new(Engine::builder().policy(compiled(POLICY)).clock(time.clock()).build(), time.clock());
    for service in [served(&time, Format::Envoy, ENVOY), own] {
        assert!(
            !service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE).contains(REQUEST_LIMIT)
        );
        for value in ["a", "a", "b"] {
            let mut rls_request = rls_request("d", &[("x", value)]);
            rls_request.descriptors[0].limit = Some(Override { requests_per_unit: 1, unit: Unit::Year });
            ask_rls(&service, &time, &rls_request);
        }
        let page = page(&service, &time);
        assert_eq!((of(&page, REQUEST_LIMIT, "allow"), of(&page, REQUEST_LIMIT, "deny")), (Some(2), Some(1)));
        assert_eq!(sum(&page, "tollgate_decisions_total", ""), 3);
        assert_eq!(sum(&page, "tollgate_decisions_total", "deny"), 1);
    }
}

/// Limits of Limitador are counted by namespace and name, for every limit that a request meets.
#[test]
fn limits_of_limitador_are_counted_by_name() {
    let time = ManualClock::new();
    let text = "
- {namespace: n, max_value: 5, seconds: 60, name: five, conditions: [], variables: []}
- {namespace: n, max_value: 9, seconds: 3600, conditions: [], variables: []}";
    let service = served(&time, Format::Limitador, text);
    for _ in 0..6 {
        ask_rls(&service, &time, &rls_request("n", &[("k", "v")]));
    }
    let page = page(&service, &time);
    assert_eq!((of(&page, "n.five", "allow"), of(&page, "n.five", "deny")), (Some(5), Some(1)));
    assert_eq!(of(&page, "n.3600s", "allow"), Some(6));
    assert_eq!(page["tollgate_limit_near_total{limit=\"n.five\"}"], 1);
}

/// With any number of request values and of rules in a file, the series are bounded. Nothing is lost, and rules that a
/// reload brings back continue their counts.
#[test]
fn values_and_rules_are_bounded() {
    let time = ManualClock::new();
    let service = served(&time, Format::Envoy, ENVOY);
    let values = 5 * VALUES_SHOWN;
    for n in 0..values {
        ask_rls(&service, &time, &rls_request("d", &[("series", &format!("v{n}"))]));
    }
    let limited = |page: &HashMap<String, u64>, label: &str| {
        let of_limits = |series: &&String| series.starts_with("tollgate_limit_decisions_total");
        page.keys().filter(of_limits).filter(|series| series.contains(label)).count()
    };
    let before = page(&service, &time);
    assert_eq!(limited(&before, "d.series_v"), 2 * VALUES_SHOWN);
    assert_eq!(of(&before, "d.series", "allow"), Some((values - VALUES_SHOWN) as u64));
    let many = 2 * LIMITS_SHOWN;
    let rule = |n: usize| format!("\n  - {{key: k{n}, rate_limit: {{unit: day, requests_per_unit: 1}}}}");
    let text: String = (0..many).map(rule).collect();
    service.replace(rules(Format::Envoy, &format!("domain: d\ndescriptors:{text}")), time.now()).unwrap();
    for n in 0..many {
        ask_rls(&service, &time, &rls_request("d", &[(&format!("k{n}"), "v")]));
    }
    let during = page(&service, &time);
    assert!(during["tollgate_metrics_folded_limits"] > (many - LIMITS_SHOWN) as u64);
    assert!(limited(&during, "") <= 2 * (LIMITS_SHOWN + VALUES_SHOWN + 1));
    assert_eq!(sum(&during, "tollgate_limit_decisions_total", ""), (values + many) as u64);
    service.replace(rules(Format::Envoy, ENVOY), time.now()).unwrap();
    ask_rls(&service, &time, &rls_request("d", &[("series", "new")]));
    ask_rls(&service, &time, &rls_request("d", &[("series", "v0")]));
    let after = page(&service, &time);
    assert_eq!(of(&after, "d.series", "allow"), Some((values - VALUES_SHOWN + 1) as u64));
    assert_eq!(of(&after, "d.series_v0", "deny"), Some(1));
    assert_eq!(after["tollgate_metrics_folded_limits"], 0);
}

/// If the guard policy refuses a request because a file became active at that moment, that is not a decision. The
/// request is evaluated again, and counted once.
#[test]
fn a_decision_that_is_asked_again_is_counted_once() {
    let time = ManualClock::new();
    let service = served(&time, Format::Envoy, ENVOY);
    let request = CheckRequest::new().with("user", "u").unwrap();
    let refused = poll_once(service.check(&request, time.now(), Protocol::Http));
    assert!(service.overtaken(&refused).is_some());
    poll_once(service.check(&request.clone().and(request), time.now(), Protocol::Rls));
    assert_eq!(sum(&page(&service, &time), "tollgate_decisions_total", ""), 0);
    ask_rls(&service, &time, &rls_request("d", &[("user", "u")]));
    assert_eq!(sum(&page(&service, &time), "tollgate_decisions_total", ""), 1);
}
