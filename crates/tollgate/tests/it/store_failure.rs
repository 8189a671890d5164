//! A store that does not answer is a decision chosen by each limit, never an error, and never a gift.

mod tallies;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tollgate::engine::{CommitError, Settled};
use tollgate::policy::{Cost, LimitBuilder, Mode, OnStoreFailure};
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{
    Answer, Audience, Decision, Engine, HeaderPolicy, MemoryStore, Policy, Reason, Ticks, Timestamp, Verdict,
};

use crate::fixture::{NOW, asking, bucket, now_or_never, permits, policy};

/// The fault of the store, and how often it occurred.
#[derive(Default)]
struct Fault {
    down: AtomicBool,
    /// How many calls are still answered before anything goes wrong.
    spared: AtomicUsize,
    /// How many more calls fail because a newer policy was faster.
    superseded: AtomicUsize,
    seen: AtomicUsize,
}

/// Memory behind a connection that can be cut.
struct Flaky {
    memory: MemoryStore,
    fault: Arc<Fault>,
}

impl Flaky {
    fn fails(&self) -> Result<(), StoreFailure> {
        if counted_down(&self.fault.spared) {
            return Ok(());
        }
        if self.fault.down.load(Ordering::SeqCst) {
            self.fault.seen.fetch_add(1, Ordering::SeqCst);
            return Err(StoreFailure::Unreachable);
        }
        if counted_down(&self.fault.superseded) {
            self.fault.seen.fetch_add(1, Ordering::SeqCst);
            return Err(StoreFailure::Superseded);
        }
        Ok(())
    }
}

/// Takes one away, if there is one.
fn counted_down(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Store for Flaky {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.fails()?;
        self.memory.charge(charges, now).await
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.fails()?;
        self.memory.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.fails()?;
        self.memory.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }
}

struct Rig {
    engine: Engine<Flaky>,
    fault: Arc<Fault>,
}

impl Rig {
    fn new(limits: Vec<LimitBuilder>) -> Self {
        Self::of(policy(limits))
    }

    fn of(policy: Policy) -> Self {
        let fault = Arc::new(Fault::default());
        let store = Flaky { memory: MemoryStore::new(1 << 20, NOW), fault: Arc::clone(&fault) };
        Self { engine: Engine::builder().policy(policy).store(store).build(), fault }
    }

    /// One whose store has answered before it failed.
    fn seen(limits: Vec<LimitBuilder>) -> Self {
        let rig = Self::new(limits);
        let _ = now_or_never(rig.engine.operator().peek(&asking("other", 1), NOW));
        rig
    }

    fn cut(&self, down: bool) {
        self.fault.down.store(down, Ordering::SeqCst);
    }

    /// How often the fault was met: a fault test proves nothing unless the fault happened.
    fn faults(&self) -> usize {
        self.fault.seen.load(Ordering::SeqCst)
    }

    fn check(&self, cost: u64) -> Decision {
        now_or_never(self.engine.check(&asking("k", cost), NOW))
    }

    fn left(&self, limit: &str) -> Option<u64> {
        let decision = now_or_never(self.engine.operator().peek(&asking("k", 1), NOW));
        decision.limits().find(|status| status.limit.name() == limit).map(|status| status.outcome.remaining)
    }
}

fn sources(decision: &Decision) -> Vec<&'static str> {
    decision.limits().map(|status| status.source.name()).collect()
}

/// `allow` lets everything pass for a while, and the units are reported to the store afterwards.
#[test]
fn an_open_limit_lets_pass() {
    let rig = Rig::seen(vec![bucket("limit", 2).on_store_failure(OnStoreFailure::Allow)]);
    rig.cut(true);
    for _ in 0..5 {
        let decision = rig.check(1);
        assert_eq!(decision.verdict(), Verdict::Allow);
        assert_eq!(sources(&decision), ["open"]);
    }
    assert_eq!(rig.faults(), 5);
    rig.cut(false);
    assert_eq!(rig.left("limit"), Some(0), "5 of 2 units passed");
    assert_eq!(sources(&rig.check(1)), ["exact"]);
}

