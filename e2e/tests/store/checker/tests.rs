//! The checker sees one unit too many, explains every denial of a correct store, and raises no false alarm.

use proptest::prelude::*;

use super::{Allowance, Bucket, Log};
use crate::record::{Mode, RecordedDecision};

const BUCKET: Bucket = Bucket { burst: 5, limit: 2, period: 1_000 };

fn seen(sent: u64, replied: u64, cost: u64, admitted: bool) -> RecordedDecision {
    RecordedDecision { key: 0, cost, sent, replied, admitted, mode: Mode::Exact, node: 0, late: false }
}

/// A correct store: decides each request at one instant, exactly.
struct CorrectStore {
    bucket: Bucket,
    /// Units times period.
    left: u64,
    at: u64,
}

impl CorrectStore {
    fn new(bucket: Bucket) -> Self {
        Self { bucket, left: bucket.burst * bucket.period, at: 0 }
    }

    fn take(&mut self, cost: u64, at: u64) -> bool {
        let full = self.bucket.burst * self.bucket.period;
        self.left = full.min(self.left + (at - self.at) * self.bucket.limit);
        self.at = at;
        let admits = self.left >= cost * self.bucket.period;
        self.left -= if admits { cost * self.bucket.period } else { 0 };
        admits
    }
}

/// Requests in the order of their decisions: when, how long before and after it they were sent and answered, their
/// cost.
fn questions() -> impl Strategy<Value = Vec<(u64, u64, u64, u64)>> {
    prop::collection::vec((0..400_u64, 0..600_u64, 0..600_u64, 1..=3_u64), 1..80)
}

fn history(questions: &[(u64, u64, u64, u64)]) -> Vec<RecordedDecision> {
    let (mut store, mut at) = (CorrectStore::new(BUCKET), 1_000);
    let decide = |&(pause, before, after, cost): &(u64, u64, u64, u64)| {
        at += pause;
        seen(at - before, at + after, cost, store.take(cost, at))
    };
    questions.iter().map(decide).collect()
}

proptest! {
    /// A correct store raises no alarm, whatever the latency.
    #[test]
    fn no_false_alarm(questions in questions()) {
        let history = history(&questions);
        if let Some(excess) = BUCKET.excess(&history, &[]) {
            prop_assert!(excess.units <= 0, "{excess:?}");
        }
        prop_assert_eq!(BUCKET.wrong_denials(&history, &[]), []);
    }

    /// The fast algorithm finds what trying all intervals finds.
    #[test]
    fn worst_interval_matches_brute_force(questions in questions(), extra in prop::collection::vec(any::<bool>(), 80), loss in 0..20_000_u64) {
        let mut history = history(&questions);
        for (seen, extra) in history.iter_mut().zip(extra) {
            seen.admitted |= extra;
        }
        let losses = [Allowance { from: loss, to: loss + 500, units: 2 }];
        let mut worst = None;
        for from in history.iter().filter(|seen| seen.admitted).map(|seen| seen.sent) {
            for to in history.iter().filter(|seen| seen.admitted && seen.replied >= from).map(|seen| seen.replied) {
                let inside = history.iter().filter(|seen| seen.admitted && seen.sent >= from && seen.replied <= to);
                let units: u64 = inside.map(|seen| seen.cost).sum();
                let lost = if from <= loss + 500 && loss <= to { 2 } else { 0 };
                let allowed = (BUCKET.burst + lost) * BUCKET.period + (to - from) * BUCKET.limit;
                let excess = i128::from(units * BUCKET.period) - i128::from(allowed);
                worst = worst.max(Some(-(-excess).div_euclid(i128::from(BUCKET.period))));
            }
        }
        let found = BUCKET.excess(&history, &losses).map(|excess| i128::from(excess.units));
        prop_assert_eq!(found, worst);
    }

    /// The same for a sliding window.
    #[test]
    fn worst_window_matches_brute_force(questions in questions()) {
        let log = Log { limit: 4, window: 900 };
        let history = history(&questions);
        let admitted = || history.iter().filter(|seen| seen.admitted);
        let worst = admitted().map(|first| {
            let inside = admitted().filter(|seen| seen.sent >= first.sent && seen.replied < first.sent + log.window);
            i64::try_from(inside.map(|seen| seen.cost).sum::<u64>()).unwrap() - 4
        });
        prop_assert_eq!(log.excess(&history, &[]).map(|excess| excess.units), worst.max());
    }
}

/// A busy store that once admits one unit too many is caught, with an excess of exactly one.
#[test]
fn one_excess_unit_is_detected() {
    let mut store = CorrectStore::new(BUCKET);
    let mut history: Vec<RecordedDecision> =
        (0..10_000).map(|at| seen(at, at, 1, store.take(1, at))).collect();
    // The burst and the refill; the quota is used up to the last unit.
    assert_eq!(history.iter().filter(|seen| seen.admitted).count(), 5 + 19);
    assert_eq!(BUCKET.excess(&history, &[]).unwrap().units, 0);
    let denied = history.iter_mut().rfind(|seen| !seen.admitted && seen.sent < 7_010).unwrap();
    denied.admitted = true;
    let found = BUCKET.excess(&history, &[]).unwrap();
    assert_eq!(found.units, 1, "{found:?}");
    // A recorded fault inside that interval explains it; one outside does not.
    assert_eq!(BUCKET.excess(&history, &[Allowance { from: 5_000, to: 5_001, units: 1 }]).unwrap().units, 0);
    assert_eq!(
        BUCKET.excess(&history, &[Allowance { from: 20_000, to: 20_001, units: 1 }]).unwrap().units,
        1
    );
}

/// The race of a naive limiter is detected: two nodes that read, then write, admit twice the quota.
#[test]
fn race_is_detected() {
    let history: Vec<RecordedDecision> = (0..10).map(|number| seen(number, number + 1, 1, true)).collect();
    assert_eq!(BUCKET.excess(&history, &[]).unwrap().units, 5);
    assert_eq!(Log { limit: 9, window: 1_000 }.excess(&history, &[]).unwrap().units, 1);
}

/// A denial with units left is detected, unless a charge with an unknown result explains it.
#[test]
fn wrong_denial_is_detected() {
    let mut history: Vec<RecordedDecision> = (0..4).map(|at| seen(at, at, 1, true)).collect();
    history.push(seen(10, 12, 1, false));
    assert_eq!(BUCKET.wrong_denials(&history, &[]), [history[4]]);
    let unknown = RecordedDecision { mode: Mode::Local, ..seen(5, 8, 1, false) };
    history.insert(4, unknown);
    assert_eq!(BUCKET.wrong_denials(&history, &[]), []);
    // Vanished units explain it as well, and the checker says how many.
    history.remove(4);
    assert_eq!(BUCKET.wrong_denials(&history, &[(11, 1)]), []);
    assert_eq!(BUCKET.wrong_denials(&history, &[(13, 5)]).len(), 1);
    assert_eq!((BUCKET.vanished(&history, &[11]), BUCKET.vanished(&history, &[13])), (Some(1), None));
}
