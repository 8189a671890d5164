//! Every algorithm against its definition, step by step: the verdict, the advice, and every number told.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate::{Ticks, Timestamp};
use tollgate_sim::limiter::Limiter;

use crate::cases::{self, Charges, Step, Subject};
use crate::seeds::hold;

type Case = (Subject, Timestamp, Vec<Step>);

/// Walks a trace with the algorithm and its oracle, and compares every answer.
fn agrees((subject, start, steps): Case) -> TestCaseResult {
    let mut limiter = Limiter::new(subject.quota.clone());
    let mut oracle = subject.oracle();
    let (mut now, mut latest, mut retry_at) = (start, start, start);
    let mut charges = Charges::default();
    for step in steps {
        let (Step::Charge(time, amount) | Step::Refund(time, amount, _)) = step;
        now = subject.go(time, now, retry_at);
        let stepped_back = now < latest;
        latest = latest.max(now);
        let units = subject.units(amount);
        if let Step::Refund(_, _, which) = step {
            let charged_at = charges.of(which);
            limiter.refund(now, units, charged_at);
            let wide = charged_at.map(|at| at.unix_micros().into());
            oracle.refund(now.unix_micros().into(), units.into(), wide);
            continue;
        }
        let before = limiter.clone();
        let outcome = limiter.charge(now, units);
        prop_assert_eq!(outcome, oracle.charge(now, units), "{:?} at {:?}, before {:?}", step, now, before);
        charges.note(&subject, &outcome, units, now);
        if let Some(retry_after) = outcome.verdict.retry_after() {
            retry_at = now + retry_after;
            retry_is_exact(&limiter, retry_at, units)?;
        }
        if !stepped_back && (units == 0 || !outcome.is_allowed()) {
            prop_assert_eq!(&limiter, &before, "a denial or a look changed the state");
        }
        if !outcome.reset_after.is_zero() {
            prop_assert_eq!(limiter.idle_at(), now + outcome.reset_after);
        }
    }
    Ok(())
}

/// One tick early is denied, on the tick is admitted.
fn retry_is_exact(limiter: &Limiter, retry_at: Timestamp, units: u64) -> TestCaseResult {
    let admitted = |at| limiter.clone().charge(at, units).is_allowed();
    prop_assert!(!admitted(retry_at - Ticks::ONE) && admitted(retry_at));
    Ok(())
}

/// A charge undone at once leaves what was there before.
fn refunds_undo((subject, start, steps): Case) -> TestCaseResult {
    let mut limiter = Limiter::new(subject.quota.clone());
    let (mut now, mut retry_at) = (start, start);
    for step in steps {
        let (Step::Charge(time, amount) | Step::Refund(time, amount, _)) = step;
        now = subject.go(time, now, retry_at);
        let units = subject.units(amount);
        let look = limiter.charge(now, 0);
        let mut undone = limiter.clone();
        let outcome = undone.charge(now, units);
        if outcome.is_allowed() && units > 0 {
            undone.refund(now, units, Some(subject.quota.counted_at(&outcome, now)));
            let again = undone.charge(now, 0);
            prop_assert_eq!(again, look, "{} charged and refunded at {:?}", units, now);
        }
        let outcome = limiter.charge(now, units);
        retry_at = outcome.verdict.retry_after().map_or(retry_at, |after| now + after);
    }
    Ok(())
}

fn check(saved: &'static str, subjects: impl Strategy<Value = Subject> + 'static) {
    let subjects = subjects.boxed();
    hold(saved, (subjects.clone(), cases::start(), cases::wild()), agrees);
    hold(saved, (subjects, cases::start(), cases::steady()), refunds_undo);
}

#[test]
fn token_bucket() {
    check("proptest-regressions/token_bucket.txt", cases::token_buckets());
}

#[test]
fn gcra() {
    check("proptest-regressions/gcra.txt", cases::gcras());
}

#[test]
fn leaky_bucket() {
    check("proptest-regressions/leaky_bucket.txt", cases::leaky_buckets());
}

#[test]
fn fixed_window() {
    check("proptest-regressions/fixed_window.txt", cases::fixed_windows());
}

#[test]
fn calendar() {
    check("proptest-regressions/calendar.txt", cases::calendars());
}

#[test]
fn sliding_window() {
    check("proptest-regressions/sliding_window.txt", cases::sliding_windows());
}

#[test]
fn sliding_log() {
    check("proptest-regressions/sliding_log.txt", cases::sliding_logs());
}

#[test]
fn concurrency() {
    check("proptest-regressions/concurrency.txt", cases::permits());
}
