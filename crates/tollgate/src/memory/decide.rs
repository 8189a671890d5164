//! Decides on small states: unpacks a state, converts it from another quota if needed, runs the algorithm,
//! and packs the new state. Pure; the caller holds the lock.

use crate::algorithm::reservoir::FRACTION_BITS;
use crate::algorithm::{Charged, fixed_window, gcra, leaky_bucket, token_bucket};
use crate::memory::table::SlotEntry;
use crate::memory::wall::WallClockHistory;
use crate::outcome::Outcome;
use crate::quota::Quota;
use crate::store::{Charge, StoreFailure};
use crate::time::{Ticks, Timestamp};

/// The result of one decision: the entry to write, if it changes, and the outcome.
pub(crate) type StepResult<E> = Result<(Option<E>, Outcome), StoreFailure>;

/// How a counter is charged, if not plainly.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChargeMode {
    /// Charges the cost if the counter would admit this many units.
    If(u64),
    /// Checks whether the counter would admit this many units, and charges nothing.
    Would(u64),
    /// Charges up to the cost without a check, and leaves at least this many units.
    UpTo(u64),
}

impl ChargeMode {
    /// Charges by the given step function.
    pub(crate) fn ask<E>(self, cost: u64, step: impl Fn(u64) -> StepResult<E>) -> StepResult<E> {
        match self {
            ChargeMode::If(units) => match step(units)? {
                (_, outcome) if outcome.is_allowed() => step(cost),
                refused => Ok(refused),
            },
            ChargeMode::Would(units) => match step(units)? {
                (_, outcome) if outcome.is_allowed() => Ok((None, outcome)),
                refused => Ok(refused),
            },
            ChargeMode::UpTo(left) => {
                let (keep, look) = step(0)?;
                match cost.min(look.remaining.saturating_sub(left)) {
                    0 => Ok((keep, look)),
                    units => step(units),
                }
            }
        }
    }
}

/// The instant from which 48-bit ticks are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(pub(crate) Timestamp);

/// How long before its creation a store can tell instants apart.
const BEFORE: Ticks = Ticks::from_secs(366 * 86_400);
/// How long after its origin time stands still: states reach two years ahead, and must fit 48 bits.
const SPAN: Ticks = Ticks::from_micros((1 << 48) - 1 - 2 * 366 * 86_400 * 1_000_000);

impl Origin {
    /// The Unix epoch: durations as words.
    pub(crate) const EPOCH: Origin = Origin(Timestamp::from_unix_seconds(0));

    /// The origin of a store that is created at this instant.
    pub(crate) fn of(made_at: Timestamp) -> Self {
        Self(made_at.decidable() - BEFORE)
    }

    /// Clamps an instant to the range of the store. Outside of it time stands still, and nothing refills.
    #[inline]
    pub(crate) fn clamp(self, now: Timestamp) -> Timestamp {
        now.decidable().clamp(self.0, self.0 + SPAN)
    }

    /// An instant as a word, if it is within the range of the store.
    #[inline(always)]
    pub(crate) const fn try_word(self, now: Timestamp) -> Option<u64> {
        let ticks = now.unix_micros().wrapping_sub(self.0.unix_micros());
        if ticks > SPAN.as_micros() { None } else { Some(ticks << FRACTION_BITS) }
    }

    /// An instant as the first word of a one-word state.
    #[inline]
    pub(crate) fn word(self, at: Timestamp) -> u64 {
        at.since(self.0).as_micros() << FRACTION_BITS
    }

    #[inline]
    pub(super) fn pack(self, state: gcra::State) -> [u64; 1] {
        let (tick, fraction) = state.parts();
        [self.word(tick) | u64::from(fraction)]
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "the low sixteen bits are the fraction")]
    pub(super) fn unpack(self, [word]: [u64; 1]) -> gcra::State {
        gcra::State::new(self.0 + Ticks::from_micros(word >> FRACTION_BITS), word as u16)
    }
}

/// Charges a GCRA, a leaky bucket, or a token bucket whose fractions fit into one word.
#[inline(always)]
pub(crate) fn word(
    charge: &Charge<'_>,
    held: Option<SlotEntry<1>>,
    now: Timestamp,
    origin: Origin,
) -> StepResult<SlotEntry<1>> {
    let state = word_state(charge, held, now, origin)?;
    let (next, outcome) = match charge.quota {
        Quota::Gcra(quota) => gcra::charge(quota.reservoir(), state, now, charge.cost),
        Quota::TokenBucket(quota) => gcra::charge(quota.reservoir(), state, now, charge.cost),
        Quota::LeakyBucket(quota) => leaky_bucket::charge(quota, state, now, charge.cost),
        _ => return Err(StoreFailure::WrongKind),
    };
    let keep = (next != state).then(|| SlotEntry { state: origin.pack(next), number: charge.number });
    Ok((keep, outcome))
}

