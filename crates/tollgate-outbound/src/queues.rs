//! All buckets, and a queue of calls for each. A call waits in one queue at a time, in the order of rank, and passes no
//! earlier call that waits for a bucket which both need. Ranks order all calls, so two calls never wait for each other.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Waker;

use tollgate::{Ticks, Timestamp};

use crate::bucket::{Admission, Behaviour, Bucket};
use crate::costs::Costs;
use crate::freeze::{Freeze, FreezeCause};
use crate::keys::{BucketKey, CallIdentity};
use crate::learned::WindowReport;
use crate::queue::{Front, LimitShape, QueuedBucket, Rank};
use crate::random::Random;
use crate::refusal::{Basis, Refusal};
use crate::signal::{Signals, ThrottleScope};

/// Above this number, buckets that are as good as new are dropped before another is added.
const BUCKETS_SWEPT_FROM: usize = 10_000;
/// Maximum number of routes whose bucket is remembered. Beyond it, routes count as unknown.
const ROUTES_MAX: usize = 100_000;
/// The first call of a route waits no longer than this for a bucket that may count it.
const GUESS_WAIT_MAX: Ticks = Ticks::from_secs(10);

/// The next step of a call.
#[derive(Debug)]
pub(crate) enum Step {
    /// Ask the policy.
    Go,
    Wait(Wait),
    Refused(Refusal),
}

/// A wait in the queue of one bucket, until an instant or until the call is woken.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) key: BucketKey,
    pub(crate) until: Option<Timestamp>,
    /// When the call can leave at the earliest, and the bucket that says so: a later one may wait for it longer.
    pub(crate) earliest: Timestamp,
    pub(crate) latest: BucketKey,
}

/// A call under way.
struct SentCall {
    identity: CallIdentity,
    /// The buckets that count it.
    keys: Vec<BucketKey>,
    costs: Arc<Costs>,
    at: Timestamp,
}

impl SentCall {
    /// Whether its route was not known when it left.
    fn is_of_unknown_route(&self) -> bool {
        self.keys.iter().any(|key| matches!(key, BucketKey::Unknown(..)))
    }
}

/// The buckets that a response changed.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    /// The buckets that count the call, with those that the response names.
    pub(crate) keys: Vec<BucketKey>,
    /// The bucket that it froze, if it did.
    pub(crate) frozen: Option<(BucketKey, Freeze)>,
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
    /// Its owner: a server, or a limit of the policy.
    pub owner: String,
    /// Whether it counts all calls to a server. The other buckets count them again.
    pub counts_all_calls: bool,
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
    /// The numbers of the server.
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
    /// The names among them, by origin.
    names: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// The calls under way, by number.
    sent: HashMap<u64, SentCall>,
    swept_from: usize,
    tickets: u64,
    numbers: u64,
    pub(crate) random: Random,
}

impl Queues {
    pub(crate) fn new(settings: QueueSettings, random: Random) -> Self {
        let (buckets, routes, names, sent) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let swept_from = BUCKETS_SWEPT_FROM;
        Self { settings, buckets, routes, names, sent, swept_from, tickets: 0, numbers: 0, random }
    }

    pub(crate) const fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// The buckets of the server that a call needs. Any bucket that the server has named may count a route whose bucket
    /// is not known.
    pub(crate) fn server_keys(&self, identity: &CallIdentity, now: Timestamp) -> Vec<BucketKey> {
        let CallIdentity { origin, host, route, .. } = identity;
        let mut keys = vec![BucketKey::Host(Arc::clone(host)), BucketKey::Origin(Arc::clone(origin))];
        match self.routes.get(&(Arc::clone(origin), Arc::clone(route))) {
            Some(Some(name)) => keys.push(identity.named(name)),
            Some(None) => {}
            None if self.settings.discovers => {
                keys.push(identity.unknown());
                keys.extend(self.guesses(identity, now));
            }
            None => {}
        }
        keys.extend(identity.route().filter(|route| self.buckets.contains_key(route)));
        keys
    }

    /// The named buckets of an origin that a call of an unknown route need not wait for long.
    fn guesses(&self, identity: &CallIdentity, now: Timestamp) -> impl Iterator<Item = BucketKey> {
        let names = self.names.get(&identity.origin).into_iter().flatten();
        let latest = now + GUESS_WAIT_MAX;
        let is_near = move |key: &BucketKey| {
            let queued = self.buckets.get(key);
            queued.is_some_and(|queued| queued.bucket.opens_by(latest, &Costs::one_call(), now))
        };
        names.map(|name| identity.named(name)).filter(is_near)
    }

