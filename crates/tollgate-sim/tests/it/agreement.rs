//! Every algorithm against its definition, step by step: the verdict and every number of the outcome.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate::algorithm::Charged;
use tollgate::{Outcome, Ticks, Timestamp};
use tollgate_sim::limiter::Limiter;

use crate::cases::{self, Charges, Step, Subject};
use crate::oracle::{Oracle, Wide};
use crate::seeds::hold;

type Case = (Subject, Timestamp, Vec<Step>);

/// Charges the algorithm and its oracle with a trace, and compares every outcome.
///
/// A late refund may return less than the definition does. A bucket does not remember when it was full, and a refund
/// that knows only an age returns older units, which expire earlier. From then on, until the key is fresh, the algorithm
/// may deny what the definition admits, but never admit what the definition denies.
fn agrees((subject, start, steps): Case) -> TestCaseResult {
    let mut limiter = Limiter::new(subject.quota.clone());
    let mut oracle = subject.oracle();
    let (mut now, mut latest, mut retry_at) = (start, start, start);
    let (mut charges, mut is_exact) = (Charges::default(), true);
    for step in steps {
        let (time, amount) = step.parts();
        now = subject.go(time, now, retry_at);
        let stepped_back = now < latest;
        latest = latest.max(now);
        let units = subject.units(amount);
        if let Step::Refund(_, _, back, knows) = step {
            let Some(refund) = charges.take_back(back, units, knows, now) else { continue };
            limiter.refund(now, refund.units, refund.charged, refund.admission);
            oracle.refund(refund.admission, refund.units.into());
            is_exact &= refund.units == 0 || subject.returns_exactly(&refund, now);
            // After an inexact refund, windows from the first hit begin at other instants; `bounds` covers that case.
            if !is_exact && subject.begins_with_a_hit() {
                return Ok(());
            }
            continue;
        }
        let before = limiter.clone();
        let outcome = if is_exact {
            let outcome = limiter.charge(now, units);
            let expected = oracle.charge(now, units);
            prop_assert_eq!(outcome, expected, "{:?} at {:?}, before {:?}", step, now, before);
            outcome
        } else {
            charge_within(&mut limiter, oracle.as_mut(), now, units)?
        };
        is_exact |= outcome.reset_after.is_zero() && oracle.is_fresh(now.unix_micros().into());
        charges.note(&subject, &outcome, units, now);
        if let Some(retry_after) = outcome.verdict.retry_after() {
            retry_at = now + retry_after;
            retry_is_exact(&limiter, retry_at, units)?;
        }
        if !stepped_back && (units == 0 || !outcome.is_allowed()) {
            prop_assert_eq!(&limiter, &before, "a denial or a charge of 0 changed the state");
        }
        if !outcome.reset_after.is_zero() {
            prop_assert_eq!(limiter.idle_at(), now + outcome.reset_after);
        }
    }
    Ok(())
}

/// Charges an algorithm that may be stricter than the definition: it neither admits nor promises more.
fn charge_within(
    limiter: &mut Limiter,
    oracle: &mut dyn Oracle,
    now: Timestamp,
    units: u64,
) -> Result<Outcome, TestCaseError> {
    let (at, cost) = (now.unix_micros().into(), Wide::from(units));
    oracle.clamp_future(at);
    let outcome = limiter.charge(now, units);
    if outcome.is_allowed() && units > 0 {
        prop_assert!(cost <= oracle.free(at), "{} at {:?} were admitted: {:?}", units, now, limiter);
        oracle.admit(at, cost);
    }
    let left = oracle.free(at);
    prop_assert!(Wide::from(outcome.remaining) <= left.max(0), "{} are left, not {:?}", left, outcome);
    Ok(outcome)
}

/// One tick early is denied, on the tick is admitted.
fn retry_is_exact(limiter: &Limiter, retry_at: Timestamp, units: u64) -> TestCaseResult {
    let admitted = |at| limiter.clone().charge(at, units).is_allowed();
    prop_assert!(!admitted(retry_at - Ticks::ONE) && admitted(retry_at));
    Ok(())
}

/// A charge that is refunded at the same instant leaves the state as it was.
fn refunds_undo((subject, start, steps): Case) -> TestCaseResult {
    let mut limiter = Limiter::new(subject.quota.clone());
    let (mut now, mut retry_at, mut charges) = (start, start, 0);
    for step in steps {
        let (time, amount) = step.parts();
        now = subject.go(time, now, retry_at);
        let units = subject.units(amount);
        let look = limiter.charge(now, 0);
        let mut undone = limiter.clone();
        let outcome = undone.charge(now, units);
        if outcome.is_allowed() && units > 0 {
            let charged = Charged::At(subject.quota.counted_at(&outcome, now));
            undone.refund(now, units, charged, charges);
            let again = undone.charge(now, 0);
            prop_assert_eq!(again, look, "{} charged and refunded at {:?}", units, now);
        }
        let outcome = limiter.charge(now, units);
        charges += usize::from(outcome.is_allowed() && units > 0);
        retry_at = outcome.verdict.retry_after().map_or(retry_at, |after| now + after);
    }
    Ok(())
}

fn check(saved: &'static str, subjects: impl Strategy<Value = Subject> + 'static) {
    let subjects = subjects.boxed();
    hold(saved, (subjects.clone(), cases::start(), cases::wild()), agrees);
    hold(saved, (subjects.clone(), cases::start(), cases::settling()), agrees);
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
