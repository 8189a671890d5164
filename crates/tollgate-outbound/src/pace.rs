//! The pace of calls to a server that refuses them and does not say what its limit is. A refusal makes the pace slower
//! than the calls were, and as slow as the server took calls with the freeze that it asked for. Each success makes it a
//! little faster again, and so does the time in which no call leaves although it may.

use tollgate::{Ticks, Timestamp};

/// A refusal makes the interval between calls this much longer: 10/7.
const SLOWER: (u64, u64) = (10, 7);
/// A success makes it shorter by this part.
const FASTER: u64 = 64;
/// A longer gap between two calls is a pause: the measured pace is that of the calls after it.
const PAUSE_MIN: Ticks = Ticks::from_secs(1);
/// Fewer calls have no pace.
const CALLS_MIN: u64 = 2;
/// A shorter interval is no pace.
const INTERVAL_MIN: Ticks = Ticks::from_micros(200);
/// After so many successes an interval is a fiftieth of what it was: later ones matter little.
const STEPS_MAX: u64 = 256;
/// A longer interval is never used.
const INTERVAL_MAX: Ticks = Ticks::from_secs(60);

/// The measured and the allowed pace of calls.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the first call after the last refusal or pause left, how many left since, and when the last of them did.
    since: Option<Timestamp>,
    calls: u64,
    last_at: Timestamp,
    /// When the first call after the last freeze or pause left, and how many calls the server has taken since.
    round_from: Option<Timestamp>,
    taken: u64,
    /// The interval between calls, if the pace is limited.
    interval: Option<Ticks>,
    next_at: Timestamp,
}

impl Pace {
    /// When the next call may leave.
    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        self.interval.map(|_| self.next_at)
    }

    /// No earlier than this does the last of so many calls leave, if none leaves before `from`, and all of them and those
    /// in flight succeed.
    pub(crate) fn earliest(&self, calls: u64, in_flight: u64, from: Timestamp) -> Timestamp {
        let Some(mut interval) = self.interval else { return from };
        let mut at = self.next_at.max(from);
        for _ in 0..in_flight.min(STEPS_MAX) {
            let Some(shorter) = faster(interval) else { return at };
            interval = shorter;
        }
        for _ in 1..calls.min(STEPS_MAX) {
            at = at + interval;
            let Some(shorter) = faster(interval) else { break };
            interval = shorter;
        }
        at
    }

    pub(crate) fn send(&mut self, now: Timestamp) {
        self.end_pause(now);
        self.since.get_or_insert(now);
        self.round_from.get_or_insert(now);
        self.calls += 1;
        self.last_at = now;
        if let Some(interval) = self.interval {
            self.next_at = self.next_at.max(now) + interval;
        }
    }

    /// A pause counts like the successes that it had time for, and is no part of the measured pace.
    fn end_pause(&mut self, now: Timestamp) {
        let gap = now.since(self.last_at);
        let interval = self.interval.unwrap_or(Ticks::ZERO);
        if self.since.is_none() || gap <= PAUSE_MIN.max(interval) {
            return;
        }
        (self.since, self.calls) = (None, 0);
        (self.round_from, self.taken) = (None, 0);
        let mut unused = gap.as_micros().saturating_sub(interval.as_micros());
        while let Some(interval) = self.interval
            && unused >= interval.as_micros()
        {
            unused -= interval.as_micros();
            self.speed_up();
        }
    }

    /// The server refused a call and gave no numbers.
    pub(crate) fn slow_down(&mut self, now: Timestamp) {
        if self.interval.is_none() && self.calls < CALLS_MIN {
            return; // So few calls have no pace.
        }
        let elapsed = self.since.map_or(Ticks::ZERO, |since| now.since(since)).as_micros();
        let measured = elapsed / self.calls.max(1);
        let before = self.interval.map_or(0, Ticks::as_micros).max(measured).max(INTERVAL_MIN.as_micros());
        let slower = before.saturating_mul(SLOWER.0).div_ceil(SLOWER.1);
        self.interval = Some(Ticks::from_micros(slower).min(INTERVAL_MAX));
        (self.since, self.calls) = (None, 0);
    }

    /// The server took a call, perhaps one that left before it refused another.
    pub(crate) const fn count_taken(&mut self) {
        self.taken += 1;
    }

    /// The server took a call that left at the current pace.
    pub(crate) fn speed_up(&mut self) {
        self.interval = self.interval.and_then(faster);
    }

    /// The first call after a freeze leaves. A limit that has a window takes as many calls in a round, and asks for a
    /// freeze until the window ends: so many calls in that time are its pace, however fast they left. A freeze is no
    /// pause: calls could not leave.
    pub(crate) fn resume(&mut self, open_at: Timestamp) {
        if let (Some(interval), Some(from)) = (self.interval, self.round_from)
            && let Some(taken) = open_at.since(from).as_micros().checked_div(self.taken)
        {
            self.interval = Some(Ticks::from_micros(taken).max(interval).min(INTERVAL_MAX));
        }
        (self.round_from, self.taken) = (None, 0);
        self.last_at = self.last_at.max(open_at);
    }
}

