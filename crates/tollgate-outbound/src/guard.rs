//! A call that may leave now. Its response corrects the buckets, and its end frees what it holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::StatusCode;
use tollgate::store::Store;
use tollgate::{LimitStatus, MemoryStore, Permit, Reservation, Ticks, Timestamp};

use crate::background;
use crate::call::{Call, Usage};
use crate::dialect::{self, ResponseView};
use crate::freeze::{Freeze, FreezeCause};
use crate::keys::{BucketKey, CallIdentity};
use crate::queue::Arrival;
use crate::refusal::Refusal;
use crate::renewal::Renewal;
use crate::report::admits_now;
use crate::retry;
use crate::settings::Learning;
use crate::shared_freezes::FreezeChange;
use crate::signal::{Signals, ThrottleKind};
use crate::state::Shared;

/// How long ago units may have been charged that the server has not counted.
const GROWTH_WITHIN: Ticks = Ticks::from_secs(1);

/// How a call ended that has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Nothing was sent, or the server says that it has not looked at it. It is refunded, and the server is not blamed.
    NotSent,
    /// Nothing was sent because there was no connection. It is refunded, and counts as a failure of the server.
    Unreachable,
    /// It was sent, perhaps in part, and no response came: the server may have counted it.
    Unanswered,
}

/// A counter of the policy that a call was charged to.
#[derive(Debug)]
pub(crate) struct OwnCounter {
    pub(crate) key: BucketKey,
    pub(crate) limit: String,
    /// Units that it had left after the charge.
    pub(crate) remaining: u64,
    pub(crate) is_concurrency: bool,
}

/// The call of a guard.
pub(crate) struct GuardedCall {
    /// As it left: with estimates that its limits admit.
    pub(crate) call: Call,
    pub(crate) identity: CallIdentity,
    pub(crate) arrival: Arrival,
    /// Its number among the calls that left.
    pub(crate) number: u64,
}

/// The units that a call has reserved. Its permit of a concurrency limit is renewed as long as they are held.
#[derive(Debug)]
pub(crate) struct HeldUnits {
    reservation: Reservation,
    permit: Option<(Permit, Option<Renewal>)>,
}

impl HeldUnits {
    pub(crate) fn new<S: Store + Send + Sync + 'static>(
        shared: &Arc<Shared<S>>,
        mut reservation: Reservation,
    ) -> Self {
        let permit = reservation.take_permit().map(|permit| {
            let renewal = Renewal::start(shared, &permit);
            (permit, renewal)
        });
        Self { reservation, permit }
    }
}

/// A call that may leave now.
///
/// [`Guard::settle`] takes its response. A program that reads the body later calls [`Guard::observe`] when the headers
/// arrive, and [`Guard::finish`] when the body has ended: permits of concurrency limits are held until then. Dropping a
/// guard counts the call as sent, frees its permit, and says nothing about the server.
#[must_use = "the call counts as under way until its guard is settled or dropped"]
pub struct Guard<S: Store + Send + Sync + 'static = MemoryStore> {
    shared: Arc<Shared<S>>,
    guarded: GuardedCall,
    server: Vec<BucketKey>,
    own: Vec<OwnCounter>,
    units: Option<HeldUnits>,
    is_observed: bool,
    refusal: Option<Refusal>,
}

