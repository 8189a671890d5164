//! The units of a caller in the worst interval are within the promised bound, measured without the oracle.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate::algorithm::Charged;
use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::rate::PERIOD_MAX;
use tollgate::{Quota, Rate, Ticks, Timestamp, Verdict};
use tollgate_sim::limiter::Limiter;

use crate::bound;
use crate::cases::{self, Charges, Move, Step, Subject};
use crate::seeds::hold;

const SAVED: &str = "proptest-regressions/bounds.txt";
const KEPT: &str = "proptest-regressions/kept.txt";

type Case = (Subject, Timestamp, Vec<Step>);

fn any_subject() -> impl Strategy<Value = Subject> {
    prop_oneof![
        cases::token_buckets(),
        cases::gcras(),
        cases::leaky_buckets(),
        cases::fixed_windows(),
        cases::sliding_windows(),
        cases::sliding_logs(),
        cases::permits(),
    ]
}

/// Charges a trace. Returns when units left: at their instant, or after the wait of their verdict.
fn departures(subject: &Subject, start: Timestamp, steps: &[Step]) -> Vec<(Timestamp, u64)> {
    let mut limiter = Limiter::new(subject.quota.clone());
    let (mut now, mut retry_at, mut latest) = (start, start, start);
    let mut left = Vec::new();
    for step in steps {
        let (time, amount) = step.parts();
        // Steps back add up, but never to a whole period.
        now = subject.go(time, now, retry_at).max(latest - (subject.period - Ticks::ONE));
        latest = latest.max(now);
        let units = subject.units(amount);
        match limiter.charge(now, units).verdict {
            Verdict::Allow if units == 0 => {}
            Verdict::Allow => left.push((now, units)),
            Verdict::Wait(wait) => left.push((now + wait, units)),
            Verdict::Deny { retry_after } => retry_at = now + retry_after,
            Verdict::Never | Verdict::Forbidden => {}
        }
    }
    left
}

/// Checks the promised bound of each algorithm over every interval.
fn within_bound(subject: &Subject, left: &[(Timestamp, u64)]) -> TestCaseResult {
    let limit = subject.quota.capacity();
    let worst = bound::worst_in_window(left, subject.period);
    match &subject.quota {
        Quota::TokenBucket(_) | Quota::Gcra(_) => within_rate(subject, left, limit, 0)?,
        Quota::LeakyBucket(bucket) => within_spacing(subject, left, limit - bucket.queue())?,
        Quota::FixedWindow(_) => prop_assert!(worst <= 2 * limit),
        Quota::SlidingWindow(window) if window.estimate() == Estimate::Interpolate => {
            prop_assert!(worst < 2 * limit);
        }
        Quota::SlidingWindow(_) | Quota::SlidingLog(_) => prop_assert!(worst <= limit),
        Quota::Concurrency(permits) => {
            prop_assert!(bound::worst_in_flight(left, permits.ttl()) <= limit);
        }
    }
    Ok(())
}

/// Departures are spaced. A request that costs more than the burst leaves with its last unit, so it counts as the burst.
/// Waits are whole ticks, so two departures may be closer than the rate allows by less than one tick.
fn within_spacing(subject: &Subject, left: &[(Timestamp, u64)], burst: u64) -> TestCaseResult {
    let left: Vec<_> = left.iter().map(|&(at, units)| (at, units.min(burst))).collect();
    within_rate(subject, &left, burst, 1)
}

fn within_rate(subject: &Subject, left: &[(Timestamp, u64)], burst: u64, ticks: u64) -> TestCaseResult {
    let Some(rate) = subject.quota.rate() else {
        return Ok(());
    };
    let excess = bound::worst_excess(left, rate.units(), rate.period());
    let burst = i128::from(burst) * i128::from(rate.period().as_micros());
    prop_assert!(excess <= burst + i128::from(ticks * rate.units()));
    Ok(())
}

/// No interval of any trace admits more than its algorithm promises.
#[test]
fn no_interval_exceeds_its_bound() {
    let traces = (any_subject(), cases::start(), cases::steady());
    hold(SAVED, traces, |(subject, start, steps): Case| {
        let left = departures(&subject, start, &steps);
        within_bound(&subject, &left)
    });
}

/// Runs a trace of charges and late refunds. Returns the units that were admitted and not refunded, with their instants.
/// A refunded unit was never used, even if the limiter could no longer return it.
fn kept(subject: &Subject, start: Timestamp, steps: &[Step]) -> Vec<(Timestamp, u64)> {
    let mut limiter = Limiter::new(subject.quota.clone());
    let (mut now, mut retry_at) = (start, start);
    let mut charges = Charges::default();
    for step in steps {
        let (time, amount) = step.parts();
        now = subject.go(time, now, retry_at);
        let units = subject.units(amount);
        if let Step::Refund(_, _, back, knows) = *step {
            if let Some(refund) = charges.take_back(back, units, knows, now) {
                limiter.refund(now, refund.units, refund.charged, refund.admission);
            }
            continue;
        }
        let outcome = limiter.charge(now, units);
        charges.note(subject, &outcome, units, now);
        retry_at = outcome.verdict.retry_after().map_or(retry_at, |after| now + after);
    }
    charges.kept()
}

