//! The controllers at work: who gets a place, who waits for one, and what becomes of a place that is free again.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tollgate::overload::{
    AdaptiveLimit, Cause, Controller, ControllerReport, Controllers, Ending, EntryDecision, Pass, Plan,
    Priority, PushOutcome, QueueAction, Refusal, Switch, WaitQueue, WaitStatus, WaiterId,
};
use tollgate::store::Store;
use tollgate::{CheckRequest, Clock, Decision, Engine, QuotaError, Ticks, Timestamp};

/// Asks the fleet's counters, where they need not be waited for.
type LookFleet = dyn Fn(&CheckRequest<'static>, Timestamp) -> Option<Decision> + Send + Sync;
/// Asks the fleet's counters.
type AskFleet =
    dyn Fn(CheckRequest<'static>, Timestamp) -> Pin<Box<dyn Future<Output = Decision> + Send>> + Send + Sync;

/// Gives back to the fleet's counters.
type RefundFleet = dyn Fn(Charged, Timestamp) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Longest that a request waits between its charge and its refund; what is given back later stays charged.
const REFUND_WITHIN: Ticks = Ticks::from_secs(3_600);

/// What the fleet's counters were charged, and when: it goes back to that instant.
struct Charged {
    question: CheckRequest<'static>,
    decision: Decision,
    at: Timestamp,
}

/// Where the fleet's capacity is counted.
struct Fleet {
    look: Box<LookFleet>,
    ask: Box<AskFleet>,
    refund: Box<RefundFleet>,
}

/// What a waiting request hears.
type Heard = Result<Pass, Cause>;

/// The controllers of a service, and the line before it. Copies of a layer share one.
pub struct Shedder {
    controllers: Controllers,
    line: Option<Mutex<WaitQueue<oneshot::Sender<Heard>>>>,
    /// How many wait: written under the line's lock, and read without it. Who reads an old number waits for nothing, or overtakes one who
    /// came in that very moment.
    waiting: AtomicUsize,
    fleet: Option<Fleet>,
    /// Requests that were told so, by controller and priority.
    refused: [[AtomicU64; Priority::ALL.len()]; Controller::ALL.len()],
    /// Requests that got a place after a wait, and how long they waited in all, in ticks, by priority.
    waited: [[AtomicU64; 2]; Priority::ALL.len()],
    clock: Clock,
}

/// What becomes of a request at once.
pub(super) enum Way {
    /// It passes.
    Pass(Admission),
    /// It waits for a place, and has what the fleet's counters were charged for it. Boxed: it is much larger.
    Wait(Option<Box<Charge>>),
    /// The fleet's counters must be asked first.
    Ask,
}

impl Shedder {
    /// The controllers of a plan. A fleet shedder counts in memory until [`Shedder::counting`] says where else.
    ///
    /// # Errors
    /// When the fleet's capacity is no exact quota. That of a compiled plan is.
    pub fn new(plan: Plan, clock: Clock) -> Result<Self, QuotaError> {
        let controllers = Controllers::new(plan)?;
        let line = controllers.new_queue().map(Mutex::new);
        let policy = controllers.fleet.as_ref().and_then(|fleet| fleet.policy().ok());
        let (waiting, refused, waited) = (AtomicUsize::new(0), Default::default(), Default::default());
        let shedder = Self { controllers, line, waiting, fleet: None, refused, waited, clock };
        let now = shedder.clock.now();
        Ok(match policy {
            Some(policy) => shedder.counting(Arc::new(Engine::new(policy, now))),
            None => shedder,
        })
    }

    /// Counts the fleet's capacity in an engine of [`tollgate::overload::FleetShedder::policy`], such as one on the fleet's store.
    #[must_use]
    pub fn counting<S: Store + Send + Sync + 'static>(mut self, engine: Arc<Engine<S>>) -> Self {
        let (near, counting) = (Arc::clone(&engine), Arc::clone(&engine));
        let look = Box::new(move |request: &CheckRequest<'static>, now| {
            near.check_at_once(std::slice::from_ref(request), now)
        });
        let ask = Box::new(move |request: CheckRequest<'static>, now| {
            let engine = Arc::clone(&engine);
            let asked: Pin<Box<dyn Future<Output = Decision> + Send>> =
                Box::pin(async move { engine.check(&request, now).await });
            asked
        });
        let refund = Box::new(move |charged: Charged, now| {
            let engine = Arc::clone(&counting);
            let given: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
                let Charged { question, decision, at } = charged;
                let mut reservation = engine.set_aside(&question, &decision, REFUND_WITHIN, at);
                // A store that does not answer keeps what it has: nobody gets more than the capacity.
                let _ = engine.cancel(&mut reservation, now).await;
            });
            given
        });
        self.fleet = Some(Fleet { look, ask, refund });
        self
    }

    /// The controllers, for whoever switches or reads them.
    pub const fn controllers(&self) -> &Controllers {
        &self.controllers
    }

    /// The state of every controller that is there, the line included.
    pub fn reports(&self) -> Vec<ControllerReport> {
        let now = self.clock.now();
        let mut reports = self.controllers.reports(now);
        reports.extend(self.line(|line| line.report(now)));
        reports
    }

    /// How many requests of a priority were refused by a controller.
    pub fn refused(&self, controller: Controller, priority: Priority) -> u64 {
        self.refused[controller as usize][priority as usize].load(Relaxed)
    }

    /// How many requests of a priority got a place after a wait in line, and how long they waited in all.
    pub fn waited(&self, priority: Priority) -> (u64, Ticks) {
        let [count, ticks] = &self.waited[priority as usize];
        (count.load(Relaxed), Ticks::from_micros(ticks.load(Relaxed)))
    }

    /// Notes that somebody is told a refusal.
    pub(super) fn note(&self, refusal: &Refusal) {
        self.refused[refusal.controller() as usize][refusal.priority as usize].fetch_add(1, Relaxed);
    }

    /// Turns all of them off until an instant; it ends by itself.
    pub fn kill(&self, until: Timestamp) {
        self.controllers.kill(until);
        self.line(|line| line.switch().kill(until));
    }

    /// Tells a controller's switch something; none if the plan does not have it.
    pub fn switch<T>(&self, controller: Controller, tell: impl FnOnce(&Switch) -> T) -> Option<T> {
        match controller {
            Controller::Queue => self.line(|line| tell(line.switch())),
            other => self.controllers.switch(other).map(tell),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Does something with the line, if there is one.
    fn line<R>(&self, act: impl FnOnce(&mut WaitQueue<oneshot::Sender<Heard>>) -> R) -> Option<R> {
        let mut line = self.line.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut line);
        self.waiting.store(line.len(), Relaxed);
        Some(done)
    }

    /// What becomes of a request, as far as nobody need be waited for.
    pub(super) fn enter_at_once(self: &Arc<Self>, priority: Priority, identity: u64) -> Result<Way, Refusal> {
        let now = self.now();
        let mut charged = None;
        if let (Some(shedder), Some(fleet)) = (&self.controllers.fleet, &self.fleet)
            && let Some(question) = shedder.check_request(priority, now)
        {
            let Some(decision) = (fleet.look)(&question, now) else { return Ok(Way::Ask) };
            shedder.judge(&decision, priority, now)?;
            charged = decision.is_allowed().then(|| Charged { question, decision, at: now });
        }
        self.look(charged, priority, identity, now)
    }

    /// Lets a request in when the fleet's counters were asked, and when there is a place, as far as that is still to be done.
    pub(super) async fn enter(
        self: &Arc<Self>,
        way: Way,
        priority: Priority,
        identity: u64,
        patience: Ticks,
    ) -> Result<Admission, Refusal> {
        let mut way = way;
        if let Way::Ask = &way {
            let charged = self.ask(priority).await?;
            way = self.look(charged, priority, identity, self.now())?;
        }
        let charge = match way {
            Way::Pass(admission) => return Ok(admission),
            Way::Wait(charge) => charge,
            Way::Ask => None, // It was asked above.
        };
        // Dropped, with a refusal or because the caller goes away, the charge goes back.
        let admission = self.wait(priority, self.now() + patience).await?;
        if let Some(charge) = charge {
            charge.keep();
        }
        Ok(admission)
    }

    /// Asks the fleet's counters; tells what they were charged, if they were.
    async fn ask(&self, priority: Priority) -> Result<Option<Charged>, Refusal> {
        let (Some(shedder), Some(fleet)) = (&self.controllers.fleet, &self.fleet) else { return Ok(None) };
        let now = self.now();
        let Some(question) = shedder.check_request(priority, now) else { return Ok(None) };
        let decision = (fleet.ask)(question.clone(), now).await;
        shedder.judge(&decision, priority, self.now())?;
        Ok(decision.is_allowed().then(|| Charged { question, decision, at: now }))
    }

    /// What this process says of a request that the fleet's counters were charged for. Whom it refuses gets that back: the capacity was not
    /// used.
    fn look(
        self: &Arc<Self>,
        charged: Option<Charged>,
        priority: Priority,
        identity: u64,
        now: Timestamp,
    ) -> Result<Way, Refusal> {
        let waits = |charged: Option<Charged>| {
            let charge = |charged| Charge { shedder: Arc::clone(self), charged: Some(charged) };
            Way::Wait(charged.map(|charged| Box::new(charge(charged))))
        };
        match self.controllers.enter(priority, identity, now) {
            Ok(EntryDecision::Pass(pass)) if self.waiting.load(Relaxed) == 0 => {
                Ok(Way::Pass(Admission::new(self, pass)))
            }
            // Others wait, though there is a place: whose it is, is for the line to say.
            Ok(EntryDecision::Pass(pass)) => {
                self.leave(pass, Ending::Ignored);
                Ok(waits(charged))
            }
            Ok(EntryDecision::Wait) => Ok(waits(charged)),
            Err(refusal) => {
                self.give_back(charged);
                Err(refusal)
            }
        }
    }

    /// Gives back to the fleet's counters what they were charged for a request that is not served.
    fn give_back(&self, charged: Option<Charged>) {
        if let (Some(fleet), Some(charged)) = (&self.fleet, charged) {
            crate::background::run((fleet.refund)(charged, self.now()));
        }
    }

    async fn wait(self: &Arc<Self>, priority: Priority, deadline: Timestamp) -> Result<Admission, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let now = self.now();
        let pushed = self.line(|line| line.push(sender, priority, deadline, now));
        let place = match pushed {
            Some(PushOutcome::Queued(place)) => place,
            Some(PushOutcome::Replaced(place, other)) => {
                let _ = other.send(Err(Cause::QueueFull)); // Who has gone away need not hear it.
                place
            }
            Some(PushOutcome::Full(_)) | None => {
                // Those who are in it may have missed a place that was free between the look and the line.
                self.serve_line();
                return Err(Cause::QueueFull.refusal(priority));
            }
        };
        let mut waiting = Waiting { shedder: self, place, receiver };
        // A place may have become free between the look and the line.
        self.serve_line();
        loop {
            let stays = self.line(|line| line.check_waiter(place, self.now())).flatten();
            let until = match stays {
                Some(WaitStatus::Until(until)) => until,
                Some(WaitStatus::Expired(_, cause)) => return Err(cause.refusal(priority)),
                // Who is not in line any more has been told why, and hears it now.
                None => self.now() + Ticks::from_secs(1),
            };
            let mut timer = std::pin::pin!(self.clock.sleep_until(until));
            let heard = std::future::poll_fn(|context| {
                if let std::task::Poll::Ready(heard) = Pin::new(&mut waiting.receiver).poll(context) {
                    return std::task::Poll::Ready(Some(heard));
                }
                timer.as_mut().poll(context).map(|()| None)
            })
            .await;
            match heard {
                Some(Ok(Ok(pass))) => {
                    let [count, ticks] = &self.waited[priority as usize];
                    count.fetch_add(1, Relaxed);
                    ticks.fetch_add(self.now().since(now).as_micros(), Relaxed);
                    return Ok(Admission::new(self, pass));
                }
                Some(Ok(Err(cause))) => return Err(cause.refusal(priority)),
                // Nobody drops a sender unheard; if it happened, the request would go as if the line were full.
                Some(Err(_)) => return Err(Cause::QueueFull.refusal(priority)),
                None => {}
            }
        }
    }

    /// Gives places that are free to those who wait.
    fn serve_line(&self) {
        if self.line.is_none() {
            return;
        }
        let now = self.now();
        while let Some(pass) = self.controllers.try_pass(now) {
            let next = self.line(|line| {
                if let Some(limit) = &self.controllers.concurrency {
                    line.adapt(limit.limit(), AdaptiveLimit::median_latency(limit));
                }
                line.next(now)
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
                    // Who came while this place was taken has found none. It came under the lock before it looked for one, so either it is
                    // seen here, or it sees the place.
                    if self.line(|line| line.is_empty()).unwrap_or(true) {
                        return;
                    }
                    continue;
                }
            };
            self.controllers.leave(unused, now, Ending::Ignored);
        }
    }

    /// Gives back a place, and gives it to the next.
    fn leave(&self, pass: Pass, ending: Ending) {
        self.controllers.leave(pass, self.now(), ending);
        self.serve_line();
    }
}

