//! The queue of calls before one bucket, in the order of rank.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use tollgate::{Quota, Rate, Ticks, Timestamp};

use crate::bucket::Bucket;
use crate::call::Call;
use crate::costs::Costs;
use crate::freeze::Freeze;
use crate::keys::BucketKey;
use crate::refusal::Refusal;
use crate::settings::Settings;

/// A counter of the policy grows only after this many responses in a row that leave more.
const EVIDENCE_MIN: u32 = 3;
/// At most so many calls ask the policy for slots of one leaky bucket at a time.
const FRONT_MAX: u64 = 64;

/// The rank of a call in every queue: an earlier instant goes first, and then the earlier arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) at: Timestamp,
    pub(crate) ticket: u64,
}

/// The arrival of a call. All its attempts share it, so that an attempt that the server refused goes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) rank: Rank,
    pub(crate) at: Timestamp,
    /// How long it may wait in all.
    max_wait: Ticks,
}

impl Arrival {
    pub(crate) fn new(call: &Call, ticket: u64, settings: &Settings, now: Timestamp) -> Self {
        let max_wait = call.wait_max().unwrap_or(Ticks::ceil_from(settings.max_wait));
        let max_wait = call.deadline_at().map_or(max_wait, |deadline| max_wait.min(deadline.since(now)));
        Self { rank: Rank { at: now + call.urgency().handicap(), ticket }, at: now, max_wait }
    }

    /// The arrival of a call that leaves at once or not at all, and after every call that waits.
    pub(crate) const fn behind_all(ticket: u64, now: Timestamp) -> Self {
        Self { rank: Rank { at: Timestamp::MAX, ticket }, at: now, max_wait: Ticks::ZERO }
    }

    /// The last instant at which the call may leave.
    pub(crate) fn leaves_until(&self) -> Timestamp {
        self.at + self.max_wait
    }

