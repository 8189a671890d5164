//! The memory store: every counter of one process, bounded by bytes, without a background thread.
//!
//! Small states live in tables of cache lines, large ones on a shelf. Each exists twice: the main hall, and a small one
//! for the counters that new keys share while the main hall is full. A key is only ever dropped when its state equals that of
//! a key never seen, so a flood of new keys neither frees a throttled key nor denies a known one.

use std::sync::Arc;

use crate::algorithm::reservoir::{Reservoir, Word};
use crate::charge::{Answer, Answers, Charge};
use crate::decision::Source;
use crate::key::Fingerprint;
use crate::memory::region::Budget;
use crate::memory::shelf::{Shelf, Told};
use crate::memory::table::{Table, Unit};
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::store::{Hold, Store, StoreFailure};
use crate::time::{Ticks, Timestamp, WallOffset};

mod decide;
mod holds;
mod known;
mod lines;
mod region;
mod shelf;
mod table;
mod transaction;
mod walk;
mod wall;

pub(crate) use decide::{Demand, Origin};
pub(crate) use holds::Lasting;
pub(crate) use lines::{Left, LineUp, Spot};
pub(crate) use shelf::{Large, Shelved, state_bytes};
pub(crate) use table::{Entry, Full, Slot};
pub(crate) use walk::{Piece, Place};
pub(crate) use wall::without_setting;

/// How many numbers of quotas there are.
pub(crate) const NUMBERS_MAX: usize = 1 << table::NUMBER_BITS;
/// The number of every tally's quota. No limit gets it: counters of limits are held by their number, and tallies must not be.
pub(crate) const NUMBER_OF_TALLIES: u32 = (1 << table::NUMBER_BITS) - 1;
/// Most quotas that the counters of one limit may be counted under at a time, those of replaced policies included.
pub(crate) const QUOTA_NUMBERS_MAX: usize = NUMBERS_MAX - 1;

/// Bytes that a store may take unless said otherwise.
pub const CAPACITY_BYTES_DEFAULT: u64 = 64 << 20;
/// Least and most bytes for the counters that new keys share when the store is full.
const OVERFLOW_BYTES: (u64, u64) = (64 << 10, 8 << 20);
/// How long a key that has become idle keeps its slot while there is room for others.
const PATIENCE: Timestamp = Timestamp::from_unix_seconds(10);
/// What a new key is told when not even a shared counter has room.
const NO_ROOM_RETRY: Ticks = Ticks::from_secs(1);

/// Counters in this process's memory.
///
/// ```
/// use tollgate::{MemoryStore, Timestamp};
/// let store = MemoryStore::new(16 << 20, Timestamp::from_unix_seconds(1_700_000_000));
/// assert!(store.usage(Timestamp::from_unix_seconds(1_700_000_000)).bytes < 1 << 20);
/// ```
pub struct MemoryStore {
    main: Hall,
    overflow: Hall,
    origin: Origin,
    walls: wall::Walls,
    lines: lines::Lines,
}

/// What a store holds. For people and metrics; counting walks the whole store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Keys whose state still matters.
    pub keys: u64,
    /// Shared counters in use because the store is, or was, full.
    pub overflow_keys: u64,
    /// Bytes taken.
    pub bytes: u64,
    /// Bytes that may be taken.
    pub capacity_bytes: u64,
}

/// One set of tables under one budget.
struct Hall {
    words: Table<3, 1>,
    pairs: Table<2, 2>,
    shelf: Shelf,
    budgets: [Arc<Budget>; 3],
    bytes: u64,
}

/// Which part of a hall keeps a quota's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Word,
    Pair,
    Large,
}

impl Kind {
    #[inline]
    const fn of(charge: &Charge<'_>) -> Self {
        match charge.quota {
            Quota::Gcra(_) | Quota::LeakyBucket(_) => Kind::Word,
            Quota::TokenBucket(_) if !charge.family.is_wide() => Kind::Word,
            Quota::TokenBucket(_) | Quota::FixedWindow(_) => Kind::Pair,
            Quota::SlidingWindow(_) | Quota::SlidingLog(_) | Quota::Concurrency(_) => Kind::Large,
        }
    }
}

impl Hall {
    fn new(bytes: u64) -> Self {
        let budgets = Budget::shares(bytes);
        let [words, pairs, shelf] = budgets.clone();
        Self {
            words: Table::new(words, Origin::EPOCH.word(PATIENCE)),
            pairs: Table::new(pairs, PATIENCE.unix_micros()),
            shelf: Shelf::new(shelf),
            budgets,
            bytes,
        }
    }

    /// Decides about one key that needs no other.
    #[inline]
    fn charge(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        origin: Origin,
        walls: &wall::Walls,
    ) -> Result<Result<Told, StoreFailure>, Full> {
        match Kind::of(charge) {
            Kind::Word => self
                .words
                .update(charge.key, origin.word(now), |held| exact(decide::word(charge, held, now, origin))),
            Kind::Pair => self
                .pairs
                .update(charge.key, now.unix_micros(), |held| exact(decide::pair(charge, held, now, walls))),
            Kind::Large => self.shelf.charge(charge, now),
        }
    }

