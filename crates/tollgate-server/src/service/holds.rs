//! What callers hold under an id until they give it back: permits and reservations. Ids are 128 random bits, so that nobody
//! gives back what another holds. Both numbers are bounded, of what is held and of what is remembered about the past.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Timestamp;

/// Parts of the table, each with a lock of its own, so that checks on different cores seldom meet.
const SHARDS: usize = 16;
/// How many settled or expired ids each part remembers, to tell them from ids that never were.
const PAST_MAX: usize = 1_024;

/// The name of something held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(u128);

impl Id {
    /// An id that nobody can guess; none when the system has no randomness to give.
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

/// Why there is nothing to have under an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It was given back before.
    Done,
    /// Somebody has it just now.
    Lent,
    /// It expired.
    Expired,
    /// It never was, or that was too long ago to be remembered.
    Unknown,
}

/// Things held under ids, each until its own expiry.
#[derive(Debug)]
pub(crate) struct Holds<T> {
    shards: [Mutex<HoldShard<T>>; SHARDS],
    shard_max: usize,
}

/// A thing in the hands of whoever gives it back. Unless that is [`done`](Lent::done) it returns to the table, so what fails,
/// or is given up in the middle, may be tried again.
#[derive(Debug)]
pub(crate) struct Lent<'h, T> {
    holds: &'h Holds<T>,
    id: Id,
    thing: Option<T>,
}

#[derive(Debug)]
struct HoldShard<T> {
    /// Each with its expiry; nothing where it is lent.
    held: HashMap<Id, (Timestamp, Option<T>)>,
    expiries: BTreeSet<(Timestamp, Id)>,
    past: HashMap<Id, Absent>,
    past_order: VecDeque<Id>,
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
            Entry::Occupied(_) => Err(thing), // One chance in 2^128; whoever holds the id keeps it.
            Entry::Vacant(vacant) => {
                vacant.insert((expires_at, Some(thing)));
                shard.expiries.insert((expires_at, id));
                Ok(id)
            }
        }
    }

    /// Lends what is held under `id`. Of several who try, one gets it.
    ///
    /// # Errors
    /// When nothing is.
    pub(crate) fn lend(&self, id: Id, now: Timestamp) -> Result<Lent<'_, T>, Absent> {
        let mut shard = self.shard(id);
        shard.expire(now);
        match shard.held.get_mut(&id) {
            Some((_, thing)) => match thing.take() {
                Some(thing) => Ok(Lent { holds: self, id, thing: Some(thing) }),
                None => Err(Absent::Lent),
            },
            None => Err(shard.past.get(&id).copied().unwrap_or(Absent::Unknown)),
        }
    }

    /// The part that an id lives in. A thread that panicked while it held the lock left a table that is still sound.
    fn shard(&self, id: Id) -> MutexGuard<'_, HoldShard<T>> {
        let index = usize::try_from(id.0 % SHARDS as u128).unwrap_or(0);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Lent<'_, T> {
    /// It was given back, and is no more.
    pub(crate) fn done(mut self) {
        self.thing = None;
        let mut shard = self.holds.shard(self.id);
        if let Some((expires_at, _)) = shard.held.remove(&self.id) {
            shard.expiries.remove(&(expires_at, self.id));
            shard.remember(self.id, Absent::Done);
        }
    }
}

impl<T> Deref for Lent<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.thing {
            Some(thing) => thing,
            None => unreachable!("what is lent is here until it is done"),
        }
    }
}

impl<T> DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.thing {
            Some(thing) => thing,
            None => unreachable!("what is lent is here until it is done"),
        }
    }
}

impl<T> Drop for Lent<'_, T> {
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
        }
    }
}

impl<T> HoldShard<T> {
    /// Drops everything whose time has come.
    fn expire(&mut self, now: Timestamp) {
        while let Some(&(expires_at, id)) = self.expiries.first()
            && expires_at <= now
        {
            self.expiries.pop_first();
            self.held.remove(&id);
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

    /// What was put is given back once; afterwards the table still knows why there is nothing.
    #[test]
    fn a_thing_is_given_back_once() {
        let holds = Holds::new(100);
        let id = holds.put("thing", LATER, NOW).unwrap();
        assert_eq!(Id::parse(&id.to_string()), Some(id));
        let lent = holds.lend(id, NOW).unwrap();
        assert_eq!(*lent, "thing");
        lent.done();
        assert_eq!(holds.lend(id, NOW).unwrap_err(), Absent::Done);
        assert_eq!(holds.lend(Id(7), NOW).unwrap_err(), Absent::Unknown);
    }

    /// While it is lent nobody else gets it, nor a place for another; if nothing came of that, it is there again as it was
    /// left. Only its time runs on.
    #[test]
    fn a_thing_that_is_not_done_returns() {
        let holds = Holds::new(SHARDS);
        let id = holds.put(1, LATER, NOW).unwrap();
        let mut lent = holds.lend(id, NOW).unwrap();
        *lent += 1;
        assert_eq!(holds.lend(id, NOW).unwrap_err(), Absent::Lent);
        assert_eq!((0..10_000).filter(|_| holds.put(0, LATER, NOW).is_ok()).count(), SHARDS - 1);
        drop(lent);
        let lent = holds.lend(id, NOW).unwrap();
        assert_eq!(*lent, 2);
        assert_eq!(holds.lend(id, LATER).unwrap_err(), Absent::Expired);
        drop(lent);
        assert_eq!(holds.lend(id, LATER).unwrap_err(), Absent::Expired);
    }

    /// One tick before its expiry a thing is there, at it it is not.
    #[test]
    fn a_thing_expires_on_its_tick() {
        let holds = Holds::new(100);
        let [early, late] = [(); 2].map(|()| holds.put((), LATER, NOW).unwrap());
        assert!(holds.lend(early, LATER - Ticks::ONE).is_ok());
        assert_eq!(holds.lend(late, LATER).unwrap_err(), Absent::Expired);
    }

    /// The table never holds more than it has room for, and what expires makes room. Nor is the past remembered without end.
    #[test]
    fn the_table_is_bounded() {
        let holds = Holds::new(SHARDS * 2);
        let put = |now| (0..10_000).filter(|_| holds.put((), LATER, now).is_ok()).count();
        assert_eq!(put(NOW), SHARDS * 2);
        for _ in 0..10_000 {
            let put = holds.put((), LATER + Ticks::ONE, LATER).map(|id| holds.lend(id, LATER));
            put.into_iter().flatten().for_each(Lent::done);
        }
        let past: usize = holds.shards.iter().map(|shard| shard.lock().unwrap().past.len()).sum();
        assert!(past <= SHARDS * PAST_MAX, "{past}");
        assert!(holds.put((), LATER + Ticks::ONE, LATER).is_ok());
    }

    /// Only the spelling that was given out is an id.
    #[test]
    fn ids_have_one_spelling() {
        for wrong in ["", "1", "+123456789abcdef0123456789abcdef0", "0123456789ABCDEF0123456789ABCDEF", "é"]
        {
            assert_eq!(Id::parse(wrong), None, "{wrong}");
        }
    }
}
