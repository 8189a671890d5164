//! One measurement: a contender, a sequence of requests, so many threads, a bounded time.

use std::sync::Barrier;
use std::time::Duration;

use crate::clock;
use crate::contender::Contender;
use crate::workload::Sequence;

/// How long a measurement takes.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Until caches and predictors know the contender again.
    pub warm_up: Duration,
    /// The time that counts.
    pub measured: Duration,
}

impl Timing {
    /// For figures to publish.
    pub const FULL: Timing =
        Timing { warm_up: Duration::from_millis(150), measured: Duration::from_millis(500) };
    /// To see that everything works.
    pub const QUICK: Timing =
        Timing { warm_up: Duration::from_millis(30), measured: Duration::from_millis(80) };
}

/// The result of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Decisions a second, all threads together.
    pub per_second: f64,
    /// Which share of them was an admission, 0 to 1.
    pub admitted: f64,
}

/// The result of a piece of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Decisions made.
    pub decisions: usize,
    /// Those that were admissions.
    pub admitted: usize,
}

/// Measures a contender once.
#[must_use]
pub fn sample(contender: &dyn Contender, sequence: &Sequence, threads: usize, timing: Timing) -> Sample {
    let chunk = contender.chunk();
    timed(threads, timing, |thread| {
        let mut position = sequence.start(thread, threads);
        move || {
            let (requests, next) = sequence.chunk(position, chunk);
            position = next;
            let admitted =
                if threads == 1 { contender.decide_alone(requests) } else { contender.decide(requests) };
            Step { decisions: requests.keys.len(), admitted }
        }
    })
}

/// Repeats a piece of work on each of several threads for a bounded time. `work` makes the piece for a thread.
#[must_use]
pub fn timed<W: FnMut() -> Step>(threads: usize, timing: Timing, work: impl Fn(usize) -> W + Sync) -> Sample {
    let barrier = Barrier::new(threads);
    let counts: Vec<(Step, f64)> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let (work, barrier) = (&work, &barrier);
                scope.spawn(move || {
                    let mut piece = work(thread);
                    repeat(&mut piece, timing.warm_up);
                    barrier.wait(); // All threads count the same stretch of time.
                    repeat(&mut piece, timing.measured)
                })
            })
            .collect();
        // A contender that panics must end the run, not leave a gap in the table.
        let joined = started.into_iter().map(|thread| thread.join());
        joined.map(|count| count.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let decisions: usize = counts.iter().map(|(step, _)| step.decisions).sum();
    let admitted: usize = counts.iter().map(|(step, _)| step.admitted).sum();
    Sample {
        per_second: counts.iter().map(|(step, seconds)| step.decisions as f64 / seconds).sum(),
        admitted: admitted as f64 / decisions.max(1) as f64,
    }
}

fn repeat(piece: &mut impl FnMut() -> Step, time: Duration) -> (Step, f64) {
    let started = clock::start();
    let mut sum = Step::default();
    loop {
        let step = piece();
        sum.decisions += step.decisions;
        sum.admitted += step.admitted;
        let elapsed = started.elapsed();
        if elapsed >= time {
            return (sum, elapsed.as_secs_f64());
        }
    }
}