/// The interval after a success; `None` if it is no pace any more.
fn faster(interval: Ticks) -> Option<Ticks> {
    let shorter = Ticks::from_micros(interval.as_micros() - interval.as_micros().div_ceil(FASTER));
    (shorter >= INTERVAL_MIN).then_some(shorter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// Calls that left every 70 ms leave every 100 ms after a refusal.
    #[test]
    fn a_refusal_makes_calls_slower_than_they_were() {
        let mut pace = Pace::default();
        for call in 0..10 {
            assert_eq!(pace.next_at(), None);
            pace.send(START + Ticks::from_millis(70 * call));
        }
        let refused_at = START + Ticks::from_millis(700);
        pace.slow_down(refused_at);
        pace.send(refused_at);
        assert_eq!(pace.next_at(), Some(refused_at + Ticks::from_millis(100)));
    }

    /// A call behind others does not leave before them, and the estimate never says too late.
    #[test]
    fn calls_behind_others_leave_later() {
        let mut pace = Pace::default();
        for call in 0..10 {
            pace.send(START + Ticks::from_millis(70 * call));
        }
        pace.slow_down(START + Ticks::from_millis(700));
        pace.send(START + Ticks::from_millis(700));
        let (estimates, mut left) = ([1, 2, 20].map(|calls| pace.earliest(calls, 1, START)), Vec::new());
        for _ in 0..20 {
            pace.speed_up();
            let at = pace.next_at().unwrap();
            left.push(at);
            pace.send(at);
        }
        assert_eq!(estimates[0], left[0]);
        for (estimate, actual) in estimates.into_iter().zip([left[0], left[1], left[19]]) {
            assert!(estimate <= actual, "{estimate:?} {actual:?}");
        }
    }

    /// Calls that come in waves are measured without the pauses between the waves.
    #[test]
    fn a_pause_does_not_make_calls_slower() {
        let mut pace = Pace::default();
        pace.send(START);
        let second_wave = START + Ticks::from_secs(120);
        for call in 0..10 {
            pace.send(second_wave + Ticks::from_millis(70 * call));
        }
        let refused_at = second_wave + Ticks::from_millis(700);
        pace.slow_down(refused_at);
        pace.send(refused_at);
        assert_eq!(pace.next_at(), Some(refused_at + Ticks::from_millis(100)));
    }

    /// A pause makes the pace faster, by as much as successes at that pace would have.
    #[test]
    fn calls_are_faster_after_a_pause() {
        let interval_after = |pause: Ticks| {
            let mut pace = Pace::default();
            for call in 0..10 {
                pace.send(START + Ticks::from_millis(70 * call));
            }
            pace.slow_down(START + Ticks::from_millis(700));
            pace.send(START + Ticks::from_millis(700));
            let now = START + Ticks::from_millis(700) + pause;
            pace.send(now);
            pace.next_at().map(|at| at.since(now))
        };
        assert_eq!(interval_after(Ticks::from_millis(900)), Some(Ticks::from_millis(100)));
        let shorter = interval_after(Ticks::from_secs(3)).unwrap();
        assert!(shorter < Ticks::from_millis(65), "{shorter:?}");
        assert_eq!(interval_after(Ticks::from_secs(60)), None, "the pace is over");
    }

    /// A server takes 5 calls in two seconds, refuses the others at once, and says for how long. The calls had left within
    /// a few milliseconds, and the freeze was once taken for a pause that makes calls faster: after each freeze as many
    /// calls were refused as before.
    #[test]
    fn a_window_is_found_by_its_freeze() {
        let mut pace = Pace::default();
        for call in 0..10 {
            pace.send(START + Ticks::from_millis(call));
        }
        pace.slow_down(START + Ticks::from_millis(20));
        (0..5).for_each(|_| pace.count_taken());
        let open_at = START + Ticks::from_millis(2_100);
        pace.resume(open_at);
        pace.send(open_at);
        assert_eq!(pace.next_at(), Some(open_at + Ticks::from_millis(420)));
        // A round that took none says nothing, and neither does one in which calls paused.
        pace.resume(open_at + Ticks::from_secs(60));
        pace.send(open_at + Ticks::from_secs(60));
        assert_eq!(pace.next_at(), Some(open_at + Ticks::from_secs(60) + Ticks::from_millis(420)));
    }

    /// Successes end the pace, one by one.
    #[test]
    fn successes_make_calls_faster_until_there_is_no_pace() {
        let mut pace = Pace::default();
        pace.send(START);
        pace.send(START + Ticks::from_millis(1));
        pace.slow_down(START + Ticks::from_millis(1));
        let mut successes = 0;
        while pace.next_at().is_some() {
            pace.speed_up();
            successes += 1;
            assert!(successes < 1_000);
        }
        assert!(successes > 10, "{successes}");
    }
}