/// Refunds a charge under the quota that counted it.
pub(crate) fn refund_word(
    charge: &Charge<'_>,
    held: SlotEntry<1>,
    now: Timestamp,
    origin: Origin,
) -> Result<SlotEntry<1>, StoreFailure> {
    let Some(record) = charge.family.record(held.number) else { return unknown(held, origin.word(now)) };
    let reservoir = record.quota.reservoir().ok_or(StoreFailure::WrongKind)?;
    let (state, at) = (origin.unpack(held.state), record.latest(now));
    let next = gcra::refund(reservoir, state, at, charge.cost, charge.charged);
    Ok(SlotEntry { state: origin.pack(next), number: held.number })
}

/// Takes back the last charge of a leaky bucket; `None` if it is not the last, or the quota has changed.
pub(crate) fn step_back_word(
    charge: &Charge<'_>,
    held: SlotEntry<1>,
    empty_at: Timestamp,
    now: Timestamp,
    origin: Origin,
) -> Option<SlotEntry<1>> {
    let Quota::LeakyBucket(quota) = charge.quota else { return None };
    if held.number != charge.number {
        return None;
    }
    let state = origin.unpack(held.state);
    let next = gcra::step_back(quota.shape().reservoir(), state, empty_at, now, charge.cost)?;
    Some(SlotEntry { state: origin.pack(next), number: held.number })
}

#[inline]
fn word_state(
    charge: &Charge<'_>,
    held: Option<SlotEntry<1>>,
    now: Timestamp,
    origin: Origin,
) -> Result<gcra::State, StoreFailure> {
    match held {
        None => Ok(gcra::State::default()),
        Some(entry) if entry.number == charge.number => Ok(origin.unpack(entry.state)),
        Some(entry) => inherit_word(charge, entry, now, origin),
    }
}

#[cold]
fn inherit_word(
    charge: &Charge<'_>,
    entry: SlotEntry<1>,
    now: Timestamp,
    origin: Origin,
) -> Result<gcra::State, StoreFailure> {
    let Some(steps) = charge.family.successions(entry.number, charge.number, now) else {
        return unknown(entry, origin.word(now)).map(|_| gcra::State::default());
    };
    let mut state = origin.unpack(entry.state);
    for step in steps {
        let (Some(next), Some(previous)) = (step.to.reservoir(), step.from.reservoir()) else {
            return Err(StoreFailure::WrongKind);
        };
        if next != previous {
            state = gcra::inherit(next, previous, state, step.at);
        }
    }
    Ok(state)
}

/// Handles a state whose quota this policy does not know: it is either idle, or of a newer policy.
fn unknown<const WORDS: usize>(
    entry: SlotEntry<WORDS>,
    horizon: u64,
) -> Result<SlotEntry<WORDS>, StoreFailure> {
    if entry.state[0] <= horizon { Ok(entry) } else { Err(StoreFailure::Superseded) }
}

/// Charges a fixed window, or a token bucket whose fractions need a second word.
#[inline]
pub(crate) fn pair(
    charge: &Charge<'_>,
    held: Option<SlotEntry<2>>,
    now: Timestamp,
    walls: &WallClockHistory,
) -> StepResult<SlotEntry<2>> {
    let (keep, outcome) = match (charge.quota, pair_state(charge, held, now, walls)?) {
        (Quota::TokenBucket(quota), PairState::Bucket(state)) => bucket_step(charge, quota, state, now),
        (Quota::FixedWindow(quota), PairState::Window(state)) => {
            let (next, outcome) =
                fixed_window::charge(quota, state, now.on_wall(walls.offset()), charge.cost);
            // A moved window is written even if it denies, so that its reported end holds.
            let is_moved = held.is_some_and(|entry| !walls.is_present(entry.state)) && next.count() > 0;
            ((next != state || is_moved).then(|| walls.pack(next)), outcome)
        }
        _ => return Err(StoreFailure::WrongKind),
    };
    Ok((keep.map(|state| SlotEntry { state, number: charge.number }), outcome))
}

