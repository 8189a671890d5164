//! The only reader of the system's clocks. Everywhere else time is a value.
//!
//! A clock is anchored to the wall clock once, when it is created, and then follows the monotonic clock, so it never
//! steps. [`Clock::wall_offset`] returns how far the wall clock was set since, for calendar windows and absolute times.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::time::{Ticks, Timestamp, WallOffset};

/// How often a coarse clock is refreshed.
const COARSE_TICK: Duration = Duration::from_millis(1);
/// How often the wall clock is read again.
const WALL_READ_EVERY: Ticks = Ticks::from_secs(1);
/// A larger difference means that the wall clock was set. A smaller one is the time between two readings.
const WALL_STEP_MIN: Ticks = Ticks::from_millis(100);
/// A slower reading is discarded: the thread was paused between the two clocks.
const WALL_READING_MAX: Ticks = Ticks::from_millis(20);

/// The source of `now`. No clock exceeds [`Timestamp::LAST`].
///
/// A precise clock reads the system clock for each decision (about 25 ns, and it keeps the processor from overlapping
/// memory accesses). A coarse clock reads a number that one thread of the process refreshes each millisecond; decisions
/// are then made for an instant up to a few milliseconds in the past. A manual clock stands still until a test moves
/// it.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Checked first, since users of a coarse clock count nanoseconds.
    coarse: Option<Arc<Ticker>>,
    fine: Fine,
    wall: Arc<Wall>,
}

#[derive(Clone, Debug)]
enum Fine {
    Precise(Anchor),
    Manual(ManualClock),
}

/// The wall clock at creation, as its difference to the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    ahead: u64,
}

/// The wall clock, relative to the clock of decisions. Clones of a clock share it.
#[derive(Debug, Default)]
struct Wall {
    /// Relaxed throughout: the numbers are independent and guard no other memory.
    offset: AtomicI64,
    /// When to read the wall clock next, by the clock of decisions.
    next_reading: AtomicU64,
}

impl Wall {
    fn offset(&self) -> WallOffset {
        WallOffset::from_micros(self.offset.load(Ordering::Relaxed))
    }

    /// Reads the wall clock, at most once a second.
    fn read_when_due(&self, anchor: Anchor, now: Timestamp) {
        if now.unix_micros() < self.next_reading.load(Ordering::Relaxed) {
            return;
        }
        self.next_reading.store((now + WALL_READ_EVERY).unix_micros(), Ordering::Relaxed);
        let before = anchor.now();
        let wall = wall_now();
        if anchor.now().since(before) > WALL_READING_MAX {
            return;
        }
        let found = WallOffset::between(before, wall).as_micros();
        if found.abs_diff(self.offset.load(Ordering::Relaxed)) > WALL_STEP_MIN.as_micros() {
            self.offset.store(found, Ordering::Relaxed);
        }
    }
}

/// The wall clock.
#[allow(clippy::disallowed_methods, reason = "this is the edge")]
fn wall_now() -> Timestamp {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_micros(u64::try_from(wall.as_micros()).unwrap_or(u64::MAX)).decidable()
}

/// The shared time of the coarse clocks.
#[derive(Debug)]
struct Ticker {
    anchor: Anchor,
    now: AtomicU64,
    wall: Arc<Wall>,
}

/// A clock for tests: a test moves it, which wakes the sleepers that are due.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Gate, ManualClock};
/// let time = ManualClock::new();
/// let gate = Gate::builder("10/s burst 1".parse()?).clock(time.clock()).build();
/// assert!(gate.check().is_allowed());
/// assert!(!gate.check().is_allowed());
/// time.advance(Duration::from_millis(100));
/// assert!(gate.check().is_allowed());
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Manual>);

#[derive(Debug)]
struct Manual {
    now: AtomicU64,
    sleepers: Mutex<Vec<(Timestamp, Waker)>>,
    wall: Arc<Wall>,
}

impl Default for Manual {
    fn default() -> Self {
        // A day in 2023, so that windows before it exist.
        let now = AtomicU64::new(1_700_000_000_000_000);
        Self { now, sleepers: Mutex::default(), wall: Arc::default() }
    }
}

impl Anchor {
    fn new() -> Self {
        let wall = wall_now();
        // It wraps if the wall clock is less than the system's uptime, and wraps back when it is added.
        Self { ahead: wall.unix_micros().wrapping_sub(monotonic_micros()) }
    }

    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_micros(monotonic_micros().wrapping_add(self.ahead)).decidable()
    }
}