    fn queued(&mut self, key: &BucketKey, host: &str, now: Timestamp) -> &mut QueuedBucket {
        if !self.buckets.contains_key(key) && self.buckets.len() >= self.swept_from {
            self.buckets.retain(|_, queued| !queued.is_idle(now));
            self.swept_from = BUCKETS_SWEPT_FROM.max(2 * self.buckets.len());
        }
        let QueueSettings { mut behaviour, .. } = self.settings;
        behaviour.sends_one_first = matches!(key, BucketKey::Unknown(..));
        self.buckets.entry(key.clone()).or_insert_with(|| {
            let owner = match key {
                BucketKey::Limit(name, _) => Arc::clone(name),
                _ => Arc::from(host),
            };
            QueuedBucket::new(key.name(host), owner, Bucket::new(behaviour))
        })
    }

    /// The next step of a call. It waits for the first bucket that holds it back, unless another makes it wait longer
    /// than it may.
    pub(crate) fn step(
        &mut self,
        keys: &[BucketKey],
        host: &str,
        rank: Rank,
        costs: &Costs,
        now: Timestamp,
    ) -> Step {
        let mut wait: Option<Wait> = None;
        for key in keys {
            if key.basis() == Basis::Policy && !self.buckets.contains_key(key) {
                continue; // No call waits for it.
            }
            let queued = self.queued(key, host, now);
            let refusal = queued.bucket.frozen(now).and_then(|freeze| refusal_of(&queued.name, freeze, now));
            if let Some(refusal) = refusal {
                return Step::Refused(refusal);
            }
            let earliest = queued.earliest(rank, costs, now);
            if let Some(wait) = &mut wait {
                if earliest > wait.earliest {
                    (wait.earliest, wait.latest) = (earliest, key.clone());
                }
                continue;
            }
            let (until, at) = match queued.bucket.admission(costs, now) {
                Admission::Now if !queued.is_behind(rank) => continue,
                Admission::Now | Admission::AfterResponse => (None, now),
                Admission::Frozen(Freeze { until: at, .. }) | Admission::At(at) => (Some(at), at),
            };
            // Only the first waiter of a queue has a timer.
            let until = until.filter(|_| !queued.is_behind(rank));
            wait = Some(Wait { key: key.clone(), until, earliest: earliest.max(at), latest: key.clone() });
        }
        wait.map_or(Step::Go, Step::Wait)
    }

    /// Sends a call, unless its buckets have filled up since [`Queues::step`]. Returns its number and its buckets.
    pub(crate) fn send(
        &mut self,
        identity: &CallIdentity,
        costs: &Arc<Costs>,
        now: Timestamp,
    ) -> Option<(u64, Vec<BucketKey>)> {
        let keys = self.server_keys(identity, now);
        let admits = |key: &BucketKey| match self.buckets.get_mut(key) {
            Some(queued) => queued.bucket.admission(costs, now) == Admission::Now,
            None => true,
        };
        if !keys.iter().all(admits) {
            return None;
        }
        self.numbers += 1;
        let number = self.numbers;
        for key in &keys {
            self.queued(key, &identity.host, now).bucket.send(number, costs, now);
        }
        let (identity, costs) = (identity.clone(), Arc::clone(costs));
        self.sent.insert(number, SentCall { identity, keys: keys.clone(), costs, at: now });
        Some((number, keys))
    }

    /// Enters the queue of a bucket. Returns whether the call is in its front.
    pub(crate) fn enter(
        &mut self,
        (key, front): (&BucketKey, Front),
        host: &str,
        rank: Rank,
        costs: Arc<Costs>,
        now: Timestamp,
    ) -> Result<bool, Refusal> {
        let most = self.settings.queue_max;
        let queued = self.queued(key, host, now);
        if queued.len() >= most {
            return Err(Refusal::QueueFull { bucket: queued.name.to_string(), waiting: queued.len() });
        }
        queued.enter(rank, costs, front);
        Ok(!queued.is_behind(rank))
    }

