//! The mode of a controller, and the operator's override of it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use tollgate::policy::Mode;
use tollgate::time::Timestamp;

/// A controller's mode and kill switch. Both may change at any time. Relaxed orderings suffice, since a
/// concurrent decision may follow either.
#[derive(Debug)]
pub struct Switch {
    mode: AtomicU8,
    /// The operator's override: twice the instant at which it ends, plus one for shadow.
    overridden: AtomicU64,
}

impl Switch {
    /// A switch in a mode.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self { mode: AtomicU8::new(code(mode)), overridden: AtomicU64::new(0) }
    }

    /// Changes the mode.
    pub fn set(&self, mode: Mode) {
        self.mode.store(code(mode), Relaxed);
    }

    /// The kill switch: off until an instant, whatever the mode.
    pub fn kill(&self, until: Timestamp) {
        self.overridden.store(until.unix_micros().saturating_mul(2) & !1, Relaxed);
    }

    /// Shadow until an instant, whatever the mode.
    pub fn shadow(&self, until: Timestamp) {
        self.overridden.store(until.unix_micros().saturating_mul(2) | 1, Relaxed);
    }

    /// Ends an override early. Returns whether there was one.
    pub fn revive(&self, now: Timestamp) -> bool {
        let had = self.active_override(now).is_some();
        self.overridden.store(0, Relaxed);
        had
    }

    /// The operator's override and when it ends, if there is one.
    #[must_use]
    pub fn active_override(&self, now: Timestamp) -> Option<(Mode, Timestamp)> {
        let overridden = self.overridden.load(Relaxed);
        let until = Timestamp::from_unix_micros(overridden / 2);
        let mode = if overridden.is_multiple_of(2) { Mode::Off } else { Mode::Shadow };
        (until > now).then_some((mode, until))
    }

    /// When the kill switch ends, if it is active.
    #[must_use]
    pub fn killed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.active_override(now).filter(|(mode, _)| *mode == Mode::Off).map(|(_, until)| until)
    }

    /// The mode at an instant, with the operator's override.
    #[must_use]
    pub fn mode(&self, now: Timestamp) -> Mode {
        if let Some((mode, _)) = self.active_override(now) {
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

    /// The kill switch ends on the tick and leaves the mode as it was.
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

    /// Shadow ends like the kill switch, but does not count as a kill.
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