    /// The refusal of a call that a bucket lets leave only at this instant.
    pub(crate) fn too_late(
        &self,
        key: &BucketKey,
        host: &str,
        until: Timestamp,
        freeze: Option<Freeze>,
    ) -> Refusal {
        Refusal::TooLate {
            bucket: key.name(host).to_string(),
            basis: key.basis(),
            wait: until.since(self.at),
            max_wait: self.max_wait,
            until,
            freeze,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Waiter {
    waker: Option<Waker>,
    is_woken: bool,
    costs: Arc<Costs>,
}

impl Waiter {
    /// Wakes it. If it is not polled now, its next poll sees the flag, so no wake-up is lost.
    pub(crate) fn wake(&mut self) {
        self.is_woken = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// How many waiters of a queue may ask for their bucket at a time: the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    /// Until the bucket holds a call back.
    open: usize,
    /// Afterwards.
    held_back: usize,
}

impl Front {
    /// One after the other.
    pub(crate) const ONE: Self = Self { open: 1, held_back: 1 };

    /// The calls at this cost that a leaky bucket lets leave within `ahead`, and its burst as long as it may have it.
    pub(crate) fn of_bucket(rate: Rate, cost: u64, ahead: Ticks) -> Self {
        let units = u128::from(rate.units()) * u128::from(ahead.as_micros());
        let units = u64::try_from(units / u128::from(rate.period().as_micros().max(1))).unwrap_or(u64::MAX);
        let waiters = |units: u64| usize::try_from((units / cost.max(1)).clamp(1, FRONT_MAX)).unwrap_or(1);
        Self { open: waiters(units.max(rate.burst_units().unwrap_or(1))), held_back: waiters(units) }
    }
}

/// How a limit held back a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBack {
    /// It denied it.
    Denied,
    /// Its next slot is far.
    SlotFar,
}

/// How fast a limit lets calls pass, from its last answer to a call that has to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitShape {
    how: HeldBack,
    /// When the first waiter may pass.
    due: Timestamp,
    units: u64,
    period: Ticks,
    is_steady: bool,
}

impl LimitShape {
    pub(crate) fn new(how: HeldBack, due: Timestamp, quota: Option<&Quota>) -> Self {
        let rate = quota.and_then(Quota::rate);
        let (units, period) = rate.map_or((0, Ticks::ZERO), |rate| (rate.units(), rate.period()));
        Self { how, due, units, period, is_steady: quota.is_some_and(Quota::is_reservoir) }
    }

    /// The earliest instant at which a call passes, if the first waiter costs `first` and the calls behind it, up to and
    /// with this one, cost `rest`.
    fn earliest(&self, first: u64, rest: u64) -> Timestamp {
        if self.units == 0 {
            return self.due;
        }
        let (units, period) = (u128::from(self.units), u128::from(self.period.as_micros()));
        let wait = if self.is_steady {
            u128::from(rest) * period / units
        } else {
            u128::from(first.saturating_add(rest).saturating_sub(1)) / units * period
        };
        self.due + Ticks::from_micros(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

/// A bucket with its queue.
pub(crate) struct QueuedBucket {
    pub(crate) name: Arc<str>,
    /// A server, or a limit of the policy.
    pub(crate) owner: Arc<str>,
    pub(crate) bucket: Bucket,
    queue: BTreeMap<Rank, Waiter>,
    /// The cost of all waiters together.
    waiting: Costs,
    front: Front,
    shape: Option<LimitShape>,
    /// How many responses in a row said that the server leaves more than this counter of the policy.
    evidence: u32,
}

impl QueuedBucket {
    pub(crate) fn new(name: Arc<str>, owner: Arc<str>, bucket: Bucket) -> Self {
        let (queue, waiting) = (BTreeMap::new(), Costs::NONE);
        Self { name, owner, bucket, queue, waiting, front: Front::ONE, shape: None, evidence: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn enter(&mut self, rank: Rank, costs: Arc<Costs>, front: Front) {
        self.waiting.add(&costs);
        self.front = front;
        self.queue.insert(rank, Waiter { waker: None, is_woken: false, costs });
    }

    /// Removes a waiter, and wakes the one that comes to the front for it.
    pub(crate) fn leave(&mut self, rank: Rank) {
        if let Some(waiter) = self.queue.remove(&rank) {
            self.waiting.subtract(&waiter.costs);
        }
        let last = self.front_len() - 1;
        if let Some((_, next)) = self.queue.iter_mut().nth(last).filter(|(next, _)| rank < **next) {
            next.wake();
        }
    }

    /// How many waiters may ask at a time.
    const fn front_len(&self) -> usize {
        if self.shape.is_some() { self.front.held_back } else { self.front.open }
    }

    /// Wakes the first waiter.
    pub(crate) fn wake_first(&mut self) {
        if let Some(mut first) = self.queue.first_entry() {
            first.get_mut().wake();
        }
    }

    pub(crate) fn wake_all(&mut self) {
        self.queue.values_mut().for_each(Waiter::wake);
    }

    /// Whether a waiter was woken, or has left; otherwise it is woken by this waker.
    pub(crate) fn poll_woken(&mut self, rank: Rank, waker: &Waker) -> bool {
        match self.queue.get_mut(&rank) {
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

    /// Whether earlier calls wait, as many as may ask at a time.
    pub(crate) fn is_behind(&self, rank: Rank) -> bool {
        self.queue.range(..rank).nth(self.front_len() - 1).is_some()
    }

    /// The cost of the waiters before this rank together.
    fn before(&self, rank: Rank) -> Costs {
        // Most calls arrive behind all others.
        if self.queue.last_key_value().is_none_or(|(last, _)| *last < rank) {
            return self.waiting.clone();
        }
        let mut costs = Costs::NONE;
        self.queue.range(..rank).for_each(|(_, waiter)| costs.add(&waiter.costs));
        costs
    }

    /// No earlier than this does a call leave that waits behind the earlier waiters.
    pub(crate) fn earliest(&self, rank: Rank, costs: &Costs, now: Timestamp) -> Timestamp {
        let mut together = self.before(rank);
        let Some(shape) = self.shape else {
            together.add(costs);
            return self.bucket.earliest(&together, now);
        };
        let Some((_, first)) = self.queue.first_key_value().filter(|(first, _)| **first < rank) else {
            return now;
        };
        let first = first.costs.in_limit(&self.name);
        let rest = together.in_limit(&self.name).saturating_sub(first);
        shape.earliest(first, rest.saturating_add(costs.in_limit(&self.name))).max(now)
    }

    /// When the last of these calls could leave by the numbers of the server, behind the waiters.
    pub(crate) fn forecast(&self, calls: &Costs, now: Timestamp) -> Timestamp {
        let mut together = self.waiting.clone();
        together.add(calls);
        self.bucket.forecast(&together, now)
    }

    /// Notes when the limit lets a call pass that it held back. Returns when the call leaves at the earliest. Calls that
    /// are denied at the same time learn of different instants: the first waiter passes at the earliest of them.
    pub(crate) fn hold_back(
        &mut self,
        rank: Rank,
        costs: &Costs,
        mut shape: LimitShape,
        now: Timestamp,
    ) -> Timestamp {
        let due = shape.due;
        if let Some(known) = self.shape.filter(|known| known.due > now && !self.queue.is_empty())
            && shape.how == HeldBack::Denied
        {
            shape.due = due.min(known.due);
        }
        self.shape = Some(shape);
        self.earliest(rank, costs, now).max(due)
    }

    /// Counts a response that leaves more than this counter of the policy. Returns whether it is the last of enough in a
    /// row, while calls wait.
    pub(crate) fn count_evidence(&mut self) -> bool {
        self.evidence = if self.queue.is_empty() { 0 } else { self.evidence + 1 };
        let is_enough = self.evidence >= EVIDENCE_MIN;
        if is_enough {
            self.evidence = 0;
        }
        is_enough
    }

    /// A response does not leave more than this counter of the policy.
    pub(crate) const fn discard_evidence(&mut self) {
        self.evidence = 0;
    }

    /// The cost of the waiters in this limit of the policy.
    pub(crate) fn waiting_units(&self) -> u64 {
        if self.queue.is_empty() { 0 } else { self.waiting.in_limit(&self.name) }
    }

    /// Whether it can be dropped: it is as good as new, and no call waits for it.
    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        self.queue.is_empty() && self.bucket.is_idle(now)
    }
}
