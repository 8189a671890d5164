//! Retry advice with jitter. All callers with the same advice come back in the same second, so a little is added: never
//! less than the wait, the same for one key during one window, different between keys.

use crate::key::mix;
use crate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

use super::reading::LimitReading;

/// Maximum jitter, in seconds.
const JITTER_SECONDS_MAX: u64 = 30;
/// Jitter is at most one part in this many of the wait.
const JITTER_PARTS: u64 = 10;
/// Maximum jitter where the end of the outage is unknown, in seconds: all callers were refused at the same time.
const OUTAGE_JITTER_SECONDS: u64 = 4;

/// How long one caller gets the same second while there is no capacity.
const OVERLOAD_WINDOW: Ticks = Ticks::from_secs(5);

/// When to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retry {
    /// The exact wait of the limits that refused.
    pub(super) wait: Ticks,
    /// The value of `Retry-After`: at least the wait, at least one.
    pub(super) seconds: u64,
    /// The same in milliseconds, for dialects that have them: closer to the wait, but never earlier.
    pub(super) millis: u64,
}

impl Retry {
    /// The retry after an operator's block. A block concerns one caller, so there are no other callers to spread.
    pub(super) fn at_its_end(wait: Ticks) -> Self {
        Self { wait, seconds: wait.ceil_seconds().max(1), millis: wait.ceil_millis().max(1) }
    }

    /// The retry when there was no capacity: after 1 to 5 s, and up to 4 s later the more requests are refused
    /// (`pressure`, in thousandths). The end of an overload is unknown, so there is no exact wait.
    pub(super) fn after_overload(identity: u64, pressure: u64, now: Timestamp) -> Self {
        let later = |second: u64| {
            let least = second + OUTAGE_JITTER_SECONDS * second * pressure.min(1_000) / 1_000;
            least + jitter(identity, window(now, OVERLOAD_WINDOW), OUTAGE_JITTER_SECONDS * second)
        };
        Self { wait: Ticks::from_secs(1), seconds: later(1), millis: later(1_000) }
    }

    /// The retry after the denial of a limit.
    pub(super) fn of(reading: &LimitReading<'_>, now: Timestamp) -> Option<Self> {
        let wait = reading.wait()?;
        let denied =
            DeniedCaller { key_hash: reading.status.key_hash, window: window(now, reading.period()) };
        let later = |wait: u64, second: u64| match reading.is_known() {
            true => denied.later(wait, second),
            false => wait + denied.jitter(OUTAGE_JITTER_SECONDS * second),
        };
        Some(Self {
            wait,
            seconds: later(wait.ceil_seconds().max(1), 1),
            millis: later(wait.ceil_millis().max(1), 1_000),
        })
    }
}

/// One of all the callers that are denied in a window.
#[derive(Clone, Copy)]
struct DeniedCaller {
    key_hash: u64,
    window: u64,
}

impl DeniedCaller {
    /// A wait with its jitter, in a unit of which `second` make one second.
    #[inline]
    fn later(self, wait: u64, second: u64) -> u64 {
        wait + self.jitter(wait.div_ceil(JITTER_PARTS).clamp(1, JITTER_SECONDS_MAX * second))
    }

    #[inline]
    fn jitter(self, width: u64) -> u64 {
        jitter(self.key_hash, self.window, width)
    }
}

/// The number of the window that contains an instant. It is counted from the epoch, not from the end of the quota's
/// window: that end would be computed from two clocks, and would flicker.
#[inline]
fn window(now: Timestamp, period: Ticks) -> u64 {
    now.unix_micros() / period.as_micros().max(TICKS_PER_SECOND)
}

/// A uniform number from 0 to `width` that depends only on the key and the window. It grows with the width: as a wait
/// gets shorter so does its jitter, and the instant that a caller computes from the advice hardly moves.
#[inline]
fn jitter(key_hash: u64, window: u64, width: u64) -> u64 {
    let mixed = mix(key_hash ^ mix(window));
    let scaled = (u128::from(mixed) * (u128::from(width) + 1)) >> 64;
    u64::try_from(scaled).unwrap_or(width)
}
