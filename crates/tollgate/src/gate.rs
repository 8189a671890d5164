//! One limit without a policy, for use inside a program: [`Gate`] for all requests together, [`KeyedGate`]
//! per key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::algorithm::reservoir::Word;
use crate::clock::Clock;
use crate::departure::DepartureSlot;
use crate::key::{Fingerprint, Secret};
use crate::memory::{CAPACITY_BYTES_DEFAULT, MemoryStore, state_bytes};
use crate::outcome::{Outcome, Source, Verdict};
use crate::quota::Quota;
use crate::rate::QuotaError;
use crate::store::{Charge, Family, Record, Store};
use crate::time::{Ticks, Timestamp};

mod forecast;
mod in_flight;
mod keys;
mod queue;
mod ready;
mod wait;

pub use in_flight::InFlight;
pub use keys::{GateKey, KeyHasher};
pub use ready::{Acquiring, Ready};
pub use wait::NotReady;

/// Keys of a batch whose memory is loaded together.
const BATCH: usize = 16;
/// Bytes of a gate for all requests together, besides its counter.
const GATE_BYTES: u64 = 64 << 10;

/// One limit for all requests together.
///
/// ```
/// use tollgate::Gate;
/// let gate = Gate::new("10/s burst 20")?;
/// assert!(gate.check().is_allowed());
/// assert_eq!(gate.charge(5).remaining, 14);
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
///
/// Clones share their counter.
#[derive(Clone)]
pub struct Gate {
    gate: KeyedGate,
    key: Fingerprint,
}

/// One limit for each key.
///
/// ```
/// use tollgate::Gate;
/// let gate = Gate::keyed("5/min")?;
/// assert!(gate.check("user-42").is_allowed());
/// assert_eq!(gate.charge("user-43", 1).remaining, 4);
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
///
/// Clones share their counters.
#[derive(Clone)]
pub struct KeyedGate {
    shared: Arc<GateShared>,
}

struct GateShared {
    store: MemoryStore,
    /// The one-word arithmetic of the fast path, for quotas that have it. It only finds counters of number 0.
    word: Word,
    /// 0, or 1 for a quota without a fast path.
    number: u32,
    permits: AtomicU64,
    secret: Secret,
    family: Family,
    quota: Quota,
    clock: Clock,
    queues: queue::Queues,
}

impl GateShared {
    fn charge_of(&self, key: Fingerprint, cost: u64) -> Charge<'_> {
        let GateShared { family, number, quota, permits, .. } = self;
        let permit = match quota {
            // Relaxed: the numbers need only differ.
            Quota::Concurrency(_) => PermitId(permits.fetch_add(1, Ordering::Relaxed)),
            _ => PermitId(0),
        };
        Charge { permit, ..Charge::new(key, family, *number, quota, cost) }
    }
}

/// Configures a gate.
#[must_use]
pub struct GateBuilder {
    quota: Quota,
    clock: Clock,
    capacity_bytes: u64,
    secret: Secret,
}

impl GateBuilder {
    /// The clock; by default the precise one.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The maximum bytes of the counters; by default 64 MiB.
    pub const fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// The secret of the key hash; by default random. Only tests that must be repeatable set it.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = secret;
        self
    }

    /// A gate for all requests together.
    #[must_use]
    pub fn build(self) -> Gate {
        // One counter, with capacity for the tables and the shared counters that it never needs.
        let bytes = GATE_BYTES + 2 * state_bytes(&self.quota);
        let gate = self.capacity_bytes(bytes).keyed();
        let key = gate.fingerprint(&());
        Gate { gate, key }
    }

    /// A gate for each key.
    #[must_use]
    pub fn keyed(self) -> KeyedGate {
        let now = self.clock.now();
        let word = match &self.quota {
            Quota::Gcra(bucket) => bucket.reservoir().word(),
            Quota::TokenBucket(bucket) => bucket.reservoir().word(),
            _ => None,
        };
        let record = Some(Record::first(self.quota.clone()));
        let records = if word.is_some() { vec![record] } else { vec![None, record] };
        let family = Family::new(&self.secret, &[b"gate"], records);
        let shared = GateShared {
            store: MemoryStore::new(self.capacity_bytes, now),
            number: u32::from(word.is_none()),
            word: word.unwrap_or_default(),
            permits: AtomicU64::new(0),
            secret: self.secret,
            family,
            quota: self.quota,
            clock: self.clock,
            queues: queue::Queues::default(),
        };
        KeyedGate { shared: Arc::new(shared) }
    }
}

