//! Signals: SIGTERM from systemd or the like and SIGINT from Ctrl-C stop the server, and SIGHUP reloads its files.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Stop signals, received from now on.
pub(super) struct Signals(Signal, Signal);

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    /// SIGHUP from now on. An operator sends it to request a reload.
    pub(super) fn hangups() -> io::Result<Signal> {
        signal(SignalKind::hangup())
    }

    /// Waits for the next stop signal.
    pub(super) async fn next(&mut self) {
        let Self(terminate, interrupt) = self;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}
