//! The simulation of requests of four priorities that meet the worker shedder, the adaptive limit and the wait queue.
//! For comparison, a plain FIFO queue that never evicts a request takes the role of the wait queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tollgate::{Ticks, Timestamp};
use tollgate_overload::{
    AdaptiveLimit, Ending, LimitSettings, Load, Priority, PushOutcome, QueueAction, QueueSettings, Ticket,
    WaitQueue, WorkerSettings, WorkerShedder,
};

use tollgate_sim::random::Random;

use super::scenario::OverloadScenario;
use super::server::{Job, Server};

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
/// Percentage of requests of each priority, the lowest first.
const MIX: [u64; 4] = [20, 40, 30, 10];

/// How requests queue, and whether the worker sheds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queueing {
    /// In the wait queue, behind the worker shedder.
    Shed,
    /// In the wait queue, without the worker shedder.
    ByPriority,
    /// In the wait queue, all with one priority.
    OnePriority,
    /// In a FIFO queue without a timeout.
    Fifo,
}

/// The statistics of one second. A served request counts in the second in which it arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrioritySecond {
    /// Requests that arrived, by priority.
    pub(crate) offered: [u64; 4],
    /// Requests answered in time, by priority.
    pub(crate) good: [u64; 4],
    /// Requests answered after their deadline.
    pub(crate) late: u64,
    /// Requests refused by the shedder or the wait queue.
    pub(crate) refused: u64,
    /// The shedding level at the end of the second, in thousandths of a priority.
    pub(crate) level: u64,
    /// Requests that waited at the end of the second.
    pub(crate) waiting: usize,
    /// The limit at the end of the second.
    pub(crate) limit: u32,
    /// Latencies of the requests answered in time, their wait included, in microseconds.
    pub(crate) latencies: Vec<u64>,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct PriorityOutcome {
    /// Second by second.
    pub(crate) seconds: Vec<PrioritySecond>,
    /// Permits and queue slots still held after the last event; not 0 means a leak.
    pub(crate) unfinished: u64,
    /// Requests that were shed at an instant at which the same caller would have passed with a lower priority.
    pub(crate) inversions: u64,
}

impl PriorityOutcome {
    /// Thousandths of a priority's requests between two seconds that were answered in time.
    #[must_use]
    pub(crate) fn served(&self, priority: Priority, from: usize, to: usize) -> u64 {
        let index = priority as usize;
        let sum = |of: fn(&PrioritySecond) -> &[u64; 4]| -> u64 {
            self.seconds.iter().take(to).skip(from).map(|second| of(second)[index]).sum()
        };
        sum(|second| &second.good) * 1_000 / sum(|second| &second.offered).max(1)
    }

    /// Requests answered in time between two seconds.
    #[must_use]
    pub(crate) fn good(&self, from: usize, to: usize) -> u64 {
        self.seconds.iter().take(to).skip(from).flat_map(|second| second.good).sum()
    }

