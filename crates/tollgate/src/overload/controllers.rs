//! The controllers of one process, made from a [`Plan`], and the way of a request through those that decide on the spot. Left to who wires
//! them: to ask the fleet's store (its question and its judge are here), and to hold the [`Line`] in a lock beside the wakers of those who
//! wait.

use crate::policy::Mode;
use crate::quota::QuotaError;
use crate::time::{Ticks, Timestamp};

use super::compile::Plan;
use super::document::LineSettings;
use super::fleet::FleetShedder;
use super::limit::{AdaptiveLimit, Ending, Ticket};
use super::line::Line;
use super::priority::{Priority, Rules};
use super::rate::AdaptiveRate;
use super::refusal::{Controller, Refusal};
use super::report::Report;
use super::switch::Switch;
use super::worker::{Load, WorkerShedder};

/// The controllers of one process. What the plan does not name lets everybody pass.
///
/// ```
/// use tollgate::overload::{Controllers, Ending, Entry, Plan, Priority};
/// use tollgate::Timestamp;
///
/// let (plan, _) = Plan::compile("overload.yaml", b"overload: {worker: , concurrency: {initial: 1}}")?;
/// let controllers = Controllers::new(plan)?;
/// let now = Timestamp::from_unix_seconds(1_700_000_000);
/// let Ok(Entry::Pass(pass)) = controllers.enter(Priority::Read, 42, now) else { panic!("there is a place") };
/// let refusal = controllers.enter(Priority::Read, 43, now).unwrap_err();
/// assert_eq!(refusal.to_string(), "adaptive-concurrency: concurrency-limit (read)");
/// controllers.leave(pass, now, Ending::Success);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Controllers {
    /// How much each request matters.
    pub rules: Rules,
    /// The fleet shedder, whose question is for the fleet's store.
    pub fleet: Option<FleetShedder>,
    /// The worker shedder.
    pub worker: Option<WorkerShedder>,
    /// The adaptive rate.
    pub rate: Option<AdaptiveRate>,
    /// The adaptive limit.
    pub concurrency: Option<AdaptiveLimit>,
    /// How requests wait, if they do.
    pub queue: Option<LineSettings>,
}

/// A request that passes. It is given back with [`Controllers::leave`], once, whatever happens.
#[derive(Debug)]
#[must_use = "a place that is never given back is lost"]
pub struct Pass {
    ticket: Option<Ticket>,
    began: Timestamp,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Entry {
    /// It passes.
    Pass(Pass),
    /// It may wait in the line for a place.
    Wait,
}

impl Controllers {
    /// What a plan means.
    ///
    /// # Errors
    /// The fleet's capacity is no exact quota. That of a compiled plan is.
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

    /// An empty line for those who are told to wait, if there is to be one.
    #[must_use]
    pub fn line<T>(&self) -> Option<Line<T>> {
        let places = self.concurrency.as_ref().map_or(0, AdaptiveLimit::limit);
        let size = usize::try_from(places).unwrap_or(usize::MAX).saturating_mul(2);
        self.queue.clone().map(|settings| Line::new(settings, size))
    }

    /// Lets a request in, tells it to wait, or refuses it. `identity` is a hash of who sends it.
    ///
    /// # Errors
    /// There is no capacity for it.
    pub fn enter(&self, priority: Priority, identity: u64, now: Timestamp) -> Result<Entry, Refusal> {
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
            return Ok(Entry::Pass(Pass { ticket: None, began: now }));
        };
        let ticket = if self.queue.is_some() { limit.try_begin(now) } else { limit.begin(now) };
        match ticket {
            Some(ticket) => Ok(Entry::Pass(Pass { ticket: Some(ticket), began: now })),
            None if self.queue.is_some() => Ok(Entry::Wait),
            None => Err(limit.refusal(priority)),
        }
    }

    /// A place for one who waits, if one is free. Take it before asking the line whose it is, and give it back as ignored if nobody's.
    #[must_use]
    pub fn place(&self, now: Timestamp) -> Option<Pass> {
        let ticket = match &self.concurrency {
            Some(limit) => Some(limit.try_begin(now)?),
            None => None,
        };
        Some(Pass { ticket, began: now })
    }

    /// Tells how long one waited who got a place: a worker whose queue is long is busy.
    pub fn waited(&self, delay: Ticks, now: Timestamp) {
        self.observe(delay, now);
    }

    /// Gives back what a request took, with how it ended.
    pub fn leave(&self, pass: Pass, now: Timestamp, ending: Ending) {
        if let (Some(limit), Some(ticket)) = (&self.concurrency, pass.ticket) {
            limit.end(ticket, now, ending);
        }
        if let Some(rate) = &self.rate {
            rate.end(pass.began, now, ending);
        }
        self.observe(Ticks::ZERO, now);
    }

    /// The switch of a controller that is there. The line has one of its own.
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

    /// Turns all of them off until an instant. It ends by itself.
    pub fn kill(&self, until: Timestamp) {
        let all = [Controller::Fleet, Controller::Worker, Controller::Concurrency, Controller::Rate];
        all.into_iter()
            .filter_map(|controller| self.switch(controller))
            .for_each(|switch| switch.kill(until));
    }

    /// The state of each that is there. The line tells its own.
    #[must_use]
    pub fn reports(&self, now: Timestamp) -> Vec<Report> {
        let fleet = self.fleet.as_ref().map(|fleet| fleet.report(now));
        let worker = self.worker.as_ref().map(|worker| worker.report(now));
        let concurrency = self.concurrency.as_ref().map(|limit| limit.report(now));
        let rate = self.rate.as_ref().map(|rate| rate.report(now));
        [fleet, worker, concurrency, rate].into_iter().flatten().collect()
    }

    fn observe(&self, queue_delay: Ticks, now: Timestamp) {
        let Some(worker) = &self.worker else { return };
        let (in_flight, limit) = match &self.concurrency {
            // A limit that does not decide says nothing about what the worker can do.
            Some(limit) if limit.switch().mode(now) != Mode::Off => (limit.in_flight(), limit.limit()),
            _ => (0, 1),
        };
        worker.observe(Load { in_flight, limit, queue_delay }, now);
    }
}
