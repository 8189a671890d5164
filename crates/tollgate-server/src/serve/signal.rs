//! How the server is told to stop: SIGTERM by whoever runs it, SIGINT by Ctrl-C; and to reload: SIGHUP.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals from now on.
pub(super) struct Signals(Signal, Signal);

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    /// SIGHUP from now on, by which an operator asks for a reload.
    pub(super) fn hangups() -> io::Result<Signal> {
        signal(SignalKind::hangup())
    }

    /// Until the server is told to stop, once more than before.
    pub(super) async fn next(&mut self) {
        let Self(terminate, interrupt) = self;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}
