//! The queue against a naive list, and its properties one by one.

use proptest::prelude::*;

use super::T0;
use crate::{
    Cause, ChangeReason, Priority, PushOutcome, QueueAction, QueueSettings, WaitQueue, WaitStatus, WaiterId,
};
use tollgate::policy::Mode;
use tollgate::time::{Ticks, Timestamp};

const NEVER: Timestamp = Timestamp::MAX;

fn ms(millis: u64) -> Timestamp {
    T0 + Ticks::from_millis(millis)
}

fn waiter(pushed: PushOutcome<u32>) -> WaiterId {
    match pushed {
        PushOutcome::Queued(id) | PushOutcome::Replaced(id, _) => id,
        PushOutcome::Full(item) => panic!("the queue is full for {item}"),
    }
}

/// A naive queue: a list, searched from the start.
#[derive(Debug, Default)]
struct NaiveQueue {
    waiting: Vec<(u32, Timestamp, Timestamp, Priority)>,
    size: usize,
    /// For each priority: the end of its interval, whether it was short in it, and whether it is standing.
    states: [(Timestamp, bool, bool); 4],
    is_plain: bool,
}

const TARGET: Ticks = Ticks::from_millis(5);
const INTERVAL: Ticks = Ticks::from_millis(100);

impl NaiveQueue {
    fn oldest(&self, class: Priority) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.3 == class)
    }

    fn update(&mut self, now: Timestamp) {
        for class in Priority::ALL {
            let waited = self.oldest(class).map_or(Ticks::ZERO, |oldest| now.since(self.waiting[oldest].1));
            let (ends, was_short, standing) = &mut self.states[class as usize];
            if now >= *ends {
                *standing = !*was_short && waited > TARGET;
                (*ends, *was_short) = (now + INTERVAL, false);
            }
            *was_short |= waited <= TARGET;
        }
    }

    fn is_standing(&self, class: Priority) -> bool {
        self.states[class as usize].2
    }

    fn push(
        &mut self,
        item: u32,
        class: Priority,
        deadline: Timestamp,
        now: Timestamp,
    ) -> (bool, Option<u32>) {
        self.update(now);
        let mut out = None;
        if self.waiting.len() >= self.size {
            let Some(least) = self.waiting.iter().map(|waiting| waiting.3).min() else {
                return (false, None);
            };
            let newest = self.waiting.iter().rposition(|waiting| waiting.3 == least);
            let evicted = match self.is_standing(least) {
                _ if self.is_plain || least > class => None,
                true => self.oldest(least),
                false if least < class => newest,
                false => None,
            };
            let Some(evicted) = evicted else { return (false, None) };
            out = Some(self.waiting.remove(evicted).0);
        }
        self.waiting.push((item, now, deadline, class));
        (true, out)
    }

    fn expire(&mut self, now: Timestamp) -> Option<QueueAction<u32>> {
        self.update(now);
        for class in Priority::ALL {
            let max_wait = if self.is_standing(class) { TARGET + TARGET } else { INTERVAL };
            let Some(oldest) = self.oldest(class) else { continue };
            let (item, arrived_at, deadline, _) = self.waiting[oldest];
            let cause = if now >= deadline { Cause::Deadline } else { Cause::QueueDelay };
            if now >= deadline || (now.since(arrived_at) >= max_wait && !self.is_plain) {
                self.waiting.remove(oldest);
                return Some(QueueAction::Refuse(item, cause));
            }
        }
        None
    }

    fn next(&mut self, now: Timestamp) -> Option<QueueAction<u32>> {
        if let Some(refused) = self.expire(now) {
            return Some(refused);
        }
        let most = self.waiting.iter().map(|waiting| waiting.3).max()?;
        let newest = self.waiting.iter().rposition(|waiting| waiting.3 == most);
        let turn = match (self.is_plain, self.is_standing(most)) {
            (true, _) => 0,
            (false, true) => newest?,
            (false, false) => self.oldest(most)?,
        };
        let (item, arrived_at, deadline, _) = self.waiting.remove(turn);
        if now >= deadline {
            return Some(QueueAction::Refuse(item, Cause::Deadline));
        }
        self.update(now);
        Some(QueueAction::Serve(item, now.since(arrived_at)))
    }

    fn cancel(&mut self, item: u32, now: Timestamp) -> Option<u32> {
        let position = self.waiting.iter().position(|waiting| waiting.0 == item);
        let found = position.map(|position| self.waiting.remove(position).0);
        if found.is_some() {
            self.update(now);
        }
        found
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { class: usize, max_wait: u64 },
    Next,
    Expire,
    Cancel { which: usize },
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        5 => (0usize..4, 1u64..300).prop_map(|(class, max_wait)| Step::Push { class, max_wait }),
        3 => Just(Step::Next),
        1 => Just(Step::Expire),
        1 => (0usize..1_000).prop_map(|which| Step::Cancel { which }),
    ];
    // Mostly short gaps, so that queues become standing, and some long ones, so that they drain.
    let gap = prop_oneof![8 => 0u64..4_000, 1 => 0u64..200_000];
    proptest::collection::vec((gap, step), 1..400)
}

