//! A real cluster: three primaries and their replicas.

use std::process::Command;
use std::time::Duration;

use crate::server::{Plan, Program, Server};
use tollgate_testkit::{free_port, rest, until};

/// The cluster node timeout, in milliseconds.
const NODE_TIMEOUT: u32 = 2_000;
/// The node timeout when no failover should happen, however busy the machine is.
const CALM_TIMEOUT: u32 = 20_000;
const NODES: usize = 6;
/// Slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// One line of CLUSTER NODES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) port: u16,
    pub(crate) flags: Vec<String>,
    /// The primary of a replica.
    pub(crate) of: Option<String>,
    /// Its ranges of slots, both ends included.
    pub(crate) slots: Vec<(u16, u16)>,
}

impl Node {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = words.get(1)?.split(['@', ',']).next()?.rsplit(':').next()?.parse().ok()?;
        // Migrating slots are written in brackets and still belong to their owner.
        let ranges = words.get(8..).unwrap_or_default().iter().filter(|word| !word.starts_with('['));
        let slots = ranges.map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (first.parse().unwrap(), last.parse().unwrap())
        });
        Some(Self {
            id: (*words.first()?).to_owned(),
            port,
            flags: words.get(2)?.split(',').map(str::to_owned).collect(),
            of: words.get(3).filter(|id| **id != "-").map(|id| (*id).to_owned()),
            slots: slots.collect(),
        })
    }

    pub(crate) fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }

    pub(crate) fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|&(first, last)| (first..=last).contains(&slot))
    }
}

