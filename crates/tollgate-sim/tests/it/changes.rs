//! Reloads of windows: the count is kept, a raised limit takes effect immediately, and a lowered one leaves at least 0.

use proptest::prelude::*;
use tollgate::algorithm::fixed_window::{self, Align, FixedWindow};
use tollgate::algorithm::sliding_log::{self, SlidingLog};
use tollgate::algorithm::sliding_window::{self, Estimate, SlidingWindow};
use tollgate::{Rate, Ticks, Timestamp};

use crate::cases;
use crate::seeds::hold;

const SAVED: &str = "proptest-regressions/changes.txt";

/// A key that is charged under one quota, and then gets another one.
#[derive(Clone, Debug)]
struct Change {
    before: Rate,
    after: Rate,
    precisions: (u32, u32),
    hits: Vec<(u64, u64)>,
    start: Timestamp,
}

fn changes() -> impl Strategy<Value = Change> {
    let rate = (1u64..50, prop::sample::select(vec![1_000u64, 10_000, 60_000_000]))
        .prop_map(|(units, period)| Rate::per_ticks(units, Ticks::from_micros(period)));
    let precision = prop::sample::select(vec![1u32, 2, 10]);
    let hits = prop::collection::vec((0u64..20_000, 1u64..20), 1..20);
    (rate.clone(), rate, (precision.clone(), precision), hits, cases::start()).prop_map(
        |(before, after, precisions, hits, start)| Change { before, after, precisions, hits, start },
    )
}

/// Whether the remaining units are the new limit less the used units, and at least 0.
fn kept(limit: u64, used: u64, remaining: u64) -> bool {
    remaining == limit.saturating_sub(used)
}

#[test]
fn fixed_windows_keep_their_count() {
    hold(SAVED, (changes(), prop::bool::ANY), |(change, first_hit)| {
        let quotas = [change.before, change.after].map(|rate| {
            let align = if first_hit { Align::FirstHit } else { Align::Epoch };
            FixedWindow::new(rate, align).unwrap()
        });
        let [before, after] = &quotas;
        let (mut state, mut now) = (fixed_window::State::default(), change.start);
        for (gap, cost) in change.hits {
            now = now + Ticks::from_micros(gap);
            state = fixed_window::charge(before, state, now, cost).0;
        }
        let old = fixed_window::charge(before, state, now, 0).1;
        let state = fixed_window::inherit(after, before, state, now);
        let new = fixed_window::charge(after, state, now, 0).1;
        prop_assert!(kept(after.limit(), old.limit - old.remaining, new.remaining));
        Ok(())
    });
}

#[test]
fn sliding_windows_keep_their_count() {
    hold(SAVED, changes(), |change| {
        for estimate in [Estimate::Interpolate, Estimate::Strict] {
            let before = SlidingWindow::new(change.before, change.precisions.0, estimate).unwrap();
            let after = SlidingWindow::new(change.after, change.precisions.1, estimate).unwrap();
            let (mut state, mut now) = (sliding_window::State::default(), change.start);
            for &(gap, cost) in &change.hits {
                now = now + Ticks::from_micros(gap);
                state = sliding_window::charge(&before, state, now, cost).0;
            }
            let old = sliding_window::charge(&before, state.clone(), now, 0).1;
            let state = sliding_window::inherit(&after, &before, state, now);
            let new = sliding_window::charge(&after, state, now, 0).1;
            prop_assert!(kept(after.limit(), old.limit - old.remaining, new.remaining));
        }
        Ok(())
    });
}

/// A log keeps its instants. A shorter period counts fewer of them, and a longer one those that the old one still held.
#[test]
fn sliding_logs_keep_their_instants() {
    hold(SAVED, changes(), |change| {
        let before = SlidingLog::new(change.before).unwrap();
        let after = SlidingLog::new(change.after).unwrap();
        let (mut state, mut now) = (sliding_log::State::default(), change.start);
        for (gap, cost) in change.hits {
            now = now + Ticks::from_micros(gap);
            state = sliding_log::charge(&before, state, now, cost).0;
        }
        let shorter = before.period().min(after.period());
        let used: u64 = state.units().filter(|&(at, _)| at + shorter > now).map(|(_, units)| units).sum();
        let state = sliding_log::inherit(&after, &before, state, now);
        let new = sliding_log::charge(&after, state, now, 0).1;
        prop_assert!(kept(after.limit(), used, new.remaining));
        Ok(())
    });
}
