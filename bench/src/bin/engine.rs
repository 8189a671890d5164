//! Five limits at once: the time of one decision of Tollgate's engine, beside five calls of governor.

use tollgate_bench::arguments::Arguments;
use tollgate_bench::five::{self, Five, FiveGovernors, Row};
use tollgate_bench::measure::{self, Sample, Step, Timing};
use tollgate_bench::report::{median, plural};
use tollgate_bench::{Failure, machine, target};

/// Tollgate's row, to which the target belongs.
const ENGINE: &str = "tollgate engine, one call";
/// A decision of the engine about five limits takes less.
const TARGET_NANOS: f64 = 1_000.0;
/// Decisions between two looks at the clock.
const CHUNK: usize = 256;

/// A contender.
struct Entry {
    name: &'static str,
    five: Box<dyn Five>,
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::read(&["quick"], &["rounds", "threads"])?;
    let timing = if arguments.has("quick") { Timing::QUICK } else { Timing::FULL };
    let rounds = arguments.count("rounds", 5)?;
    let threads = arguments.counts("threads", &[1, 2])?;

    let entries = entries()?;
    for entry in &entries {
        five::verify(entry.name, entry.five.as_ref())?;
    }
    let rows = five::rows();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); entries.len() * threads.len()];
    for round in 0..rounds {
        for place in 0..entries.len() {
            let index = (place + round) % entries.len(); // The order rotates, as in `library`.
            for (column, &count) in threads.iter().enumerate() {
                eprintln!("round {} of {rounds}, {}, {}", round + 1, entries[index].name, plural(count));
                let sample = sample(entries[index].five.as_ref(), &rows, count, timing);
                samples[index * threads.len() + column].push(sample);
            }
        }
    }

    println!("{}\n", machine::describe());
    println!("### Nanoseconds for a decision about five limits: median of {rounds} rounds\n");
    println!("| | threads | ns a decision | admitted | target |\n|---|---:|---:|---:|---|");
    for (index, entry) in entries.iter().enumerate() {
        for (column, &count) in threads.iter().enumerate() {
            println!("{}", line(entry, count, &samples[index * threads.len() + column]));
        }
    }
    Ok(())
}

fn entries() -> Result<Vec<Entry>, Failure> {
    Ok(vec![
        Entry { name: "governor, five calls", five: Box::new(FiveGovernors::new()?) },
        Entry { name: ENGINE, five: Box::new(tollgate_bench::tollgate_side::WholeEngine::new()?) },
    ])
}

fn sample(five: &dyn Five, rows: &[Row], threads: usize, timing: Timing) -> Sample {
    measure::timed(threads, timing, |thread| {
        let mut chunks = rows.chunks(CHUNK).cycle().skip(rows.len() / CHUNK / threads * thread);
        move || {
            let chunk = chunks.next().unwrap_or_default();
            Step { decisions: chunk.len(), admitted: five.decide(chunk) }
        }
    })
}

/// The time is a thread's own: with two threads, two decisions are made in it.
fn line(entry: &Entry, threads: usize, samples: &[Sample]) -> String {
    let nanos =
        median(samples.iter().map(|sample| 1e9 * threads as f64 / sample.per_second)).unwrap_or_default();
    let admitted = median(samples.iter().map(|sample| 100.0 * sample.admitted)).unwrap_or_default();
    let verdict = match entry.name {
        ENGINE => format!("< {TARGET_NANOS} ns: {}", target::verdict(Some(nanos < TARGET_NANOS))),
        _ => String::new(),
    };
    format!("| {} | {} | {nanos:.0} | {admitted:.1} % | {verdict} |", entry.name, plural(threads))
}
