//! The limits that all contenders are given, so that they decide the same question.

use std::time::Duration;

/// So many units in a period, and so many at once.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Units in a period.
    pub units: u32,
    /// The period, in seconds.
    pub seconds: u32,
    /// Units at once.
    pub burst: u32,
}

/// The quota that an API grants each of its users. With a million users no limit of theirs is reached here: nearly all are admitted.
/// A single hot key reaches it at once: nearly all are denied.
pub const USER: Quota = Quota { units: 100, seconds: 1, burst: 200 };
/// Wide enough that even one key hammered from all cores is always admitted, so each decision writes.
pub const WIDE: Quota = Quota { units: 1_000_000, seconds: 1, burst: 4_000_000_000 };
/// Slow to refill, so that a check of whether a contender limits cannot be spoilt by a slow machine.
pub const SLOW: Quota = Quota { units: 1, seconds: 60, burst: 200 };
/// Two requests, then nothing: shows whether a contender remembers a key. (With one, throttlecrab 0.4.40 forgets at once.)
pub const TWICE: Quota = Quota { units: 1, seconds: 3_600, burst: 2 };

impl Quota {
    /// The time in which one unit comes back.
    #[must_use]
    pub fn interval(self) -> Duration {
        Duration::from_secs(self.seconds.into()) / self.units
    }

    /// For contenders that count in windows: the window in which `burst` units come back.
    #[must_use]
    pub fn window(self) -> Duration {
        Duration::from_secs(u64::from(self.burst) * u64::from(self.seconds) / u64::from(self.units))
    }
}
