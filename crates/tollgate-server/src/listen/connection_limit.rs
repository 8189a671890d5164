//! The connection limit of each listener, and the fd budget of all listeners and upstream connections together. Each
//! listener has a part of the descriptors for itself, and so have connections to upstreams, so that load at one
//! listener does not block the others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tollgate_gateway::listen::{AddressLimit, ConnectionTable, Descriptors, UpstreamBudget};

use crate::process::descriptors;
use crate::telemetry::{Meter, Sample, names};

/// Maximum concurrent connections to a listener for decisions, and to the gateway's. Further ones wait in the system's
/// backlog until one ends.
const CONNECTIONS_MAX: u32 = 10_000;
const PUBLIC_CONNECTIONS_MAX: u32 = 100_000;
/// File descriptors that are reserved for files, and the share of the others for connections, in per cent.
const FILES_RESERVED: usize = 64;
const FILES_SHARE: usize = 80;
/// The minimum for connections, however few descriptors there are.
const CONNECTIONS_MIN: usize = 8;
/// Each listener has one part in this many of all connection descriptors for itself: an eighth, and at least one.
const OWN_PART: usize = 8;
/// Connections to upstreams have one part in this many for themselves: a quarter. An idle client needs none there.
const UPSTREAM_PART: usize = 4;
/// Interval of the search for a connection to evict, while no permit is free.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The reason label of a connection that was ended without a fault of its own: its address had its maximum, or another
/// connection needed its permit.
const ENDINGS: [&str; 2] = ["address", "room"];

/// Whether one of the listeners is the gateway's, which connects to upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GatewayListener {
    /// It is.
    Present,
    /// There is no gateway, so no connection to an upstream is made.
    Absent,
}

/// The descriptors for the connections of a process's listeners.
pub(crate) struct FdBudget {
    own: usize,
    shared: Arc<Semaphore>,
}

impl FdBudget {
    /// The budget for this many listeners, and the descriptors for connections to upstreams, where one of the listeners
    /// is the gateway's.
    pub(crate) fn new(listeners: usize, gateway: GatewayListener) -> (Self, UpstreamBudget) {
        let all = descriptors().map_or(usize::MAX, share).min(Semaphore::MAX_PERMITS);
        Self::with_upstreams(all, listeners, gateway)
    }

    fn with_upstreams(
        connections: usize,
        listeners: usize,
        gateway: GatewayListener,
    ) -> (Self, UpstreamBudget) {
        let own = match gateway {
            GatewayListener::Present => (connections / UPSTREAM_PART).max(1),
            GatewayListener::Absent => 0,
        };
        let budget = Self::of(connections.saturating_sub(own), listeners);
        let own = Arc::new(Semaphore::new(own));
        let shared = Arc::clone(&budget.shared);
        (budget, UpstreamBudget::new(Descriptors::new(own, shared)))
    }

    fn of(connections: usize, listeners: usize) -> Self {
        let own = (connections / OWN_PART).max(1);
        let shared = connections.saturating_sub(own.saturating_mul(listeners));
        Self { own, shared: Arc::new(Semaphore::new(shared)) }
    }

    /// The connection limit of a listener for decisions.
    pub(crate) fn connection_limit(&self) -> ConnectionLimit {
        self.connection_limit_of(CONNECTIONS_MAX)
    }

    /// The connection limit of the gateway's listener, which any client may reach.
    pub(crate) fn public_connection_limit(&self, bound: AddressLimit) -> ConnectionLimit {
        let mut limit = self.connection_limit_of(PUBLIC_CONNECTIONS_MAX);
        let descriptors = self.own.saturating_add(self.shared.available_permits());
        limit.connection_table =
            Some(Arc::new(ConnectionTable::new(bound, descriptors.min(limit.most as usize))));
        limit
    }

    fn connection_limit_of(&self, most: u32) -> ConnectionLimit {
        let own = Arc::new(Semaphore::new(self.own));
        let descriptors = Descriptors::new(own, Arc::clone(&self.shared));
        ConnectionLimit {
            most,
            permits: Arc::new(Semaphore::new(most as usize)),
            descriptors,
            connection_table: None,
        }
    }
}

/// The permits for the connections of one listener.
pub(crate) struct ConnectionLimit {
    pub(super) most: u32,
    pub(super) permits: Arc<Semaphore>,
    descriptors: Descriptors,
    /// The open connections by address, on a public listener.
    pub(super) connection_table: Option<Arc<ConnectionTable>>,
}

/// A connection's permit, and its descriptor.
pub(super) type ConnectionPermit = [OwnedSemaphorePermit; 2];

