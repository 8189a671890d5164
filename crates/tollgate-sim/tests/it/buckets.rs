//! Token bucket and GCRA are one algorithm with two representations of its state.

use proptest::prelude::*;
use tollgate::algorithm::gcra::{self, Gcra};
use tollgate::algorithm::token_bucket::{self, TokenBucket};
use tollgate::{Quota, Rate, Timestamp};
use tollgate_sim::limiter::Limiter;

use crate::cases::{self, Charges, Step, Subject};
use crate::seeds::hold;

const SAVED: &str = "proptest-regressions/buckets.txt";

/// Token buckets and GCRAs with the same numbers, where the GCRA needs no coarser pace.
fn twins() -> impl Strategy<Value = (Subject, Gcra, TokenBucket)> {
    cases::gcras().prop_filter_map("a coarser pace", |subject| {
        let Quota::Gcra(gcra) = subject.quota else {
            return None;
        };
        let bucket = TokenBucket::new(gcra.rate()).ok()?;
        (bucket.reservoir() == gcra.reservoir()).then_some((subject, gcra, bucket))
    })
}

/// All outcomes of any trace are equal.
#[test]
fn token_bucket_and_gcra_have_equal_outcomes() {
    hold(SAVED, (twins(), cases::start(), cases::settling()), |((subject, gcra, bucket), start, steps)| {
        let mut gcra = Limiter::new(Quota::Gcra(gcra));
        let mut bucket = Limiter::new(Quota::TokenBucket(bucket));
        let (mut now, mut retry_at) = (start, start);
        let mut charges = Charges::default();
        for step in steps {
            let (time, amount) = step.parts();
            now = subject.go(time, now, retry_at);
            let units = subject.units(amount);
            if let Step::Refund(_, _, back, knows) = step {
                if let Some(refund) = charges.take_back(back, units, knows, now) {
                    gcra.refund(now, refund.units, refund.charged, refund.admission);
                    bucket.refund(now, refund.units, refund.charged, refund.admission);
                }
                continue;
            }
            let outcome = gcra.charge(now, units);
            charges.note(&subject, &outcome, units, now);
            prop_assert_eq!(outcome, bucket.charge(now, units), "{:?} at {:?}", step, now);
            retry_at = outcome.verdict.retry_after().map_or(retry_at, |after| now + after);
        }
        Ok(())
    });
}

/// A bucket that is charged, and then gets another rate by a reload.
#[derive(Clone, Debug)]
struct Change {
    before: Rate,
    after: Rate,
    taken: u64,
    charged_at: Timestamp,
    changed_at: Timestamp,
}

fn changes() -> impl Strategy<Value = Change> {
    let numbers = (1u64..50, 1u64..50, 1u64..100_000_000);
    let rate = numbers.prop_map(|(units, burst, period)| {
        Rate::per_ticks(units, tollgate::Ticks::from_micros(period)).burst(burst)
    });
    (rate.clone(), rate, 0u64..50, cases::start(), 0u64..200_000_000).prop_map(
        |(before, after, taken, charged_at, later)| Change {
            before,
            after,
            taken,
            charged_at,
            changed_at: charged_at + tollgate::Ticks::from_micros(later),
        },
    )
}

/// A reload gives no units away: the available units stay, up to the new burst, and only a full bucket stays full.
#[test]
fn reloads_keep_the_available_units() {
    hold(SAVED, changes(), |change| {
        let quotas = (TokenBucket::new(change.before), TokenBucket::new(change.after));
        let (Ok(before), Ok(after)) = quotas else {
            return Ok(());
        };
        let (charged_at, at) = (change.charged_at, change.changed_at);
        let (state, _) =
            token_bucket::charge(&before, token_bucket::State::default(), charged_at, change.taken);
        let old = token_bucket::charge(&before, state, at, 0).1;
        let inherited = token_bucket::inherit(&after, &before, state, at);
        let new = token_bucket::charge(&after, inherited, at, 0).1;
        let expected =
            if old.reset_after.is_zero() { after.burst() } else { old.remaining.min(after.burst()) };
        prop_assert_eq!(new.remaining, expected);

        let twins = (Gcra::new(change.before), Gcra::new(change.after));
        let (Ok(before), Ok(after)) = twins else {
            return Ok(());
        };
        let (state, _) = gcra::charge(before.reservoir(), gcra::State::default(), charged_at, change.taken);
        let inherited = gcra::inherit(after.reservoir(), before.reservoir(), state, at);
        prop_assert_eq!(gcra::charge(after.reservoir(), inherited, at, 0).1, new);
        Ok(())
    });
}