impl<S: Store + Send + Sync + 'static> Guard<S> {
    pub(crate) fn new(
        shared: &Arc<Shared<S>>,
        guarded: GuardedCall,
        server: Vec<BucketKey>,
        own: Vec<OwnCounter>,
    ) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, guarded, server, own, units: None, is_observed: false, refusal: None }
    }

    pub(crate) fn holding(mut self, units: Option<HeldUnits>) -> Self {
        self.units = units;
        self
    }

    /// The guard of a copy, which may leave again as long as its call may.
    pub(crate) const fn arrived(mut self, arrival: Arrival) -> Self {
        self.guarded.arrival = arrival;
        self
    }

    /// Takes the response, and ends the call. `cost` is its actual cost, if that is known; otherwise its estimate
    /// stays.
    ///
    /// # Errors
    /// The server refused the call, and it may not leave again: see [`Guard::refusal`]. Any other response is `Ok`, also
    /// a refusal that is over within the longest wait of the call: acquire it again.
    pub async fn settle(
        mut self,
        response: &ResponseView<'_>,
        cost: Option<u64>,
    ) -> Result<Signals, Refusal> {
        let signals = self.observe(response).await;
        let refusal = self.refusal.take();
        self.finish(cost).await;
        refusal.map_or(Ok(signals), Err)
    }

    /// Takes the head of the response: the server's numbers correct the buckets, and a refusal freezes them. Only the
    /// first response of a call counts.
    pub async fn observe(&mut self, response: &ResponseView<'_>) -> Signals {
        let signals = dialect::read(response);
        if !self.is_observed {
            self.is_observed = true;
            self.take_signals(response.outcome(), &signals).await;
        }
        signals
    }

    /// Why the call may not leave again, if its response refused it: a quota of a day or of money is used up, or its
    /// bucket takes calls only after the longest wait of the call. `None` if the server may have executed a part of it.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    async fn take_signals(&mut self, status: StatusCode, signals: &Signals) {
        let now = self.shared.engine.now();
        let number = self.guarded.number;
        let frozen = if signals.throttle.is_none() && status.is_server_error() {
            self.shared.totals.failed.fetch_add(1, Ordering::Relaxed);
            self.shared.queues().fail(number, now)
        } else {
            if signals.throttle.is_some() {
                self.shared.totals.throttled.fetch_add(1, Ordering::Relaxed);
            }
            let answered = self.shared.queues().answer(number, signals, now);
            self.server = answered.keys;
            answered.frozen
        };
        if let Some((key, freeze)) = frozen {
            self.shared.outbox.publish(&key, self.host(), FreezeChange::Frozen(freeze));
        }
        if let Some(throttle) = signals.throttle
            && retry::is_refused_unseen(status, signals, self.guarded.call.may_repeat())
        {
            self.refusal = self.refusal_after(throttle.kind, now);
        }
        if !signals.windows.is_empty() {
            self.correct_counters().await;
        }
    }

    /// The refusal of the next attempt of a call that the server refused, if it could not leave in time.
    fn refusal_after(&self, kind: ThrottleKind, now: Timestamp) -> Option<Refusal> {
        let queues = self.shared.queues();
        let (key, freeze) = queues.frozen(&self.server, now)?;
        let Freeze { until, cause, statement } = freeze;
        // The freeze of another call may be the longer one.
        let long = [FreezeCause::Throttled(kind), cause].into_iter().find_map(|cause| match cause {
            FreezeCause::Throttled(kind) if kind.is_long() => Some(kind),
            _ => None,
        });
        let GuardedCall { identity, arrival, .. } = &self.guarded;
        match long {
            Some(kind) => {
                let (bucket, wait) = (key.name(&identity.host).to_string(), until.since(now));
                Some(Refusal::Exhausted { bucket, kind, wait, until, statement })
            }
            None if until > arrival.leaves_until() => {
                Some(arrival.too_late(key, &identity.host, until, Some(freeze)))
            }
            None => None,
        }
    }

    /// Corrects the counters of the policy that follow one of the server's windows.
    async fn correct_counters(&self) {
        let learning = self.shared.settings.learning;
        if learning == Learning::Off {
            return;
        }
        for own in &self.own {
            let (left, is_evident) = {
                let mut queues = self.shared.queues();
                let Some(left) = queues.left_for(&self.server, &own.limit) else { continue };
                let is_more = left > own.remaining;
                if !is_more {
                    queues.discard_evidence(&own.key);
                }
                (left, is_more && queues.count_evidence(&own.key))
            };
            if left < own.remaining {
                self.shrink(&own.limit, left).await;
            } else if is_evident && learning == Learning::Follow {
                self.grow(&own.limit, left).await;
                self.shared.queues().wake(std::slice::from_ref(&own.key));
            }
        }
    }

    /// Takes units from a counter that has more left than the server.
    async fn shrink(&self, limit: &str, left: u64) {
        let Ok(request) = self.call().request() else { return };
        let now = self.shared.engine.now();
        // In a fleet, other processes have calls under way that the server has not counted either.
        let excess = |status: &LimitStatus<'_>, _| {
            let admitted =
                if status.limit.name() == limit { admits_now(status.quota, &status.outcome) } else { 0 };
            admitted.saturating_sub(left)
        };
        self.shared.engine.ledger().debit(&request, excess, now).await;
    }

    /// Gives units back to a counter, as far as it has less left than the server now: calls that were under way together
    /// bring the same news.
    async fn grow(&self, limit: &str, left: u64) {
        let Ok(request) = self.call().request() else { return };
        let now = self.shared.engine.now();
        let decision = self.shared.engine.operator().peek(&request, now).await;
        let own = decision.limits().find(|status| status.limit.name() == limit);
        let own = own.map_or(left, |status| admits_now(status.quota, &status.outcome));
        let units = left.saturating_sub(own).min(tollgate::request::COST_MAX);
        let Ok(request) = request.cost(units) else { return };
        if units > 0 {
            // A store that does not answer leaves the counter as it is.
            let _ = self.shared.engine.ledger().refund(&request, &[limit], GROWTH_WITHIN, now).await;
        }
    }

    /// Ends the call: its permit is free, and it is charged its actual cost, if that is known.
    pub async fn finish(self, cost: Option<u64>) {
        self.finish_as(cost.map(Usage::of_cost)).await;
    }

    /// Ends the call: its permit is free, and each limit charges it for what it used, if that is known.
    pub async fn finish_as(mut self, usage: Option<Usage>) {
        if !self.is_observed {
            self.is_observed = true;
            let now = self.shared.engine.now();
            self.shared.queues().abandon(self.guarded.number, now);
        }
        if let Some(units) = self.units.take() {
            let how = match usage {
                Some(usage) if usage.is_cost_alone() => End::Finished(usage.cost()),
                Some(usage) => End::Used(self.call().as_used(&usage)),
                None => End::Finished(None),
            };
            end(Arc::clone(&self.shared), units, how).await;
        }
        self.wake_own();
    }

    /// The call has no response.
    pub async fn fail(mut self, failure: Failure) {
        let now = self.shared.engine.now();
        let units = self.units.take();
        if !self.is_observed {
            self.is_observed = true;
            self.shared.totals.failed.fetch_add(1, Ordering::Relaxed);
            if failure == Failure::NotSent {
                self.shared.queues().unsend(self.guarded.number, now);
            } else if let Some((key, freeze)) = self.shared.queues().fail(self.guarded.number, now) {
                self.shared.outbox.publish(&key, self.host(), FreezeChange::Frozen(freeze));
            }
        }
        if let Some(units) = units {
            let how = if failure == Failure::Unanswered { End::Finished(None) } else { End::NotSent };
            end(Arc::clone(&self.shared), units, how).await;
        }
        self.wake_own();
    }

    /// The call is not sent after all. What it took is given back, and the server is not blamed.
    pub async fn cancel(mut self) {
        let now = self.shared.engine.now();
        if !self.is_observed {
            self.is_observed = true;
            self.shared.queues().unsend(self.guarded.number, now);
        }
        if let Some(units) = self.units.take() {
            end(Arc::clone(&self.shared), units, End::NotSent).await;
        }
        self.wake_own();
    }

    pub(crate) const fn host(&self) -> &Arc<str> {
        &self.guarded.identity.host
    }

    /// The call as it left: with estimates that its limits admit.
    pub(crate) const fn call(&self) -> &Call {
        &self.guarded.call
    }

    /// The freeze of the call's buckets that ends last.
    #[must_use]
    pub fn freeze(&self) -> Option<Freeze> {
        let queues = self.shared.queues();
        queues.frozen(&self.server, self.shared.engine.now()).map(|(_, freeze)| freeze)
    }

    /// Wakes the calls that wait for what this one held.
    fn wake_own(&self) {
        let keys: Vec<BucketKey> = self.own.iter().map(|own| own.key.clone()).collect();
        self.shared.queues().wake(&keys);
    }
}

