//! Connects reports to the engine's counters: takes the usage that Envoys report, and divides the remaining units
//! again. Each server has one, which all streams share.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tollgate::store::together;
use tollgate::{Enforcement, LimitStatus, Reason, Source, Timestamp};

use super::bucket::Bucket;
use super::counter::QuotaParameters;
use super::message::{BucketAction, Response};
use super::shares::{BucketCounter, BucketVerdict, CounterId, Instruction, Shares, SubscriptionId, Usage};
use crate::log_throttle::LogThrottle;
use crate::service::Service;
use crate::telemetry::Sample;
use crate::telemetry::names::{self, label};

/// Maximum number of concurrent streams.
const STREAMS_MAX: usize = 10_000;
/// How often counters are checked for due units.
const ACQUIRE_EVERY: Duration = Duration::from_millis(100);

/// All assignments, and the messages waiting to be sent.
#[derive(Debug)]
pub(crate) struct QuotaAssigner {
    state: Mutex<QuotaState>,
    streams: AtomicU64,
    hasher: RandomState,
    refused: LogThrottle,
    allowed: AtomicU64,
    denied: AtomicU64,
    assignments: AtomicU64,
    abandoned: AtomicU64,
}

#[derive(Debug, Default)]
struct QuotaState {
    shares: Shares,
    buckets: HashMap<SubscriptionId, Arc<Bucket>>,
    outboxes: HashMap<u64, StreamOutbox>,
    is_acquiring: bool,
}

/// Messages for one stream: the latest order for each bucket.
#[derive(Debug)]
struct StreamOutbox {
    instructions: BTreeMap<u64, Instruction>,
    wake: Arc<Notify>,
}