/// The monotonic clock in microseconds from some instant before the process. Read directly, since `Instant`
/// only yields differences, which cost more.
#[cfg(unix)]
#[inline]
fn monotonic_micros() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is ever negative, and the seconds do not overflow in the lifetime of a machine.
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000).wrapping_add(time.tv_nsec.cast_unsigned() / 1_000)
}

/// The monotonic clock of the standard library, in microseconds from the first call.
#[cfg(not(unix))]
#[allow(clippy::disallowed_methods, reason = "this is the edge")]
fn monotonic_micros() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

impl Clock {
    /// A clock that reads the system's clock each time.
    #[must_use]
    pub fn precise() -> Self {
        Self { coarse: None, fine: Fine::Precise(Anchor::new()), wall: Arc::default() }
    }

    /// A precise clock that continues the decisions' clock of an earlier process, whose wall clock was this far ahead
    /// of it. The counters of a [`Snapshot`](crate::Snapshot) keep that clock;
    /// [`Snapshot::wall`](crate::Snapshot::wall) reads the offset.
    ///
    /// ```
    /// use tollgate::time::WallOffset;
    /// use tollgate::Clock;
    /// let hour = WallOffset::from_micros(3_600_000_000);
    /// let (wall, resumed) = (Clock::precise(), Clock::resumed(hour));
    /// let behind = wall.now().since(resumed.now()).ceil_seconds();
    /// assert!((3_599..=3_600).contains(&behind));
    /// assert_eq!(resumed.wall_offset(resumed.now()), hour);
    /// ```
    #[must_use]
    pub fn resumed(wall: WallOffset) -> Self {
        let Anchor { ahead } = Anchor::new();
        let anchor = Anchor { ahead: ahead.wrapping_add_signed(-wall.as_micros()) };
        let following = Wall { offset: AtomicI64::new(wall.as_micros()), ..Wall::default() };
        Self { coarse: None, fine: Fine::Precise(anchor), wall: Arc::new(following) }
    }

    /// A clock that one thread of the process refreshes each millisecond. The thread is started with the first coarse
    /// clock and ends with the last.
    #[must_use]
    pub fn coarse() -> Self {
        static RUNNING: Mutex<Weak<Ticker>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ticker) = running.upgrade() {
            let (fine, wall) = (Fine::Precise(ticker.anchor), Arc::clone(&ticker.wall));
            return Self { coarse: Some(ticker), fine, wall };
        }
        let anchor = Anchor::new();
        let wall = Arc::<Wall>::default();
        let now = AtomicU64::new(anchor.now().unix_micros());
        let ticker = Arc::new(Ticker { anchor, now, wall: Arc::clone(&wall) });
        let watched = Arc::downgrade(&ticker);
        let started = std::thread::Builder::new().name("tollgate-clock".to_owned()).spawn(move || {
            while let Some(ticker) = watched.upgrade() {
                // Relaxed: the number guards no other memory.
                ticker.now.store(ticker.anchor.now().unix_micros(), Ordering::Relaxed);
                drop(ticker);
                std::thread::park_timeout(COARSE_TICK);
            }
        });
        if started.is_err() {
            return Self { coarse: None, fine: Fine::Precise(anchor), wall }; // Without a thread: slower, but correct.
        }
        *running = Arc::downgrade(&ticker);
        Self { coarse: Some(ticker), fine: Fine::Precise(anchor), wall }
    }

    /// The current instant.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Timestamp {
        if let Some(ticker) = &self.coarse {
            return Timestamp::from_valid_micros(ticker.now.load(Ordering::Relaxed));
        }
        match &self.fine {
            Fine::Precise(anchor) => anchor.now(),
            Fine::Manual(clock) => clock.now(),
        }
    }

    /// How far the wall clock is ahead of this clock. Reads the wall clock at most once a second; `now` is
    /// the time of this clock.
    #[must_use]
    pub fn wall_offset(&self, now: Timestamp) -> WallOffset {
        if let Fine::Precise(anchor) = &self.fine {
            self.wall.read_when_due(*anchor, now);
        }
        self.wall.offset()
    }

    /// The wall clock at the instant `now` of this clock, for absolute times that are shown elsewhere.
    #[must_use]
    pub fn on_wall(&self, now: Timestamp) -> Timestamp {
        now.on_wall(self.wall_offset(now))
    }

    /// A future that completes at `at`, on any runtime. A manual clock completes it when it is moved there.
    pub fn sleep_until(&self, at: Timestamp) -> Sleep {
        match &self.fine {
            Fine::Manual(clock) => Sleep(Sleeping::Manual(clock.clone(), at)),
            Fine::Precise(_) => {
                let wait = at.since(self.now());
                Sleep(Sleeping::Timer(Box::pin(futures_timer::Delay::new(wait.into()))))
            }
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::precise()
    }
}