    /// Leaves the queue of a bucket, and wakes the next waiter.
    pub(crate) fn leave(&mut self, key: &BucketKey, rank: Rank) {
        if let Some(queued) = self.buckets.get_mut(key) {
            queued.leave(rank);
            if queued.len() == 0 && matches!(key, BucketKey::Limit(..)) {
                self.buckets.remove(key);
            }
        }
    }

    /// Whether a waiter was woken; otherwise it is woken by this waker.
    pub(crate) fn poll_woken(&mut self, key: &BucketKey, rank: Rank, waker: &Waker) -> bool {
        self.buckets.get_mut(key).is_none_or(|queued| queued.poll_woken(rank, waker))
    }

    /// A limit of the policy holds a call back. Returns when the call leaves at the earliest.
    pub(crate) fn hold_back(
        &mut self,
        key: &BucketKey,
        host: &str,
        (rank, costs): (Rank, &Costs),
        shape: LimitShape,
        now: Timestamp,
    ) -> Timestamp {
        self.queued(key, host, now).hold_back(rank, costs, shape, now)
    }

    /// Counts a response that leaves more than a counter of the policy for which calls wait. Returns whether that is
    /// evidence enough to follow the server.
    pub(crate) fn count_evidence(&mut self, key: &BucketKey) -> bool {
        self.buckets.get_mut(key).is_some_and(QueuedBucket::count_evidence)
    }

