//! A limit at other sizes: what each key would have been denied if the limit were half as large, or twice. The other
//! limits decide as they did, so the size 1 is what the engine decided itself. Also how far each key would have run a
//! bucket down that is never empty, which is the burst that denies no request.

use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::sliding_window::{Estimate, SlidingWindow};
use tollgate::store::Lease;
use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Quota, Rate, Ticks, Timestamp};

use super::bounds::{Bounds, BurstNeed, CreditBucket, Denials, Extremes, SIZES, Within};
use super::report::Range;
use super::window_bounds::{GridBounds, SHORTEST, SlidingBounds, SlotWindow};
use crate::limiter::Limiter;

/// Sizes other than 1, in quarters.
pub(super) const QUARTERS: [u64; SIZES] = [2, 3, 6, 8, 16];
/// One, in quarters.
const ONE: u64 = 4;

/// A quota at every size.
#[derive(Debug)]
pub(super) struct Sizes {
    shape: QuotaShape,
    /// The window in which a key's peak is counted; `None` for a concurrency limit.
    window: Option<Ticks>,
    /// Units of a lease on one node, and how long it lasts.
    pub(super) lease: Option<(u64, Ticks)>,
}

#[derive(Debug)]
enum QuotaShape {
    /// Units come back steadily: `units` in each `period`, up to `capacity`.
    Reservoir { units: u64, period: u64, capacity: u64 },
    /// Units come back when the window ends.
    Window(FixedWindow),
    /// A sliding window has its own counters, one for each size. Its limit, and the window that stamps of whole seconds
    /// bound; `None` where the instant decides which share of the oldest sub-window counts.
    Sliding(Vec<Option<Quota>>, Option<(SlotWindow, u64)>),
    /// Permits, whose peak says what a smaller limit would have denied.
    Permits,
}

/// The units that one key has used, at every size.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// The end of the window that the key is in, and the units in it.
    window_ends_at: Timestamp,
    in_window: u64,
    /// The most units in any window.
    pub(super) peak: u64,
    /// When `level` and `sizes` were computed.
    at: Timestamp,
    /// Credits that the bucket lacks if no request is denied, and the most it ever lacked.
    level: u64,
    level_max: u64,
    sizes: Levels,
    /// The uncertainty of stamps in whole seconds.
    bounds: CoarseBounds,
}

impl Used {
    /// Starts anew under another quota. The peak stays.
    pub(super) fn restart(&mut self) {
        *self = Self { peak: self.peak, ..Self::default() };
    }

    /// Bytes that it points to.
    pub(super) fn pointed_bytes(&self) -> usize {
        let sizes = match &self.sizes {
            Levels::Unused | Levels::Inline(_) => 0,
            Levels::Boxed(limiters) => size_of_val(&**limiters),
        };
        sizes
            + match &self.bounds {
                CoarseBounds::Unused => 0,
                CoarseBounds::Bucket(_) => size_of::<Bounds>(),
                CoarseBounds::Sliding(bounds) => bounds.bytes(),
                CoarseBounds::Grid(_) => size_of::<GridBounds>(),
            }
    }
}

/// The state at both extremes that stamps of whole seconds leave open.
#[derive(Debug, Default)]
enum CoarseBounds {
    #[default]
    Unused,
    Bucket(Box<Bounds>),
    Sliding(Box<SlidingBounds>),
    Grid(Box<GridBounds>),
}

/// The state at each size.
#[derive(Debug, Default)]
enum Levels {
    #[default]
    Unused,
    Inline([u64; SIZES]),
    Boxed(Box<[Option<Limiter>]>),
}

/// One charge, as the engine saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) now: Timestamp,
    pub(super) cost: u64,
    pub(super) kept: Kept,
}

/// Whether the units of a request that passes stay charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    /// Another limit denies the request, so nothing is charged here. The key wanted the units all the same.
    DeniedElsewhere,
    /// The limit counts failures, and the request succeeded. Its units return when it ends, which is taken to be at once.
    Succeeded,
}

impl Asked {
    fn is_kept(&self) -> bool {
        self.kept == Kept::Yes
    }

    /// The units that the key uses if no request is denied.
    fn wanted(&self) -> u64 {
        if self.kept == Kept::Succeeded { 0 } else { self.cost }
    }
}

/// The sliding window whose extremes are known: that of a log, or of sub-windows that count in full.
fn slot_window(quota: &Quota) -> Option<(SlotWindow, u64)> {
    match quota {
        Quota::SlidingLog(log) => {
            // A unit counts up to, and not at, one period after it was admitted.
            let span = log.period().as_micros().saturating_sub(1);
            Some((SlotWindow { slot: Ticks::ONE, span }, log.limit()))
        }
        Quota::SlidingWindow(window) if window.estimate() == Estimate::Strict => {
            let (slot, span) = (window.sub_window(), u64::from(window.precision()));
            Some((SlotWindow { slot, span }, window.limit()))
        }
        _ => None,
    }
}

