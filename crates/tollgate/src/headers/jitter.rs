//! When a denied caller is told to come back. Everybody who is told the same second comes back in that second, so a little is
//! added: never less than the wait, the same for one key during one window, different between keys.

use crate::key::mix;
use crate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

use super::reading::Reading;

/// Most that is added, in seconds.
const JITTER_SECONDS_MAX: u64 = 30;
/// One part in this many of the wait is added at most.
const JITTER_PARTS: u64 = 10;
/// What is added at most where nobody knows when it will be better, in seconds: all callers were refused at the same time.
const OUTAGE_JITTER_SECONDS: u64 = 4;

/// How long one caller is told the same second while there is no capacity.
const OVERLOAD_WINDOW: Ticks = Ticks::from_secs(5);

/// When to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retry {
    /// How long the refusing limits need, exactly.
    pub(super) wait: Ticks,
    /// The value of `Retry-After`: at least the wait, at least one.
    pub(super) seconds: u64,
    /// The same in milliseconds, for dialects that have them: closer to the wait, but never earlier.
    pub(super) millis: u64,
}

impl Retry {
    /// When to come back after an operator's block. It is about one caller, so there is no crowd to spread.
    pub(super) fn at_its_end(wait: Ticks) -> Self {
        Self { wait, seconds: wait.ceil_seconds().max(1), millis: wait.ceil_millis().max(1) }
    }

    /// When to come back where there was no capacity: in 1 to 5 s, and up to 4 s later the more are refused, in thousandths. Nobody knows
    /// when it will be better, so there is no wait to be exact about.
    pub(super) fn after_overload(identity: u64, pressure: u64, now: Timestamp) -> Self {
        let later = |second: u64| {
            let least = second + OUTAGE_JITTER_SECONDS * second * pressure.min(1_000) / 1_000;
            least + spread(identity, window(now, OVERLOAD_WINDOW), OUTAGE_JITTER_SECONDS * second)
        };
        Self { wait: Ticks::from_secs(1), seconds: later(1), millis: later(1_000) }
    }

    /// When to come back after the denial of a limit.
    pub(super) fn of(reading: &Reading<'_>, now: Timestamp) -> Option<Self> {
        let wait = reading.wait()?;
        let crowd = Crowd { key_hash: reading.status.key_hash, window: window(now, reading.period()) };
        let later = |wait: u64, second: u64| match reading.is_known() {
            true => crowd.later(wait, second),
            false => wait + crowd.spread(OUTAGE_JITTER_SECONDS * second),
        };
        Some(Self {
            wait,
            seconds: later(wait.ceil_seconds().max(1), 1),
            millis: later(wait.ceil_millis().max(1), 1_000),
        })
    }
}

/// One of all who are told to come back.
#[derive(Clone, Copy)]
struct Crowd {
    key_hash: u64,
    window: u64,
}

impl Crowd {
    /// A wait with what is added to it, where a second is so many.
    #[inline]
    fn later(self, wait: u64, second: u64) -> u64 {
        wait + self.spread(wait.div_ceil(JITTER_PARTS).clamp(1, JITTER_SECONDS_MAX * second))
    }

    #[inline]
    fn spread(self, width: u64) -> u64 {
        spread(self.key_hash, self.window, width)
    }
}

/// The number of the window that an instant lies in. It is counted from the epoch, not from where the quota's window ends:
/// that end would be computed from two clocks, and would flicker.
#[inline]
fn window(now: Timestamp, period: Ticks) -> u64 {
    now.unix_micros() / period.as_micros().max(TICKS_PER_SECOND)
}

/// A number from 0 to `width`, all alike, that depends on the key and the window only. It grows with the width: as a wait
/// gets shorter so does what is added to it, and the instant that a caller was told hardly moves.
#[inline]
fn spread(key_hash: u64, window: u64, width: u64) -> u64 {
    let mixed = mix(key_hash ^ mix(window));
    let scaled = (u128::from(mixed) * (u128::from(width) + 1)) >> 64;
    u64::try_from(scaled).unwrap_or(width)
}
