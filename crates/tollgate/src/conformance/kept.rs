//! Units that were admitted and kept, counted in every interval by the definition of each algorithm. Nothing here knows how a
//! counter is implemented: a trace of reservations is settled late, in part, twice or never, and the result is checked
//! against the definition.

use super::fixture::{Rig, asking};
use crate::algorithm::fixed_window::Align;
use crate::algorithm::sliding_window::Estimate;
use crate::decision::Permit;
use crate::engine::{CommitError, Reservation};
use crate::outcome::Verdict;
use crate::policy::{Cost, Limit};
use crate::quota::Quota;
use crate::rate::{QuotaError, Rate};
use crate::store::Store;
use crate::time::{Ticks, Timestamp};

/// The period of every quota here, and the life of every permit.
const PERIOD: Ticks = Ticks::from_secs(10);
/// Units of every quota here, per period and at once.
const UNITS: u64 = 10;
/// How long a reservation can be settled: longer than any unit is counted, so that late settlements are tried.
const LIFETIME: Ticks = Ticks::from_secs(25);
/// Steps of a trace.
const STEPS: usize = 60;
/// Traces of each algorithm. A seed that ever failed stays here.
const SEEDS: [u64; 4] = [1, 2, 3, 7];

/// Runs all of this module.
pub async fn all<S: Store>(make: &impl Fn(Timestamp) -> S) {
    a_late_cancel_gives_back_its_own_units(make).await;
    a_late_commit_gives_back_its_own_units(make).await;
    a_bucket_gives_back_what_it_has_not_regained(make).await;
    a_refund_that_may_be_too_old_is_dropped(make).await;
    a_refund_of_an_age_takes_it_to_be_that_old(make).await;
    no_interval_keeps_more_than_its_bound(make).await;
    an_immediate_cancel_restores_the_capacity(make).await;
}

fn quotas() -> Vec<(&'static str, Quota)> {
    let rate = Rate::per_ticks(UNITS, PERIOD);
    let sliding = |precision, estimate| Quota::sliding_window(rate, precision, estimate);
    let wide = Rate::per_second(9_999_991).burst(UNITS);
    let all: [(&'static str, Result<Quota, QuotaError>); 11] = [
        ("token-bucket", Quota::token_bucket(rate)),
        ("token-bucket, two words", Quota::token_bucket(wide)),
        ("gcra", Quota::gcra(Rate::per_second(3).burst(UNITS))),
        ("fixed-window, epoch", Quota::fixed_window(rate, Align::Epoch)),
        ("fixed-window, first hit", Quota::fixed_window(rate, Align::FirstHit)),
        ("sliding-window, strict", sliding(10, Estimate::Strict)),
        ("sliding-window, strict, one", sliding(1, Estimate::Strict)),
        ("sliding-window, interpolated", sliding(5, Estimate::Interpolate)),
        ("sliding-log", Quota::sliding_log(rate)),
        ("leaky-bucket", Quota::leaky_bucket(rate, UNITS - 1)),
        ("concurrency", Quota::concurrency(UNITS, std::time::Duration::from_secs(10))),
    ];
    all.into_iter().map(|(name, quota)| (name, quota.expect("the suite's numbers are valid"))).collect()
}

fn rig<S: Store>(make: &impl Fn(Timestamp) -> S, quota: &Quota) -> Rig<S> {
    Rig::new(make, vec![Limit::new("limit", quota.clone()).by(["key"]).cost(Cost::Asked)])
}

/// The windows in which no more than the limit may be kept, wherever they begin.
fn exact_windows() -> impl Iterator<Item = (&'static str, Quota)> {
    quotas().into_iter().filter(|(name, _)| name.starts_with("sliding-log") || name.contains("strict"))
}

/// The story: 10 in 10 s. 5 are reserved at 0 s, 5 pass at 7 s, the reservation is cancelled, 5 more pass. At 10 s
/// another 5 passed, which made 15 in 3 s: the cancellation had refunded the units of 7 s, and the units that were left
/// expired at 10 s.
pub(super) async fn a_late_cancel_gives_back_its_own_units<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for (name, quota) in exact_windows() {
        let mut rig = rig(make, &quota);
        let start = rig.now;
        let (_, reservation) = rig.engine.reservations().reserve(&asking("k", 5), LIFETIME, rig.now).await;
        rig.now = start + Ticks::from_secs(7);
        assert!(rig.admits("k", 5).await, "{name}");
        let cancelled =
            rig.engine.reservations().cancel(&mut reservation.expect("it was admitted"), rig.now).await;
        assert_eq!(cancelled.map(|settled| settled.refunded), Ok(5), "{name}");
        assert_eq!(rig.left("k", "limit").await, 5, "{name}: what was cancelled in time makes room");
        assert!(rig.admits("k", 5).await, "{name}");
        rig.now = start + Ticks::from_secs(10);
        assert_eq!(rig.drain("k").await, 0, "{name}: 10 were kept since 7 s");
        rig.now = start + Ticks::from_secs(31);
        assert_eq!(rig.drain("k").await, UNITS, "{name}");
    }
}

