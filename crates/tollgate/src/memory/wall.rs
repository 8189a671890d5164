//! The wall clock as a memory store knows it. Counters lie on the decisions' clock, which never steps, so that an entry is idle or
//! not whatever the wall shows. Fixed windows of the calendar and of the epoch begin and end by the wall, so each is kept with the
//! number of the wall's setting that it was counted under, and is moved to the present one when it is next looked at.
//!
//! The rule when the wall is set, which gives nobody a window's quota that the window does not have:
//! - A window that has not ended by the new time goes on, with its count and its end by the wall. One that the clock was set back
//!   out of goes on, too, but never beyond the end of the window after the present one.
//! - A window that the clock was set over takes its count along into the window in which the clock landed: what was used minutes
//!   ago is not forgotten because the wall says that it was yesterday.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::algorithm::fixed_window::{Align, FixedWindow, State};
use crate::time::{Timestamp, WallOffset};

/// Bits of a window's count; the others hold the number of a setting.
const COUNT_BITS: u32 = 53;
/// Most settings of the wall that one store tells apart. Further ones are not followed until a restart.
pub(crate) const WALL_SETTINGS_MAX: usize = 1 << (64 - COUNT_BITS);
/// Added to an offset, so that it is a number without a sign.
const OFFSET_BIAS: i64 = 1 << 52;

/// Every setting of the wall clock since the store was made.
pub(crate) struct Walls {
    /// The present setting, in one word: its number and its offset. Relaxed: it guards no other memory, and a decision in the very
    /// moment of a step may be made by either setting.
    present: AtomicU64,
    /// All of them, by number. Locked when the wall is set, and when a window that was counted under another setting is looked at.
    settings: Mutex<Vec<Setting>>,
}

/// From an instant on, the wall clock was so far ahead.
#[derive(Clone, Copy, Debug)]
struct Setting {
    since: Timestamp,
    offset: WallOffset,
}

/// One setting, as a decision uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Present {
    number: u64,
    offset: WallOffset,
}

impl Present {
    const fn packed(self) -> u64 {
        self.number << COUNT_BITS | (self.offset.as_micros() + OFFSET_BIAS).cast_unsigned()
    }

    const fn unpacked(word: u64) -> Self {
        let offset = (word & ((1 << COUNT_BITS) - 1)).cast_signed() - OFFSET_BIAS;
        Self { number: word >> COUNT_BITS, offset: WallOffset::from_micros(offset) }
    }
}

impl Default for Walls {
    fn default() -> Self {
        let first = Setting { since: Timestamp::default(), offset: WallOffset::NONE };
        let present = Present { number: 0, offset: first.offset };
        Self { present: AtomicU64::new(present.packed()), settings: Mutex::new(vec![first]) }
    }
}

impl Walls {
    /// Takes note that from `now` on the wall clock is so far ahead.
    pub(crate) fn follow(&self, offset: WallOffset, now: Timestamp) {
        if self.offset() == offset {
            return;
        }
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if settings.len() >= WALL_SETTINGS_MAX {
            return;
        }
        let present = Present { number: settings.len() as u64, offset };
        settings.push(Setting { since: now, offset });
        self.present.store(present.packed(), Ordering::Relaxed);
    }

    /// How far the wall clock is ahead.
    #[inline]
    pub(crate) fn offset(&self) -> WallOffset {
        self.present().offset
    }

    #[inline]
    fn present(&self) -> Present {
        Present::unpacked(self.present.load(Ordering::Relaxed))
    }

    /// A window's state on the wall's time as two words: when it is idle on the decisions' clock, and its count with the number of
    /// the setting.
    #[inline]
    pub(crate) fn pack(&self, state: State) -> [u64; 2] {
        let present = self.present();
        if state == State::default() {
            return [0, 0];
        }
        [state.ends_at().off_wall(present.offset).unix_micros(), state.count() | present.number << COUNT_BITS]
    }

    /// The state of those words under a quota, on the wall's time.
    #[inline]
    pub(crate) fn unpack(&self, [ends_at, counted]: [u64; 2], quota: &FixedWindow) -> State {
        let (present, number) = (self.present(), counted >> COUNT_BITS);
        let (ends_at, count) = (Timestamp::from_unix_micros(ends_at), counted & ((1 << COUNT_BITS) - 1));
        if number == present.number || *quota.align() == Align::FirstHit {
            return State::new(ends_at.on_wall(present.offset), count);
        }
        self.moved(quota, ends_at, number).map_or_else(State::default, |ends_at| State::new(ends_at, count))
    }

    /// Whether these words were written under the present setting.
    #[inline]
    pub(crate) fn is_present(&self, [_, counted]: [u64; 2]) -> bool {
        counted >> COUNT_BITS == self.present().number
    }