impl Sizes {
    pub(super) fn new(quota: &Quota, lease: Option<Lease>) -> Self {
        let shape = match quota {
            Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_) => {
                let rate = quota.rate().unwrap_or(Rate::per_second(1));
                let period = rate.period().as_micros().saturating_mul(ONE);
                QuotaShape::Reservoir { units: rate.units(), period, capacity: quota.capacity() }
            }
            Quota::FixedWindow(window) => QuotaShape::Window(window.clone()),
            Quota::SlidingWindow(_) | Quota::SlidingLog(_) => {
                let sizes = QUARTERS.iter().map(|quarters| resized(quota, *quarters)).collect();
                QuotaShape::Sliding(sizes, slot_window(quota))
            }
            Quota::Concurrency(_) => QuotaShape::Permits,
        };
        let lease = Lease::suits(quota).then(|| lease.unwrap_or_default());
        Self {
            shape,
            window: quota.rate().map(Rate::period),
            lease: lease.map(|lease| (lease.most(quota, 1), lease.ttl())),
        }
    }

    /// Whether other sizes are computed.
    pub(super) const fn is_resized(&self) -> bool {
        !matches!(self.shape, QuotaShape::Permits)
    }

    /// The burst at which this key would never have been denied at this rate, as far as the stamps say; `None` where a limit
    /// has no burst. The other limits decide as they did.
    pub(super) fn burst_of(&self, used: &Used) -> Option<Range> {
        let QuotaShape::Reservoir { period, .. } = self.shape else { return None };
        let BurstNeed { least, most } = match &used.bounds {
            CoarseBounds::Bucket(bounds) => bounds.need,
            _ => BurstNeed { least: used.level_max, most: used.level_max },
        };
        Some(Range::of([least, most, used.level_max].map(|credits| credits.div_ceil(period.max(1)))))
    }

    /// Whether the range that stamps of whole seconds leave open is known: that of buckets, of sliding windows that count in
    /// full, and of windows whose beginning does not depend on requests.
    pub(super) fn is_bounded(&self) -> bool {
        match &self.shape {
            QuotaShape::Reservoir { .. } => true,
            QuotaShape::Window(window) => is_grid(window),
            QuotaShape::Sliding(_, window) => window.is_some(),
            QuotaShape::Permits => false,
        }
    }

    /// Counts a charge of a request whose stamp is a whole second. Returns the sizes that deny it at both extremes;
    /// `None` where they are not known.
    pub(super) fn bound(&self, used: &mut Used, asked: Asked, width: u64) -> Option<Extremes> {
        let at = Within { second: asked.now.unix_micros() / TICKS_PER_SECOND, width };
        if matches!(used.bounds, CoarseBounds::Unused) {
            used.bounds = match &self.shape {
                QuotaShape::Reservoir { .. } => CoarseBounds::Bucket(Box::default()),
                QuotaShape::Sliding(_, Some(_)) => CoarseBounds::Sliding(Box::default()),
                QuotaShape::Window(window) if is_grid(window) => CoarseBounds::Grid(Box::default()),
                _ => CoarseBounds::Unused,
            };
        }
        match (&self.shape, &mut used.bounds) {
            (QuotaShape::Reservoir { units, period, capacity }, CoarseBounds::Bucket(bounds)) => {
                let bucket = |size: usize| {
                    let quarters = quarters_of(size);
                    let capacity = sized(*capacity, quarters).saturating_mul(*period);
                    CreditBucket { gain: units.saturating_mul(quarters), capacity }
                };
                let before = **bounds;
                let extremes = bounds.charge(bucket, at, asked.cost.saturating_mul(*period));
                if !asked.is_kept() {
                    bounds.restore(before);
                }
                Some(extremes)
            }
            (QuotaShape::Sliding(_, Some((window, limit))), CoarseBounds::Sliding(bounds)) => {
                let before = (!asked.is_kept()).then(|| bounds.clone());
                let limit = |size: usize| sized(*limit, quarters_of(size));
                let extremes = bounds.charge((*window, limit), at, asked.cost);
                if let Some(before) = before {
                    *bounds = before;
                }
                Some(extremes)
            }
            (QuotaShape::Window(window), CoarseBounds::Grid(bounds)) => {
                let before = **bounds;
                let limit = |size: usize| sized(window.limit(), quarters_of(size));
                let extremes = bounds.charge((window, limit), at, asked.cost);
                if !asked.is_kept() {
                    **bounds = before;
                }
                Some(extremes)
            }
            _ => None,
        }
    }

    /// Counts a charge. `in_flight` is the number of permits that are taken. Returns which sizes deny it.
    pub(super) fn charge(&self, used: &mut Used, asked: Asked, in_flight: u64) -> Denials {
        self.count_window(used, asked.now);
        if self.window.is_some() {
            used.in_window = used.in_window.saturating_add(asked.wanted());
            used.peak = used.peak.max(used.in_window);
        }
        match &self.shape {
            QuotaShape::Reservoir { units, period, capacity } => {
                reservoir(used, asked, (*units, *period, *capacity))
            }
            QuotaShape::Window(window) => fixed_window(used, asked, window.limit()),
            QuotaShape::Sliding(quotas, _) => counters(used, asked, quotas),
            QuotaShape::Permits => {
                used.peak = used.peak.max(in_flight);
                Denials::default()
            }
        }
    }

    /// Moves the key to the window of `now`.
    fn count_window(&self, used: &mut Used, now: Timestamp) {
        let Some(period) = self.window.filter(|_| now >= used.window_ends_at) else { return };
        used.window_ends_at = match &self.shape {
            QuotaShape::Window(window) => {
                used.sizes = Levels::Unused;
                window.window_end(now)
            }
            _ => {
                let period = period.as_micros().max(1);
                Timestamp::from_unix_micros((now.unix_micros() / period + 1).saturating_mul(period))
            }
        };
        used.in_window = 0;
    }
}