/// The same for a commit below the estimate: 9 reserved at 0 s and 1 used leave room for 9 until 10 s, and for no more.
pub(super) async fn a_late_commit_gives_back_its_own_units<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for (name, quota) in exact_windows() {
        let mut rig = rig(make, &quota);
        let start = rig.now;
        let (_, reservation) = rig.engine.reservations().reserve(&asking("k", 9), LIFETIME, rig.now).await;
        rig.now = start + Ticks::from_secs(8);
        assert!(rig.admits("k", 1).await, "{name}");
        let committed =
            rig.engine.reservations().commit(&mut reservation.expect("it was admitted"), 1, rig.now).await;
        assert_eq!(committed.map(|settled| settled.refunded), Ok(8), "{name}");
        assert_eq!(rig.drain("k").await, 8, "{name}");
        rig.now = start + Ticks::from_secs(11);
        assert!(rig.drain("k").await <= 1, "{name}: 9 were kept since 8 s");
    }
}

/// The story: a bucket of 2 that refills 1 in a second gave away most of a unit. A unit cancelled after 0.9 s, which
/// had come back by nine tenths, was refunded in full. 2 at 0.9 s and 1 at 1 s were kept, where 2.1 may be.
pub(super) async fn a_bucket_gives_back_what_it_has_not_regained<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let rate = Rate::per_second(1).burst(2);
    for quota in [Quota::token_bucket(rate), Quota::gcra(rate)] {
        let mut rig = rig(make, &quota.expect("the suite's numbers are valid"));
        let start = rig.now;
        let (_, reservation) = rig.engine.reservations().reserve(&asking("k", 1), LIFETIME, rig.now).await;
        rig.now = start + Ticks::from_millis(900);
        assert!(rig.admits("k", 1).await);
        let cancelled =
            rig.engine.reservations().cancel(&mut reservation.expect("it was admitted"), rig.now).await;
        assert!(cancelled.is_ok());
        assert!(rig.admits("k", 1).await, "what had not come back yet is given back");
        rig.now = start + Ticks::from_millis(1_000);
        assert!(!rig.admits("k", 1).await, "2 were kept at 0.9 s, so the next may pass at 1.9 s");
        rig.now = start + Ticks::from_millis(1_900);
        assert!(rig.admits("k", 1).await);
    }
}

/// The story: 5 pass at 0 s, and 10 at 21 s. A caller that then refunded 5 by attributes alone, and meant those of 0 s,
/// was refunded 5 of the others: 15 were kept at 21 s.
pub(super) async fn a_refund_that_may_be_too_old_is_dropped<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let is_window = |quota: &Quota| {
        matches!(quota, Quota::FixedWindow(_) | Quota::SlidingWindow(_) | Quota::SlidingLog(_))
    };
    for (name, quota) in quotas().into_iter().filter(|(_, quota)| is_window(quota)) {
        let mut rig = rig(make, &quota);
        let start = rig.now;
        assert!(rig.admits("k", 5).await, "{name}");
        rig.now = start + Ticks::from_secs(21);
        assert!(rig.admits("k", UNITS).await, "{name}");
        let age = rig.now.since(start);
        assert!(rig.engine.ledger().refund(&asking("k", 5), &[], age, rig.now).await.is_ok());
        assert_eq!(rig.drain("k").await, 0, "{name}: those of 0 s have long left the window");
        assert!(rig.engine.ledger().refund(&asking("k", 5), &[], Ticks::ZERO, rig.now).await.is_ok());
        assert_eq!(rig.drain("k").await, 5, "{name}: those of this instant count");
    }
}

