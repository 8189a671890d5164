//! All buckets, and a queue of calls for each. A call waits in one queue at a time, in the order of rank, and passes no
//! earlier call that waits for a bucket which both need. Ranks order all calls, so two calls never wait for each other.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::Waker;

use tollgate::{Quota, Ticks, Timestamp};

use crate::bucket::{Admission, Behaviour, Bucket, Freeze, FreezeCause};
use crate::learned::{Costs, WindowReport};
use crate::random::Random;
use crate::refusal::{Basis, Refusal};
use crate::signal::{Signals, ThrottleScope};

/// Above this number, buckets that are as good as new are dropped before another is added.
const BUCKETS_SWEPT_FROM: usize = 10_000;
/// Maximum number of routes whose bucket is remembered. Beyond it, routes count as unknown.
const ROUTES_MAX: usize = 100_000;

/// A counter of the policy grows only after this many responses that leave more.
const EVIDENCE_MIN: u32 = 3;

/// Which bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BucketKey {
    /// A server, as one credential sees it.
    Origin(Arc<str>),
    /// A bucket that the server names, of an origin.
    Named(Arc<str>, Arc<str>),
    /// A route whose bucket is not known yet, of an origin.
    Unknown(Arc<str>, Arc<str>),
    /// A counter of the policy: the name of its limit, and its key.
    Limit(Arc<str>, u64),
}

/// The rank of a call in every queue: an earlier instant goes first, and then the earlier arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) at: Timestamp,
    pub(crate) ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    waker: Option<Waker>,
    is_woken: bool,
    cost: u64,
}

impl Waiter {
    /// Wakes it. If it is not polled now, its next poll sees the flag, so no wake-up is lost.
    fn wake(&mut self) {
        self.is_woken = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// How fast a limit lets calls pass, from its last denial.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitShape {
    /// When the first waiter may pass.
    pub(crate) due: Timestamp,
    units: u64,
    period: Ticks,
    is_steady: bool,
}

impl LimitShape {
    pub(crate) fn new(due: Timestamp, quota: Option<&Quota>) -> Self {
        let rate = quota.and_then(Quota::rate);
        let (units, period) = rate.map_or((0, Ticks::ZERO), |rate| (rate.units(), rate.period()));
        Self { due, units, period, is_steady: quota.is_some_and(Quota::is_reservoir) }
    }