/// Whether windows follow a grid that is not too fine for whole seconds.
fn is_grid(window: &FixedWindow) -> bool {
    !matches!(window.align(), Align::FirstHit) && window.period() >= SHORTEST
}

/// The quarters of a size; four for the limit's own.
fn quarters_of(size: usize) -> u64 {
    QUARTERS.get(size).copied().unwrap_or(ONE)
}

/// A number of units at another size: at least one.
pub(super) const fn sized(units: u64, quarters: u64) -> u64 {
    let sized = (units / ONE) * quarters + (units % ONE) * quarters / ONE;
    if sized == 0 { 1 } else { sized }
}

fn reservoir(used: &mut Used, asked: Asked, (units, period, capacity): (u64, u64, u64)) -> Denials {
    let mut denials = Denials::default();
    let elapsed = asked.now.since(used.at).as_micros();
    let credits = asked.cost.saturating_mul(period);
    used.at = used.at.max(asked.now);
    let gained = |quarters: u64| elapsed.saturating_mul(units).saturating_mul(quarters);
    used.level = used.level.saturating_sub(gained(ONE));
    used.level_max = used.level_max.max(used.level.saturating_add(credits));
    if asked.is_kept() {
        used.level = used.level.saturating_add(credits);
    }
    if matches!(used.sizes, Levels::Unused) {
        used.sizes = Levels::Inline([0; SIZES]);
    }
    let Levels::Inline(levels) = &mut used.sizes else { return denials };
    for (size, (level, quarters)) in levels.iter_mut().zip(QUARTERS).enumerate() {
        *level = level.saturating_sub(gained(quarters));
        let after = level.saturating_add(credits);
        if after > sized(capacity, quarters).saturating_mul(period) {
            denials.add(size);
        } else if asked.is_kept() {
            *level = after;
        }
    }
    denials
}

fn fixed_window(used: &mut Used, asked: Asked, limit: u64) -> Denials {
    let mut denials = Denials::default();
    if matches!(used.sizes, Levels::Unused) {
        used.sizes = Levels::Inline([0; SIZES]);
    }
    let Levels::Inline(counts) = &mut used.sizes else { return denials };
    for (size, (count, quarters)) in counts.iter_mut().zip(QUARTERS).enumerate() {
        let after = count.saturating_add(asked.cost);
        if after > sized(limit, quarters) {
            denials.add(size);
        } else if asked.is_kept() {
            *count = after;
        }
    }
    denials
}

fn counters(used: &mut Used, asked: Asked, quotas: &[Option<Quota>]) -> Denials {
    let mut denials = Denials::default();
    if matches!(used.sizes, Levels::Unused) {
        used.sizes = Levels::Boxed(quotas.iter().map(|quota| quota.clone().map(Limiter::new)).collect());
    }
    let Levels::Boxed(limiters) = &mut used.sizes else { return denials };
    for (size, limiter) in limiters.iter_mut().enumerate() {
        let Some(limiter) = limiter else { continue };
        let before = (!asked.is_kept()).then(|| limiter.clone());
        if !limiter.charge(asked.now, asked.cost).is_allowed() {
            denials.add(size);
        }
        if let Some(before) = before {
            *limiter = before;
        }
    }
    denials
}

