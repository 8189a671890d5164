//! The requests that one Envoy may admit: a share as numbers, and as the token bucket in Envoy.

use tollgate::{Ticks, Timestamp};

/// Billionths of a unit, or of a request, per second.
pub(super) type Nano = u64;
/// One per second.
pub(super) const NANO: u64 = 1_000_000_000;

/// The resolution of a share: the whole limit earns at least this many tokens in one fill interval.
const STEPS: u128 = 1_000;
/// The longest time between two fills, in seconds.
const FILL_SECONDS_MAX: u32 = 1_000_000;

/// How Envoy limits a bucket. Envoy reads a fill interval in whole seconds only. It treats two buckets that differ only
/// in the interval as equal, and fills steadily whatever the interval is. Of Envoy's strategies, the server uses these
/// three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Strategy {
    /// No limit applies.
    AllowAll,
    /// Every request is denied.
    DenyAll,
    /// `max_tokens` at one instant, and `tokens_per_fill` more in each interval.
    TokenBucket { max_tokens: u32, tokens_per_fill: u32, fill_seconds: u32 },
}

/// A strategy and its time to live, in whole seconds because Envoy reads no fractions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) strategy: Strategy,
    pub(crate) ttl_seconds: u32,
}

impl Strategy {
    /// The token bucket for this share of a limit whose whole rate is `nominal`, rounded down. It has at least one
    /// token and one token per interval, because Envoy accepts no smaller bucket.
    pub(super) fn bucket(share: Share, nominal: Nano) -> Self {
        let fill_seconds = fill_seconds(nominal);
        let per_fill = u128::from(share.rate) * u128::from(fill_seconds) / u128::from(NANO);
        Strategy::TokenBucket {
            max_tokens: u32::try_from(share.tokens).unwrap_or(u32::MAX).max(1),
            tokens_per_fill: u32::try_from(per_fill).unwrap_or(u32::MAX).max(1),
            fill_seconds,
        }
    }

    /// The requests that an Envoy with this strategy may admit.
    pub(super) fn share(self) -> Share {
        match self {
            Strategy::AllowAll | Strategy::DenyAll => Share::default(),
            Strategy::TokenBucket { max_tokens, tokens_per_fill, fill_seconds } => {
                let rate = (u64::from(tokens_per_fill) * NANO).div_ceil(u64::from(fill_seconds.max(1)));
                Share { rate, tokens: u64::from(max_tokens) }
            }
        }
    }

    /// Whether Envoy would treat the two as equal and keep the old interval.
    pub(super) fn looks_like(self, other: Self) -> bool {
        match (self, other) {
            (
                Strategy::TokenBucket { max_tokens: a, tokens_per_fill: b, fill_seconds: one },
                Strategy::TokenBucket { max_tokens: c, tokens_per_fill: d, fill_seconds: another },
            ) => (a, b) == (c, d) && one != another,
            _ => false,
        }
    }
}

/// The shortest of 1, 10, 100… seconds in which the whole limit earns enough tokens to be divided.
fn fill_seconds(nominal: Nano) -> u32 {
    let mut seconds = 1;
    while seconds < FILL_SECONDS_MAX && u128::from(nominal) * u128::from(seconds) < STEPS * u128::from(NANO) {
        seconds *= 10;
    }
    seconds
}

/// A part of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) rate: Nano,
    pub(super) tokens: u64,
}

impl Share {
    /// The component-wise maximum.
    pub(super) fn max(self, other: Self) -> Self {
        Self { rate: self.rate.max(other.rate), tokens: self.tokens.max(other.tokens) }
    }

    /// The units that requests of this cost consume from a counter.
    pub(super) fn times(self, cost: u64) -> Self {
        Self { rate: self.rate.saturating_mul(cost), tokens: self.tokens.saturating_mul(cost) }
    }
}

/// An assignment that was sent, and until when an Envoy may follow it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) strategy: Strategy,
    pub(super) sent_at: Timestamp,
    pub(super) expires_at: Timestamp,
}

/// Maximum number of grants remembered for one bucket.
const GRANTS_MAX: usize = 8;

/// The grants that an Envoy may be following. Envoy does not acknowledge a new grant, so the older ones count until it
/// is certain that Envoy has read the new one.
#[derive(Debug, Default)]
pub(super) struct Grants(Vec<Grant>);