    /// The earliest instant at which a call passes that has this many units before it.
    pub(crate) fn earliest(&self, units_before: u64) -> Timestamp {
        if self.units == 0 {
            return self.due;
        }
        let (before, units) = (u128::from(units_before), u128::from(self.units));
        let wait = if self.is_steady {
            before * u128::from(self.period.as_micros()) / units
        } else {
            before / units * u128::from(self.period.as_micros())
        };
        self.due + Ticks::from_micros(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

/// A bucket with its queue.
struct QueuedBucket {
    name: Arc<str>,
    /// A server, or a limit of the policy.
    owner: Arc<str>,
    bucket: Bucket,
    queue: BTreeMap<Rank, Waiter>,
    shape: Option<LimitShape>,
    /// How many responses in a row said that the server leaves more than this counter of the policy.
    evidence: u32,
}

impl QueuedBucket {
    /// Wakes the first waiter.
    fn wake_first(&mut self) {
        if let Some(mut first) = self.queue.first_entry() {
            first.get_mut().wake();
        }
    }

    /// The earliest departure behind the waiters of a limit.
    fn earliest(&self, rank: Rank) -> Option<Timestamp> {
        let units_before =
            || self.queue.range(..rank).map(|(_, waiter)| waiter.cost).fold(0, u64::saturating_add);
        self.shape.map(|shape| shape.earliest(units_before()))
    }
}

/// What a call has to do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Ask the policy.
    Go,
    /// Wait for a bucket: until an instant, or until it is woken.
    Wait {
        key: BucketKey,
        until: Option<Timestamp>,
        earliest: Timestamp,
        basis: Basis,
    },
    Refused(Refusal),
}

/// What tells calls apart.
#[derive(Clone, Debug)]
pub(crate) struct CallIdentity {
    /// The server and the credential.
    pub(crate) origin: Arc<str>,
    /// The name of the server.
    pub(crate) host: Arc<str>,
    pub(crate) route: Arc<str>,
    /// The resource that the server counts apart in each bucket that it names. Empty for most servers.
    pub(crate) scope: Arc<str>,
}

impl CallIdentity {
    /// The key of a bucket that the server names.
    fn named(&self, name: &str) -> BucketKey {
        let name = if self.scope.is_empty() { name.into() } else { format!("{name} {}", self.scope).into() };
        BucketKey::Named(Arc::clone(&self.origin), name)
    }
}

/// How queues treat their buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueSettings {
    pub(crate) behaviour: Behaviour,
    /// Whether the server names a bucket for each route.
    pub(crate) discovers: bool,
    pub(crate) queue_max: usize,
}

/// A bucket, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketReport {
    /// Its name: a host, a host and the server's name of the bucket, or a limit of the policy.
    pub name: String,
    /// What it belongs to: a server, or a limit of the policy.
    pub owner: String,
    /// Whose numbers it follows.
    pub basis: Basis,
    /// Calls that wait for it.
    pub waiting: usize,
    /// Calls under way.
    pub in_flight: u64,
    /// Refusals by the server.
    pub refusals: u64,
    /// The freeze, if it is frozen.
    pub frozen: Option<Freeze>,
    /// What the server said about its counters.
    pub windows: Vec<WindowReport>,
}

/// The origin and the route.
type RouteId = (Arc<str>, Arc<str>);

/// All buckets and waiters.
pub(crate) struct Queues {
    settings: QueueSettings,
    buckets: HashMap<BucketKey, QueuedBucket>,
    /// The server's name of the bucket of each route, by origin and route; `None` if a response had no name.
    routes: HashMap<RouteId, Option<Arc<str>>>,
    swept_from: usize,
    tickets: u64,
    numbers: u64,
    pub(crate) random: Random,
}

impl Queues {
    pub(crate) fn new(settings: QueueSettings, random: Random) -> Self {
        let (buckets, routes) = (HashMap::new(), HashMap::new());
        Self { settings, buckets, routes, swept_from: BUCKETS_SWEPT_FROM, tickets: 0, numbers: 0, random }
    }

    pub(crate) const fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// The buckets of the server that a call needs.
    pub(crate) fn server_keys(&self, identity: &CallIdentity) -> Vec<BucketKey> {
        let CallIdentity { origin, route, .. } = identity;
        let mut keys = vec![BucketKey::Origin(Arc::clone(origin))];
        match self.routes.get(&(Arc::clone(origin), Arc::clone(route))) {
            Some(Some(name)) => keys.push(identity.named(name)),
            Some(None) => {}
            None if self.settings.discovers => {
                keys.push(BucketKey::Unknown(Arc::clone(origin), Arc::clone(route)));
            }
            None => {}
        }
        keys
    }

    fn queued(&mut self, key: &BucketKey, host: &str, now: Timestamp) -> &mut QueuedBucket {
        if !self.buckets.contains_key(key) && self.buckets.len() >= self.swept_from {
            self.buckets.retain(|_, queued| !queued.queue.is_empty() || !queued.bucket.is_idle(now));
            self.swept_from = BUCKETS_SWEPT_FROM.max(2 * self.buckets.len());
        }
        let QueueSettings { mut behaviour, .. } = self.settings;
        behaviour.sends_one_first = matches!(key, BucketKey::Unknown(..));
        self.buckets.entry(key.clone()).or_insert_with(|| QueuedBucket {
            name: match key {
                BucketKey::Origin(_) => Arc::from(host),
                BucketKey::Named(_, name) => format!("{host} ({name})").into(),
                BucketKey::Unknown(_, route) => format!("{host} ({route})").into(),
                BucketKey::Limit(name, _) => Arc::clone(name),
            },
            owner: match key {
                BucketKey::Limit(name, _) => Arc::clone(name),
                _ => Arc::from(host),
            },
            bucket: Bucket::new(behaviour),
            queue: BTreeMap::new(),
            shape: None,
            evidence: 0,
        })
    }

