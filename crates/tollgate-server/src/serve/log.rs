//! What the server tells its operator while it runs: on standard error, as JSON unless a person reads it.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Where the level is chosen.
const LEVEL_VARIABLE: &str = "TOLLGATE_LOG";

/// Starts the log. A process has one; a second start changes nothing.
pub(super) fn start() {
    let filter = EnvFilter::try_from_env(LEVEL_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    // Where the log cannot be written, its own complaint cannot be either, and would end whoever logs.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let _ = if std::io::stderr().is_terminal() {
        log.compact().with_target(false).try_init()
    } else {
        log.json().try_init()
    };
}
