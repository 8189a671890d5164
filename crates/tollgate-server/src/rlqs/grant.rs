//! What one Envoy may let pass: a share as numbers, and as the token bucket that Envoy keeps.

use tollgate::{Ticks, Timestamp};

/// Billionths of a unit, or of a request, in a second.
pub(super) type Nano = u64;
/// One a second.
pub(super) const NANO: u64 = 1_000_000_000;

/// How finely a share is told: a bucket is filled with as many tokens at once as the whole limit has thousandths.
const STEPS: u128 = 1_000;
/// The longest time between two fills, in seconds.
const FILL_SECONDS_MAX: u32 = 1_000_000;

/// How Envoy is told to limit a bucket. Envoy reads a fill interval in whole seconds only, cannot tell two buckets apart that differ in
/// nothing else, and fills steadily whatever the interval. Of the strategies it knows these three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Strategy {
    /// No limit applies.
    AllowAll,
    /// Nobody may pass.
    DenyAll,
    /// So many at once, and so many more in each interval.
    TokenBucket { max_tokens: u32, tokens_per_fill: u32, fill_seconds: u32 },
}

/// A strategy, and for how long it holds. In whole seconds, because Envoy reads no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) strategy: Strategy,
    pub(crate) ttl_seconds: u32,
}

impl Strategy {
    /// The bucket for this share of a limit whose whole rate is `nominal`, rounded down; but no less than one token at once and one in
    /// each interval, since Envoy knows no smaller bucket.
    pub(super) fn bucket(share: Share, nominal: Nano) -> Self {
        let fill_seconds = fill_seconds(nominal);
        let per_fill = u128::from(share.rate) * u128::from(fill_seconds) / u128::from(NANO);
        Strategy::TokenBucket {
            max_tokens: u32::try_from(share.tokens).unwrap_or(u32::MAX).max(1),
            tokens_per_fill: u32::try_from(per_fill).unwrap_or(u32::MAX).max(1),
            fill_seconds,
        }
    }

    /// What whoever follows it may let pass.
    pub(super) fn share(self) -> Share {
        match self {
            Strategy::AllowAll | Strategy::DenyAll => Share::default(),
            Strategy::TokenBucket { max_tokens, tokens_per_fill, fill_seconds } => {
                let rate = (u64::from(tokens_per_fill) * NANO).div_ceil(u64::from(fill_seconds.max(1)));
                Share { rate, tokens: u64::from(max_tokens) }
            }
        }
    }

    /// Whether Envoy would take it for this one, and go on with the old interval.
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

/// The shortest of 1, 10, 100… seconds in which the whole limit has enough tokens to be divided.
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
    /// The larger of both in each.
    pub(super) fn max(self, other: Self) -> Self {
        Self { rate: self.rate.max(other.rate), tokens: self.tokens.max(other.tokens) }
    }

    /// What requests of this cost take of a counter.
    pub(super) fn times(self, cost: u64) -> Self {
        Self { rate: self.rate.saturating_mul(cost), tokens: self.tokens.saturating_mul(cost) }
    }
}

/// What was sent, and until when it may be followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) strategy: Strategy,
    pub(super) sent_at: Timestamp,
    pub(super) expires_at: Timestamp,
}

/// How many grants of one seat are told apart.
const GRANTS_MAX: usize = 8;

/// What an Envoy may be following: it does not say when it has read a new grant, so until that is certain the old ones count, too.
#[derive(Debug, Default)]
pub(super) struct Grants(Vec<Grant>);

impl Grants {
    /// The last that was sent, while it holds.
    pub(super) fn current(&self, now: Timestamp) -> Option<&Grant> {
        self.0.last().filter(|grant| grant.expires_at > now)
    }

    /// When the last of them ends.
    pub(super) fn last_end(&self) -> Timestamp {
        self.0.iter().map(|grant| grant.expires_at).max().unwrap_or_default()
    }

    /// Whether there was any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A grant is sent. One that is the same as the last only holds longer: Envoy keeps what is in its bucket.
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

    /// Whoever reports now has read what was sent this long ago, and no longer follows what came before it.
    pub(super) fn confirm(&mut self, guard: Ticks, now: Timestamp) {
        if let Some(read) = self.0.iter().rposition(|grant| now.since(grant.sent_at) >= guard) {
            self.0.drain(..read);
        }
    }

    /// The most that may be followed now.
    pub(super) fn in_force(&self, now: Timestamp) -> Share {
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

    /// A share is told exactly where it can be, rounded down where not, and never as nothing.
    #[test]
    fn shares_become_buckets() {
        let told = |rate: u64, tokens, nominal: u64| {
            let Strategy::TokenBucket { max_tokens, tokens_per_fill, fill_seconds } =
                Strategy::bucket(Share { rate, tokens }, nominal)
            else {
                panic!("a bucket");
            };
            (max_tokens, tokens_per_fill, fill_seconds)
        };
        assert_eq!(told(250 * NANO, 500, 1_000 * NANO), (500, 250, 1));
        assert_eq!(told(25 * NANO, 50, 50 * NANO), (50, 2_500, 100));
        assert_eq!(told(NANO / 3, 0, NANO), (1, 333, 1_000));
        assert_eq!(told(0, 0, 50 * NANO), (1, 1, 100));
        assert_eq!(told(NANO / 86_400, 1, NANO / 86_400), (1, 11, 1_000_000));
        assert_eq!(told(u64::MAX, u64::MAX, u64::MAX), (u32::MAX, u32::MAX, 1));
    }

    /// What may still be followed counts until the Envoy has reported long enough after what replaced it, or until it expires.
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
        assert_eq!(grants.in_force(second(10)), large.share());
        grants.confirm(Ticks::from_secs(1), second(10));
        assert_eq!(grants.in_force(second(19)), large.share());
        assert_eq!(grants.in_force(second(20)), small.share());
        grants.confirm(Ticks::from_secs(1), second(11));
        assert_eq!(grants.in_force(second(12)), small.share());
        assert_eq!(grants.in_force(second(25)), Share::default());
        assert!(grants.current(second(25)).is_none());
    }
}