/// The story of the bucket, with a refund by attributes alone: a unit that may have been charged 0.9 s ago has come
/// back by nine tenths.
pub(super) async fn a_refund_of_an_age_takes_it_to_be_that_old<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let rate = Rate::per_second(1).burst(2);
    for quota in [Quota::token_bucket(rate), Quota::gcra(rate)] {
        let mut rig = rig(make, &quota.expect("the suite's numbers are valid"));
        let start = rig.now;
        assert!(rig.admits("k", 1).await);
        rig.now = start + Ticks::from_millis(900);
        assert!(rig.admits("k", 1).await);
        let age = rig.now.since(start);
        assert!(rig.engine.ledger().refund(&asking("k", 1), &[], age, rig.now).await.is_ok());
        assert!(rig.admits("k", 1).await, "what had not come back yet is given back");
        rig.now = start + Ticks::from_millis(1_000);
        assert!(!rig.admits("k", 1).await, "2 were kept at 0.9 s, so the next may pass at 1.9 s");
        rig.now = start + Ticks::from_millis(1_900);
        assert!(rig.admits("k", 1).await);
    }
}

/// A pseudo-random generator with a fixed seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound.max(1)
    }

    /// The next instant: the same, the next tick, a boundary, a while later, or when nothing counts any more.
    fn next_instant(&mut self, now: Timestamp) -> Timestamp {
        let second = 1_000_000;
        match self.below(12) {
            0..4 => now,
            4 => now + Ticks::ONE,
            5 => now + Ticks::from_micros(second - now.unix_micros() % second),
            6 => now + Ticks::from_micros(10 * second - now.unix_micros() % (10 * second)) - Ticks::ONE,
            7..11 => now + Ticks::from_micros(self.below(3 * second)),
            _ => now + Ticks::from_micros(self.below(12 * second)),
        }
    }
}

/// Units that passed, and how many of them were kept in the end.
#[derive(Clone, Copy, Debug)]
struct Kept {
    at: Timestamp,
    units: u64,
    /// For permits: when they were released.
    until: Option<Timestamp>,
}

/// A reservation that is not settled yet, and its entry in the trace.
struct Open {
    reservation: Reservation,
    entry: usize,
}

/// The charges so far, and those that may still be changed.
#[derive(Default)]
struct Trace {
    kept: Vec<Kept>,
    open: Vec<Open>,
    /// Entries that passed without a reservation.
    checked: Vec<usize>,
    permits: Vec<(Permit, usize)>,
}

impl Trace {
    fn admit(&mut self, at: Timestamp, units: u64) -> usize {
        self.kept.push(Kept { at, units, until: None });
        self.kept.len() - 1
    }
}

fn leaves_at(verdict: Verdict, now: Timestamp) -> Timestamp {
    match verdict {
        Verdict::Wait(wait) => now + wait,
        _ => now,
    }
}

/// Checks or reserves some units, and records what passed.
async fn ask<S: Store>(rig: &Rig<S>, trace: &mut Trace, random: &mut Random, most: u64) {
    let cost = 1 + random.below(most);
    if random.below(3) == 0 {
        let mut decision = rig.check(&asking("k", cost)).await;
        if decision.is_allowed() {
            let entry = trace.admit(leaves_at(decision.verdict(), rig.now), cost);
            trace.permits.extend(decision.take_permit().map(|permit| (permit, entry)));
            trace.checked.push(entry);
        }
        return;
    }
    let (decision, reservation) =
        rig.engine.reservations().reserve(&asking("k", cost), LIFETIME, rig.now).await;
    if let Some(reservation) = reservation {
        let entry = trace.admit(leaves_at(decision.verdict(), rig.now), cost);
        trace.open.push(Open { reservation, entry });
    }
}

