//! Requests with several descriptors, and the steps of a decision.

use super::*;
use crate::Secret;
use crate::counted::{Steps, steps_of};
use crate::lease::{LeasedStore, MemoryLender};
use crate::memory::MemoryStore;
use crate::policy::{Fault, Policy};
use crate::request::DESCRIPTORS_MAX;
use crate::time::Ticks;
use pollster::block_on;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const LIMITS: &str = "
limits:
  - {name: both, by: [a, b], rate: 9/h}
  - {name: only-a, by: [a], rate: 2/h}
  - {name: only-b, by: [b], rate: 9/h}
  - {name: all, rate: 9/h}
  - {name: quiet, by: [b], rate: 1/h, mode: shadow}
";

fn engine(policy: &str) -> Engine {
    Engine::builder()
        .policy(Policy::compile("policy.yaml", policy.as_bytes()).unwrap())
        .clock(crate::ManualClock::starting_at(NOW).clock())
        .build()
}

fn descriptor<'a>(attributes: &[(&'a str, &'a str)], cost: u64) -> CheckRequest<'a> {
    let add = |request: CheckRequest<'a>, &(name, value): &(&'a str, &'a str)| request.with(name, value);
    attributes.iter().try_fold(CheckRequest::new(), add).and_then(|request| request.cost(cost)).unwrap()
}

fn joined<'a>(requests: &[CheckRequest<'a>]) -> CheckRequest<'a> {
    requests.iter().cloned().reduce(CheckRequest::and).unwrap()
}

/// Name, descriptor and remaining units of each limit that applied, in the policy's order.
fn told(decision: &Decision) -> Vec<(&str, usize, u64)> {
    let status = decision.limits();
    status.map(|status| (status.limit.name(), status.descriptor, status.outcome.remaining)).collect()
}

/// Each limit applies once, to the first descriptor that has its attributes, at the cost of that descriptor. A
/// limit that needs attributes of two descriptors does not apply, and a name may have a different value in each
/// descriptor.
#[test]
fn a_limit_applies_to_the_first_descriptor_that_it_matches() {
    let engine = engine(LIMITS);
    let descriptors =
        [descriptor(&[("b", "1")], 3), descriptor(&[("a", "1")], 1), descriptor(&[("a", "2")], 1)];
    let decision = block_on(engine.check(&joined(&descriptors), NOW));
    assert_eq!(told(&decision), [("only-a", 1, 1), ("only-b", 0, 6), ("all", 0, 6), ("quiet", 0, 1)]);
    // The second descriptor's key was charged, the third's was not.
    assert_eq!(told(&engine.try_check(&descriptor(&[("a", "1")], 0), NOW).unwrap())[0], ("only-a", 0, 1));
    assert_eq!(told(&engine.try_check(&descriptor(&[("a", "2")], 0), NOW).unwrap())[0], ("only-a", 0, 2));
    // With both attributes in one descriptor, the limit `both` applies.
    assert_eq!(
        told(&engine.try_check(&descriptor(&[("a", "1"), ("b", "1")], 0), NOW).unwrap())[0],
        ("both", 0, 9)
    );
}

/// If the limit of one descriptor denies, the limits of no descriptor are charged.
#[test]
fn descriptors_are_charged_all_or_none() {
    let engine = engine(LIMITS);
    let descriptors = [descriptor(&[("b", "1")], 1), descriptor(&[("a", "1")], 2)];
    assert!(block_on(engine.check(&joined(&descriptors), NOW)).is_allowed());
    let denied = block_on(engine.check(&joined(&descriptors), NOW));
    assert!(!denied.is_allowed());
    assert_eq!(denied.cause().map(|cause| (cause.limit.name(), cause.descriptor)), Some(("only-a", 1)));
    let left = engine.try_check(&descriptor(&[("b", "1")], 0), NOW).unwrap();
    assert_eq!(told(&left)[..2], [("only-b", 0, 8), ("all", 0, 8)]);
}

/// A descriptor of cost 0 only looks, beside others that pay.
#[test]
fn a_descriptor_may_only_look() {
    let engine = engine(LIMITS);
    let descriptors = [descriptor(&[("a", "1")], 0), descriptor(&[("b", "1")], 1)];
    for left in [8, 7, 6, 5] {
        let decision = block_on(engine.check(&joined(&descriptors), NOW));
        assert!(decision.is_allowed());
        assert_eq!(told(&decision)[..2], [("only-a", 0, 2), ("only-b", 1, left)]);
    }
}

