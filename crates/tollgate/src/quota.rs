//! A limit's algorithm and numbers. A [`Quota`] that exists is exact: its arithmetic cannot overflow, drift, or need
//! more than 53 bits. [`crate::rate`] and the algorithms check its numbers; the arithmetic is in [`crate::algorithm`].

use std::str::FromStr;
use std::time::Duration;

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::gcra::Gcra;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::reservoir::Reservoir;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::{Estimate, SlidingWindow};
use crate::algorithm::token_bucket::TokenBucket;
use crate::outcome::Outcome;
use crate::rate::{QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

/// An algorithm with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Credits that refill steadily.
    TokenBucket(TokenBucket),
    /// The same decisions as a token bucket, from one timestamp.
    Gcra(Gcra),
    /// A counter that starts anew with each window.
    FixedWindow(FixedWindow),
    /// Counters of sub-windows that slide.
    SlidingWindow(SlidingWindow),
    /// Every timestamp of the window.
    SlidingLog(SlidingLog),
    /// A queue that drains steadily.
    LeakyBucket(LeakyBucket),
    /// Permits in flight.
    Concurrency(Concurrency),
}

/// Reads a rate as a policy file has it; the quota is a token bucket.
///
/// ```
/// use tollgate::{Quota, Rate};
/// assert_eq!("100/s burst 200".parse::<Quota>()?, Quota::token_bucket(Rate::per_second(100).burst(200))?);
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        text.parse::<Rate>()?.try_into()
    }
}

/// As its `FromStr`.
impl TryFrom<&str> for Quota {
    type Error = QuotaError;

    fn try_from(text: &str) -> Result<Self, QuotaError> {
        text.parse()
    }
}

/// A token bucket.
impl TryFrom<Rate> for Quota {
    type Error = QuotaError;

    fn try_from(rate: Rate) -> Result<Self, QuotaError> {
        Self::token_bucket(rate)
    }
}

impl Quota {
    /// A token bucket.
    ///
    /// # Errors
    /// When the numbers are out of range; see [`QuotaError`].
    pub fn token_bucket(rate: Rate) -> Result<Self, QuotaError> {
        TokenBucket::new(rate).map(Quota::TokenBucket)
    }

    /// A GCRA: the token bucket's decisions in half the memory.
    ///
    /// # Errors
    /// When the numbers are out of range, or do not fit one word exactly; see [`QuotaError`].
    pub fn gcra(rate: Rate) -> Result<Self, QuotaError> {
        Gcra::new(rate).map(Quota::Gcra)
    }

    /// A fixed window of the rate's period, aligned to the Unix epoch, from a key's first hit, or to a calendar.
    ///
    /// # Errors
    /// When the numbers are out of range; see [`QuotaError`].
    pub fn fixed_window(rate: Rate, align: Align) -> Result<Self, QuotaError> {
        FixedWindow::new(rate, align).map(Quota::FixedWindow)
    }

    /// A sliding window of `precision` sub-windows.
    ///
    /// # Errors
    /// When the numbers are out of range; see [`QuotaError`].
    pub fn sliding_window(rate: Rate, precision: u32, estimate: Estimate) -> Result<Self, QuotaError> {
        SlidingWindow::new(rate, precision, estimate).map(Quota::SlidingWindow)
    }

    /// A sliding log: exact, and as large as its limit.
    ///
    /// # Errors
    /// When the numbers are out of range; see [`QuotaError`].
    pub fn sliding_log(rate: Rate) -> Result<Self, QuotaError> {
        SlidingLog::new(rate).map(Quota::SlidingLog)
    }

    /// A leaky bucket: a queue for `queue` units that drains at `rate`.
    ///
    /// # Errors
    /// When the numbers are out of range; see [`QuotaError`].
    pub fn leaky_bucket(rate: Rate, queue: u64) -> Result<Self, QuotaError> {
        LeakyBucket::new(rate, queue).map(Quota::LeakyBucket)
    }

