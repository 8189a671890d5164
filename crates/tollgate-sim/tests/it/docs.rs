//! The numbers in the documentation are those of the code.

use crate::accuracy::{self, INCIDENT_LIMIT};
use crate::overloaded_server::limiters::LimiterKind;
use crate::overloaded_server::table;

const PAGE: &str = include_str!("../../../../docs/accuracy.md");

#[test]
fn the_accuracy_page_has_the_current_incident_table() {
    let table = accuracy::incident_table().unwrap();
    assert!(
        PAGE.contains(&table),
        "docs/accuracy.md is out of date; the page says how to regenerate it. It should have:\n{table}"
    );
}

/// The log stops at the limit, windows aligned to the clock admit everything, the interpolating window admits less than
/// twice the limit, and a bucket admits its burst and what it earns in 20 s.
#[test]
fn each_algorithm_keeps_its_promise_in_the_incident() {
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

#[test]
fn the_overload_page_has_the_current_tables() {
    const GUIDE: &str = include_str!("../../../../docs/overload-measured.md");
    for part in [table::priorities(1), table::chart(1, LimiterKind::Tollgate)] {
        assert!(
            GUIDE.contains(part.trim_end()),
            "docs/overload-measured.md is out of date; it should have:\n{part}"
        );
    }
}
