//! The documentation's numbers are the code's.

use tollgate_sim::accuracy::{self, INCIDENT_LIMIT};
use tollgate_sim::overload::contrast::Way;
use tollgate_sim::overload::table;

const PAGE: &str = include_str!("../../../../docs/accuracy.md");

/// The incident's table stands in the page as the code gives it today.
#[test]
fn the_incident_is_told_as_it_happens() {
    let table = accuracy::incident_table().unwrap();
    assert!(
        PAGE.contains(&table),
        "docs/accuracy.md is out of date; the page says how to regenerate it. It should have:\n{table}"
    );
}

/// What the incident must show: the log stops at the limit, the clock's windows let all pass, the interpolating window is off
/// by less than one more limit, a bucket admits its burst and what 20 s earn.
#[test]
fn the_incident_shows_what_each_algorithm_promises() {
    let hits = accuracy::incident_trace();
    let lasted = hits.last().unwrap().at.since(hits.first().unwrap().at).as_micros();
    let earned = INCIDENT_LIMIT * lasted / 60_000_000;
    for (name, quota) in accuracy::algorithms(INCIDENT_LIMIT).unwrap() {
        let admitted = accuracy::run(&quota, INCIDENT_LIMIT, &hits).total;
        let expected = match name {
            "fixed-window, epoch" => 8_000..=8_000,
            "sliding-window 1, interpolate" => 5_000..=9_999,
            "sliding-window 10, interpolate" => 5_000..=5_000 + 5_000 / 10,
            "gcra, burst = limit" => 5_000 + earned..=5_000 + earned,
            "gcra, burst = limit / 10" => 500 + earned..=500 + earned,
            _ => 5_000..=5_000,
        };
        assert!(expected.contains(&admitted), "{name} admits {admitted}");
    }
}

/// The guide to overload shows what the simulation gives today.
#[test]
fn the_overload_is_told_as_it_happens() {
    const GUIDE: &str = include_str!("../../../../docs/overload.md");
    for part in [table::priorities(1), table::picture(1, Way::Ours)] {
        assert!(GUIDE.contains(part.trim_end()), "docs/overload.md is out of date; it should have:\n{part}");
    }
}
