//! Permits and reservations that callers hold under an id until they return them. Ids are 128 random bits, so no
//! caller can give back what another one holds. The number of held things and the number of remembered past ids are
//! both bounded.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::store::Store;
use tollgate::{Decision, Engine, Permit, Quota, Reservation, Ticks, Timestamp};

use crate::decision_json::Hold;
use crate::log_throttle::LogThrottle;

/// Number of shards, each with its own lock, so that checks on different cores seldom contend.
const SHARDS: usize = 16;
/// How many settled or expired ids each shard remembers, to distinguish them from ids that never existed.
const PAST_MAX: usize = 1_024;

/// Maximum number of permits that the server remembers, about 64 MiB.
const PERMITS_MAX: usize = 1 << 18;
/// Maximum number of open reservations, about 64 MiB.
const RESERVATIONS_MAX: usize = 1 << 17;
/// How long the end of a request can be reported. After that it counts as a failure.
const REPORT_LIFETIME: Ticks = Ticks::from_secs(60);

/// Everything that callers hold.
pub(crate) struct CallerHolds {
    pub(crate) permits: Holds<Permit>,
    pub(crate) reservations: Holds<Reservation>,
    /// The charges of requests at limits that count only failures, until the end of each request is reported.
    pub(crate) reports: Holds<Reservation>,
    full_log: LogThrottle,
}

impl Default for CallerHolds {
    fn default() -> Self {
        Self {
            permits: Holds::new(PERMITS_MAX),
            reservations: Holds::new(RESERVATIONS_MAX),
            reports: Holds::new(RESERVATIONS_MAX),
            full_log: LogThrottle::default(),
        }
    }
}

impl CallerHolds {
    /// Keeps the permit of a decision, so that the caller can release it by its id.
    #[inline]
    pub(crate) fn keep_permit(&self, decision: &mut Decision, now: Timestamp) -> Hold {
        let Some(permit) = decision.take_permit() else { return Hold::None };
        match self.permits.put(permit, now + permit_lifetime(decision), now) {
            Ok(id) => Hold::Permit { id: id.to_string() },
            Err(_) => {
                // The permit stays taken until it expires: that denies too much for a while, but admits nothing too
                // much.
                if let Some(skipped) = self.full_log.due(now) {
                    tracing::warn!(
                        skipped,
                        "no room for another permit: it cannot be given back before it expires"
                    );
                }
                Hold::None
            }
        }
    }

    /// Keeps the charge of a request at limits that count only failures, under an id for its report. Without room it
    /// stays charged.
    pub(crate) fn await_report<S: Store>(
        &self,
        engine: &Engine<S>,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<String> {
        let awaiting = engine.reservations().awaiting(decision, REPORT_LIFETIME, now)?;
        match self.reports.put(awaiting, now + REPORT_LIFETIME, now) {
            Ok(id) => Some(id.to_string()),
            Err(_) => {
                if let Some(skipped) = self.full_log.due(now) {
                    tracing::warn!(skipped, "no room for another report: the request counts as a failure");
                }
                None
            }
        }
    }
}

/// The lifetime of a decision's permits: the longest of its concurrency limits.
fn permit_lifetime(decision: &Decision) -> Ticks {
    let lifetime = |quota: &Quota| match quota {
        Quota::Concurrency(permits) => permits.ttl(),
        _ => Ticks::ZERO,
    };
    decision.limits().filter_map(|status| status.quota).map(lifetime).max().unwrap_or_default()
}

/// The id of something held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(u128);

impl Id {
    /// An unguessable id. `None` if the system has no random bytes.
    pub(crate) fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(Self(u128::from_ne_bytes(bytes)))
    }

    /// Reads an id: 32 lower-case hexadecimal digits, as it was written.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_id = text.len() == 32 && text.bytes().all(is_digit);
        is_id.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Why an id holds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It was given back before.
    Done,
    /// Another caller is giving it back at the moment.
    InUse,
    /// It expired.
    Expired,
    /// It never existed, or it ended too long ago to be remembered.
    Unknown,
}

/// Things held under ids, each until its own expiry.
#[derive(Debug)]
pub(crate) struct Holds<T> {
    shards: [Mutex<HoldShard<T>>; SHARDS],
    shard_max: usize,
}

