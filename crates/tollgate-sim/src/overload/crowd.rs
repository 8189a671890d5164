//! All of it together: requests of four priorities meet the worker shedder, the adaptive limit and the line in front of a server; or, for
//! contrast, a plain queue in place of the line, first come, first served, in which nobody is ever put out.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tollgate::overload::{
    AdaptiveLimit, Ending, LimitSettings, Load, Priority, PushOutcome, QueueAction, QueueSettings, Ticket,
    WaitQueue, WorkerSettings, WorkerShedder,
};
use tollgate::{Ticks, Timestamp};

use crate::random::Random;

use super::scene::Scene;
use super::server::{Job, Server};

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
/// Of a hundred requests, how many are of each priority, the least first.
const MIX: [u64; 4] = [20, 40, 30, 10];

/// Who waits how, and whether the worker sheds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// In a line, behind the worker shedder.
    Shed,
    /// In a line, which knows priorities; nobody is shed before it.
    Line,
    /// In a line to which all priorities are alike.
    Alike,
    /// In a queue, first come, first served, for as long as it takes.
    Queue,
}

/// What a second was like. What became of a request counts in the second in which it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrowdSecond {
    /// Requests that came, by priority.
    pub offered: [u64; 4],
    /// Requests that were answered in time, by priority.
    pub good: [u64; 4],
    /// Requests that were answered too late, for nobody.
    pub late: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// How much was shed at its end, in thousandths of a class.
    pub level: u64,
    /// How many waited at its end.
    pub waiting: usize,
    /// How many places there were at its end.
    pub limit: u32,
    /// How long the answered ones took, with their wait.
    pub latencies: Vec<u64>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct CrowdOutcome {
    /// Second by second.
    pub seconds: Vec<CrowdSecond>,
    /// What is still in flight, or waits, when everything has ended.
    pub left: u64,
    /// Requests of a priority that were shed at an instant at which one of a lesser priority was let through, of the same sender.
    pub unjust: u64,
}

impl CrowdOutcome {
    /// Of a priority's requests in these seconds, how many thousandths were answered in time.
    #[must_use]
    pub fn served(&self, priority: Priority, from: usize, to: usize) -> u64 {
        let place = priority as usize;
        let sum = |of: fn(&CrowdSecond) -> &[u64; 4]| -> u64 {
            self.seconds.iter().take(to).skip(from).map(|second| of(second)[place]).sum()
        };
        sum(|second| &second.good) * 1_000 / sum(|second| &second.offered).max(1)
    }

    /// Requests answered in time in these seconds.
    #[must_use]
    pub fn good(&self, from: usize, to: usize) -> u64 {
        self.seconds.iter().take(to).skip(from).flat_map(|second| second.good).sum()
    }

    /// The latency that so many thousandths of the answered stayed below, their wait included.
    #[must_use]
    pub fn latency(&self, from: usize, to: usize, thousandths: usize) -> u64 {
        let seconds = self.seconds.iter().take(to).skip(from);
        let mut all: Vec<u64> = seconds.flat_map(|second| second.latencies.iter().copied()).collect();
        all.sort_unstable();
        all.get((all.len() * thousandths / 1_000).min(all.len().saturating_sub(1))).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive,
    Finish { id: usize },
    Expire,
    Tick,
}

#[derive(Debug)]
struct Visitor {
    priority: usize,
    came: Timestamp,
    deadline: Timestamp,
    ticket: Option<Ticket>,
}

struct Play<'s> {
    scene: &'s Scene,
    crowd: Crowd,
    random: Random,
    worker: WorkerShedder,
    limit: AdaptiveLimit,
    line: WaitQueue<usize>,
    queue: VecDeque<usize>,
    server: Server,
    visitors: Vec<Visitor>,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    order: u64,
    now: Timestamp,
    delay: Ticks,
    outcome: CrowdOutcome,
}

/// Plays a scene. Its callers wait for as long as its timeout says, and do not come back.
#[must_use]
pub fn crowd(scene: &Scene, crowd: Crowd) -> CrowdOutcome {
    let mut play = Play {
        scene,
        crowd,
        random: Random::new(scene.seed),
        worker: WorkerShedder::new(WorkerSettings::default()),
        limit: AdaptiveLimit::new(LimitSettings::default()),
        line: WaitQueue::new(QueueSettings::default(), 0),
        queue: VecDeque::new(),
        server: Server::new(scene.workers),
        visitors: Vec::new(),
        events: BinaryHeap::new(),
        order: 0,
        now: START,
        delay: Ticks::ZERO,
        outcome: CrowdOutcome::default(),
    };
    play.run();
    play.outcome.left = u64::from(play.limit.in_flight()) + play.line.len() as u64;
    play.outcome
}

