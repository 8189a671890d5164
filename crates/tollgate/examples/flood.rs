//! Sends ten million new keys to a store of 64 MiB. The memory stays flat, ten thousand resident keys are decided exactly,
//! and throttled keys stay throttled.
//!
//! `cargo run --release -p tollgate --example flood [KEYS] [MIB]`. Ends with 1 if a claim does not hold. Times are printed
//! and claim nothing.

#![allow(clippy::print_stdout, reason = "a program whose output is its purpose")]

#[path = "flood/trial.rs"]
mod trial;

use std::process::ExitCode;

use tollgate::{Clock, Ticks};
use trial::{Algorithm, Expects, Plan, Report, Row};

/// Bytes that the process itself may use besides the store: code, the residents' own count, the allocator's slack.
const SLACK_BYTES: u64 = 16 << 20;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.replace('_', "").parse::<u64>());
    let mut number = |or| arguments.next().map_or(Ok(or), |given| given);
    let (Ok(keys), Ok(mib)) = (number(10_000_000), number(64)) else {
        eprintln!("usage: flood [KEYS] [MIB], both whole numbers");
        return ExitCode::from(2);
    };
    let mut held = true;
    for plan in plans(keys, mib << 20) {
        held &= carry_out(&plan);
    }
    println!("{}", if held { "every claim holds" } else { "NOT every claim holds" });
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Two floods whose keys outlive them, one for each kind of small state, and one whose keys are soon idle.
fn plans(keys: u64, capacity_bytes: u64) -> [Plan; 3] {
    let long = |name, algorithm| Plan {
        name,
        keys,
        capacity_bytes,
        residents: 10_000,
        victims: 1_000,
        algorithm,
        units: 20,
        period: Ticks::from_secs(3_600),
        lasts: Ticks::from_secs(150),
        looks: 10,
        expects: Expects::Overflow,
    };
    [
        long("token bucket, 20 an hour: keys stay live", Algorithm::TokenBucket),
        long("fixed window, 20 an hour: keys stay live", Algorithm::FixedWindow),
        Plan {
            units: 4,
            period: Ticks::from_secs(2),
            lasts: Ticks::from_secs(30),
            expects: Expects::Eviction,
            ..long("token bucket, 4 in 2 seconds: keys are soon idle", Algorithm::TokenBucket)
        },
    ]
}

fn carry_out(plan: &Plan) -> bool {
    let clock = Clock::precise();
    let began = clock.now();
    println!("\n{}: {} keys, {} MiB", plan.name, plan.keys, plan.capacity_bytes >> 20);
    println!(
        "{:>10} {:>8} {:>8} {:>9} {:>10} {:>6} {:>10}",
        "new keys", "second", "RSS MiB", "store MiB", "live keys", "shared", "residents"
    );
    let progress = |row: &Row| {
        eprintln!("{} of {} keys after {} ms", row.keys, plan.keys, clock.now().since(began).ceil_millis())
    };
    let report = match trial::run(plan, progress) {
        Ok(report) => report,
        Err(error) => {
            println!("the plan is impossible: {error}");
            return false;
        }
    };
    report.rows.iter().for_each(print_row);
    print_counts(&report, clock.now().since(began));
    let mut broken = report.broken.clone();
    broken.extend(memory_claims(plan, &report.rows));
    broken.iter().for_each(|claim| println!("BROKEN: {claim}"));
    if report.broken_in_all > report.broken.len() as u64 {
        println!("BROKEN: {} claims in all", report.broken_in_all);
    }
    broken.is_empty()
}

fn print_row(row: &Row) {
    let rss = row.rss_bytes.map_or_else(|| "-".to_owned(), mib);
    println!(
        "{:>10} {:>8} {rss:>8} {:>9} {:>10} {:>6} {:>10}",
        row.keys,
        row.elapsed.as_micros() / 1_000_000,
        mib(row.usage.bytes),
        row.usage.keys,
        row.usage.overflow_keys,
        row.counts.resident
    );
}

fn print_counts(report: &Report, took: Ticks) {
    let counts = report.counts;
    let denied = counts.resident - counts.resident_admitted;
    println!(
        "residents: {} decisions, {} admitted, {denied} denied, all compared",
        counts.resident, counts.resident_admitted
    );
    println!("victims: {} answers", counts.victim);
    println!(
        "new keys: {} with a counter of their own, {} sharing, {} of them denied",
        counts.own, counts.shared, counts.shared_denied
    );
    println!("took {} ms", took.ceil_millis());
}

/// Claims: the process takes no more than the store may and a little, and once the flood has begun it stays flat.
fn memory_claims(plan: &Plan, rows: &[Row]) -> Vec<String> {
    let rss: Vec<u64> = rows.iter().filter_map(|row| row.rss_bytes).collect();
    let (Some(&before), Some(&most)) = (rss.first(), rss.iter().max()) else {
        return Vec::new();
    };
    let mut broken = Vec::new();
    if most.saturating_sub(before) > plan.capacity_bytes + SLACK_BYTES {
        broken.push(format!(
            "RSS grew by {} MiB with a cap of {}",
            mib(most - before),
            mib(plan.capacity_bytes)
        ));
    }
    let second_half = &rss[rss.len() / 2..];
    let growth = second_half.last().unwrap_or(&0).saturating_sub(*second_half.first().unwrap_or(&0));
    if growth > SLACK_BYTES {
        broken.push(format!("RSS grew by {} MiB in the second half of the flood", mib(growth)));
    }
    broken
}

/// Mebibytes with one decimal, without floating point.
fn mib(bytes: u64) -> String {
    format!("{}.{}", bytes >> 20, ((bytes & 0xF_FFFF) * 10) >> 20)
}