proptest! {
    /// The queue behaves like a naive list in any sequence of operations, and an id never identifies another
    /// waiter. In shadow it is first in, first out.
    #[test]
    fn a_queue_behaves_like_a_list(size in 0usize..20, is_plain: bool, steps in steps()) {
        let mode = if is_plain { Mode::Shadow } else { Mode::Enforce };
        let mut queue = WaitQueue::new(QueueSettings { mode, ..QueueSettings::default() }, size);
        let states = [(Timestamp::default(), true, false); 4];
        let mut model = NaiveQueue { size, states, is_plain, ..NaiveQueue::default() };
        let mut ids: Vec<(u32, WaiterId)> = Vec::new();
        let (mut now, mut item) = (T0, 0);
        for (gap, step) in steps {
            now = now + Ticks::from_micros(gap);
            match step {
                Step::Push { class, max_wait } => {
                    item += 1;
                    let (class, deadline) = (Priority::ALL[class], now + Ticks::from_millis(max_wait));
                    let expected = model.push(item, class, deadline, now);
                    match queue.push(item, class, deadline, now) {
                        PushOutcome::Queued(id) => {
                            prop_assert_eq!(expected, (true, None));
                            ids.push((item, id));
                        }
                        PushOutcome::Replaced(id, out) => {
                            prop_assert_eq!(expected, (true, Some(out)));
                            ids.push((item, id));
                        }
                        PushOutcome::Full(same) => prop_assert_eq!((expected, same), ((false, None), item)),
                    }
                }
                Step::Next => prop_assert_eq!(queue.next(now), model.next(now)),
                Step::Expire => prop_assert_eq!(queue.expire(now), model.expire(now)),
                Step::Cancel { which } if !ids.is_empty() => {
                    let (item, id) = ids[which % ids.len()];
                    prop_assert_eq!(queue.cancel(id, now), model.cancel(item, now));
                }
                Step::Cancel { .. } => {}
            }
            prop_assert_eq!(queue.len(), model.waiting.len());
            prop_assert_eq!(Priority::ALL.map(|class| queue.is_standing(class)), model.states.map(|state| state.2));
        }
    }

    /// The highest class is served first, only the lowest is evicted from a full queue, and waits are shorter
    /// than an interval.
    #[test]
    fn the_highest_class_is_served_first(size in 1usize..12, steps in steps()) {
        let mut queue = WaitQueue::new(QueueSettings::default(), size);
        let mut waiting: Vec<(u32, Priority, WaiterId, Timestamp)> = Vec::new();
        let (mut now, mut item) = (T0, 0);
        for (gap, step) in steps {
            now = now + Ticks::from_micros(gap);
            let least = waiting.iter().map(|waiting| waiting.1).min();
            let most = waiting.iter().map(|waiting| waiting.1).max();
            let of = |waiting: &[(u32, Priority, WaiterId, Timestamp)], item| {
                waiting.iter().position(|waiting| waiting.0 == item).unwrap()
            };
            match step {
                Step::Push { class, .. } => {
                    item += 1;
                    let class = Priority::ALL[class];
                    match queue.push(item, class, NEVER, now) {
                        PushOutcome::Queued(id) => waiting.push((item, class, id, now)),
                        PushOutcome::Replaced(id, out) => {
                            let gone = waiting.remove(of(&waiting, out));
                            prop_assert!(Some(gone.1) == least && gone.1 <= class);
                            waiting.push((item, class, id, now));
                        }
                        PushOutcome::Full(_) => prop_assert!(least >= Some(class)),
                    }
                }
                Step::Next => match queue.next(now) {
                    Some(QueueAction::Serve(item, waited)) => {
                        let (_, class, _, arrived_at) = waiting.remove(of(&waiting, item));
                        prop_assert!(Some(class) == most && waited < INTERVAL && waited == now.since(arrived_at));
                    }
                    Some(QueueAction::Refuse(item, _)) => drop(waiting.remove(of(&waiting, item))),
                    None => prop_assert!(waiting.is_empty()),
                },
                Step::Expire => {
                    while let Some(QueueAction::Refuse(item, _)) = queue.expire(now) {
                        waiting.remove(of(&waiting, item));
                    }
                    prop_assert!(waiting.iter().all(|waiting| now.since(waiting.3) < INTERVAL));
                }
                Step::Cancel { which } if !waiting.is_empty() => {
                    let (item, _, id, _) = waiting.remove(which % waiting.len());
                    prop_assert_eq!(queue.cancel(id, now), Some(item));
                }
                Step::Cancel { .. } => {}
            }
            prop_assert!(queue.len() == waiting.len() && queue.len() <= size);
        }
    }
}

