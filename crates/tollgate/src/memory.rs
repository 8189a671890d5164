//! The memory store: all counters of one process, bounded by bytes, without a background thread.
//!
//! Small states live in tables of cache lines, large ones in a sharded map. Each exists twice: in the main
//! partition, and in a small one for the counters that new keys share while the main partition is full. A key
//! is evicted only when its state equals that of a new key. So a flood of new keys neither frees a throttled
//! key nor denies a known one.

use std::sync::Arc;

use crate::algorithm::reservoir::Word;
use crate::clock::Clock;
use crate::departure::{DepartureQueues, DepartureRequest, DepartureSlot, LeaveOutcome};
use crate::key::Fingerprint;
use crate::memory::budget::Budget;
use crate::memory::large::{LargeMap, SourcedOutcome};
use crate::memory::table::{Table, UnitStep};
use crate::outcome::{Outcome, Source, Verdict};
use crate::quota::Quota;
use crate::store::{Answers, Charge, ChargeAnswer, Hold, Store, StoreFailure};
use crate::time::{Ticks, Timestamp, WallOffset};

mod decide;
mod holds;
mod waiters;
mod budget;
mod region;
mod large;
mod table;
mod transaction;
mod export;
mod wall;

pub(crate) use decide::{ChargeMode, Origin};
pub(crate) use export::Piece;
pub(crate) use holds::ActiveHold;
pub(crate) use large::{Large, LargeEntry, state_bytes};
pub(crate) use table::{Full, Slot, SlotEntry};
pub(crate) use wall::{KeptSettings, Setting, WALL_SETTINGS_MAX, setting_of};

/// The number of quota numbers.
pub(crate) const NUMBERS_MAX: usize = 1 << table::NUMBER_BITS;
/// The quota number of all tallies. No limit has it, because holds apply to the quota numbers of limits and
/// must not apply to tallies.
pub(crate) const NUMBER_OF_TALLIES: u32 = (1 << table::NUMBER_BITS) - 1;
/// Maximum number of quotas that count one limit at a time, including those of replaced policies.
pub(crate) const QUOTA_NUMBERS_MAX: usize = NUMBERS_MAX - 1;

/// The default memory budget in bytes.
pub(crate) const CAPACITY_BYTES_DEFAULT: u64 = 64 << 20;
/// The bounds of the overflow partition in bytes.
const OVERFLOW_BYTES: (u64, u64) = (64 << 10, 8 << 20);
/// How long an idle key keeps its slot while there is space for others.
const IDLE_GRACE: Timestamp = Timestamp::from_unix_seconds(10);
/// The retry time of a new key when even the overflow partition is full.
const FULL_RETRY: Ticks = Ticks::from_secs(1);

/// Counters in this process's memory.
///
/// ```
/// use tollgate::{MemoryStore, Timestamp};
/// let store = MemoryStore::new(16 << 20, Timestamp::from_unix_seconds(1_700_000_000));
/// assert!(store.usage(Timestamp::from_unix_seconds(1_700_000_000)).bytes < 1 << 20);
/// ```
pub struct MemoryStore {
    main: Partition,
    overflow: Partition,
    origin: Origin,
    walls: wall::WallClockHistory,
    departures: DepartureQueues,
}

/// The usage of a store, for people and metrics. Counting visits the whole store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Keys that are not idle.
    pub keys: u64,
    /// Shared counters in use, because the store is or was full.
    pub overflow_keys: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// The memory budget in bytes.
    pub capacity_bytes: u64,
}

/// One set of tables with its own budget.
struct Partition {
    words: Table<3, 1>,
    pairs: Table<2, 2>,
    large: LargeMap,
    budgets: [Arc<Budget>; 3],
    bytes: u64,
}

/// A partition of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PartitionId {
    /// The counters of the keys.
    Main,
    /// The counters that new keys share while the main partition is full.
    Overflow,
}

/// Which table of a partition holds the states of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StateKind {
    Word,
    Pair,
    Large,
}

impl StateKind {
    #[inline]
    const fn of(charge: &Charge<'_>) -> Self {
        match charge.quota {
            Quota::Gcra(_) | Quota::LeakyBucket(_) => StateKind::Word,
            Quota::TokenBucket(_) if !charge.family.is_wide() => StateKind::Word,
            Quota::TokenBucket(_) | Quota::FixedWindow(_) => StateKind::Pair,
            Quota::SlidingWindow(_) | Quota::SlidingLog(_) | Quota::Concurrency(_) => StateKind::Large,
        }
    }
}