impl Gate {
    /// A gate for all requests together, on the precise clock: of a text such as `"100/s burst 200"`, of a
    /// [`Rate`](crate::Rate), or of a [`Quota`].
    ///
    /// # Errors
    /// The text is not a rate, or the numbers are out of range.
    pub fn new<Q>(quota: Q) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        Ok(Self::builder(quota.try_into().map_err(Into::into)?).build())
    }

    /// A gate for each key, on the precise clock: of a text such as `"5/min"`, of a [`Rate`](crate::Rate), or of a
    /// [`Quota`].
    ///
    /// # Errors
    /// The text is not a rate, or the numbers are out of range.
    pub fn keyed<Q>(quota: Q) -> Result<KeyedGate, QuotaError>
    where
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        Ok(Self::builder(quota.try_into().map_err(Into::into)?).keyed())
    }

    /// Configures a gate.
    pub fn builder(quota: Quota) -> GateBuilder {
        GateBuilder {
            quota,
            clock: Clock::precise(),
            capacity_bytes: CAPACITY_BYTES_DEFAULT,
            secret: Secret::random(),
        }
    }

    /// Charges one unit.
    #[inline]
    pub fn check(&self) -> Verdict {
        self.gate.admit(self.key, self.gate.shared.clock.now())
    }

    /// Charges `cost` units; 0 only queries.
    pub fn check_n(&self, cost: u64) -> Verdict {
        self.charge(cost).verdict
    }

    /// Charges `cost` units and returns the full outcome; 0 only queries.
    pub fn charge(&self, cost: u64) -> Outcome {
        self.gate.charge_key(self.key, self.gate.shared.clock.now(), cost)
    }

    /// Takes a permit; see [`KeyedGate::acquire`].
    ///
    /// # Errors
    /// The outcome, when all permits are in use.
    pub fn acquire(&self) -> Result<InFlight, Outcome> {
        InFlight::take(&self.gate, self.key)
    }

    /// Waits for one unit; see [`KeyedGate::until_ready`].
    pub fn until_ready(&self) -> Ready {
        Ready::new(self.gate.clone(), self.key)
    }

    /// Waits for a permit and holds it; see [`KeyedGate::until_acquired`].
    pub fn until_acquired(&self) -> Acquiring {
        Acquiring::new(self.gate.clone(), self.key)
    }

    /// Refunds units that were charged `within` this time, and wakes the first waiter. The call does not say which
    /// charge took them, so the refund is no larger than is right for any charge of that time; see [`Charged::Within`].
    /// A leaky bucket refunds nothing: departure times do not change.
    pub fn refund(&self, units: u64, within: Ticks) {
        self.gate.refund_key(self.key, units, within);
    }

    /// Resets the counter and wakes the first waiter.
    pub fn reset(&self) {
        self.gate.reset_key(self.key);
    }
}

impl KeyedGate {
    /// Charges one unit to `key`.
    #[inline]
    pub fn check<K: GateKey + ?Sized>(&self, key: &K) -> Verdict {
        self.admit(self.fingerprint(key), self.shared.clock.now())
    }

    /// Charges `cost` units to `key`; 0 only queries.
    pub fn check_n<K: GateKey + ?Sized>(&self, key: &K, cost: u64) -> Verdict {
        self.charge(key, cost).verdict
    }

