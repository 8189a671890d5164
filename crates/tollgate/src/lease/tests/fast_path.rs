//! Decisions from leases without the store: the spent units are reported, reset cells are not used, and
//! concurrent threads spend each unit once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pollster::block_on;

use super::{START, per_second};
use crate::engine::Engine;
use crate::key::Secret;
use crate::lease::{LeasedStore, MemoryLender};
use crate::memory::MemoryStore;
use crate::outcome::Source;
use crate::policy::{Consistency, Limit, Policy};
use crate::quota::Quota;
use crate::rate::Rate;
use crate::request::CheckRequest;
use crate::store::{Answers, Charge, Hold, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

/// Leases over a store that may be unreachable. Counts the units that answers report as spent.
struct CountingStore {
    leased: LeasedStore<MemoryLender>,
    reported: AtomicU64,
    is_away: AtomicBool,
}

impl CountingStore {
    fn new(leased: LeasedStore<MemoryLender>) -> Self {
        Self { leased, reported: AtomicU64::new(0), is_away: AtomicBool::new(false) }
    }

    fn count(&self, charges: &[Charge<'_>], answers: &Answers) {
        if answers.iter().all(|answer| answer.outcome.is_allowed()) {
            let news = charges.iter().zip(answers).map(|(charge, answer)| answer.news(charge.cost()));
            self.reported.fetch_add(news.sum(), Ordering::Relaxed);
        }
    }
}

impl Store for CountingStore {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(StoreFailure::Unreachable);
        }
        let answers = self.leased.charge(charges, now).await?;
        self.count(charges, &answers);
        Ok(answers)
    }

    fn try_charge(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<Result<(), StoreFailure>> {
        if self.is_away.load(Ordering::Relaxed) {
            return None;
        }
        let answered = self.leased.try_charge(charges, now, answers)?;
        self.count(charges, answers);
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

fn engine<S: Store>(quota: Quota, store: impl FnOnce(LeasedStore<MemoryLender>) -> S) -> Engine<S> {
    let limit = Limit::new("limit", quota).by(["key"]).consistency(Consistency::Leased);
    let policy = Policy::new(vec![limit.lease(50_000, Ticks::from_millis(250))]).unwrap();
    let lending = MemoryLender::new(MemoryStore::new(16 << 20, START), 1);
    Engine::builder()
        .policy(policy)
        .store(store(LeasedStore::new(lending, 1_000)))
        .secret(Secret::repeatable(7))
        .build()
}

fn passes<S: Store>(engine: &Engine<S>, now: Timestamp) -> (bool, Source) {
    let request = CheckRequest::new().with("key", "k").unwrap();
    let decision = block_on(engine.check(&request, now));
    let status = decision.limits().next().unwrap();
    (decision.is_allowed(), status.source)
}

/// The reported usage lags by less than a quarter of a lease and is never ahead. So the fallback share of an
/// unreachable store has what is left of the limit, and at most that much more.
#[test]
fn the_fallback_share_lags_by_less_than_a_quarter_lease() {
    let engine = engine(Quota::token_bucket(Rate::per_hour(100).burst(1_000)).unwrap(), CountingStore::new);
    // A lease is at most a twentieth of the limit.
    let behind_max = 1_000 / 20 / 4;
    let (mut now, mut lease_hits, mut behind_most) = (START, 0, 0);
    for spent in 1..=400u64 {
        let (is_allowed, source) = passes(&engine, now);
        assert!(is_allowed);
        lease_hits += u64::from(source == Source::Lease);
        let reported = engine.store().reported.load(Ordering::Relaxed);
        assert!((spent.saturating_sub(behind_max)..=spent).contains(&reported), "{reported} of {spent}");
        behind_most = behind_most.max(spent - reported);
        now = now + Ticks::from_millis(1);
        block_on(engine.store().leased.maintain(now));
    }
    // The bound is exercised: most requests were charged to leases, and the reports lagged.
    assert!(lease_hits > 300 && behind_most > 1, "{lease_hits}, {behind_most}");
    engine.store().is_away.store(true, Ordering::Relaxed);
    let by_share = (0..1_000).filter(|_| passes(&engine, now).0).count() as u64;
    assert!((600..=600 + behind_max).contains(&by_share), "{by_share}");
}

/// A key that is evicted and comes back is reported as well: its next cell reports what the last one did not.
#[test]
fn unreported_units_are_reported_by_the_next_cell() {
    let engine = engine(Quota::token_bucket(Rate::per_hour(100).burst(1_000)).unwrap(), CountingStore::new);
    let (mut now, mut spent) = (START, 0);
    for _ in 0..20 {
        for _ in 0..23 {
            assert!(passes(&engine, now).0);
            spent += 1;
            now = now + Ticks::from_millis(1);
            block_on(engine.store().leased.maintain(now));
        }
        // Until the key is evicted.
        for _ in 0..40 {
            now = now + Ticks::from_millis(50);
            block_on(engine.store().leased.maintain(now));
        }
        assert_eq!(engine.store().leased.report().keys, 0);
        let reported = engine.store().reported.load(Ordering::Relaxed);
        assert!((spent - 1_000 / 20 / 4..=spent).contains(&reported), "{reported} of {spent}");
    }
}

/// After a reset the store is asked, even by a thread with the cell in its cache.
#[test]
fn a_reset_cell_is_not_spent_from_thread_caches() {
    let engine = engine(per_second(1_000, 1_000), |leased| leased);
    let mut now = START;
    let mut last = Source::Exact;
    for _ in 0..100 {
        last = passes(&engine, now).1;
        now = now + Ticks::from_millis(1);
    }
    assert_eq!(last, Source::Lease);
    let request = CheckRequest::new().with("key", "k").unwrap();
    let forgotten = block_on(engine.operator().reset(&request, &[], now)).unwrap();
    assert_eq!(forgotten.counters.len() + forgotten.untouched.len(), 1);
    assert_eq!(passes(&engine, now).1, Source::Exact);
    // The new lease is used from the thread cache again.
    for _ in 0..100 {
        passes(&engine, now);
        now = now + Ticks::from_millis(1);
    }
    assert!(engine.try_check(&request, now).is_ok_and(|decision| decision.is_allowed()));
}

/// Threads that spend one counter concurrently spend each unit once, and the counts add up.
#[test]
fn threads_do_not_spend_a_unit_twice() {
    const UNITS: u64 = 10_000;
    let engine = engine(Quota::token_bucket(Rate::per_hour(1).burst(UNITS)).unwrap(), |leased| leased);
    let admitted = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for step in 0..UNITS {
                    // The same instants in all threads, so that the counter refills nothing in between.
                    let now = START + Ticks::from_micros(step);
                    admitted.fetch_add(u64::from(passes(&engine, now).0), Ordering::Relaxed);
                    if step % 64 == 0 {
                        block_on(engine.store().maintain(now));
                    }
                }
            });
        }
    });
    let report = engine.store().report();
    assert!(report.lease_hits > UNITS / 2, "{report:?}");
    assert_eq!(admitted.into_inner() + report.held, UNITS, "{report:?}");
}

