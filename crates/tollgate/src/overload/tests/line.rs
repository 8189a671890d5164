//! The line against a list that does the same slowly, and its promises one by one.

use proptest::prelude::*;

use super::T0;
use crate::overload::{Cause, Line, LineSettings, Next, Place, Pushed, Reason};
use crate::policy::Mode;
use crate::time::{Ticks, Timestamp};

const NEVER: Timestamp = Timestamp::MAX;

fn ms(millis: u64) -> Timestamp {
    T0 + Ticks::from_millis(millis)
}

fn place(pushed: Pushed<u32>) -> Place {
    match pushed {
        Pushed::Waits(place) | Pushed::Instead(place, _) => place,
        Pushed::Full(item) => panic!("no room for {item}"),
    }
}

/// A naive line: a list, searched from the start.
#[derive(Debug, Default)]
struct Naive {
    waiting: Vec<(u32, Timestamp, Timestamp)>,
    size: usize,
    ends: Timestamp,
    was_short: bool,
    standing: bool,
}

const TARGET: Ticks = Ticks::from_millis(5);
const INTERVAL: Ticks = Ticks::from_millis(100);

impl Naive {
    fn look(&mut self, now: Timestamp) {
        let waited = self.waiting.first().map_or(Ticks::ZERO, |oldest| now.since(oldest.1));
        if now >= self.ends {
            self.standing = !self.was_short && waited > TARGET;
            self.ends = now + INTERVAL;
            self.was_short = false;
        }
        self.was_short |= waited <= TARGET;
    }

    fn push(&mut self, item: u32, deadline: Timestamp, now: Timestamp) -> (bool, Option<u32>) {
        self.look(now);
        let mut out = None;
        if self.waiting.len() >= self.size {
            if !self.standing || self.waiting.is_empty() {
                return (false, None);
            }
            out = Some(self.waiting.remove(0).0);
        }
        self.waiting.push((item, now, deadline));
        (true, out)
    }

    fn expire(&mut self, now: Timestamp) -> Option<Next<u32>> {
        self.look(now);
        let patience = if self.standing { TARGET + TARGET } else { INTERVAL };
        let &(item, came, deadline) = self.waiting.first()?;
        let cause = if now >= deadline { Cause::Deadline } else { Cause::QueueDelay };
        if now < deadline && now.since(came) < patience {
            return None;
        }
        self.waiting.remove(0);
        Some(Next::Refuse(item, cause))
    }

    fn next(&mut self, now: Timestamp) -> Option<Next<u32>> {
        if let Some(refused) = self.expire(now) {
            return Some(refused);
        }
        if self.waiting.is_empty() {
            return None;
        }
        let (item, came, deadline) = if self.standing { self.waiting.pop()? } else { self.waiting.remove(0) };
        if now >= deadline {
            return Some(Next::Refuse(item, Cause::Deadline));
        }
        self.look(now);
        Some(Next::Serve(item, now.since(came)))
    }

    fn cancel(&mut self, item: u32, now: Timestamp) -> Option<u32> {
        let position = self.waiting.iter().position(|waiting| waiting.0 == item);
        let found = position.map(|position| self.waiting.remove(position).0);
        if found.is_some() {
            self.look(now);
        }
        found
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { patience: u64 },
    Next,
    Expire,
    Cancel { which: usize },
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        5 => (1u64..300).prop_map(|patience| Step::Push { patience }),
        3 => Just(Step::Next),
        1 => Just(Step::Expire),
        1 => (0usize..1_000).prop_map(|which| Step::Cancel { which }),
    ];
    // Short gaps for the most part, so that lines stand, and long ones now and then, so that they drain.
    let gap = prop_oneof![8 => 0u64..4_000, 1 => 0u64..200_000];
    proptest::collection::vec((gap, step), 1..400)
}

proptest! {
    /// Whatever is done with it, a line says what a naive list says, and a place never names another request.
    #[test]
    fn a_line_is_a_list(size in 0usize..20, steps in steps()) {
        let mut line = Line::new(LineSettings::default(), size);
        let mut naive = Naive { size, was_short: true, ..Naive::default() };
        let mut places: Vec<(u32, Place)> = Vec::new();
        let (mut now, mut item) = (T0, 0);
        for (gap, step) in steps {
            now = now + Ticks::from_micros(gap);
            match step {
                Step::Push { patience } => {
                    item += 1;
                    let deadline = now + Ticks::from_millis(patience);
                    let expected = naive.push(item, deadline, now);
                    match line.push(item, deadline, now) {
                        Pushed::Waits(place) => {
                            prop_assert_eq!(expected, (true, None));
                            places.push((item, place));
                        }
                        Pushed::Instead(place, out) => {
                            prop_assert_eq!(expected, (true, Some(out)));
                            places.push((item, place));
                        }
                        Pushed::Full(same) => prop_assert_eq!((expected, same), ((false, None), item)),
                    }
                }
                Step::Next => prop_assert_eq!(line.next(now), naive.next(now)),
                Step::Expire => prop_assert_eq!(line.expire(now), naive.expire(now)),
                Step::Cancel { which } if !places.is_empty() => {
                    let (item, place) = places[which % places.len()];
                    prop_assert_eq!(line.cancel(place, now), naive.cancel(item, now));
                }
                Step::Cancel { .. } => {}
            }
            prop_assert_eq!(line.len(), naive.waiting.len());
            prop_assert_eq!(line.is_standing(), naive.standing);
        }
    }
}