/// A thing on loan to the caller that gives it back. It returns to the table unless [`done`](CheckedOut::done) is called, so
/// an operation that fails or is abandoned can be retried.
#[derive(Debug)]
pub(crate) struct CheckedOut<'h, T> {
    holds: &'h Holds<T>,
    id: Id,
    thing: Option<T>,
}

#[derive(Debug)]
struct HoldShard<T> {
    /// Each thing with its expiry. `None` while it is lent.
    held: HashMap<Id, (Timestamp, Option<T>)>,
    expiries: BTreeSet<(Timestamp, Id)>,
    past: HashMap<Id, Absent>,
    past_order: VecDeque<Id>,
    /// How many things have expired.
    expired: u64,
}

impl<T> Holds<T> {
    /// Room for about `max` things.
    pub(crate) fn new(max: usize) -> Self {
        let shards = std::array::from_fn(|_| Mutex::new(HoldShard::default()));
        Self { shards, shard_max: max.div_ceil(SHARDS) }
    }

    /// Keeps `thing` until `expires_at`.
    ///
    /// # Errors
    /// Gives the thing back when there is no room, or no randomness for an id.
    pub(crate) fn put(&self, thing: T, expires_at: Timestamp, now: Timestamp) -> Result<Id, T> {
        let Some(id) = Id::random() else { return Err(thing) };
        let mut shard = self.shard(id);
        shard.expire(now);
        if shard.held.len() >= self.shard_max {
            return Err(thing);
        }
        match shard.held.entry(id) {
            Entry::Occupied(_) => Err(thing), // One chance in 2^128; the first holder keeps the id.
            Entry::Vacant(vacant) => {
                vacant.insert((expires_at, Some(thing)));
                shard.expiries.insert((expires_at, id));
                Ok(id)
            }
        }
    }

    /// Lends what is held under `id`. If several callers try, one gets it.
    ///
    /// # Errors
    /// When nothing is held under the id, or it is lent.
    pub(crate) fn checkout(&self, id: Id, now: Timestamp) -> Result<CheckedOut<'_, T>, Absent> {
        let mut shard = self.shard(id);
        shard.expire(now);
        match shard.held.get_mut(&id) {
            Some((_, thing)) => match thing.take() {
                Some(thing) => Ok(CheckedOut { holds: self, id, thing: Some(thing) }),
                None => Err(Absent::InUse),
            },
            None => Err(shard.past.get(&id).copied().unwrap_or(Absent::Unknown)),
        }
    }

    /// How many things are held, and how many have expired.
    pub(crate) fn held(&self, now: Timestamp) -> (usize, u64) {
        let mut sum = (0, 0);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.expire(now);
            sum = (sum.0 + shard.held.len(), sum.1 + shard.expired);
        }
        sum
    }

    /// Calls a function with each thing that is held and not lent.
    pub(crate) fn each(&self, now: Timestamp, mut visit: impl FnMut(&T)) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.expire(now);
            shard.held.values().filter_map(|(_, thing)| thing.as_ref()).for_each(&mut visit);
        }
    }

    /// The shard of an id. A thread that panicked while it held the lock left a consistent table.
    fn shard(&self, id: Id) -> MutexGuard<'_, HoldShard<T>> {
        let index = usize::try_from(id.0 % SHARDS as u128).unwrap_or(0);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> CheckedOut<'_, T> {
    /// Marks the thing as given back, and removes it.
    pub(crate) fn done(mut self) {
        self.thing = None;
        let mut shard = self.holds.shard(self.id);
        if let Some((expires_at, _)) = shard.held.remove(&self.id) {
            shard.expiries.remove(&(expires_at, self.id));
            shard.remember(self.id, Absent::Done);
        }
    }
}

impl<T> Deref for CheckedOut<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.thing {
            Some(thing) => thing,
            None => unreachable!("what is lent is here until it is done"),
        }
    }
}

impl<T> DerefMut for CheckedOut<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.thing {
            Some(thing) => thing,
            None => unreachable!("what is lent is here until it is done"),
        }
    }
}

impl<T> Drop for CheckedOut<'_, T> {
    fn drop(&mut self) {
        if let Some(thing) = self.thing.take()
            && let Some((_, place)) = self.holds.shard(self.id).held.get_mut(&self.id)
        {
            *place = Some(thing); // Unless it has expired in the meantime.
        }
    }
}

