//! The wall clock of a memory store. Counters use the clock of decisions, which never steps, so the wall
//! clock does not affect whether an entry is idle. Calendar and epoch windows begin and end by the wall
//! clock. Each is stored with the number of the wall clock's setting that it was counted under, and is
//! converted to the present setting when it is next read.
//!
//! When the wall clock is set, no window gets quota that it does not have:
//! - A window that has not ended by the new time goes on, with its count and its end by the wall clock. So does one that
//!   the clock was set back out of, but not beyond the end of the window after the present one.
//! - A window that the clock was set over takes its count along into the window in which the clock landed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::algorithm::fixed_window::{Align, FixedWindow, State};
use crate::time::{Timestamp, WallOffset};

/// Bits of a window's count; the other bits hold the number of a setting.
const COUNT_BITS: u32 = 53;
/// Maximum number of wall-clock settings that one store tells apart. Further ones are ignored until a
/// restart.
pub(crate) const WALL_SETTINGS_MAX: usize = 1 << (64 - COUNT_BITS);
/// Maximum number of settings that a snapshot keeps apart, so that a restart has numbers for further ones.
/// Beyond it, every window is kept as one of the present setting.
const KEPT_SETTINGS_MAX: usize = WALL_SETTINGS_MAX / 2;
/// Added to an offset to make it unsigned.
const OFFSET_BIAS: i64 = 1 << 52;

/// All settings of the wall clock since the store was created.
pub(crate) struct WallClockHistory {
    /// The present setting in one word: its number and its offset. Relaxed: it guards no other memory, and a
    /// decision during a step may use either setting.
    present: AtomicU64,
    /// All settings, by number. Locked when the wall clock is set, and when a window of an earlier setting is
    /// read.
    settings: Mutex<Vec<Setting>>,
}

/// The offset of the wall clock from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) since: Timestamp,
    pub(crate) offset: WallOffset,
}

/// The settings that a snapshot keeps, and which numbers its windows refer to them by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptSettings {
    /// By number; the last one is the present setting.
    pub(crate) settings: Vec<Setting>,
    /// How many settings the store had.
    had: usize,
}

impl KeptSettings {
    /// The words of a window as a snapshot keeps them.
    pub(crate) const fn words(&self, [first, second]: [u64; 2]) -> [u64; 2] {
        if self.settings.len() == self.had {
            [first, second]
        } else {
            [first, second & ((1 << COUNT_BITS) - 1)]
        }
    }
}

/// A setting as used by a decision.
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

impl Default for WallClockHistory {
    fn default() -> Self {
        let first = Setting { since: Timestamp::default(), offset: WallOffset::NONE };
        let present = Present { number: 0, offset: first.offset };
        Self { present: AtomicU64::new(present.packed()), settings: Mutex::new(vec![first]) }
    }
}

impl WallClockHistory {
    /// Records the offset of the wall clock from `now` on.
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

    /// The settings for a snapshot.
    pub(crate) fn kept(&self) -> KeptSettings {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let had = settings.len();
        if had <= KEPT_SETTINGS_MAX {
            return KeptSettings { settings, had };
        }
        KeptSettings { settings: settings.last().copied().into_iter().collect(), had }
    }

