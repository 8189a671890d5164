//! Sliding windows against their definition.

use super::*;

/// A whole minute since the epoch.
const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_040);

fn per_minute(limit: u64, precision: u32, estimate: Estimate) -> SlidingWindow {
    SlidingWindow::new(Rate::per_minute(limit), precision, estimate).unwrap()
}

fn quotas(limit: u64) -> Vec<SlidingWindow> {
    let shapes = [1, 2, 7, 10, 60].map(|precision| {
        [Estimate::Interpolate, Estimate::Strict].map(|estimate| per_minute(limit, precision, estimate))
    });
    shapes.into_iter().flatten().collect()
}

fn after(seconds: u64) -> Timestamp {
    T0 + Ticks::from_secs(seconds)
}

fn charged(quota: &SlidingWindow, hits: &[(u64, u64)]) -> State {
    hits.iter().fold(State::default(), |state, &(seconds, cost)| {
        let (next, outcome) = charge(quota, state, after(seconds), cost);
        assert!(outcome.is_allowed());
        next
    })
}

fn remaining(quota: &SlidingWindow, state: &State, now: Timestamp) -> u64 {
    charge(quota, state.clone(), now, 0).1.remaining
}

/// Retry advice is exact for every cost: one tick early is denied, on the tick is admitted. So are the other two
/// times.
#[test]
fn every_returned_time_is_exact_to_the_tick() {
    for quota in quotas(10) {
        let state = charged(&quota, &[(3, 2), (17, 3), (34, 4), (59, 1)]);
        for seconds in [59, 60, 71, 95] {
            let now = after(seconds);
            for cost in 1..=10 {
                let (state, outcome) = charge(&quota, state.clone(), now, cost);
                if let Some(retry_after) = outcome.verdict.retry_after() {
                    let retry_at = now + retry_after;
                    assert!(!charge(&quota, state.clone(), retry_at - Ticks::ONE, cost).1.is_allowed());
                    assert!(charge(&quota, state, retry_at, cost).1.is_allowed());
                }
            }
            let look = charge(&quota, state.clone(), now, 0).1;
            let more_at = now + look.next_unit_after;
            assert_eq!(remaining(&quota, &state, more_at - Ticks::ONE), look.remaining);
            assert!(remaining(&quota, &state, more_at) > look.remaining);
            let reset_at = now + look.reset_after;
            assert!(remaining(&quota, &state, reset_at - Ticks::ONE) < 10);
            assert_eq!(remaining(&quota, &state, reset_at), 10);
            assert_eq!(idle_at(&quota, &state), reset_at);
        }
    }
}

/// A precision of 1 is the usual pair of counters: the previous minute by the share that is left of it, rounded up.
#[test]
fn one_sub_window_is_the_classic_pair() {
    let quota = per_minute(100, 1, Estimate::Interpolate);
    let state = charged(&quota, &[(30, 42)]);
    assert_eq!(remaining(&quota, &state, after(60)), 58);
    assert_eq!(remaining(&quota, &state, after(75)), 100 - 32); // 42 × 45 s / 60 s is 31.5.
    assert_eq!(remaining(&quota, &state, after(120) - Ticks::ONE), 99);
    assert_eq!(remaining(&quota, &state, after(120)), 100);
}

/// Strict counts the oldest sub-window in full: the burst that straddles a boundary stops at the limit.
#[test]
fn strict_never_admits_more_in_any_window() {
    let quota = per_minute(10, 6, Estimate::Strict);
    let state = charged(&quota, &[(9, 10)]);
    assert!(!charge(&quota, state.clone(), after(69), 1).1.is_allowed());
    assert!(charge(&quota, state, after(70), 10).1.is_allowed());
}

/// Neither a denial nor a look changes anything; a cost above the limit never passes.
#[test]
fn denials_and_looks_change_nothing() {
    for quota in quotas(10) {
        let state = charged(&quota, &[(3, 6), (50, 4)]);
        for (cost, now) in [(1, after(50)), (7, after(60)), (0, after(100)), (11, after(300))] {
            let (next, outcome) = charge(&quota, state.clone(), now, cost);
            assert_eq!(next, state, "{:?}", outcome.verdict);
        }
        assert_eq!(charge(&quota, state, after(300), 11).1.verdict, Verdict::Never);
    }
}

/// A refund undoes its charge, and refunding all charges leaves a key as if never seen.
#[test]
fn refunds_undo_their_charge() {
    for quota in quotas(10) {
        let before = charged(&quota, &[(3, 6), (50, 2)]);
        let (after_charge, _) = charge(&quota, before.clone(), after(50), 2);
        let refunded = |now, units, charged_at| {
            refund(&quota, after_charge.clone(), after(now), units, Charged::At(after(charged_at)))
        };
        assert_eq!(refunded(50, 2, 50), before);
        assert_eq!(refunded(50, 10, 50), State::default());
        assert_eq!(refunded(500, 1, 50), State::default());
    }
}