    /// What a call has to do next.
    pub(crate) fn step(
        &mut self,
        keys: &[BucketKey],
        host: &str,
        rank: Rank,
        costs: &Costs,
        now: Timestamp,
    ) -> Step {
        for key in keys {
            let basis = basis_of(key);
            if basis == Basis::Policy && !self.buckets.contains_key(key) {
                continue; // No call waits for it.
            }
            let queued = self.queued(key, host, now);
            let is_behind = queued.queue.first_key_value().is_some_and(|(first, _)| *first < rank);
            let admission = queued.bucket.admission(costs, now);
            if let Admission::Frozen(freeze) = admission
                && let Some(refusal) = refusal_of(&queued.name, freeze, now)
            {
                return Step::Refused(refusal);
            }
            let (until, earliest) = match admission {
                Admission::Frozen(freeze) => (Some(freeze.until), freeze.until),
                Admission::At(at) => (Some(at), at),
                Admission::AfterResponse => (None, now),
                Admission::Now if is_behind => (None, queued.earliest(rank).unwrap_or(now)),
                Admission::Now => continue,
            };
            let until = if is_behind { None } else { until };
            return Step::Wait { key: key.clone(), until, earliest: earliest.max(now), basis };
        }
        Step::Go
    }

    /// Sends a call, unless its buckets have filled up since [`Queues::step`]. Returns its number.
    pub(crate) fn send(&mut self, keys: &[BucketKey], costs: &Arc<Costs>, now: Timestamp) -> Option<u64> {
        let admits = |key: &BucketKey| match self.buckets.get_mut(key) {
            Some(queued) => queued.bucket.admission(costs, now) == Admission::Now,
            None => true,
        };
        if !keys.iter().all(admits) {
            return None;
        }
        self.numbers += 1;
        let number = self.numbers;
        for key in keys {
            if let Some(queued) = self.buckets.get_mut(key) {
                queued.bucket.send(number, costs, now);
            }
        }
        Some(number)
    }

    /// Enters the queue of a bucket.
    pub(crate) fn enter(
        &mut self,
        key: &BucketKey,
        host: &str,
        rank: Rank,
        cost: u64,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let most = self.settings.queue_max;
        let queued = self.queued(key, host, now);
        if queued.queue.len() >= most {
            return Err(Refusal::QueueFull { bucket: queued.name.to_string(), waiting: queued.queue.len() });
        }
        queued.queue.insert(rank, Waiter { waker: None, is_woken: false, cost });
        Ok(())
    }

    /// Leaves the queue of a bucket, and wakes the next waiter.
    pub(crate) fn leave(&mut self, key: &BucketKey, rank: Rank) {
        if let Some(queued) = self.buckets.get_mut(key) {
            queued.queue.remove(&rank);
            queued.wake_first();
            if queued.queue.is_empty() && matches!(key, BucketKey::Limit(..)) {
                self.buckets.remove(key);
            }
        }
    }

    /// Whether a waiter was woken; otherwise it is woken by this waker.
    pub(crate) fn poll_woken(&mut self, key: &BucketKey, rank: Rank, waker: &Waker) -> bool {
        match self.buckets.get_mut(key).and_then(|queued| queued.queue.get_mut(&rank)) {
            Some(waiter) if !waiter.is_woken => {
                waiter.waker = Some(waker.clone());
                false
            }
            Some(waiter) => {
                waiter.is_woken = false;
                true
            }
            None => true,
        }
    }

    /// Notes when a limit of the policy admits its first waiter.
    pub(crate) fn note_denial(&mut self, key: &BucketKey, host: &str, shape: LimitShape, now: Timestamp) {
        self.queued(key, host, now).shape = Some(shape);
    }

    /// The earliest departure behind the waiters of a limit.
    pub(crate) fn behind(&self, key: &BucketKey, rank: Rank) -> Option<Timestamp> {
        self.buckets.get(key)?.earliest(rank)
    }

    /// Counts a response that leaves more than a counter of the policy for which calls wait. Returns whether that is
    /// evidence enough to follow the server.
    pub(crate) fn count_evidence(&mut self, key: &BucketKey) -> bool {
        match self.buckets.get_mut(key) {
            Some(queued) if !queued.queue.is_empty() => {
                queued.evidence += 1;
                queued.evidence >= EVIDENCE_MIN
            }
            _ => false,
        }
    }

    /// Wakes the first waiter of each bucket: something has changed there.
    pub(crate) fn wake(&mut self, keys: &[BucketKey]) {
        for key in keys {
            if let Some(queued) = self.buckets.get_mut(key) {
                queued.wake_first();
            }
        }
    }

