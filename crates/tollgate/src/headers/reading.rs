//! The numbers of one limit as callers see them. One rule for each number, so that every dialect and every protocol
//! agrees. Durations are rounded up and units down: a caller that follows the advice always waits long enough.

use std::borrow::Cow;
use std::cmp::Reverse;

use crate::decision::{Decision, LimitStatus};
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::Cost;
use crate::quota::Quota;
use crate::rate::Rate;
use crate::store::Enforcement;
use crate::time::{TICKS_PER_SECOND, Ticks};

use super::policy::{HeaderPolicy, Pacing, Unit};
use super::structured::shown_name;

/// A limit is near exhaustion when at most one part in this many is left.
const NEAR_EXHAUSTION_PARTS: u64 = 5;

/// The numbers that one enforced limit shows.
#[derive(Clone, Debug)]
pub(super) struct LimitReading<'a> {
    /// Its name, safe to send.
    pub(super) name: Cow<'a, str>,
    /// The unit that it counts.
    pub(super) unit: Unit,
    /// The most that can be admitted at once.
    pub(super) quota: u64,
    /// Seconds in which the quota is admitted in the long run; a concurrency limit has none.
    pub(super) window: Option<u64>,
    /// Units left after this request.
    pub(super) remaining: u64,
    /// Seconds until more is available, or over which to spread what is left. `None` when the limit is untouched.
    pub(super) effective: Option<u64>,
    /// The rule behind the numbers.
    pub(super) rule: &'a Quota,
    /// Where the numbers come from.
    pub(super) status: LimitStatus<'a>,
}

/// The readings of the limits that took part in a decision, in the policy's order. Limits in shadow are dropped here,
/// before anything can print them, and so are those that count nothing for the request: they have no numbers.
pub(super) fn readings<'a>(
    decision: &'a Decision,
    policy: &'a HeaderPolicy,
) -> impl Iterator<Item = LimitReading<'a>> {
    decision
        .limits()
        .filter(|status| status.enforcement == Enforcement::Enforced)
        .filter_map(|status| Some(LimitReading::of(status, status.quota?, policy)))
}

impl<'a> LimitReading<'a> {
    fn of(status: LimitStatus<'a>, rule: &'a Quota, policy: &HeaderPolicy) -> Self {
        // During an outage a node counts its share, and all numbers are those of the fallback counter.
        let quota = match status.source {
            Source::Local => status.outcome.limit.min(rule.capacity()),
            _ => rule.capacity(),
        };
        // The store's number is capped at the quota.
        let remaining = status.outcome.remaining.min(quota);
        Self {
            name: shown_name(status.limit.name()),
            unit: policy.unit_of(status.limit.name()),
            quota,
            window: window(rule),
            remaining,
            effective: effective(&status.outcome, rule, remaining, policy.pacing),
            rule,
            status,
        }
    }

    /// The rate and the burst of a bucket, as the policy has them, where the burst is not what the rate admits in its
    /// period. During an outage a node counts its share of both.
    pub(super) fn burst(&self) -> Option<(Rate, u64)> {
        let (rate, burst) = match self.rule {
            Quota::TokenBucket(bucket) => (bucket.rate(), bucket.burst()),
            Quota::Gcra(bucket) => (bucket.rate(), bucket.burst()),
            _ => return None,
        };
        let is_whole = rate.period().as_micros() % TICKS_PER_SECOND == 0;
        let is_own = self.status.source != Source::Local;
        (is_own && is_whole && rate.units() != burst).then_some((rate, burst))
    }

    /// Units used.
    pub(super) const fn used(&self) -> u64 {
        self.quota - self.remaining
    }

    /// Time until the counter is as if never used.
    pub(super) const fn reset_after(&self) -> Ticks {
        self.status.outcome.reset_after
    }

    /// Whether it counts requests in flight, not requests per time.
    pub(super) const fn is_concurrency(&self) -> bool {
        matches!(self.rule, Quota::Concurrency(_))
    }

    /// Whether it belongs to the caller. A limit without `by` belongs to the platform, and callers see nothing of it.
    pub(super) fn is_owned(&self) -> bool {
        !self.status.limit.by().is_empty()
    }

    /// Whether it refused the request.
    pub(super) const fn is_violated(&self) -> bool {
        !self.status.outcome.is_allowed()
    }

    /// Whether its numbers are a guess, because they did not come from the counter itself.
    pub(super) fn is_approximate(&self) -> bool {
        self.status.source != Source::Exact
    }

    /// Whether its numbers mean anything: a limit that admitted or denied because its store did not answer has counted
    /// nothing.
    pub(super) const fn is_known(&self) -> bool {
        self.status.source.is_counted()
    }

