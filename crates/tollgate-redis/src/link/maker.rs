//! What every shard of a store has in common, and how one is made.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::find::Finder;
use super::keep::Keeper;
use super::shard::Shard;
use super::tally::Tally;
use super::task::supervise;
use super::wire::Manners;
use crate::settings::Host;

#[derive(Clone)]
pub(super) struct Maker {
    pub(super) runtime: Handle,
    pub(super) manners: Manners,
    pub(super) tally: Arc<Tally>,
    /// Told when the cluster may have changed.
    pub(super) stale: Arc<Notify>,
    pub(super) deadline: Duration,
    pub(super) in_flight_max: usize,
}

impl Maker {
    pub(super) fn shard(&self, host: Host) -> Arc<Shard> {
        Arc::new(Shard::new(host, self.deadline, self.in_flight_max, Instant::now()))
    }

    /// Keeps a shard connected from now on.
    pub(super) fn keep(&self, shard: &Arc<Shard>, finder: Finder) {
        let keeper = Arc::new(Keeper {
            shard: Arc::clone(shard),
            finder,
            tally: Arc::clone(&self.tally),
            stale: Arc::clone(&self.stale),
            deadline: self.deadline,
        });
        shard.kept_by(supervise(&self.runtime, "connection", move || Arc::clone(&keeper).keep()));
    }
}