/// Endless test traffic forms a standing queue. Critical requests overtake it, keep their own order, and are
/// not evicted by it.
#[test]
fn critical_requests_overtake_and_evict() {
    let mut queue = WaitQueue::new(QueueSettings::default(), 6);
    // One request is served for three that arrive, until the class of test traffic is standing.
    for tick in 0..401u32 {
        let _ = queue.push(tick, Priority::Test, NEVER, ms(u64::from(tick)));
        while tick % 3 == 0 && matches!(queue.next(ms(u64::from(tick))), Some(QueueAction::Refuse(..))) {}
    }
    assert!(queue.is_standing(Priority::Test) && !queue.is_standing(Priority::Critical) && queue.len() == 6);
    let now = ms(401);
    // A standing class loses its oldest waiter, another class its newest.
    for item in [1_000, 1_001, 1_002] {
        let PushOutcome::Replaced(_, out) = queue.push(item, Priority::Critical, NEVER, now) else {
            panic!()
        };
        assert!((390..=400).contains(&out), "{out}");
    }
    assert!(matches!(queue.push(2_000, Priority::Read, NEVER, now), PushOutcome::Replaced(..)));
    assert!(matches!(queue.push(2_001, Priority::Read, NEVER, now), PushOutcome::Replaced(..)));
    assert!(matches!(queue.push(2_002, Priority::Write, NEVER, now), PushOutcome::Replaced(..)));
    assert_eq!(queue.push(3_000, Priority::Test, NEVER, now), PushOutcome::Full(3_000));
    assert!(matches!(queue.push(2_003, Priority::Write, NEVER, now), PushOutcome::Replaced(_, 2_001)));
    let served: Vec<_> = std::iter::from_fn(|| queue.next(now)).collect();
    let expected = [1_000, 1_001, 1_002, 2_002, 2_003, 2_000];
    assert_eq!(served, expected.map(|item| QueueAction::Serve(item, Ticks::ZERO)));
}

/// Without overload the queue is first in, first out.
#[test]
fn a_short_queue_is_first_in_first_out() {
    let mut queue = WaitQueue::new(QueueSettings::default(), 10);
    for item in 0..3 {
        waiter(queue.push(item, Priority::Read, NEVER, T0));
    }
    let served: Vec<_> = std::iter::from_fn(|| queue.next(ms(1))).collect();
    assert_eq!(served, [0, 1, 2].map(|item| QueueAction::Serve(item, Ticks::from_millis(1))));
}

/// A queue that is not short for an interval serves the newest first and expires waiters after twice the
/// target.
#[test]
fn a_standing_queue_serves_the_newest_and_expires_the_oldest() {
    let mut queue = WaitQueue::new(QueueSettings::default(), 1_000);
    let mut refused = 0;
    // Three arrive for each one that is served, a millisecond apart.
    for tick in 0..400 {
        waiter(queue.push(tick, Priority::Read, NEVER, ms(u64::from(tick))));
        if tick % 3 == 0 {
            while let Some(next) = queue.next(ms(u64::from(tick))) {
                match next {
                    QueueAction::Refuse(_, cause) => {
                        assert_eq!(cause, Cause::QueueDelay);
                        refused += 1;
                    }
                    QueueAction::Serve(item, waited) => {
                        assert!(tick < 220 || item == tick, "{item} is served at {tick}");
                        assert!(tick < 220 || waited.is_zero());
                        break;
                    }
                }
            }
        }
    }
    assert!(queue.is_standing(Priority::Read) && refused > 150, "{refused}");
    assert!(queue.len() <= 10, "{}", queue.len());
    assert_eq!(queue.report(ms(400)).reason, ChangeReason::Standing);
    // No more arrivals: the rest expire, and the queue is as it was.
    let mut left = 0;
    while let Some(QueueAction::Refuse(..)) = queue.expire(ms(420)) {
        left += 1;
    }
    assert!(left > 0 && queue.is_empty() && queue.next_expiry().is_none());
    waiter(queue.push(1, Priority::Read, NEVER, ms(600)));
    assert!(!queue.is_standing(Priority::Read));
    assert_eq!(queue.report(ms(600)).reason, ChangeReason::Drained);
}

