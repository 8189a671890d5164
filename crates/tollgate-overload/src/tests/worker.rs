//! The worker shedder: the order of shedding, its pace, and that it settles.

use proptest::prelude::*;

use super::T0;
use crate::{Cause, ChangeReason, Load, Priority, WorkerSettings, WorkerShedder};
use tollgate::policy::Mode;
use tollgate::time::{Ticks, Timestamp};

fn load(percent: u32) -> Load {
    Load { in_flight: percent, limit: 100, queue_delay: Ticks::ZERO }
}

/// Observes a load for some time, a hundred times a second.
fn busy(shedder: &WorkerShedder, from: Timestamp, time: Ticks, load: Load) -> Timestamp {
    let mut now = from;
    while now < from + time {
        now = now + Ticks::from_millis(10);
        shedder.observe(load, now);
    }
    now
}

fn shed(shedder: &WorkerShedder, priority: Priority, now: Timestamp) -> usize {
    (0..1_000).filter(|&identity| shedder.decide(priority, identity, now).is_err()).count()
}

proptest! {
    /// A request is never shed while a lower-priority one of the same caller passes. While part of a class is
    /// shed, no lower class passes.
    #[test]
    fn lower_priorities_are_shed_first(loads in proptest::collection::vec((0u32..300, 1u64..3_000), 1..60), identity: u64) {
        let shedder = WorkerShedder::new(WorkerSettings::default());
        let mut now = T0;
        for (percent, millis) in loads {
            now = now + Ticks::from_millis(millis);
            shedder.observe(load(percent), now);
            let refused = Priority::ALL.map(|priority| shedder.decide(priority, identity, now).is_err());
            prop_assert!(refused.is_sorted_by(|lesser, greater| lesser >= greater), "{refused:?}");
            for pair in Priority::ALL.windows(2) {
                let passes = |priority| (0..50).filter(|&other| shedder.decide(priority, other, now).is_ok()).count();
                let passed = [passes(pair[0]), passes(pair[1])];
                prop_assert!(passed[1] == 50 || passed[0] == 0, "{passed:?}");
            }
        }
    }

    /// Whatever is observed, the level moves no faster than the settings allow.
    #[test]
    fn the_level_moves_slowly(loads in proptest::collection::vec((0u32..1_000, 1u64..2_000), 1..100)) {
        let settings = WorkerSettings::default();
        let shedder = WorkerShedder::new(settings.clone());
        let (mut now, mut level) = (T0, 0);
        for (percent, millis) in loads {
            now = now + Ticks::from_millis(millis);
            shedder.observe(load(percent), now);
            let next = shedder.level();
            // An observation soon after another one counts with the next.
            let most = |over: Ticks, millis: u64| 4_000 * (millis + 10) * 1_000 / over.as_micros() + 1;
            prop_assert!(next <= level + most(settings.shed_over, millis.min(1_000)), "{level} to {next} in {millis}");
            let fastest = settings.restore_over.min(settings.shed_over);
            prop_assert!(level <= next + most(fastest, millis), "{level} to {next} in {millis}");
            prop_assert!(next <= 3_900);
            level = next;
        }
    }
}

/// The level rises through the classes in order, and part of a class is shed before all of it.
#[test]
fn classes_are_shed_one_after_the_other() {
    let shedder = WorkerShedder::new(WorkerSettings::default());
    let mut now = busy(&shedder, T0, Ticks::from_secs(3), load(100));
    let first = Priority::ALL.map(|priority| shed(&shedder, priority, now));
    assert!((300..700).contains(&first[0]) && first[1..] == [0, 0, 0], "{first:?}");
    now = busy(&shedder, now, Ticks::from_secs(5), load(100));
    let second = Priority::ALL.map(|priority| shed(&shedder, priority, now));
    assert!(second[0] == 1_000 && (300..800).contains(&second[1]) && second[2] == 0, "{second:?}");
    now = busy(&shedder, now, Ticks::from_secs(60), load(100));
    let last = Priority::ALL.map(|priority| shed(&shedder, priority, now));
    assert!(last[..3] == [1_000; 3] && (850..950).contains(&last[3]), "{last:?}");
    assert_eq!(shedder.decide(Priority::Test, 1, now).unwrap_err().cause, Cause::Shed);
    assert_eq!(shedder.report(now).reason, ChangeReason::Busy);
}