/// A late refund returns no more than the definition allows: in every interval, the units admitted and not refunded stay
/// within the bound. The leaky bucket is left out because it returns only the last slots of its queue, and permits
/// because they are refunded by id.
#[test]
fn no_interval_keeps_more_than_its_bound() {
    let subjects = prop_oneof![
        cases::token_buckets(),
        cases::gcras(),
        cases::fixed_windows(),
        cases::sliding_windows(),
        cases::sliding_logs(),
    ];
    hold(KEPT, (subjects, cases::start(), cases::settling()), |(subject, start, steps): Case| {
        let kept = kept(&subject, start, &steps);
        within_bound(&subject, &kept)?;
        if let Quota::FixedWindow(window) = &subject.quota
            && *window.align() == Align::Epoch
        {
            let period = window.period().as_micros();
            for &(at, _) in &kept {
                let index = at.unix_micros() / period;
                let inside = kept.iter().filter(|(at, _)| at.unix_micros() / period == index);
                prop_assert!(inside.map(|(_, units)| units).sum::<u64>() <= window.limit());
            }
        }
        Ok(())
    });
}

/// Windows keep their bound when the clock steps back by less than a window, measured in the latest time seen.
#[test]
fn a_jittering_clock_admits_no_more() {
    let windows = prop_oneof![cases::fixed_windows(), cases::sliding_windows(), cases::sliding_logs(),];
    hold(SAVED, (windows, cases::start(), cases::jittering()), |(subject, start, steps): Case| {
        let mut reached = Timestamp::default();
        let left: Vec<_> = departures(&subject, start, &steps)
            .into_iter()
            .map(|(at, units)| {
                reached = reached.max(at);
                (reached, units)
            })
            .collect();
        within_bound(&subject, &left)
    });
}

/// The longest time for which a key can be denied after any step of the clock.
fn longest(subject: &Subject) -> Ticks {
    match &subject.quota {
        Quota::TokenBucket(bucket) => Ticks::from_micros(bucket.reservoir().fill_ticks()),
        Quota::Gcra(gcra) => Ticks::from_micros(gcra.reservoir().fill_ticks()),
        Quota::LeakyBucket(bucket) => Ticks::from_micros(bucket.shape().reservoir().fill_ticks()),
        Quota::FixedWindow(window) => window.period() + window.period(),
        Quota::SlidingWindow(window) => {
            let subs = 2 * u64::from(window.precision()) + 1;
            Ticks::from_micros(window.sub_window().as_micros() * subs)
        }
        Quota::SlidingLog(log) => log.period() + log.period(),
        Quota::Concurrency(permits) => permits.ttl() + permits.ttl(),
    }
}

/// After a step back of any size, a wrong denial lasts at most the fill time of a bucket, two windows, or two lifetimes of
/// a permit.
#[test]
fn clock_steps_back_deny_for_a_bounded_time() {
    let traces = (any_subject(), cases::start(), cases::wild(), 1u64..20_000);
    hold(SAVED, traces, |(subject, start, steps, days)| {
        let mut limiter = Limiter::new(subject.quota.clone());
        let mut now = start;
        for step in steps {
            let (time, amount) = step.parts();
            now = subject.go(time, now, now);
            let _ = limiter.charge(now, subject.units(amount));
        }
        let past = subject.go(Move::BackDays(days), now, now);
        let outcome = limiter.charge(past, subject.quota.capacity());
        prop_assert!(outcome.reset_after <= longest(&subject));
        if let Some(retry_after) = outcome.verdict.retry_after() {
            prop_assert!(retry_after <= longest(&subject));
        }
        Ok(())
    });
}

/// The story: no state could lie ahead of the last representable instant, so every charge at it was forgotten. Now time
/// stops before that instant: the capacity is admitted once, and only a refund makes units available again.
#[test]
fn at_the_end_of_time_units_return_only_by_refund() {
    let rate = Rate::per_hour(3);
    let quotas = [
        Quota::token_bucket(rate),
        Quota::gcra(rate),
        Quota::token_bucket(Rate::per_second(9_999_991).burst(3)),
        Quota::token_bucket(Rate::per_ticks(1, PERIOD_MAX).burst(2)),
        Quota::fixed_window(Rate::per_ticks(3, PERIOD_MAX), Align::Epoch),
        Quota::fixed_window(Rate::per_ticks(3, PERIOD_MAX), Align::FirstHit),
        Quota::fixed_window(rate, Align::Calendar(Calendar::new(CalendarUnit::Year, "Europe/Rome").unwrap())),
        Quota::sliding_window(rate, 1, Estimate::Interpolate),
        Quota::sliding_window(Rate::per_ticks(3, PERIOD_MAX), 10, Estimate::Strict),
        Quota::sliding_log(rate),
        Quota::leaky_bucket(rate, 2),
        Quota::concurrency(3, std::time::Duration::from_secs(86_400)),
    ];
    for quota in quotas.map(Result::unwrap) {
        let capacity = quota.capacity();
        let mut limiter = Limiter::new(quota.clone());
        let admitted = |limiter: &mut Limiter| {
            let ends = [Timestamp::LAST, Timestamp::MAX].into_iter().cycle().take(20);
            ends.filter(|&now| limiter.charge(now, 1).is_allowed()).count() as u64
        };
        assert_eq!(admitted(&mut limiter), capacity, "{quota:?}");
        assert!(limiter.idle_at() > Timestamp::LAST, "{quota:?}");
        limiter.refund(
            Timestamp::MAX,
            1,
            Charged::Within(Ticks::ZERO),
            usize::try_from(capacity - 1).unwrap(),
        );
        assert_eq!(admitted(&mut limiter), 1, "{quota:?}");
    }
}
