//! The flood of `examples/flood.rs`, small enough for every test run.

#[path = "../../examples/flood/trial.rs"]
mod trial;

use tollgate::Ticks;
use trial::{Algorithm, Expects, Plan};

fn small(algorithm: Algorithm) -> Plan {
    Plan {
        name: "small",
        keys: 200_000,
        capacity_bytes: 2 << 20,
        residents: 1_000,
        victims: 100,
        algorithm,
        units: 20,
        period: Ticks::from_secs(3_600),
        lasts: Ticks::from_secs(150),
        looks: 5,
        expects: Expects::Overflow,
    }
}

fn assert_holds(plan: &Plan) {
    let report = trial::run(plan, |_| ()).expect("the plan is possible");
    assert_eq!(
        report.broken,
        Vec::<String>::new(),
        "{} claims of {} are broken",
        report.broken_in_all,
        plan.name
    );
    // The machine's memory is shared with other tests, so only the store's own is checked.
    let last = report.rows.last().expect("it was looked at");
    assert_eq!((last.keys, last.elapsed <= plan.lasts), (plan.keys, true));
    assert!(
        report
            .rows
            .iter()
            .all(|row| row.rss_bytes != Some(0) && row.counts.resident >= plan.residents || row.keys == 0)
    );
    assert!(report.counts.own + report.counts.shared == plan.keys);
    assert!(report.counts.shared_denied <= report.counts.shared && report.counts.victim > 0);
}

/// Residents are exact and victims stay throttled while more new keys come than fit, in one word and in two.
#[test]
fn a_flood_of_active_keys_neither_frees_nor_denies_known_keys() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        assert_holds(&small(algorithm));
    }
}

/// Slots of idle keys are reused: no key shares a counter, although many more keys come than fit.
#[test]
fn a_flood_of_idle_keys_needs_no_shared_counter() {
    assert_holds(&Plan {
        units: 4,
        period: Ticks::from_secs(2),
        expects: Expects::Eviction,
        lasts: Ticks::from_secs(30),
        ..small(Algorithm::TokenBucket)
    });
}
