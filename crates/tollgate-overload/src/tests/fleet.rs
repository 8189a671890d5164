//! The fleet shedder: only critical traffic uses the reserve.

use proptest::prelude::*;

use super::T0;
use crate::{Cause, FleetScope, FleetSettings, FleetShedder, Priority};
use tollgate::policy::{Consistency, Mode};
use tollgate::time::{Ticks, Timestamp};
use tollgate::{Engine, Rate};

fn settings(capacity: Rate, reserve: u64) -> FleetSettings {
    FleetSettings { capacity, reserve, scope: FleetScope::Node, mode: Mode::Enforce }
}

struct Node {
    shedder: FleetShedder,
    engine: Engine,
}

impl Node {
    fn new(settings: FleetSettings) -> Self {
        let shedder = FleetShedder::new(settings).unwrap();
        let engine = Engine::builder()
            .policy(shedder.policy().unwrap())
            .clock(tollgate::ManualClock::starting_at(T0).clock())
            .build();
        Self { shedder, engine }
    }

    fn admits(&self, priority: Priority, now: Timestamp) -> bool {
        let Some(question) = self.shedder.check_request(priority, now) else { return true };
        self.shedder.judge(&self.engine.try_check(&question, now).unwrap(), priority, now).is_ok()
    }
}

/// Nine hundred of a thousand for all traffic, the last hundred for critical traffic.
#[test]
fn the_reserve_is_for_critical_traffic() {
    let node = Node::new(settings(Rate::per_second(1_000), 100));
    let others = [Priority::Test, Priority::Read, Priority::Write];
    let admitted = (0..3_000).filter(|i| node.admits(others[i % 3], T0)).count();
    assert_eq!(admitted, 900);
    assert_eq!((0..500).filter(|_| node.admits(Priority::Critical, T0)).count(), 100);
    let question = node.shedder.check_request(Priority::Read, T0).unwrap();
    let refusal =
        node.shedder.judge(&node.engine.try_check(&question, T0).unwrap(), Priority::Read, T0).unwrap_err();
    assert_eq!((refusal.cause, refusal.priority), (Cause::Capacity, Priority::Read));
    assert_eq!(node.shedder.report(T0).limit, Some(1_000));
}

/// Critical traffic may use the whole capacity.
#[test]
fn critical_traffic_may_use_all() {
    let node = Node::new(settings(Rate::per_second(1_000), 100));
    assert_eq!((0..3_000).filter(|_| node.admits(Priority::Critical, T0)).count(), 1_000);
    assert!(!node.admits(Priority::Write, T0));
}

proptest! {
    /// Critical traffic within the reserve is never refused, whatever other traffic does.
    #[test]
    fn the_reserve_holds_in_every_interval(
        steps in proptest::collection::vec((0u64..40_000, 0usize..30), 1..200),
        reserve in 1u64..9,
    ) {
        let node = Node::new(settings(Rate::per_second(1_000).burst(100), reserve * 100));
        let mut now = T0;
        // A bucket of just the reserve, by hand: a tenth of a burst in hundredths, in thousandths.
        let (most, mut credit) = (reserve * 10 * 1_000_000, reserve * 10 * 1_000_000);
        for (gap, others) in steps {
            now = now + Ticks::from_micros(gap);
            credit = (credit + gap * reserve * 100).min(most);
            for _ in 0..others {
                node.admits(Priority::Write, now);
            }
            while credit >= 1_000_000 + 1_000 {
                credit -= 1_000_000;
                prop_assert!(node.admits(Priority::Critical, now));
            }
        }
    }
}

/// A fleet's capacity is counted by leases, a node's in memory, each under its own limit names.
#[test]
fn the_scope_selects_the_consistency() {
    for (scope, consistency) in
        [(FleetScope::Fleet, Consistency::Leased), (FleetScope::Node, Consistency::Exact)]
    {
        let shedder =
            FleetShedder::new(FleetSettings { scope, ..settings(Rate::per_second(500_000), 200) }).unwrap();
        let policy = shedder.policy().unwrap();
        let names: Vec<&str> = policy.limits().iter().map(|limit| limit.name()).collect();
        assert_eq!(names, ["overload.fleet", "overload.fleet.general"]);
        assert!(policy.limits().iter().all(|limit| limit.consistency() == consistency));
    }
    assert!(FleetShedder::new(settings(Rate::per_second(1_000).burst(1), 100)).is_err());
    assert!(FleetShedder::new(settings(Rate::per_second(0), 100)).is_err());
}

/// In shadow nothing is refused; when killed the engine is not even asked.
#[test]
fn shadow_and_kill_switch() {
    let node = Node::new(FleetSettings { mode: Mode::Shadow, ..settings(Rate::per_second(10), 500) });
    assert_eq!((0..20).filter(|_| node.admits(Priority::Read, T0)).count(), 20);
    assert_eq!(node.shedder.report(T0).would_refuse, 15);
    node.shedder.switch().kill(T0 + Ticks::from_secs(1));
    assert!(node.shedder.check_request(Priority::Read, T0).is_none());
}