    fn each_bucket(&mut self, keys: &[BucketKey], mut change: impl FnMut(&mut Bucket)) {
        for key in keys {
            if let Some(queued) = self.buckets.get_mut(key) {
                change(&mut queued.bucket);
                queued.wake_first();
            }
        }
    }

    /// A call did not leave after all.
    pub(crate) fn unsend(&mut self, keys: &[BucketKey], number: u64, now: Timestamp) {
        self.each_bucket(keys, |bucket| bucket.unsend(number, now));
    }

    /// The caller of a call is gone, or its end is not known.
    pub(crate) fn abandon(&mut self, keys: &[BucketKey], number: u64, now: Timestamp) {
        self.each_bucket(keys, |bucket| bucket.abandon(number, now));
    }

    /// The server failed. Only its origin learns of it: the other buckets are not the cause.
    pub(crate) fn fail(
        &mut self,
        keys: &[BucketKey],
        number: u64,
        now: Timestamp,
    ) -> Option<(BucketKey, Freeze)> {
        let newest = self.numbers;
        let mut frozen = None;
        for key in keys {
            let Some(queued) = self.buckets.get_mut(key) else { continue };
            if !matches!(key, BucketKey::Origin(_)) {
                queued.bucket.abandon(number, now);
            } else if let Some(freeze) = queued.bucket.fail(number, &mut self.random, now) {
                queued.bucket.mark_frozen(newest);
                frozen = Some((key.clone(), freeze));
            }
            queued.wake_first();
        }
        frozen
    }

    /// A response arrived. Returns the bucket that it froze, if it did.
    pub(crate) fn answer(
        &mut self,
        identity: &CallIdentity,
        keys: &[BucketKey],
        number: u64,
        signals: &Signals,
        now: Timestamp,
    ) -> Option<(BucketKey, Freeze)> {
        let named = self.learn_route(identity, keys, number, signals, now);
        let newest = self.numbers;
        let origin = BucketKey::Origin(Arc::clone(&identity.origin));
        // The numbers belong to the bucket that the server names, or to the whole server.
        let counted_in = named.clone().unwrap_or_else(|| origin.clone());
        let frozen = signals.throttle.map(|throttle| match throttle.scope {
            ThrottleScope::Everything => origin.clone(),
            ThrottleScope::Bucket | ThrottleScope::Shared => counted_in.clone(),
        });
        let without_windows = Signals { windows: Vec::new(), ..signals.clone() };
        let new = named.iter().filter(|named| !keys.contains(named));
        let mut freeze = None;
        for key in keys.iter().chain(new) {
            let Some(queued) = self.buckets.get_mut(key) else { continue };
            let signals = if *key == counted_in { signals } else { &without_windows };
            match &signals.throttle {
                Some(throttle) if frozen.as_ref() == Some(key) => {
                    let made = queued.bucket.refuse(number, throttle, signals, &mut self.random, now);
                    queued.bucket.mark_frozen(newest);
                    freeze = Some((key.clone(), made));
                }
                // The server refused the call before this bucket counted it.
                Some(throttle) if throttle.scope == ThrottleScope::Everything => {
                    queued.bucket.abandon(number, now);
                }
                _ => queued.bucket.answer(number, signals, now),
            }
            queued.wake_first();
        }
        freeze
    }

    /// Remembers which bucket the server counts a route in, and counts the call in it.
    fn learn_route(
        &mut self,
        identity: &CallIdentity,
        keys: &[BucketKey],
        number: u64,
        signals: &Signals,
        now: Timestamp,
    ) -> Option<BucketKey> {
        let CallIdentity { origin, route, host, .. } = identity;
        let name: Option<Arc<str>> = signals.bucket.as_deref().map(Arc::from);
        let is_unnamed = self.settings.discovers && signals.throttle.is_none();
        if name.is_none() && !is_unnamed {
            return keys.iter().find(|key| matches!(key, BucketKey::Named(..))).cloned();
        }
        let id = (Arc::clone(origin), Arc::clone(route));
        if name.is_some() && (self.routes.len() < ROUTES_MAX || self.routes.contains_key(&id)) {
            self.routes.insert(id, name.clone());
        } else if self.routes.len() < ROUTES_MAX {
            self.routes.entry(id).or_insert(None);
        }
        // All calls that wait for the route step again, and find its bucket.
        let unknown = BucketKey::Unknown(Arc::clone(origin), Arc::clone(route));
        if let Some(queued) = self.buckets.get_mut(&unknown) {
            queued.queue.values_mut().for_each(Waiter::wake);
        }
        let named = match name {
            Some(name) => identity.named(&name),
            None => return keys.iter().find(|key| matches!(key, BucketKey::Named(..))).cloned(),
        };
        if !keys.contains(&named) {
            self.queued(&named, host, now).bucket.count_in(number); // `answer` ends it at once.
        }
        Some(named)
    }

