//! The meter as a service uses it: exact with any threads and reloads, and bounded with any traffic.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tollgate::{CheckRequest, Engine, ManualClock, MemoryStore, Policy, Ticks, Timestamp};

use super::ledger::{LIMITS_SHOWN, SERIES_MAX};
use super::names::{self, OTHERS};
use super::*;
use crate::policy_file::Rules;
use crate::service::Service;

mod compat;

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 3/h}, {name: plan, by: [tenant], rate: 100k/h, mode: shadow}, \
                      {name: all, rate: 10M/h}]";

fn compiled(text: &str) -> Policy {
    Policy::compile("test", text.as_bytes()).unwrap()
}

fn service(time: &ManualClock, policy: &str) -> Service<MemoryStore> {
    Service::new(Engine::builder().policy(compiled(policy)).clock(time.clock()).build(), time.clock())
}

fn ask(
    service: &Service<MemoryStore>,
    attributes: &[(&str, &str)],
    protocol: Protocol,
    now: Timestamp,
) -> Decision {
    let mut request = CheckRequest::new();
    for (name, value) in attributes {
        request.push(name, *value).unwrap();
    }
    let decision = service.engine.try_check(&request, now).unwrap();
    service.meter.record(&request, &decision, &[], protocol, now);
    decision
}

/// The numbers of a page, by series.
fn series(page: &str) -> HashMap<String, u64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let numbers = lines.filter_map(|line| line.rsplit_once(' '));
    numbers.filter_map(|(series, number)| Some((series.to_owned(), number.parse().ok()?))).collect()
}

fn sum(page: &HashMap<String, u64>, metric: &str, label: &str) -> u64 {
    let matching = page.iter().filter(|(series, _)| series.starts_with(metric) && series.contains(label));
    matching.map(|(_, number)| number).sum()
}

/// The counts equal the decisions exactly, through several threads and protocols, while the policy is swapped and
/// limits come, go and return.
#[test]
fn counts_are_exact_across_threads_and_reloads() {
    const EACH: u64 = 5_000;
    let time = ManualClock::new();
    let service = service(&time, POLICY);
    let policies = [
        POLICY,
        "limits: [{name: new, rate: 10M/h}, {name: per-key, by: [api_key], rate: 5/h}]",
        "limits: [{name: all, rate: 10M/h}]",
    ];
    let mut counted = [0_u64; 2];
    std::thread::scope(|scope| {
        let threads: Vec<_> = Protocol::ALL
            .into_iter()
            .map(|protocol| {
                let (service, now) = (&service, time.now());
                scope.spawn(move || {
                    let (mut limits, mut allowed) = (0, 0);
                    for n in 0..EACH {
                        let key = format!("k{}", n % 7);
                        let decision = ask(service, &[("api_key", &key), ("tenant", "t")], protocol, now);
                        limits += decision.limits().len() as u64;
                        allowed += u64::from(decision.is_allowed());
                    }
                    [limits, allowed]
                })
            })
            .collect();
        for round in 0..60 {
            let next = Rules::Native(compiled(policies[round % policies.len()]));
            service.replace(next, time.now()).unwrap();
        }
        for thread in threads {
            let [limits, allowed] = thread.join().unwrap();
            counted = [counted[0] + limits, counted[1] + allowed];
        }
    });
    let page = series(&service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE));
    let protocols = Protocol::ALL.len() as u64;
    assert_eq!(sum(&page, "tollgate_decisions_total", ""), EACH * protocols);
    assert_eq!(sum(&page, "tollgate_decisions_total", "outcome=\"allow\""), counted[1]);
    assert_eq!(sum(&page, "tollgate_limit_decisions_total", ""), counted[0]);
    for protocol in Protocol::ALL {
        assert_eq!(sum(&page, "tollgate_decisions_total", &format!("wire=\"{}\"", protocol.name())), EACH);
    }
    assert_eq!(page["tollgate_retry_after_seconds_count"], EACH * protocols - counted[1]);
}