/// Settles one open reservation: at nothing, at a part, or above its estimate.
async fn settle<S: Store>(rig: &Rig<S>, trace: &mut Trace, random: &mut Random, quota: &Quota) {
    if trace.open.is_empty() {
        return;
    }
    let place = usize::try_from(random.below(trace.open.len() as u64)).unwrap_or(0);
    let Open { mut reservation, entry } = trace.open.swap_remove(place);
    let cost = trace.kept[entry].units;
    let actual = match random.below(3) {
        0 => None,
        1 => Some(random.below(cost + 1)),
        // Units charged beyond a queue slot belong to no departure.
        _ if matches!(quota, Quota::LeakyBucket(_)) => Some(cost),
        _ => Some(cost + random.below(3)),
    };
    let settled = match actual {
        None => rig.engine.reservations().cancel(&mut reservation, rig.now).await,
        Some(actual) => rig.engine.reservations().commit(&mut reservation, actual, rig.now).await,
    };
    let settled = match settled {
        Ok(settled) => settled,
        Err(failure) => return assert_eq!(failure, CommitError::Expired),
    };
    if settled.charged > 0 {
        trace.admit(rig.now, settled.charged);
    }
    let kept = &mut trace.kept[entry];
    match quota {
        Quota::Concurrency(_) => kept.until = Some(rig.now),
        // A request that has left the queue has used its slot, whatever it cost in the end.
        Quota::LeakyBucket(_) => kept.units -= settled.refunded.min(kept.units),
        _ => kept.units = kept.units.min(actual.unwrap_or(0)),
    }
}

/// Refunds some units that passed without a reservation, by attributes and an age alone. The age is never less than the
/// true one.
async fn refund<S: Store>(rig: &Rig<S>, trace: &mut Trace, random: &mut Random, quota: &Quota) {
    // A leaky bucket keeps its queue slots, and permits have ids.
    if trace.checked.is_empty() || matches!(quota, Quota::LeakyBucket(_) | Quota::Concurrency(_)) {
        return;
    }
    let place = usize::try_from(random.below(trace.checked.len() as u64)).unwrap_or(0);
    let kept = &mut trace.kept[trace.checked[place]];
    let units = random.below(kept.units + 1);
    let within = rig.now.since(kept.at) + Ticks::from_micros(random.below(2) * random.below(500_000));
    kept.units -= units;
    assert!(rig.engine.ledger().refund(&asking("k", units), &[], within, rig.now).await.is_ok());
}

/// Plays a random trace. Returns what was kept.
async fn play<S: Store>(rig: &mut Rig<S>, quota: &Quota, seed: u64) -> Vec<Kept> {
    let mut random = Random::new(seed);
    let mut trace = Trace::default();
    // In a queue each unit has a departure of its own only if its request costs one unit.
    let most = if matches!(quota, Quota::LeakyBucket(_)) { 1 } else { 6 };
    for _ in 0..STEPS {
        rig.now = random.next_instant(rig.now);
        match random.below(9) {
            8 => refund(rig, &mut trace, &mut random, quota).await,
            0..5 => ask(rig, &mut trace, &mut random, most).await,
            5 if !trace.permits.is_empty() => {
                let (permit, entry) = trace.permits.swap_remove(0);
                assert!(rig.engine.reservations().release(&permit, rig.now).await.is_ok());
                trace.kept[entry].until = Some(rig.now);
            }
            _ => settle(rig, &mut trace, &mut random, quota).await,
        }
    }
    trace.kept.sort_by_key(|kept| kept.at);
    trace.kept
}

/// The most units kept in any interval of `length`, without its end: every interval that begins with an entry is tried.
fn most_within(kept: &[Kept], length: Ticks) -> u64 {
    let inside = |first: &Kept| {
        let within = kept.iter().filter(|one| one.at >= first.at && one.at < first.at + length);
        within.map(|one| one.units).sum()
    };
    kept.iter().map(inside).max().unwrap_or(0)
}

