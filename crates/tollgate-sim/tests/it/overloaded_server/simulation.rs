//! The simulation of one limiter in front of the server: a queue of events in the order of their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate::{Ticks, Timestamp};
use tollgate_overload::{Ending, LimitSettings};

use tollgate_sim::random::Random;

use super::limiters::{FrontLimiter, InFlightPermit, LimiterKind};
use super::scenario::{OverloadScenario, TimeoutReport};
use super::server::{Job, Server};

/// The start of every simulation.
const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// The statistics of one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverloadSecond {
    /// Requests that arrived, retries included.
    pub(crate) offered: u64,
    /// Requests that the limiter refused.
    pub(crate) refused: u64,
    /// Requests answered in time.
    pub(crate) good: u64,
    /// Requests that the limiter admitted and that timed out.
    pub(crate) late: u64,
    /// The limit at the end of the second.
    pub(crate) limit: u64,
    /// Requests in flight at the end of the second.
    pub(crate) in_flight: u64,
    /// Latencies of the requests answered in time, in microseconds, sorted.
    pub(crate) latencies: Vec<u64>,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverloadOutcome {
    /// OverloadSecond by second.
    pub(crate) seconds: Vec<OverloadSecond>,
    /// Permits still held after the last event; not 0 means a leak.
    pub(crate) unfinished: u64,
}

impl OverloadOutcome {
    /// Requests answered in time between two seconds.
    #[must_use]
    pub(crate) fn good(&self, from: u64, to: u64) -> u64 {
        self.between(from, to).map(|second| second.good).sum()
    }

    /// A quantile, in thousandths, of the latency in microseconds.
    #[must_use]
    pub(crate) fn latency(&self, from: u64, to: u64, thousandths: usize) -> u64 {
        let mut all: Vec<u64> =
            self.between(from, to).flat_map(|second| second.latencies.iter().copied()).collect();
        all.sort_unstable();
        all.get((all.len() * thousandths / 1_000).min(all.len().saturating_sub(1))).copied().unwrap_or(0)
    }

    /// The lowest and the highest limit between two seconds.
    #[must_use]
    pub(crate) fn limits(&self, from: u64, to: u64) -> (u64, u64) {
        let limits = || self.between(from, to).map(|second| second.limit);
        (limits().min().unwrap_or(0), limits().max().unwrap_or(0))
    }