/// Without overload the first come is the first served.
#[test]
fn a_short_line_is_first_come_first_served() {
    let mut line = Line::new(LineSettings::default(), 10);
    for item in 0..3 {
        place(line.push(item, NEVER, T0));
    }
    let served: Vec<_> = std::iter::from_fn(|| line.next(ms(1))).collect();
    assert_eq!(served, [0, 1, 2].map(|item| Next::Serve(item, Ticks::from_millis(1))));
}

/// When the line does not get short for an interval, the newest is served first, and whoever waited twice the target is put out.
#[test]
fn a_standing_line_serves_the_newest_and_puts_out_the_oldest() {
    let mut line = Line::new(LineSettings::default(), 1_000);
    let mut refused = 0;
    // Three come for each one that is served, a millisecond apart.
    for tick in 0..400 {
        place(line.push(tick, NEVER, ms(u64::from(tick))));
        if tick % 3 == 0 {
            while let Some(next) = line.next(ms(u64::from(tick))) {
                match next {
                    Next::Refuse(_, cause) => {
                        assert_eq!(cause, Cause::QueueDelay);
                        refused += 1;
                    }
                    Next::Serve(item, waited) => {
                        assert!(tick < 220 || item == tick, "{item} is served at {tick}");
                        assert!(tick < 220 || waited.is_zero());
                        break;
                    }
                }
            }
        }
    }
    assert!(line.is_standing() && refused > 150, "{refused}");
    assert!(line.len() <= 10, "{}", line.len());
    assert_eq!(line.report(ms(400)).reason, Reason::Standing);
    // Nobody comes any more: the rest are put out, and the line is as it was.
    let mut left = 0;
    while let Some(Next::Refuse(..)) = line.expire(ms(420)) {
        left += 1;
    }
    assert!(left > 0 && line.is_empty() && line.next_expiry().is_none());
    place(line.push(1, NEVER, ms(600)));
    assert!(!line.is_standing());
    assert_eq!(line.report(ms(600)).reason, Reason::Drained);
}

/// Who would be answered too late is not served, and who went away does not come back.
#[test]
fn deadlines_and_cancellations_hold() {
    let mut line = Line::new(LineSettings::default(), 10);
    place(line.push(1, ms(3), T0));
    let two = place(line.push(2, NEVER, T0));
    let three = place(line.push(3, NEVER, T0));
    assert_eq!(line.next_expiry(), Some(ms(3)));
    assert_eq!(line.cancel(two, ms(1)), Some(2));
    assert_eq!(line.cancel(two, ms(1)), None);
    assert_eq!(line.next(ms(3)), Some(Next::Refuse(1, Cause::Deadline)));
    assert_eq!(line.next(ms(3)), Some(Next::Serve(3, Ticks::from_millis(3))));
    // The place is another's now.
    place(line.push(4, NEVER, ms(4)));
    assert_eq!((line.cancel(three, ms(4)), line.len()), (None, 1));
}

/// A line follows the limit: twice its places, and a tenth of what half of the requests take.
#[test]
fn a_line_follows_the_limit() {
    let mut line = Line::new(LineSettings::default(), 0);
    assert_eq!(line.push(1, NEVER, T0), Pushed::Full(1));
    line.follow(1, Ticks::from_secs(1));
    let report = line.report(T0);
    assert_eq!((report.limit, report.baseline), (Some(2), Some(Ticks::from_millis(100))));
    line.follow(1, Ticks::from_millis(1));
    assert_eq!(line.report(T0).baseline, Some(Ticks::from_millis(5)));
    place(line.push(2, NEVER, T0));
    place(line.push(3, NEVER, T0));
    assert_eq!(line.push(4, NEVER, T0), Pushed::Full(4));
}

/// In shadow nobody is put out for having waited, and it is told who would have been.
#[test]
fn a_line_in_shadow_only_counts() {
    let mut line = Line::new(LineSettings { mode: Mode::Shadow, ..LineSettings::default() }, 10);
    place(line.push(1, NEVER, T0));
    assert_eq!(line.next(ms(500)), Some(Next::Serve(1, Ticks::from_millis(500))));
    assert_eq!(line.report(ms(500)).would_refuse, 1);
    // So it is after the kill switch.
    let mut line = Line::new(LineSettings::default(), 10);
    line.switch().kill(ms(1_000));
    place(line.push(1, NEVER, T0));
    assert_eq!(line.next(ms(500)), Some(Next::Serve(1, Ticks::from_millis(500))));
    place(line.push(2, NEVER, ms(900)));
    assert_eq!(line.next(ms(1_001)), Some(Next::Refuse(2, Cause::QueueDelay)));
}
