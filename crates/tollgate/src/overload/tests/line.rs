//! The line against a list that does the same slowly, and its promises one by one.

use proptest::prelude::*;

use super::T0;
use crate::overload::{Cause, Line, LineSettings, Next, Place, Priority, Pushed, Reason, Stays};
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
    waiting: Vec<(u32, Timestamp, Timestamp, Priority)>,
    size: usize,
    /// Of each priority: when its interval ends, whether it was short in it, and whether it stands.
    paces: [(Timestamp, bool, bool); 4],
    is_plain: bool,
}

const TARGET: Ticks = Ticks::from_millis(5);
const INTERVAL: Ticks = Ticks::from_millis(100);

impl Naive {
    fn oldest(&self, row: Priority) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.3 == row)
    }

    fn look(&mut self, now: Timestamp) {
        for row in Priority::ALL {
            let waited = self.oldest(row).map_or(Ticks::ZERO, |oldest| now.since(self.waiting[oldest].1));
            let (ends, was_short, standing) = &mut self.paces[row as usize];
            if now >= *ends {
                *standing = !*was_short && waited > TARGET;
                (*ends, *was_short) = (now + INTERVAL, false);
            }
            *was_short |= waited <= TARGET;
        }
    }

    fn stands(&self, row: Priority) -> bool {
        self.paces[row as usize].2
    }

    fn push(&mut self, item: u32, row: Priority, deadline: Timestamp, now: Timestamp) -> (bool, Option<u32>) {
        self.look(now);
        let mut out = None;
        if self.waiting.len() >= self.size {
            let Some(least) = self.waiting.iter().map(|waiting| waiting.3).min() else {
                return (false, None);
            };
            let newest = self.waiting.iter().rposition(|waiting| waiting.3 == least);
            let goes = match self.stands(least) {
                _ if self.is_plain || least > row => None,
                true => self.oldest(least),
                false if least < row => newest,
                false => None,
            };
            let Some(goes) = goes else { return (false, None) };
            out = Some(self.waiting.remove(goes).0);
        }
        self.waiting.push((item, now, deadline, row));
        (true, out)
    }

    fn expire(&mut self, now: Timestamp) -> Option<Next<u32>> {
        self.look(now);
        for row in Priority::ALL {
            let patience = if self.stands(row) { TARGET + TARGET } else { INTERVAL };
            let Some(oldest) = self.oldest(row) else { continue };
            let (item, came, deadline, _) = self.waiting[oldest];
            let cause = if now >= deadline { Cause::Deadline } else { Cause::QueueDelay };
            if now >= deadline || (now.since(came) >= patience && !self.is_plain) {
                self.waiting.remove(oldest);
                return Some(Next::Refuse(item, cause));
            }
        }
        None
    }

    fn next(&mut self, now: Timestamp) -> Option<Next<u32>> {
        if let Some(refused) = self.expire(now) {
            return Some(refused);
        }
        let most = self.waiting.iter().map(|waiting| waiting.3).max()?;
        let newest = self.waiting.iter().rposition(|waiting| waiting.3 == most);
        let turn = match (self.is_plain, self.stands(most)) {
            (true, _) => 0,
            (false, true) => newest?,
            (false, false) => self.oldest(most)?,
        };
        let (item, came, deadline, _) = self.waiting.remove(turn);
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
    Push { row: usize, patience: u64 },
    Next,
    Expire,
    Cancel { which: usize },
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        5 => (0usize..4, 1u64..300).prop_map(|(row, patience)| Step::Push { row, patience }),
        3 => Just(Step::Next),
        1 => Just(Step::Expire),
        1 => (0usize..1_000).prop_map(|which| Step::Cancel { which }),
    ];
    // Short gaps for the most part, so that lines stand, and long ones now and then, so that they drain.
    let gap = prop_oneof![8 => 0u64..4_000, 1 => 0u64..200_000];
    proptest::collection::vec((gap, step), 1..400)
}