    fn between(&self, from: u64, to: u64) -> impl Iterator<Item = &OverloadSecond> {
        let [from, to] = [from, to].map(|second| usize::try_from(second).unwrap_or(usize::MAX));
        self.seconds.iter().take(to).skip(from)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OverloadEvent {
    Arrive { tries: u32 },
    Finish { id: usize },
    GiveUp { id: usize },
    Tick,
}

#[derive(Debug)]
struct Request {
    arrived: Timestamp,
    permit: Option<InFlightPermit>,
    tries: u32,
    cancels: bool,
}

struct OverloadSimulation<'s> {
    scenario: &'s OverloadScenario,
    random: Random,
    limiter: FrontLimiter,
    server: Server,
    requests: Vec<Request>,
    events: BinaryHeap<Reverse<(Timestamp, u64, OverloadEvent)>>,
    order: u64,
    outcome: OverloadOutcome,
    now: Timestamp,
}

/// Simulates a scenario with a limiter in front of the server.
#[must_use]
pub(crate) fn simulate(scenario: &OverloadScenario, kind: LimiterKind) -> OverloadOutcome {
    let mut simulation = OverloadSimulation {
        scenario,
        random: Random::new(scenario.seed),
        limiter: FrontLimiter::new(kind, LimitSettings::default(), scenario.seed),
        server: Server::new(scenario.workers),
        requests: Vec::new(),
        events: BinaryHeap::new(),
        order: 0,
        outcome: OverloadOutcome::default(),
        now: START,
    };
    simulation.run();
    simulation.outcome.unfinished = simulation.limiter.in_flight();
    simulation.outcome
}

impl OverloadSimulation<'_> {
    fn run(&mut self) {
        self.at(START, OverloadEvent::Arrive { tries: 0 });
        self.at(START + Ticks::from_secs(1), OverloadEvent::Tick);
        self.outcome.seconds.push(OverloadSecond::default());
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            self.now = now;
            match event {
                OverloadEvent::Arrive { tries } => self.arrive(tries),
                OverloadEvent::Finish { id } => self.finish(id),
                OverloadEvent::GiveUp { id } => self.give_up(id),
                OverloadEvent::Tick => self.tick(),
            }
        }
        for second in &mut self.outcome.seconds {
            second.latencies.sort_unstable();
        }
    }

    fn second(&self) -> u64 {
        self.now.since(START).as_micros() / 1_000_000
    }

    fn current_second(&mut self) -> &mut OverloadSecond {
        let last = self.outcome.seconds.len() - 1;
        &mut self.outcome.seconds[last]
    }

    fn at(&mut self, when: Timestamp, event: OverloadEvent) {
        self.order += 1;
        self.events.push(Reverse((when, self.order, event)));
    }

    fn tick(&mut self) {
        let (limit, in_flight) = (self.limiter.limit(), self.limiter.in_flight());
        let second = self.current_second();
        (second.limit, second.in_flight) = (limit, in_flight);
        if self.scenario.phase(self.second()).is_some() {
            self.outcome.seconds.push(OverloadSecond::default());
            self.at(self.now + Ticks::from_secs(1), OverloadEvent::Tick);
        }
    }

    fn arrive(&mut self, tries: u32) {
        let Some(phase) = self.scenario.phase(self.second()) else { return };
        if tries == 0 {
            // A phase without requests is checked again after a second.
            let gap = 1_000_000 / phase.offered.max(1);
            let gap = if phase.offered == 0 { 1_000_000 } else { self.random.exponential(gap).max(1) };
            self.at(self.now + Ticks::from_micros(gap), OverloadEvent::Arrive { tries: 0 });
            if phase.offered == 0 {
                return;
            }
        }
        self.current_second().offered += 1;
        let Some(permit) = self.limiter.begin(self.now) else {
            self.current_second().refused += 1;
            self.retry(tries);
            return;
        };
        let id = self.requests.len();
        let cancels = self.random.below(100) < self.scenario.cancels;
        self.requests.push(Request { arrived: self.now, permit: Some(permit), tries, cancels });
        let time = self.scenario.service.draw(&mut self.random);
        let time = Ticks::from_micros(time.as_micros() * phase.slowdown.max(1));
        if let Some(job) = self.server.take(Job { id, time }) {
            self.at(self.now + job.time, OverloadEvent::Finish { id });
        }
        let gives_up_after = if cancels {
            self.random.below(self.scenario.service.mean().as_micros())
        } else {
            self.scenario.timeout.as_micros()
        };
        self.at(self.now + Ticks::from_micros(gives_up_after.max(1)), OverloadEvent::GiveUp { id });
    }

    fn finish(&mut self, id: usize) {
        let took = self.now.since(self.requests[id].arrived);
        if let Some(permit) = self.requests[id].permit.take() {
            self.limiter.end(permit, self.now, Ending::Success);
            let second = self.current_second();
            second.good += 1;
            second.latencies.push(took.as_micros());
        }
        let requests = &self.requests;
        // A cancel reaches the server, which then skips the request. A timeout does not, so the server works for nothing.
        let is_gone = |id: usize| requests[id].permit.is_none() && requests[id].cancels;
        if let Some(job) = self.server.done(is_gone) {
            self.at(self.now + job.time, OverloadEvent::Finish { id: job.id });
        }
    }

    fn give_up(&mut self, id: usize) {
        let request = &mut self.requests[id];
        let (tries, cancels) = (request.tries, request.cancels);
        let Some(permit) = request.permit.take() else { return };
        let ending = match (cancels, self.scenario.timeout_report) {
            (true, _) => Ending::Ignored,
            (false, TimeoutReport::Loss) => Ending::Dropped,
            (false, TimeoutReport::SlowAnswer) => Ending::Success,
        };
        self.limiter.end(permit, self.now, ending);
        if !cancels {
            self.current_second().late += 1;
            self.retry(tries);
        }
    }

    fn retry(&mut self, tries: u32) {
        if tries < self.scenario.retries {
            let pause = 50_000u64 << tries.min(6);
            let pause = pause + self.random.below(pause);
            self.at(self.now + Ticks::from_micros(pause), OverloadEvent::Arrive { tries: tries + 1 });
        }
    }
}