/// At the upper threshold nothing changes. Between the thresholds it restores at less than half the pace, the
/// slower the closer to the upper one. Below the lower one it restores at most at the configured pace. While
/// utilisation stays clearly low it restores as quickly as it shed.
#[test]
fn the_level_settles_at_the_threshold_and_restores_slowly() {
    let shedder = WorkerShedder::new(WorkerSettings::default());
    let now = busy(&shedder, T0, Ticks::from_secs(10), load(100));
    let level = shedder.level();
    // Earlier observations decay.
    let now = busy(&shedder, now, Ticks::from_secs(10), load(95));
    let rested = shedder.level();
    let now = busy(&shedder, now, Ticks::from_secs(120), load(95));
    assert!(level > 1_500 && shedder.level() == rested, "{level} {rested} {}", shedder.level());
    let now = busy(&shedder, now, Ticks::from_secs(10), load(92));
    let near = rested - shedder.level();
    let now = busy(&shedder, now, Ticks::from_secs(10), load(84));
    let far = rested - near - shedder.level();
    assert!(0 < near && near < far && far < 255, "{near} {far}");
    let rested = shedder.level();
    let now = busy(&shedder, now, Ticks::from_secs(10), load(70));
    let below = rested - shedder.level();
    assert!(255 < below && below <= 510, "{below}");
    let level = shedder.level();
    let now = busy(&shedder, now, Ticks::from_secs(1), load(10));
    assert!(level - shedder.level() <= 70, "a dip of a second is no calm: {level} to {}", shedder.level());
    let now = busy(&shedder, now, Ticks::from_secs(10), load(10));
    assert_eq!((shedder.level(), shedder.report(now).reason), (0, ChangeReason::Calm));
}

/// A limit that probes lower for a moment causes no shedding; one that stays lower does.
#[test]
fn a_dip_of_the_limit_does_not_shed() {
    let shedder = WorkerShedder::new(WorkerSettings::default());
    let full = |limit: u32| Load { in_flight: limit.min(20), limit, queue_delay: Ticks::ZERO };
    let mut now = busy(&shedder, T0, Ticks::from_secs(60), full(24));
    for _ in 0..10 {
        now = busy(&shedder, now, Ticks::from_secs(4), full(16));
        now = busy(&shedder, now, Ticks::from_secs(6), full(24));
    }
    assert_eq!(shedder.level(), 0);
    busy(&shedder, now, Ticks::from_secs(60), full(16));
    assert!(shedder.level() > 1_000, "{}", shedder.level());
}

/// A long queueing delay counts like a full worker.
#[test]
fn queueing_delay_alone_sheds() {
    let shedder = WorkerShedder::new(WorkerSettings::default());
    let now =
        busy(&shedder, T0, Ticks::from_secs(5), Load { queue_delay: Ticks::from_millis(80), ..load(10) });
    assert!(shedder.level() > 500 && shed(&shedder, Priority::Test, now) > 300);
}

/// Frequent observations are smoothed like rare ones, and none is rounded away: an idle worker that becomes
/// full is soon seen as full.
#[test]
fn frequent_observations_add_up() {
    let shedder = WorkerShedder::new(WorkerSettings::default());
    shedder.observe(load(0), T0);
    let now = busy(&shedder, T0, Ticks::from_secs(8), load(100));
    assert!(shedder.report(now).utilisation >= Some(990), "{:?}", shedder.report(now));
}

/// A long delay still counts if later observations before the update have none.
#[test]
fn the_longest_delay_since_the_last_update_counts() {
    let shedder = WorkerShedder::new(WorkerSettings::default());
    let mut now = T0;
    for _ in 0..500 {
        let waited = Load { queue_delay: Ticks::from_millis(80), ..load(10) };
        for (load, after) in [(load(10), 0), (waited, 3), (load(10), 6)] {
            shedder.observe(load, now + Ticks::from_millis(after));
        }
        now = now + Ticks::from_millis(10);
    }
    assert!(shedder.level() > 500, "{}", shedder.level());
}

/// In shadow nothing is refused and all is counted; when killed nothing is counted.
#[test]
fn shadow_counts_and_the_kill_switch_does_not() {
    let shedder = WorkerShedder::new(WorkerSettings { mode: Mode::Shadow, ..WorkerSettings::default() });
    let now = busy(&shedder, T0, Ticks::from_secs(10), load(100));
    assert_eq!(shed(&shedder, Priority::Test, now), 0);
    let report = shedder.report(now);
    assert_eq!((report.refused, report.would_refuse, report.mode), (0, 1_000, Mode::Shadow));
    shedder.switch().set(Mode::Enforce);
    assert_eq!(shed(&shedder, Priority::Test, now), 1_000);
    shedder.switch().kill(now + Ticks::from_secs(60));
    assert_eq!(shed(&shedder, Priority::Test, now), 0);
    assert_eq!(shedder.report(now).killed_until, Some(now + Ticks::from_secs(60)));
}
