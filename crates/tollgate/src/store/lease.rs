//! How much of a limit one node may lease, and for how long.

use crate::quota::Quota;
use crate::time::Ticks;

/// Shares are counted in millionths.
const WHOLE: u64 = 1_000_000;
/// The largest share of a limit that one node may hold: half.
pub(crate) const SHARE_MAX: u32 = 500_000;
/// How long a node may hold units, at least and at most.
pub(crate) const TTL_MIN: Ticks = Ticks::from_millis(10);
pub(crate) const TTL_MAX: Ticks = Ticks::from_secs(60);

/// Number of lease lifetimes that a unit may last. Older units are spent first, so few last for two.
const LIVES_MAX: u64 = 4;

/// The bounds of a limit's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The share of the limit, in millionths, that one node may hold.
    pub(crate) share: u32,
    pub(crate) ttl: Ticks,
    /// Whether only hot keys are leased.
    pub(crate) is_auto: bool,
}

impl Default for Lease {
    fn default() -> Self {
        Self { share: 50_000, ttl: Ticks::from_millis(250), is_auto: false }
    }
}

impl Lease {
    /// The units of a quota that one node may hold: its share, and at least one. With many nodes it is less, so that
    /// all nodes together hold at most half of the limit.
    #[must_use]
    pub fn most(self, quota: &Quota, nodes: u32) -> u64 {
        let capacity = u128::from(quota.capacity());
        let share = capacity * u128::from(self.share) / u128::from(WHOLE);
        let fair = capacity / (2 * u128::from(nodes.max(1)));
        u64::try_from(share.min(fair)).unwrap_or(u64::MAX).max(1)
    }

    /// The share of the limit, in millionths, that one node may hold.
    #[must_use]
    pub const fn share(self) -> u32 {
        self.share
    }

    /// How long units may be held.
    #[must_use]
    pub const fn ttl(self) -> Ticks {
        self.ttl
    }

    /// How long a unit may be held at most, however often its lease is renewed.
    #[must_use]
    pub(crate) const fn held_for(self) -> Ticks {
        Ticks::from_micros(self.ttl.as_micros() * LIVES_MAX)
    }

    /// Whether only hot keys are leased.
    #[must_use]
    pub(crate) const fn is_auto(self) -> bool {
        self.is_auto
    }

    /// Whether counters of this quota can lease units.
    #[must_use]
    pub const fn suits(quota: &Quota) -> bool {
        match quota {
            Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::SlidingWindow(_) => true,
            // Only the counter itself knows the bounds of calendar windows, so unused units could not be returned.
            Quota::FixedWindow(window) => !window.align().is_calendar(),
            Quota::LeakyBucket(_) | Quota::SlidingLog(_) | Quota::Concurrency(_) => false,
        }
    }
}
