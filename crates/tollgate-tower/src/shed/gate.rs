//! The controllers of a service and its wait queue: which request gets a permit, which one waits, and which waiter gets a
//! released permit.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tollgate::engine::Prepared;
use tollgate::store::Store;
use tollgate::{CheckRequest, Clock, Decision, Engine, QuotaError, Ticks, Timestamp};
use tollgate_overload::{
    AdaptiveLimit, Cause, Controller, ControllerReport, Controllers, Ending, EntryDecision, Pass, Plan,
    Priority, PushOutcome, QueueAction, Refusal, Switch, WaitQueue, WaitStatus, WaiterId,
};

/// Charges the fleet's counters if that needs no await.
type TryCheckFleet = dyn Fn(&CheckRequest<'static>, Timestamp) -> Result<Decision, Prepared> + Send + Sync;
/// Charges the fleet's counters for a prepared request.
type CheckFleet = dyn Fn(Prepared, CheckRequest<'static>, Timestamp) -> Pin<Box<dyn Future<Output = Decision> + Send>>
    + Send
    + Sync;

/// Refunds the fleet's counters.
type RefundFleet = dyn Fn(FleetCharge, Timestamp) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Longest time between the charge of a request and its refund. Later the charge stays.
const REFUND_WITHIN: Ticks = Ticks::from_secs(3_600);

/// A charge to the fleet's counters, with its instant for the refund.
struct FleetCharge {
    decision: Decision,
    at: Timestamp,
}

/// The counters of the fleet's capacity.
struct Fleet {
    try_check: Box<TryCheckFleet>,
    check: Box<CheckFleet>,
    refund: Box<RefundFleet>,
}

/// The message to a waiter.
type WaitResult = Result<Pass, Cause>;

/// The controllers of a service and its wait queue. Clones of a layer share one.
pub struct Shedder {
    controllers: Controllers,
    queue: Option<Mutex<WaitQueue<oneshot::Sender<WaitResult>>>>,
    /// Number of waiters. It is written under the queue's lock and read without it: after an old number a request waits
    /// needlessly, or overtakes one that arrived at the same moment.
    waiting: AtomicUsize,
    fleet: Option<Fleet>,
    /// Refused requests by controller and priority.
    refused: [[AtomicU64; Priority::ALL.len()]; Controller::ALL.len()],
    /// Requests that got a permit after a wait, and the sum of their waits in ticks, by priority.
    waited: [[AtomicU64; 2]; Priority::ALL.len()],
    clock: Clock,
}

/// The state of a request after the fast path.
pub(super) enum Entry {
    /// It passes.
    Pass(Admission),
    /// It waits for a permit and holds its charge to the fleet's counters. Boxed, because it is much larger.
    Wait(Option<Box<ChargeGuard>>),
    /// The fleet's counters must be awaited first, for this request.
    CheckFleet(Box<CheckRequest<'static>>, Prepared),
}

impl Shedder {
    /// The controllers of a plan. By default a fleet shedder counts in memory; [`Shedder::counting`] sets another engine.
    ///
    /// # Errors
    /// The fleet's capacity is not an exact quota. That of a compiled plan is.
    pub fn new(plan: Plan, clock: Clock) -> Result<Self, QuotaError> {
        let controllers = Controllers::new(plan)?;
        let queue = controllers.new_queue().map(Mutex::new);
        let policy = controllers.fleet.as_ref().and_then(|fleet| fleet.policy().ok());
        let (waiting, refused, waited) = (AtomicUsize::new(0), Default::default(), Default::default());
        let shedder = Self { controllers, queue, waiting, fleet: None, refused, waited, clock };
        Ok(match policy {
            Some(policy) => {
                let engine = Engine::builder().policy(policy).clock(shedder.clock.clone()).build();
                shedder.counting(Arc::new(engine))
            }
            None => shedder,
        })
    }

    /// Counts the fleet's capacity in an engine of [`tollgate_overload::FleetShedder::policy`], such as one on the fleet's store.
    #[must_use]
    pub fn counting<S: Store + Send + Sync + 'static>(mut self, engine: Arc<Engine<S>>) -> Self {
        let (fast, refunding) = (Arc::clone(&engine), Arc::clone(&engine));
        let try_check = Box::new(move |request: &CheckRequest<'static>, now| fast.try_check(request, now));
        let check = Box::new(move |prepared: Prepared, request: CheckRequest<'static>, now| {
            let engine = Arc::clone(&engine);
            let checked: Pin<Box<dyn Future<Output = Decision> + Send>> =
                Box::pin(async move { prepared.check(&engine, &request, now).await });
            checked
        });
        let refund = Box::new(move |charge: FleetCharge, now| {
            let engine = Arc::clone(&refunding);
            let refunded: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
                let FleetCharge { decision, at } = charge;
                let mut reservation = engine.reservations().of_decision(&decision, REFUND_WITHIN, at);
                // If the store does not answer, the charge stays, so that the fleet never exceeds its capacity.
                let _ = engine.reservations().cancel(&mut reservation, now).await;
            });
            refunded
        });
        self.fleet = Some(Fleet { try_check, check, refund });
        self
    }

    /// The controllers, to switch or to read them.
    pub const fn controllers(&self) -> &Controllers {
        &self.controllers
    }

    /// The state of every controller of the plan, the queue included.
    pub fn reports(&self) -> Vec<ControllerReport> {
        let now = self.clock.now();
        let mut reports = self.controllers.reports(now);
        reports.extend(self.with_queue(|queue| queue.report(now)));
        reports
    }

    /// Number of requests of a priority that a controller refused.
    pub fn refused(&self, controller: Controller, priority: Priority) -> u64 {
        self.refused[controller as usize][priority as usize].load(Relaxed)
    }

    /// Number of requests of a priority that got a permit after a wait in the queue, and the sum of their waits.
    pub fn waited(&self, priority: Priority) -> (u64, Ticks) {
        let [count, ticks] = &self.waited[priority as usize];
        (count.load(Relaxed), Ticks::from_micros(ticks.load(Relaxed)))
    }

    /// Counts a refusal.
    pub(super) fn count_refusal(&self, refusal: &Refusal) {
        self.refused[refusal.controller() as usize][refusal.priority as usize].fetch_add(1, Relaxed);
    }

    /// Turns all controllers off until an instant, at which they turn on again.
    pub fn kill(&self, until: Timestamp) {
        self.controllers.kill(until);
        self.with_queue(|queue| queue.switch().kill(until));
    }

    /// Calls a closure with the switch of a controller. Returns `None` if the plan does not have the controller.
    pub fn switch<T>(&self, controller: Controller, act: impl FnOnce(&Switch) -> T) -> Option<T> {
        match controller {
            Controller::Queue => self.with_queue(|queue| act(queue.switch())),
            other => self.controllers.switch(other).map(act),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Calls a closure with the locked queue, if there is one.
    fn with_queue<R>(&self, act: impl FnOnce(&mut WaitQueue<oneshot::Sender<WaitResult>>) -> R) -> Option<R> {
        let mut queue = self.queue.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut queue);
        self.waiting.store(queue.len(), Relaxed);
        Some(done)
    }

    /// Decides about a request, as far as that needs no await.
    pub(super) fn try_enter(self: &Arc<Self>, priority: Priority, identity: u64) -> Result<Entry, Refusal> {
        let now = self.now();
        let mut charge = None;
        if let (Some(shedder), Some(fleet)) = (&self.controllers.fleet, &self.fleet)
            && let Some(request) = shedder.check_request(priority, now)
        {
            let decision = match (fleet.try_check)(&request, now) {
                Ok(decision) => decision,
                Err(prepared) => return Ok(Entry::CheckFleet(Box::new(request), prepared)),
            };
            shedder.judge(&decision, priority, now)?;
            charge = decision.is_allowed().then(|| FleetCharge { decision, at: now });
        }
        self.enter_local(charge, priority, identity, now)
    }

    /// Admits a request after it has been charged to the fleet's counters and has got a permit.
    pub(super) async fn enter(
        self: &Arc<Self>,
        entry: Entry,
        priority: Priority,
        identity: u64,
        wait_max: Ticks,
    ) -> Result<Admission, Refusal> {
        let entry = match entry {
            Entry::CheckFleet(request, prepared) => {
                let charge = self.charge_fleet(*request, prepared, priority).await?;
                self.enter_local(charge, priority, identity, self.now())?
            }
            entered => entered,
        };
        let charge = match entry {
            Entry::Pass(admission) => return Ok(admission),
            Entry::Wait(charge) => charge,
            Entry::CheckFleet(..) => None, // It was charged above.
        };
        // A refusal or a disconnected caller drops the guard, which refunds the charge.
        let admission = self.wait(priority, self.now() + wait_max).await?;
        if let Some(charge) = charge {
            charge.keep();
        }
        Ok(admission)
    }

    /// Charges the fleet's counters. Returns the charge, if there is one.
    async fn charge_fleet(
        &self,
        request: CheckRequest<'static>,
        prepared: Prepared,
        priority: Priority,
    ) -> Result<Option<FleetCharge>, Refusal> {
        let (Some(shedder), Some(fleet)) = (&self.controllers.fleet, &self.fleet) else { return Ok(None) };
        let now = self.now();
        let decision = (fleet.check)(prepared, request, now).await;
        shedder.judge(&decision, priority, self.now())?;
        Ok(decision.is_allowed().then(|| FleetCharge { decision, at: now }))
    }

    /// Asks the controllers of this process about a request after its charge to the fleet's counters. A refused request is
    /// refunded, because it did not use the capacity.
    fn enter_local(
        self: &Arc<Self>,
        charge: Option<FleetCharge>,
        priority: Priority,
        identity: u64,
        now: Timestamp,
    ) -> Result<Entry, Refusal> {
        let waits = |charge: Option<FleetCharge>| {
            let guard = |charge| ChargeGuard { shedder: Arc::clone(self), charge: Some(charge) };
            Entry::Wait(charge.map(|charge| Box::new(guard(charge))))
        };
        match self.controllers.enter(priority, identity, now) {
            Ok(EntryDecision::Pass(pass)) if self.waiting.load(Relaxed) == 0 => {
                Ok(Entry::Pass(Admission::new(self, pass)))
            }
            // A permit is free although others wait: the queue decides which request gets it.
            Ok(EntryDecision::Pass(pass)) => {
                self.leave(pass, Ending::Ignored);
                Ok(waits(charge))
            }
            Ok(EntryDecision::Wait) => Ok(waits(charge)),
            Err(refusal) => {
                self.refund(charge);
                Err(refusal)
            }
        }
    }

    /// Refunds the charge of a request that is not served.
    fn refund(&self, charge: Option<FleetCharge>) {
        if let (Some(fleet), Some(charge)) = (&self.fleet, charge) {
            crate::background::run((fleet.refund)(charge, self.now()));
        }
    }

    async fn wait(self: &Arc<Self>, priority: Priority, deadline: Timestamp) -> Result<Admission, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let now = self.now();
        let pushed = self.with_queue(|queue| queue.push(sender, priority, deadline, now));
        let waiter = match pushed {
            Some(PushOutcome::Queued(waiter)) => waiter,
            Some(PushOutcome::Replaced(waiter, other)) => {
                let _ = other.send(Err(Cause::QueueFull)); // It fails if the other waiter is gone.
                waiter
            }
            Some(PushOutcome::Full(_)) | None => {
                // A permit may have been released between the first check and the push.
                self.serve_queue();
                return Err(Cause::QueueFull.refusal(priority));
            }
        };
        let mut waiting = QueuedWaiter { shedder: self, waiter, receiver };
        // A permit may have been released between the first check and the push.
        self.serve_queue();
        loop {
            let stays = self.with_queue(|queue| queue.check_waiter(waiter, self.now())).flatten();
            let until = match stays {
                Some(WaitStatus::Until(until)) => until,
                Some(WaitStatus::Expired(_, cause)) => return Err(cause.refusal(priority)),
                // A waiter that left the queue has already been sent its result.
                None => self.now() + Ticks::from_secs(1),
            };
            let mut timer = std::pin::pin!(self.clock.sleep_until(until));
            let result = std::future::poll_fn(|context| {
                if let std::task::Poll::Ready(result) = Pin::new(&mut waiting.receiver).poll(context) {
                    return std::task::Poll::Ready(Some(result));
                }
                timer.as_mut().poll(context).map(|()| None)
            })
            .await;
            match result {
                Some(Ok(Ok(pass))) => {
                    let [count, ticks] = &self.waited[priority as usize];
                    count.fetch_add(1, Relaxed);
                    ticks.fetch_add(self.now().since(now).as_micros(), Relaxed);
                    return Ok(Admission::new(self, pass));
                }
                Some(Ok(Err(cause))) => return Err(cause.refusal(priority)),
                // Every sender sends before it is dropped. If one did not, the request is refused as if the queue were full.
                Some(Err(_)) => return Err(Cause::QueueFull.refusal(priority)),
                None => {}
            }
        }
    }

    /// Gives free permits to waiters.
    fn serve_queue(&self) {
        if self.queue.is_none() {
            return;
        }
        let now = self.now();
        while let Some(pass) = self.controllers.try_pass(now) {
            let next = self.with_queue(|queue| {
                if let Some(limit) = &self.controllers.concurrency {
                    queue.adapt(limit.limit(), AdaptiveLimit::median_latency(limit));
                }
                queue.next(now)
            });
            let next = next.flatten();
            let unused = match next {
                Some(QueueAction::Serve(sender, waited)) => {
                    self.controllers.waited(waited, now);
                    match sender.send(Ok(pass)) {
                        Ok(()) => continue,
                        Err(Ok(pass)) => pass,
                        Err(Err(_)) => continue,
                    }
                }
                Some(QueueAction::Refuse(sender, cause)) => {
                    let _ = sender.send(Err(cause));
                    pass
                }
                None => {
                    self.controllers.leave(pass, now, Ending::Ignored);
                    // A request that arrived while this permit was taken found none free. It was pushed under the lock
                    // before it looked for a permit, so either it is seen here, or it sees the permit.
                    if self.with_queue(|queue| queue.is_empty()).unwrap_or(true) {
                        return;
                    }
                    continue;
                }
            };
            self.controllers.leave(unused, now, Ending::Ignored);
        }
    }

    /// Releases a permit and gives it to the next waiter.
    fn leave(&self, pass: Pass, ending: Ending) {
        self.controllers.leave(pass, self.now(), ending);
        self.serve_queue();
    }
}