/// A limit keeps its counts over a reload, even after it was absent for a while, and a counter never decreases.
#[test]
fn totals_survive_reloads() {
    let time = ManualClock::new();
    let service = service(&time, POLICY);
    let name =
        "tollgate_limit_decisions_total{limit=\"all\",outcome=\"allow\",source=\"exact\",wire=\"http\"}";
    for round in 1..=20 {
        ask(&service, &[], Protocol::Http, time.now());
        assert_eq!(
            series(&service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE))[name],
            round
        );
        let next = if round % 2 == 0 { POLICY } else { "limits: [{name: other, rate: 1/s}]" };
        service.replace(Rules::Native(compiled(next)), time.now()).unwrap();
        assert_eq!(
            series(&service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE))[name],
            round
        );
        if round % 2 == 1 {
            service.replace(Rules::Native(compiled(POLICY)), time.now()).unwrap();
        }
    }
}

/// A hundred thousand keys and as many attribute names with any content add no series.
#[test]
fn traffic_adds_no_series() {
    let time = ManualClock::new();
    let service = service(&time, POLICY);
    let names = |page: &HashMap<String, u64>| page.keys().cloned().collect::<HashSet<String>>();
    for key in ["a", "a", "a", "a", "a"] {
        ask(&service, &[("api_key", key), ("tenant", "t")], Protocol::Http, time.now());
    }
    service.meter.took(Protocol::Http, Duration::from_micros(3));
    let before = names(&series(&service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE)));
    for n in 0..100_000_u64 {
        let key = format!("k{n}\"}} 1\n\u{1b}[31m");
        let other = format!("x{n}");
        let attributes = [("api_key", key.as_str()), ("tenant", &key), (&other, &key)];
        ask(&service, &attributes, Protocol::Http, time.now());
        service.meter.took(Protocol::Http, Duration::from_micros(n));
    }
    let page = service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE);
    let after = names(&series(&page));
    assert_eq!(before, after);
    assert!(after.len() < 200, "{}", after.len());
    assert!(!page.contains("k99999"));
    assert!(service.meter.top(usize::MAX, time.now()).len() <= 2 * sketch::PLACES);
}

/// A policy of any size has a bounded number of series, and nothing is lost: limits without their own series are
/// counted together.
#[test]
fn a_large_policy_has_bounded_series() {
    let limits = 3 * LIMITS_SHOWN;
    let text: String =
        (0..limits).map(|n| format!("- {{name: l{n}, when: {{k: v{n}}}, rate: 1/h}}\n")).collect();
    let time = ManualClock::new();
    let service = service(&time, &format!("limits:\n{text}"));
    let mut asked = 0;
    for _ in 0..2 {
        for n in 0..limits {
            for protocol in Protocol::ALL {
                ask(&service, &[("k", &format!("v{n}"))], protocol, time.now());
                asked += 1;
            }
        }
        let page = series(&service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE));
        assert_eq!(sum(&page, "tollgate_limit_decisions_total", ""), asked);
        assert_eq!(page["tollgate_metrics_folded_limits"], (limits - LIMITS_SHOWN) as u64);
        assert!(sum(&page, "tollgate_limit_decisions_total", OTHERS) > 0);
        let shown = page.keys().filter(|series| series.starts_with("tollgate_limit_decisions_total"));
        let (others, own): (Vec<_>, Vec<_>) = shown.partition(|series| series.contains(OTHERS));
        assert_eq!(own.len(), SERIES_MAX, "the bound is reached");
        assert!(others.len() <= 2 * Protocol::ALL.len() && page.len() < 10_000);
    }
}

/// A request is near a limit if it leaves less than a fifth of it. A denial in shadow is counted separately.
#[test]
fn near_and_shadow_have_separate_series() {
    let time = ManualClock::new();
    let service = service(
        &time,
        "limits: [{name: ten, by: [k], rate: 10/h}, {name: ghost, by: [k], rate: 2/h, mode: shadow}]",
    );
    for _ in 0..12 {
        ask(&service, &[("k", "x")], Protocol::Resp, time.now());
    }
    let page = series(&service.meter.exposition(time.now(), tollgate::time::WallOffset::NONE));
    let of = |limit: &str, outcome: &str| {
        let labels = format!("{{limit=\"{limit}\",outcome=\"{outcome}\",source=\"exact\",wire=\"resp\"}}");
        page.get(&format!("tollgate_limit_decisions_total{labels}")).copied()
    };
    assert_eq!((of("ten", "allow"), of("ten", "deny")), (Some(10), Some(2)));
    assert_eq!((of("ghost", "would_allow"), of("ghost", "would_deny")), (Some(2), Some(10)));
    assert_eq!(page["tollgate_limit_near_total{limit=\"ten\"}"], 2);
}

