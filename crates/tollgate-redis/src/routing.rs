//! Routes a slot to the shard that owns it: one shard, or those of a cluster.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use crate::connection::ConnectOptions;
use crate::connection::primary::{PrimaryLocator, SentinelCache, Sentinels};
use crate::settings::{Host, Settings, Topology};
use crate::shard::Shard;
use crate::shard::factory::ShardFactory;
use crate::slots::Cluster;
use crate::task::supervise;

pub(crate) enum Routing {
    /// A single primary owns every slot.
    Single(Arc<Shard>),
    Cluster {
        cluster: Arc<Cluster>,
        /// The task that maintains the slot map.
        supervisor: AbortHandle,
    },
}

impl Routing {
    pub(crate) fn new(settings: &Settings, factory: ShardFactory) -> Self {
        match settings.topology() {
            Topology::Standalone(host) => {
                let shard = factory.shard(host.clone());
                let options = factory.options.clone();
                factory.supervise(&shard, PrimaryLocator::Fixed { host: host.clone(), options });
                Routing::Single(shard)
            }
            Topology::Sentinel { sentinels, service } => {
                let sentinel_options = ConnectOptions {
                    login: settings.sentinel_login.clone(),
                    database: 0,
                    tls: settings.tls.clone(),
                };
                let sentinels = Sentinels {
                    hosts: sentinels.clone(),
                    service: service.clone(),
                    options: factory.options.clone(),
                    sentinel_options,
                    cache: Mutex::new(SentinelCache::default()),
                };
                let shard = factory.shard(Host { name: service.clone(), port: 0 });
                factory.supervise(&shard, PrimaryLocator::Sentinels(Box::new(sentinels)));
                Routing::Single(shard)
            }
            Topology::Cluster(seeds) => {
                let runtime = factory.runtime.clone();
                let cluster = Arc::new(Cluster::new(factory, seeds.clone()));
                let maintained = Arc::clone(&cluster);
                let supervisor = supervise(&runtime, "slots", move || Arc::clone(&maintained).maintain_map());
                Routing::Cluster { cluster, supervisor }
            }
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Routing::Cluster { .. })
    }

    /// The shard that owns a slot, as far as the slot map is known.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Shard>> {
        match self {
            Routing::Single(shard) => Some(Arc::clone(shard)),
            Routing::Cluster { cluster, .. } => cluster.owner(slot),
        }
    }

    pub(crate) fn any(&self) -> Option<Arc<Shard>> {
        match self {
            Routing::Single(shard) => Some(Arc::clone(shard)),
            Routing::Cluster { cluster, .. } => cluster.any(),
        }
    }

    /// The shard to send a slot's requests to. An unowned slot has none: sending its requests to another node would
    /// count failures against that node.
    pub(crate) fn for_slot(&self, slot: u16) -> Option<Arc<Shard>> {
        match self {
            Routing::Single(shard) => Some(Arc::clone(shard)),
            Routing::Cluster { cluster, .. } => match cluster.owner(slot) {
                None if !cluster.has_map() => cluster.any(),
                owner => owner,
            },
        }
    }

    /// The shard that a redirection names.
    pub(crate) fn node_at(&self, host: &Host) -> Arc<Shard> {
        match self {
            Routing::Single(shard) => Arc::clone(shard),
            Routing::Cluster { cluster, .. } => cluster.node_at(host),
        }
    }

    /// Whether the owner of each slot is known.
    pub(crate) fn is_known(&self) -> bool {
        match self {
            Routing::Single(_) => true,
            Routing::Cluster { cluster, .. } => cluster.has_map(),
        }
    }

    /// Requests a refresh of the slot map, which may be stale.
    pub(crate) fn request_refresh(&self) {
        if let Routing::Cluster { cluster, .. } = self {
            cluster.stale.notify_one();
        }
    }

    pub(crate) fn shards(&self) -> Vec<Arc<Shard>> {
        match self {
            Routing::Single(shard) => vec![Arc::clone(shard)],
            Routing::Cluster { cluster, .. } => cluster.shards(),
        }
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        if let Routing::Cluster { supervisor, .. } = self {
            supervisor.abort();
        }
        self.shards().iter().for_each(|shard| shard.retire());
    }
}