/// Refunds a charge of a two-word state.
pub(crate) fn refund_pair(
    charge: &Charge<'_>,
    held: SlotEntry<2>,
    now: Timestamp,
    walls: &WallClockHistory,
) -> Result<SlotEntry<2>, StoreFailure> {
    let Some(record) = charge.family.record(held.number) else { return unknown(held, now.unix_micros()) };
    let now = record.latest(now);
    let state = match &record.quota {
        Quota::TokenBucket(quota) => {
            let state = unpack_bucket(Some(held), quota);
            pack_bucket(token_bucket::refund(quota, state, now, charge.cost, charge.charged), quota)
        }
        Quota::FixedWindow(quota) => {
            let (state, wall) = (walls.unpack(held.state, quota), walls.offset());
            let charged = match charge.charged {
                Charged::At(at) => Charged::At(at.on_wall(wall)),
                within @ Charged::Within(_) => within,
            };
            walls.pack(fixed_window::refund(quota, state, now.on_wall(wall), charge.cost, charged))
        }
        _ => return Err(StoreFailure::WrongKind),
    };
    Ok(SlotEntry { state, number: held.number })
}

enum PairState {
    Bucket(token_bucket::State),
    /// In wall-clock time.
    Window(fixed_window::State),
}

#[inline]
fn pair_state(
    charge: &Charge<'_>,
    held: Option<SlotEntry<2>>,
    now: Timestamp,
    walls: &WallClockHistory,
) -> Result<PairState, StoreFailure> {
    // An idle entry may belong to an earlier quota of the same number.
    let is_current =
        |entry: &SlotEntry<2>| entry.number != charge.number || entry.state[0] > now.unix_micros();
    match held.filter(is_current) {
        Some(entry) if entry.number != charge.number => inherit_pair(charge, entry, now, walls),
        held => match charge.quota {
            Quota::TokenBucket(quota) => Ok(PairState::Bucket(unpack_bucket(held, quota))),
            Quota::FixedWindow(quota) => Ok(PairState::Window(
                held.map_or_else(fixed_window::State::default, |entry| walls.unpack(entry.state, quota)),
            )),
            _ => Err(StoreFailure::WrongKind),
        },
    }
}

#[cold]
fn inherit_pair(
    charge: &Charge<'_>,
    entry: SlotEntry<2>,
    now: Timestamp,
    walls: &WallClockHistory,
) -> Result<PairState, StoreFailure> {
    let Some(steps) = charge.family.successions(entry.number, charge.number, now) else {
        unknown(entry, now.unix_micros())?;
        return pair_state(charge, None, now, walls);
    };
    let Some(first) = steps.first() else { return pair_state(charge, None, now, walls) };
    let mut state = match first.from {
        Quota::TokenBucket(old) => PairState::Bucket(unpack_bucket(Some(entry), old)),
        Quota::FixedWindow(old) => PairState::Window(walls.unpack(entry.state, old)),
        _ => return Err(StoreFailure::WrongKind),
    };
    for step in steps.iter().filter(|step| step.from != step.to) {
        state = match (step.to, step.from, state) {
            (Quota::TokenBucket(quota), Quota::TokenBucket(old), PairState::Bucket(state)) => {
                PairState::Bucket(token_bucket::inherit(quota, old, state, step.at))
            }
            (Quota::FixedWindow(quota), Quota::FixedWindow(old), PairState::Window(state)) => {
                let at = step.at.on_wall(walls.offset());
                PairState::Window(fixed_window::inherit(quota, old, state, at))
            }
            _ => return Err(StoreFailure::WrongKind),
        };
    }
    Ok(state)
}

type PairStep = (Option<[u64; 2]>, Outcome);

#[inline]
fn bucket_step(
    charge: &Charge<'_>,
    quota: &token_bucket::TokenBucket,
    state: token_bucket::State,
    now: Timestamp,
) -> PairStep {
    let (next, outcome) = token_bucket::charge(quota, state, now, charge.cost);
    ((next != state).then(|| pack_bucket(next, quota)), outcome)
}

#[inline]
fn pack_bucket(state: token_bucket::State, quota: &token_bucket::TokenBucket) -> [u64; 2] {
    let (full_at, surplus) = state.to_full(quota.reservoir());
    [full_at.unix_micros(), surplus]
}

#[inline]
fn unpack_bucket(held: Option<SlotEntry<2>>, quota: &token_bucket::TokenBucket) -> token_bucket::State {
    held.map_or_else(token_bucket::State::default, |entry| {
        let full_at = Timestamp::from_unix_micros(entry.state[0]);
        token_bucket::State::from_full(full_at, entry.state[1], quota.reservoir())
    })
}