    /// A response does not leave more than a counter of the policy.
    pub(crate) fn discard_evidence(&mut self, key: &BucketKey) {
        if let Some(queued) = self.buckets.get_mut(key) {
            queued.discard_evidence();
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

    /// Ends a call under way, in each of its buckets.
    fn end(&mut self, number: u64, mut change: impl FnMut(&mut Bucket)) {
        for key in self.sent.remove(&number).map(|call| call.keys).unwrap_or_default() {
            if let Some(queued) = self.buckets.get_mut(&key) {
                change(&mut queued.bucket);
                queued.wake_first();
            }
        }
    }

    /// A call did not leave after all.
    pub(crate) fn unsend(&mut self, number: u64, now: Timestamp) {
        self.end(number, |bucket| bucket.unsend(number, now));
    }

    /// The caller of a call is gone, or its end is not known.
    pub(crate) fn abandon(&mut self, number: u64, now: Timestamp) {
        self.end(number, |bucket| bucket.abandon(number, now));
    }

    /// The server failed, for all credentials. The other buckets are not the cause.
    pub(crate) fn fail(&mut self, number: u64, now: Timestamp) -> Option<(BucketKey, Freeze)> {
        let newest = self.numbers;
        let mut frozen = None;
        for key in self.sent.remove(&number).map(|call| call.keys).unwrap_or_default() {
            let Some(queued) = self.buckets.get_mut(&key) else { continue };
            if !matches!(key, BucketKey::Host(_)) {
                queued.bucket.abandon(number, now);
            } else if let Some(freeze) = queued.bucket.fail(number, &mut self.random, now) {
                queued.bucket.mark_frozen(newest);
                frozen = Some((key, freeze));
            }
            queued.wake_first();
        }
        frozen
    }

    /// A response arrived.
    pub(crate) fn answer(&mut self, number: u64, signals: &Signals, now: Timestamp) -> Answered {
        let Some(mut call) = self.sent.remove(&number) else { return Answered::default() };
        let is_of_unknown_route = call.is_of_unknown_route();
        let named = self.learn_route(&mut call, number, signals, now);
        let newest = self.numbers;
        let origin = BucketKey::Origin(Arc::clone(&call.identity.origin));
        let refused = signals.throttle.map(|throttle| match throttle.scope {
            ThrottleScope::Everything => origin.clone(),
            ThrottleScope::Bucket => named.clone().unwrap_or_else(|| origin.clone()),
            ThrottleScope::Route | ThrottleScope::Shared => {
                named.clone().or_else(|| call.identity.route()).unwrap_or_else(|| origin.clone())
            }
        });
        if let Some(refused) = refused.iter().find(|refused| !call.keys.contains(refused)) {
            self.count_in(refused, number, &mut call, now);
        }
        // Of the buckets that might have counted the call, the one that the server names has.
        let has_counted = |key: &BucketKey| {
            !is_of_unknown_route || !matches!(key, BucketKey::Named(..)) || named.as_ref() == Some(key)
        };
        let (counts, guesses): (Vec<BucketKey>, _) = call.keys.into_iter().partition(has_counted);
        for key in guesses {
            if let Some(queued) = self.buckets.get_mut(&key) {
                queued.bucket.unsend(number, now);
                queued.wake_first();
            }
        }
        // The numbers belong to the bucket that the server names, or to the whole server.
        let counted_in = named.unwrap_or(origin);
        let without_windows = Signals { windows: Vec::new(), ..signals.clone() };
        let mut frozen = None;
        for key in &counts {
            let Some(queued) = self.buckets.get_mut(key) else { continue };
            let signals = if *key == counted_in { signals } else { &without_windows };
            queued.bucket.note_newest(newest);
            match &signals.throttle {
                Some(throttle) if refused.as_ref() == Some(key) => {
                    let made = queued.bucket.refuse(number, throttle, signals, &mut self.random, now);
                    queued.bucket.mark_frozen(newest);
                    frozen = Some((key.clone(), made));
                }
                // A server that refuses calls works.
                _ if matches!(key, BucketKey::Host(_)) => queued.bucket.answer(number, signals, now),
                // The server refused the call before this bucket counted it.
                Some(throttle) if throttle.scope == ThrottleScope::Everything => {
                    queued.bucket.abandon(number, now);
                }
                _ => queued.bucket.answer(number, signals, now),
            }
            queued.wake_first();
        }
        Answered { keys: counts, frozen }
    }

    /// Counts a call under way in a bucket that was not known to count it when it left.
    fn count_in(&mut self, key: &BucketKey, number: u64, call: &mut SentCall, now: Timestamp) {
        let bucket = &mut self.queued(key, &call.identity.host, now).bucket;
        bucket.count_in(number, Arc::clone(&call.costs), call.at);
        call.keys.push(key.clone());
    }

    /// Remembers which bucket the server counts a route in, and counts the calls in it that are under way.
    fn learn_route(
        &mut self,
        call: &mut SentCall,
        number: u64,
        signals: &Signals,
        now: Timestamp,
    ) -> Option<BucketKey> {
        let id = (Arc::clone(&call.identity.origin), Arc::clone(&call.identity.route));
        let is_known = |key: &&BucketKey| matches!(key, BucketKey::Named(..)) && !call.is_of_unknown_route();
        let known = call.keys.iter().find(is_known).cloned();
        let Some(name) = signals.bucket.as_deref().map(Arc::<str>::from) else {
            if self.settings.discovers && signals.throttle.is_none() && self.routes.len() < ROUTES_MAX {
                self.routes.entry(id.clone()).or_insert(None);
                self.wake_unknown(&call.identity);
            }
            return known;
        };
        if self.routes.len() < ROUTES_MAX || self.routes.contains_key(&id) {
            let before = self.routes.insert(id.clone(), Some(Arc::clone(&name)));
            let before = before.flatten();
            if before.as_ref() != Some(&name) {
                self.names.entry(Arc::clone(&id.0)).or_default().insert(Arc::clone(&name));
            }
            if before.is_none() {
                self.count_route_in(&id, &name, now);
            }
        }
        self.wake_unknown(&call.identity);
        let named = call.identity.named(&name);
        if !call.keys.contains(&named) {
            self.count_in(&named, number, call, now);
        }
        Some(named)
    }

    /// All calls that wait for the bucket of a route step again: those of the route find it.
    fn wake_unknown(&mut self, identity: &CallIdentity) {
        if let Some(queued) = self.buckets.get_mut(&identity.unknown()) {
            queued.wake_all();
        }
    }

    /// Counts the calls of a route that left before the name of its bucket was known.
    fn count_route_in(&mut self, (origin, route): &RouteId, name: &str, now: Timestamp) {
        let is_of_route = |call: &SentCall| call.identity.origin == *origin && call.identity.route == *route;
        let numbers = self.sent.iter().filter(|(_, call)| is_of_route(call)).map(|(number, _)| *number);
        for number in numbers.collect::<Vec<u64>>() {
            let Some(mut call) = self.sent.remove(&number) else { continue };
            let named = call.identity.named(name);
            if !call.keys.contains(&named) {
                self.count_in(&named, number, &mut call, now);
            }
            self.sent.insert(number, call);
        }
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

    /// The freeze of these buckets that ends last, with its bucket.
    pub(crate) fn frozen<'k>(
        &self,
        keys: &'k [BucketKey],
        now: Timestamp,
    ) -> Option<(&'k BucketKey, Freeze)> {
        let each = keys.iter().filter_map(|key| Some((key, self.buckets.get(key)?.bucket.frozen(now)?)));
        each.max_by_key(|(_, freeze)| freeze.until)
    }

    /// The frozen buckets, by name.
    pub(crate) fn freezes(&self, now: Timestamp) -> Vec<BucketReport> {
        let frozen = self.buckets.iter().filter(|(_, queued)| queued.bucket.frozen(now).is_some());
        by_name(frozen.map(|(key, queued)| report_of(key, queued, now)))
    }

    /// Ends the freezes of these buckets, and returns them as they were.
    pub(crate) fn thaw(
        &mut self,
        is_meant: impl Fn(&BucketReport) -> bool,
        now: Timestamp,
    ) -> Vec<(BucketKey, BucketReport, Freeze)> {
        let mut thawed = Vec::new();
        for (key, queued) in &mut self.buckets {
            let report = report_of(key, queued, now);
            if report.frozen.is_some()
                && is_meant(&report)
                && let Some(freeze) = queued.bucket.thaw(now)
            {
                queued.wake_first();
                thawed.push((key.clone(), report, freeze));
            }
        }
        thawed
    }

    /// Another process ended the freeze of this bucket.
    #[cfg(feature = "redis")]
    pub(crate) fn follow_thaw(&mut self, key: &BucketKey, now: Timestamp) {
        if let Some(queued) = self.buckets.get_mut(key)
            && queued.bucket.thaw(now).is_some()
        {
            queued.wake_first();
        }
    }

    /// Units that the server leaves for further calls, in the window that a limit follows.
    pub(crate) fn left_for(&self, keys: &[BucketKey], limit: &str) -> Option<u64> {
        keys.iter().filter_map(|key| self.buckets.get(key)?.bucket.left_for(limit)).min()
    }

    /// When the last of these calls could leave, by the numbers of the server, and the bucket that says so.
    pub(crate) fn forecast(
        &self,
        keys: &[BucketKey],
        calls: &Costs,
        now: Timestamp,
    ) -> (Timestamp, Option<Arc<str>>) {
        let each = keys.iter().filter_map(|key| self.buckets.get(key));
        let each = each.map(|queued| (queued.forecast(calls, now), &queued.name));
        match each.max_by_key(|(at, _)| *at) {
            Some((at, name)) if at > now => (at, Some(Arc::clone(name))),
            _ => (now, None),
        }
    }

    /// The units of the calls that wait for a bucket.
    pub(crate) fn waiting_units(&self, key: &BucketKey) -> u64 {
        self.buckets.get(key).map_or(0, QueuedBucket::waiting_units)
    }

    /// All buckets, by name.
    pub(crate) fn report(&self, now: Timestamp) -> Vec<BucketReport> {
        by_name(self.buckets.iter().map(|(key, queued)| report_of(key, queued, now)))
    }
}

fn report_of(key: &BucketKey, queued: &QueuedBucket, now: Timestamp) -> BucketReport {
    BucketReport {
        name: queued.name.to_string(),
        owner: queued.owner.to_string(),
        counts_all_calls: matches!(key, BucketKey::Host(_)),
        basis: key.basis(),
        waiting: queued.len(),
        in_flight: queued.bucket.in_flight,
        refusals: queued.bucket.refusals,
        frozen: queued.bucket.frozen(now),
        windows: queued.bucket.windows(),
    }
}

fn by_name(reports: impl Iterator<Item = BucketReport>) -> Vec<BucketReport> {
    let mut reports: Vec<BucketReport> = reports.collect();
    reports.sort_by(|a, b| a.name.cmp(&b.name));
    reports
}

/// A freeze that no call waits for.
fn refusal_of(name: &str, freeze: Freeze, now: Timestamp) -> Option<Refusal> {
    let (bucket, wait, until) = (name.to_owned(), freeze.until.since(now), freeze.until);
    match freeze.cause {
        FreezeCause::Failing(failures) => Some(Refusal::CircuitOpen { bucket, failures, wait, until }),
        FreezeCause::Throttled(kind) if kind.is_long() => {
            Some(Refusal::Exhausted { bucket, kind, wait, until, statement: freeze.statement })
        }
        FreezeCause::Throttled(_) => None,
    }
}
