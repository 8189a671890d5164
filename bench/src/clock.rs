//! The bench's clocks: the stopwatch, and a cached clock as cheap as a clock can be. Nothing else here reads the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often the cached clock is brought up to date.
const BEAT: Duration = Duration::from_millis(1);

/// Starts a stopwatch.
#[must_use]
pub fn start() -> Instant {
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures the real time")]
    Instant::now()
}

/// Nanoseconds since it was made, to the millisecond. Reading it is one load. Clones show the same time, so that one beat
/// serves all contenders and disturbs each of them alike.
#[derive(Clone, Debug)]
pub struct CachedClock {
    shared: Arc<Shared>,
}

/// Alone on its cache line: the beat must not slow down whoever reads a neighbour.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shared {
    nanos: AtomicU64,
}

impl CachedClock {
    /// A clock that a thread brings up to date each millisecond, until the last clone is gone.
    #[must_use]
    pub fn beating() -> Self {
        let clock = Self::stopped();
        let shared = Arc::downgrade(&clock.shared);
        std::thread::spawn(move || keep_time(&shared));
        clock
    }

    /// A clock that stands still, so that nothing but decisions is counted when instructions are.
    #[must_use]
    pub fn stopped() -> Self {
        Self { shared: Arc::new(Shared::default()) }
    }

    /// The time.
    #[must_use]
    #[inline]
    pub fn nanos(&self) -> u64 {
        self.shared.nanos.load(Ordering::Relaxed) // A number alone: it publishes nothing else.
    }
}

fn keep_time(clock: &Weak<Shared>) {
    let started = start();
    while let Some(shared) = clock.upgrade() {
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shared.nanos.store(nanos, Ordering::Relaxed);
        drop(shared);
        #[allow(clippy::disallowed_methods, reason = "the beat of the clock itself")]
        std::thread::sleep(BEAT);
    }
}
