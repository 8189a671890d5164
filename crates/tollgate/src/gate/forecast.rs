//! The earliest instant at which a waiter can be served, simulated on a copy of the counter with the waiters
//! ahead.
//!
//! It assumes that the waiters ahead stay and are served as early as possible, that no other request comes,
//! and that no units are given back. So a waiter is never served earlier, unless a waiter ahead leaves or
//! units are given back.

use super::queue::CostRun;
use super::{GateShared, KeyedGate};
use crate::algorithm::fixed_window::{self, FixedWindow};
use crate::algorithm::reservoir::Reservoir;
use crate::algorithm::sliding_log::{self, SlidingLog};
use crate::algorithm::sliding_window::{self, SlidingWindow};
use crate::key::Fingerprint;
use crate::memory::Large;
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp, WallOffset};

/// The maximum number of simulated instants, which bounds the time of one poll. All waiters served at one
/// instant count once. Beyond it the forecast is too early and never too late.
const INSTANTS_MAX: u32 = 4_096;

/// The minimum wait of the waiter with `ticket` and `cost`. Exact for windows and logs up to the horizon.
/// Beyond it, and for reservoirs to within a tick per waiter, it is a lower bound. Permits are assumed to
/// return by expiry only, and only the next expiry is considered.
pub(super) fn least_wait(
    gate: &KeyedGate,
    key: Fingerprint,
    ticket: u64,
    cost: u64,
    now: Timestamp,
    horizon: Timestamp,
) -> Ticks {
    let shared = &*gate.shared;
    let (mut runs, (snapshot, course)) = shared.queues.ahead(key, ticket, || {
        let snapshot = gate.charge_key(key, now, 0);
        (snapshot, Forecast::starting(shared, key, &snapshot, now))
    });
    runs.push(CostRun { cost, count: 1 });
    match course {
        // A query has no departure to wait for.
        Forecast::Steady(reservoir, _) if cost == 0 => steady(reservoir, 0, &snapshot, total_cost(&runs)),
        Forecast::Steady(reservoir, queue) => steady(reservoir, queue, &snapshot, total_cost(&runs)),
        Forecast::Permits if total_cost(&runs) <= snapshot.remaining => Ticks::ZERO,
        Forecast::Permits => snapshot.next_unit_after,
        Forecast::Played(mut counter) => counter.play(&runs, now, horizon).since(now),
    }
}

fn total_cost(runs: &[CostRun]) -> u64 {
    runs.iter().fold(0, |sum, run| sum.saturating_add(run.cost.saturating_mul(run.count)))
}

/// How to forecast a quota.
enum Forecast<'a> {
    /// Units refill one by one: a formula. With the number of units that may be queued before they are due.
    Steady(&'a Reservoir, u64),
    /// Permits return when their owners are done, or expire.
    Permits,
    Played(SimulatedCounter<'a>),
}

/// A copy of a counter for the simulation.
enum SimulatedCounter<'a> {
    /// In wall-clock time, with this offset.
    Window(&'a FixedWindow, fixed_window::State, WallOffset),
    Sliding(&'a SlidingWindow, sliding_window::State),
    Log(&'a SlidingLog, sliding_log::State),
}

impl<'a> Forecast<'a> {
    fn starting(shared: &'a GateShared, key: Fingerprint, snapshot: &Outcome, now: Timestamp) -> Self {
        let large = || shared.store.copy_large(key, now);
        match &shared.quota {
            Quota::TokenBucket(bucket) => Forecast::Steady(bucket.reservoir(), 0),
            Quota::Gcra(bucket) => Forecast::Steady(bucket.reservoir(), 0),
            Quota::LeakyBucket(bucket) => Forecast::Steady(bucket.shape().reservoir(), bucket.queue()),
            Quota::Concurrency(_) => Forecast::Permits,
            Quota::FixedWindow(quota) => {
                // The outcome of a query is the whole state of a fixed window.
                let count = snapshot.limit - snapshot.remaining;
                let wall = shared.clock.wall_offset(now);
                let state = fixed_window::State::new(now.on_wall(wall) + snapshot.reset_after, count);
                Forecast::Played(SimulatedCounter::Window(quota, state, wall))
            }
            Quota::SlidingWindow(quota) => {
                let state = match large() {
                    Some(Large::Window(state)) => state,
                    _ => sliding_window::State::default(),
                };
                Forecast::Played(SimulatedCounter::Sliding(quota, state))
            }
            Quota::SlidingLog(quota) => {
                let state = match large() {
                    Some(Large::Log(state)) => state,
                    _ => sliding_log::State::default(),
                };
                Forecast::Played(SimulatedCounter::Log(quota, state))
            }
        }
    }
}

impl SimulatedCounter<'_> {
    /// Serves the waiters from `now` on. Returns when the last was served. Stops early beyond the horizon or
    /// after [`INSTANTS_MAX`].
    fn play(&mut self, runs: &[CostRun], now: Timestamp, horizon: Timestamp) -> Timestamp {
        let (mut at, mut instants) = (now, 0);
        for &CostRun { cost, mut count } in runs.iter().filter(|run| run.cost > 0) {
            while count > 0 {
                let served = self.charge(at, cost);
                if let Verdict::Deny { retry_after } = served.verdict {
                    at = at + retry_after.max(Ticks::ONE);
                    instants += 1;
                    if at > horizon || instants >= INSTANTS_MAX {
                        return at;
                    }
                    continue;
                }
                // As many more as fit are served at the same instant, as one charge.
                let more = (served.remaining / cost).min(count - 1);
                if more > 0 {
                    self.charge(at, more * cost);
                }
                count -= 1 + more;
            }
        }
        at
    }

    fn charge(&mut self, now: Timestamp, cost: u64) -> Outcome {
        match self {
            SimulatedCounter::Window(quota, state, wall) => {
                let (next, outcome) = fixed_window::charge(quota, *state, now.on_wall(*wall), cost);
                *state = next;
                outcome
            }
            SimulatedCounter::Sliding(quota, state) => {
                let (next, outcome) = sliding_window::charge(quota, std::mem::take(state), now, cost);
                *state = next;
                outcome
            }
            SimulatedCounter::Log(quota, state) => {
                let (next, outcome) = sliding_log::charge(quota, std::mem::take(state), now, cost);
                *state = next;
                outcome
            }
        }
    }
}

/// The minimum wait at a reservoir. A shaping reservoir queues up to `queue` units before they are due; they
/// depart when that much of it is free again.
fn steady(reservoir: &Reservoir, queue: u64, snapshot: &Outcome, wanted: u64) -> Ticks {
    let wanted = wanted.saturating_add(queue);
    if wanted <= snapshot.remaining {
        return Ticks::ZERO;
    }
    let short = wanted - snapshot.remaining;
    // The first missing unit refills after `next_unit_after`, each further one an emission interval later.
    let later = if snapshot.next_unit_after.is_zero() { short } else { short - 1 };
    let pace = reservoir.pace();
    let more = u128::from(later) * u128::from(pace.unit_credits().get()) / u128::from(pace.gain().get());
    snapshot.next_unit_after + Ticks::from_micros(u64::try_from(more).unwrap_or(u64::MAX))
}