/// A waiter past its deadline is not served, and a cancelled one is gone.
#[test]
fn deadlines_and_cancellations_hold() {
    let mut queue = WaitQueue::new(QueueSettings::default(), 10);
    waiter(queue.push(1, Priority::Read, ms(3), T0));
    let two = waiter(queue.push(2, Priority::Read, NEVER, T0));
    let three = waiter(queue.push(3, Priority::Read, NEVER, T0));
    assert_eq!(queue.next_expiry(), Some(ms(3)));
    assert_eq!(queue.cancel(two, ms(1)), Some(2));
    assert_eq!(queue.cancel(two, ms(1)), None);
    assert_eq!(queue.next(ms(3)), Some(QueueAction::Refuse(1, Cause::Deadline)));
    assert_eq!(queue.next(ms(3)), Some(QueueAction::Serve(3, Ticks::from_millis(3))));
    // The slot is reused.
    waiter(queue.push(4, Priority::Read, NEVER, ms(4)));
    assert_eq!((queue.cancel(three, ms(4)), queue.len()), (None, 1));
}

/// A waiter with its own timer expires at its own deadline, wherever it is in the queue, and is due for a check
/// no earlier. Once its class is standing it expires after twice the target, even if no request is served.
#[test]
fn each_waiter_expires_by_its_own_timer() {
    let mut queue = WaitQueue::new(QueueSettings::default(), 200);
    let first = waiter(queue.push(1, Priority::Read, NEVER, T0));
    let late = waiter(queue.push(2, Priority::Read, ms(50), T0));
    assert_eq!(queue.check_waiter(first, T0), Some(WaitStatus::Until(T0 + INTERVAL)));
    assert_eq!(queue.check_waiter(late, T0), Some(WaitStatus::Until(ms(50))));
    assert_eq!(queue.check_waiter(late, ms(50)), Some(WaitStatus::Expired(2, Cause::Deadline)));
    assert_eq!((queue.check_waiter(late, ms(50)), queue.len(), queue.report(ms(50)).refused), (None, 1, 1));
    assert_eq!(queue.check_waiter(first, T0 + INTERVAL), Some(WaitStatus::Expired(1, Cause::QueueDelay)));
    // In the next interval the class is never short: a new waiter may wait until its end, and then expires.
    let mut now = T0 + INTERVAL + Ticks::from_millis(1);
    let mut waiters = Vec::new();
    for item in 3..100 {
        waiters.push((item, waiter(queue.push(item, Priority::Read, NEVER, now))));
        waiters.retain(
            |&(_, id)| matches!(queue.check_waiter(id, now), Some(WaitStatus::Until(then)) if then > now),
        );
        now = now + TARGET;
        if queue.is_standing(Priority::Read) {
            break;
        }
    }
    assert!(queue.is_standing(Priority::Read), "{}", queue.len());
    let newest = waiter(queue.push(200, Priority::Read, NEVER, now));
    assert_eq!(queue.check_waiter(newest, now), Some(WaitStatus::Until(now + TARGET + TARGET)));
    assert_eq!(
        queue.check_waiter(newest, now + TARGET + TARGET),
        Some(WaitStatus::Expired(200, Cause::QueueDelay))
    );
}

/// The queue holds twice the limit, and its target is a tenth of the median latency.
#[test]
fn a_queue_adapts_to_the_limit() {
    let mut queue = WaitQueue::new(QueueSettings::default(), 0);
    assert_eq!(queue.push(1, Priority::Read, NEVER, T0), PushOutcome::Full(1));
    queue.adapt(1, Ticks::from_secs(1));
    let report = queue.report(T0);
    assert_eq!((report.limit, report.baseline), (Some(2), Some(Ticks::from_millis(100))));
    queue.adapt(1, Ticks::from_millis(1));
    assert_eq!(queue.report(T0).baseline, Some(Ticks::from_millis(5)));
    waiter(queue.push(2, Priority::Read, NEVER, T0));
    waiter(queue.push(3, Priority::Read, NEVER, T0));
    assert_eq!(queue.push(4, Priority::Read, NEVER, T0), PushOutcome::Full(4));
}

/// In shadow no waiter expires for its delay, but it is counted.
#[test]
fn a_queue_in_shadow_only_counts() {
    let mut queue = WaitQueue::new(QueueSettings { mode: Mode::Shadow, ..QueueSettings::default() }, 10);
    waiter(queue.push(1, Priority::Read, NEVER, T0));
    assert_eq!(queue.next(ms(500)), Some(QueueAction::Serve(1, Ticks::from_millis(500))));
    assert_eq!(queue.report(ms(500)).would_refuse, 1);
    // The same applies under the kill switch.
    let mut queue = WaitQueue::new(QueueSettings::default(), 10);
    queue.switch().kill(ms(1_000));
    waiter(queue.push(1, Priority::Read, NEVER, T0));
    assert_eq!(queue.next(ms(500)), Some(QueueAction::Serve(1, Ticks::from_millis(500))));
    waiter(queue.push(2, Priority::Read, NEVER, ms(900)));
    assert_eq!(queue.next(ms(1_001)), Some(QueueAction::Refuse(2, Cause::QueueDelay)));
}
