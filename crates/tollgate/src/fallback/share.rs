//! One node's share of a quota: what the node may admit alone so that all nodes together keep to the quota. Pure
//! functions.
//!
//! A share is a bucket with 1/N of the rate and of the burst, at least one unit: a limit of 5 a minute on 20 nodes
//! admits 20 once, and then 5 a minute by all nodes together. Windows and logs become buckets too. Buckets are small,
//! and they do not lose the fraction of a unit that a window of a share would round off. Only large fixed windows stay
//! windows, because a month's count is better than a month's refill.

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::reservoir::{CapacityBound, GAIN_MAX};
use crate::policy::{Limit, Quotas};
use crate::quota::Quota;
use crate::rate::{PERIOD_MAX, Rate};
use crate::time::Ticks;

/// Maximum number of nodes that a limit is divided by; a larger fleet uses this number.
pub(crate) const NODES_MAX: u32 = 1_000;
/// Fixed windows of at least this many units stay windows: rounding then costs at most one unit per node.
const WINDOW_UNITS_MIN: u64 = NODES_MAX as u64;

/// The share of one quota.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// The quota to count by. Its capacity may exceed the share, because a single request may cost more.
    pub(super) quota: Quota,
    /// The units of `quota` that are not part of the share.
    pub(super) headroom: u64,
}

impl Share {
    /// The burst of the share, in units.
    #[cfg(test)]
    fn units(&self) -> u64 {
        self.quota.capacity() - self.headroom
    }
}

/// The shares of a limit's quotas, in their order.
pub(super) fn of_limit(limit: &Limit, nodes: u32) -> Vec<Share> {
    let is_large = |quota: &Quota| quota.capacity() >= WINDOW_UNITS_MIN;
    let windows = limit.quotas().iter().all(is_large);
    limit.quotas().iter().map(|quota| of_quota(quota, nodes, windows)).collect()
}

fn of_quota(quota: &Quota, nodes: u32, windows: bool) -> Share {
    let nodes = u64::from(nodes.clamp(1, NODES_MAX));
    let part = |units: u64| (units / nodes).max(1);
    let alone = |quota: Quota| Share { quota, headroom: 0 };
    match quota {
        Quota::Concurrency(permits) => {
            let share = Concurrency::new(part(permits.limit()), permits.ttl());
            alone(share.map_or_else(|_| quota.clone(), Quota::Concurrency))
        }
        Quota::FixedWindow(window) if windows => {
            let rate = Rate::per_ticks(part(window.limit()), window.period());
            let share = FixedWindow::new(rate, window.align().clone());
            alone(share.map_or_else(|_| quota.clone(), Quota::FixedWindow))
        }
        Quota::LeakyBucket(bucket) => {
            let (burst, queue) = (bucket.capacity() - bucket.queue(), bucket.queue() / nodes);
            let rate = slowed(bucket.rate(), nodes).burst(part(burst));
            let share = LeakyBucket::new(rate, queue).or_else(|_| LeakyBucket::new(rate.burst(1), 0));
            match share {
                Ok(share) => alone(Quota::LeakyBucket(share)),
                Err(_) => bucket_of(slowed(bucket.rate(), nodes), part(bucket.capacity()), bucket.capacity()),
            }
        }
        Quota::TokenBucket(_)
        | Quota::Gcra(_)
        | Quota::FixedWindow(_)
        | Quota::SlidingWindow(_)
        | Quota::SlidingLog(_) => {
            let rate = quota.rate().unwrap_or(Rate::per_ticks(1, PERIOD_MAX));
            bucket_of(slowed(rate, nodes), part(quota.capacity()), quota.capacity())
        }
    }
}

/// The rate of one node out of `nodes`. The slowest rate is one unit a year.
fn slowed(rate: Rate, nodes: u64) -> Rate {
    let (mut units, mut period) = (rate.units(), u128::from(rate.period().as_micros()) * u128::from(nodes));
    let common = u64::try_from(gcd(u128::from(units), period)).unwrap_or(1).max(1);
    (units, period) = (units / common, period / u128::from(common));
    let longest = u128::from(PERIOD_MAX.as_micros());
    if period > longest {
        let fewer = u128::from(units) * longest / period;
        (units, period) = (u64::try_from(fewer).unwrap_or(units).max(1), longest);
    }
    Rate::per_ticks(units, Ticks::from_micros(u64::try_from(period).unwrap_or(PERIOD_MAX.as_micros())))
}

fn gcd(mut one: u128, mut other: u128) -> u128 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// A bucket that admits `units` at once, with capacity for a request of up to `largest` where that can be counted
/// exactly.
fn bucket_of(rate: Rate, units: u64, largest: u64) -> Share {
    let made = |room: u64| {
        let quota = Quota::token_bucket(rate.burst(room)).ok()?;
        Some(Share { headroom: room.saturating_sub(units.min(room)), quota })
    };
    let fitting = || {
        let room = [GAIN_MAX, u64::MAX]
            .map(|gain| CapacityBound::of(rate, gain).units)
            .into_iter()
            .max()
            .unwrap_or(0);
        made(room.min(largest.max(units)).max(1))
    };
    // A rate that cannot be counted exactly, or does not refill within two years, is so slow that one unit a year
    // serves.
    let slowest = || Quota::token_bucket(Rate::per_ticks(1, PERIOD_MAX)).ok();
    made(largest.max(units)).or_else(fitting).unwrap_or_else(|| Share {
        quota: slowest().unwrap_or_else(|| unreachable!("a unit a year is a rate")),
        headroom: 0,
    })
}