    /// Another process froze this bucket. Returns the freeze that this process keeps, which may end later.
    #[cfg(feature = "redis")]
    pub(crate) fn freeze(&mut self, key: &BucketKey, host: &str, freeze: Freeze, now: Timestamp) -> Freeze {
        let newest = self.numbers;
        let queued = self.queued(key, host, now);
        let kept = queued.bucket.freeze(freeze, now);
        if kept == freeze {
            queued.bucket.mark_frozen(newest);
        }
        queued.wake_first();
        kept
    }

    /// The freeze of these buckets that ends last.
    pub(crate) fn frozen(&self, keys: &[BucketKey], now: Timestamp) -> Option<Freeze> {
        let each = keys.iter().filter_map(|key| self.buckets.get(key)?.bucket.frozen(now));
        each.max_by_key(|freeze| freeze.until)
    }

    /// What the server leaves for further calls, in the window that a limit follows.
    pub(crate) fn left_for(&self, keys: &[BucketKey], limit: &str) -> Option<u64> {
        keys.iter().filter_map(|key| self.buckets.get(key)?.bucket.left_for(limit)).min()
    }

    /// When the last of these calls could leave, by the numbers of the server, and the bucket that says so.
    pub(crate) fn forecast(
        &self,
        keys: &[BucketKey],
        costs: &Costs,
        calls: u64,
        now: Timestamp,
    ) -> (Timestamp, Option<Arc<str>>) {
        let each = keys.iter().filter_map(|key| self.buckets.get(key));
        let each = each.map(|queued| (queued.bucket.forecast(costs, calls, now), &queued.name));
        match each.max_by_key(|(at, _)| *at) {
            Some((at, name)) if at > now => (at, Some(Arc::clone(name))),
            _ => (now, None),
        }
    }

    /// The units of the calls that wait for a bucket.
    pub(crate) fn waiting_units(&self, key: &BucketKey) -> u64 {
        let waiters = self.buckets.get(key).into_iter().flat_map(|queued| queued.queue.values());
        waiters.map(|waiter| waiter.cost).fold(0, u64::saturating_add)
    }

    /// All buckets, by name.
    pub(crate) fn report(&self, now: Timestamp) -> Vec<BucketReport> {
        let each = self.buckets.iter().map(|(key, queued)| BucketReport {
            name: queued.name.to_string(),
            owner: queued.owner.to_string(),
            basis: basis_of(key),
            waiting: queued.queue.len(),
            in_flight: queued.bucket.in_flight,
            refusals: queued.bucket.refusals,
            frozen: queued.bucket.frozen(now),
            windows: queued.bucket.windows(),
        });
        let mut reports: Vec<BucketReport> = each.collect();
        reports.sort_by(|a, b| a.name.cmp(&b.name));
        reports
    }
}

const fn basis_of(key: &BucketKey) -> Basis {
    match key {
        BucketKey::Limit(..) => Basis::Policy,
        BucketKey::Origin(_) | BucketKey::Named(..) | BucketKey::Unknown(..) => Basis::Server,
    }
}

/// A freeze that no call waits for.
fn refusal_of(name: &str, freeze: Freeze, now: Timestamp) -> Option<Refusal> {
    let (bucket, wait, until) = (name.to_owned(), freeze.until.since(now), freeze.until);
    match freeze.cause {
        FreezeCause::Failing(failures) => Some(Refusal::CircuitOpen { bucket, failures, wait, until }),
        FreezeCause::Throttled(kind) if kind.is_long() => {
            Some(Refusal::Exhausted { bucket, kind, wait: Some(wait), until: Some(until) })
        }
        FreezeCause::Throttled(_) => None,
    }
}