/// `deny` refuses everything, with a time to come back.
#[test]
fn a_closed_limit_refuses() {
    let rig = Rig::new(vec![bucket("limit", 2).on_store_failure(OnStoreFailure::Deny)]);
    rig.cut(true);
    let decision = rig.check(1);
    assert_eq!(decision.verdict(), Verdict::Deny { retry_after: Ticks::from_secs(1) });
    assert_eq!(decision.cause().map(|cause| cause.limit.name().to_owned()).as_deref(), Some("limit"));
    assert_eq!(sources(&decision), ["closed"]);
    assert_eq!(decision.reason(), Some(Reason::Unavailable));
    assert_eq!(rig.faults(), 1);
    let answer = Answer::of(&decision, &HeaderPolicy::default(), Audience::default(), NOW);
    assert_eq!(answer.status, 503, "the caller did nothing wrong");
    let seconds: Option<u64> = answer.headers.get("Retry-After").and_then(|value| value.parse().ok());
    assert!(seconds.is_some_and(|seconds| (1..=5).contains(&seconds)), "{seconds:?}");
}

/// `local`, the default, counts by a bucket in this process, which starts with the earlier admissions; and they are reported to the store once.
#[test]
fn a_local_limit_counts_in_this_process() {
    let rig = Rig::new(vec![bucket("limit", 3)]);
    assert!(rig.check(1).is_allowed());
    rig.cut(true);
    for turn in 0..5 {
        let decision = rig.check(1);
        assert_eq!(decision.is_allowed(), turn < 2, "turn {turn}");
        assert_eq!(sources(&decision), ["local"]);
    }
    assert_eq!(rig.faults(), 5);
    rig.cut(false);
    assert_eq!(rig.left("limit"), Some(0), "the report preceded the charge");
    assert_eq!(rig.left("limit"), Some(0), "once");
}

/// Each limit of one request answers in its own way, and the strictest decides.
#[test]
fn each_limit_has_its_own_failure_mode() {
    let rig = Rig::seen(vec![
        bucket("open", 1).on_store_failure(OnStoreFailure::Allow),
        bucket("local", 2),
        bucket("watching", 9).on_store_failure(OnStoreFailure::Deny).mode(Mode::Shadow),
    ]);
    rig.cut(true);
    let decision = rig.check(1);
    assert!(decision.is_allowed(), "a limit in shadow does not deny, closed or not");
    assert_eq!(sources(&decision), ["open", "local", "closed"]);
    assert!(rig.check(1).is_allowed());
    assert_eq!(rig.check(1).cause().map(|cause| cause.limit.name().to_owned()).as_deref(), Some("local"));
    assert_eq!(rig.faults(), 3);
}

/// The story: while the store was away a closed limit refused a request, and the local limits beside it were charged for it.
#[test]
fn a_denial_of_a_closed_limit_is_charged_nowhere() {
    let rig = Rig::new(vec![bucket("local", 5), bucket("closed", 5).on_store_failure(OnStoreFailure::Deny)]);
    rig.cut(true);
    for _ in 0..10 {
        assert!(!rig.check(1).is_allowed());
    }
    assert_eq!(rig.faults(), 10);
    assert_eq!(rig.left("local"), Some(5));
}

/// Nothing that a client sends opens a limit: a faulty request is refused, store or no store.
#[test]
fn an_input_fault_is_no_store_fault() {
    let limit =
        bucket("limit", 5).cost(Cost::Attribute("tokens".to_owned())).on_store_failure(OnStoreFailure::Allow);
    let rig = Rig::new(vec![limit]);
    rig.cut(true);
    let decision = rig.check(1);
    assert_eq!(decision.verdict(), Verdict::Never);
    assert!(decision.fault().is_some());
    assert_eq!(rig.faults(), 0, "the store was not even asked");
}