impl Grants {
    /// The last grant sent, if it has not expired.
    pub(super) fn current(&self, now: Timestamp) -> Option<&Grant> {
        self.0.last().filter(|grant| grant.expires_at > now)
    }

    /// When the last grant expires.
    pub(super) fn last_end(&self) -> Timestamp {
        self.0.iter().map(|grant| grant.expires_at).max().unwrap_or_default()
    }

    /// Whether no grant is recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records a sent grant. A grant equal to the last one only extends it: Envoy keeps the tokens in its bucket.
    pub(super) fn send(&mut self, strategy: Strategy, now: Timestamp, expires_at: Timestamp) {
        if let Some(last) = self.0.last_mut()
            && last.strategy == strategy
            && last.expires_at > now
        {
            last.expires_at = last.expires_at.max(expires_at);
            return;
        }
        if self.0.len() == GRANTS_MAX {
            let oldest = self.0.remove(0);
            self.0[0].strategy = larger(oldest.strategy, self.0[0].strategy);
            self.0[0].expires_at = self.0[0].expires_at.max(oldest.expires_at);
        }
        self.0.push(Grant { strategy, sent_at: now, expires_at });
    }

    /// Processes a report. An Envoy that reports now has read every grant sent at least `guard` ago, so it no longer
    /// follows the grants before that one.
    pub(super) fn confirm(&mut self, guard: Ticks, now: Timestamp) {
        if let Some(read) = self.0.iter().rposition(|grant| now.since(grant.sent_at) >= guard) {
            self.0.drain(..read);
        }
    }

    /// The most that the Envoy may be following now.
    pub(super) fn effective(&self, now: Timestamp) -> Share {
        let held = self.0.iter().filter(|grant| grant.expires_at > now);
        held.fold(Share::default(), |most, grant| most.max(grant.strategy.share()))
    }
}

fn larger(one: Strategy, other: Strategy) -> Strategy {
    if one.share().rate > other.share().rate { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// A share is exact where possible, rounded down otherwise, and never zero.
    #[test]
    fn shares_become_buckets() {
        let bucket_of = |rate: u64, tokens, nominal: u64| {
            let Strategy::TokenBucket { max_tokens, tokens_per_fill, fill_seconds } =
                Strategy::bucket(Share { rate, tokens }, nominal)
            else {
                panic!("a bucket");
            };
            (max_tokens, tokens_per_fill, fill_seconds)
        };
        assert_eq!(bucket_of(250 * NANO, 500, 1_000 * NANO), (500, 250, 1));
        assert_eq!(bucket_of(25 * NANO, 50, 50 * NANO), (50, 2_500, 100));
        assert_eq!(bucket_of(NANO / 3, 0, NANO), (1, 333, 1_000));
        assert_eq!(bucket_of(0, 0, 50 * NANO), (1, 1, 100));
        assert_eq!(bucket_of(NANO / 86_400, 1, NANO / 86_400), (1, 11, 1_000_000));
        assert_eq!(bucket_of(u64::MAX, u64::MAX, u64::MAX), (u32::MAX, u32::MAX, 1));
    }

    /// A replaced grant counts until the Envoy reports long enough after the replacement, or until the grant expires.
    #[test]
    fn old_grants_count_until_they_cannot_be_followed() {
        let (large, small) = (
            Strategy::bucket(Share { rate: 800 * NANO, tokens: 8 }, 1_000 * NANO),
            Strategy::bucket(Share { rate: 200 * NANO, tokens: 2 }, 1_000 * NANO),
        );
        let second = |n| NOW + Ticks::from_secs(n);
        let mut grants = Grants::default();
        grants.send(large, NOW, second(15));
        grants.send(large, second(5), second(20)); // The same, longer.
        grants.send(small, second(10), second(25));
        assert_eq!(grants.effective(second(10)), large.share());
        grants.confirm(Ticks::from_secs(1), second(10));
        assert_eq!(grants.effective(second(19)), large.share());
        assert_eq!(grants.effective(second(20)), small.share());
        grants.confirm(Ticks::from_secs(1), second(11));
        assert_eq!(grants.effective(second(12)), small.share());
        assert_eq!(grants.effective(second(25)), Share::default());
        assert!(grants.current(second(25)).is_none());
    }
}