    /// Whether at most a fifth is left.
    pub(super) const fn is_near_exhaustion(&self) -> bool {
        self.remaining <= self.quota / NEAR_EXHAUSTION_PARTS
    }

    /// How long a denied caller must wait.
    pub(super) fn wait(&self) -> Option<Ticks> {
        self.status.retry_advice()
    }

    /// The units that the request consumed, when that is known without evaluating the policy again.
    pub(super) const fn cost(&self, asked: Option<u64>) -> Option<u64> {
        match self.status.limit.cost {
            Cost::Asked => asked,
            Cost::Units(units) => Some(units),
            Cost::Attribute(_) | Cost::Computed(_) => None,
        }
    }

    /// The order in which limits are worth showing: refusals first, then waits, each with the longest first; then the
    /// caller's own limits before the platform's; then by the time to exhaustion. That is the time for which the
    /// remaining units last at the limit's own rate. Raw units would not compare: a thousand left of half a million a
    /// second are gone long before fifty left of a hundred.
    pub(super) fn urgency(&self) -> (Reverse<(u8, Ticks)>, bool, u128) {
        let held_up = match self.status.outcome.verdict {
            Verdict::Never | Verdict::Forbidden => (3, Ticks::ZERO),
            Verdict::Deny { .. } => (2, self.wait().unwrap_or_default()),
            Verdict::Wait(wait) => (1, wait),
            Verdict::Allow => (0, Ticks::ZERO),
        };
        (Reverse(held_up), !self.is_owned(), refill_micros(self.rule, self.remaining))
    }

    /// The limit's own period: that of its rate, or the life of a permit.
    pub(super) fn period(&self) -> Ticks {
        pace(self.rule).1
    }
}

/// Units and the period in which they come back. A concurrency limit promises no more than its permits each time they
/// expire.
#[inline]
fn pace(quota: &Quota) -> (u64, Ticks) {
    match quota {
        Quota::Concurrency(permits) => (permits.limit(), permits.ttl()),
        other => other.rate().map_or((1, Ticks::ZERO), |rate| (rate.units(), rate.period())),
    }
}

/// Microseconds in which a quota refills `units`, rounded up.
#[inline]
fn refill_micros(quota: &Quota, units: u64) -> u128 {
    let (of, period) = pace(quota);
    match units.checked_mul(period.as_micros()) {
        // Wide division is slow, and seldom needed.
        Some(product) => u128::from(product.div_ceil(of.max(1))),
        None => (u128::from(units) * u128::from(period.as_micros())).div_ceil(u128::from(of.max(1))),
    }
}

/// Seconds in which a quota refills `units`, rounded up.
#[inline]
fn refill_seconds(quota: &Quota, units: u64) -> u64 {
    let micros = refill_micros(quota, units);
    match u64::try_from(micros) {
        Ok(micros) => micros.div_ceil(TICKS_PER_SECOND),
        Err(_) => u64::try_from(micros.div_ceil(u128::from(TICKS_PER_SECOND))).unwrap_or(u64::MAX),
    }
}

/// The window of a policy: the time in which the whole capacity comes back. For a window that is its period. For a
/// bucket it is not: 100 a second with a burst of 200 is `q=200;w=2`, because `q=200;w=1` would promise twice the rate
/// and `q=100;w=1` would contradict the 150 that may remain. Whole seconds are rounded up, so capacity over window
/// never exceeds the rate; a capacity that comes back within a second is understated, which slows a client down but
/// never has it denied.
fn window(quota: &Quota) -> Option<u64> {
    match quota {
        Quota::Concurrency(_) => None,
        other => Some(refill_seconds(other, other.capacity()).max(1)),
    }
}

/// The effective window in seconds. A denial says when the same request passes, and is never stretched: `Retry-After`
/// must not be earlier, and a stretched one would keep a caller away for no reason.
#[inline]
pub(super) fn effective(outcome: &Outcome, quota: &Quota, remaining: u64, pacing: Pacing) -> Option<u64> {
    match (quota, outcome.verdict) {
        (Quota::Concurrency(_), _) => None,
        (_, Verdict::Deny { retry_after }) => Some(retry_after.ceil_seconds().max(1)),
        _ if outcome.next_unit_after.is_zero() => None,
        // Nothing comes back before the window ends, and the remaining units may be spread up to its end.
        (Quota::FixedWindow(_), _) => Some(outcome.reset_after.ceil_seconds()),
        (quota, _) => {
            let next_unit = outcome.next_unit_after.ceil_seconds();
            Some(match pacing {
                Pacing::Sustained => next_unit.max(refill_seconds(quota, remaining)),
                Pacing::NextUnit => next_unit,
            })
        }
    }
}
