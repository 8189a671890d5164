//! Answers to Envoy while the store is unreachable, and while an operator overrides limits that requests carry. The
//! tables over gRPC in `tests/it` cover a store that answers.

use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{
    Clock, Engine, ExpiringOverride, LimitOverride, MemoryStore, Policy, Scope, Secret, Ticks, Timestamp,
};

use super::super::answer;
use super::NEGATIVE_HITS_WITHIN;
use crate::rls::{Answer, Code, CurrentLimit, Descriptor, Override, RlsRequest, Status, Unit};
use crate::service::Service;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// A store that answers once and then never again.
struct Away {
    memory: MemoryStore,
    is_gone: AtomicBool,
}

impl Store for Away {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        if self.is_gone.swap(true, Ordering::SeqCst) {
            return Err(StoreFailure::Unreachable);
        }
        self.memory.charge(charges, now).await
    }

    async fn refund(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        Err(StoreFailure::Unreachable)
    }

    async fn reset(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        Err(StoreFailure::Unreachable)
    }

    fn hold(&self, _: &Hold) {}
}

async fn service() -> Service<Away> {
    let limits = "
limits:
  - {name: closed, by: [closed], rate: 5/h, on_store_failure: deny}
  - {name: open, by: [open], rate: 5/h, on_store_failure: allow}
  - {name: local, by: [local], rate: 2/h, on_store_failure: local}
  - {name: seen, by: [seen], rate: 2/h}
";
    let policy = Policy::compile("policy.yaml", limits.as_bytes()).unwrap();
    let store = Away { memory: MemoryStore::new(1 << 20, NOW), is_gone: AtomicBool::new(false) };
    let service = Service::new(
        Engine::builder().policy(policy).store(store).secret(Secret::repeatable(1)).build(),
        Clock::precise(),
    );
    assert_eq!(ask(&service, &["seen"]).await.overall, Code::Ok); // A store that was never there opens no limit.
    service
}

/// A request with one descriptor for each name. Names that begin with `-` give back.
async fn ask(service: &Service<Away>, names: &[&str]) -> Answer {
    let descriptor = |name: &&str| Descriptor {
        entries: vec![(name.trim_start_matches('-').to_owned(), "x".to_owned())],
        is_negative_hits: name.starts_with('-'),
        ..Descriptor::default()
    };
    let descriptors = names.iter().map(descriptor).collect();
    let rls_request = RlsRequest { domain: "api".to_owned(), descriptors, hits_addend: 0 };
    answer(service, &rls_request, NOW).await.unwrap()
}

/// A limit that fails closed is over the limit, with a retry time. One that fails open is OK and has no numbers. A
/// local one counts here.
#[tokio::test]
async fn a_store_that_is_away_is_a_decision() {
    let service = service().await;
    let closed = ask(&service, &["closed"]).await;
    let limit = CurrentLimit { name: "closed".to_owned(), requests_per_unit: 5, unit: Some(Unit::Hour) };
    let expected = Status {
        code: Code::OverLimit,
        current_limit: Some(limit),
        limit_remaining: 0,
        until_reset: Some(Ticks::from_secs(1)),
        source: tollgate::Source::Closed,
    };
    assert_eq!((closed.overall, closed.statuses), (Code::OverLimit, vec![expected]));
    for _ in 0..9 {
        let open = ask(&service, &["open"]).await;
        assert_eq!((open.overall, open.statuses), (Code::Ok, vec![Status::of_no_limit(Code::Ok)]));
    }
    for (code, left) in [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
        let local = ask(&service, &["local"]).await;
        assert_eq!((local.overall, local.statuses[0].limit_remaining), (code, left));
    }
}

/// One limit that fails closed refuses the request, whatever the others say, and nothing else is charged for it.
#[tokio::test]
async fn one_closed_limit_refuses_all() {
    let service = service().await;
    for _ in 0..5 {
        let answer = ask(&service, &["open", "local", "closed"]).await;
        let codes: Vec<Code> = answer.statuses.iter().map(|status| status.code).collect();
        assert_eq!((answer.overall, codes), (Code::OverLimit, vec![Code::Ok, Code::Ok, Code::OverLimit]));
    }
    assert_eq!(ask(&service, &["local"]).await.statuses[0].limit_remaining, 1);
}

