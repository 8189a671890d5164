//! A primary that is cut off from its cluster, but not from its clients.
//!
//! Nodes reach each other through proxies, each from its own address, so that a proxy can identify the node.
//! Replication bypasses the proxies; the replica is locked out by its password.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Rig;
use super::assessment::FaultSpans;
use super::clustered::{FAILOVER, await_map};
use super::outage::Outage;
use super::report::Promise;
use crate::cluster::Cluster;
use crate::fleet::{Fleet, Running};
use crate::proxy::{Network, Proxy};
use crate::server::{Plan, Program};
use crate::store::Shared;
use tollgate_testkit::{free_port, rest, until};

/// How long the partition lasts after the promotion.
const STAYS_FOR: Duration = Duration::from_secs(2);

struct PartitionedCluster {
    cluster: Cluster,
    proxies: Vec<Proxy>,
}

/// The address that a node connects from.
fn source(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(node).unwrap() + 1)
}

impl PartitionedCluster {
    fn start() -> Self {
        let mut proxies = Vec::new();
        let cluster = Cluster::made(|node| {
            let bus = free_port();
            let proxy = Proxy::before(bus);
            let plan = Plan::new(Program::Redis)
                .line(format!("cluster-port {bus}"))
                .line(format!("cluster-announce-bus-port {}", proxy.port))
                .line("cluster-announce-ip 127.0.0.1")
                // A client from another loopback address needs a password.
                .line("protected-mode no")
                .line(format!("bind-source-addr {}", source(node)))
                .line("user peer on >word ~* &* +@all")
                .line("masteruser peer")
                .line("masterauth word");
            proxies.push(proxy);
            plan
        });
        Self { cluster, proxies }
    }

    /// Drops everything between this node and the others.
    fn cut(&self, node: usize) {
        for (index, proxy) in self.proxies.iter().enumerate() {
            let network = if index == node { Network::HalfOpen } else { Network::HalfOpenFor(source(node)) };
            proxy.set(network);
        }
        self.cluster.servers[node].tell(&["ACL", "SETUSER", "peer", "resetpass", ">other"]);
        self.cluster.servers[node].tell(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    fn heal(&self, node: usize) {
        self.proxies.iter().for_each(|proxy| proxy.set(Network::Fair));
        self.cluster.servers[node].tell(&["ACL", "SETUSER", "peer", "resetpass", ">word"]);
    }

    fn swallowed(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.counts.swallowed_bytes.load(Ordering::Relaxed)).sum()
    }
}

pub(super) fn long(rig: &mut Rig) {
    let divided = PartitionedCluster::start();
    let fleet = rig.fleet([&divided.cluster.url(); 3]);
    let promise = Promise { number: "F12b", ..FAILOVER };
    rig.run("a primary cut off from its peers", promise, &fleet, |running| cut(&divided, &fleet, running));
    rig.found(divided.cluster.immortal());
}

fn cut(divided: &PartitionedCluster, fleet: &Fleet<Shared>, running: &Running) -> FaultSpans {
    let cluster = &divided.cluster;
    let primary = cluster.primary_of(0);
    let replica = cluster.replica_of(primary);
    let outage = Outage::begin(running);
    divided.cut(primary);
    until("the replica is promoted", || (cluster.servers[replica].info("role")? == "master").then_some(()));
    let (promoted, took) = (running.recorder.now(), outage.lasted());
    let map = await_map(fleet, cluster.servers[replica].port, running, promoted);
    let lost = vec![(outage.began, running.recorder.now())];
    // Both sides run beside each other; only one may count.
    rest(STAYS_FOR);
    let refused = cluster.servers[primary].errors("CLUSTERDOWN");
    let still = u64::from(cluster.servers[primary].info("role").as_deref() == Some("master"));
    divided.heal(primary);
    cluster.await_whole();
    let spans = outage.over(&[
        ("byte swallowed between nodes", divided.swallowed()),
        ("promotion", 1),
        ("millisecond until it", took),
        ("primary that still was one", still),
        ("CLUSTERDOWN", refused),
    ]);
    FaultSpans { losses: lost, healthy: promoted, measures: vec![map], ..spans }
}
