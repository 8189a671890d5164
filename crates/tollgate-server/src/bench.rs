//! `tollgate bench`: from the arguments to a table, and a plot of latency against load.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Serialize;
use tollgate_load::{LoadError, LoadRequest, Pace, Plan, Summary, plot};

use crate::SUCCESS;
use crate::announcement::{self, Announcement};
use crate::cli::{BenchArguments, LoadProtocol};
use crate::console::Console;
use crate::disk::plain_cause;
use crate::operate::blocking;

/// The loads of a sweep, in per cent of what a closed loop reaches.
const SWEEP: [u64; 8] = [5, 10, 20, 40, 60, 80, 90, 95];

/// Runs the load generator.
///
/// # Errors
/// When the server cannot be loaded, or is another machine.
pub(crate) fn run(arguments: &BenchArguments, console: &mut Console) -> Result<u8, String> {
    let target = arguments.to.map_or_else(|| default_address(arguments.wire), Ok)?;
    if !target.ip().is_loopback() && !arguments.remote {
        return Err(format!(
            "{target} is another machine, and this command puts it under load; add --remote if that machine is yours to load"
        ));
    }
    let loaded = blocking(loaded(arguments, target, console))?;
    loaded.map(|()| SUCCESS).map_err(|error| plain(error).to_string())
}

/// An error with the system's cause in plain words.
fn plain(error: LoadError) -> LoadError {
    match error {
        LoadError::Connect { target, reason } => LoadError::Connect { target, reason: plain_cause(&reason) },
        LoadError::Lost { reason } => LoadError::Lost { reason: plain_cause(&reason) },
        other => other,
    }
}

/// The address of the server that runs on this machine, else the protocol's usual one.
///
/// # Errors
/// When several run: load belongs to the one that is meant.
fn default_address(protocol: LoadProtocol) -> Result<SocketAddr, String> {
    let running = announcement::running();
    let address = |server: &Announcement| match protocol {
        LoadProtocol::Http | LoadProtocol::Batch => Some(server.http),
        LoadProtocol::Grpc => server.grpc,
        LoadProtocol::Resp | LoadProtocol::Throttle => server.resp,
    };
    let found: Vec<SocketAddr> = running.iter().filter_map(address).collect();
    match &found[..] {
        [] => {}
        [one] => return Ok(*one),
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            return Err(format!(
                "several servers run here, and this puts one of them under load; choose with --to ADDR: {}",
                several.join(", ")
            ));
        }
    }
    let port = match protocol {
        LoadProtocol::Http | LoadProtocol::Batch => 8080,
        LoadProtocol::Grpc => 8081,
        LoadProtocol::Resp | LoadProtocol::Throttle => 6380,
    };
    Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
}

async fn loaded(
    arguments: &BenchArguments,
    target: SocketAddr,
    console: &mut Console,
) -> Result<(), LoadError> {
    let plan = Plan {
        target,
        question: question(arguments),
        connections: arguments.connections,
        pipeline: arguments.pipeline,
        keys: arguments.keys,
        pace: arguments.rate.map_or(Pace::Closed, |per_second| Pace::Open { per_second }),
        warmup: Duration::from_micros(arguments.warmup.as_micros()),
        duration: Duration::from_micros(arguments.duration.as_micros()),
    };
    let mut lines = vec![measured(&plan, console).await?];
    if arguments.sweep {
        let most = lines[0].1.per_second() / plan.question.decisions().max(1);
        for share in SWEEP {
            let pace = Pace::Open { per_second: (most * share / 100).max(1) };
            lines.push(measured(&Plan { pace, ..plan.clone() }, console).await?);
        }
    }
    report(arguments, &lines, console);
    Ok(())
}

