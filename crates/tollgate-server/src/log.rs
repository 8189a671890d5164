//! The server's log for its operator, on standard error: JSON, or text on a terminal. Nothing that a request contains
//! can begin a line or move a cursor, and a slow reader loses lines but never delays decisions.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

mod line;

use crate::text::unknown_name;
use line::Writer;
pub(crate) use line::lost;

/// The variable that sets the level.
const LEVEL_VARIABLE: &str = "TOLLGATE_LOG";
/// The levels, of which each includes those before it.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
/// The default level.
const LEVEL: LevelFilter = LevelFilter::INFO;

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A line of JSON for programs.
    Json,
}

/// The log while it is being written.
pub(crate) struct Log(Writer);

impl Log {
    /// Waits a moment for the last lines to be written.
    pub(crate) fn finish(self) {
        self.0.finish();
    }
}

/// Starts the log. A process has one; a second start changes nothing.
///
/// # Errors
/// When the variable holds no level.
pub(crate) fn start(format: Option<LogFormat>) -> Result<Log, String> {
    let wanted = std::env::var(LEVEL_VARIABLE).unwrap_or_default();
    let filter = match wanted.as_str() {
        "" => Targets::new().with_default(LEVEL),
        wanted => filter(wanted).map_err(|problem| format!("{LEVEL_VARIABLE}: {problem}"))?,
    };
    let (writer, lines) = line::start();
    // Without colours, which are control characters: all control characters that are left come from logged values.
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(lines);
    let log = tracing_subscriber::registry().with(filter);
    let usual = if std::io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json };
    let _ = match format.unwrap_or(usual) {
        LogFormat::Text => log.with(layer.compact().with_target(false)).try_init(),
        LogFormat::Json => log.with(layer.json()).try_init(),
    };
    Ok(Log(writer))
}

/// The filter of a level such as `debug`, or of levels of modules such as `info,tollgate_redis=debug`. A word that is no
/// level would be a module, of which nothing but its own lines were logged.
fn filter(wanted: &str) -> Result<Targets, String> {
    let levels = wanted.split(',').map(|part| part.rsplit_once('=').map_or(part, |(_, level)| level).trim());
    for level in levels {
        if level.parse::<LevelFilter>().is_err() {
            return Err(unknown_name(&format!("{level:?} is no level"), level, &LEVELS));
        }
    }
    wanted.parse().map_err(|error: ParseError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: with `TOLLGATE_LOG=loud` nothing was logged, because `loud` was read as the name of a module.
    #[test]
    fn a_level_is_one() {
        for good in ["error", "WARN", "off", "info,tollgate_redis=debug", "tollgate=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for (wrong, expected) in [
            ("loud", "\"loud\" is no level; accepted: error, warn, info, debug, trace, off"),
            (
                "wran",
                "\"wran\" is no level; did you mean warn? accepted: error, warn, info, debug, trace, off",
            ),
            (
                "tollgate=dbug",
                "\"dbug\" is no level; did you mean debug? accepted: error, warn, info, debug, trace, off",
            ),
        ] {
            assert_eq!(filter(wrong).unwrap_err(), expected);
        }
    }
}