    /// The same for one that is asked in another way.
    fn ask(
        &self,
        charge: &Charge<'_>,
        demand: Demand,
        now: Timestamp,
        origin: Origin,
        walls: &wall::Walls,
    ) -> Result<Result<Told, StoreFailure>, Full> {
        match Kind::of(charge) {
            Kind::Word => self.words.update(charge.key, origin.word(now), |held| {
                exact(demand.ask(charge.cost, |cost| decide::word(&charge.costing(cost), held, now, origin)))
            }),
            Kind::Pair => self.pairs.update(charge.key, now.unix_micros(), |held| {
                exact(demand.ask(charge.cost, |cost| decide::pair(&charge.costing(cost), held, now, walls)))
            }),
            Kind::Large => self.shelf.ask(charge, demand, now),
        }
    }

    fn used(&self) -> u64 {
        let own: u64 = self.budgets.iter().map(|budget| budget.own_left()).sum();
        self.bytes.saturating_sub(own + self.budgets[0].common_left())
    }

    fn keys(&self, now: Timestamp, origin: Origin) -> u64 {
        self.words.count(origin.word(now)) + self.pairs.count(now.unix_micros()) + self.shelf.count(now)
    }
}

impl MemoryStore {
    /// A store that takes at most about `capacity_bytes`, for decisions from `origin` on: the instant of its making.
    #[must_use]
    pub fn new(capacity_bytes: u64, origin: Timestamp) -> Self {
        let overflow = (capacity_bytes / 8).clamp(OVERFLOW_BYTES.0, OVERFLOW_BYTES.1);
        Self {
            main: Hall::new(capacity_bytes.saturating_sub(overflow).max(OVERFLOW_BYTES.0)),
            overflow: Hall::new(overflow),
            origin: Origin::of(origin),
            walls: wall::Walls::default(),
            lines: lines::Lines::default(),
        }
    }

    /// What the store holds now.
    #[must_use]
    pub fn usage(&self, now: Timestamp) -> Usage {
        Usage {
            keys: self.main.keys(now, self.origin),
            overflow_keys: self.overflow.keys(now, self.origin),
            bytes: self.main.used() + self.overflow.used(),
            capacity_bytes: self.main.bytes + self.overflow.bytes,
        }
    }

