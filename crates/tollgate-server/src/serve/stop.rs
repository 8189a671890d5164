//! How a server stops: on a signal it reports itself as not ready, answers the requests in flight, and saves its
//! counters. A further signal skips the current wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::observability;
use super::signal::Signals;
use crate::grpc::Calls;
use crate::readiness::Readiness;

/// The tasks that the server notifies and ends on a stop.
pub(super) struct StopPlan {
    pub(super) servers: JoinSet<usize>,
    pub(super) stop: watch::Sender<bool>,
    /// Reports the server's health to gRPC clients.
    pub(super) health: Option<Arc<Calls>>,
    pub(super) spans: Option<observability::Spans>,
    /// How long new connections are served although the server reports that it is not ready.
    pub(super) delay: Duration,
}

impl StopPlan {
    /// Serves until a signal arrives, and then until the requests in flight have ended.
    ///
    /// # Errors
    /// When a listener ends by itself.
    pub(super) async fn until_stopped(
        mut self,
        signals: &mut Signals,
        readiness: &Readiness,
    ) -> Result<(), String> {
        tokio::select! {
            () = signals.next() => {}
            Some(ended) = self.servers.join_next() => return Err(unexpected(ended)),
        }
        readiness.stop();
        if !self.delay.is_zero() {
            self.turn_away(signals).await?;
        }
        // The receivers live in the servers' tasks. Without receivers there is no task left to stop.
        let _ = self.stop.send(true);
        tracing::info!(
            "stopping: no new connections, requests in flight are answered; a further signal stops at once"
        );
        let ended = async {
            let cut = drained(&mut self.servers).await;
            observability::finish(self.spans).await;
            cut
        };
        tokio::select! {
            cut = ended => match cut? {
                0 => tracing::info!("stopped"),
                cut => tracing::warn!(cut, "stopped; connections that took too long were cut"),
            },
            () = signals.next() => tracing::warn!("stopped at once"),
        }
        Ok(())
    }

    /// Reports that the server is not ready, and continues to serve until load balancers must have noticed.
    async fn turn_away(&mut self, signals: &mut Signals) -> Result<(), String> {
        let seconds = self.delay.as_secs_f64();
        tracing::info!(seconds, "not ready from now on, but still serving; a second signal does not wait");
        if let Some(health) = &self.health {
            health.turn_away().await;
        }
        tokio::select! {
            () = tokio::time::sleep(self.delay) => Ok(()),
            () = signals.next() => Ok(()),
            Some(ended) = self.servers.join_next() => Err(unexpected(ended)),
        }
    }
}

/// Waits for the last snapshot, until a further signal gives it up.
pub(super) async fn keep(
    writing: impl Future<Output = ()>,
    signal: impl Future<Output = ()>,
) -> LastSnapshotOutcome {
    tokio::select! {
        () = writing => LastSnapshotOutcome::Finished,
        () = signal => {
            tracing::warn!("the last snapshot was given up: what was counted since the one before is lost");
            LastSnapshotOutcome::Abandoned
        }
    }
}

/// The result of the last snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastSnapshotOutcome {
    /// It was written, or its failure was logged.
    Finished,
    /// A further signal ended the wait for it.
    Abandoned,
}

/// Waits for every listener to end. Returns how many connections were cut.
async fn drained(servers: &mut JoinSet<usize>) -> Result<usize, String> {
    let mut cut = 0;
    while let Some(ended) = servers.join_next().await {
        cut += ended.map_err(|error| unexpected(Err(error)))?;
    }
    Ok(cut)
}

/// Describes a listener that ended without a stop signal.
fn unexpected(ended: Result<usize, JoinError>) -> String {
    match ended {
        Ok(_) => "a listener ended by itself; please report this".to_owned(),
        Err(error) => format!("a listener ended by itself: {error}; please report this"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    /// A signal gives up a snapshot that does not end. Without a signal the snapshot is awaited.
    #[tokio::test(start_paused = true)]
    async fn a_signal_gives_the_last_snapshot_up() {
        assert_eq!(keep(pending(), ready(())).await, LastSnapshotOutcome::Abandoned);
        let writing = tokio::time::sleep(Duration::from_secs(20));
        assert_eq!(keep(writing, pending()).await, LastSnapshotOutcome::Finished);
    }
}