impl Partition {
    fn new(bytes: u64) -> Self {
        let budgets = Budget::shares(bytes);
        let [words, pairs, large] = budgets.clone();
        Self {
            words: Table::new(words, Origin::EPOCH.word(IDLE_GRACE)),
            pairs: Table::new(pairs, IDLE_GRACE.unix_micros()),
            large: LargeMap::new(large),
            budgets,
            bytes,
        }
    }

    /// Charges one counter by itself.
    #[inline]
    fn charge(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        origin: Origin,
        walls: &wall::WallClockHistory,
    ) -> Result<Result<SourcedOutcome, StoreFailure>, Full> {
        match StateKind::of(charge) {
            StateKind::Word => self
                .words
                .update(charge.key, origin.word(now), |held| exact(decide::word(charge, held, now, origin))),
            StateKind::Pair => self
                .pairs
                .update(charge.key, now.unix_micros(), |held| exact(decide::pair(charge, held, now, walls))),
            StateKind::Large => self.large.charge(charge, now),
        }
    }

    /// Charges one counter by itself in another [`ChargeMode`].
    fn ask(
        &self,
        charge: &Charge<'_>,
        demand: ChargeMode,
        now: Timestamp,
        origin: Origin,
        walls: &wall::WallClockHistory,
    ) -> Result<Result<SourcedOutcome, StoreFailure>, Full> {
        match StateKind::of(charge) {
            StateKind::Word => self.words.update(charge.key, origin.word(now), |held| {
                exact(demand.ask(charge.cost, |cost| decide::word(&charge.costing(cost), held, now, origin)))
            }),
            StateKind::Pair => self.pairs.update(charge.key, now.unix_micros(), |held| {
                exact(demand.ask(charge.cost, |cost| decide::pair(&charge.costing(cost), held, now, walls)))
            }),
            StateKind::Large => self.large.ask(charge, demand, now),
        }
    }

    fn used(&self) -> u64 {
        let own: u64 = self.budgets.iter().map(|budget| budget.own_left()).sum();
        self.bytes.saturating_sub(own + self.budgets[0].common_left())
    }

    fn keys(&self, now: Timestamp, origin: Origin) -> u64 {
        self.words.count(origin.word(now)) + self.pairs.count(now.unix_micros()) + self.large.count(now)
    }
}

impl MemoryStore {
    /// A store of at most about `capacity_bytes`, created at `origin` for decisions from then on.
    #[must_use]
    pub fn new(capacity_bytes: u64, origin: Timestamp) -> Self {
        let overflow = (capacity_bytes / 8).clamp(OVERFLOW_BYTES.0, OVERFLOW_BYTES.1);
        Self {
            main: Partition::new(capacity_bytes.saturating_sub(overflow).max(OVERFLOW_BYTES.0)),
            overflow: Partition::new(overflow),
            origin: Origin::of(origin),
            walls: wall::WallClockHistory::default(),
            departures: DepartureQueues::default(),
        }
    }

    /// The current usage.
    #[must_use]
    pub fn usage(&self, now: Timestamp) -> Usage {
        let now = now.decidable();
        Usage {
            keys: self.main.keys(now, self.origin),
            overflow_keys: self.overflow.keys(now, self.origin),
            bytes: self.main.used() + self.overflow.used(),
            capacity_bytes: self.main.bytes + self.overflow.bytes,
        }
    }

    const fn partition(&self, id: PartitionId) -> &Partition {
        match id {
            PartitionId::Main => &self.main,
            PartitionId::Overflow => &self.overflow,
        }
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.main.used() + self.overflow.used()
    }

    /// Charges all enforced counters or none. It waits only for the few dozen instructions that another
    /// thread holds a lock.
    ///
    /// # Errors
    /// [`StoreFailure::Superseded`] when a newer policy has already taken over a counter.
    #[inline]
    pub fn charge_now(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        let mut answers = Answers::new();
        self.charge_into(charges, now, &mut answers)?;
        Ok(answers)
    }