    /// A quantile, in thousandths, of the latency in microseconds, the wait included.
    #[must_use]
    pub(crate) fn latency(&self, from: usize, to: usize, thousandths: usize) -> u64 {
        let seconds = self.seconds.iter().take(to).skip(from);
        let mut all: Vec<u64> = seconds.flat_map(|second| second.latencies.iter().copied()).collect();
        all.sort_unstable();
        all.get((all.len() * thousandths / 1_000).min(all.len().saturating_sub(1))).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PriorityEvent {
    Arrive,
    Finish { id: usize },
    Expire,
    Tick,
}

#[derive(Debug)]
struct QueuedRequest {
    priority: usize,
    arrived: Timestamp,
    deadline: Timestamp,
    ticket: Option<Ticket>,
}

struct PrioritySimulation<'s> {
    scenario: &'s OverloadScenario,
    queueing: Queueing,
    random: Random,
    worker: WorkerShedder,
    limit: AdaptiveLimit,
    wait_queue: WaitQueue<usize>,
    fifo: VecDeque<usize>,
    server: Server,
    requests: Vec<QueuedRequest>,
    events: BinaryHeap<Reverse<(Timestamp, u64, PriorityEvent)>>,
    order: u64,
    now: Timestamp,
    delay: Ticks,
    outcome: PriorityOutcome,
}

/// Simulates a scenario. Its callers wait for the length of its timeout and do not retry.
#[must_use]
pub(crate) fn simulate_priorities(scenario: &OverloadScenario, queueing: Queueing) -> PriorityOutcome {
    let mut simulation = PrioritySimulation {
        scenario,
        queueing,
        random: Random::new(scenario.seed),
        worker: WorkerShedder::new(WorkerSettings::default()),
        limit: AdaptiveLimit::new(LimitSettings::default()),
        wait_queue: WaitQueue::new(QueueSettings::default(), 0),
        fifo: VecDeque::new(),
        server: Server::new(scenario.workers),
        requests: Vec::new(),
        events: BinaryHeap::new(),
        order: 0,
        now: START,
        delay: Ticks::ZERO,
        outcome: PriorityOutcome::default(),
    };
    simulation.run();
    simulation.outcome.unfinished =
        u64::from(simulation.limit.in_flight()) + simulation.wait_queue.len() as u64;
    simulation.outcome
}

impl PrioritySimulation<'_> {
    fn run(&mut self) {
        self.at(START, PriorityEvent::Tick);
        self.at(START, PriorityEvent::Arrive);
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            self.now = now;
            match event {
                PriorityEvent::Arrive => self.arrive(),
                PriorityEvent::Finish { id } => self.finish(id),
                PriorityEvent::Expire => self.expire(),
                PriorityEvent::Tick => self.tick(),
            }
        }
    }

    fn at(&mut self, when: Timestamp, event: PriorityEvent) {
        self.order += 1;
        self.events.push(Reverse((when, self.order, event)));
    }

    fn second(&self) -> u64 {
        self.now.since(START).as_micros() / 1_000_000
    }

    fn second_of(&self, instant: Timestamp) -> usize {
        let second = instant.since(START).as_micros() / 1_000_000;
        usize::try_from(second).unwrap_or(usize::MAX).min(self.outcome.seconds.len() - 1)
    }

    fn current_second(&mut self) -> &mut PrioritySecond {
        let last = self.outcome.seconds.len() - 1;
        &mut self.outcome.seconds[last]
    }

    fn tick(&mut self) {
        if !self.outcome.seconds.is_empty() {
            let (level, waiting) = (self.worker.level(), self.wait_queue.len() + self.fifo.len());
            let limit = self.limit.limit();
            let second = self.current_second();
            (second.level, second.waiting, second.limit) = (level, waiting, limit);
        }
        if self.scenario.phase(self.second()).is_some() {
            self.outcome.seconds.push(PrioritySecond::default());
            self.at(self.now + Ticks::from_secs(1), PriorityEvent::Tick);
        }
    }

    fn observe(&self) {
        let load =
            Load { in_flight: self.limit.in_flight(), limit: self.limit.limit(), queue_delay: self.delay };
        self.worker.observe(load, self.now);
    }

    fn arrive(&mut self) {
        let Some(phase) = self.scenario.phase(self.second()) else { return };
        let gap = self.random.exponential(1_000_000 / phase.offered.max(1)).max(1);
        self.at(self.now + Ticks::from_micros(gap), PriorityEvent::Arrive);
        self.observe();
        let mut pick = self.random.below(100);
        let mut index = 0;
        while pick >= MIX[index] {
            pick -= MIX[index];
            index += 1;
        }
        self.current_second().offered[index] += 1;
        let identity = self.random.bits();
        if self.queueing == Queueing::Shed {
            let decide = |priority: Priority| self.worker.decide(priority, identity, self.now).is_err();
            let is_shed = decide(Priority::ALL[index]);
            let is_inversions = is_shed && Priority::ALL[..index].iter().any(|&lesser| !decide(lesser));
            self.outcome.inversions += u64::from(is_inversions);
            if is_shed {
                self.current_second().refused += 1;
                return;
            }
        }
        let (arrived, deadline) = (self.now, self.now + self.scenario.timeout);
        let id = self.requests.len();
        self.requests.push(QueuedRequest { priority: index, arrived, deadline, ticket: None });
        // A new request does not overtake waiting ones: the queue decides the order.
        let is_first = self.wait_queue.is_empty() && self.fifo.is_empty();
        match if is_first { self.limit.try_begin(self.now) } else { None } {
            Some(ticket) => self.begin(id, ticket),
            None => self.wait(id, deadline),
        }
    }

    fn wait(&mut self, id: usize, deadline: Timestamp) {
        if self.queueing == Queueing::Fifo {
            self.fifo.push_back(id);
            return;
        }
        self.wait_queue.adapt(self.limit.limit(), self.limit.median_latency());
        let priority = match self.queueing {
            Queueing::OnePriority => Priority::Read,
            _ => Priority::ALL[self.requests[id].priority],
        };
        match self.wait_queue.push(id, priority, deadline, self.now) {
            PushOutcome::Queued(_) => {}
            PushOutcome::Replaced(..) | PushOutcome::Full(_) => self.current_second().refused += 1,
        }
        if let Some(when) = self.wait_queue.next_expiry() {
            self.at(when, PriorityEvent::Expire);
        }
    }

    fn expire(&mut self) {
        while let Some(QueueAction::Refuse(..)) = self.wait_queue.expire(self.now) {
            self.current_second().refused += 1;
        }
    }

    fn begin(&mut self, id: usize, ticket: Ticket) {
        self.requests[id].ticket = Some(ticket);
        self.delay = self.now.since(self.requests[id].arrived);
        let slower = self.scenario.phase(self.second()).map_or(1, |phase| phase.slowdown.max(1));
        let time = self.scenario.service.draw(&mut self.random);
        let job = Job { id, time: Ticks::from_micros(time.as_micros() * slower) };
        if let Some(job) = self.server.take(job) {
            self.at(self.now + job.time, PriorityEvent::Finish { id });
        }
    }

    fn finish(&mut self, id: usize) {
        let request = &mut self.requests[id];
        let (index, took, is_late) =
            (request.priority, self.now.since(request.arrived), self.now > request.deadline);
        if let Some(ticket) = request.ticket.take() {
            self.limit.end(ticket, self.now, Ending::Success);
        }
        let arrived = self.now - took;
        let second = self.second_of(arrived);
        let second = &mut self.outcome.seconds[second];
        if is_late {
            second.late += 1;
        } else {
            second.good[index] += 1;
            second.latencies.push(took.as_micros());
        }
        if let Some(job) = self.server.done(|_| false) {
            self.at(self.now + job.time, PriorityEvent::Finish { id: job.id });
        }
        self.observe();
        self.serve_waiting();
    }

    /// Gives free permits to waiting requests, one by one.
    fn serve_waiting(&mut self) {
        while !self.wait_queue.is_empty() || !self.fifo.is_empty() {
            let Some(ticket) = self.limit.try_begin(self.now) else { return };
            match self.next() {
                Some(id) => self.begin(id, ticket),
                None => self.limit.end(ticket, self.now, Ending::Ignored),
            }
        }
    }

    fn next(&mut self) -> Option<usize> {
        if let Some(id) = self.fifo.pop_front() {
            return Some(id);
        }
        loop {
            match self.wait_queue.next(self.now)? {
                QueueAction::Serve(id, _) => return Some(id),
                QueueAction::Refuse(..) => self.current_second().refused += 1,
            }
        }
    }
}
