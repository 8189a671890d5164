//! The scenario of a simulation: the load over time, the server and its callers.

use tollgate::Ticks;

use tollgate_sim::random::Random;

/// How long a worker takes for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceTime {
    /// The same time for every request.
    Fixed(Ticks),
    /// Exponentially distributed, with this mean.
    Exponential(Ticks),
    /// A quick time and a slow one, each ± 10 %, and the percentage of slow requests.
    Bimodal(Ticks, Ticks, u64),
}

impl ServiceTime {
    /// Draws one service time.
    pub(crate) fn draw(self, random: &mut Random) -> Ticks {
        let micros = match self {
            ServiceTime::Fixed(time) => time.as_micros(),
            ServiceTime::Exponential(mean) => random.exponential(mean.as_micros()),
            ServiceTime::Bimodal(quick, slow, percent) => {
                let time = if random.below(100) < percent { slow } else { quick };
                let tenth = time.as_micros() / 10;
                time.as_micros() - tenth + random.below(2 * tenth)
            }
        };
        Ticks::from_micros(micros.max(1))
    }

    /// The mean service time.
    #[must_use]
    pub(crate) fn mean(self) -> Ticks {
        match self {
            ServiceTime::Fixed(time) | ServiceTime::Exponential(time) => time,
            ServiceTime::Bimodal(quick, slow, percent) => {
                Ticks::from_micros((quick.as_micros() * (100 - percent) + slow.as_micros() * percent) / 100)
            }
        }
    }
}

/// A time span with constant load and speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Its length.
    pub(crate) seconds: u64,
    /// Requests a second.
    pub(crate) offered: u64,
    /// The factor on every service time.
    pub(crate) slowdown: u64,
}

/// A server, its callers and the phases of the load.
#[derive(Clone, Debug)]
pub(crate) struct OverloadScenario {
    /// The phases in order.
    pub(crate) phases: Vec<Phase>,
    /// Number of requests that the server works on concurrently.
    pub(crate) workers: usize,
    /// How long a worker takes.
    pub(crate) service: ServiceTime,
    /// When a caller gives up. The server does not learn of it and keeps working.
    pub(crate) timeout: Ticks,
    /// The effect of a timeout on the limiter.
    pub(crate) timeout_report: TimeoutReport,
    /// Percentage of callers that cancel, on average after half of the mean service time.
    pub(crate) cancels: u64,
    /// How often a caller that was refused or timed out retries.
    pub(crate) retries: u32,
    /// Seed of the random numbers.
    pub(crate) seed: u64,
}

/// The effect of a timed-out request on a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeoutReport {
    /// That it was lost.
    Loss,
    /// That it was answered, after the length of the timeout.
    SlowAnswer,
}

impl OverloadScenario {
    /// A server without load, whose callers wait for two seconds and neither cancel nor retry.
    #[must_use]
    pub(crate) fn new(workers: usize, service: ServiceTime, seed: u64) -> Self {
        Self {
            phases: Vec::new(),
            workers,
            service,
            timeout: Ticks::from_secs(2),
            timeout_report: TimeoutReport::Loss,
            cancels: 0,
            retries: 0,
            seed,
        }
    }

    /// Adds a phase with a load in per cent of the server's capacity.
    #[must_use]
    pub(crate) fn then(mut self, seconds: u64, percent: u64) -> Self {
        let offered = self.capacity() * percent / 100;
        self.phases.push(Phase { seconds, offered, slowdown: 1 });
        self
    }

    /// Adds a phase in which every request takes `slowdown` times as long.
    #[must_use]
    pub(crate) fn then_slower(mut self, seconds: u64, percent: u64, slowdown: u64) -> Self {
        let offered = self.capacity() * percent / 100;
        self.phases.push(Phase { seconds, offered, slowdown });
        self
    }

    /// Requests a second that the server can answer at its usual speed.
    #[must_use]
    pub(crate) fn capacity(&self) -> u64 {
        self.workers as u64 * 1_000_000 / self.service.mean().as_micros().max(1)
    }

    /// The phase of a second; none after the end.
    #[must_use]
    pub(crate) fn phase(&self, second: u64) -> Option<Phase> {
        let mut end = 0;
        self.phases.iter().copied().find(|phase| {
            end += phase.seconds;
            second < end
        })
    }

    /// The most requests that can be answered in a second.
    #[must_use]
    pub(crate) fn optimum(&self, second: u64) -> u64 {
        self.phase(second).map_or(0, |phase| phase.offered.min(self.capacity() / phase.slowdown.max(1)))
    }
}
