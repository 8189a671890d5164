//! How the server is told to stop: SIGTERM by whoever runs it, SIGINT by Ctrl-C.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals from now on.
pub(super) struct Signals(Signal, Signal);

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
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
