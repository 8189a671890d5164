//! The `overload:` section: what it means, and every mistake in it.

use crate::{FleetScope, LimitSettings, Plan, Priority, QueueSettings, WorkerSettings};
use tollgate::CheckRequest;
use tollgate::policy::Mode;
use tollgate::rate::Rate;
use tollgate::time::Ticks;

const PAGE: &str = include_str!("../../../../docs/overload.md");

fn plan(text: &str) -> Plan {
    let (plan, warnings) =
        Plan::compile("overload.yaml", text.as_bytes()).unwrap_or_else(|found| panic!("{found}"));
    assert_eq!(warnings.to_string(), "");
    plan
}

fn findings(text: &str) -> String {
    match Plan::compile("overload.yaml", text.as_bytes()) {
        Ok((_, warnings)) => warnings.to_string(),
        Err(findings) => findings.to_string(),
    }
}

/// The examples of the guide mean what the guide says.
#[test]
fn the_guide_examples_compile() {
    let blocks = PAGE.split("```yaml overload\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let [smallest, full] = blocks.collect::<Vec<_>>().try_into().expect("two examples");
    let smallest = plan(smallest);
    assert_eq!(smallest.queue, Some(QueueSettings::default()));
    assert!(smallest.concurrency.is_some() && smallest.fleet.is_none() && smallest.worker.is_none());
    let plan = plan(full);
    let fleet = plan.fleet.unwrap();
    assert_eq!(
        (fleet.capacity, fleet.reserve, fleet.scope),
        (Rate::per_second(500_000), 200, FleetScope::Fleet)
    );
    assert_eq!(plan.worker, Some(WorkerSettings::default()));
    let concurrency = plan.concurrency.unwrap();
    assert_eq!((concurrency.min, concurrency.initial, concurrency.max), (1, 20, 1_000));
    assert_eq!(plan.queue, Some(QueueSettings::default()));
    let rate = plan.rate.unwrap();
    assert_eq!((rate.mode, rate.target, rate.max), (Mode::Shadow, Ticks::from_millis(200), 5_000));
    for (attributes, priority) in [
        (["POST", "/v1/charges", "pro"], Priority::Critical),
        (["POST", "/v1/charges", "test"], Priority::Test),
        (["GET", "/v1/users", "pro"], Priority::Read),
        (["POST", "/v1/users", "pro"], Priority::Write),
    ] {
        let request = CheckRequest::new()
            .with("method", attributes[0])
            .and_then(|request| request.with("path", attributes[1]))
            .and_then(|request| request.with("plan", attributes[2]))
            .unwrap();
        assert_eq!(plan.rules.classify(&request), priority, "{attributes:?}");
    }
}

/// A controller that is only named has its defaults; one that is not named is absent.
#[test]
fn absent_settings_use_defaults() {
    let plan = plan("overload: {worker: , concurrency: , queue: }");
    assert_eq!(plan.worker, Some(WorkerSettings::default()));
    assert_eq!(plan.concurrency, Some(LimitSettings::default()));
    assert_eq!(plan.queue, Some(QueueSettings::default()));
    assert!(plan.fleet.is_none() && plan.rate.is_none() && plan.rules.as_slice().is_empty());
}

/// All problems are reported at once, each with its position and what would be accepted.
#[test]
fn every_problem_is_reported() {
    let file = "
overload:
  priorities:
    - when: { path: /v1/charges* }
      priority: urgent
    - priority: test
    - when: { plan: [] }
      priority: read
  fleet: { capacity: fast, reserve: 120%, scope: world }
  worker: { shed_above: 60%, restore_below: 70%, mode: on }
  concurrency: { min: 50, max: 10 }
  rate: { min: 10/s }
  queue: { target: 80ms }
  colour: red
";
    assert_eq!(
        findings(file),
        "\
overload.yaml:5:17: overload.priorities[0].priority: urgent is unknown; accepted: test, read, write, critical
overload.yaml:6:7: overload.priorities[1].when: missing; accepted: a table such as {path: /v1/charges*}, or a CEL expression
overload.yaml:7:21: overload.priorities[2].when.plan: an empty list never matches; accepted: at least one value
overload.yaml:9:22: overload.fleet.capacity: fast is not a rate; accepted: a count and a period, such as 100/s, 5/min, 1_000/h, 10k/day, 300 per 5m or 100/s burst 200
overload.yaml:9:37: overload.fleet.reserve: 120% is out of range; accepted: a percentage from 0.1% to 99%
overload.yaml:9:50: overload.fleet.scope: world is unknown; accepted: fleet, node
overload.yaml:10:45: overload.worker.restore_below: not below shed_above: it would shed and restore in turn; accepted: less than 60%
overload.yaml:10:56: overload.worker.mode: on is unknown; did you mean enforce? accepted: enforce, shadow, off
overload.yaml:11:32: overload.concurrency.max: not between min and max; accepted: at least min, 50
overload.yaml:12:9: overload.rate.target: missing; accepted: the latency to keep to, such as 100ms
overload.yaml:13:10: overload.queue.interval: too short to tell a burst from a standing queue; accepted: at least twice the target
overload.yaml:14:3: overload.colour: unknown field; accepted: priorities, fleet, worker, concurrency, rate, queue"
    );
    assert_eq!(
        findings("overload: {queue: {}}"),
        "overload.yaml:1:12: overload.queue: requests wait for a permit, but no concurrency limit is set; \
         accepted: `concurrency:` beside it"
    );
    assert_eq!(
        findings("overload: {fleet: {capacity: 1/s, reserve: 10%, scope: node}}"),
        "overload.yaml:1:30: overload.fleet.capacity: less than one request at once is not reserved; accepted: a \
         larger capacity or burst, or a smaller reserve"
    );
    assert_eq!(
        findings("overload: {worker: {restore_over: 5s}}"),
        "overload.yaml:1:35: warning: overload.worker.restore_over: quicker than shed_over: traffic that comes \
         back at once sheds again; accepted: at least as long as shed_over"
    );
    assert!(findings("limits: []").contains("overload: missing"));
    assert!(
        findings("overload: 7")
            .contains("overload: is a single value; accepted: a table with some of priorities")
    );
}