/// Giving back is always OK for its own descriptor. Beside a descriptor that asks for admission, a limit that fails
/// closed denies the request. Otherwise the others would pass without being charged.
#[tokio::test]
async fn giving_back_is_ok_without_a_store() {
    let service = service().await;
    let given = ask(&service, &["-closed"]).await;
    assert_eq!((given.overall, given.statuses[0].code), (Code::Ok, Code::Ok));
    let mixed = ask(&service, &["-closed", "local"]).await;
    let codes: Vec<Code> = mixed.statuses.iter().map(|status| status.code).collect();
    assert_eq!((mixed.overall, codes), (Code::OverLimit, vec![Code::Ok, Code::Ok]));
}

/// A request of one descriptor that carries a limit.
fn bringing(name: &str, requests_per_unit: u32) -> RlsRequest {
    let descriptor = Descriptor {
        entries: vec![(name.to_owned(), "x".to_owned())],
        limit: Some(Override { requests_per_unit, unit: Unit::Day }),
        ..Descriptor::default()
    };
    RlsRequest { domain: "api".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// A limit that the request carries is counted here while the store is unreachable, whatever the failure mode of the
/// policy's limits. It only tightens.
#[tokio::test]
async fn a_limit_of_the_request_is_counted_here() {
    let service = service().await;
    for (name, code) in [("open", Code::Ok), ("open", Code::OverLimit), ("closed", Code::OverLimit)] {
        assert_eq!(answer(&service, &bringing(name, 1), NOW).await.unwrap().overall, code);
    }
}

/// An operator's override of all limits applies to limits that requests carry, and ends with the override.
#[tokio::test]
async fn an_operator_rules_over_limits_of_requests() {
    let policy = Policy::compile("policy.yaml", b"limits: [{name: all, rate: 9/h}]").unwrap();
    let service = Service::new(
        Engine::builder().policy(policy).clock(tollgate::ManualClock::starting_at(NOW).clock()).build(),
        Clock::precise(),
    );
    let codes = async |times: usize| {
        let mut codes = Vec::new();
        for _ in 0..times {
            codes.push(answer(&service, &bringing("a", 1), NOW).await.unwrap().overall);
        }
        codes
    };
    assert_eq!(codes(2).await, [Code::Ok, Code::OverLimit]);
    for kind in [LimitOverride::Off, LimitOverride::Shadow] {
        let expiring = ExpiringOverride { kind, until: NOW + Ticks::from_secs(60) };
        service.engine.operator().set_override(Scope::All, expiring, NOW).unwrap();
        assert_eq!(codes(2).await, [Code::Ok, Code::Ok], "{kind:?}");
    }
    let later = NOW + Ticks::from_secs(60);
    assert_eq!(answer(&service, &bringing("a", 1), later).await.unwrap().overall, Code::OverLimit);
}

/// Regression: hits of the last window were given back in the next one, which had never counted them, and so it
/// admitted as many more. The protocol does not say when the hits were taken. They may be of the previous window until
/// the current one has lasted as long as Envoy's request timeout.
#[tokio::test]
async fn negative_hits_that_may_be_of_the_last_window_are_dropped() {
    let limits = "limits: [{name: w, by: [k], algorithm: fixed-window, rate: 5/h}]";
    let policy = Policy::compile("policy.yaml", limits.as_bytes()).unwrap();
    let service = Service::new(
        Engine::builder().policy(policy).clock(tollgate::ManualClock::starting_at(NOW).clock()).build(),
        Clock::precise(),
    );
    let next_hour = Timestamp::from_unix_seconds((NOW.unix_micros() / 3_600_000_000 + 1) * 3_600);
    let ask = async |hits: u64, is_negative_hits: bool, now: Timestamp| {
        let entries = vec![("k".to_owned(), "x".to_owned())];
        let descriptor =
            Descriptor { entries, hits_addend: Some(hits), is_negative_hits, ..Descriptor::default() };
        let rls_request =
            RlsRequest { domain: "api".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
        answer(&service, &rls_request, now).await.unwrap().overall
    };
    assert_eq!(ask(5, false, next_hour - Ticks::from_secs(1)).await, Code::Ok);
    assert_eq!(ask(5, false, next_hour).await, Code::Ok);
    assert_eq!(ask(5, true, next_hour + Ticks::from_secs(1)).await, Code::Ok);
    assert_eq!(ask(1, false, next_hour + Ticks::from_secs(1)).await, Code::OverLimit, "5 were kept");
    assert_eq!(ask(2, true, next_hour + NEGATIVE_HITS_WITHIN).await, Code::Ok);
    assert_eq!(ask(2, false, next_hour + NEGATIVE_HITS_WITHIN).await, Code::Ok, "2 were given back");
    assert_eq!(ask(1, false, next_hour + NEGATIVE_HITS_WITHIN).await, Code::OverLimit);
}