proptest! {
    /// Whatever is done with it, a line says what a naive list says, and a place never names another request; so does one that does not
    /// decide, which is a plain queue.
    #[test]
    fn a_line_is_a_list(size in 0usize..20, is_plain: bool, steps in steps()) {
        let mode = if is_plain { Mode::Shadow } else { Mode::Enforce };
        let mut line = Line::new(LineSettings { mode, ..LineSettings::default() }, size);
        let paces = [(Timestamp::default(), true, false); 4];
        let mut naive = Naive { size, paces, is_plain, ..Naive::default() };
        let mut places: Vec<(u32, Place)> = Vec::new();
        let (mut now, mut item) = (T0, 0);
        for (gap, step) in steps {
            now = now + Ticks::from_micros(gap);
            match step {
                Step::Push { row, patience } => {
                    item += 1;
                    let (row, deadline) = (Priority::ALL[row], now + Ticks::from_millis(patience));
                    let expected = naive.push(item, row, deadline, now);
                    match line.push(item, row, deadline, now) {
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
            prop_assert_eq!(Priority::ALL.map(|row| line.is_standing(row)), naive.paces.map(|pace| pace.2));
        }
    }

    /// Nobody is served while one waits who matters more, nobody is put out of a full line while one stays who matters less, and nobody is
    /// asked to wait for longer than an interval.
    #[test]
    fn what_matters_most_is_next(size in 1usize..12, steps in steps()) {
        let mut line = Line::new(LineSettings::default(), size);
        let mut waiting: Vec<(u32, Priority, Place, Timestamp)> = Vec::new();
        let (mut now, mut item) = (T0, 0);
        for (gap, step) in steps {
            now = now + Ticks::from_micros(gap);
            let least = waiting.iter().map(|waiting| waiting.1).min();
            let most = waiting.iter().map(|waiting| waiting.1).max();
            let of = |waiting: &[(u32, Priority, Place, Timestamp)], item| {
                waiting.iter().position(|waiting| waiting.0 == item).unwrap()
            };
            match step {
                Step::Push { row, .. } => {
                    item += 1;
                    let row = Priority::ALL[row];
                    match line.push(item, row, NEVER, now) {
                        Pushed::Waits(place) => waiting.push((item, row, place, now)),
                        Pushed::Instead(place, out) => {
                            let gone = waiting.remove(of(&waiting, out));
                            prop_assert!(Some(gone.1) == least && gone.1 <= row);
                            waiting.push((item, row, place, now));
                        }
                        Pushed::Full(_) => prop_assert!(least >= Some(row)),
                    }
                }
                Step::Next => match line.next(now) {
                    Some(Next::Serve(item, waited)) => {
                        let (_, row, _, came) = waiting.remove(of(&waiting, item));
                        prop_assert!(Some(row) == most && waited < INTERVAL && waited == now.since(came));
                    }
                    Some(Next::Refuse(item, _)) => drop(waiting.remove(of(&waiting, item))),
                    None => prop_assert!(waiting.is_empty()),
                },
                Step::Expire => {
                    while let Some(Next::Refuse(item, _)) = line.expire(now) {
                        waiting.remove(of(&waiting, item));
                    }
                    prop_assert!(waiting.iter().all(|waiting| now.since(waiting.3) < INTERVAL));
                }
                Step::Cancel { which } if !waiting.is_empty() => {
                    let (item, _, place, _) = waiting.remove(which % waiting.len());
                    prop_assert_eq!(line.cancel(place, now), Some(item));
                }
                Step::Cancel { .. } => {}
            }
            prop_assert!(line.len() == waiting.len() && line.len() <= size);
        }
    }
}

/// There is no end of test traffic, which stands in line; what is critical overtakes it, keeps its own order, and is not put out by it.
#[test]
fn what_is_critical_overtakes_and_displaces() {
    let mut line = Line::new(LineSettings::default(), 6);
    // One is served for each three that come, for long enough that the row of tests stands.
    for tick in 0..401u32 {
        let _ = line.push(tick, Priority::Test, NEVER, ms(u64::from(tick)));
        while tick % 3 == 0 && matches!(line.next(ms(u64::from(tick))), Some(Next::Refuse(..))) {}
    }
    assert!(line.is_standing(Priority::Test) && !line.is_standing(Priority::Critical) && line.len() == 6);
    let now = ms(401);
    // The oldest of a row that stands goes, and of one that does not the newest.
    for item in [1_000, 1_001, 1_002] {
        let Pushed::Instead(_, out) = line.push(item, Priority::Critical, NEVER, now) else { panic!() };
        assert!((390..=400).contains(&out), "{out}");
    }
    assert!(matches!(line.push(2_000, Priority::Read, NEVER, now), Pushed::Instead(..)));
    assert!(matches!(line.push(2_001, Priority::Read, NEVER, now), Pushed::Instead(..)));
    assert!(matches!(line.push(2_002, Priority::Write, NEVER, now), Pushed::Instead(..)));
    assert_eq!(line.push(3_000, Priority::Test, NEVER, now), Pushed::Full(3_000));
    assert!(matches!(line.push(2_003, Priority::Write, NEVER, now), Pushed::Instead(_, 2_001)));
    let served: Vec<_> = std::iter::from_fn(|| line.next(now)).collect();
    let expected = [1_000, 1_001, 1_002, 2_002, 2_003, 2_000];
    assert_eq!(served, expected.map(|item| Next::Serve(item, Ticks::ZERO)));
}

/// Without overload the first come is the first served.
#[test]
fn a_short_line_is_first_come_first_served() {
    let mut line = Line::new(LineSettings::default(), 10);
    for item in 0..3 {
        place(line.push(item, Priority::Read, NEVER, T0));
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
        place(line.push(tick, Priority::Read, NEVER, ms(u64::from(tick))));
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
    assert!(line.is_standing(Priority::Read) && refused > 150, "{refused}");
    assert!(line.len() <= 10, "{}", line.len());
    assert_eq!(line.report(ms(400)).reason, Reason::Standing);
    // Nobody comes any more: the rest are put out, and the line is as it was.
    let mut left = 0;
    while let Some(Next::Refuse(..)) = line.expire(ms(420)) {
        left += 1;
    }
    assert!(left > 0 && line.is_empty() && line.next_expiry().is_none());
    place(line.push(1, Priority::Read, NEVER, ms(600)));
    assert!(!line.is_standing(Priority::Read));
    assert_eq!(line.report(ms(600)).reason, Reason::Drained);
}

/// Who would be answered too late is not served, and who went away does not come back.
#[test]
fn deadlines_and_cancellations_hold() {
    let mut line = Line::new(LineSettings::default(), 10);
    place(line.push(1, Priority::Read, ms(3), T0));
    let two = place(line.push(2, Priority::Read, NEVER, T0));
    let three = place(line.push(3, Priority::Read, NEVER, T0));
    assert_eq!(line.next_expiry(), Some(ms(3)));
    assert_eq!(line.cancel(two, ms(1)), Some(2));
    assert_eq!(line.cancel(two, ms(1)), None);
    assert_eq!(line.next(ms(3)), Some(Next::Refuse(1, Cause::Deadline)));
    assert_eq!(line.next(ms(3)), Some(Next::Serve(3, Ticks::from_millis(3))));
    // The place is another's now.
    place(line.push(4, Priority::Read, NEVER, ms(4)));
    assert_eq!((line.cancel(three, ms(4)), line.len()), (None, 1));
}

/// Who asks for itself is put out at its own deadline, whoever stands before it, and is told to ask then and not before; and when its row comes
/// to stand it goes after twice the target, though nobody is served.
#[test]
fn each_asks_for_itself() {
    let mut line = Line::new(LineSettings::default(), 200);
    let first = place(line.push(1, Priority::Read, NEVER, T0));
    let late = place(line.push(2, Priority::Read, ms(50), T0));
    assert_eq!(line.stays(first, T0), Some(Stays::Until(T0 + INTERVAL)));
    assert_eq!(line.stays(late, T0), Some(Stays::Until(ms(50))));
    assert_eq!(line.stays(late, ms(50)), Some(Stays::Out(2, Cause::Deadline)));
    assert_eq!((line.stays(late, ms(50)), line.len(), line.report(ms(50)).refused), (None, 1, 1));
    assert_eq!(line.stays(first, T0 + INTERVAL), Some(Stays::Out(1, Cause::QueueDelay)));
    // In the next interval the row is never short: one who comes in it may wait until it ends, and is out then.
    let mut now = T0 + INTERVAL + Ticks::from_millis(1);
    let mut asks = Vec::new();
    for item in 3..100 {
        asks.push((item, place(line.push(item, Priority::Read, NEVER, now))));
        asks.retain(|&(_, place)| matches!(line.stays(place, now), Some(Stays::Until(then)) if then > now));
        now = now + TARGET;
        if line.is_standing(Priority::Read) {
            break;
        }
    }
    assert!(line.is_standing(Priority::Read), "{}", line.len());
    let newest = place(line.push(200, Priority::Read, NEVER, now));
    assert_eq!(line.stays(newest, now), Some(Stays::Until(now + TARGET + TARGET)));
    assert_eq!(line.stays(newest, now + TARGET + TARGET), Some(Stays::Out(200, Cause::QueueDelay)));
}

/// A line follows the limit: twice its places, and a tenth of what half of the requests take.
#[test]
fn a_line_follows_the_limit() {
    let mut line = Line::new(LineSettings::default(), 0);
    assert_eq!(line.push(1, Priority::Read, NEVER, T0), Pushed::Full(1));
    line.follow(1, Ticks::from_secs(1));
    let report = line.report(T0);
    assert_eq!((report.limit, report.baseline), (Some(2), Some(Ticks::from_millis(100))));
    line.follow(1, Ticks::from_millis(1));
    assert_eq!(line.report(T0).baseline, Some(Ticks::from_millis(5)));
    place(line.push(2, Priority::Read, NEVER, T0));
    place(line.push(3, Priority::Read, NEVER, T0));
    assert_eq!(line.push(4, Priority::Read, NEVER, T0), Pushed::Full(4));
}

/// In shadow nobody is put out for having waited, and it is told who would have been.
#[test]
fn a_line_in_shadow_only_counts() {
    let mut line = Line::new(LineSettings { mode: Mode::Shadow, ..LineSettings::default() }, 10);
    place(line.push(1, Priority::Read, NEVER, T0));
    assert_eq!(line.next(ms(500)), Some(Next::Serve(1, Ticks::from_millis(500))));
    assert_eq!(line.report(ms(500)).would_refuse, 1);
    // So it is after the kill switch.
    let mut line = Line::new(LineSettings::default(), 10);
    line.switch().kill(ms(1_000));
    place(line.push(1, Priority::Read, NEVER, T0));
    assert_eq!(line.next(ms(500)), Some(Next::Serve(1, Ticks::from_millis(500))));
    place(line.push(2, Priority::Read, NEVER, ms(900)));
    assert_eq!(line.next(ms(1_001)), Some(Next::Refuse(2, Cause::QueueDelay)));
}
