//! The judge is tried: it sees one unit too many, it explains every denial of an honest store, and it accuses nobody who kept the quota.

use proptest::prelude::*;

use super::{Allowance, Bucket, Log};
use crate::record::{Mode, Seen};

const BUCKET: Bucket = Bucket { burst: 5, limit: 2, period: 1_000 };

fn seen(sent: u64, replied: u64, cost: u64, admitted: bool) -> Seen {
    Seen { key: 0, cost, sent, replied, admitted, mode: Mode::Exact, node: 0, late: false }
}

/// An honest store: decides each question at one instant, exactly.
struct Honest {
    bucket: Bucket,
    /// Units times period.
    left: u64,
    at: u64,
}

impl Honest {
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

/// Questions in the order in which they are decided: when, how long before and after it they were sent and answered, what they cost.
fn questions() -> impl Strategy<Value = Vec<(u64, u64, u64, u64)>> {
    prop::collection::vec((0..400_u64, 0..600_u64, 0..600_u64, 1..=3_u64), 1..80)
}

fn history(questions: &[(u64, u64, u64, u64)]) -> Vec<Seen> {
    let (mut store, mut at) = (Honest::new(BUCKET), 1_000);
    let decide = |&(pause, before, after, cost): &(u64, u64, u64, u64)| {
        at += pause;
        seen(at - before, at + after, cost, store.take(cost, at))
    };
    questions.iter().map(decide).collect()
}

proptest! {
    /// Whatever an honest store did, and however long the way to it was, it is not accused.
    #[test]
    fn no_false_alarm(questions in questions()) {
        let history = history(&questions);
        if let Some(excess) = BUCKET.excess(&history, &[]) {
            prop_assert!(excess.units <= 0, "{excess:?}");
        }
        prop_assert_eq!(BUCKET.wrong_denials(&history, &[]), []);
    }

    /// The quick way finds what trying all intervals finds.
    #[test]
    fn the_worst_interval_is_the_worst(questions in questions(), extra in prop::collection::vec(any::<bool>(), 80), loss in 0..20_000_u64) {
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

    /// The same for a window that slides.
    #[test]
    fn the_worst_window_is_the_worst(questions in questions()) {
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

/// A store that is asked all the time and once lets one too many pass is caught, by exactly one.
#[test]
fn one_unit_too_many_is_seen() {
    let mut store = Honest::new(BUCKET);
    let mut history: Vec<Seen> = (0..10_000).map(|at| seen(at, at, 1, store.take(1, at))).collect();
    // The burst and what refilled; the quota is used up to the last unit.
    assert_eq!(history.iter().filter(|seen| seen.admitted).count(), 5 + 19);
    assert_eq!(BUCKET.excess(&history, &[]).unwrap().units, 0);
    let denied = history.iter_mut().rfind(|seen| !seen.admitted && seen.sent < 7_010).unwrap();
    denied.admitted = true;
    let found = BUCKET.excess(&history, &[]).unwrap();
    assert_eq!(found.units, 1, "{found:?}");
    // A fault that was recorded inside that interval explains it, and one outside does not.
    assert_eq!(BUCKET.excess(&history, &[Allowance { from: 5_000, to: 5_001, units: 1 }]).unwrap().units, 0);
    assert_eq!(
        BUCKET.excess(&history, &[Allowance { from: 20_000, to: 20_001, units: 1 }]).unwrap().units,
        1
    );
}

/// Two nodes that read, then write, admit twice what one does: the race of naive limiters is seen too.
#[test]
fn a_race_is_seen() {
    let history: Vec<Seen> = (0..10).map(|number| seen(number, number + 1, 1, true)).collect();
    assert_eq!(BUCKET.excess(&history, &[]).unwrap().units, 5);
    assert_eq!(Log { limit: 9, window: 1_000 }.excess(&history, &[]).unwrap().units, 1);
}

/// A denial with units left is seen; one that a charge of unknown fate explains is not.
#[test]
fn a_wrong_denial_is_seen() {
    let mut history: Vec<Seen> = (0..4).map(|at| seen(at, at, 1, true)).collect();
    history.push(seen(10, 12, 1, false));
    assert_eq!(BUCKET.wrong_denials(&history, &[]), [history[4]]);
    let unknown = Seen { mode: Mode::Local, ..seen(5, 8, 1, false) };
    history.insert(4, unknown);
    assert_eq!(BUCKET.wrong_denials(&history, &[]), []);
    // Units that vanished explain it as well, and it is told how many.
    history.remove(4);
    assert_eq!(BUCKET.wrong_denials(&history, &[(11, 1)]), []);
    assert_eq!(BUCKET.wrong_denials(&history, &[(13, 5)]).len(), 1);
    assert_eq!((BUCKET.vanished(&history, &[11]), BUCKET.vanished(&history, &[13])), (Some(1), None));
}
