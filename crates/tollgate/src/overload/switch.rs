//! Whether a controller decides: its mode, and the kill switch over it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::policy::Mode;
use crate::time::Timestamp;

/// A controller's mode and kill switch. Both may be changed at any time; relaxed orderings are enough, since a decision that is made at
/// the same instant may follow either.
#[derive(Debug)]
pub struct Switch {
    mode: AtomicU8,
    /// What an operator says over the mode, and until when: twice the instant, and one more if it is shadow.
    ruled: AtomicU64,
}

impl Switch {
    /// A switch in a mode.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self { mode: AtomicU8::new(code(mode)), ruled: AtomicU64::new(0) }
    }

    /// Changes the mode.
    pub fn set(&self, mode: Mode) {
        self.mode.store(code(mode), Relaxed);
    }

    /// The kill switch: off until an instant, whatever the mode. It ends by itself.
    pub fn kill(&self, until: Timestamp) {
        self.ruled.store(until.unix_micros().saturating_mul(2) & !1, Relaxed);
    }

    /// In shadow until an instant, whatever the mode. It ends by itself.
    pub fn shadow(&self, until: Timestamp) {
        self.ruled.store(until.unix_micros().saturating_mul(2) | 1, Relaxed);
    }

    /// Ends either early, and says whether there was one.
    pub fn revive(&self, now: Timestamp) -> bool {
        let had = self.ruled(now).is_some();
        self.ruled.store(0, Relaxed);
        had
    }

    /// What an operator says over the mode, and until when, if that is still to come.
    #[must_use]
    pub fn ruled(&self, now: Timestamp) -> Option<(Mode, Timestamp)> {
        let ruled = self.ruled.load(Relaxed);
        let until = Timestamp::from_unix_micros(ruled / 2);
        let mode = if ruled.is_multiple_of(2) { Mode::Off } else { Mode::Shadow };
        (until > now).then_some((mode, until))
    }

    /// Until when the kill switch holds, if it does.
    #[must_use]
    pub fn killed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.ruled(now).filter(|(mode, _)| *mode == Mode::Off).map(|(_, until)| until)
    }

    /// The mode at an instant: off while killed, and in shadow while an operator says so.
    #[must_use]
    pub fn mode(&self, now: Timestamp) -> Mode {
        if let Some((mode, _)) = self.ruled(now) {
            return mode;
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
        assert!(switch.revive(now) && !switch.revive(now));
        switch.set(Mode::Enforce);
        assert_eq!(switch.mode(now), Mode::Enforce);
    }

    /// Shadow holds and ends like the kill switch, and is none.
    #[test]
    fn shadow_ends_by_itself() {
        let now = Timestamp::from_unix_seconds(100);
        let until = Timestamp::from_unix_seconds(160);
        let switch = Switch::new(Mode::Enforce);
        switch.shadow(until);
        assert_eq!((switch.mode(now), switch.killed_until(now)), (Mode::Shadow, None));
        assert_eq!(switch.mode(until), Mode::Enforce);
        switch.kill(until);
        assert_eq!(switch.mode(now), Mode::Off, "the last word counts");
    }
}