impl ManualClock {
    /// A clock at some instant of 2023.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock at `start`.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        let clock = Self::default();
        clock.0.now.store(start.unix_micros(), Ordering::Relaxed);
        clock
    }

    /// The clock for a gate or an engine.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock { coarse: None, fine: Fine::Manual(self.clone()), wall: Arc::clone(&self.0.wall) }
    }

    /// The current instant.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_unix_micros(self.0.now.load(Ordering::SeqCst)).decidable()
    }

    /// Sets the wall clock, as NTP or an operator does: the decisions' clock, which is this one, goes on as before.
    ///
    /// ```
    /// use tollgate::ManualClock;
    /// use tollgate::time::WallOffset;
    /// let time = ManualClock::new();
    /// time.set_wall(WallOffset::from_micros(3_600_000_000));
    /// assert_eq!(time.clock().on_wall(time.now()).unix_micros(), time.now().unix_micros() + 3_600_000_000);
    /// ```
    pub fn set_wall(&self, offset: WallOffset) {
        self.0.wall.offset.store(offset.as_micros(), Ordering::Relaxed);
    }

    /// The earliest instant that a sleeper waits for.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let sleepers = self.0.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers.iter().map(|(at, _)| *at).min()
    }

    /// Moves the clock forward and wakes the sleepers that are due.
    pub fn advance(&self, by: Duration) {
        let by = Ticks::ceil_from(by).as_micros();
        self.0.now.fetch_add(by, Ordering::SeqCst);
        let now = self.now();
        let mut sleepers = self.0.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        let (due, later) = sleepers.drain(..).partition(|(at, _)| *at <= now);
        *sleepers = later;
        drop(sleepers);
        let due: Vec<(Timestamp, Waker)> = due;
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// A future that completes at an instant of a clock.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep(Sleeping);

#[derive(Debug)]
enum Sleeping {
    Timer(Pin<Box<futures_timer::Delay>>),
    Manual(ManualClock, Timestamp),
}

impl Sleep {
    /// Ready once the instant is reached.
    pub(crate) fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(self).poll(context)
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Sleeping::Timer(delay) => delay.as_mut().poll(context),
            Sleeping::Manual(clock, at) => {
                let mut sleepers = clock.0.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
                if clock.now() >= *at {
                    return Poll::Ready(());
                }
                sleepers.push((*at, context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the clock is compared with the one that it stands for")]
mod tests {
    use super::*;

    fn wall() -> Timestamp {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_unix_micros(u64::try_from(wall.as_micros()).unwrap_or(u64::MAX))
    }

    /// A precise clock starts at the wall clock's time and never steps back.
    #[test]
    fn a_precise_clock_starts_at_the_wall_and_goes_on() {
        let before = wall();
        let clock = Clock::precise();
        let mut last = clock.now();
        assert!(last >= before, "{last:?} is earlier than {before:?}");
        // An hour is longer than any test is paused.
        assert!(last.since(before) < Ticks::from_secs(3_600), "{last:?} is not the time of {before:?}");
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last, "{now:?} is earlier than {last:?}");
            last = now;
        }
    }

    /// It runs as fast as the system's clock. On other systems the standard library uses another clock.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_precise_clock_keeps_the_systems_pace() {
        let (clock, outer) = (Clock::precise(), std::time::Instant::now());
        let start = clock.now();
        let inner = std::time::Instant::now();
        while inner.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        // Read in this order, it lies between the two, except for the microsecond truncated at each end.
        let least = inner.elapsed();
        let passed = Duration::from(clock.now().since(start));
        let most = outer.elapsed();
        let slack = Duration::from_micros(2);
        assert!(passed + slack >= least && passed <= most + slack, "{least:?} {passed:?} {most:?}");
    }
}
