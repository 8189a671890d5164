//! The controllers of one process, built from a [`Plan`], and the path of a request through those that decide
//! locally. The owner asks the fleet's store (the request and the judgement are here), and keeps the
//! [`WaitQueue`] in a lock beside the wakers of its waiters.

use tollgate::policy::Mode;
use tollgate::rate::QuotaError;
use tollgate::time::{Ticks, Timestamp};

use crate::compile::Plan;
use crate::document::QueueSettings;
use crate::fleet::FleetShedder;
use crate::limit::{AdaptiveLimit, Ending, Ticket};
use crate::priority::{Priority, Rules};
use crate::queue::WaitQueue;
use crate::rate::AdaptiveRate;
use crate::refusal::{Controller, Refusal};
use crate::report::ControllerReport;
use crate::switch::Switch;
use crate::worker::{Load, WorkerShedder};

/// The controllers of one process. A controller that the plan does not name admits all requests.
///
/// ```
/// use tollgate_overload::{Controllers, Ending, EntryDecision, Plan, Priority};
/// use tollgate::Timestamp;
///
/// let (plan, _) = Plan::compile("overload.yaml", b"overload: {worker: , concurrency: {initial: 1}}")?;
/// let controllers = Controllers::new(plan)?;
/// let now = Timestamp::from_unix_seconds(1_700_000_000);
/// let Ok(EntryDecision::Pass(pass)) = controllers.enter(Priority::Read, 42, now) else { panic!("a permit is free") };
/// let refusal = controllers.enter(Priority::Read, 43, now).unwrap_err();
/// assert_eq!(refusal.to_string(), "adaptive-concurrency: concurrency-limit (read)");
/// controllers.leave(pass, now, Ending::Success);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Controllers {
    /// The rules that classify requests.
    pub rules: Rules,
    /// The fleet shedder. The owner sends its request to the fleet's store.
    pub fleet: Option<FleetShedder>,
    /// The worker shedder.
    pub worker: Option<WorkerShedder>,
    /// The adaptive rate.
    pub rate: Option<AdaptiveRate>,
    /// The adaptive limit.
    pub concurrency: Option<AdaptiveLimit>,
    /// The queue settings, if requests may wait.
    pub queue: Option<QueueSettings>,
}

/// An admitted request. The owner must give it back once with [`Controllers::leave`], however the request
/// ends.
#[derive(Debug)]
#[must_use = "a permit that is never given back is lost"]
pub struct Pass {
    ticket: Option<Ticket>,
    began: Timestamp,
}

/// The result of [`Controllers::enter`].
#[derive(Debug)]
pub enum EntryDecision {
    /// The request is admitted.
    Pass(Pass),
    /// The request may wait in the queue for a permit.
    Wait,
}

impl Controllers {
    /// Builds the controllers of a plan.
    ///
    /// # Errors The fleet's capacity is not an exact quota. That of a compiled plan always is.
    pub fn new(plan: Plan) -> Result<Self, QuotaError> {
        Ok(Self {
            rules: plan.rules,
            fleet: plan.fleet.map(FleetShedder::new).transpose()?,
            worker: plan.worker.map(WorkerShedder::new),
            rate: plan.rate.map(AdaptiveRate::new),
            concurrency: plan.concurrency.map(AdaptiveLimit::new),
            queue: plan.queue,
        })
    }

    /// An empty queue, if the plan has one.
    #[must_use]
    pub fn new_queue<T>(&self) -> Option<WaitQueue<T>> {
        let limit = self.concurrency.as_ref().map_or(0, AdaptiveLimit::limit);
        let size = usize::try_from(limit).unwrap_or(usize::MAX).saturating_mul(2);
        self.queue.clone().map(|settings| WaitQueue::new(settings, size))
    }

