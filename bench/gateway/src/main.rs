//! Compares gateways with their limits on: Tollgate, nginx, Envoy and HAProxy, each on one core in front of one upstream, asked from the
//! other core. Rounds are interleaved; ratios are taken within a round.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures the real time")]

mod contender;
mod load;
mod measure;
mod poll;
mod process;
mod report;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

/// An error, as the user reads it.
type Failure = Box<dyn std::error::Error>;

/// The arguments.
struct Options {
    rounds: usize,
    duration: Duration,
    warmup: Duration,
    only: Vec<String>,
    /// Connections that rest while memory is looked at.
    idle: usize,
    tollgate: PathBuf,
    envoy: PathBuf,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["upstream", address] => upstream::serve(address),
        _ => measure::all(&Options::read(&arguments)?),
    }
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let quick = arguments.iter().any(|argument| argument == "--quick");
        let value = |name: &str| {
            let position = arguments.iter().position(|argument| argument == name)?;
            arguments.get(position + 1).cloned()
        };
        let number = |name: &str, unless_said: usize| match value(name) {
            Some(text) => text.parse().map_err(|_| format!("{name}: accepted: a whole number, such as 5")),
            None => Ok(unless_said),
        };
        let program = |name: &str| {
            value(name)
                .map(PathBuf::from)
                .ok_or_else(|| format!("{name} PROGRAM is missing; use bench/gateways"))
        };
        let (duration, warmup) = if quick { (400, 200) } else { (2_000, 500) };
        let only = value("--only").map(|text| text.split(',').map(str::to_owned).collect());
        Ok(Self {
            rounds: number("--rounds", if quick { 1 } else { 5 })?,
            duration: Duration::from_millis(duration),
            warmup: Duration::from_millis(warmup),
            only: only.unwrap_or_default(),
            idle: number("--idle", if quick { 200 } else { affordable_idle() })?,
            tollgate: program("--tollgate")?,
            envoy: program("--envoy")?,
        })
    }

    fn selects(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| name.contains(wanted.as_str()))
    }
}

/// Ten thousand, or what the descriptors of a process suffice for: Tollgate's gateway takes clients for nearly two thirds of them, as it
/// leaves some to upstreams, to files, and to its other address.
fn affordable_idle() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let descriptors = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    descriptors.map_or(10_000, |descriptors| (descriptors / 2).min(10_000))
}