/// A quota of another size; `None` if there is none.
pub(super) fn resized(quota: &Quota, quarters: u64) -> Option<Quota> {
    let rate = |limit: u64, period: Ticks| Rate::per_ticks(sized(limit, quarters), period);
    match quota {
        Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_) => {
            let (of, units) = (quota.rate()?, quota.rate()?.units().saturating_mul(quarters));
            // The shortest whole multiple of the period that has a whole number of units.
            let periods =
                [1, 2, ONE].into_iter().find(|periods| (units % ONE * periods).is_multiple_of(ONE))?;
            let period = Ticks::from_micros(of.period().as_micros().saturating_mul(periods));
            let rate = Rate::per_ticks(units.saturating_mul(periods) / ONE, period);
            Quota::token_bucket(rate.burst(sized(quota.capacity(), quarters))).ok()
        }
        Quota::FixedWindow(window) => {
            Quota::fixed_window(rate(window.limit(), window.period()), window.align().clone()).ok()
        }
        Quota::SlidingWindow(window) => {
            let rate = rate(window.limit(), window.period());
            SlidingWindow::new(rate, window.precision(), window.estimate()).ok().map(Quota::SlidingWindow)
        }
        Quota::SlidingLog(log) => Quota::sliding_log(rate(log.limit(), log.period())).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Requests of one key, at random instants and costs.
    fn requests(seed: u64) -> Vec<(Timestamp, u64)> {
        let (mut random, mut now) = (Random::new(seed), 1_700_000_000_000_000);
        let mut all = Vec::new();
        for _ in 0..2_000 {
            now += random.exponential(150_000);
            all.push((Timestamp::from_unix_micros(now), 1 + random.below(2)));
        }
        all
    }

    /// At each size exactly those requests are denied that the algorithm with the other numbers denies.
    #[test]
    fn sizes_agree_with_the_algorithms() {
        let rate = Rate::per_second(8).burst(12);
        let quotas: [fn(u64, Rate) -> Quota; 4] = [
            |quarters, rate| {
                let burst = sized(12, quarters);
                let period = Ticks::from_micros(rate.period().as_micros() * ONE);
                Quota::token_bucket(Rate::per_ticks(rate.units() * quarters, period).burst(burst)).unwrap()
            },
            |quarters, _| Quota::fixed_window(Rate::per_second(sized(8, quarters)), Align::Epoch).unwrap(),
            |quarters, _| Quota::fixed_window(Rate::per_second(sized(8, quarters)), Align::FirstHit).unwrap(),
            |quarters, _| Quota::sliding_log(Rate::per_second(sized(8, quarters))).unwrap(),
        ];
        for (kind, quota) in quotas.into_iter().enumerate() {
            for seed in 0..5 {
                let sizes = Sizes::new(&quota(ONE, rate), None);
                let mut used = Used::default();
                let mut limiters = QUARTERS.map(|quarters| Limiter::new(quota(quarters, rate)));
                for (now, cost) in requests(seed) {
                    let asked = Asked { now, cost, kept: Kept::Yes };
                    let denials = sizes.charge(&mut used, asked, 0);
                    for (size, limiter) in limiters.iter_mut().enumerate() {
                        let expected = !limiter.charge(now, cost).is_allowed();
                        assert_eq!(denials.has(size), expected, "quota {kind}, seed {seed}, size {size}");
                    }
                }
            }
        }
    }

    /// The burst that denies no request is exact: with it nothing is denied, with one less something is.
    #[test]
    fn the_burst_that_denies_nobody_is_exact() {
        for seed in 0..20 {
            let rate = Rate::per_second(11);
            let sizes = Sizes::new(&Quota::token_bucket(rate).unwrap(), None);
            let mut used = Used::default();
            let all = requests(seed);
            for (now, cost) in &all {
                sizes.charge(&mut used, Asked { now: *now, cost: *cost, kept: Kept::Yes }, 0);
            }
            let burst = sizes.burst_of(&used).unwrap().high;
            let denied = |burst: u64| {
                let mut limiter = Limiter::new(Quota::token_bucket(rate.burst(burst)).unwrap());
                all.iter().filter(|(now, cost)| !limiter.charge(*now, *cost).is_allowed()).count()
            };
            assert_eq!(denied(burst), 0, "seed {seed}");
            assert!(denied(burst - 1) > 0, "seed {seed}");
        }
    }
}
