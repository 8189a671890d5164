//! Whether a controller decides: its mode, and the kill switch over it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::policy::Mode;
use crate::time::Timestamp;

/// A controller's mode and kill switch. Both may be changed at any time; relaxed orderings are enough, since a decision that is made at
/// the same instant may follow either.
#[derive(Debug)]
pub struct Switch {
    mode: AtomicU8,
    off_until: AtomicU64,
}

impl Switch {
    /// A switch in a mode.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self { mode: AtomicU8::new(code(mode)), off_until: AtomicU64::new(0) }
    }

    /// Changes the mode.
    pub fn set(&self, mode: Mode) {
        self.mode.store(code(mode), Relaxed);
    }

    /// The kill switch: off until an instant, whatever the mode. It ends by itself.
    pub fn kill(&self, until: Timestamp) {
        self.off_until.store(until.unix_micros(), Relaxed);
    }

    /// Ends the kill switch early.
    pub fn revive(&self) {
        self.off_until.store(0, Relaxed);
    }

    /// Until when the kill switch holds, if it does.
    #[must_use]
    pub fn killed_until(&self, now: Timestamp) -> Option<Timestamp> {
        let until = Timestamp::from_unix_micros(self.off_until.load(Relaxed));
        (until > now).then_some(until)
    }

    /// The mode at an instant: off while killed.
    #[must_use]
    pub fn mode(&self, now: Timestamp) -> Mode {
        if self.killed_until(now).is_some() {
            return Mode::Off;
        }
        match self.mode.load(Relaxed) {
            0 => Mode::Enforce,
            1 => Mode::Shadow,
            _ => Mode::Off,
        }
    }
}

const fn code(mode: Mode) -> u8 {
    match mode {
        Mode::Enforce => 0,
        Mode::Shadow => 1,
        Mode::Off => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kill switch holds to the tick and leaves the mode as it was.
    #[test]
    fn the_kill_switch_ends_by_itself() {
        let now = Timestamp::from_unix_seconds(100);
        let until = Timestamp::from_unix_seconds(160);
        let switch = Switch::new(Mode::Shadow);
        switch.kill(until);
        assert_eq!((switch.mode(now), switch.killed_until(now)), (Mode::Off, Some(until)));
        assert_eq!((switch.mode(until), switch.killed_until(until)), (Mode::Shadow, None));
        switch.kill(until);
        switch.revive();
        switch.set(Mode::Enforce);
        assert_eq!(switch.mode(now), Mode::Enforce);
    }
}
