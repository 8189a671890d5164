//! Rounds: each asks every contender once, in rotating order.

use tollgate_load::{Pace, Plan};

use crate::contender::{Contender, Field, Wire};
use crate::report::{Report, Sample};
use crate::{Failure, Options};

/// Connections that ask.
const CONNECTIONS: usize = 64;
/// The load at which latencies are compared, in requests a second.
const EQUAL_LOAD: u64 = 10_000;
/// How many keys: many, and one.
const KEYS: [u64; 2] = [1_000_000, 1];

/// Measures everything and prints the tables.
pub(crate) async fn all(options: &Options) -> Result<(), Failure> {
    let field = Field::start(options).await?;
    let mut report = Report::default();
    for (name, process) in &field.processes {
        report.idle(name, process.resident_kib());
    }
    for contender in &field.contenders {
        verify(contender).await?;
    }
    eprintln!("all {} contenders answer as they should", field.contenders.len());
    for round in 0..options.rounds {
        for wire in Wire::ALL {
            let on_wire: Vec<&Contender> = field.contenders.iter().filter(|one| one.wire == wire).collect();
            for place in 0..on_wire.len() {
                // The order rotates, so that nobody always runs after the same neighbour.
                let contender = on_wire[(place + round) % on_wire.len()];
                for keys in KEYS {
                    measure(options, contender, keys, Pace::Closed, round, &mut report).await?;
                }
                if wire != Wire::Batch && wire != Wire::Pipelined {
                    let pace = Pace::Open { per_second: EQUAL_LOAD };
                    measure(options, contender, KEYS[0], pace, round, &mut report).await?;
                }
            }
        }
    }
    report.print(options.rounds);
    Ok(())
}

fn plan(options: &Options, contender: &Contender, keys: u64, pace: Pace) -> Plan {
    Plan {
        target: contender.target,
        question: contender.question.clone(),
        connections: CONNECTIONS,
        pipeline: contender.pipeline,
        keys,
        pace,
        warmup: options.warmup,
        duration: options.duration,
    }
}

async fn measure(
    options: &Options,
    contender: &Contender,
    keys: u64,
    pace: Pace,
    round: usize,
    report: &mut Report,
) -> Result<(), Failure> {
    let named = format!("{} {}", contender.wire.name(), contender.name);
    let summary = tollgate_load::run(&plan(options, contender, keys, pace), |_| ()).await;
    let summary = summary.map_err(|error| format!("{named}: {error}"))?;
    if summary.errors > 0 {
        return Err(format!("{named}: {} errors", summary.errors).into());
    }
    let sample = Sample {
        per_second: summary.per_second() as f64,
        p50_us: summary.latency_of(50_000).as_micros() as f64,
        p99_us: summary.latency_of(99_000).as_micros() as f64,
        allowed: summary.allowed as f64 / summary.decisions.max(1) as f64,
    };
    eprintln!(
        "round {} of {}: {named}, {keys} keys, {pace:?}: {:.0}/s, p99 {:.0} µs",
        round + 1,
        options.rounds,
        sample.per_second,
        sample.p99_us
    );
    report.add(contender, keys, pace, sample);
    Ok(())
}

/// A contender that does not limit is not measured: one key must be allowed at first, and mostly denied under load.
async fn verify(contender: &Contender) -> Result<(), Failure> {
    if contender.name == "bare echo" {
        return Ok(());
    }
    let plan = Plan {
        target: contender.target,
        question: contender.question.clone(),
        connections: 4,
        pipeline: contender.pipeline,
        keys: 1,
        pace: Pace::Closed,
        warmup: std::time::Duration::ZERO,
        duration: std::time::Duration::from_millis(500),
    };
    let summary =
        tollgate_load::run(&plan, |_| ()).await.map_err(|error| format!("{}: {error}", contender.name))?;
    // 200 at once and 100 a second; another wire of the same service may have spent some of it just before.
    if summary.allowed > 260 || summary.decisions < 300 || summary.errors > 0 {
        return Err(format!(
            "{} on {} does not limit as it should: {} of {} allowed, {} errors",
            contender.name,
            contender.wire.name(),
            summary.allowed,
            summary.decisions,
            summary.errors
        )
        .into());
    }
    Ok(())
}
