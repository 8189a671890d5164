//! Bytes of memory for a live key: what a process grows by when a contender learns keys, divided by the keys. Each
//! measurement has a process of its own. Whether all the keys are really remembered is checked, not assumed.

use std::process::Command;

use tollgate_bench::arguments::Arguments;
use tollgate_bench::clock::CachedClock;
use tollgate_bench::contender::{Contender, Kind};
use tollgate_bench::report::short;
use tollgate_bench::workload::{self, Sequence};
use tollgate_bench::{Failure, machine, quota, target};

/// The contenders that keep exact state for each key.
const KINDS: &[Kind] =
    &[Kind::GovernorU64, Kind::GovernorString, Kind::Throttlecrab, Kind::LowerBound, Kind::Tollgate];
/// Most bytes for a key of Tollgate's, at this many keys and more.
const TARGET_BYTES: f64 = 40.0;
const TARGET_KEYS: usize = 10_000_000;
/// How many keys are asked again to see that they are remembered.
const SAMPLE: usize = 10_000;

fn main() -> Result<(), Failure> {
    let arguments = Arguments::read(&[], &["only", "keys", "contender"])?;
    let keys = arguments.counts("keys", &[1_000_000, 10_000_000])?;
    if let (Some(name), Some(&count)) = (arguments.text("contender"), keys.first()) {
        println!("{}", grown_bytes(Kind::named(name)?, count)?);
        return Ok(());
    }
    println!("{}\n", machine::describe());
    println!("| bytes of resident memory for a live key | keys | bytes | target |\n|---|---:|---:|---|");
    let mut failures = Vec::new();
    let kinds = KINDS.iter().filter(|kind| Kind::BUILT.contains(kind));
    for &kind in kinds.filter(|kind| arguments.selects("only", kind.name())) {
        for &count in &keys {
            eprintln!("{}: {count} keys", kind.name());
            match in_a_child(kind, count) {
                Ok(bytes) => println!("{}", row(kind, count, bytes)),
                Err(failure) => {
                    println!("| {} | {count} | failed | {failure} |", kind.name());
                    failures.push(format!("{}: {failure}", kind.name()));
                }
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

fn row(kind: Kind, keys: usize, bytes: u64) -> String {
    let for_each = bytes as f64 / keys as f64;
    let verdict = match kind {
        Kind::Tollgate if keys >= TARGET_KEYS => {
            format!("≤ {TARGET_BYTES}: {}", target::verdict(Some(for_each <= TARGET_BYTES)))
        }
        _ => String::new(),
    };
    format!("| {} | {keys} | {} | {verdict} |", kind.name(), short(for_each))
}

/// Runs this program again, for one contender.
fn in_a_child(kind: Kind, keys: usize) -> Result<u64, Failure> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--contender", kind.name(), "--keys", &keys.to_string()])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

fn grown_bytes(kind: Kind, keys: usize) -> Result<u64, Failure> {
    let clock = CachedClock::beating();
    // A small one first: code and buffers that are touched once are not the price of a key.
    let small = kind.build(quota::TWICE, 1_000, &clock)?;
    workload::fill(small.as_ref(), 1_000);
    drop(small);

    let before = machine::resident_bytes();
    let contender = kind.build(quota::TWICE, keys, &clock)?;
    let admitted = workload::fill(contender.as_ref(), keys);
    let after = machine::resident_bytes();
    if admitted != keys {
        return Err(
            format!("only {admitted} of {keys} new keys were admitted: they are not kept apart").into()
        );
    }
    remembered(contender.as_ref(), keys)?;
    Ok(after.saturating_sub(before))
}

/// Each key has spent one of two units: it is admitted once more, and then no more.
fn remembered(contender: &dyn Contender, keys: usize) -> Result<(), Failure> {
    let step = (keys / SAMPLE).max(1);
    let sample = Sequence::new((0..keys as u64).step_by(step));
    let asked = sample.all().keys.len();
    let (second, third) = (contender.decide(sample.all()), contender.decide(sample.all()));
    if (second, third) == (asked, 0) {
        return Ok(());
    }
    Err(format!(
        "of {asked} keys {second} were admitted a second time and {third} a third: not all are remembered"
    )
    .into())
}
