//! Tallies follow the path of limits: they are counted locally while the store is away, and reported to it afterwards.

use tollgate::algorithm::fixed_window::Align;
use tollgate::engine::{Counted, Tally};
use tollgate::{Source, Ticks};

use super::*;

const DAY: Ticks = Ticks::from_secs(86_400);

impl Rig {
    fn windows(&self, align: Align) -> Tally {
        self.engine.ledger().tally("t", DAY, align).expect("a day is a length")
    }

    fn add(&self, tally: &Tally, units: u64, now: Timestamp) -> (u64, Source) {
        let Counted { total, source, .. } =
            now_or_never(self.engine.ledger().add(tally, &[b"k"], units, now));
        (total, source)
    }

    fn subtract(&self, tally: &Tally, units: u64) {
        now_or_never(self.engine.ledger().subtract(tally, &[b"k"], units, Ticks::ZERO, NOW));
    }

    fn stood_in(&self) -> (u64, usize, u64, u64) {
        let numbers = self.engine.maintenance().fallback().expect("the store has failed");
        (numbers.local, numbers.deferred_held, numbers.deferred_settled, numbers.deferred_dropped)
    }
}

/// Counts made without the store are reported to it once, before the key is next charged; and the counts that this node had made in the store
/// are known to this node when the store goes away.
#[test]
fn tallies_are_reported_when_the_store_is_back() {
    for align in [Align::Epoch, Align::FirstHit] {
        let rig = Rig::new(Vec::new());
        let tally = rig.windows(align);
        assert_eq!(rig.add(&tally, 3, NOW), (3, Source::Exact));
        rig.cut(true);
        assert_eq!(rig.add(&tally, 2, NOW), (5, Source::Local));
        assert_eq!(rig.add(&tally, 1, NOW), (6, Source::Local));
        assert!(rig.faults() > 0);
        assert_eq!(rig.stood_in(), (2, 1, 0, 0));
        rig.cut(false);
        assert_eq!(rig.add(&tally, 1, NOW), (7, Source::Exact));
        assert_eq!(rig.stood_in(), (2, 0, 1, 0));
        assert_eq!(rig.add(&tally, 0, NOW), (7, Source::Exact));
    }
}

/// Keys without further requests are reported by the background report.
#[test]
fn counts_are_settled() {
    let rig = Rig::new(Vec::new());
    let tally = rig.windows(Align::Epoch);
    rig.cut(true);
    rig.add(&tally, 4, NOW);
    assert!(now_or_never(rig.engine.maintenance().reconcile(NOW)).is_err());
    rig.cut(false);
    let replayed = now_or_never(rig.engine.maintenance().reconcile(NOW)).unwrap();
    assert_eq!((replayed.settled, replayed.left), (1, 0));
    assert_eq!(rig.add(&tally, 0, NOW), (4, Source::Exact));
}

/// A refund without the store reduces the deferred charge, or is made in the store when it is back.
#[test]
fn refunds_of_tallies_are_reported_too() {
    let rig = Rig::new(Vec::new());
    let tally = rig.windows(Align::Epoch);
    rig.add(&tally, 10, NOW);
    rig.cut(true);
    rig.add(&tally, 5, NOW);
    rig.subtract(&tally, 5);
    assert_eq!(rig.add(&tally, 0, NOW), (10, Source::Local));
    rig.subtract(&tally, 4);
    assert_eq!(rig.add(&tally, 0, NOW), (6, Source::Local));
    rig.cut(false);
    assert_eq!(rig.add(&tally, 0, NOW), (6, Source::Exact));
}

/// A window that has ended owes nothing, whatever became of policies meanwhile.
#[test]
fn deferred_tallies_end_with_their_window() {
    let rig = Rig::new(Vec::new());
    let tally = rig.windows(Align::Epoch);
    rig.cut(true);
    rig.add(&tally, 4, NOW);
    rig.engine.swap(policy(vec![bucket("limit", 2)]), NOW).unwrap();
    rig.cut(false);
    let later = NOW + DAY;
    assert_eq!(rig.add(&tally, 1, later), (1, Source::Exact));
    assert_eq!(rig.add(&tally, 0, later), (1, Source::Exact));
}