    /// Charges one unit to `key` at an instant that the caller has already read.
    #[inline]
    pub fn check_at<K: GateKey + ?Sized>(&self, key: &K, now: Timestamp) -> Verdict {
        self.admit(self.fingerprint(key), now)
    }

    /// Charges `cost` units to `key` and returns the full outcome; 0 only queries.
    pub fn charge<K: GateKey + ?Sized>(&self, key: &K, cost: u64) -> Outcome {
        self.charge_key(self.fingerprint(key), self.shared.clock.now(), cost)
    }

    /// Charges one unit to each key, in order. Their memory is loaded together, so a batch of uncached keys
    /// costs little more than one of them.
    pub fn check_batch<K: GateKey>(&self, keys: &[K], mut answer: impl FnMut(usize, Verdict)) {
        let now = self.shared.clock.now();
        for (group, keys) in keys.chunks(BATCH).enumerate() {
            let mut prints = [Fingerprint { tag: 1, rest: 0 }; BATCH];
            for (print, key) in prints.iter_mut().zip(keys) {
                *print = self.fingerprint(key);
            }
            let prints = &prints[..keys.len()];
            let touched = prints.iter().fold(0, |all, print| all ^ self.shared.store.touch_word(*print));
            std::hint::black_box(touched);
            for (index, print) in prints.iter().enumerate() {
                answer(group * BATCH + index, self.admit(*print, now));
            }
        }
    }

    /// Takes a permit for `key`, of a gate with a concurrency quota. The permit is returned when the result is dropped
    /// or expires.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Gate, Quota};
    /// let gate = Gate::keyed(Quota::concurrency(1, Duration::from_secs(30))?)?;
    /// let permit = gate.acquire("user-42").unwrap();
    /// assert!(gate.acquire("user-42").is_err());
    /// drop(permit);
    /// assert!(gate.acquire("user-42").is_ok());
    /// # Ok::<(), tollgate::QuotaError>(())
    /// ```
    ///
    /// # Errors
    /// The outcome, when all permits are in use.
    pub fn acquire<K: GateKey + ?Sized>(&self, key: &K) -> Result<InFlight, Outcome> {
        InFlight::take(self, self.fingerprint(key))
    }

    /// Waits for one unit of `key`, first in, first out. Dropping the wait leaves the queue and costs
    /// nothing. With [`Ready::within`] it fails immediately when the unit cannot come in time. Calls of
    /// [`check`](Self::check) and [`acquire`](Self::acquire) do not queue and may overtake it.
    ///
    /// With a concurrency quota the permit is returned when it expires, and not before. Use
    /// [`until_acquired`](Self::until_acquired) to return it earlier.
    ///
    /// It waits on a small timer thread of its own, so it works on any async runtime.
    pub fn until_ready<K: GateKey + ?Sized>(&self, key: &K) -> Ready {
        Ready::new(self.clone(), self.fingerprint(key))
    }

    /// Waits for a permit for `key` and holds it, of a gate with a concurrency quota: first in, first out, in one queue
    /// with [`until_ready`](Self::until_ready). A returned permit wakes the first waiter. Dropping the wait leaves the
    /// queue and takes nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Gate, Quota};
    /// let gate = Gate::keyed(Quota::concurrency(1, Duration::from_secs(30))?)?;
    /// let permit = gate.acquire("user-42").unwrap();
    /// let worker = std::thread::spawn({
    ///     let gate = gate.clone();
    ///     move || pollster::block_on(gate.until_acquired("user-42")).is_ok()
    /// });
    /// drop(permit); // The worker need not wait until it expires.
    /// assert!(worker.join().unwrap());
    /// assert!(gate.acquire("user-42").is_ok(), "and it has returned the permit");
    /// # Ok::<(), tollgate::QuotaError>(())
    /// ```
    ///
    /// With another quota it waits like `until_ready`, and dropping the result returns nothing.
    pub fn until_acquired<K: GateKey + ?Sized>(&self, key: &K) -> Acquiring {
        Acquiring::new(self.clone(), self.fingerprint(key))
    }