    /// When a window that was counted under an earlier setting ends by the present one; none if it had ended before.
    #[cold]
    fn moved(&self, quota: &FixedWindow, ends_at: Timestamp, number: u64) -> Option<Timestamp> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut later = settings.iter().skip(usize::try_from(number).unwrap_or(usize::MAX));
        // A number that this store never gave, as none has: its window goes on as it is.
        let mut offset = later.next().map_or(WallOffset::NONE, |setting| setting.offset);
        let mut ends_at = ends_at.on_wall(offset);
        for setting in later {
            if ends_at <= setting.since.on_wall(offset) {
                return None;
            }
            let landed = setting.since.on_wall(setting.offset);
            ends_at = if ends_at > landed {
                ends_at.min(quota.latest_end(landed))
            } else {
                quota.window_end(landed)
            };
            offset = setting.offset;
        }
        Some(ends_at)
    }
}

/// The words of an entry without the number of the wall's setting, for a snapshot: another process has settings of its own.
pub(crate) const fn without_setting([first, second]: [u64; 2]) -> [u64; 2] {
    [first, second & ((1 << COUNT_BITS) - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Rate;
    use crate::time::Ticks;

    /// 12:00 on some day.
    const NOON: Timestamp = Timestamp::from_unix_seconds(1_699_963_200);

    fn minutes(minutes: u64) -> Ticks {
        Ticks::from_secs(60 * minutes)
    }

    fn ahead(minutes: i64) -> WallOffset {
        WallOffset::from_micros(minutes * 60_000_000)
    }

    fn hourly() -> FixedWindow {
        FixedWindow::new(Rate::per_hour(10), Align::Epoch).unwrap()
    }

    /// A window that the clock was set back out of goes on, so that a clock that is set to and fro opens it once.
    #[test]
    fn a_window_is_not_left_by_a_step_back() {
        let walls = Walls::default();
        let words = walls.pack(State::new(NOON + minutes(60), 7));
        walls.follow(ahead(-2), NOON + minutes(1)); // From 12:01 to 11:59.
        assert_eq!(walls.unpack(words, &hourly()), State::new(NOON + minutes(60), 7));
        walls.follow(ahead(0), NOON + minutes(2)); // And from 12:00 to 12:02.
        assert_eq!(walls.unpack(words, &hourly()), State::new(NOON + minutes(60), 7));
    }

    /// A step back of a year leaves the count in force to the end of the next window at most.
    #[test]
    fn a_long_step_back_keeps_the_count_for_two_windows_at_most() {
        let walls = Walls::default();
        let words = walls.pack(State::new(NOON + minutes(60), 7));
        walls.follow(ahead(-60 * 24 * 365), NOON + minutes(1));
        let year_ago = NOON - minutes(60 * 24 * 365);
        assert_eq!(walls.unpack(words, &hourly()), State::new(year_ago + minutes(120), 7));
    }

    /// What was counted before the clock was set forward counts in the window in which it lands.
    #[test]
    fn a_step_forward_takes_the_count_along() {
        let walls = Walls::default();
        let words = walls.pack(State::new(NOON + minutes(60), 7));
        walls.follow(ahead(60 * 24 * 365), NOON + minutes(5));
        let next_year = NOON + minutes(60 * 24 * 365);
        assert_eq!(walls.unpack(words, &hourly()), State::new(next_year + minutes(60), 7));
        assert_eq!(walls.pack(walls.unpack(words, &hourly()))[0], (NOON + minutes(60)).unix_micros());
    }

    /// A window that had ended before the step, and one that begins with the first hit, are not moved.
    #[test]
    fn what_had_ended_and_first_hit_windows_are_not_moved() {
        let walls = Walls::default();
        let words = walls.pack(State::new(NOON, 7));
        walls.follow(ahead(600), NOON + minutes(5));
        assert_eq!(walls.unpack(words, &hourly()), State::default());
        let first_hit = FixedWindow::new(Rate::per_hour(10), Align::FirstHit).unwrap();
        let words = walls.pack(State::new((NOON + minutes(30)).on_wall(ahead(600)), 3));
        walls.follow(ahead(-600), NOON + minutes(6));
        let kept = walls.unpack(words, &first_hit);
        assert_eq!(kept, State::new((NOON + minutes(30)).on_wall(ahead(-600)), 3), "as long as before");
    }

    /// Settings beyond what can be told apart are not followed, and change nothing.
    #[test]
    fn settings_are_bounded() {
        let walls = Walls::default();
        for step in 1..=2 * i64::try_from(WALL_SETTINGS_MAX).unwrap() {
            walls.follow(WallOffset::from_micros(step), NOON);
        }
        let last = i64::try_from(WALL_SETTINGS_MAX).unwrap() - 1;
        assert_eq!(walls.offset(), WallOffset::from_micros(last));
    }
}
