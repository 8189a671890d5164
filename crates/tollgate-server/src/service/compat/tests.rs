//! How compat configurations are activated and replaced.

use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::{
    CheckRequest, Clock, Engine, ExpiringOverride, LimitOverride, ManualClock, Policy, Scope, Ticks,
};
use tollgate_compat::{CompatConfig, Format, Source, guard};

use crate::policy_file::Rules;
use crate::protocol::Protocol;
use crate::rls::{Code, Descriptor, RlsRequest};
use crate::service::{Service, rls};

fn compat(requests: u32) -> Rules {
    let text = format!(
        "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]"
    );
    let source = Source { name: "f".to_owned(), bytes: text.into_bytes() };
    let (rules, _) = CompatConfig::compile(Format::Envoy, &[source]).unwrap();
    Rules::Compat(rules, guard().unwrap())
}

fn native() -> Rules {
    Rules::Native(Policy::compile("p", b"limits: [{name: own, by: [k], rate: 1/h}]").unwrap())
}

/// Rules of every format replace each other; counters stay, and at no time does the engine admit a request past the
/// compat rules.
#[tokio::test]
async fn rules_of_all_formats_replace_each_other() {
    let time = ManualClock::new();
    let clock: Clock = time.clock();
    let now = time.now();
    let (Rules::Native(policy) | Rules::Compat(_, policy)) = native();
    let service = Service::new(
        Engine::builder().policy(policy).clock(tollgate::ManualClock::starting_at(now).clock()).build(),
        clock,
    );
    let entries = vec![("k".to_owned(), "v".to_owned())];
    let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
    let rls_request = RlsRequest { domain: "d".to_owned(), descriptors, hits_addend: 1 };
    let request = CheckRequest::new().with("k", "v").unwrap();
    assert_eq!(rls::answer(&service, &rls_request, now).await.unwrap().overall, Code::Ok);
    assert!(
        !service.check(&request, now, Protocol::Http).await.is_allowed(),
        "one policy, one counter, two wires"
    );

    service.replace(compat(2), now).unwrap();
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(rls::answer(&service, &rls_request, now).await.unwrap().overall, expected);
    }
    for _ in 0..3 {
        assert!(!service.check(&request, now, Protocol::Resp).await.is_allowed(), "the guard refuses");
    }
    service.replace(compat(4), now).unwrap();
    for expected in [Code::Ok, Code::OverLimit] {
        assert_eq!(rls::answer(&service, &rls_request, now).await.unwrap().overall, expected);
    }
    service.replace(native(), now).unwrap();
    assert!(service.compat().is_none());
}

fn limitador() -> Rules {
    let text =
        "- {namespace: n, max_value: 2, seconds: 60, conditions: [], variables: [\"descriptors[0]['k']\"]}";
    let source = Source { name: "f".to_owned(), bytes: text.as_bytes().to_vec() };
    let (rules, _) = CompatConfig::compile(Format::Limitador, &[source]).unwrap();
    Rules::Compat(rules, guard().unwrap())
}

fn rls_request(domain: &str, value: &str) -> RlsRequest {
    let entries = vec![("k".to_owned(), value.to_owned())];
    let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
    RlsRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 }
}