    /// Bytes taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.main.used() + self.overflow.used()
    }

    /// Charges every enforced counter, or none. Never waits for anything but another thread's few dozen instructions.
    ///
    /// # Errors
    /// [`StoreFailure::Superseded`] when a newer policy has already taken over a counter.
    #[inline]
    pub fn charge_now(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        let mut answers = Answers::new();
        self.charge_into(charges, now, &mut answers)?;
        Ok(answers)
    }

    /// The same, written where it is needed.
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
            several => {
                if self.charge_known(several, now, answers).is_none() {
                    *answers = self.charge_all(several, now)?;
                }
            }
        }
        Ok(())
    }

    /// Charges one counter.
    #[inline]
    pub(crate) fn charge_one(&self, charge: &Charge<'_>, now: Timestamp) -> Result<Answer, StoreFailure> {
        self.charge_clamped(charge, self.origin.clamp(now))
    }

    /// The same at an instant that the store can tell.
    #[inline]
    fn charge_clamped(&self, charge: &Charge<'_>, now: Timestamp) -> Result<Answer, StoreFailure> {
        match self.main.charge(charge, now, self.origin, &self.walls) {
            Ok(told) => told.map(|(outcome, source)| Answer::new(outcome, source).charged(now)),
            Err(Full) => self.charge_overflow(charge, now),
        }
    }

    /// Asks one counter in another way than a charge does.
    pub(crate) fn ask(
        &self,
        charge: &Charge<'_>,
        demand: Demand,
        now: Timestamp,
    ) -> Result<Answer, StoreFailure> {
        let now = self.origin.clamp(now);
        if let Ok(told) = self.main.ask(charge, demand, now, self.origin, &self.walls) {
            return told.map(|(outcome, source)| Answer::new(outcome, source).charged(now));
        }
        let shared = Charge { key: charge.family.overflow(charge.key), ..*charge };
        match self.overflow.ask(&shared, demand, now, self.origin, &self.walls) {
            Ok(told) => told.map(|told| Answer::new(told.0, shared_source(told)).charged(now)),
            Err(Full) => {
                let outcome = Outcome { limit: charge.quota.capacity(), ..NO_ROOM };
                Ok(Answer::new(outcome, Source::Full).charged(now))
            }
        }
    }

    /// Asks for one unit of a counter that was last counted under the quota of this number, which is the one given. `None`: only the
    /// whole way can tell.
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
            Unit::Admit(_) => Some(Verdict::Allow),
            Unit::Deny { ticks, .. } => Some(Verdict::Deny { retry_after: Ticks::from_micros(ticks) }),
            Unit::Busy | Unit::Unusual => None,
        }
    }

    /// The same, with what the counter has left: `reservoir` is the one whose arithmetic the word is.
    #[inline(always)]
    pub(crate) fn admit_telling(
        &self,
        key: Fingerprint,
        quota: (&Word, &Reservoir),
        number: u32,
        now: Timestamp,
    ) -> Option<Outcome> {
        let (word, reservoir) = quota;
        let (verdict, held) = match self.unit(key, word, number, self.origin.try_word(now)?) {
            Unit::Admit(held) => (Verdict::Allow, held),
            Unit::Deny { ticks, word } => (Verdict::Deny { retry_after: Ticks::from_micros(ticks) }, word),
            Unit::Busy | Unit::Unusual => return None,
        };
        Some(reservoir.outcome(self.origin.missing(held, reservoir, now), verdict))
    }

    #[inline(always)]
    fn unit(&self, key: Fingerprint, quota: &Word, number: u32, now: u64) -> Unit {
        match self.main.words.unit(key, quota, number, now) {
            Unit::Busy => self.main.words.unit_again(key, quota, number, now),
            answer => answer,
        }
    }

    /// Charges the counter that stands in for a key that there is no room for.
    #[cold]
    fn charge_overflow(&self, charge: &Charge<'_>, now: Timestamp) -> Result<Answer, StoreFailure> {
        let shared = Charge { key: charge.family.overflow(charge.key), ..*charge };
        Ok(match self.overflow.charge(&shared, now, self.origin, &self.walls) {
            Ok(told) => {
                let told = told?;
                Answer::new(told.0, shared_source(told)).charged(now)
            }
            Err(Full) => {
                let outcome = Outcome { limit: charge.quota.capacity(), ..NO_ROOM };
                Answer::new(outcome, Source::Full).charged(now)
            }
        })
    }

    /// A copy of a large state, for a forecast to play on with; none of a key that is as if never seen.
    pub(crate) fn copy_large(&self, key: Fingerprint, now: Timestamp) -> Option<Large> {
        let now = self.origin.clamp(now);
        let shard = self.main.shelf.lock(Shelf::shard_of(key));
        shard.get(&key).filter(|shelved| shelved.idle_at > now).map(|shelved| shelved.state.clone())
    }

    /// Copies the state of a key to another store of the same making, small states only. Of a key that is not there nothing is left there.
    pub(crate) fn copy_to(
        &self,
        other: &MemoryStore,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<(), Full> {
        let now = self.origin.clamp(now);
        let (word, micros) = (self.origin.word(now), now.unix_micros());
        match Kind::of(charge) {
            Kind::Word => match self.main.words.update(charge.key, word, |held| (None, held))? {
                Some(entry) => other.main.words.update(charge.key, word, |_| (Some(entry), ()))?,
                None => other.reset_now(charge, now),
            },
            Kind::Pair => match self.main.pairs.update(charge.key, micros, |held| (None, held))? {
                Some(entry) => other.main.pairs.update(charge.key, micros, |_| (Some(entry), ()))?,
                None => other.reset_now(charge, now),
            },
            Kind::Large => {}
        }
        Ok(())
    }

    /// Starts loading the memory of a key that fits one word; a batch does this for all its keys before it decides.
    #[inline]
    pub(crate) fn touch_word(&self, key: Fingerprint) -> u64 {
        self.main.words.touch(key)
    }
}

/// What a table is to keep, and what the counter itself says.
#[inline]
fn exact<E>(step: decide::Step<E>) -> (Option<E>, Result<Told, StoreFailure>) {
    match step {
        Ok((keep, outcome)) => (keep, Ok((outcome, Source::Exact))),
        Err(failure) => (None, Err(failure)),
    }
}

/// Where the answer of a shared counter comes from.
fn shared_source((_, source): Told) -> Source {
    if source == Source::Full { Source::Full } else { Source::Overflow }
}

/// The answer when even the shared counters have no room: nothing is known, so nothing is admitted.
const NO_ROOM: Outcome = Outcome {
    verdict: Verdict::Deny { retry_after: NO_ROOM_RETRY },
    limit: 0,
    remaining: 0,
    next_unit_after: NO_ROOM_RETRY,
    reset_after: NO_ROOM_RETRY,
};

impl Store for MemoryStore {
    #[inline]
    fn answers_at_once(&self) -> bool {
        true
    }

    #[inline]
    fn memory(&self) -> Option<&MemoryStore> {
        Some(self)
    }

    #[inline]
    fn bare_memory(&self) -> Option<&MemoryStore> {
        Some(self)
    }

    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.charge_now(charges, now)
    }

    #[inline]
    fn charge_at_once(
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
        for hall in [&self.main, &self.overflow] {
            for &number in &hold.numbers {
                hall.words.holds().hold(number, self.origin.word(since), self.origin.word(until));
                hall.pairs.holds().hold(number, since.unix_micros(), until.unix_micros());
                hall.shelf.holds().hold(number, since.unix_micros(), until.unix_micros());
            }
        }
    }
}
