//! The controllers at work: who gets a place, who waits for one, and what becomes of a place that is free again.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tollgate::overload::{
    AdaptiveLimit, Cause, Controller, Controllers, Ending, Entry, Line, Next, Pass, Place, Plan, Priority,
    Pushed, Refusal, Report, Switch,
};
use tollgate::store::Store;
use tollgate::{CheckRequest, Clock, Decision, Engine, QuotaError, Ticks, Timestamp};

/// Asks the fleet's counters.
type AskFleet =
    dyn Fn(CheckRequest<'static>, Timestamp) -> Pin<Box<dyn Future<Output = Decision> + Send>> + Send + Sync;

/// What a waiting request hears.
type Heard = Result<Pass, Cause>;

/// The controllers of a service, and the line before it. Copies of a layer share one.
pub struct Shedder {
    controllers: Controllers,
    line: Option<Mutex<Line<oneshot::Sender<Heard>>>>,
    /// How long one waits before it looks by itself whether that is too long.
    interval: Ticks,
    fleet: Option<Box<AskFleet>>,
    clock: Clock,
}

impl Shedder {
    /// The controllers of a plan. A fleet shedder counts in memory until [`Shedder::counting`] says where else.
    ///
    /// # Errors
    /// When the fleet's capacity is no exact quota. That of a compiled plan is.
    pub fn new(plan: Plan, clock: Clock) -> Result<Self, QuotaError> {
        let controllers = Controllers::new(plan)?;
        let line = controllers.line().map(Mutex::new);
        let interval = controllers.queue.as_ref().map_or(Ticks::from_millis(100), |queue| queue.interval);
        let policy = controllers.fleet.as_ref().and_then(|fleet| fleet.policy().ok());
        let shedder = Self { controllers, line, interval, fleet: None, clock };
        let now = shedder.clock.now();
        Ok(match policy {
            Some(policy) => shedder.counting(Arc::new(Engine::new(policy, now))),
            None => shedder,
        })
    }

    /// Counts the fleet's capacity in an engine of [`tollgate::overload::FleetShedder::policy`], such as one on the fleet's store.
    #[must_use]
    pub fn counting<S: Store + Send + Sync + 'static>(mut self, engine: Arc<Engine<S>>) -> Self {
        self.fleet = Some(Box::new(move |request, now| {
            let engine = Arc::clone(&engine);
            Box::pin(async move { engine.check(&request, now).await })
        }));
        self
    }

    /// The controllers, for whoever switches or reads them.
    pub const fn controllers(&self) -> &Controllers {
        &self.controllers
    }

    /// The state of every controller that is there, the line included.
    pub fn reports(&self) -> Vec<Report> {
        let now = self.clock.now();
        let mut reports = self.controllers.reports(now);
        reports.extend(self.line().map(|line| line.report(now)));
        reports
    }

    /// Turns all of them off until an instant; it ends by itself.
    pub fn kill(&self, until: Timestamp) {
        self.controllers.kill(until);
        if let Some(line) = self.line() {
            line.switch().kill(until);
        }
    }

    /// Tells a controller's switch something; none if the plan does not have it.
    pub fn switch<T>(&self, controller: Controller, tell: impl FnOnce(&Switch) -> T) -> Option<T> {
        match controller {
            Controller::Queue => self.line().map(|line| tell(line.switch())),
            other => self.controllers.switch(other).map(tell),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn line(&self) -> Option<MutexGuard<'_, Line<oneshot::Sender<Heard>>>> {
        self.line.as_ref().map(|line| line.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets a request in if nobody need be waited for.
    pub(super) fn enter_at_once(
        self: &Arc<Self>,
        priority: Priority,
        identity: u64,
    ) -> Result<Option<Admission>, Refusal> {
        if self.fleet.is_some() {
            return Ok(None);
        }
        match self.controllers.enter(priority, identity, self.now())? {
            Entry::Pass(pass) => Ok(Some(Admission::new(self, pass))),
            Entry::Wait => Ok(None),
        }
    }

    /// Lets a request in, now or when there is a place.
    pub(super) async fn enter(
        self: &Arc<Self>,
        priority: Priority,
        identity: u64,
        patience: Ticks,
    ) -> Result<Admission, Refusal> {
        let now = self.now();
        if let (Some(fleet), Some(ask)) = (&self.controllers.fleet, &self.fleet)
            && let Some(question) = fleet.question(priority, now)
        {
            let decision = ask(question, now).await;
            fleet.judge(&decision, priority, self.now())?;
        }
        let now = self.now();
        match self.controllers.enter(priority, identity, now)? {
            Entry::Pass(pass) => Ok(Admission::new(self, pass)),
            Entry::Wait => self.wait(priority, now + patience).await,
        }
    }

    async fn wait(self: &Arc<Self>, priority: Priority, deadline: Timestamp) -> Result<Admission, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let now = self.now();
        let pushed = self.line().map(|mut line| line.push(sender, deadline, now));
        let place = match pushed {
            Some(Pushed::Waits(place)) => place,
            Some(Pushed::Instead(place, oldest)) => {
                let _ = oldest.send(Err(Cause::QueueFull)); // Who has gone away need not hear it.
                place
            }
            Some(Pushed::Full(_)) | None => return Err(Cause::QueueFull.refusal(priority)),
        };
        let mut waiting = Waiting { shedder: self, place, receiver };
        // A place may have become free between the look and the line.
        self.serve_line();
        loop {
            let until = self.now() + self.interval;
            let mut timer = std::pin::pin!(self.clock.sleep_until(until));
            let heard = std::future::poll_fn(|context| {
                if let std::task::Poll::Ready(heard) = Pin::new(&mut waiting.receiver).poll(context) {
                    return std::task::Poll::Ready(Some(heard));
                }
                timer.as_mut().poll(context).map(|()| None)
            })
            .await;
            match heard {
                Some(Ok(Ok(pass))) => return Ok(Admission::new(self, pass)),
                Some(Ok(Err(cause))) => return Err(cause.refusal(priority)),
                // Nobody drops a sender unheard; if it happened, the request would go as if the line were full.
                Some(Err(_)) => return Err(Cause::QueueFull.refusal(priority)),
                None => self.expire_line(),
            }
        }
    }

    /// Puts out who has waited for too long.
    fn expire_line(&self) {
        let now = self.now();
        loop {
            // The lock is not held while somebody is told.
            let expired = self.line().and_then(|mut line| line.expire(now));
            match expired {
                Some(Next::Refuse(sender, cause)) => {
                    let _ = sender.send(Err(cause));
                }
                Some(Next::Serve(..)) | None => return,
            }
        }
    }

    /// Gives places that are free to those who wait.
    fn serve_line(&self) {
        if self.line.is_none() {
            return;
        }
        let now = self.now();
        while let Some(pass) = self.controllers.place(now) {
            let next = self.line().and_then(|mut line| {
                if let Some(limit) = &self.controllers.concurrency {
                    line.follow(limit.limit(), AdaptiveLimit::half(limit));
                }
                line.next(now)
            });
            let unused = match next {
                Some(Next::Serve(sender, waited)) => {
                    self.controllers.waited(waited, now);
                    match sender.send(Ok(pass)) {
                        Ok(()) => continue,
                        Err(Ok(pass)) => pass,
                        Err(Err(_)) => continue,
                    }
                }
                Some(Next::Refuse(sender, cause)) => {
                    let _ = sender.send(Err(cause));
                    pass
                }
                None => {
                    self.controllers.leave(pass, now, Ending::Ignored);
                    return;
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

/// A request in line. Dropped, it leaves the line, and gives back a place that it was given in that very moment.
struct Waiting<'s> {
    shedder: &'s Arc<Shedder>,
    place: Place,
    receiver: oneshot::Receiver<Heard>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = self.shedder.now();
        // Taken out first, so that nobody can give it a place after the look.
        drop(self.shedder.line().and_then(|mut line| line.cancel(self.place, now)));
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