    /// Refunds units of `key` that were charged `within` this time, and wakes its first waiter; nothing for a leaky
    /// bucket, see [`Gate::refund`].
    pub fn refund<K: GateKey + ?Sized>(&self, key: &K, units: u64, within: Ticks) {
        self.refund_key(self.fingerprint(key), units, within);
    }

    /// Resets the counter of `key` and wakes its first waiter.
    pub fn reset<K: GateKey + ?Sized>(&self, key: &K) {
        self.reset_key(self.fingerprint(key));
    }

    /// The quota of each key.
    #[must_use]
    pub fn quota(&self) -> &Quota {
        &self.shared.quota
    }

    /// The usage of the store. It visits all counters.
    #[must_use]
    pub fn usage(&self) -> crate::memory::Usage {
        self.shared.store.usage(self.shared.clock.now())
    }

    #[inline(always)]
    fn fingerprint<K: GateKey + ?Sized>(&self, key: &K) -> Fingerprint {
        let GateShared { secret, family, .. } = &*self.shared;
        if let Some(text) = key.as_text() {
            return secret.text_key(family.prefix(), text);
        }
        let mut hasher = KeyHasher::new(secret, *family.prefix());
        key.feed(&mut hasher);
        hasher.finish()
    }

    /// The fast path for one unit of a one-word counter; else the slow path.
    #[inline(always)]
    fn admit(&self, key: Fingerprint, now: Timestamp) -> Verdict {
        match self.shared.store.admit(key, &self.shared.word, 0, now) {
            Some(verdict) => verdict,
            None => self.charge_key(key, now, 1).verdict,
        }
    }

    #[inline(never)]
    fn charge_key(&self, key: Fingerprint, now: Timestamp, cost: u64) -> Outcome {
        if matches!(self.shared.quota, Quota::FixedWindow(_)) {
            self.shared.store.follow_wall(self.shared.clock.wall_offset(now), now);
        }
        self.decide(&self.shared.charge_of(key, cost), now).0
    }

    fn decide(&self, charge: &Charge<'_>, now: Timestamp) -> (Outcome, Source) {
        match self.shared.store.charge_one(charge, now) {
            Ok(answer) => (answer.outcome, answer.source),
            // A gate never changes its quota, so no newer one can have taken over. Denying is the safe
            // choice.
            Err(_) => {
                let refused = Outcome {
                    verdict: Verdict::Deny { retry_after: Ticks::from_secs(1) },
                    limit: self.shared.quota.capacity(),
                    remaining: 0,
                    next_unit_after: Ticks::ZERO,
                    reset_after: Ticks::ZERO,
                };
                (refused, Source::Exact)
            }
        }
    }

    fn refund_key(&self, key: Fingerprint, units: u64, within: Ticks) {
        // A shaping gate keeps its departure times.
        if matches!(self.shared.quota, Quota::LeakyBucket(_)) {
            return;
        }
        let now = self.shared.clock.now();
        // As above: it cannot fail, and a failed refund would only be to the caller's disadvantage.
        let charge = self.shared.charge_of(key, units).of(Charged::Within(within));
        let _ = self.shared.store.refund_now(&charge, now);
        self.shared.queues.wake_first(key);
    }

    /// Gives the last departure of a leaky bucket back.
    fn step_back_key(&self, key: Fingerprint, units: u64, empty_at: Timestamp) {
        let now = self.shared.clock.now();
        self.shared.store.step_back_now(&self.shared.charge_of(key, units), empty_at, now);
        self.shared.queues.wake_first(key);
    }

    /// Leaves a departure queue, in which later waiters move up.
    fn leave_queue(&self, key: Fingerprint, slot: &DepartureSlot) {
        self.shared.store.leave_departures(slot, self.shared.clock.now());
        self.shared.queues.wake_first(key);
    }

    fn reset_key(&self, key: Fingerprint) {
        self.shared.store.reset_now(&self.shared.charge_of(key, 0), self.shared.clock.now());
        self.shared.queues.wake_first(key);
    }
}