/// The story: a reservation made while the store was away was charged nowhere in it. Cancelling it once the store was back
/// gave units to a counter that had never lost them.
#[test]
fn a_reservation_made_without_the_store_gives_nothing_to_it() {
    for (mode, left) in [(OnStoreFailure::Allow, 1), (OnStoreFailure::Local, 1)] {
        let rig = Rig::new(vec![bucket("limit", 10).on_store_failure(mode)]);
        assert!(rig.check(6).is_allowed());
        rig.cut(true);
        let (decision, reservation) =
            now_or_never(rig.engine.reservations().reserve(&asking("k", 3), Ticks::from_secs(30), NOW));
        assert!(decision.is_allowed());
        rig.cut(false);
        assert_eq!(rig.left("limit"), Some(left), "{mode:?}");
        let settled =
            now_or_never(rig.engine.reservations().cancel(&mut reservation.expect("it was admitted"), NOW));
        assert!(settled.is_ok());
        assert_eq!(rig.left("limit"), Some(left), "{mode:?}");
        assert!(rig.faults() > 0);
    }
}

/// Units taken locally are refunded locally, and refunded units are not reported to the store.
#[test]
fn a_reservation_cancelled_without_the_store_owes_nothing() {
    let rig = Rig::new(vec![bucket("limit", 10)]);
    assert!(rig.check(2).is_allowed());
    rig.cut(true);
    let (_, reservation) =
        now_or_never(rig.engine.reservations().reserve(&asking("k", 5), Ticks::from_secs(30), NOW));
    assert_eq!(rig.left("limit"), Some(3));
    assert!(
        now_or_never(rig.engine.reservations().cancel(&mut reservation.expect("it was admitted"), NOW))
            .is_ok()
    );
    assert_eq!(rig.left("limit"), Some(8));
    rig.cut(false);
    assert_eq!((rig.left("limit"), rig.left("limit")), (Some(8), Some(8)));
}

/// The story: a permit taken while the store was away was never given back to the counter that had lent it.
#[test]
fn a_place_taken_locally_is_given_back_locally() {
    let rig = Rig::new(vec![permits("in-flight", 1)]);
    rig.cut(true);
    for _ in 0..3 {
        let mut decision = rig.check(1);
        assert!(decision.is_allowed());
        assert!(!rig.check(1).is_allowed(), "the only permit is taken");
        let permit = decision.take_permit().expect("it was admitted");
        assert_eq!(
            now_or_never(rig.engine.reservations().release(&permit, NOW)),
            Ok(()),
            "the store has no part in it"
        );
    }
    assert!(rig.faults() > 0);
}

/// Settling, refunding and resetting say that the store did not answer.
#[test]
fn unreachable_stores_are_reported() {
    let rig = Rig::new(vec![bucket("limit", 10)]);
    let (_, reservation) =
        now_or_never(rig.engine.reservations().reserve(&asking("k", 5), Ticks::from_secs(30), NOW));
    rig.cut(true);
    let unreachable = StoreFailure::Unreachable;
    let settled =
        now_or_never(rig.engine.reservations().commit(&mut reservation.expect("it was admitted"), 1, NOW));
    assert_eq!(settled, Err(CommitError::Store(unreachable)));
    assert_eq!(
        now_or_never(rig.engine.ledger().refund(&asking("k", 1), &[], Ticks::ZERO, NOW)),
        Err(unreachable)
    );
    assert_eq!(now_or_never(rig.engine.operator().reset(&asking("k", 1), &[], NOW)), Err(unreachable));
    assert_eq!(rig.faults(), 3);
}

/// The story: a reset while the store was away was reported as a failure, and yet this node's share was forgotten: four of six were taken,
/// and six more passed. What fails has no effect.
#[test]
fn a_reset_that_fails_lets_nothing_more_pass() {
    let passed = |is_reset: bool| {
        let rig = Rig::seen(vec![bucket("limit", 6)]);
        assert_eq!((0..4).filter(|_| rig.check(1).is_allowed()).count(), 4);
        rig.cut(true);
        if is_reset {
            let reset = now_or_never(rig.engine.operator().reset(&asking("k", 1), &[], NOW));
            assert_eq!(reset, Err(StoreFailure::Unreachable));
        }
        let passed = (0..9).filter(|_| rig.check(1).is_allowed()).count();
        assert!(rig.faults() > 0);
        passed
    };
    assert_eq!((passed(false), passed(true)), (2, 2));
}

