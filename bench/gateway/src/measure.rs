//! Rounds: each asks every contender once, in rotating order, as fast as it goes and at half of what the slowest can do.

use std::net::SocketAddr;
use std::time::Duration;

use crate::contender::{Contender, Kind, Width};
use crate::load::{self, Connection, Pace};
use crate::process::{Core, Process, free};
use crate::report::{Report, Sample};
use crate::{Failure, Options};

/// Connections that ask.
const CONNECTIONS: usize = 64;
/// How often a narrow limit, of about five, is asked.
const NARROW_ASKED: usize = 30;
/// How often a measurement is tried, and how much longer than meant it may take.
const TRIES: usize = 5;
const LATE_MOST: f64 = 1.1;

/// Measures everything and prints the tables.
pub(crate) fn all(options: &Options) -> Result<(), Failure> {
    // Timers that fire at their instant; without it they may be 50 µs late.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
    let address = free()?;
    let own = std::env::current_exe()?;
    let arguments = ["upstream".to_owned(), address.to_string()];
    let _upstream = Process::start(&own, &arguments, Core::Load, address)?;

    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| *kind == Kind::Direct || *kind == Kind::Tollgate || options.selects(kind.name()))
        .collect();
    for kind in kinds.iter().copied().filter(|kind| kind.is_limited()) {
        verify(options, kind, address)?;
    }
    eprintln!("all limits refuse what is above them");

    let mut report = Report::new(options.rounds, options.idle);
    for &kind in kinds.iter().filter(|kind| **kind != Kind::Direct) {
        rest(options, kind, address, &mut report)?;
    }
    let contenders = kinds
        .iter()
        .map(|&kind| Contender::start(options, kind, Width::Wide, address))
        .collect::<Result<Vec<_>, _>>()?;
    // What the slowest can do, before anything is counted; this warms everybody up as well.
    let mut slowest = f64::INFINITY;
    for contender in &contenders {
        slowest = slowest.min(measure(options, contender, Pace::Closed)?.per_second);
    }
    let half = Pace::Open { per_second: (slowest / 2.0).floor() };
    report.half_load = (slowest / 2.0).floor();
    for round in 0..options.rounds {
        for place in 0..contenders.len() {
            // The order rotates, so that nobody always runs after the same neighbour.
            let contender = &contenders[(place + round) % contenders.len()];
            for pace in [Pace::Closed, half] {
                let sample = measure(options, contender, pace)?;
                eprintln!(
                    "round {} of {}: {}, {pace:?}: {:.0}/s, p99 {:.0} µs, {:.2} µs of its core, busy {:.0} %",
                    round + 1,
                    options.rounds,
                    contender.kind.name(),
                    sample.per_second,
                    sample.p99_us,
                    sample.processor_us,
                    sample.busy * 100.0
                );
                report.add(contender.kind, pace, sample);
            }
        }
    }
    report.print();
    Ok(())
}

/// One measurement. One in which the load itself stood still, since somebody else had its core, is taken again.
fn measure(options: &Options, contender: &Contender, pace: Pace) -> Result<Sample, Failure> {
    for _ in 0..TRIES {
        if let Some(sample) = try_measure(options, contender, pace)? {
            return Ok(sample);
        }
        eprintln!("{}: the load stood still, so it is measured again", contender.kind.name());
    }
    Err(format!("{}: this machine is too busy to measure on", contender.kind.name()).into())
}

/// None if the load was so late at its own end that it says nothing about others, or had no time to hear an answer.
fn try_measure(options: &Options, contender: &Contender, pace: Pace) -> Result<Option<Sample>, Failure> {
    let name = contender.kind.name();
    let processor = || contender.process.as_ref().map_or(Ok(Duration::ZERO), Process::processor);
    let mut before = Ok(Duration::ZERO);
    let times = [options.warmup, options.duration];
    let outcome = load::run(contender.target, CONNECTIONS, pace, times, || before = processor());
    let outcome = outcome.map_err(|failure| format!("{name}: {failure}"))?;
    let took = processor()?.saturating_sub(before?);
    if outcome.refused > 0 {
        return Err(format!("{name}: {} of {} answers are no 200", outcome.refused, outcome.answers()).into());
    }
    if outcome.answers() == 0 || outcome.took > options.duration.mul_f64(LATE_MOST) {
        return Ok(None);
    }
    Ok(Some(Sample {
        per_second: outcome.per_second(),
        p50_us: outcome.latency_us(0.5),
        p99_us: outcome.latency_us(0.99),
        processor_us: took.as_secs_f64() * 1e6 / outcome.answers() as f64,
        busy: took.as_secs_f64() / outcome.took.as_secs_f64(),
    }))
}

/// A contender that does not limit is not measured: with a narrow limit some pass, and most do not.
fn verify(options: &Options, kind: Kind, upstream: SocketAddr) -> Result<(), Failure> {
    let contender = Contender::start(options, kind, Width::Narrow, upstream)?;
    let mut connection = Connection::open(contender.target)?;
    let mut admitted = 0;
    for _ in 0..NARROW_ASKED {
        admitted +=
            usize::from(connection.ask_once().map_err(|failure| format!("{}: {failure}", kind.name()))?);
    }
    if (1..=10).contains(&admitted) {
        return Ok(());
    }
    Err(format!("{} does not limit as it should: {admitted} of {NARROW_ASKED} admitted", kind.name()).into())
}

/// Memory before and after many connections, each of which has asked once.
fn rest(options: &Options, kind: Kind, upstream: SocketAddr, report: &mut Report) -> Result<(), Failure> {
    let contender = Contender::start(options, kind, Width::Wide, upstream)?;
    let Some(process) = contender.process.as_ref() else { return Ok(()) };
    let mut first = Connection::open(contender.target)?;
    first.ask_once()?;
    drop(first);
    let before = process.resident_kib()?;
    let mut connections = Vec::with_capacity(options.idle);
    for number in 0..options.idle {
        let asked = Connection::open(contender.target).and_then(|mut connection| {
            connection.ask_once()?;
            Ok(connection)
        });
        connections
            .push(asked.map_err(|failure| format!("{}: connection {number}: {failure}", kind.name()))?);
    }
    let after = process.resident_kib()?;
    // One that was closed would not be memory of a connection that rests.
    for connection in connections.iter_mut().step_by(97) {
        connection.ask_once().map_err(|failure| format!("{}: one that rested: {failure}", kind.name()))?;
    }
    report.rested(kind, before, after);
    Ok(())
}