    /// This many requests in flight; a permit that is not released returns after `expires_after`.
    ///
    /// # Errors
    /// When the numbers are out of range; see [`QuotaError`].
    pub fn concurrency(permits: u64, expires_after: Duration) -> Result<Self, QuotaError> {
        Concurrency::new(permits, Ticks::ceil_from(expires_after)).map(Quota::Concurrency)
    }

    /// The name that `algorithm:` has in a policy file.
    #[must_use]
    pub const fn algorithm(&self) -> &'static str {
        match self {
            Quota::TokenBucket(_) => "token-bucket",
            Quota::Gcra(_) => "gcra",
            Quota::FixedWindow(_) => "fixed-window",
            Quota::SlidingWindow(_) => "sliding-window",
            Quota::SlidingLog(_) => "sliding-log",
            Quota::LeakyBucket(_) => "leaky-bucket",
            Quota::Concurrency(_) => "concurrency",
        }
    }

    /// The most that can be admitted at once; a larger cost can never pass.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self {
            Quota::TokenBucket(bucket) => bucket.burst(),
            Quota::Gcra(bucket) => bucket.burst(),
            Quota::FixedWindow(window) => window.limit(),
            Quota::SlidingWindow(window) => window.limit(),
            Quota::SlidingLog(log) => log.limit(),
            Quota::LeakyBucket(bucket) => bucket.capacity(),
            Quota::Concurrency(permits) => permits.limit(),
        }
    }

    /// How long a counter remembers: after this much time without a charge it is as if never used.
    #[must_use]
    pub fn memory(&self) -> Ticks {
        match self {
            Quota::TokenBucket(bucket) => Ticks::from_micros(bucket.reservoir().fill_ticks()),
            Quota::Gcra(bucket) => Ticks::from_micros(bucket.reservoir().fill_ticks()),
            Quota::LeakyBucket(bucket) => Ticks::from_micros(bucket.shape().reservoir().fill_ticks()),
            // A calendar's longest month or year is within twice its usual length, like two windows.
            Quota::FixedWindow(window) => window.period() + window.period(),
            Quota::SlidingWindow(window) => window.period() + window.period(),
            Quota::SlidingLog(log) => log.period(),
            Quota::Concurrency(permits) => permits.ttl(),
        }
    }

    /// Whether a counter that is carried over from `previous` is as if never used no later than it would have been
    /// there. Otherwise counters must be held when a policy with this quota takes over.
    #[must_use]
    pub(crate) fn forgets_with(&self, previous: &Quota) -> bool {
        match (self, previous) {
            _ if self == previous => true,
            (Quota::FixedWindow(window), Quota::FixedWindow(old)) => window.is_counted_like(old),
            (Quota::SlidingWindow(window), Quota::SlidingWindow(old)) => window.is_counted_like(old),
            (Quota::SlidingLog(log), Quota::SlidingLog(old)) => log.period() <= old.period(),
            (Quota::Concurrency(_), Quota::Concurrency(_)) => true,
            _ => match (self.reservoir(), previous.reservoir()) {
                (Some(reservoir), Some(old)) => reservoir.forgets_with(old),
                _ => false,
            },
        }
    }

    /// Its reservoir, if its units come back at a steady pace.
    pub(crate) const fn reservoir(&self) -> Option<&Reservoir> {
        match self {
            Quota::Gcra(quota) => Some(quota.reservoir()),
            Quota::TokenBucket(quota) => Some(quota.reservoir()),
            Quota::LeakyBucket(quota) => Some(quota.shape().reservoir()),
            _ => None,
        }
    }

    /// The instant by which a counter counts a charge that it admitted at `now` with this outcome. If the clock was
    /// behind the counter's newest unit, time stood still for the counter, and the numbers of the outcome show where.
    #[must_use]
    pub fn counted_at(&self, outcome: &Outcome, now: Timestamp) -> Timestamp {
        let reset_at = now + outcome.reset_after;
        match self {
            Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_) | Quota::Concurrency(_) => now,
            // Any instant of the window will do, and its last one is always inside.
            Quota::FixedWindow(_) => reset_at - Ticks::ONE,
            Quota::SlidingWindow(window) => {
                let counted_for = window.sub_window().as_micros() * (u64::from(window.precision()) + 1);
                reset_at - Ticks::from_micros(counted_for)
            }
            Quota::SlidingLog(log) => reset_at - log.period(),
        }
    }

    /// How many of `units`, charged at one instant, still count at a later one. The others have come back by
    /// themselves, and refunding them again would give units away. A unit that has come back in part still counts.
    ///
    /// A fixed window from the first hit is assumed to have begun with this charge, which is the latest possible: only
    /// its counter knows when it began, and its [`reset_after`](crate::Outcome::reset_after) shows when it ends.
    #[must_use]
    pub(crate) fn still_counted(&self, units: u64, charged_at: Timestamp, now: Timestamp) -> u64 {
        let elapsed = now.since(charged_at);
        let reservoir = match self {
            Quota::TokenBucket(bucket) => bucket.reservoir(),
            Quota::Gcra(bucket) => bucket.reservoir(),
            Quota::LeakyBucket(bucket) => bucket.shape().reservoir(),
            Quota::FixedWindow(window) if window.window_end(charged_at) <= now => return 0,
            Quota::SlidingWindow(window) if elapsed >= window.period() => return 0,
            Quota::SlidingLog(log) if elapsed >= log.period() => return 0,
            Quota::FixedWindow(_)
            | Quota::SlidingWindow(_)
            | Quota::SlidingLog(_)
            | Quota::Concurrency(_) => {
                return units;
            }
        };
        let regained = reservoir.pace().unit_credits().div_floor(reservoir.gained(elapsed.as_micros()));
        units.saturating_sub(regained)
    }

    /// Whether units come back one by one at a steady pace.
    #[must_use]
    pub const fn is_reservoir(&self) -> bool {
        matches!(self, Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_))
    }

    /// The rate that the user wrote; a concurrency limit has none.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        match self {
            Quota::TokenBucket(bucket) => Some(bucket.rate()),
            Quota::Gcra(bucket) => Some(bucket.rate()),
            Quota::FixedWindow(window) => Some(Rate::per_ticks(window.limit(), window.period())),
            Quota::SlidingWindow(window) => Some(Rate::per_ticks(window.limit(), window.period())),
            Quota::SlidingLog(log) => Some(Rate::per_ticks(log.limit(), log.period())),
            Quota::LeakyBucket(bucket) => Some(bucket.rate()),
            Quota::Concurrency(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{EXACT_MAX, PERIOD_MAX};

    /// Rates that are round, awkward, slow and fast.
    fn rates() -> impl Iterator<Item = Rate> {
        let units = [1, 7, 60, 999_983, 9_999_991];
        let periods = [1, 60, 86_400, 30 * 86_400, 366 * 86_400];
        let rates = units
            .into_iter()
            .flat_map(move |units| periods.map(|seconds| Rate::per_ticks(units, Ticks::from_secs(seconds))));
        rates
            .chain([Rate::per_ticks(999_999_999_989, PERIOD_MAX), Rate::per_ticks(7, Ticks::from_micros(11))])
    }

    /// The largest number that a message accepts: for "1 to 23: what …" it is 23.
    fn most(accepted: &str) -> u64 {
        let (_, rest) = accepted.split_once(" to ").unwrap();
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
    }

    /// Makes a bucket of a burst.
    type Make = fn(Rate) -> Result<Quota, QuotaError>;

    /// The story: the error for a token bucket that was too large suggested a token bucket. Whatever an error says is
    /// accepted must be accepted: the burst up to the tick, and another algorithm only where it helps.
    #[test]
    fn the_error_for_a_large_burst_names_the_largest() {
        let makes: [(&str, Make); 3] = [
            ("token-bucket", Quota::token_bucket),
            ("gcra", Quota::gcra),
            ("leaky-bucket", |rate| Quota::leaky_bucket(rate, 0)),
        ];
        for (name, make) in makes {
            for rate in rates() {
                let refused = match make(rate.burst(EXACT_MAX)) {
                    Err(QuotaError::Range { field: "burst", value: EXACT_MAX, accepted }) => accepted,
                    Err(QuotaError::Inexact { cure, .. }) => {
                        assert!(make(rate.burst(1)).is_err(), "{name}, {rate:?}: {cure}");
                        let elsewhere = name == "gcra" && Quota::token_bucket(rate.burst(EXACT_MAX)).is_ok();
                        assert_eq!(cure.contains("token-bucket"), elsewhere, "{name}, {rate:?}: {cure}");
                        continue;
                    }
                    other => panic!("{name}, {rate:?}: {other:?}"),
                };
                let most = most(&refused);
                assert!(make(rate.burst(most)).is_ok(), "{name}, {rate:?}: {refused}");
                assert!(make(rate.burst(most + 1)).is_err(), "{name}, {rate:?}: {refused}");
                assert!(!refused.contains("token-bucket"), "{name}, {rate:?}: {refused}");
            }
        }
        let awkward = Quota::gcra(Rate::per_second(9_999_991)).unwrap_err().to_string();
        assert!(
            awkward.ends_with("accepted: a rounder rate, or `algorithm: token-bucket`, which has more room")
        );
    }

    /// The story: a queue that was too long was reported as a burst of both together.
    #[test]
    fn the_error_for_a_long_queue_names_the_queue() {
        for rate in rates().map(|rate| rate.burst(2)) {
            match Quota::leaky_bucket(rate, EXACT_MAX) {
                Err(QuotaError::Range { field: "queue", value: EXACT_MAX, accepted }) => {
                    let most = most(&accepted);
                    assert!(Quota::leaky_bucket(rate, most).is_ok(), "{rate:?}: {accepted}");
                    assert!(Quota::leaky_bucket(rate, most + 1).is_err(), "{rate:?}: {accepted}");
                    assert!(accepted.contains("beside a burst of 2"), "{accepted}");
                }
                refused => assert!(Quota::leaky_bucket(rate, 0).is_err(), "{rate:?}: {refused:?}"),
            }
        }
        let huge = Quota::leaky_bucket(Rate::per_month(1).burst(1_000), 5).unwrap_err();
        assert!(matches!(huge, QuotaError::Range { field: "burst", value: 1_000, .. }), "{huge}");
    }

    /// The precision that an error suggests for a sliding window suits it; where none does, the error suggests
    /// something else. The same holds for the suggestion for a sliding log.
    #[test]
    fn a_suggested_precision_suits() {
        let suggested = |message: &str, before: &str| {
            let (_, rest) = message.split_once(before)?;
            rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse::<u32>().ok()
        };
        for rate in rates() {
            for precision in [1, 7, 10, 59, 60] {
                let Err(error) = Quota::sliding_window(rate, precision, Estimate::Strict) else { continue };
                let message = error.to_string();
                let other = suggested(&message, "such as ").or(suggested(&message, "a precision of "));
                let suits = |&other: &u32| Quota::sliding_window(rate, other, Estimate::Strict).is_ok();
                assert!(other.as_ref().is_none_or(suits), "{rate:?}: {message}");
                let finer = precision..=crate::algorithm::sliding_window::PRECISION_MAX;
                assert_eq!(
                    other.is_some(),
                    finer.chain(1..precision).any(|p| suits(&p)),
                    "{rate:?}: {message}"
                );
            }
            if let Err(error) = Quota::sliding_log(rate) {
                let message = error.to_string();
                let precision = suggested(&message, "`precision: ");
                let suits = |precision| Quota::sliding_window(rate, precision, Estimate::Strict).is_ok();
                assert_eq!(precision.is_some(), [10, 60].into_iter().any(suits), "{rate:?}: {message}");
                assert!(precision.is_none_or(suits), "{rate:?}: {message}");
            }
        }
    }
}