/// The maximum for one key while a limit is open: `times` this node's share per period. `None` if no quota can express
/// it.
pub(super) fn ceiling(quota: &Quota, nodes: u32, times: u32) -> Option<Quota> {
    let (nodes, times) = (u64::from(nodes.clamp(1, NODES_MAX)), u64::from(times));
    let part = |units: u64| (units.saturating_mul(times) / nodes).max(1);
    match quota {
        Quota::Concurrency(permits) => {
            Concurrency::new(part(permits.limit()), permits.ttl()).ok().map(Quota::Concurrency)
        }
        _ => {
            let rate = quota.rate()?;
            let window = |units| FixedWindow::new(Rate::per_ticks(units, rate.period()), Align::FirstHit);
            window(part(rate.units())).or_else(|_| window(rate.units())).ok().map(Quota::FixedWindow)
        }
    }
}

/// A limit that exists only for its counters: the same keys, tiers and overrides, with the quotas of the shares.
pub(super) fn shared(limit: &Limit, shares: &[Share]) -> Limit {
    let all = shares.iter().map(|share| share.quota.clone()).collect();
    let quotas = Quotas { all, ..limit.quotas.clone() };
    Limit::for_counters(limit.name().to_owned(), limit.by().to_vec(), quotas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::LimitBuilder;

    fn share(quota: Quota, nodes: u32) -> Share {
        let limit = LimitBuilder::into_limit(Limit::new("l", quota));
        of_limit(&limit, nodes).remove(0)
    }

    /// The shares of the fleet together admit no more than the quota over time, and at once no more than its burst or
    /// one unit per node.
    #[test]
    fn shares_add_up_to_the_quota() {
        let rates = [(5, 60), (1, 1), (7, 1), (100, 1), (1_000, 3_600), (1, 30 * 86_400), (999_983, 86_400)];
        for (units, seconds) in rates {
            for burst in [1, 3, units, 10 * units] {
                for nodes in [1, 2, 3, 7, 20, 1_000] {
                    let rate = Rate::per_ticks(units, Ticks::from_secs(seconds)).burst(burst);
                    let Ok(quota) = Quota::token_bucket(rate) else { continue };
                    let share = share(quota, nodes);
                    assert!(
                        share.units() * u64::from(nodes) <= burst.max(u64::from(nodes)),
                        "{rate:?} {nodes}"
                    );
                    let slow = share.quota.rate().unwrap();
                    let fleet = u128::from(slow.units()) * u128::from(nodes) * u128::from(seconds);
                    let whole = u128::from(units) * u128::from(slow.period().as_micros());
                    let year = slow.period() == PERIOD_MAX && slow.units() == 1;
                    assert!(fleet * 1_000_000 <= whole || year, "{rate:?} {nodes}: {slow:?}");
                    // Not much less either: rounding takes at most a millionth off the rate, and this check allows ten
                    // times that.
                    assert!(
                        year || fleet * 1_000_000 >= whole - whole / 100_000,
                        "{rate:?} {nodes}: {slow:?}"
                    );
                }
            }
        }
    }

    /// The example: 5 a minute on 20 nodes is one unit at once, and one every four minutes.
    #[test]
    fn a_small_limit_stays_right() {
        for quota in [
            Quota::token_bucket(Rate::per_minute(5)).unwrap(),
            Quota::fixed_window(Rate::per_minute(5), Align::Epoch).unwrap(),
            Quota::sliding_log(Rate::per_minute(5)).unwrap(),
        ] {
            let share = share(quota, 20);
            assert_eq!(share.units(), 1);
            let rate = share.quota.rate().unwrap();
            assert_eq!((rate.units(), rate.period()), (1, Ticks::from_secs(240)));
        }
    }

    /// Every quota has a share, whatever its numbers and however many nodes there are.
    #[test]
    fn every_quota_has_a_share() {
        let rates =
            [Rate::per_second(10_000_000), Rate::per_second(9_999_991), Rate::per_ticks(1, PERIOD_MAX)];
        for rate in rates {
            for nodes in [0, 1, 999, u32::MAX] {
                for quota in [
                    Quota::token_bucket(rate.burst(2)).unwrap(),
                    Quota::fixed_window(rate, Align::Epoch).unwrap(),
                    Quota::leaky_bucket(Rate::per_second(7).burst(3), 9).unwrap(),
                    Quota::Concurrency(Concurrency::new(5, Ticks::from_secs(1)).unwrap()),
                ] {
                    let share = share(quota.clone(), nodes);
                    assert!(share.units() >= 1 && share.units() <= quota.capacity().max(1), "{quota:?}");
                    assert!(ceiling(&quota, nodes, 4).is_some());
                }
            }
        }
    }
}