    /// Charges and writes the answers in place.
    #[inline]
    fn charge_into(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Result<(), StoreFailure> {
        let now = self.origin.clamp(now);
        match charges {
            [] => {}
            [charge] => answers.push(self.charge_clamped(charge, now)?),
            // A query charges nothing, so each counter may be read by itself.
            queries if queries.iter().all(|query| query.cost == 0) => {
                for query in queries {
                    answers.push(self.charge_clamped(query, now)?);
                }
            }
            several => self.charge_all(several, now, answers)?,
        }
        Ok(())
    }

    /// Charges one counter.
    #[inline]
    pub(crate) fn charge_one(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<ChargeAnswer, StoreFailure> {
        self.charge_clamped(charge, self.origin.clamp(now))
    }

    /// Charges one counter at an instant within the range of the store.
    #[inline]
    fn charge_clamped(&self, charge: &Charge<'_>, now: Timestamp) -> Result<ChargeAnswer, StoreFailure> {
        match self.main.charge(charge, now, self.origin, &self.walls) {
            // A query writes nothing, so it would not notice that the main partition has no space for the key.
            Ok(Ok((outcome, _)))
                if charge.cost == 0 && !outcome.is_touched() && !self.has_space(charge, now) =>
            {
                self.charge_overflow(charge, now)
            }
            Ok(decided) => decided.map(|(outcome, source)| ChargeAnswer::new(outcome, source).charged(now)),
            Err(Full) => self.charge_overflow(charge, now),
        }
    }

    /// Whether the main partition has a slot of a key, or space for one.
    fn has_space(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        match StateKind::of(charge) {
            StateKind::Word => self.main.words.has_room(charge.key, self.origin.word(now)),
            StateKind::Pair => self.main.pairs.has_room(charge.key, now.unix_micros()),
            StateKind::Large => self.main.large.has_space(charge, now),
        }
    }

    /// Charges one counter in another [`ChargeMode`].
    pub(crate) fn ask(
        &self,
        charge: &Charge<'_>,
        demand: ChargeMode,
        now: Timestamp,
    ) -> Result<ChargeAnswer, StoreFailure> {
        let now = self.origin.clamp(now);
        if let Ok(decided) = self.main.ask(charge, demand, now, self.origin, &self.walls) {
            return decided.map(|(outcome, source)| ChargeAnswer::new(outcome, source).charged(now));
        }
        let shared = Charge { key: charge.family.overflow(charge.key), ..*charge };
        match self.overflow.ask(&shared, demand, now, self.origin, &self.walls) {
            Ok(decided) => {
                decided.map(|decided| ChargeAnswer::new(decided.0, shared_source(decided)).charged(now))
            }
            Err(Full) => {
                let outcome = Outcome { limit: charge.quota.capacity(), ..FULL_OUTCOME };
                Ok(ChargeAnswer::new(outcome, Source::Full).charged(now))
            }
        }
    }

    /// Charges one unit to a counter whose quota has this number and this one-word arithmetic. `None` if only
    /// the slow path can decide.
    #[inline(always)]
    pub(crate) fn admit(
        &self,
        key: Fingerprint,
        quota: &Word,
        number: u32,
        now: Timestamp,
    ) -> Option<Verdict> {
        let now = self.origin.try_word(now)?;
        match self.unit(key, quota, number, now) {
            UnitStep::Admit(_) => Some(Verdict::Allow),
            UnitStep::Deny { ticks, .. } => Some(Verdict::Deny { retry_after: Ticks::from_micros(ticks) }),
            UnitStep::Busy | UnitStep::Unusual => None,
        }
    }

    #[inline(always)]
    fn unit(&self, key: Fingerprint, quota: &Word, number: u32, now: u64) -> UnitStep {
        match self.main.words.unit(key, quota, number, now) {
            UnitStep::Busy => self.main.words.unit_again(key, quota, number, now),
            answer => answer,
        }
    }

    /// Charges the shared counter of a key that the main partition has no space for.
    #[cold]
    fn charge_overflow(&self, charge: &Charge<'_>, now: Timestamp) -> Result<ChargeAnswer, StoreFailure> {
        let shared = Charge { key: charge.family.overflow(charge.key), ..*charge };
        Ok(match self.overflow.charge(&shared, now, self.origin, &self.walls) {
            Ok(decided) => {
                let decided = decided?;
                ChargeAnswer::new(decided.0, shared_source(decided)).charged(now)
            }
            Err(Full) => {
                let outcome = Outcome { limit: charge.quota.capacity(), ..FULL_OUTCOME };
                ChargeAnswer::new(outcome, Source::Full).charged(now)
            }
        })
    }

    /// A copy of a large state, for a forecast; `None` if the key is idle.
    pub(crate) fn copy_large(&self, key: Fingerprint, now: Timestamp) -> Option<Large> {
        let now = self.origin.clamp(now);
        let shard = self.main.large.lock(LargeMap::shard_of(key));
        shard.get(&key).filter(|entry| entry.idle_at > now).map(|entry| entry.state.clone())
    }

    /// Copies a small state of a key to a store with the same origin. If the key has no state, the copy is
    /// reset.
    pub(crate) fn copy_to(
        &self,
        other: &MemoryStore,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<(), Full> {
        let now = self.origin.clamp(now);
        let (word, micros) = (self.origin.word(now), now.unix_micros());
        match StateKind::of(charge) {
            StateKind::Word => match self.main.words.update(charge.key, word, |held| (None, held))? {
                Some(entry) => other.main.words.update(charge.key, word, |_| (Some(entry), ()))?,
                None => other.reset_now(charge, now),
            },
            StateKind::Pair => match self.main.pairs.update(charge.key, micros, |held| (None, held))? {
                Some(entry) => other.main.pairs.update(charge.key, micros, |_| (Some(entry), ()))?,
                None => other.reset_now(charge, now),
            },
            StateKind::Large => {}
        }
        Ok(())
    }

    /// Starts loading the memory of a one-word key. A batch does this for all keys before it decides.
    #[inline]
    pub(crate) fn touch_word(&self, key: Fingerprint) -> u64 {
        self.main.words.touch(key)
    }
}

/// Converts a step into the entry to write and the outcome with its source.
#[inline]
fn exact<E>(step: decide::StepResult<E>) -> (Option<E>, Result<SourcedOutcome, StoreFailure>) {
    match step {
        Ok((keep, outcome)) => (keep, Ok((outcome, Source::Exact))),
        Err(failure) => (None, Err(failure)),
    }
}

/// The source of an answer by a shared counter.
fn shared_source((_, source): SourcedOutcome) -> Source {
    if source == Source::Full { Source::Full } else { Source::Overflow }
}

/// The outcome when even the overflow partition is full: nothing is known, so nothing is admitted.
const FULL_OUTCOME: Outcome = Outcome {
    verdict: Verdict::Deny { retry_after: FULL_RETRY },
    limit: 0,
    remaining: 0,
    next_unit_after: FULL_RETRY,
    reset_after: FULL_RETRY,
};

impl Store for MemoryStore {
    #[inline]
    fn never_waits(&self) -> bool {
        true
    }

    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.charge_now(charges, now)
    }

    #[inline]
    fn try_charge(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<Result<(), StoreFailure>> {
        Some(self.charge_into(charges, now, answers))
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        charges.iter().try_for_each(|charge| self.refund_now(charge, now))
    }

    async fn step_back(
        &self,
        charge: &Charge<'_>,
        empty_at: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreFailure> {
        Ok(self.step_back_now(charge, empty_at, now))
    }

    fn join_queue(
        &self,
        request: &DepartureRequest<'_>,
        now: Timestamp,
        clock: &Clock,
    ) -> Option<DepartureSlot> {
        self.queue_departure(request, now, clock)
    }

    fn leave_queue(&self, slot: &DepartureSlot, now: Timestamp) -> LeaveOutcome {
        self.leave_departures(slot, now)
    }

    async fn renew(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        charges.iter().try_for_each(|charge| self.renew_now(charge, now))
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        charges.iter().for_each(|charge| self.reset_now(charge, now));
        Ok(())
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        charges.iter().try_for_each(|charge| self.debit_now(charge, now))
    }

    fn follow_wall(&self, wall: WallOffset, now: Timestamp) {
        self.walls.follow(wall, self.origin.clamp(now));
    }

    fn hold(&self, hold: &Hold) {
        let [since, until] = [hold.since, hold.until].map(|at| self.origin.clamp(at));
        for partition in [&self.main, &self.overflow] {
            for &number in &hold.numbers {
                partition.words.holds().hold(number, self.origin.word(since), self.origin.word(until));
                partition.pairs.holds().hold(number, since.unix_micros(), until.unix_micros());
                partition.large.holds().hold(number, since.unix_micros(), until.unix_micros());
            }
        }
    }
}
