//! Creates shards and starts their supervisors.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Shard;
use super::supervisor::ConnectionSupervisor;
use crate::connection::ConnectOptions;
use crate::connection::primary::PrimaryLocator;
use crate::metrics::Metrics;
use crate::settings::Host;
use crate::task::supervise;

#[derive(Clone)]
pub(crate) struct ShardFactory {
    pub(crate) runtime: Handle,
    pub(crate) options: ConnectOptions,
    pub(crate) metrics: Arc<Metrics>,
    /// Notified when the slot map may be stale.
    pub(crate) stale: Arc<Notify>,
    pub(crate) deadline: Duration,
    pub(crate) in_flight_max: usize,
}

impl ShardFactory {
    pub(crate) fn shard(&self, host: Host) -> Arc<Shard> {
        Arc::new(Shard::new(host, self.deadline, self.in_flight_max, Instant::now()))
    }

    /// Maintains the connection of a shard from now on.
    pub(crate) fn supervise(&self, shard: &Arc<Shard>, locator: PrimaryLocator) {
        let supervisor = Arc::new(ConnectionSupervisor {
            shard: Arc::clone(shard),
            locator,
            metrics: Arc::clone(&self.metrics),
            stale: Arc::clone(&self.stale),
            deadline: self.deadline,
        });
        shard.set_supervisor(supervise(&self.runtime, "connection", move || Arc::clone(&supervisor).run()));
    }
}