impl ConnectionLimit {
    /// Waits for a permit.
    pub(super) async fn acquire(&self) -> Result<ConnectionPermit, AcquireError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        Ok([permit, self.descriptors.one().await?])
    }

    /// Waits for a permit. On a public listener it evicts idle connections meanwhile.
    pub(super) async fn acquire_evicting(&self) -> Result<ConnectionPermit, AcquireError> {
        let Some(connection_table) = &self.connection_table else { return self.acquire().await };
        loop {
            connection_table.evict_idle();
            if let Ok(permit) = tokio::time::timeout(LOOK_EVERY, self.acquire()).await {
                return permit;
            }
        }
    }

    /// Takes a permit, if one is free.
    pub(super) fn try_acquire(&self) -> Option<ConnectionPermit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some([permit, self.descriptors.one_now()?])
    }

    /// Registers the metric of ended connections, on a public listener.
    pub(crate) fn show(&self, meter: &Meter) {
        let Some(connection_table) = self.connection_table.clone() else { return };
        meter.probe(move |_| {
            let counts = ENDINGS.into_iter().zip(connection_table.counts());
            let sample = |(reason, value)| Sample {
                metric: &names::GATEWAY_ENDED,
                label: Some((names::label::REASON, reason)),
                value,
            };
            counts.map(sample).collect()
        });
    }

    /// How many permits are taken.
    pub(super) fn taken(&self) -> usize {
        (self.most as usize).saturating_sub(self.permits.available_permits())
    }
}

/// How many of these descriptors connections may use. Some remain free, so that a snapshot or a policy can be opened.
fn share(descriptors: usize) -> usize {
    (descriptors / 100 * FILES_SHARE + descriptors % 100 * FILES_SHARE / 100)
        .saturating_sub(FILES_RESERVED)
        .max(CONNECTIONS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::fuzzing::poll_once;

    fn all(limit: &ConnectionLimit) -> Vec<ConnectionPermit> {
        std::iter::from_fn(|| limit.try_acquire()).collect()
    }

    fn public(budget: &FdBudget) -> ConnectionLimit {
        let trusted = tollgate_tower::attributes::address::Trusted::new(Vec::new());
        budget.public_connection_limit(AddressLimit { most: None, trusted, ipv6_prefix: 64 })
    }

    /// Connections never take the last descriptors.
    #[test]
    fn descriptors_are_left_for_files() {
        assert_eq!(share(1_024), 755);
        assert_eq!(share(128), 38);
        assert_eq!((share(64), share(0)), (8, 8));
        assert_eq!(share(usize::MAX), usize::MAX / 100 * 80 + 12 - 64);
        assert!(descriptors().is_none_or(|descriptors| descriptors > 0));
    }

    /// A listener whose clients take all that they can leaves each other listener its own part; together they take no
    /// more than all.
    #[test]
    fn each_listener_has_its_own_permits() {
        for (connections, own) in [(755, 94), (38, 4), (8, 1)] {
            let budget = FdBudget::of(connections, 3);
            let [crowded, second, third] =
                [budget.connection_limit(), budget.connection_limit(), budget.connection_limit()];
            let connection_table = all(&crowded);
            assert_eq!(
                (connection_table.len(), crowded.taken()),
                (connections - 2 * own, connection_table.len())
            );
            assert_eq!((all(&second).len(), all(&third).len()), (own, own), "of {connections}");
            let (here, there) = (all(&second), all(&third));
            assert_eq!(connection_table.len() + here.len() + there.len(), connections);
            drop(connection_table);
            assert!(poll_once(second.acquire()).is_ok(), "what is anybody's is free again");
        }
    }
    /// Idle clients of the gateway, however many, leave a quarter of all descriptors to connections to upstreams; with
    /// few clients, upstreams have more.
    #[test]
    fn upstreams_have_links_of_their_own() {
        for (connections, own) in [(15_936, 3_984), (755, 188), (8, 2)] {
            let (budget, upstreams) = FdBudget::with_upstreams(connections, 2, GatewayListener::Present);
            let connection_table: Vec<ConnectionPermit> =
                [public(&budget), budget.connection_limit()].iter().flat_map(all).collect();
            let linked: Vec<_> = std::iter::from_fn(|| upstreams.one_now()).collect();
            assert_eq!((connection_table.len(), linked.len()), (connections - own, own), "of {connections}");
            drop(connection_table);
            assert!(poll_once(upstreams.one()).is_ok(), "what is anybody's may be a link");
        }
        let (budget, _) = FdBudget::with_upstreams(share(20_000), 2, GatewayListener::Present);
        assert!(
            all(&public(&budget)).len() >= 10_000,
            "twenty thousand descriptors are for ten thousand clients"
        );
    }
}