/// A late refund returns the units of its own sub-window, and never later ones.
#[test]
fn a_late_refund_gives_back_its_own_sub_window() {
    let quota = per_minute(10, 10, Estimate::Strict);
    let state = charged(&quota, &[(3, 5), (15, 1), (50, 4)]);
    let own = refund(&quota, state.clone(), after(51), 5, Charged::At(after(3)));
    assert_eq!(own.counts(), [4, 0, 0, 0, 0, 0, 1, 0, 0]);
    let long_ago = Charged::At(after(2) - Ticks::from_secs(60));
    let gone = refund(&quota, state.clone(), after(51), 9, long_ago);
    assert_eq!(gone, state, "nothing is left of that long ago");
    let too_old = Charged::Within(Ticks::from_secs(72));
    assert_eq!(refund(&quota, state.clone(), after(51), 6, too_old), state, "it may no longer count");
    let unknown = refund(&quota, state, after(51), 6, Charged::Within(Ticks::from_secs(48)));
    assert_eq!(remaining(&quota, &unknown, after(51)), 6);
    assert_eq!(remaining(&quota, &unknown, after(113)), 6, "the oldest were given back");
}

/// A clock that jitters at a boundary ages no counter; one that steps back far denies for two windows at most.
#[test]
fn steps_back_admit_nothing_more() {
    for quota in quotas(10) {
        let mut state = charged(&quota, &[(59, 5), (60, 5)]);
        for _ in 0..100 {
            for now in [after(59), after(60), after(31)] {
                let (next, outcome) = charge(&quota, state, now, 1);
                assert!(!outcome.is_allowed());
                state = next;
            }
        }
        let long_ago = T0 - Ticks::from_secs(86_400 * 365);
        let (state, denied) = charge(&quota, state, long_ago, 1);
        let retry_after = denied.verdict.retry_after().unwrap();
        assert!(retry_after <= Ticks::from_secs(180));
        assert!(!charge(&quota, state.clone(), long_ago + retry_after - Ticks::ONE, 1).1.is_allowed());
        assert!(charge(&quota, state, long_ago + retry_after, 1).1.is_allowed());
    }
}

/// A live change keeps the counts: raising applies at once, lowering leaves nothing, different sub-windows carry
/// the units that count.
#[test]
fn changed_quotas_keep_the_count() {
    let quota = |limit| per_minute(limit, 10, Estimate::Strict);
    let state = charged(&quota(10), &[(3, 4), (50, 4)]);
    let raised = inherit(&quota(20), &quota(10), state.clone(), after(50));
    assert_eq!(remaining(&quota(20), &raised, after(50)), 12);
    let lowered = inherit(&quota(5), &quota(20), raised, after(50));
    assert_eq!(remaining(&quota(5), &lowered, after(50)), 0);
    assert_eq!(remaining(&quota(5), &lowered, after(66)), 1);
    let back = inherit(&quota(10), &quota(5), lowered, after(50));
    assert_eq!(back, state);
    let finer = per_minute(10, 60, Estimate::Interpolate);
    let carried = inherit(&finer, &quota(10), state.clone(), after(50));
    assert_eq!(carried, State::new(after(50).unix_micros() / 1_000_000, &[8]));
    assert_eq!(inherit(&finer, &quota(10), state, after(500)), State::default());
}

/// The story: a window of ten an hour that was reloaded as one in six minutes and back forgot nine of its units
/// each time, because the initial count of the different sub-windows was cut down to their limit.
#[test]
fn a_change_there_and_back_forgets_nothing() {
    let hourly = SlidingWindow::new(Rate::per_hour(10), 10, Estimate::Strict).unwrap();
    let full = charged(&hourly, &[(0, 10)]);
    let others = [
        SlidingWindow::new(Rate::per_ticks(1, Ticks::from_secs(360)), 10, Estimate::Strict).unwrap(),
        SlidingWindow::new(Rate::per_hour(2), 8, Estimate::Interpolate).unwrap(),
        SlidingWindow::new(Rate::per_ticks(2, Ticks::from_secs(7_200)), 10, Estimate::Strict).unwrap(),
    ];
    for other in others {
        let there = inherit(&other, &hourly, full.clone(), after(1));
        assert_eq!(remaining(&other, &there, after(1)), 0);
        let back = inherit(&hourly, &other, there, after(2));
        assert_eq!(remaining(&hourly, &back, after(2)), 0, "{other:?}");
    }
}

/// Numbers that could not be counted exactly are rejected, and the error names numbers that are accepted.
#[test]
fn inexact_numbers_are_refused_with_a_cure() {
    let million_a_year = Rate::per_ticks(1_000_000, Ticks::from_secs(365 * 86_400));
    let error = SlidingWindow::new(million_a_year, 1, Estimate::Strict).unwrap_err();
    assert!(error.to_string().contains("up to 285"), "{error}");
    let error = SlidingWindow::new(Rate::per_second(10), 60, Estimate::Strict).unwrap_err();
    assert!(error.to_string().contains("such as 50"), "{error}");
    assert!(SlidingWindow::new(Rate::per_second(10), 50, Estimate::Strict).is_ok());
    for precision in [0, 61] {
        let error = SlidingWindow::new(Rate::per_second(10), precision, Estimate::Strict).unwrap_err();
        assert!(error.to_string().contains("1 to 60"), "{error}");
    }
}
