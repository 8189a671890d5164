//! How much each Envoy may admit: the buckets of Envoys at the counters that apply to them, and the assignment of each
//! bucket. Pure: the caller passes the time, and nothing is sent here.
//!
//! The grants that may still be followed add up to at most a counter's budget, with two exceptions. New buckets get a
//! first share immediately, a tenth of the limit for all of them together. A bucket that may pass requests at all gets
//! at least the smallest token bucket that Envoy accepts. An Envoy that must give up units is notified first. The
//! others get the units when it is certain that it has read the message.

use std::collections::{BTreeMap, HashMap};

use tollgate::{Ticks, Timestamp};

use super::counter::{Counter, Pressure, QuotaParameters};
use super::grant::{Assignment, NANO, Nano, Share, Strategy};
use super::level::{Level, with_head_room};

mod balance;
mod subscription;
#[cfg(test)]
mod tests;

use subscription::{CounterSubscription, INTERVAL_USUAL, Subscription, TRANSIT};

/// Maximum number of buckets of all Envoys together. A bucket counts once for each Envoy that has it.
pub(crate) const SUBSCRIPTIONS_MAX: usize = 100_000;
/// How often unused buckets and counters are swept.
const SWEEP_EVERY: Ticks = Ticks::from_secs(2);

/// One bucket of one Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SubscriptionId {
    pub(crate) stream: u64,
    pub(crate) bucket: u64,
}

/// A counter of the engine: a number for its limit, and one for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CounterId(pub(crate) u64, pub(crate) u64);

/// An Envoy's report about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

/// A counter that applies to a bucket. The units owed by this counter were already acquired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketCounter {
    pub(crate) counter: CounterId,
    pub(crate) parameters: QuotaParameters,
    /// The cost of one request.
    pub(crate) cost: u64,
}

/// The policy's verdict on a bucket.
#[derive(Clone, Debug)]
pub(crate) enum BucketVerdict {
    /// No limit applies.
    Unlimited,
    /// Every request is denied.
    Denied,
    /// These counters apply.
    Limited(Vec<BucketCounter>),
}

/// An instruction to an Envoy about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    Assign(Assignment),
    /// Forget the bucket, and stop reporting it.
    Abandon,
}

/// Metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharesSummary {
    pub(crate) buckets: usize,
    pub(crate) subscriptions: usize,
    /// The fill rate of all token buckets together in requests per second, rounded down.
    pub(crate) assigned: u64,
    /// Units that were consumed and not yet taken from a counter.
    pub(crate) owed: u64,
}

/// Whether a bucket has had an assignment before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    New,
    Known,
}

/// All buckets and counters.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    subscriptions: BTreeMap<SubscriptionId, Subscription>,
    counters: HashMap<CounterId, Counter>,
    swept_at: Option<Timestamp>,
}

impl Shares {
    /// Returns how many units to take from a counter of the engine that has `left` units: the due units, and `more`
    /// that are not recorded yet.
    pub(crate) fn acquire(
        &mut self,
        counter: CounterId,
        parameters: QuotaParameters,
        more: u64,
        left: u64,
        now: Timestamp,
    ) -> u64 {
        let counter = self.counters.entry(counter).or_insert_with(|| Counter::new(parameters, left, now));
        counter.parameters = parameters;
        counter.correct(i128::from(more) * i128::from(NANO), now);
        counter.acquire(left, now)
    }

    /// The buckets through which to take due units: one for each counter whose acquisition is due.
    pub(crate) fn due_acquisitions(&self, now: Timestamp) -> Vec<SubscriptionId> {
        let due = self.counters.values().filter(|counter| counter.is_acquisition_due(now));
        let mut subscriptions: Vec<SubscriptionId> =
            due.filter_map(|counter| counter.subscriptions.first().copied()).collect();
        subscriptions.sort_unstable();
        subscriptions.dedup();
        subscriptions
    }