/// The charge of a waiting request to the fleet's counters. Dropping it refunds the charge.
pub(super) struct ChargeGuard {
    shedder: Arc<Shedder>,
    charge: Option<FleetCharge>,
}

impl ChargeGuard {
    /// Keeps the charge, because the request is served.
    fn keep(mut self) {
        self.charge = None;
    }
}

impl Drop for ChargeGuard {
    fn drop(&mut self) {
        self.shedder.refund(self.charge.take());
    }
}

/// A request in the queue. Dropping it leaves the queue, and releases a permit that it has just been sent.
struct QueuedWaiter<'s> {
    shedder: &'s Arc<Shedder>,
    waiter: WaiterId,
    receiver: oneshot::Receiver<WaitResult>,
}

impl Drop for QueuedWaiter<'_> {
    fn drop(&mut self) {
        let now = self.shedder.now();
        // Canceled first, so that no permit can be sent after the receiver is checked.
        drop(self.shedder.with_queue(|queue| queue.cancel(self.waiter, now)));
        self.receiver.close();
        if let Ok(Ok(pass)) = self.receiver.try_recv() {
            self.shedder.leave(pass, Ending::Ignored);
        }
    }
}

/// The permit of a request. By default its end is ignored: a disconnected caller is neither a success nor a loss.
pub(super) struct Admission {
    shedder: Arc<Shedder>,
    pass: Option<Pass>,
    ending: Ending,
}

impl Admission {
    fn new(shedder: &Arc<Shedder>, pass: Pass) -> Self {
        Self { shedder: Arc::clone(shedder), pass: Some(pass), ending: Ending::Ignored }
    }

    /// Sets how the request ends.
    pub(super) fn will_end(&mut self, ending: Ending) {
        self.ending = ending;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.shedder.leave(pass, self.ending);
        }
    }
}