/// The request is denied if a limit cannot compute its cost from its descriptor, and if there are too many
/// descriptors.
#[test]
fn a_faulty_descriptor_refuses_the_request() {
    let engine = engine("limits: [{name: t, by: [a], rate: 9/h, cost: tokens}, {name: all, rate: 9/h}]");
    let descriptors = [descriptor(&[("b", "1")], 1), descriptor(&[("a", "1")], 1)];
    let decision = block_on(engine.check(&joined(&descriptors), NOW));
    assert!(matches!(decision.fault(), Some(Fault::Cost { .. })) && !decision.is_allowed());
    let many = vec![descriptor(&[("b", "1")], 1); DESCRIPTORS_MAX + 1];
    assert!(block_on(engine.check(&joined(&many[1..]), NOW)).is_allowed());
    let decision = block_on(engine.check(&joined(&many), NOW));
    assert_eq!(decision.fault(), Some(&Fault::TooManyDescriptors));
    assert!(!decision.is_allowed());
    assert_eq!(told(&engine.try_check(&descriptor(&[("b", "1")], 0), NOW).unwrap()), [("all", 0, 8)]);
}

/// Units can be refunded to one of the limits that a request matches.
#[test]
fn a_refund_may_name_its_limits() {
    let engine = engine(LIMITS);
    let request = descriptor(&[("a", "1"), ("b", "1")], 2);
    assert!(engine.try_check(&request, NOW).unwrap().is_allowed());
    block_on(engine.ledger().refund(&request, &["only-a"], Ticks::ZERO, NOW)).unwrap();
    let left = engine.try_check(&request.clone().looking(), NOW).unwrap();
    assert_eq!(told(&left)[..4], [("both", 0, 7), ("only-a", 0, 2), ("only-b", 0, 7), ("all", 0, 7)]);
}

/// A limit whose counters are leased, on a store that lends.
fn leased() -> Engine<LeasedStore<MemoryLender>> {
    let limits = "limits: [{name: all, by: [a], rate: 1000/h, consistency: leased}]";
    let policy = Policy::compile("policy.yaml", limits.as_bytes()).unwrap();
    let lender = MemoryLender::new(MemoryStore::new(16 << 20, NOW), 1);
    Engine::builder()
        .policy(policy)
        .store(LeasedStore::new(lender, 1_000))
        .secret(Secret::repeatable(7))
        .build()
}

/// A request is matched once and its key is hashed once, also where no lease answers and the store is awaited. The slow
/// path looks the lease up once.
#[test]
fn a_lease_miss_repeats_no_step() {
    let engine = leased();
    let mut now = NOW;
    let mut check = |cost: u64| {
        let request = descriptor(&[("a", "1")], cost);
        now = now + Ticks::from_millis(1);
        let (decision, steps) = steps_of(|| block_on(engine.check(&request, now)));
        (decision.limits().next().unwrap().source, steps)
    };
    // The key has no lease yet. It is not in the thread cache either.
    let miss = Steps { matchings: 1, hashed_keys: 1, cache_lookups: 1, map_lookups: 2 };
    assert_eq!(check(1), (Source::Exact, miss));
    assert!((0..100).any(|_| check(1).0 == Source::Lease), "a busy key gets a lease");
    // The fast path looks into the thread cache twice: to load the lease, and to spend from it.
    let hit = Steps { matchings: 1, hashed_keys: 1, cache_lookups: 2, map_lookups: 0 };
    assert_eq!(check(1), (Source::Lease, hit));
    // The lease has fewer units than this, so the store is asked.
    let miss = Steps { map_lookups: 1, ..hit };
    assert_eq!(check(200), (Source::Exact, miss));
}

/// A request is matched once and its keys are hashed once, on memory and where several limits match.
#[test]
fn a_check_on_memory_repeats_no_step() {
    let engine = engine(LIMITS);
    let request = descriptor(&[("a", "1"), ("b", "1")], 1);
    let (_, steps) = steps_of(|| block_on(engine.check(&request, NOW)));
    assert_eq!(steps, Steps { matchings: 1, hashed_keys: 5, ..Steps::default() });
}

/// A prepared request decides as if it were checked: nothing was charged before.
#[test]
fn a_prepared_request_is_charged_once() {
    let engine = leased();
    let request = descriptor(&[("a", "1")], 400);
    let prepared = engine.try_check(&request, NOW).unwrap_err();
    assert!(block_on(prepared.check(&engine, &request, NOW)).is_allowed());
    let prepared = engine.try_check(&request, NOW).unwrap_err();
    // A policy that becomes active meanwhile decides.
    let policy = Policy::compile("policy.yaml", b"limits: [{name: all, by: [a], rate: 300/h}]").unwrap();
    engine.swap(policy, NOW).unwrap();
    let other = descriptor(&[("a", "1")], 1);
    assert!(block_on(engine.check(&other, NOW)).is_allowed());
    let decision = block_on(prepared.check(&engine, &request, NOW));
    assert!(!decision.is_allowed());
}
