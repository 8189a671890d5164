//! The wall clock is set while requests are decided: windows follow it, and no quota is gained.

use std::time::Duration;

use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::time::WallOffset;
use tollgate::{CheckRequest, Engine, Gate, ManualClock, Policy, Quota, Rate, Ticks, Timestamp};

/// 12:05 UTC on 2023-11-14.
const START: Timestamp = Timestamp::from_unix_seconds(1_699_963_500);

const HOUR: i64 = 3_600_000_000;

fn ahead(micros: i64) -> WallOffset {
    WallOffset::from_micros(micros)
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

fn calendar_hour() -> Align {
    Align::Calendar(Calendar::new(CalendarUnit::Hour, "UTC").expect("valid"))
}

/// A server starts before NTP has set its clock: hours end by the wall clock once it is right, and earlier
/// usage still counts.
#[test]
fn an_hour_ends_by_the_wall_once_ntp_has_set_it() {
    for align in [Align::Epoch, calendar_hour()] {
        let boot = ManualClock::starting_at(Timestamp::from_unix_seconds(120)); // 1970-01-01 00:02.
        let gate = Gate::builder(Quota::fixed_window(Rate::per_hour(10), align).unwrap())
            .clock(boot.clock())
            .build();
        assert_eq!(gate.charge(4).remaining, 6);
        boot.advance(minutes(1));
        boot.set_wall(WallOffset::between(boot.now(), START));
        let look = gate.charge(1);
        assert_eq!(look.remaining, 5, "the step gives nothing");
        assert_eq!(look.reset_after, Ticks::from_secs(55 * 60), "12:05 is 55 minutes before the hour ends");
        boot.advance(minutes(55));
        assert_eq!(gate.charge(1).remaining, 9, "and then a new hour begins");
    }
}

/// A clock that is set to and fro over the end of an hour opens the next hour once.
#[test]
fn a_clock_set_to_and_fro_opens_a_window_once() {
    for align in [Align::Epoch, calendar_hour()] {
        let time = ManualClock::starting_at(START);
        let gate = Gate::builder(Quota::fixed_window(Rate::per_hour(10), align).unwrap())
            .clock(time.clock())
            .build();
        let mut admitted = 0;
        for step in 0..20 {
            time.set_wall(ahead(if step % 2 == 0 { HOUR } else { 0 }));
            admitted += (0..20).filter(|_| gate.check().is_allowed()).count();
            time.advance(Duration::from_secs(1));
        }
        assert_eq!(admitted, 10, "in twenty seconds");
    }
}

/// A step of hours refills no bucket, empties no log, ends no permit and moves no window that begins with its
/// first request.
#[test]
fn a_step_moves_nothing_that_does_not_follow_the_wall() {
    let quotas = [
        Quota::token_bucket(Rate::per_hour(10)).unwrap(),
        Quota::gcra(Rate::per_hour(10).burst(10)).unwrap(),
        Quota::sliding_window(Rate::per_hour(10), 10, Estimate::Strict).unwrap(),
        Quota::sliding_log(Rate::per_hour(10)).unwrap(),
        Quota::concurrency(10, Duration::from_secs(3_600)).unwrap(),
        Quota::fixed_window(Rate::per_hour(10), Align::FirstHit).unwrap(),
    ];
    for quota in quotas {
        let time = ManualClock::starting_at(START);
        let gate = Gate::builder(quota.clone()).clock(time.clock()).build();
        let before = gate.charge(10);
        assert!(before.is_allowed());
        for step in [24 * HOUR, -24 * HOUR, 0] {
            time.set_wall(ahead(step));
            let look = gate.charge(0);
            assert_eq!((look.remaining, look.reset_after), (0, before.reset_after), "{quota:?} after {step}");
        }
    }
}

/// An engine that is notified of the step follows it, beside limits that ignore the wall clock; a policy swap
/// in between loses nothing.
#[test]
fn an_engine_follows_the_wall_over_a_swap() {
    let policy = |limit| {
        let file = format!(
            "limits: [{{name: monthly, algorithm: fixed-window, align: calendar, rate: {limit}/month}}, \
             {{name: bucket, rate: 1000/day}}]"
        );
        Policy::compile("policy.yaml", file.as_bytes()).unwrap()
    };
    let time = ManualClock::starting_at(Timestamp::from_unix_seconds(60));
    let engine = Engine::builder().policy(policy(10)).clock(time.clock()).build();
    let request = CheckRequest::new();
    let monthly = |engine: &Engine| {
        let decision = engine.try_check(&request, time.now()).unwrap();
        let status = decision.limits().find(|status| status.limit.name() == "monthly").unwrap();
        (decision.is_allowed(), status.outcome.remaining, status.outcome.reset_after)
    };
    assert_eq!(monthly(&engine).1, 9);
    engine.swap(policy(5), time.now()).unwrap();
    time.set_wall(WallOffset::between(time.now(), START));
    assert!(engine.maintenance().follow_wall(time.clock().wall_offset(time.now()), time.now()));
    assert!(!engine.maintenance().follow_wall(time.clock().wall_offset(time.now()), time.now()), "once");
    let december = Timestamp::from_unix_seconds(1_701_388_800);
    assert_eq!(monthly(&engine), (true, 3, december.since(START)));
    for _ in 0..3 {
        assert!(monthly(&engine).0);
    }
    assert!(!monthly(&engine).0);
}

/// The story: after a step `block --for 1h` answered with an end that was a week ago, and so did the reason of each denial. What people
/// read follows the wall clock, also of a block that was there before; how long it holds does not.
#[test]
fn a_block_shows_its_end_by_the_wall() {
    let time = ManualClock::starting_at(START);
    let policy = Policy::compile("policy.yaml", b"limits: [{name: a, rate: 5/h}]").unwrap();
    let engine = Engine::builder().policy(policy).clock(time.clock()).build();
    let request = CheckRequest::new().with("tenant", "acme").unwrap();
    let until = time.now() + Ticks::from_secs(3_600);
    assert!(
        engine
            .operator()
            .block(&request, until, time.now())
            .unwrap()
            .to_string()
            .contains("2023-11-14T13:05:00Z")
    );
    time.set_wall(ahead(7 * 24 * HOUR));
    engine.maintenance().follow_wall(time.clock().wall_offset(time.now()), time.now());
    let denied = engine.try_check(&request, time.now()).unwrap();
    assert!(denied.explanation().unwrap().contains("until 2023-11-21T13:05:00Z"), "{denied:?}");
    assert_eq!(denied.block().map(tollgate::Block::until), Some(until));
    time.advance(minutes(60));
    assert!(engine.try_check(&request, time.now()).unwrap().is_allowed());
}