impl<T> Default for HoldShard<T> {
    fn default() -> Self {
        Self {
            held: HashMap::new(),
            expiries: BTreeSet::new(),
            past: HashMap::new(),
            past_order: VecDeque::new(),
            expired: 0,
        }
    }
}

impl<T> HoldShard<T> {
    /// Drops everything that has expired.
    fn expire(&mut self, now: Timestamp) {
        while let Some(&(expires_at, id)) = self.expiries.first()
            && expires_at <= now
        {
            self.expiries.pop_first();
            self.held.remove(&id);
            self.expired += 1;
            self.remember(id, Absent::Expired);
        }
    }

    fn remember(&mut self, id: Id, absent: Absent) {
        if self.past_order.len() >= PAST_MAX
            && let Some(oldest) = self.past_order.pop_front()
        {
            self.past.remove(&oldest);
        }
        self.past_order.push_back(id);
        self.past.insert(id, absent);
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Ticks;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
    const LATER: Timestamp = Timestamp::from_unix_seconds(1_700_000_060);

    /// A thing is given back once. Afterwards the table still knows why it is absent.
    #[test]
    fn a_thing_is_given_back_once() {
        let holds = Holds::new(100);
        let id = holds.put("thing", LATER, NOW).unwrap();
        assert_eq!(Id::parse(&id.to_string()), Some(id));
        let lent = holds.checkout(id, NOW).unwrap();
        assert_eq!(*lent, "thing");
        lent.done();
        assert_eq!(holds.checkout(id, NOW).unwrap_err(), Absent::Done);
        assert_eq!(holds.checkout(Id(7), NOW).unwrap_err(), Absent::Unknown);
    }

    /// While a thing is lent, no other caller gets it and its slot stays taken. If the operation is not completed, the
    /// thing returns unchanged, except that its lifetime goes on.
    #[test]
    fn a_thing_that_is_not_done_returns() {
        let holds = Holds::new(SHARDS);
        let id = holds.put(1, LATER, NOW).unwrap();
        let mut lent = holds.checkout(id, NOW).unwrap();
        *lent += 1;
        assert_eq!(holds.checkout(id, NOW).unwrap_err(), Absent::InUse);
        assert_eq!((0..10_000).filter(|_| holds.put(0, LATER, NOW).is_ok()).count(), SHARDS - 1);
        drop(lent);
        let lent = holds.checkout(id, NOW).unwrap();
        assert_eq!(*lent, 2);
        assert_eq!(holds.checkout(id, LATER).unwrap_err(), Absent::Expired);
        drop(lent);
        assert_eq!(holds.checkout(id, LATER).unwrap_err(), Absent::Expired);
    }

    /// One tick before its expiry a thing is held, and at its expiry it is gone.
    #[test]
    fn a_thing_expires_on_its_tick() {
        let holds = Holds::new(100);
        let [early, late] = [(); 2].map(|()| holds.put((), LATER, NOW).unwrap());
        assert!(holds.checkout(early, LATER - Ticks::ONE).is_ok());
        assert_eq!(holds.held(LATER - Ticks::ONE), (2, 0));
        assert_eq!(holds.checkout(late, LATER).unwrap_err(), Absent::Expired);
        assert_eq!(holds.held(LATER), (0, 2));
    }

    /// The table never holds more than its maximum, and expired things make room. The number of remembered past ids is
    /// bounded too.
    #[test]
    fn the_table_is_bounded() {
        let holds = Holds::new(SHARDS * 2);
        let put = |now| (0..10_000).filter(|_| holds.put((), LATER, now).is_ok()).count();
        assert_eq!(put(NOW), SHARDS * 2);
        for _ in 0..10_000 {
            let put = holds.put((), LATER + Ticks::ONE, LATER).map(|id| holds.checkout(id, LATER));
            put.into_iter().flatten().for_each(CheckedOut::done);
        }
        let past: usize = holds.shards.iter().map(|shard| shard.lock().unwrap().past.len()).sum();
        assert!(past <= SHARDS * PAST_MAX, "{past}");
        assert!(holds.put((), LATER + Ticks::ONE, LATER).is_ok());
    }

    /// Only the spelling that was issued is a valid id.
    #[test]
    fn ids_have_one_spelling() {
        for wrong in ["", "1", "+123456789abcdef0123456789abcdef0", "0123456789ABCDEF0123456789ABCDEF", "é"]
        {
            assert_eq!(Id::parse(wrong), None, "{wrong}");
        }
    }
}