impl QuotaAssigner {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            streams: AtomicU64::new(0),
            hasher: RandomState::new(),
            refused: LogThrottle::default(),
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            assignments: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, QuotaState> {
        // The lock is held for arithmetic only, and the state is still consistent after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a stream. Returns its number and the handle that wakes it, or `None` if there are too many streams. A task
    /// acquires units of the counters while any stream is open.
    pub(crate) fn open(self: &Arc<Self>, service: &Arc<Service>) -> Option<(u64, Arc<Notify>)> {
        let opened = self.admit()?;
        if !std::mem::replace(&mut self.state().is_acquiring, true) {
            tokio::spawn(Arc::clone(self).keep_acquiring(Arc::clone(service)));
        }
        Some(opened)
    }

    /// Opens a stream without starting the acquiring task.
    pub(super) fn admit(&self) -> Option<(u64, Arc<Notify>)> {
        let mut state = self.state();
        if state.outboxes.len() >= STREAMS_MAX {
            return None;
        }
        // Relaxed: the numbers only have to be distinct.
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let wake = Arc::new(Notify::new());
        state
            .outboxes
            .insert(stream, StreamOutbox { instructions: BTreeMap::new(), wake: Arc::clone(&wake) });
        Some((stream, wake))
    }

    /// Closes a stream. Its assignments expire on their own.
    pub(crate) fn close(&self, stream: u64, now: Timestamp) {
        let mut state = self.state();
        state.shares.leave(stream, now);
        state.outboxes.remove(&stream);
        state.buckets.retain(|subscription, _| subscription.stream != stream);
    }

    /// Takes the pending messages of a stream.
    pub(crate) fn take(&self, stream: u64) -> Option<Response> {
        let mut state = self.state();
        let instructions = std::mem::take(&mut state.outboxes.get_mut(&stream)?.instructions);
        let action = |(bucket, instruction)| {
            let subscription = SubscriptionId { stream, bucket };
            let id = state.buckets.get(&subscription)?.id.clone();
            if !state.shares.has(subscription) {
                state.buckets.remove(&subscription);
            }
            Some(BucketAction::new(id, instruction))
        };
        let actions: Vec<BucketAction> = instructions.into_iter().filter_map(action).collect();
        (!actions.is_empty()).then_some(Response { actions })
    }

    /// Processes the reports of a stream.
    pub(crate) async fn report(&self, service: &Service, stream: u64, reports: Vec<(Bucket, Usage)>) {
        let each = reports.into_iter().map(|(bucket, usage)| self.report_one(service, stream, bucket, usage));
        together(service.engine.store(), each.collect()).await;
    }

    async fn report_one(&self, service: &Service, stream: u64, bucket: Bucket, usage: Usage) {
        // Relaxed: these are metrics only.
        self.allowed.fetch_add(usage.allowed, Ordering::Relaxed);
        self.denied.fetch_add(usage.denied, Ordering::Relaxed);
        let subscription = SubscriptionId { stream, bucket: self.hasher.hash_one(bucket.identity()) };
        let now = service.now();
        let known = self.state().shares.used(subscription, usage.allowed, now);
        let verdict = self.verdict(service, &bucket, usage.allowed, &known, now).await;
        let mut state = self.state();
        // The stream may have closed meanwhile.
        if !state.outboxes.contains_key(&stream) {
            return;
        }
        state.buckets.insert(subscription, Arc::new(bucket));
        let instructions = state.shares.report(subscription, usage, &verdict, now);
        for (subscription, instruction) in instructions {
            let counter =
                if instruction == Instruction::Abandon { &self.abandoned } else { &self.assignments };
            counter.fetch_add(1, Ordering::Relaxed);
            // The instructions are queued under the lock under which they were made, so they stay in order.
            if let Some(outbox) = state.outboxes.get_mut(&subscription.stream) {
                outbox.instructions.insert(subscription.bucket, instruction);
                outbox.wake.notify_one();
            }
        }
    }

    /// Evaluates the policy for a bucket after `allowed` of its requests have passed.
    async fn verdict(
        &self,
        service: &Service,
        bucket: &Bucket,
        allowed: u64,
        known: &[CounterId],
        now: Timestamp,
    ) -> BucketVerdict {
        let without_limit = || service.meter.passed_by_envoy(bucket.names(), allowed, now);
        if service.engine.policy().domain().is_some_and(|domain| domain != bucket.domain) {
            without_limit();
            return BucketVerdict::Unlimited;
        }
        let about = bucket.known(&service.identity);
        let request = match bucket.request(&about) {
            Ok(request) => request,
            Err(error) => {
                if let Some(skipped) = self.refused.due(now) {
                    tracing::warn!(%error, skipped, "a bucket cannot be counted, so nothing of it may pass");
                }
                return BucketVerdict::Denied;
            }
        };
        let mut looks = Vec::new();
        let take = |status: &LimitStatus<'_>, cost: u64| {
            let used = allowed.saturating_mul(cost);
            let parameters = status.quota.and_then(QuotaParameters::of).filter(|_| cost > 0);
            let Some(parameters) = parameters else { return 0 };
            if status.enforcement == Enforcement::Shadow || !status.source.is_counted() {
                return used;
            }
            let counter = CounterId(self.hasher.hash_one(status.limit.name()), status.key_hash);
            let more = if known.contains(&counter) { 0 } else { used };
            looks.push(BucketCounter { counter, parameters, cost });
            self.state().shares.acquire(counter, parameters, more, status.outcome.remaining, now)
        };
        let decision = service.engine.ledger().debit(&request, take, now).await;
        if decision.meets_no_limit() {
            without_limit();
        }
        let is_closed = |status: LimitStatus<'_>| {
            status.enforcement == Enforcement::Enforced
                && matches!(status.source, Source::Closed | Source::Full)
        };
        let is_refused = matches!(
            decision.reason(),
            Some(Reason::Blocked | Reason::Fault | Reason::Forbidden | Reason::Penalty)
        );
        if is_refused || decision.limits().any(is_closed) {
            BucketVerdict::Denied
        } else if looks.is_empty() {
            BucketVerdict::Unlimited
        } else {
            BucketVerdict::Limited(looks)
        }
    }

    /// Takes the expected usage of Envoys from the counters as time passes, until no stream is left.
    async fn keep_acquiring(self: Arc<Self>, service: Arc<Service>) {
        loop {
            tokio::time::sleep(ACQUIRE_EVERY).await;
            let now = service.now();
            let due: Vec<Arc<Bucket>> = {
                let mut state = self.state();
                if state.outboxes.is_empty() {
                    state.is_acquiring = false;
                    return;
                }
                let subscriptions = state.shares.due_acquisitions(now);
                subscriptions
                    .iter()
                    .filter_map(|subscription| state.buckets.get(subscription).map(Arc::clone))
                    .collect()
            };
            let due_acquisitions = due.iter().map(|bucket| self.acquire(&service, bucket, now));
            together(service.engine.store(), due_acquisitions.collect()).await;
        }
    }

    async fn acquire(&self, service: &Service, bucket: &Bucket, now: Timestamp) {
        let known = bucket.known(&service.identity);
        let Ok(request) = bucket.request(&known) else { return };
        let take = |status: &LimitStatus<'_>, cost: u64| {
            let parameters = status.quota.and_then(QuotaParameters::of).filter(|_| cost > 0);
            let is_charged = status.enforcement == Enforcement::Enforced && status.source.is_counted();
            let Some(parameters) = parameters.filter(|_| is_charged) else { return 0 };
            let counter = CounterId(self.hasher.hash_one(status.limit.name()), status.key_hash);
            self.state().shares.acquire(counter, parameters, 0, status.outcome.remaining, now)
        };
        service.engine.ledger().debit(&request, take, now).await;
    }

    /// Metrics for a scrape.
    pub(crate) fn samples(&self, now: Timestamp) -> Vec<Sample> {
        let (summary, streams) = {
            let state = self.state();
            (state.shares.summary(now), state.outboxes.len())
        };
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let reported = |outcome, number| Sample {
            metric: &names::RLQS_REPORTED,
            label: Some((label::OUTCOME, outcome)),
            value: read(number),
        };
        vec![
            Sample::new(&names::RLQS_STREAMS, streams as u64),
            Sample::new(&names::RLQS_BUCKETS, summary.buckets as u64),
            Sample::new(&names::RLQS_SUBSCRIPTIONS, summary.subscriptions as u64),
            Sample::new(&names::RLQS_ASSIGNED, summary.assigned),
            Sample::new(&names::RLQS_OWED, summary.owed),
            reported("allow", &self.allowed),
            reported("deny", &self.denied),
            Sample::new(&names::RLQS_ASSIGNMENTS, read(&self.assignments)),
            Sample::new(&names::RLQS_ABANDONED, read(&self.abandoned)),
        ]
    }
}

#[cfg(test)]
mod tests;