/// A decision that a newer policy overtook is made again and answered by the counter; one that is overtaken without end is
/// still answered.
#[test]
fn an_overtaken_decision_is_made_again() {
    let rig = Rig::new(vec![bucket("limit", 10)]);
    for overtaken in 1..=4 {
        rig.fault.superseded.store(overtaken, Ordering::SeqCst);
        let decision = rig.check(1);
        assert!(decision.is_allowed());
        assert_eq!(sources(&decision), ["exact"], "overtaken {overtaken} times");
    }
    assert_eq!(rig.left("limit"), Some(6));
    assert_eq!(rig.faults(), 1 + 2 + 3 + 4);
    rig.fault.superseded.store(1_000, Ordering::SeqCst);
    assert_eq!(sources(&rig.check(1)), ["local"]);
}

/// The story: a swap that came between the reading of the policy and the release lost the release, and the permit stayed
/// taken until it expired. The same for what a settled reservation gives back.
#[test]
fn an_overtaken_release_is_made_again() {
    let rig = Rig::new(vec![permits("in-flight", 1), bucket("limit", 10)]);
    let permit = rig.check(1).take_permit().expect("the permit is free");
    rig.fault.superseded.store(2, Ordering::SeqCst);
    assert_eq!(now_or_never(rig.engine.reservations().release(&permit, NOW)), Ok(()));
    assert_eq!(rig.left("in-flight"), Some(1));
    for (actual, left) in [(1, 8), (6, 2)] {
        let (_, reservation) =
            now_or_never(rig.engine.reservations().reserve(&asking("k", 3), Ticks::from_secs(30), NOW));
        rig.fault.superseded.store(2, Ordering::SeqCst);
        let settled = now_or_never(rig.engine.reservations().commit(
            &mut reservation.expect("it was admitted"),
            actual,
            NOW,
        ));
        assert!(settled.is_ok(), "{settled:?}");
        assert_ne!(settled, Ok(Settled::default()));
        assert_eq!(rig.left("limit"), Some(left));
        assert_eq!(rig.left("in-flight"), Some(1));
    }
    assert_eq!(rig.faults(), 6);
}

/// The story: a swap that came between the reading of the policy and the refund, or the reset, was reported as a failure of the
/// store, and nothing had happened. Overtaken without end it is still an error.
#[test]
fn an_overtaken_refund_or_reset_is_made_again() {
    let rig = Rig::new(vec![bucket("limit", 10)]);
    for overtaken in 1..=4 {
        assert!(rig.check(5).is_allowed());
        rig.fault.superseded.store(overtaken, Ordering::SeqCst);
        assert_eq!(
            now_or_never(rig.engine.ledger().refund(&asking("k", 2), &[], Ticks::ZERO, NOW)),
            Ok(()),
            "{overtaken}"
        );
        assert_eq!(rig.left("limit"), Some(7));
        rig.fault.superseded.store(overtaken, Ordering::SeqCst);
        let forgotten = now_or_never(rig.engine.operator().reset(&asking("k", 1), &[], NOW)).unwrap();
        assert_eq!(forgotten.counters.len() + forgotten.untouched.len(), 1, "{overtaken}");
        assert_eq!(rig.left("limit"), Some(10));
    }
    assert_eq!(rig.faults(), 2 * (1 + 2 + 3 + 4));
    rig.fault.superseded.store(1_000, Ordering::SeqCst);
    let superseded = StoreFailure::Superseded;
    assert_eq!(
        now_or_never(rig.engine.ledger().refund(&asking("k", 2), &[], Ticks::ZERO, NOW)),
        Err(superseded)
    );
    assert_eq!(now_or_never(rig.engine.operator().reset(&asking("k", 1), &[], NOW)), Err(superseded));
}