impl<S: Store + Send + Sync + 'static> Drop for Guard<S> {
    fn drop(&mut self) {
        if !self.is_observed {
            let now = self.shared.engine.now();
            self.shared.queues().abandon(self.guarded.number, now);
        }
        if let Some(units) = self.units.take() {
            let keys: Vec<BucketKey> =
                self.own.iter().filter(|own| own.is_concurrency).map(|own| own.key.clone()).collect();
            let shared = Arc::clone(&self.shared);
            background::run(async move {
                end(Arc::clone(&shared), units, End::Finished(None)).await;
                shared.queues().wake(&keys);
            });
        }
    }
}

/// How the units of a call end.
enum End {
    /// The server counted the call, at this cost if it is known.
    Finished(Option<u64>),
    /// The server counted the call as this one.
    Used(Call),
    NotSent,
}

/// Settles the units of a call, and releases its permit. A store that does not answer keeps the units charged, and the
/// permit expires.
async fn end<S: Store + Send + Sync + 'static>(shared: Arc<Shared<S>>, mut units: HeldUnits, how: End) {
    let now = shared.engine.now();
    let reservations = shared.engine.reservations();
    let reservation = &mut units.reservation;
    match how {
        End::NotSent => drop(reservations.cancel(reservation, now).await),
        End::Finished(Some(cost)) => drop(reservations.commit(reservation, cost, now).await),
        End::Used(call) => {
            if let Ok(actual) = call.request() {
                let _ = reservation.commit_as(&shared.engine, &actual, now).await;
            }
        }
        End::Finished(None) => {}
    }
    if let Some((permit, _)) = &units.permit {
        let _ = reservations.release(permit, now).await;
    }
}