/// The most by which any interval holds more than the rate alone admits, in units × ticks of the rate's period.
fn most_above(kept: &[Kept], rate: Rate) -> i128 {
    let (gained, period) = (i128::from(rate.units()), i128::from(rate.period().as_micros()));
    let mut most = 0;
    for (first, from) in kept.iter().enumerate() {
        let mut units = 0;
        for to in &kept[first..] {
            units += i128::from(to.units);
            most = most.max(units * period - gained * i128::from(to.at.since(from.at).as_micros()));
        }
    }
    most
}

/// The most units in flight at any instant.
fn most_in_flight(kept: &[Kept], ttl: Ticks) -> u64 {
    let in_flight = |at: Timestamp| {
        let ends = |one: &Kept| one.until.map_or(one.at + ttl, |until| until.min(one.at + ttl));
        kept.iter().filter(|one| one.at <= at && at < ends(one)).map(|one| one.units).sum()
    };
    kept.iter().map(|one| in_flight(one.at)).max().unwrap_or(0)
}

/// Asserts the bound that the definition sets for what was kept.
fn assert_bound(name: &str, quota: &Quota, kept: &[Kept], seed: u64) {
    let windows = || kept.iter().map(|one| one.at.unix_micros() / PERIOD.as_micros());
    let holds = match quota {
        Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_) => {
            let rate = quota.rate().expect("a bucket has a rate");
            let period = i128::from(rate.period().as_micros());
            // A leaky bucket lets units depart one at a time, and a departure is rounded up to a whole tick.
            let (burst, rounding) = match quota {
                Quota::LeakyBucket(_) => (1, i128::from(rate.units())),
                _ => (i128::from(UNITS), 0),
            };
            most_above(kept, rate) <= burst * period + rounding
        }
        Quota::FixedWindow(window) if *window.align() == Align::Epoch => windows().all(|window| {
            let inside = kept.iter().filter(|one| one.at.unix_micros() / PERIOD.as_micros() == window);
            inside.map(|one| one.units).sum::<u64>() <= UNITS
        }),
        Quota::FixedWindow(_) => most_within(kept, PERIOD) <= 2 * UNITS,
        Quota::SlidingWindow(window) if window.estimate() == Estimate::Interpolate => {
            most_within(kept, PERIOD) < 2 * UNITS
        }
        Quota::SlidingWindow(_) | Quota::SlidingLog(_) => most_within(kept, PERIOD) <= UNITS,
        Quota::Concurrency(permits) => most_in_flight(kept, permits.ttl()) <= UNITS,
    };
    assert!(holds, "{name}, seed {seed}: kept {kept:#?}");
}

/// Whatever is settled, when and to what: no interval keeps more than the algorithm's definition admits.
pub(super) async fn no_interval_keeps_more_than_its_bound<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for (name, quota) in quotas() {
        for seed in SEEDS {
            let mut rig = rig(make, &quota);
            let kept = play(&mut rig, &quota, seed).await;
            assert!(kept.len() > 5, "{name}, seed {seed}: nothing happened");
            assert_bound(name, &quota, &kept, seed);
        }
    }
}

/// A store that drops every refund would keep every bound. So after any trace, a reservation that is cancelled at once
/// leaves every number as it was.
pub(super) async fn an_immediate_cancel_restores_the_capacity<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for (name, quota) in quotas() {
        for seed in SEEDS {
            let mut rig = rig(make, &quota);
            play(&mut rig, &quota, seed).await;
            let before = rig.peek("k").await;
            let room = rig.left("k", "limit").await.min(3);
            // A request that leaves a queue at once was never in it; one that did not have to wait has departed.
            if room == 0 || matches!(quota, Quota::LeakyBucket(_)) {
                continue;
            }
            let (_, reservation) =
                rig.engine.reservations().reserve(&asking("k", room), LIFETIME, rig.now).await;
            let mut reservation = reservation.unwrap_or_else(|| panic!("{name}: there was room for {room}"));
            assert!(rig.engine.reservations().cancel(&mut reservation, rig.now).await.is_ok());
            assert_eq!(rig.peek("k").await, before, "{name}, seed {seed}");
        }
    }
}
