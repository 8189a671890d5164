//! When a wait's turn comes at the earliest, judged by the counter and by those in line ahead.

use super::KeyedGate;
use super::queue::Run;
use crate::algorithm::reservoir::Reservoir;
use crate::key::Fingerprint;
use crate::outcome::Outcome;
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// The least that who has `ticket` and wants `cost` must wait: for a reservoir what it and those ahead need, else what it
/// alone needs.
pub(super) fn least_wait(
    gate: &KeyedGate,
    key: Fingerprint,
    ticket: u64,
    cost: u64,
    now: Timestamp,
) -> Ticks {
    let (mut line, look) = gate.shared.queues.ahead(key, ticket, || gate.charge_key(key, now, 0));
    line.push(Run { cost, count: 1 });
    let wanted = wanted(&line);
    match &gate.shared.quota {
        Quota::TokenBucket(bucket) => steady(bucket.reservoir(), 0, &look, wanted),
        Quota::Gcra(bucket) => steady(bucket.reservoir(), 0, &look, wanted),
        Quota::LeakyBucket(bucket) => steady(bucket.shape().reservoir(), bucket.queue(), &look, wanted),
        Quota::Concurrency(_) if wanted > look.remaining => look.next_unit_after,
        _ if cost > look.remaining => look.next_unit_after,
        _ => Ticks::ZERO,
    }
}

fn wanted(line: &[Run]) -> u64 {
    line.iter().fold(0, |sum, run| sum.saturating_add(run.cost.saturating_mul(run.count)))
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
