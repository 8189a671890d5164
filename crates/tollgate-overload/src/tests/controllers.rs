//! All controllers together, as a middleware would call them.

use super::T0;
use crate::{
    Cause, Controller, Controllers, Ending, EntryDecision, Pass, Plan, Priority, PushOutcome, QueueAction,
};
use tollgate::policy::Mode;
use tollgate::time::{Ticks, Timestamp};

fn controllers(text: &str) -> Controllers {
    Controllers::new(Plan::compile("overload.yaml", text.as_bytes()).unwrap().0).unwrap()
}

fn pass(controllers: &Controllers, now: Timestamp) -> Pass {
    match controllers.enter(Priority::Write, 1, now).unwrap() {
        EntryDecision::Pass(pass) => pass,
        EntryDecision::Wait => panic!("a permit is free"),
    }
}

/// A request without a permit waits, and a request that ends makes its permit free for a waiter.
#[test]
fn a_freed_permit_serves_the_next_waiter() {
    let all = controllers("overload: {worker: , concurrency: {initial: 1}, queue: }");
    let mut queue = all.new_queue().unwrap();
    let first = pass(&all, T0);
    assert!(matches!(all.enter(Priority::Write, 2, T0), Ok(EntryDecision::Wait)));
    assert!(matches!(queue.push("second", Priority::Write, Timestamp::MAX, T0), PushOutcome::Queued(_)));
    assert!(all.try_pass(T0).is_none());
    let now = T0 + Ticks::from_millis(3);
    all.leave(first, now, Ending::Success);
    let pass = all.try_pass(now).unwrap();
    assert_eq!(queue.next(now), Some(QueueAction::Serve("second", Ticks::from_millis(3))));
    all.waited(Ticks::from_millis(3), now);
    all.leave(pass, now, Ending::Success);
    let reports = all.reports(now);
    assert_eq!(
        reports.iter().map(|report| report.controller).collect::<Vec<_>>(),
        [Controller::Worker, Controller::Concurrency]
    );
    assert_eq!((reports[1].in_flight, reports[1].refused), (Some(0), 0));
}

/// A worker at its limit sheds the lowest priority first, and the refusal names it.
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
    assert!(matches!(all.enter(Priority::Critical, 1, now), Ok(EntryDecision::Wait)));
    all.kill(now + Ticks::from_secs(60));
    assert!(matches!(all.enter(Priority::Test, 1, now), Ok(EntryDecision::Pass(_))));
    assert!(all.reports(now).iter().all(|report| report.mode == Mode::Off));
    held.into_iter().for_each(|pass| all.leave(pass, now, Ending::Ignored));
}

/// Without a plan all requests pass; a rate refuses by itself.
#[test]
fn absent_controllers_admit_all_requests() {
    let none = Controllers::new(Plan::default()).unwrap();
    for identity in 0..1_000 {
        assert!(matches!(none.enter(Priority::Test, identity, T0), Ok(EntryDecision::Pass(_))));
    }
    assert!(none.reports(T0).is_empty() && none.new_queue::<()>().is_none());
    let slow = controllers("overload: {rate: {target: 100ms, min: 10/s, initial: 10/s, max: 10/s}}");
    let passed = (0..10).filter(|_| slow.enter(Priority::Read, 1, T0).is_ok()).count();
    assert_eq!(passed, 1);
    assert_eq!(slow.enter(Priority::Read, 1, T0).unwrap_err().cause, Cause::Rate);
}