/// The most frequent keys come first, named in the syntax that the program accepts, and no text in them acts on a
/// terminal.
#[test]
fn the_top_keys_are_named() {
    let time = ManualClock::new();
    let service =
        service(&time, "limits: [{name: a, by: [tenant, api_key], rate: 3/h}, {name: all, rate: 1M/h}]");
    let start = time.now();
    for n in 0..30 {
        let key = if n % 3 == 0 { "evil\n\u{1b}[2J" } else { "k1" };
        ask(&service, &[("api_key", key), ("tenant", "acme")], Protocol::Http, time.now());
        time.advance(Duration::from_millis(1));
    }
    let top = service.meter.top(10, time.now());
    assert_eq!([top[0].since.since(start), top[1].since.since(start)].map(Ticks::ceil_millis), [1, 0]);
    let expected = [("tenant=acme api_key=k1", 20, 17), (r"tenant=acme api_key=evil\n\u{1b}[2J", 10, 7)];
    let found: Vec<(&str, u64, u64)> =
        top.iter().map(|key| (key.key.as_str(), key.decisions, key.denied)).collect();
    assert_eq!(found, expected);
    assert!(top.iter().all(|key| key.limit == "a"));
    assert_eq!(service.meter.top(1, time.now()).len(), 1);
    time.advance(Duration::from_secs(200));
    ask(&service, &[("api_key", "later"), ("tenant", "acme")], Protocol::Http, time.now());
    assert_eq!(service.meter.top(10, time.now()).len(), 1, "what was long ago is forgotten");
}

/// A limit in shadow appears, and denies no request.
#[test]
fn the_top_keys_of_a_limit_in_shadow_are_not_denied() {
    let time = ManualClock::new();
    let service = service(&time, "limits: [{name: ghost, by: [api_key], rate: 1/h, mode: shadow}]");
    for _ in 0..5 {
        ask(&service, &[("api_key", "k1")], Protocol::Http, time.now());
    }
    let top = service.meter.top(1, time.now());
    assert_eq!((top[0].decisions, top[0].denied, top[0].would_deny), (5, 0, 4));
    assert_eq!(top[0].last_denial, None);
}

/// Regression: a limit that went from shadow to enforce had each key in two rows, because it counts them elsewhere.
#[test]
fn a_key_has_one_row_after_shadow_becomes_enforce() {
    let time = ManualClock::new();
    let policy = "limits: [{name: a, by: [k], rate: 1/h, mode: shadow}]";
    let service = service(&time, policy);
    let four_requests = || {
        for _ in 0..4 {
            ask(&service, &[("k", "x")], Protocol::Http, time.now());
        }
    };
    four_requests();
    let enforced = compiled(&policy.replace("shadow", "enforce"));
    service.replace(Rules::Native(enforced), time.now()).unwrap();
    four_requests();
    let top = service.meter.top(10, time.now());
    assert_eq!(top.len(), 1, "{top:?}");
    assert_eq!((top[0].decisions, top[0].denied, top[0].would_deny), (8, 3, 3));
}

/// The latest denial of a key is remembered, longer than its counts. A flood of denials does not fill memory.
#[test]
fn denials_are_remembered() {
    let time = ManualClock::new();
    let service = service(&time, "limits: [{name: a, by: [k], rate: 1/h}]");
    let start = time.now();
    for n in 0..200 {
        ask(&service, &[("k", if n < 3 { "x" } else { "flood" })], Protocol::Http, time.now());
    }
    let mut request = CheckRequest::new();
    request.push("k", "x").unwrap();
    let policy = service.engine.policy();
    let last = service.meter.last_denial(&policy.limits()[0], &request, time.now()).unwrap();
    assert_eq!((last.recent, last.denial.at), (2, start));
    assert!(last.denial.retry_after.is_some());
    assert_eq!(service.meter.denials_since(start).len() as u64, 2 + recent::KEPT_PER_SECOND_OF_KEY);
    time.advance(Duration::from_secs(300));
    for second in 0..3 {
        time.advance(Duration::from_secs(100));
        ask(&service, &[("k", &format!("{second}"))], Protocol::Http, time.now());
    }
    let later = service.meter.last_denial(&policy.limits()[0], &request, time.now()).unwrap();
    assert_eq!((later.recent, later.denial.at), (0, start));
    assert!(service.meter.denials_since(time.now()).is_empty());
}

