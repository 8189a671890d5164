//! Decisions that are paid of leases, without the store: who keeps count beside it hears of them, what is gone is gone, and threads that spend of
//! one cell do not get more than it has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pollster::block_on;

use super::{START, per_second};
use crate::charge::{Answers, Charge};
use crate::decision::Source;
use crate::engine::Engine;
use crate::key::Secret;
use crate::lease::{Leased, Lending};
use crate::memory::MemoryStore;
use crate::policy::{Consistency, Limit, Policy};
use crate::quota::{Quota, Rate};
use crate::request::CheckRequest;
use crate::store::{Hold, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

/// Leases on a store that may be away, with what the answers tell of units that were spent.
struct Hearing {
    leased: Leased<Lending>,
    told: AtomicU64,
    is_away: AtomicBool,
}

impl Hearing {
    fn new(leased: Leased<Lending>) -> Self {
        Self { leased, told: AtomicU64::new(0), is_away: AtomicBool::new(false) }
    }

    fn hears(&self, charges: &[Charge<'_>], answers: &Answers) {
        if answers.iter().all(|answer| answer.outcome.is_allowed()) {
            let news = charges.iter().zip(answers).map(|(charge, answer)| answer.news(charge.cost()));
            self.told.fetch_add(news.sum(), Ordering::Relaxed);
        }
    }
}

impl Store for Hearing {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(StoreFailure::Unreachable);
        }
        let answers = self.leased.charge(charges, now).await?;
        self.hears(charges, &answers);
        Ok(answers)
    }

    fn may_answer_at_once(&self) -> bool {
        true
    }

    fn charge_at_once(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<Result<(), StoreFailure>> {
        if self.is_away.load(Ordering::Relaxed) {
            return None;
        }
        let answered = self.leased.charge_at_once(charges, now, answers)?;
        self.hears(charges, answers);
        Some(answered)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.leased.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.leased.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.leased.hold(hold);
    }
}

fn engine<S: Store>(quota: Quota, store: impl FnOnce(Leased<Lending>) -> S) -> Engine<S> {
    let limit = Limit::new("limit", quota).by(["key"]).consistency(Consistency::Leased);
    let policy = Policy::new(vec![limit.lease(50_000, Ticks::from_millis(250))]).unwrap();
    let lending = Lending::new(MemoryStore::new(16 << 20, START), 1);
    Engine::with_store(policy, store(Leased::new(lending, 1_000)), Secret::repeatable(7))
}

fn passes<S: Store>(engine: &Engine<S>, now: Timestamp) -> (bool, Source) {
    let request = CheckRequest::new().with("key", "k").unwrap();
    let decision = block_on(engine.check(&request, now));
    let status = decision.limits().next().unwrap();
    (decision.is_allowed(), status.source)
}

/// Whoever keeps count beside the store is behind by less than a quarter of a lease, and never ahead: so the share that stands in for a
/// store that goes away has what is left of the limit, and at most so much more.
#[test]
fn the_share_is_warm_to_a_quarter_of_a_lease() {
    let engine = engine(Quota::token_bucket(Rate::per_hour(100).burst(1_000)).unwrap(), Hearing::new);
    // A lease is at most a twentieth of the limit.
    let behind_max = 1_000 / 20 / 4;
    let (mut now, mut of_leases, mut behind_most) = (START, 0, 0);
    for spent in 1..=400u64 {
        let (is_allowed, source) = passes(&engine, now);
        assert!(is_allowed);
        of_leases += u64::from(source == Source::Lease);
        let told = engine.store().told.load(Ordering::Relaxed);
        assert!((spent.saturating_sub(behind_max)..=spent).contains(&told), "{told} of {spent}");
        behind_most = behind_most.max(spent - told);
        now = now + Ticks::from_millis(1);
        block_on(engine.store().leased.tend(now));
    }
    // It is a bound that matters: most were paid of leases, and it was behind.
    assert!(of_leases > 300 && behind_most > 1, "{of_leases}, {behind_most}");
    engine.store().is_away.store(true, Ordering::Relaxed);
    let by_share = (0..1_000).filter(|_| passes(&engine, now).0).count() as u64;
    assert!((600..=600 + behind_max).contains(&by_share), "{by_share}");
}

/// A key that comes and goes is heard of as well: what its cell had not told when it ended is told by the next.
#[test]
fn what_a_cell_did_not_tell_is_told_by_the_next() {
    let engine = engine(Quota::token_bucket(Rate::per_hour(100).burst(1_000)).unwrap(), Hearing::new);
    let (mut now, mut spent) = (START, 0);
    for _ in 0..20 {
        for _ in 0..23 {
            assert!(passes(&engine, now).0);
            spent += 1;
            now = now + Ticks::from_millis(1);
            block_on(engine.store().leased.tend(now));
        }
        // Until nothing is known of it any more.
        for _ in 0..40 {
            now = now + Ticks::from_millis(50);
            block_on(engine.store().leased.tend(now));
        }
        assert_eq!(engine.store().leased.report().keys, 0);
        let told = engine.store().told.load(Ordering::Relaxed);
        assert!((spent - 1_000 / 20 / 4..=spent).contains(&told), "{told} of {spent}");
    }
}

/// A counter that was reset is asked, also by a thread that has what was held of it at hand.
#[test]
fn what_is_gone_is_not_spent() {
    let engine = engine(per_second(1_000, 1_000), |leased| leased);
    let mut now = START;
    let mut last = Source::Exact;
    for _ in 0..100 {
        last = passes(&engine, now).1;
        now = now + Ticks::from_millis(1);
    }
    assert_eq!(last, Source::Lease);
    let request = CheckRequest::new().with("key", "k").unwrap();
    let forgotten = block_on(engine.reset(&request, &[], now)).unwrap();
    assert_eq!(forgotten.counters.len() + forgotten.untouched.len(), 1);
    assert_eq!(passes(&engine, now).1, Source::Exact);
    // What is held of it then is at hand again.
    for _ in 0..100 {
        passes(&engine, now);
        now = now + Ticks::from_millis(1);
    }
    let views = std::slice::from_ref(&request);
    assert!(engine.check_at_once(views, now).is_some_and(|decision| decision.is_allowed()));
}

/// Threads that spend of one counter at the same time get what it has together, to the unit, and what they were told adds up.
#[test]
fn threads_do_not_spend_a_unit_twice() {
    const UNITS: u64 = 10_000;
    let engine = engine(Quota::token_bucket(Rate::per_hour(1).burst(UNITS)).unwrap(), |leased| leased);
    let admitted = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for step in 0..UNITS {
                    // The same for all, so that the counter gives nothing back to anybody meanwhile.
                    let now = START + Ticks::from_micros(step);
                    admitted.fetch_add(u64::from(passes(&engine, now).0), Ordering::Relaxed);
                    if step % 64 == 0 {
                        block_on(engine.store().tend(now));
                    }
                }
            });
        }
    });
    let report = engine.store().report();
    assert!(report.paid > UNITS / 2, "{report:?}");
    assert_eq!(admitted.into_inner() + report.held, UNITS, "{report:?}");
}
