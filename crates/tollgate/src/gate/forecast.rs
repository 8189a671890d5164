//! When a wait's turn comes at the earliest: the counter and those in line ahead, played on without touching either.
//!
//! Those ahead are taken to stay, each to be served as early as the counter allows. Nobody else is expected to come, and
//! nobody to give units back. So the turn never comes earlier than told here unless somebody ahead gives up or gives back.

use super::queue::Run;
use super::{KeyedGate, Shared};
use crate::algorithm::fixed_window::{self, FixedWindow};
use crate::algorithm::reservoir::Reservoir;
use crate::algorithm::sliding_log::{self, SlidingLog};
use crate::algorithm::sliding_window::{self, SlidingWindow};
use crate::key::Fingerprint;
use crate::memory::Large;
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp, WallOffset};

/// Most instants that a forecast plays through, so that one poll never takes long. All that are served at one instant count
/// once. Who stands behind more is told the last of them, which is too early and never too late.
const INSTANTS_MAX: u32 = 4_096;

/// The least that who has `ticket` and wants `cost` must wait. Exact for windows and logs up to the horizon; beyond it, and
/// for reservoirs to within a tick for each in line, no more than what it will be. Places in flight are taken to return by
/// expiry only, and those that follow the next one's are not looked at.
pub(super) fn least_wait(
    gate: &KeyedGate,
    key: Fingerprint,
    ticket: u64,
    cost: u64,
    now: Timestamp,
    horizon: Timestamp,
) -> Ticks {
    let shared = &*gate.shared;
    let (mut line, (look, course)) = shared.queues.ahead(key, ticket, || {
        let look = gate.charge_key(key, now, 0);
        (look, Course::starting(shared, key, &look, now))
    });
    line.push(Run { cost, count: 1 });
    match course {
        // Who only looks has no departure to wait for.
        Course::Steady(reservoir, _) if cost == 0 => steady(reservoir, 0, &look, wanted(&line)),
        Course::Steady(reservoir, queue) => steady(reservoir, queue, &look, wanted(&line)),
        Course::Permits if wanted(&line) <= look.remaining => Ticks::ZERO,
        Course::Permits => look.next_unit_after,
        Course::Played(mut counter) => counter.play(&line, now, horizon).since(now),
    }
}

fn wanted(line: &[Run]) -> u64 {
    line.iter().fold(0, |sum, run| sum.saturating_add(run.cost.saturating_mul(run.count)))
}

/// How a quota's future is told.
enum Course<'a> {
    /// Units come back one by one: a formula, whatever the line. With the room for units that are not yet due.
    Steady(&'a Reservoir, u64),
    /// Places come back when their holders are done, or expire.
    Permits,
    Played(Counter<'a>),
}

/// A copy of a counter to play with.
enum Counter<'a> {
    /// On the wall's time, which is so far ahead.
    Window(&'a FixedWindow, fixed_window::State, WallOffset),
    Sliding(&'a SlidingWindow, sliding_window::State),
    Log(&'a SlidingLog, sliding_log::State),
}

impl<'a> Course<'a> {
    fn starting(shared: &'a Shared, key: Fingerprint, look: &Outcome, now: Timestamp) -> Self {
        let large = || shared.store.copy_large(key, now);
        match &shared.quota {
            Quota::TokenBucket(bucket) => Course::Steady(bucket.reservoir(), 0),
            Quota::Gcra(bucket) => Course::Steady(bucket.reservoir(), 0),
            Quota::LeakyBucket(bucket) => Course::Steady(bucket.shape().reservoir(), bucket.queue()),
            Quota::Concurrency(_) => Course::Permits,
            Quota::FixedWindow(quota) => {
                // A look tells all that a fixed window knows.
                let count = look.limit - look.remaining;
                let wall = shared.clock.wall_offset(now);
                let state = fixed_window::State::new(now.on_wall(wall) + look.reset_after, count);
                Course::Played(Counter::Window(quota, state, wall))
            }
            Quota::SlidingWindow(quota) => {
                let state = match large() {
                    Some(Large::Window(state)) => state,
                    _ => sliding_window::State::default(),
                };
                Course::Played(Counter::Sliding(quota, state))
            }
            Quota::SlidingLog(quota) => {
                let state = match large() {
                    Some(Large::Log(state)) => state,
                    _ => sliding_log::State::default(),
                };
                Course::Played(Counter::Log(quota, state))
            }
        }
    }
}

impl Counter<'_> {
    /// Serves a line from `now` on: when its last was served. Stops early past the horizon, or after [`INSTANTS_MAX`].
    fn play(&mut self, line: &[Run], now: Timestamp, horizon: Timestamp) -> Timestamp {
        let (mut at, mut instants) = (now, 0);
        for &Run { cost, mut count } in line.iter().filter(|run| run.cost > 0) {
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
                // As many more as fit are served at the same instant, which is the same as one of them that wants it all.
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
            Counter::Window(quota, state, wall) => {
                let (next, outcome) = fixed_window::charge(quota, *state, now.on_wall(*wall), cost);
                *state = next;
                outcome
            }
            Counter::Sliding(quota, state) => {
                let (next, outcome) = sliding_window::charge(quota, std::mem::take(state), now, cost);
                *state = next;
                outcome
            }
            Counter::Log(quota, state) => {
                let (next, outcome) = sliding_log::charge(quota, std::mem::take(state), now, cost);
                *state = next;
                outcome
            }
        }
    }
}

/// The least wait at a reservoir. A shaping one has room for `queue` units that are not yet due: they leave when that much of
/// it is free again.
fn steady(reservoir: &Reservoir, queue: u64, look: &Outcome, wanted: u64) -> Ticks {
    let wanted = wanted.saturating_add(queue);
    if wanted <= look.remaining {
        return Ticks::ZERO;
    }
    let short = wanted - look.remaining;
    // The first missing unit comes after `next_unit_after`, each further one an emission interval later.
    let later = if look.next_unit_after.is_zero() { short } else { short - 1 };
    let pace = reservoir.pace();
    let more = u128::from(later) * u128::from(pace.price().get()) / u128::from(pace.gain().get());
    look.next_unit_after + Ticks::from_micros(u64::try_from(more).unwrap_or(u64::MAX))
}