    /// Records how many requests an Envoy admitted. Call it before acquiring the due units, because it corrects the
    /// estimate. Returns the bucket's counters, which now include the usage. Other counters must be charged with all of
    /// it.
    pub(crate) fn used(&mut self, id: SubscriptionId, allowed: u64, now: Timestamp) -> Vec<CounterId> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Vec::new() };
        let micros = i128::from(now.since(subscription.reported_at).as_micros());
        for attached in &subscription.counters {
            let used = (i128::from(allowed) * i128::from(NANO)).saturating_mul(i128::from(attached.cost));
            if let Some(counter) = self.counters.get_mut(&attached.counter) {
                let expected = i128::from(attached.pace) * micros / 1_000_000;
                counter.correct(used.saturating_sub(expected), subscription.reported_at);
            }
        }
        subscription.counters.iter().map(|attached| attached.counter).collect()
    }

    /// Processes a report. Returns the instructions to send, of which at least one goes to the bucket in the report.
    pub(crate) fn report(
        &mut self,
        id: SubscriptionId,
        usage: Usage,
        verdict: &BucketVerdict,
        now: Timestamp,
    ) -> Vec<(SubscriptionId, Instruction)> {
        self.sweep(now);
        if !self.subscriptions.contains_key(&id) && self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            // A bucket that cannot be counted is denied, because no client input may open a limit.
            let ttl_seconds = u32::try_from(INTERVAL_USUAL.ceil_seconds()).unwrap_or(1);
            return vec![(id, Instruction::Assign(Assignment { strategy: Strategy::DenyAll, ttl_seconds }))];
        }
        let subscription = self.subscriptions.entry(id).or_insert_with(|| Subscription::new(now));
        let is_new = subscription.grants.is_empty() || subscription.is_gone;
        let age = if is_new { Age::New } else { Age::Known };
        let current = subscription.grants.current(now).map(|grant| grant.strategy);
        let is_pressed = usage.denied > 0 && matches!(current, Some(Strategy::TokenBucket { .. }));
        let pressure = if is_pressed { Pressure::Denied } else { Pressure::None };
        subscription.record_report(usage, now);
        let (horizon, is_idle) = (subscription.ttl(), subscription.is_idle(now));
        // Without a token bucket, a request was not denied because the token bucket was empty.
        self.attach(id, verdict, pressure, horizon, now);
        if is_idle {
            self.unsubscribe(id, now);
            return vec![(id, Instruction::Abandon)];
        }
        let instructions = match verdict {
            BucketVerdict::Unlimited => vec![(id, self.send(id, Strategy::AllowAll, now))],
            BucketVerdict::Denied => vec![(id, self.send(id, Strategy::DenyAll, now))],
            BucketVerdict::Limited(_) => self.balance(id, age, now),
        };
        self.expect(id, pressure, now);
        instructions
    }

    /// Sets the expected usage of a bucket until its next report: its last demand, or its whole share if the share was
    /// too small.
    fn expect(&mut self, id: SubscriptionId, pressure: Pressure, now: Timestamp) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        let granted = subscription.grants.effective(now).rate;
        let expected = match subscription.demand {
            None => 0,
            Some(_) if pressure == Pressure::Denied => granted,
            Some(demand) => demand.min(granted),
        };
        for attached in &mut subscription.counters {
            let Some(counter) = self.counters.get_mut(&attached.counter) else { continue };
            let pace = if counter.is_paced() { expected.saturating_mul(attached.cost) } else { 0 };
            counter.change_pace(pace, std::mem::replace(&mut attached.pace, pace), now);
        }
    }

    /// Whether the bucket is in use, so that instructions can be sent to it again.
    pub(crate) fn has(&self, id: SubscriptionId) -> bool {
        self.subscriptions.get(&id).is_some_and(|subscription| !subscription.is_gone)
    }

    /// Handles the end of a stream. Its Envoy may follow its grants until they expire.
    pub(crate) fn leave(&mut self, stream: u64, now: Timestamp) {
        let (first, last) =
            (SubscriptionId { stream, bucket: 0 }, SubscriptionId { stream, bucket: u64::MAX });
        let subscriptions: Vec<SubscriptionId> =
            self.subscriptions.range(first..=last).map(|(&id, _)| id).collect();
        subscriptions.into_iter().for_each(|id| self.unsubscribe(id, now));
    }

    pub(crate) fn summary(&self, now: Timestamp) -> SharesSummary {
        let present = || self.subscriptions.iter().filter(|(_, subscription)| !subscription.is_gone);
        let mut buckets: Vec<u64> = present().map(|(id, _)| id.bucket).collect();
        buckets.sort_unstable();
        buckets.dedup();
        let assigned: u128 =
            present().map(|(_, subscription)| u128::from(subscription.grants.effective(now).rate)).sum();
        SharesSummary {
            buckets: buckets.len(),
            subscriptions: present().count(),
            assigned: u64::try_from(assigned / u128::from(NANO)).unwrap_or(u64::MAX),
            owed: self.counters.values().map(Counter::owed).fold(0, u64::saturating_add),
        }
    }

    /// Attaches a bucket to the counters that apply to it, and records their remaining units.
    fn attach(
        &mut self,
        id: SubscriptionId,
        verdict: &BucketVerdict,
        pressure: Pressure,
        horizon: Ticks,
        now: Timestamp,
    ) {
        let looks: &[BucketCounter] = match verdict {
            BucketVerdict::Limited(looks) => looks,
            BucketVerdict::Unlimited | BucketVerdict::Denied => &[],
        };
        for look in looks {
            let counter =
                self.counters.entry(look.counter).or_insert_with(|| Counter::new(look.parameters, 0, now));
            counter.observe(pressure, horizon, now);
        }
        let is_same = |subscription: &Subscription| {
            let counters = subscription.counters.iter().map(|attached| (attached.counter, attached.cost));
            counters.eq(looks.iter().map(|look| (look.counter, look.cost.max(1))))
        };
        if !self.subscriptions.get(&id).is_some_and(is_same) {
            self.detach(id, now);
            if let Some(subscription) = self.subscriptions.get_mut(&id) {
                let attached = |look: &BucketCounter| CounterSubscription {
                    counter: look.counter,
                    cost: look.cost.max(1),
                    pace: 0,
                };
                subscription.counters = looks.iter().map(attached).collect();
            }
        }
        for look in looks {
            if let Some(counter) = self.counters.get_mut(&look.counter)
                && counter.subscriptions.insert(id)
            {
                counter.level = None;
            }
        }
        let nominal = looks.iter().map(|look| look.parameters.rate / look.cost.max(1)).min().unwrap_or(0);
        let most = |look: &BucketCounter| {
            let budget = self.counters.get(&look.counter).map_or(0, |counter| counter.budget(now).rate);
            budget.max(look.parameters.rate) / look.cost.max(1)
        };
        let ceiling = looks.iter().map(most).min().unwrap_or(0);
        if let Some(subscription) = self.subscriptions.get_mut(&id) {
            (subscription.nominal, subscription.ceiling) = (nominal, ceiling);
        }
        self.recount(id, now);
    }

    /// Detaches a bucket from its counters, and removes what it had there.
    fn detach(&mut self, id: SubscriptionId, now: Timestamp) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        let (counters, counted) =
            (std::mem::take(&mut subscription.counters), std::mem::take(&mut subscription.counted));
        for attached in counters {
            let Some(counter) = self.counters.get_mut(&attached.counter) else { continue };
            counter.change_pace(0, attached.pace, now);
            counter.out = less(counter.out, counted.times(attached.cost));
            counter.subscriptions.remove(&id);
            counter.level = None;
        }
    }

    /// Marks a bucket as departed. Its grants count until they expire.
    fn unsubscribe(&mut self, id: SubscriptionId, now: Timestamp) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        subscription.is_gone = true;
        // The Envoy may continue until its grants expire without reporting. That much is owed, and nothing after it.
        let rest = subscription.grants.last_end().since(now);
        for attached in &mut subscription.counters {
            if let Some(counter) = self.counters.get_mut(&attached.counter) {
                counter.expect_rest(attached.pace, rest, now);
                attached.pace = 0;
                counter.subscriptions.remove(&id);
                counter.level = None;
            }
        }
        self.recount(id, now);
    }

    /// Updates the counters to what the bucket may follow now.
    fn recount(&mut self, id: SubscriptionId, now: Timestamp) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        let (before, after) = (subscription.counted, subscription.grants.effective(now));
        subscription.counted = after;
        for attached in &subscription.counters {
            let Some(counter) = self.counters.get_mut(&attached.counter) else { continue };
            let rest = less(counter.out, before.times(attached.cost));
            let more = after.times(attached.cost);
            counter.out = Share {
                rate: rest.rate.saturating_add(more.rate),
                tokens: rest.tokens.saturating_add(more.tokens),
            };
        }
    }

    /// Sends a strategy to a bucket.
    fn send(&mut self, id: SubscriptionId, strategy: Strategy, now: Timestamp) -> Instruction {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Instruction::Abandon };
        let ttl = subscription.ttl();
        subscription.grants.send(strategy, now, now + ttl + TRANSIT);
        self.recount(id, now);
        let ttl_seconds = u32::try_from(ttl.ceil_seconds()).unwrap_or(u32::MAX);
        Instruction::Assign(Assignment { strategy, ttl_seconds })
    }

    /// Removes buckets whose grants have expired, and counters without buckets.
    fn sweep(&mut self, now: Timestamp) {
        if self.swept_at.is_some_and(|at| now.since(at) < SWEEP_EVERY) {
            return;
        }
        self.swept_at = Some(now);
        let all: Vec<SubscriptionId> = self.subscriptions.keys().copied().collect();
        for id in all {
            self.recount(id, now);
            let is_over = |subscription: &Subscription| {
                subscription.is_gone && subscription.counted == Share::default()
            };
            if self.subscriptions.get(&id).is_some_and(is_over) {
                self.detach(id, now);
                self.subscriptions.remove(&id);
            }
        }
        let is_needed = |counter: &Counter| {
            !counter.subscriptions.is_empty()
                || counter.out != Share::default()
                || counter.was_acquired_since(now, SWEEP_EVERY)
        };
        self.counters.retain(|_, counter| is_needed(counter));
    }
}

fn less(from: Share, share: Share) -> Share {
    Share { rate: from.rate.saturating_sub(share.rate), tokens: from.tokens.saturating_sub(share.tokens) }
}
