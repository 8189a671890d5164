//! What is simulated: the load over time, the server, the callers.

use tollgate::Ticks;

use crate::random::Random;

/// How long requests take to serve, without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// All the same.
    Fixed(Ticks),
    /// Exponentially distributed, with this mean.
    Exponential(Ticks),
    /// Of two kinds: so many in a hundred take the second time, each within a tenth.
    Bimodal(Ticks, Ticks, u64),
}

impl Service {
    /// One service time.
    pub fn draw(self, random: &mut Random) -> Ticks {
        let micros = match self {
            Service::Fixed(time) => time.as_micros(),
            Service::Exponential(mean) => random.exponential(mean.as_micros()),
            Service::Bimodal(quick, slow, percent) => {
                let time = if random.below(100) < percent { slow } else { quick };
                let tenth = time.as_micros() / 10;
                time.as_micros() - tenth + random.below(2 * tenth)
            }
        };
        Ticks::from_micros(micros.max(1))
    }

    /// The mean.
    #[must_use]
    pub fn mean(self) -> Ticks {
        match self {
            Service::Fixed(time) | Service::Exponential(time) => time,
            Service::Bimodal(quick, slow, percent) => {
                Ticks::from_micros((quick.as_micros() * (100 - percent) + slow.as_micros() * percent) / 100)
            }
        }
    }
}

/// What happens during a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// How long it lasts.
    pub seconds: u64,
    /// Requests a second that come.
    pub offered: u64,
    /// How much longer everything takes to serve.
    pub slower: u64,
}

/// A server, its callers and what happens.
#[derive(Clone, Debug)]
pub struct Scene {
    /// What happens, one after the other.
    pub phases: Vec<Phase>,
    /// Requests that the server works on at once.
    pub workers: usize,
    /// How long they take.
    pub service: Service,
    /// When a caller gives up; the server goes on, not knowing.
    pub timeout: Ticks,
    /// Whether what is in front of the server knows that a late answer is a loss, or takes it for an answer that took long.
    pub loss: Loss,
    /// Callers of a hundred that go away halfway through what they wait for at most.
    pub cancels: u64,
    /// How often one that was refused or gave up comes back.
    pub retries: u32,
    /// What chance follows.
    pub seed: u64,
}

/// What a late answer is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A loss.
    Told,
    /// An answer that took as long as the timeout.
    Untold,
}

impl Scene {
    /// A server that is not busy: exponential service, no one gives up within two seconds.
    #[must_use]
    pub fn new(workers: usize, service: Service, seed: u64) -> Self {
        Self {
            phases: Vec::new(),
            workers,
            service,
            timeout: Ticks::from_secs(2),
            loss: Loss::Told,
            cancels: 0,
            retries: 0,
            seed,
        }
    }

    /// Adds a phase with a load in per cent of the server's capacity.
    #[must_use]
    pub fn then(mut self, seconds: u64, percent: u64) -> Self {
        let offered = self.capacity() * percent / 100;
        self.phases.push(Phase { seconds, offered, slower: 1 });
        self
    }

    /// Adds a phase in which everything takes so many times as long.
    #[must_use]
    pub fn then_slower(mut self, seconds: u64, percent: u64, slower: u64) -> Self {
        let offered = self.capacity() * percent / 100;
        self.phases.push(Phase { seconds, offered, slower });
        self
    }

    /// What the server can do in a second, at its usual speed.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.workers as u64 * 1_000_000 / self.service.mean().as_micros().max(1)
    }

    /// What is happening in a second of the whole.
    #[must_use]
    pub fn phase(&self, second: u64) -> Option<Phase> {
        let mut end = 0;
        self.phases.iter().copied().find(|phase| {
            end += phase.seconds;
            second < end
        })
    }

    /// The most that can be done in a second.
    #[must_use]
    pub fn optimum(&self, second: u64) -> u64 {
        self.phase(second).map_or(0, |phase| phase.offered.min(self.capacity() / phase.slower.max(1)))
    }
}