/// A block refuses under every kind of rules, counts nothing, and ends at the announced instant. The kill switch admits
/// requests that are still counted.
#[tokio::test]
async fn operator_overrides_apply_to_compat_rules() {
    for (rules, domain) in [(compat(2), "d"), (limitador(), "n")] {
        let time = ManualClock::new();
        let now = time.now();
        let service = Service::new(
            Engine::builder()
                .policy(guard().unwrap())
                .clock(tollgate::ManualClock::starting_at(now).clock())
                .build(),
            time.clock(),
        );
        service.replace(rules, now).unwrap();
        let ask =
            async |value: &str, at| rls::answer(&service, &rls_request(domain, value), at).await.unwrap();
        let key = CheckRequest::new().with("k", "v").unwrap().with("domain", domain).unwrap();
        let second = Ticks::from_secs(1);
        service.engine.operator().block(&key, now + second, now).unwrap();
        let blocked = ask("v", now).await;
        assert_eq!((blocked.overall, blocked.statuses[0].until_reset), (Code::OverLimit, Some(second)));
        assert_eq!(ask("other", now).await.overall, Code::Ok);
        let pair = CheckRequest::new().with("k", "a").unwrap().with("l", "b").unwrap();
        service.engine.operator().block(&pair, now + second, now).unwrap();
        let mut several = rls_request(domain, "a");
        let entries = vec![("l".to_owned(), "b".to_owned())];
        several.descriptors.push(Descriptor { entries, ..Descriptor::default() });
        let blocked = rls::answer(&service, &several, now).await.unwrap();
        assert_eq!(blocked.overall, Code::OverLimit, "its descriptors have the block's attributes together");
        for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
            assert_eq!(ask("v", now + second).await.overall, expected, "{domain}");
        }
        for kind in [LimitOverride::Off, LimitOverride::Shadow] {
            let expiring = ExpiringOverride { kind, until: now + second + second };
            service.engine.operator().set_override(Scope::All, expiring, now).unwrap();
            assert_eq!(ask("v", now + second).await.overall, Code::Ok);
        }
        assert_eq!(ask("v", now + second + second).await.overall, Code::OverLimit);
        let metrics = service.meter.exposition(now, tollgate::time::WallOffset::NONE);
        let counted = |verdict: &str| {
            let mut lines = metrics.lines().filter(|line| line.contains(r#"wire="rls""#));
            lines
                .find(|line| line.starts_with("tollgate_decisions_total") && line.contains(verdict))
                .map(str::to_owned)
        };
        assert!(counted(r#""allow""#).unwrap().ends_with(" 5"), "{metrics}");
        assert!(counted(r#""deny""#).unwrap().ends_with(" 2"), "{metrics}");
        assert!(counted(r#""blocked""#).unwrap().ends_with(" 2"), "{metrics}");
        let top = service.meter.top(9);
        assert!(top.iter().any(|key| key.key == "k=v" && key.decisions == 6), "{top:?}");
    }
}

/// A watcher sees decisions by compat rules, with the cause of a denial.
#[tokio::test]
async fn compat_decisions_are_watched() {
    let time = ManualClock::new();
    let service =
        Service::new(Engine::builder().policy(guard().unwrap()).clock(time.clock()).build(), time.clock());
    service.replace(compat(1), time.now()).unwrap();
    let mut events = service.meter.watch();
    for allowed in [true, false] {
        rls::answer(&service, &rls_request("d", "v"), time.now()).await.unwrap();
        let event = events.try_recv().unwrap();
        assert_eq!((event.allowed, event.protocol, event.limit.as_str()), (allowed, Protocol::Rls, "d"));
        assert_eq!(event.attributes, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(event.retry_after_ms.is_some(), !allowed);
    }
}

/// A decision that the guard refused because compat rules were activated meanwhile is recognised.
#[tokio::test]
async fn a_refusal_by_the_guard_is_recognised() {
    let time = ManualClock::new();
    let now = time.now();
    let (Rules::Native(policy) | Rules::Compat(_, policy)) = native();
    let service = Service::new(
        Engine::builder().policy(policy).clock(tollgate::ManualClock::starting_at(now).clock()).build(),
        time.clock(),
    );
    let request = CheckRequest::new().with("k", "v").unwrap();
    let before = service.check(&request, now, Protocol::Http).await;
    service.replace(compat(2), now).unwrap();
    let after = service.check(&request, now, Protocol::Http).await;
    assert!(service.overtaken(&before).is_none() && service.overtaken(&after).is_some());
}

/// A configuration that cannot be activated completely is not activated at all: the previous policy stays.
#[tokio::test]
async fn a_swap_that_fails_leaves_no_compat_rules() {
    let time = ManualClock::new();
    let now = time.now();
    let own = |rate: usize| {
        let text = format!("limits: [{{name: own, by: [k], rate: {rate}/h}}]");
        Policy::compile("p", text.as_bytes()).unwrap()
    };
    let service = Service::new(
        Engine::builder().policy(own(1_000)).clock(tollgate::ManualClock::starting_at(now).clock()).build(),
        time.clock(),
    );
    let request = CheckRequest::new().with("k", "v").unwrap();
    let refused = (1_001..3_000).find_map(|rate| {
        let Rules::Compat(compat, _) = compat(2) else { return None };
        // A guard that changes a limit whose numbers are used up represents any policy that the engine refuses.
        let error = service.replace(Rules::Compat(compat, own(rate)), now).err();
        if error.is_none() {
            service.replace(Rules::Native(own(rate)), now).ok()?;
        }
        error
    });
    assert!(refused.is_some_and(|error| error.to_string().contains("own")));
    assert!(service.compat().is_none());
    assert!(service.check(&request, now, Protocol::Http).await.is_allowed());
}

/// A request in flight while compat rules are activated is answered by the old or the new rules, and never by the
/// guard.
#[test]
fn a_request_is_never_answered_by_the_guard() {
    for _ in 0..300 {
        let time = ManualClock::new();
        let now = time.now();
        let policy = Policy::compile("p", b"limits: [{name: own, by: [k], rate: 1000000/s}]").unwrap();
        let service = Service::new(
            Engine::builder().policy(policy).clock(tollgate::ManualClock::starting_at(now).clock()).build(),
            time.clock(),
        );
        let (rls_request, asked) = (rls_request("d", "v"), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                while service.compat().is_none() || asked.load(Ordering::SeqCst) < 20 {
                    let answer = runtime.block_on(rls::answer(&service, &rls_request, now)).unwrap();
                    assert_eq!(answer.overall, Code::Ok, "{answer:?}");
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
            while asked.load(Ordering::SeqCst) < 5 {
                std::hint::spin_loop();
            }
            service.replace(compat(u32::MAX), now).unwrap();
        });
    }
}