impl Play<'_> {
    fn run(&mut self) {
        self.at(START, Event::Tick);
        self.at(START, Event::Arrive);
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            self.now = now;
            match event {
                Event::Arrive => self.arrive(),
                Event::Finish { id } => self.finish(id),
                Event::Expire => self.expire(),
                Event::Tick => self.tick(),
            }
        }
    }

    fn at(&mut self, when: Timestamp, event: Event) {
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

    fn tell(&mut self) -> &mut CrowdSecond {
        let last = self.outcome.seconds.len() - 1;
        &mut self.outcome.seconds[last]
    }

    fn tick(&mut self) {
        if !self.outcome.seconds.is_empty() {
            let (level, waiting) = (self.worker.level(), self.line.len() + self.queue.len());
            let limit = self.limit.limit();
            let second = self.tell();
            (second.level, second.waiting, second.limit) = (level, waiting, limit);
        }
        if self.scene.phase(self.second()).is_some() {
            self.outcome.seconds.push(CrowdSecond::default());
            self.at(self.now + Ticks::from_secs(1), Event::Tick);
        }
    }

    fn observe(&self) {
        let load =
            Load { in_flight: self.limit.in_flight(), limit: self.limit.limit(), queue_delay: self.delay };
        self.worker.observe(load, self.now);
    }

    fn arrive(&mut self) {
        let Some(phase) = self.scene.phase(self.second()) else { return };
        let gap = self.random.exponential(1_000_000 / phase.offered.max(1)).max(1);
        self.at(self.now + Ticks::from_micros(gap), Event::Arrive);
        self.observe();
        let mut pick = self.random.below(100);
        let mut place = 0;
        while pick >= MIX[place] {
            pick -= MIX[place];
            place += 1;
        }
        self.tell().offered[place] += 1;
        let identity = self.random.bits();
        if self.crowd == Crowd::Shed {
            let decide = |priority: Priority| self.worker.decide(priority, identity, self.now).is_err();
            let is_shed = decide(Priority::ALL[place]);
            let is_unjust = is_shed && Priority::ALL[..place].iter().any(|&lesser| !decide(lesser));
            self.outcome.unjust += u64::from(is_unjust);
            if is_shed {
                self.tell().refused += 1;
                return;
            }
        }
        let (came, deadline) = (self.now, self.now + self.scene.timeout);
        let id = self.visitors.len();
        self.visitors.push(Visitor { priority: place, came, deadline, ticket: None });
        // Whoever comes while others wait does not overtake them: that is for the line to decide.
        let is_first = self.line.is_empty() && self.queue.is_empty();
        match if is_first { self.limit.try_begin(self.now) } else { None } {
            Some(ticket) => self.begin(id, ticket),
            None => self.wait(id, deadline),
        }
    }

    fn wait(&mut self, id: usize, deadline: Timestamp) {
        if self.crowd == Crowd::Queue {
            self.queue.push_back(id);
            return;
        }
        self.line.adapt(self.limit.limit(), self.limit.median_latency());
        let priority = match self.crowd {
            Crowd::Alike => Priority::Read,
            _ => Priority::ALL[self.visitors[id].priority],
        };
        match self.line.push(id, priority, deadline, self.now) {
            PushOutcome::Queued(_) => {}
            PushOutcome::Replaced(..) | PushOutcome::Full(_) => self.tell().refused += 1,
        }
        if let Some(when) = self.line.next_expiry() {
            self.at(when, Event::Expire);
        }
    }

    fn expire(&mut self) {
        while let Some(QueueAction::Refuse(..)) = self.line.expire(self.now) {
            self.tell().refused += 1;
        }
    }

    fn begin(&mut self, id: usize, ticket: Ticket) {
        self.visitors[id].ticket = Some(ticket);
        self.delay = self.now.since(self.visitors[id].came);
        let slower = self.scene.phase(self.second()).map_or(1, |phase| phase.slower.max(1));
        let time = self.scene.service.draw(&mut self.random);
        let job = Job { id, time: Ticks::from_micros(time.as_micros() * slower) };
        if let Some(job) = self.server.take(job) {
            self.at(self.now + job.time, Event::Finish { id });
        }
    }

    fn finish(&mut self, id: usize) {
        let visitor = &mut self.visitors[id];
        let (place, took, is_late) =
            (visitor.priority, self.now.since(visitor.came), self.now > visitor.deadline);
        if let Some(ticket) = visitor.ticket.take() {
            self.limit.end(ticket, self.now, Ending::Success);
        }
        let came = self.now - took;
        let second = self.second_of(came);
        let second = &mut self.outcome.seconds[second];
        if is_late {
            second.late += 1;
        } else {
            second.good[place] += 1;
            second.latencies.push(took.as_micros());
        }
        if let Some(job) = self.server.done(|_| false) {
            self.at(self.now + job.time, Event::Finish { id: job.id });
        }
        self.observe();
        self.call();
    }

    /// Gives free places to those who wait, one by one.
    fn call(&mut self) {
        while !self.line.is_empty() || !self.queue.is_empty() {
            let Some(ticket) = self.limit.try_begin(self.now) else { return };
            match self.next() {
                Some(id) => self.begin(id, ticket),
                None => self.limit.end(ticket, self.now, Ending::Ignored),
            }
        }
    }

    fn next(&mut self) -> Option<usize> {
        if let Some(id) = self.queue.pop_front() {
            return Some(id);
        }
        loop {
            match self.line.next(self.now)? {
                QueueAction::Serve(id, _) => return Some(id),
                QueueAction::Refuse(..) => self.tell().refused += 1,
            }
        }
    }
}
