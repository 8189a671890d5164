//! `block_for`: how often a key may be denied before it is blocked for a while. The engine charges the two counters that
//! this needs in the store of the limit.

use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::sliding_log::SlidingLog;
use crate::quota::Quota;
use crate::rate::{QuotaError, Rate};
use crate::time::Ticks;

/// Highest number of denials before a block.
pub(crate) const PENALTY_AFTER_MAX: u64 = 1_000;
/// Longest block, and longest time within which denials count.
pub(crate) const PENALTY_MAX: Ticks = Ticks::from_secs(30 * 86_400);
/// Shortest block, and shortest time within which denials count.
pub(crate) const PENALTY_MIN: Ticks = Ticks::from_secs(1);
/// Default number of denials before a block.
pub(crate) const AFTER: u64 = 5;
/// Default time within which denials count.
pub(crate) const WITHIN: Ticks = Ticks::from_secs(60);

/// Blocks a key after a number of denials within a time, whatever its counter says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalty {
    after: u64,
    within: Ticks,
    lasts: Ticks,
    /// The counter of recent denials. Its capacity is the number before a block.
    strikes: Quota,
    /// The counter of the block: one unit, which is taken while the key is blocked.
    block: Quota,
}

impl Penalty {
    /// Blocks a key for `lasts` after this many denials `within` a time, which must not be longer than `lasts`.
    ///
    /// # Errors
    /// A number is out of range.
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
        // Denials before a block must expire before it ends, or the next denial would start another one.
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