/// Six nodes.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start(program: Program) -> Self {
        Self::with(&Plan::new(program), NODE_TIMEOUT)
    }

    /// A cluster without automatic failover.
    pub(crate) fn calm(program: Program) -> Self {
        Self::with(&Plan::new(program), CALM_TIMEOUT)
    }

    /// A cluster whose nodes are each started by their own plan.
    pub(crate) fn made(mut plan: impl FnMut(usize) -> Plan) -> Self {
        Self::of((0..NODES).map(|node| clustered(plan(node), NODE_TIMEOUT).start()).collect())
    }

    /// Starts six nodes by one plan.
    fn with(plan: &Plan, node_timeout: u32) -> Self {
        let node = || {
            let plan = plan.clone().line(format!("cluster-port {}", free_port()));
            clustered(plan, node_timeout).start()
        };
        Self::of((0..NODES).map(|_| node()).collect())
    }

    /// Creates a cluster of six nodes. Returns once all of them report it complete.
    fn of(servers: Vec<Server>) -> Self {
        let cluster = Self { servers };
        let addresses: Vec<String> =
            cluster.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let mut arguments: Vec<&str> = vec!["--cluster", "create"];
        arguments.extend(addresses.iter().map(String::as_str));
        arguments.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        cli(&arguments);
        cluster.await_whole();
        cluster
    }

    /// The URL for a store.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// Waits until every node reports the cluster complete, with three primaries and three replicas in sync.
    pub(crate) fn await_whole(&self) {
        until("the cluster is whole", || {
            let whole = self.servers.iter().all(|server| {
                let text: String = server.ask(&["CLUSTER", "INFO"]).unwrap_or_default();
                let replicates = server.info("role").as_deref() != Some("slave")
                    || server.info("master_link_status").as_deref() == Some("up");
                text.contains("cluster_state:ok") && text.contains("cluster_slots_ok:16384") && replicates
            });
            let views = self.servers.iter().map(|server| {
                let nodes = nodes_of(server)?;
                let primaries =
                    nodes.iter().filter(|node| node.is("master") && !node.slots.is_empty()).count();
                let replicas = nodes.iter().filter(|node| node.is("slave")).count();
                let sick =
                    nodes.iter().any(|node| node.is("fail") || node.is("fail?") || node.is("handshake"));
                Some(primaries == 3 && replicas == 3 && !sick)
            });
            (whole && views.into_iter().all(|view| view == Some(true)) && self.agrees()).then_some(())
        });
    }

    /// Whether all nodes agree on owners and replicas.
    fn agrees(&self) -> bool {
        let mut views = self.servers.iter().map(|server| {
            let mut nodes: Vec<_> =
                nodes_of(server)?.into_iter().map(|node| (node.id, node.of, node.slots)).collect();
            nodes.sort();
            Some(nodes)
        });
        let first = views.next().flatten();
        first.is_some() && views.all(|view| view == first)
    }

    /// The nodes, as a running node knows them.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        self.servers.iter().find_map(nodes_of).unwrap()
    }

    /// The index of the server with this port.
    pub(crate) fn index_of(&self, port: u16) -> usize {
        self.servers.iter().position(|server| server.port == port).unwrap()
    }

    /// The primary of a slot, as an index of the servers.
    pub(crate) fn primary_of(&self, slot: u16) -> usize {
        let found = self.nodes().into_iter().find(|node| node.is("master") && node.owns(slot));
        self.index_of(found.unwrap().port)
    }

    /// The replica of a primary, as indexes of the servers.
    pub(crate) fn replica_of(&self, primary: usize) -> usize {
        let nodes = self.nodes();
        let id = &nodes.iter().find(|node| node.port == self.servers[primary].port).unwrap().id;
        let replica = nodes.iter().find(|node| node.of.as_ref() == Some(id) && node.is("slave"));
        self.index_of(replica.unwrap().port)
    }

    /// Waits until a primary's replica has all of its writes. Others would be lost with the primary.
    pub(crate) fn await_replicated(&self, primary: usize) {
        let offset = |server: &Server, field: &str| server.info(field)?.parse::<u64>().ok();
        let replica = &self.servers[self.replica_of(primary)];
        let wanted = offset(&self.servers[primary], "master_repl_offset").unwrap();
        until("the replica has everything", || {
            offset(replica, "slave_repl_offset").filter(|&has| has >= wanted)
        });
    }

    /// Moves slots from one primary to another, as an operator does.
    pub(crate) fn reshard(&self, slots: u32, from: usize, to: usize) {
        self.await_whole();
        let nodes = self.nodes();
        let id = |index: usize| {
            let port = self.servers[index].port;
            nodes.iter().find(|node| node.port == port).unwrap().id.clone()
        };
        let (address, slots) = (format!("127.0.0.1:{}", self.servers[to].port), slots.to_string());
        let (from, to) = (id(from), id(to));
        let arguments = ["--cluster", "reshard", &address, "--cluster-from", &from, "--cluster-to", &to];
        cli(&[&arguments[..], &["--cluster-slots", &slots, "--cluster-yes"]].concat());
    }

    /// Moves one slot by hand, and waits before the other nodes are informed, so that every request is redirected.
    pub(crate) fn move_slot(&self, slot: u16, from: usize, to: usize, pause: Duration) {
        let nodes = self.nodes();
        let id = |index: usize| {
            let port = self.servers[index].port;
            nodes.iter().find(|node| node.port == port).unwrap().id.clone()
        };
        let (slot, old, new) = (slot.to_string(), id(from), id(to));
        let (source, target) = (&self.servers[from], &self.servers[to]);
        target.tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &old]);
        source.tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new]);
        let keys: Vec<String> = source.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]).unwrap();
        let port = target.port.to_string();
        for key in &keys {
            source.tell(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
        rest(pause);
        target.tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &new]);
        source.tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &new]);
    }

    /// Keys of all primaries without an expiry.
    pub(crate) fn immortal(&self) -> Vec<String> {
        let primaries = self.servers.iter().filter(|server| server.info("role").as_deref() == Some("master"));
        let lives = primaries.flat_map(Server::lives);
        lives.filter(|(_, life)| *life < 0).map(|(key, _)| key).collect()
    }
}

/// The configuration of every node.
fn clustered(plan: Plan, node_timeout: u32) -> Plan {
    let plan = plan.line("cluster-enabled yes").line(format!("cluster-node-timeout {node_timeout}"));
    // A replica that lost its primary for a moment may still take over.
    plan.line("cluster-replica-validity-factor 0").line("repl-ping-replica-period 1")
}

fn nodes_of(server: &Server) -> Option<Vec<Node>> {
    let text: String = server.ask(&["CLUSTER", "NODES"]).ok()?;
    Some(text.lines().filter_map(Node::parse).collect())
}

/// Runs `redis-cli`, which must succeed.
pub(crate) fn cli(arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "redis-cli {arguments:?} said: {printed}");
    printed
}