    /// Admits a request, lets it wait, or refuses it. `identity` is a hash of the caller.
    ///
    /// # Errors
    /// There is no capacity for it.
    pub fn enter(&self, priority: Priority, identity: u64, now: Timestamp) -> Result<EntryDecision, Refusal> {
        if let Some(worker) = &self.worker {
            self.observe(Ticks::ZERO, now);
            worker.decide(priority, identity, now)?;
        }
        if let Some(rate) = &self.rate
            && !rate.begin(now)
        {
            return Err(rate.refusal(priority));
        }
        let Some(limit) = &self.concurrency else {
            return Ok(EntryDecision::Pass(Pass { ticket: None, began: now }));
        };
        let ticket = if self.queue.is_some() { limit.try_begin(now) } else { limit.begin(now) };
        match ticket {
            Some(ticket) => Ok(EntryDecision::Pass(Pass { ticket: Some(ticket), began: now })),
            None if self.queue.is_some() => Ok(EntryDecision::Wait),
            None => Err(limit.refusal(priority)),
        }
    }

    /// A permit for a waiter, if one is free. Take it before asking the queue for the next waiter, and give
    /// it back as [`Ending::Ignored`] if there is none.
    #[must_use]
    pub fn try_pass(&self, now: Timestamp) -> Option<Pass> {
        let ticket = match &self.concurrency {
            Some(limit) => Some(limit.try_begin(now)?),
            None => None,
        };
        Some(Pass { ticket, began: now })
    }

    /// Records how long an admitted request waited. A worker with a long queue is busy.
    pub fn waited(&self, delay: Ticks, now: Timestamp) {
        self.observe(delay, now);
    }

    /// Gives back what a request holds, with how it ended.
    pub fn leave(&self, pass: Pass, now: Timestamp, ending: Ending) {
        if let (Some(limit), Some(ticket)) = (&self.concurrency, pass.ticket) {
            limit.end(ticket, now, ending);
        }
        if let Some(rate) = &self.rate {
            rate.end(pass.began, now, ending);
        }
        self.observe(Ticks::ZERO, now);
    }

    /// The switch of a configured controller. The queue has its own.
    #[must_use]
    pub fn switch(&self, controller: Controller) -> Option<&Switch> {
        match controller {
            Controller::Fleet => self.fleet.as_ref().map(FleetShedder::switch),
            Controller::Worker => self.worker.as_ref().map(WorkerShedder::switch),
            Controller::Concurrency => self.concurrency.as_ref().map(AdaptiveLimit::switch),
            Controller::Rate => self.rate.as_ref().map(AdaptiveRate::switch),
            Controller::Queue => None,
        }
    }

    /// Turns all controllers off until an instant, after which they resume.
    pub fn kill(&self, until: Timestamp) {
        let all = [Controller::Fleet, Controller::Worker, Controller::Concurrency, Controller::Rate];
        all.into_iter()
            .filter_map(|controller| self.switch(controller))
            .for_each(|switch| switch.kill(until));
    }

    /// The state of each configured controller, without the queue.
    #[must_use]
    pub fn reports(&self, now: Timestamp) -> Vec<ControllerReport> {
        let fleet = self.fleet.as_ref().map(|fleet| fleet.report(now));
        let worker = self.worker.as_ref().map(|worker| worker.report(now));
        let concurrency = self.concurrency.as_ref().map(|limit| limit.report(now));
        let rate = self.rate.as_ref().map(|rate| rate.report(now));
        [fleet, worker, concurrency, rate].into_iter().flatten().collect()
    }

    fn observe(&self, queue_delay: Ticks, now: Timestamp) {
        let Some(worker) = &self.worker else { return };
        let (in_flight, limit) = match &self.concurrency {
            // A limit that is off says nothing about the capacity of the worker.
            Some(limit) if limit.switch().mode(now) != Mode::Off => (limit.in_flight(), limit.limit()),
            _ => (0, 1),
        };
        worker.observe(Load { in_flight, limit, queue_delay }, now);
    }
}