/// The story: one client with 400 denials a second erased the denials of all others within 20 s, when an incident made
/// them matter. A client displaces its own denials, also where the denying limit has one counter for all.
#[test]
fn a_noisy_client_displaces_its_own_denials() {
    for limits in [
        "limits: [{name: a, by: [k], rate: 1/h}]",
        "limits: [{name: of-k, by: [k], rate: 1M/h}, {name: a, rate: 1/h}]",
    ] {
        let time = ManualClock::new();
        let service = service(&time, limits);
        let start = time.now();
        let ask = |key: &str| ask(&service, &[("k", key)], Protocol::Http, time.now());
        (0..3).for_each(|_| drop(ask("quiet")));
        for _ in 0..300 {
            time.advance(Duration::from_secs(1));
            (0..400).for_each(|_| drop(ask("noisy")));
        }
        // It is denied in the same second as the noisy client.
        for late in ["late-1", "late-2", "late-3", "late-4"] {
            (0..2).for_each(|_| drop(ask(late)));
        }
        let all = service.meter.denials_since(start);
        let of = |key: &str| all.iter().filter(|event| event.attributes[0].1.starts_with(key)).count();
        // One that has its budget in common with the noisy client may be missing.
        assert!(of("quiet") == 2 && of("late") >= 2 && of("noisy") >= 900, "{limits}");
        assert!(all.len() <= 1_000 && all.is_sorted_by_key(|event| event.at));
        assert_eq!(of("quiet") + of("late") + of("noisy"), all.len());
    }
}

/// What a limit in shadow would have denied is remembered apart: of many keys, and of many of one key, it displaces no denial.
#[test]
fn a_limit_in_shadow_displaces_no_denial() {
    let time = ManualClock::new();
    let service = service(
        &time,
        "limits: [{name: a, by: [k], when: {path: /x}, rate: 1/h}, {name: new, by: [k], rate: 1/h, mode: shadow}]",
    );
    let start = time.now();
    let ask = |key: &str, path: &str| {
        ask(&service, &[("k", key), ("path", path)], Protocol::Http, time.now());
    };
    (0..2).for_each(|_| ask("denied", "/x"));
    for n in 0..1_500 {
        (0..2).for_each(|_| ask(&n.to_string(), "/y"));
        time.advance(Duration::from_secs(1));
    }
    let denied = service.meter.denials_since(start);
    assert_eq!(denied.iter().map(|event| event.allowed).collect::<Vec<_>>(), [false]);
    assert_eq!(service.meter.denials_forgotten_until(), None);
    let shadow = service.meter.shadow_denials_since(start);
    assert_eq!(shadow.len(), 1_000);
    assert!(shadow.iter().all(|event| event.allowed && event.would_deny == ["new"]));
    assert!(service.meter.shadow_denials_forgotten_until().is_some_and(|reach| shadow[0].at > reach));
    let last = service.meter.last_denial(
        &service.engine.policy().limits()[1],
        &CheckRequest::new().with("k", "1499").unwrap(),
        time.now(),
    );
    assert_eq!(last, None, "what a limit in shadow would have denied is no denial");
}

/// With more keys than there is room for, the oldest are forgotten, and the memory says how far it reaches.
#[test]
fn the_memory_of_denials_says_how_far_it_reaches() {
    let time = ManualClock::new();
    let service = service(&time, "limits: [{name: a, by: [k], rate: 1/h}]");
    let start = time.now();
    assert_eq!(service.meter.denials_forgotten_until(), None);
    for n in 0..1_500 {
        (0..2).for_each(|_| drop(ask(&service, &[("k", &n.to_string())], Protocol::Http, time.now())));
        time.advance(Duration::from_secs(1));
    }
    assert_eq!(service.meter.denials_since(start).len(), 1_000);
    let reach = service.meter.denials_forgotten_until().unwrap();
    assert_eq!(reach.since(start).ceil_seconds(), 499);
    assert!(service.meter.denials_since(start)[0].at > reach);
}