    /// Whether the wall clock was not set since these settings were kept.
    pub(crate) fn are_still(&self, kept: &KeptSettings) -> bool {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).len() == kept.had
    }

    /// Starts with the settings of a snapshot, in place of its own. None of them is none.
    pub(crate) fn resume(&mut self, settings: Vec<Setting>) {
        let Some(last) = settings.last() else { return };
        let present = Present { number: settings.len() as u64 - 1, offset: last.offset };
        self.present.store(present.packed(), Ordering::Relaxed);
        *self.settings.get_mut().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// The offset of the wall clock.
    #[inline]
    pub(crate) fn offset(&self) -> WallOffset {
        self.present().offset
    }

    #[inline]
    fn present(&self) -> Present {
        Present::unpacked(self.present.load(Ordering::Relaxed))
    }

    /// Packs a window's state in wall-clock time into two words: when it is idle by the clock of decisions,
    /// and its count with the number of the setting.
    #[inline]
    pub(crate) fn pack(&self, state: State) -> [u64; 2] {
        let present = self.present();
        if state == State::default() {
            return [0, 0];
        }
        [state.ends_at().off_wall(present.offset).unix_micros(), state.count() | present.number << COUNT_BITS]
    }

    /// Unpacks the state under a quota, in wall-clock time.
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

    /// The end of a window of an earlier setting by the present one; `None` if it had ended before.
    #[cold]
    fn moved(&self, quota: &FixedWindow, ends_at: Timestamp, number: u64) -> Option<Timestamp> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut later = settings.iter().skip(usize::try_from(number).unwrap_or(usize::MAX));
        // An unknown number, which cannot occur: the window goes on as it is.
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

/// The number of the setting in the second word of an entry.
pub(crate) const fn setting_of([_, second]: [u64; 2]) -> u64 {
    second >> COUNT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::Rate;
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

    /// A window that the clock was set back out of goes on, so a clock that is set to and fro opens it only
    /// once.
    #[test]
    fn a_window_is_not_left_by_a_step_back() {
        let walls = WallClockHistory::default();
        let words = walls.pack(State::new(NOON + minutes(60), 7));
        walls.follow(ahead(-2), NOON + minutes(1)); // From 12:01 to 11:59.
        assert_eq!(walls.unpack(words, &hourly()), State::new(NOON + minutes(60), 7));
        walls.follow(ahead(0), NOON + minutes(2)); // And from 12:00 to 12:02.
        assert_eq!(walls.unpack(words, &hourly()), State::new(NOON + minutes(60), 7));
    }

    /// After a step back of a year the count applies at most to the end of the next window.
    #[test]
    fn a_long_step_back_keeps_the_count_for_two_windows_at_most() {
        let walls = WallClockHistory::default();
        let words = walls.pack(State::new(NOON + minutes(60), 7));
        walls.follow(ahead(-60 * 24 * 365), NOON + minutes(1));
        let year_ago = NOON - minutes(60 * 24 * 365);
        assert_eq!(walls.unpack(words, &hourly()), State::new(year_ago + minutes(120), 7));
    }

    /// The count before a step forward applies to the window in which the clock lands.
    #[test]
    fn a_step_forward_takes_the_count_along() {
        let walls = WallClockHistory::default();
        let words = walls.pack(State::new(NOON + minutes(60), 7));
        walls.follow(ahead(60 * 24 * 365), NOON + minutes(5));
        let next_year = NOON + minutes(60 * 24 * 365);
        assert_eq!(walls.unpack(words, &hourly()), State::new(next_year + minutes(60), 7));
        assert_eq!(walls.pack(walls.unpack(words, &hourly()))[0], (NOON + minutes(60)).unix_micros());
    }

    /// A window that had ended before the step is not moved, nor is a window that begins with its first
    /// request.
    #[test]
    fn ended_and_first_hit_windows_are_not_moved() {
        let walls = WallClockHistory::default();
        let words = walls.pack(State::new(NOON, 7));
        walls.follow(ahead(600), NOON + minutes(5));
        assert_eq!(walls.unpack(words, &hourly()), State::default());
        let first_hit = FixedWindow::new(Rate::per_hour(10), Align::FirstHit).unwrap();
        let words = walls.pack(State::new((NOON + minutes(30)).on_wall(ahead(600)), 3));
        walls.follow(ahead(-600), NOON + minutes(6));
        let kept = walls.unpack(words, &first_hit);
        assert_eq!(kept, State::new((NOON + minutes(30)).on_wall(ahead(-600)), 3), "as long as before");
    }

    /// Settings beyond the maximum are ignored.
    #[test]
    fn settings_are_bounded() {
        let walls = WallClockHistory::default();
        for step in 1..=2 * i64::try_from(WALL_SETTINGS_MAX).unwrap() {
            walls.follow(WallOffset::from_micros(step), NOON);
        }
        let last = i64::try_from(WALL_SETTINGS_MAX).unwrap() - 1;
        assert_eq!(walls.offset(), WallOffset::from_micros(last));
    }
}
