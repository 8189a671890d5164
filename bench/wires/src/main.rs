//! Compares services on their wires: Tollgate, throttlecrab-server, redis-server with a script, and bare echoes, each on one core, asked
//! from the other. Rounds are interleaved; ratios are taken within a round.

mod contender;
mod echo;
mod measure;
mod process;
mod report;

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
    tollgate: PathBuf,
    throttlecrab: Option<PathBuf>,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["echo-http", address] => runtime.block_on(echo::http(address)),
        ["echo-grpc", address] => runtime.block_on(echo::grpc(address)),
        _ => {
            let options = Options::read(&arguments)?;
            runtime.block_on(measure::all(&options))
        }
    }
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let quick = arguments.iter().any(|argument| argument == "--quick");
        let value = |name: &str| {
            let position = arguments.iter().position(|argument| argument == name)?;
            arguments.get(position + 1).cloned()
        };
        let rounds = match value("--rounds") {
            Some(text) => text.parse().map_err(|_| "--rounds: accepted: a whole number, such as 5")?,
            None if quick => 1,
            None => 5,
        };
        let (duration, warmup) = if quick { (400, 200) } else { (1_500, 500) };
        let only = value("--only").map(|text| text.split(',').map(str::to_owned).collect());
        Ok(Self {
            rounds,
            duration: Duration::from_millis(duration),
            warmup: Duration::from_millis(warmup),
            only: only.unwrap_or_default(),
            tollgate: value("--tollgate")
                .map(PathBuf::from)
                .ok_or("--tollgate PROGRAM is missing; use bench/services")?,
            throttlecrab: value("--throttlecrab").map(PathBuf::from),
        })
    }

    fn selects(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| name.contains(wanted.as_str()))
    }
}