/// What the fleet's counters were charged for a request that waits. Dropped, it goes back to them.
pub(super) struct Charge {
    shedder: Arc<Shedder>,
    charged: Option<Charged>,
}

impl Charge {
    /// The request is served.
    fn keep(mut self) {
        self.charged = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shedder.give_back(self.charged.take());
    }
}

/// A request in line. Dropped, it leaves the line, and gives back a place that it was given in that very moment.
struct Waiting<'s> {
    shedder: &'s Arc<Shedder>,
    place: WaiterId,
    receiver: oneshot::Receiver<Heard>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = self.shedder.now();
        // Taken out first, so that nobody can give it a place after the look.
        drop(self.shedder.line(|line| line.cancel(self.place, now)));
        self.receiver.close();
        if let Ok(Ok(pass)) = self.receiver.try_recv() {
            self.shedder.leave(pass, Ending::Ignored);
        }
    }
}

/// A place that a request has. Dropped without a word it was of no use to anybody: a caller who goes away is neither a success nor a loss.
pub(super) struct Admission {
    shedder: Arc<Shedder>,
    pass: Option<Pass>,
    ending: Ending,
}

impl Admission {
    fn new(shedder: &Arc<Shedder>, pass: Pass) -> Self {
        Self { shedder: Arc::clone(shedder), pass: Some(pass), ending: Ending::Ignored }
    }

    /// How it is going to end.
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
