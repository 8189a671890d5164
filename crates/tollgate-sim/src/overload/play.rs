//! The simulation itself: events in the order of their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate::overload::{Ending, LimitSettings};
use tollgate::{Ticks, Timestamp};

use crate::random::Random;

use super::contrast::{Held, Limiter, Way};
use super::scene::{Loss, Scene};
use super::server::{Job, Server};

/// When it begins.
const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// What a second was like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Requests that came, those that came again included.
    pub offered: u64,
    /// Requests that were not let in.
    pub refused: u64,
    /// Requests that were answered in time.
    pub good: u64,
    /// Requests that were let in and not answered in time.
    pub late: u64,
    /// The limit at its end.
    pub limit: u64,
    /// How many were in flight at its end.
    pub in_flight: u64,
    /// How long the answered ones took, sorted.
    pub latencies: Vec<u64>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Second by second.
    pub seconds: Vec<Second>,
    /// What is still in flight when everything has ended.
    pub left: u64,
}

impl Outcome {
    /// Requests answered in time in these seconds.
    #[must_use]
    pub fn good(&self, from: u64, to: u64) -> u64 {
        self.between(from, to).map(|second| second.good).sum()
    }

    /// The latency, in microseconds, that so many thousandths of the answered requests stayed below.
    #[must_use]
    pub fn latency(&self, from: u64, to: u64, thousandths: usize) -> u64 {
        let mut all: Vec<u64> =
            self.between(from, to).flat_map(|second| second.latencies.iter().copied()).collect();
        all.sort_unstable();
        all.get((all.len() * thousandths / 1_000).min(all.len().saturating_sub(1))).copied().unwrap_or(0)
    }

    /// The lowest and the highest limit in these seconds.
    #[must_use]
    pub fn limits(&self, from: u64, to: u64) -> (u64, u64) {
        let limits = || self.between(from, to).map(|second| second.limit);
        (limits().min().unwrap_or(0), limits().max().unwrap_or(0))
    }

    fn between(&self, from: u64, to: u64) -> impl Iterator<Item = &Second> {
        let [from, to] = [from, to].map(|second| usize::try_from(second).unwrap_or(usize::MAX));
        self.seconds.iter().take(to).skip(from)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { tries: u32 },
    Finish { id: usize },
    GiveUp { id: usize },
    Tick,
}

#[derive(Debug)]
struct Request {
    came: Timestamp,
    held: Option<Held>,
    tries: u32,
    cancels: bool,
}

struct Play<'s> {
    scene: &'s Scene,
    random: Random,
    limiter: Limiter,
    server: Server,
    requests: Vec<Request>,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    order: u64,
    outcome: Outcome,
    now: Timestamp,
}

/// Plays a scene with a limit in front of the server.
#[must_use]
pub fn play(scene: &Scene, way: Way) -> Outcome {
    play_with(scene, way, LimitSettings::default())
}

/// The same with settings of one's own for Tollgate's limit.
#[must_use]
pub fn play_with(scene: &Scene, way: Way, settings: LimitSettings) -> Outcome {
    let mut play = Play {
        scene,
        random: Random::new(scene.seed),
        limiter: Limiter::new(way, settings, scene.seed),
        server: Server::new(scene.workers),
        requests: Vec::new(),
        events: BinaryHeap::new(),
        order: 0,
        outcome: Outcome::default(),
        now: START,
    };
    play.run();
    play.outcome.left = play.limiter.in_flight();
    play.outcome
}

impl Play<'_> {
    fn run(&mut self) {
        self.at(START, Event::Arrive { tries: 0 });
        self.at(START + Ticks::from_secs(1), Event::Tick);
        self.outcome.seconds.push(Second::default());
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            self.now = now;
            match event {
                Event::Arrive { tries } => self.arrive(tries),
                Event::Finish { id } => self.finish(id),
                Event::GiveUp { id } => self.give_up(id),
                Event::Tick => self.tick(),
            }
        }
        for second in &mut self.outcome.seconds {
            second.latencies.sort_unstable();
        }
    }

    fn second(&self) -> u64 {
        self.now.since(START).as_micros() / 1_000_000
    }

    fn tell(&mut self) -> &mut Second {
        let last = self.outcome.seconds.len() - 1;
        &mut self.outcome.seconds[last]
    }

    fn at(&mut self, when: Timestamp, event: Event) {
        self.order += 1;
        self.events.push(Reverse((when, self.order, event)));
    }

    fn tick(&mut self) {
        let (limit, in_flight) = (self.limiter.limit(), self.limiter.in_flight());
        let second = self.tell();
        (second.limit, second.in_flight) = (limit, in_flight);
        if self.scene.phase(self.second()).is_some() {
            self.outcome.seconds.push(Second::default());
            self.at(self.now + Ticks::from_secs(1), Event::Tick);
        }
    }

    fn arrive(&mut self, tries: u32) {
        let Some(phase) = self.scene.phase(self.second()) else { return };
        if tries == 0 {
            // A second without requests is looked at again when it is over.
            let gap = 1_000_000 / phase.offered.max(1);
            let gap = if phase.offered == 0 { 1_000_000 } else { self.random.exponential(gap).max(1) };
            self.at(self.now + Ticks::from_micros(gap), Event::Arrive { tries: 0 });
            if phase.offered == 0 {
                return;
            }
        }
        self.tell().offered += 1;
        let Some(held) = self.limiter.begin(self.now) else {
            self.tell().refused += 1;
            self.retry(tries);
            return;
        };
        let id = self.requests.len();
        let cancels = self.random.below(100) < self.scene.cancels;
        self.requests.push(Request { came: self.now, held: Some(held), tries, cancels });
        let time = self.scene.service.draw(&mut self.random);
        let time = Ticks::from_micros(time.as_micros() * phase.slower.max(1));
        if let Some(job) = self.server.take(Job { id, time }) {
            self.at(self.now + job.time, Event::Finish { id });
        }
        let patience = if cancels {
            self.random.below(self.scene.service.mean().as_micros())
        } else {
            self.scene.timeout.as_micros()
        };
        self.at(self.now + Ticks::from_micros(patience.max(1)), Event::GiveUp { id });
    }

    fn finish(&mut self, id: usize) {
        let took = self.now.since(self.requests[id].came);
        if let Some(held) = self.requests[id].held.take() {
            self.limiter.end(held, self.now, Ending::Success);
            let second = self.tell();
            second.good += 1;
            second.latencies.push(took.as_micros());
        }
        let requests = &self.requests;
        // Who went away is not worked on; who only gave up is, because nobody told the server.
        let is_gone = |id: usize| requests[id].held.is_none() && requests[id].cancels;
        if let Some(job) = self.server.done(is_gone) {
            self.at(self.now + job.time, Event::Finish { id: job.id });
        }
    }

    fn give_up(&mut self, id: usize) {
        let request = &mut self.requests[id];
        let (tries, cancels) = (request.tries, request.cancels);
        let Some(held) = request.held.take() else { return };
        let ending = match (cancels, self.scene.loss) {
            (true, _) => Ending::Ignored,
            (false, Loss::Told) => Ending::Dropped,
            (false, Loss::Untold) => Ending::Success,
        };
        self.limiter.end(held, self.now, ending);
        if !cancels {
            self.tell().late += 1;
            self.retry(tries);
        }
    }

    fn retry(&mut self, tries: u32) {
        if tries < self.scene.retries {
            let pause = 50_000u64 << tries.min(6);
            let pause = pause + self.random.below(pause);
            self.at(self.now + Ticks::from_micros(pause), Event::Arrive { tries: tries + 1 });
        }
    }
}