/// A refund that is overtaken at its second counter does not give back to the first one twice.
#[test]
fn an_overtaken_refund_gives_back_once() {
    let rig = Rig::new(vec![bucket("first", 10), bucket("second", 10)]);
    assert!(rig.check(8).is_allowed());
    rig.fault.spared.store(1, Ordering::SeqCst);
    rig.fault.superseded.store(2, Ordering::SeqCst);
    assert_eq!(now_or_never(rig.engine.ledger().refund(&asking("k", 3), &[], Ticks::ZERO, NOW)), Ok(()));
    assert_eq!(rig.faults(), 2);
    assert_eq!((rig.left("first"), rig.left("second")), (Some(5), Some(5)));
}

/// The story: a reservation was used up by the attempt to settle it, so a store that was away for a moment kept the whole
/// estimate. It is settled once the store is back, and not again after that.
#[test]
fn a_reservation_outlives_a_failing_store() {
    for actual in [Some(2), Some(9), None] {
        let rig = Rig::new(vec![bucket("limit", 10), permits("in-flight", 1)]);
        let (_, reservation) =
            now_or_never(rig.engine.reservations().reserve(&asking("k", 5), Ticks::from_secs(30), NOW));
        let mut reservation = reservation.expect("it was admitted");
        let mut settle = || match actual {
            Some(actual) => now_or_never(rig.engine.reservations().commit(&mut reservation, actual, NOW)),
            None => now_or_never(rig.engine.reservations().cancel(&mut reservation, NOW)),
        };
        rig.cut(true);
        assert_eq!(settle(), Err(CommitError::Store(StoreFailure::Unreachable)));
        assert_eq!(rig.faults(), 1);
        rig.cut(false);
        assert!(settle().is_ok());
        assert_eq!(rig.left("limit"), Some(10 - actual.unwrap_or(0)));
        assert_eq!(rig.left("in-flight"), Some(1));
        assert_eq!(settle(), Err(CommitError::AlreadySettled));
        assert_eq!(rig.left("limit"), Some(10 - actual.unwrap_or(0)), "nothing is given back twice");
    }
}

/// A store that fails after some of the counters have answered changes those once, whatever the second attempt asks for.
#[test]
fn a_reservation_half_settled_goes_on_where_it_was() {
    for (first, second) in [(1, 1), (1, 4), (4, 1), (8, 2), (7, 7)] {
        let rig = Rig::new(vec![bucket("a", 10), bucket("b", 10)]);
        let (_, reservation) =
            now_or_never(rig.engine.reservations().reserve(&asking("k", 5), Ticks::from_secs(30), NOW));
        let mut reservation = reservation.expect("it was admitted");
        // Giving back is one call; charging more is a look and a charge.
        rig.fault.spared.store(if first < 5 { 1 } else { 2 }, Ordering::SeqCst);
        rig.cut(true);
        let failed = now_or_never(rig.engine.reservations().commit(&mut reservation, first, NOW));
        assert_eq!(failed, Err(CommitError::Store(StoreFailure::Unreachable)));
        rig.cut(false);
        assert_eq!((rig.left("a"), rig.left("b")), (Some(10 - first), Some(5)), "{first}, then {second}");
        let settled = now_or_never(rig.engine.reservations().commit(&mut reservation, second, NOW));
        let (refunded, charged) = (5u64.saturating_sub(second), second.saturating_sub(5));
        assert_eq!(settled, Ok(Settled { refunded, charged, unpaid: 0 }), "{first}, then {second}");
        assert_eq!((rig.left("a"), rig.left("b")), (Some(10 - second), Some(10 - second)));
    }
}

/// A limit made in Rust counts as one from a file does, with the same failure modes.
#[test]
fn failure_modes_are_read_from_the_file() {
    for (mode, expected) in [("allow", "open"), ("local", "local"), ("deny", "closed")] {
        let text = format!("limits: [{{name: limit, by: [key], rate: 5/h, on_store_failure: {mode}}}]");
        let rig = Rig::of(Policy::compile("policy.yaml", text.as_bytes()).expect("it is valid"));
        assert!(rig.check(1).is_allowed());
        rig.cut(true);
        let decision = rig.check(1);
        assert_eq!(sources(&decision), [expected], "{mode}");
        assert_eq!(decision.is_allowed(), mode != "deny");
    }
}
