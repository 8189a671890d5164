//! Counts the instructions of one keyed decision of each contender, with callgrind. Each contender decides N and then 2N
//! times; the difference divided by N is free of what comes before and after. Unlike time, the count hardly changes with the machine's mood.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tollgate_bench::arguments::Arguments;
use tollgate_bench::clock::CachedClock;
use tollgate_bench::contender::{Contender, Kind};
use tollgate_bench::workload::{self, Sequence};
use tollgate_bench::{Failure, machine, quota, target};
use tollgate_sim::random::Random;

const KEYS: usize = 1_024;
/// Requests before they repeat.
const SEQUENCE: usize = 4_096;
/// N.
const DECISIONS: usize = 1 << 16;
/// N for limitador, which takes a hundred times as long.
const DECISIONS_SLOW: usize = 1 << 12;
/// Most instructions of a Tollgate keyed GCRA decision with a text key.
const TARGET: u64 = 130;

fn main() -> Result<(), Failure> {
    let arguments = Arguments::read(&[], &["only", "contender", "decisions"])?;
    if let Some(name) = arguments.text("contender") {
        return decide(Kind::named(name)?, arguments.count("decisions", DECISIONS)?);
    }
    println!("{}\n", machine::describe());
    println!("| one keyed decision, admitted | instructions | target |\n|---|---:|---|");
    for &kind in Kind::BUILT.iter().filter(|kind| arguments.selects("only", kind.name())) {
        eprintln!("{}: running twice under callgrind", kind.name());
        let count = instructions(kind)?;
        let verdict = match kind {
            Kind::Tollgate => format!("≤ {TARGET}: {}", target::verdict(Some(count <= TARGET))),
            _ => String::new(),
        };
        println!("| {} | {count} | {verdict} |", kind.name());
    }
    Ok(())
}

/// Runs under callgrind: fills the contender, then decides so many times.
fn decide(kind: Kind, decisions: usize) -> Result<(), Failure> {
    // Wide, so that every decision is an admission, however long the emulation takes. The cached clock stands still.
    let contender = kind.build(quota::WIDE, KEYS, &CachedClock::stopped())?;
    workload::fill(contender.as_ref(), KEYS);
    let mut random = Random::new(1);
    let sequence = Sequence::new((0..SEQUENCE).map(|_| random.below(KEYS as u64)));
    let admitted = counted(contender.as_ref(), &sequence, decisions);
    if admitted == decisions {
        Ok(())
    } else {
        Err(format!("{admitted} of {decisions} were admitted").into())
    }
}

/// Callgrind counts while this runs, and only then: a clock that calibrates itself, as governor's does, takes a time
/// that differs from run to run. It knows the function by its name, so it must stay one.
#[inline(never)]
fn counted(contender: &dyn Contender, sequence: &Sequence, decisions: usize) -> usize {
    let (mut position, mut done, mut admitted) = (0, 0, 0);
    while done < decisions {
        let (requests, next) = sequence.chunk(position, SEQUENCE.min(decisions - done));
        position = next;
        done += requests.keys.len();
        admitted += contender.decide_alone(requests);
    }
    admitted
}

fn instructions(kind: Kind) -> Result<u64, Failure> {
    let decisions = if kind == Kind::Limitador { DECISIONS_SLOW } else { DECISIONS };
    let once = callgrind(kind, decisions)?;
    let twice = callgrind(kind, 2 * decisions)?;
    let difference = twice.checked_sub(once).ok_or("twice the decisions took fewer instructions")?;
    match difference / decisions as u64 {
        0 => Err(format!("{}: callgrind did not see the decisions", kind.name()).into()),
        count => Ok(count),
    }
}

/// Instructions of the main thread; a clock's thread, if a contender has one, is not part of a decision.
fn callgrind(kind: Kind, decisions: usize) -> Result<u64, Failure> {
    let directory = std::env::temp_dir();
    let base = directory.join(format!("callgrind.out.tollgate-bench.{}", std::process::id()));
    let status = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--separate-threads=yes",
            "--quiet",
            "--toggle-collect=*instructions*counted*",
        ])
        .arg(format!("--callgrind-out-file={}", base.display()))
        .arg(std::env::current_exe()?)
        .args(["--contender", kind.name(), "--decisions", &decisions.to_string()])
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("valgrind: {error}; is it installed?"))?;
    if !status.success() {
        return Err(format!("{} under valgrind: {status}", kind.name()).into());
    }
    let main_thread = PathBuf::from(format!("{}-01", base.display()));
    let text = std::fs::read_to_string(&main_thread)
        .map_err(|error| format!("{}: {error}", main_thread.display()))?;
    remove(&base)?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")));
    let total = total.ok_or("callgrind's file has no total")?;
    Ok(total.trim().parse()?)
}

/// Removes what callgrind wrote, a file for each thread.
fn remove(base: &std::path::Path) -> Result<(), Failure> {
    let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for entry in std::fs::read_dir(base.parent().unwrap_or(base))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&name) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
