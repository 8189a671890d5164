//! All controllers together, as a middleware would call them.

use super::T0;
use crate::overload::{Cause, Controller, Controllers, Ending, Entry, Next, Pass, Plan, Priority, Pushed};
use crate::policy::Mode;
use crate::time::{Ticks, Timestamp};

fn controllers(text: &str) -> Controllers {
    Controllers::new(Plan::compile("overload.yaml", text.as_bytes()).unwrap().0).unwrap()
}

fn pass(controllers: &Controllers, now: Timestamp) -> Pass {
    match controllers.enter(Priority::Write, 1, now).unwrap() {
        Entry::Pass(pass) => pass,
        Entry::Wait => panic!("there is a place"),
    }
}

/// Who finds no place waits, and who leaves makes room for one of those.
#[test]
fn a_place_goes_from_hand_to_hand() {
    let all = controllers("overload: {worker: , concurrency: {initial: 1}, queue: }");
    let mut line = all.line().unwrap();
    let first = pass(&all, T0);
    assert!(matches!(all.enter(Priority::Write, 2, T0), Ok(Entry::Wait)));
    assert!(matches!(line.push("second", Priority::Write, Timestamp::MAX, T0), Pushed::Waits(_)));
    assert!(all.place(T0).is_none());
    let now = T0 + Ticks::from_millis(3);
    all.leave(first, now, Ending::Success);
    let place = all.place(now).unwrap();
    assert_eq!(line.next(now), Some(Next::Serve("second", Ticks::from_millis(3))));
    all.waited(Ticks::from_millis(3), now);
    all.leave(place, now, Ending::Success);
    let reports = all.reports(now);
    assert_eq!(
        reports.iter().map(|report| report.controller).collect::<Vec<_>>(),
        [Controller::Worker, Controller::Concurrency]
    );
    assert_eq!((reports[1].in_flight, reports[1].refused), (Some(0), 0));
}

/// A worker whose places are all taken sheds, the least first, and the refusal says so.
#[test]
fn a_full_worker_sheds() {
    let all = controllers("overload: {worker: , concurrency: {initial: 4}, queue: }");
    let held: Vec<Pass> = (0..4).map(|_| pass(&all, T0)).collect();
    let mut now = T0;
    while now < T0 + Ticks::from_secs(10) {
        now = now + Ticks::from_millis(10);
        let _ = all.enter(Priority::Critical, 1, now);
    }
    assert_eq!(all.enter(Priority::Test, 1, now).unwrap_err().cause, Cause::Shed);
    assert!(matches!(all.enter(Priority::Critical, 1, now), Ok(Entry::Wait)));
    all.kill(now + Ticks::from_secs(60));
    assert!(matches!(all.enter(Priority::Test, 1, now), Ok(Entry::Pass(_))));
    assert!(all.reports(now).iter().all(|report| report.mode == Mode::Off));
    held.into_iter().for_each(|pass| all.leave(pass, now, Ending::Ignored));
}

/// Without a plan everybody passes; a rate refuses by itself.
#[test]
fn what_is_not_there_refuses_nobody() {
    let none = Controllers::new(Plan::default()).unwrap();
    for identity in 0..1_000 {
        assert!(matches!(none.enter(Priority::Test, identity, T0), Ok(Entry::Pass(_))));
    }
    assert!(none.reports(T0).is_empty() && none.line::<()>().is_none());
    let slow = controllers("overload: {rate: {target: 100ms, min: 10/s, initial: 10/s, max: 10/s}}");
    let passed = (0..10).filter(|_| slow.enter(Priority::Read, 1, T0).is_ok()).count();
    assert_eq!(passed, 1);
    assert_eq!(slow.enter(Priority::Read, 1, T0).unwrap_err().cause, Cause::Rate);
}