/// The story: of a leased limit `explain` looked at the counter alone. It said denied while this node held units and let requests pass, and
/// passes while this node repeated a denial that another node had reset.
#[test]
fn explain_agrees_with_the_answer_of_this_node() {
    let quota = || Quota::token_bucket(Rate::per_hour(1).burst(1_000)).unwrap();
    let limit = || {
        let limit = Limit::new("limit", quota()).by(["key"]).consistency(Consistency::Leased);
        Policy::new(vec![limit.lease(50_000, Ticks::from_millis(250))]).unwrap()
    };
    let lending = MemoryLender::new(MemoryStore::new(16 << 20, START), 1);
    let node = || {
        Engine::builder()
            .policy(limit())
            .store(LeasedStore::new(lending.clone(), 1_000))
            .secret(Secret::repeatable(7))
            .build()
    };
    let (here, elsewhere) = (node(), node());
    let request = CheckRequest::new().with("key", "k").unwrap();
    let (mut now, mut of_leases, mut of_denials) = (START, 0, 0);
    for step in 0..2_000 {
        now = now + Ticks::from_millis(1);
        if step == 1_500 {
            assert_eq!(block_on(elsewhere.operator().reset(&request, &[], now)).unwrap().counters, ["limit"]);
        }
        let explained = block_on(here.operator().explain(&request, now));
        let (is_allowed, source) = passes(&here, now);
        assert_eq!(explained.is_allowed(), is_allowed, "{step}: {source:?} {explained:?}");
        let shown = explained.limits[0].state.as_ref().unwrap();
        match source {
            Source::Lease => of_leases += u64::from(shown.source == Source::Lease),
            Source::DenyCache => of_denials += u64::from(shown.source == Source::DenyCache),
            _ => {}
        }
        block_on(here.store().maintain(now));
    }
    assert!(of_leases > 100 && of_denials > 100, "{of_leases} {of_denials}");
}
