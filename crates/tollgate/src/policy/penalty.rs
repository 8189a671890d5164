//! `block_for`: how often a key may be denied before it is refused for a while. The two companion counters that this takes are
//! charged by the engine through the store of the limit's own counters.

use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::sliding_log::SlidingLog;
use crate::quota::Quota;
use crate::rate::{QuotaError, Rate};
use crate::time::Ticks;

/// Most denials that may be waited for.
pub const PENALTY_AFTER_MAX: u64 = 1_000;
/// Longest time that a key may be refused for, and in which denials may be counted.
pub const PENALTY_MAX: Ticks = Ticks::from_secs(30 * 86_400);
/// Shortest time that a key may be refused for, and in which denials may be counted.
pub const PENALTY_MIN: Ticks = Ticks::from_secs(1);
/// Denials that are waited for by default.
pub(crate) const AFTER: u64 = 5;
/// The time in which they are counted by default.
pub(crate) const WITHIN: Ticks = Ticks::from_secs(60);

/// A key that was denied so often in a time is refused for a while, whatever its counter says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalty {
    after: u64,
    within: Ticks,
    lasts: Ticks,
    /// Denials of the last while: as many as it takes, and no more.
    strikes: Quota,
    /// One unit, which is taken for as long as the key is refused.
    block: Quota,
}

impl Penalty {
    /// Refuses a key for `lasts` after this many denials `within` a time, which is no longer than that.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn new(after: u64, within: Ticks, lasts: Ticks) -> Result<Self, QuotaError> {
        let range = |field: &'static str, value: u64, accepted: String| {
            Err(QuotaError::Range { field, value, accepted })
        };
        let seconds = |ticks: Ticks| ticks.as_micros() / 1_000_000;
        if !(1..=PENALTY_AFTER_MAX).contains(&after) {
            return range("after", after, format!("1 to {PENALTY_AFTER_MAX} denials"));
        }
        if !(PENALTY_MIN..=PENALTY_MAX).contains(&lasts) {
            return range("for", seconds(lasts), "1s to 30 days".to_owned());
        }
        // Denials from before a block must be forgotten when it ends, or the next one would begin it again.
        if !(PENALTY_MIN..=lasts).contains(&within) {
            return range("in", seconds(within), "1s up to the time of the block".to_owned());
        }
        Ok(Self {
            after,
            within,
            lasts,
            strikes: Quota::SlidingLog(SlidingLog::new(Rate::per_ticks(after, within))?),
            block: Quota::FixedWindow(FixedWindow::new(Rate::per_ticks(1, lasts), Align::FirstHit)?),
        })
    }

    /// How many denials it takes.
    #[must_use]
    pub const fn after(&self) -> u64 {
        self.after
    }

    /// The time in which they are counted.
    #[must_use]
    pub const fn within(&self) -> Ticks {
        self.within
    }

    /// How long the key is refused.
    #[must_use]
    pub const fn lasts(&self) -> Ticks {
        self.lasts
    }

    /// The quota of the counter of denials.
    pub(crate) const fn strikes(&self) -> &Quota {
        &self.strikes
    }

    /// The quota of the counter that is used up while the key is refused.
    pub(crate) const fn block(&self) -> &Quota {
        &self.block
    }
}