fn question(arguments: &BenchArguments) -> LoadRequest {
    let attribute = arguments.attribute.clone();
    let key = tollgate_load::key_placeholder(&attribute);
    let words =
        |words: &[&str]| LoadRequest::Resp { words: words.iter().map(|&word| word.to_owned()).collect() };
    match arguments.wire {
        LoadProtocol::Http => LoadRequest::Http {
            path: "/v1/check".to_owned(),
            body: format!("{{\"attributes\":{{\"{attribute}\":\"{key}\"}}}}"),
            decisions: 1,
        },
        LoadProtocol::Batch => LoadRequest::Batch { attribute, size: arguments.batch },
        LoadProtocol::Grpc => LoadRequest::Rls { domain: arguments.domain.clone(), attribute },
        LoadProtocol::Resp => words(&["TG.CHECK", &attribute, key]),
        LoadProtocol::Throttle => words(&["CL.THROTTLE", "{key}", "199", "100", "1"]),
    }
}

async fn measured(plan: &Plan, console: &mut Console) -> Result<(Pace, Summary), LoadError> {
    let name = name(plan.pace);
    let summary =
        tollgate_load::run(plan, |share| console.progress(format_args!("{name}: {share} %"))).await?;
    console.end_progress();
    Ok((plan.pace, summary))
}

fn name(pace: Pace) -> String {
    match pace {
        Pace::Closed => "closed loop".to_owned(),
        Pace::Open { per_second } => format!("{per_second} a second"),
    }
}

#[derive(Serialize)]
struct RunReport {
    offered_per_second: Option<u64>,
    decisions_per_second: u64,
    allowed: u64,
    decisions: u64,
    errors: u64,
    p50_us: u64,
    p90_us: u64,
    p99_us: u64,
    p999_us: u64,
    max_us: u64,
    denied_by: BTreeMap<String, u64>,
    /// Answers that were examined for the source of their count, and how many of them came from a counter that keys
    /// share.
    looked_at: u64,
    shared: u64,
    /// Whether keys share counters because the server's memory is full.
    memory_full: bool,
}

impl RunReport {
    fn of((pace, summary): &(Pace, Summary)) -> Self {
        let micros =
            |per_100_000| u64::try_from(summary.latency_of(per_100_000).as_micros()).unwrap_or(u64::MAX);
        Self {
            offered_per_second: match pace {
                Pace::Closed => None,
                Pace::Open { per_second } => Some(*per_second),
            },
            decisions_per_second: summary.per_second(),
            allowed: summary.allowed,
            decisions: summary.decisions,
            errors: summary.errors,
            p50_us: micros(50_000),
            p90_us: micros(90_000),
            p99_us: micros(99_000),
            p999_us: micros(99_900),
            max_us: u64::try_from(summary.latency_max().as_micros()).unwrap_or(u64::MAX),
            denied_by: summary.details.denied_by.clone(),
            looked_at: summary.details.examined,
            shared: summary.details.shared,
            memory_full: summary.details.shared > 0 || summary.details.is_memory_full,
        }
    }
}

fn report(arguments: &BenchArguments, measured: &[(Pace, Summary)], console: &mut Console) {
    let lines: Vec<RunReport> = measured.iter().map(RunReport::of).collect();
    if arguments.json {
        for line in &lines {
            console.line(serde_json::to_string(line).unwrap_or_default());
        }
        return;
    }
    console.line(format_args!(
        "{:>14} {:>14} {:>8} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "offered/s", "decisions/s", "allowed", "errors", "p50 us", "p90 us", "p99 us", "p99.9 us", "max us"
    ));
    for line in &lines {
        let offered =
            line.offered_per_second.map_or_else(|| "closed loop".to_owned(), |rate| rate.to_string());
        console.line(format_args!(
            "{offered:>14} {:>14} {:>7}% {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}",
            line.decisions_per_second,
            line.allowed * 100 / line.decisions.max(1),
            line.errors,
            line.p50_us,
            line.p90_us,
            line.p99_us,
            line.p999_us,
            line.max_us
        ));
    }
    for (pace, summary) in measured {
        let denied = summary.decisions.saturating_sub(summary.allowed);
        for detail in summary.details.lines(denied) {
            console.line(format_args!("{}: {detail}", name(*pace)));
        }
    }
    let points: Vec<plot::Point> = lines
        .iter()
        .filter_map(|line| {
            Some(plot::Point { load: line.offered_per_second?, p50: line.p50_us, p99: line.p99_us })
        })
        .collect();
    for row in plot::rows(&points) {
        console.line(row);
    }
}