/// The story: on a server without traffic, `top` showed keys of five minutes ago as those of the last two minutes.
#[test]
fn counts_become_old_without_traffic() {
    for start in [0, 1, 59] {
        let time = ManualClock::starting_at(Timestamp::from_unix_seconds(1_700_000_040 + start));
        let service = service(&time, "limits: [{name: a, by: [k], rate: 1/h}]");
        (0..2).for_each(|_| drop(ask(&service, &[("k", "x")], Protocol::Http, time.now())));
        time.advance(Duration::from_secs(60));
        assert_eq!(service.meter.top(9, time.now()).len(), 1, "it is of the last two minutes");
        time.advance(Duration::from_secs(59));
        // A look in between makes nothing younger.
        let _ = service.meter.top(9, time.now());
        time.advance(Duration::from_secs(1));
        assert!(service.meter.top(9, time.now()).is_empty());
        let request = CheckRequest::new().with("k", "x").unwrap();
        let policy = service.engine.policy();
        let last = service.meter.last_denial(&policy.limits()[0], &request, time.now()).unwrap();
        assert_eq!(last.recent, 0, "the denial itself is remembered for longer");
    }
}

/// Under load, keys are sampled, and the estimates stay near the true counts.
#[test]
fn estimates_under_load_are_near() {
    let time = ManualClock::new();
    let service = service(&time, "limits: [{name: a, by: [k], rate: 3/h}]");
    for n in 0..80_000 {
        let key = if n % 4 == 0 {
            "often"
        } else if n % 16 == 1 {
            "seldom"
        } else {
            "most"
        };
        ask(&service, &[("k", key)], Protocol::Http, time.now());
    }
    let top = service.meter.top(3, time.now());
    let truths = [("k=most", 55_000_u64), ("k=often", 20_000), ("k=seldom", 5_000)];
    for (key, (name, truth)) in top.iter().zip(truths) {
        assert_eq!(key.key, name);
        assert!(key.decisions.abs_diff(truth) < truth / 5, "{key:?}");
    }
}

/// A watcher sees each decision, with request text escaped. When all watchers have gone, no events are published.
#[test]
fn watching_begins_and_ends() {
    let time = ManualClock::new();
    let service = service(&time, POLICY);
    ask(&service, &[("api_key", "before")], Protocol::Http, time.now());
    let mut watching = service.meter.watch();
    for _ in 0..4 {
        ask(&service, &[("api_key", "k\r\nx")], Protocol::Authz, time.now());
    }
    let events: Vec<Arc<Event>> = std::iter::from_fn(|| watching.try_recv().ok()).collect();
    assert_eq!(events.len(), 4);
    let last = &events[3];
    assert_eq!((last.allowed, last.limit.as_str(), last.source), (false, "per-key", "exact"));
    let digest = tollgate::CredentialDigest::of("k\r\nx").to_string();
    assert_eq!(last.attributes, [("api_key".to_owned(), digest)]);
    assert_eq!((last.protocol, last.at), (Protocol::Authz, time.now()));
    assert!(last.retry_after_ms.is_some());
    drop(watching);
    ask(&service, &[], Protocol::Http, time.now());
    assert!(!service.meter.is_watched.load(Ordering::Relaxed));
    let mut again = service.meter.watch();
    ask(&service, &[], Protocol::Http, time.now());
    assert!(again.try_recv().is_ok());
}

/// A flood does not make the server send a watcher more events than the maximum.
#[test]
fn watching_is_bounded() {
    let time = ManualClock::new();
    let meter = service(&time, "limits: []").meter;
    let published = (0..100_000).filter(|_| meter.budget.spend(time.now())).count();
    assert_eq!(published as u64, events::EVENTS_PER_SECOND);
    time.advance(Duration::from_secs(1));
    assert!(meter.budget.spend(time.now()));
}

/// A metric of another module is shown as soon as its probe is registered, and every metric is declared once.
#[test]
fn others_may_register_their_numbers() {
    let meter = Meter::new();
    let page = meter.exposition(Timestamp::from_unix_seconds(1), tollgate::time::WallOffset::NONE);
    assert!(!page.contains("\ntollgate_kill_switches "));
    meter.probe(|_| vec![Sample::new(&names::KILL_SWITCHES, 2)]);
    let page = meter.exposition(Timestamp::from_unix_seconds(1), tollgate::time::WallOffset::NONE);
    assert!(page.contains("\ntollgate_kill_switches 2\n"));
    for metric in names::ALL {
        assert_eq!(page.matches(&format!("# TYPE {} ", metric.name)).count(), 1, "{}", metric.name);
    }
}
