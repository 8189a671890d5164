//! Judges what a server reports about itself: its version, its role, its eviction policy and its persistence.

use super::Deployment;
use super::node::Node;
use super::report::{CheckFinding, Mark};

/// Oldest supported Redis.
const OLDEST: (u64, u64) = (6, 2);
/// Memory usage from which a server counts as nearly full, and as full, in percent.
const NEARLY_FULL: u64 = 75;
const FULL: u64 = 90;
/// Approximate size of a counter with its key, in bytes.
const COUNTER_BYTES: u64 = 130;
/// Share of the maximum number of clients from which new ones may be refused, in percent.
const CROWDED: u64 = 80;

/// All findings from the server's own report.
pub(super) async fn lines(node: &Node, kind: Deployment) -> Vec<CheckFinding> {
    if node.about.is_empty() {
        return vec![
            CheckFinding::new(
                Mark::Note,
                "about",
                "this user may not ask for INFO, so version, eviction, memory and persistence are unknown",
            )
            .cured_by("ask as another user, or allow it: ACL SETUSER USER +info"),
        ];
    }
    let mut lines = vec![version(node)];
    lines.extend(part(node, kind));
    lines.push(eviction(node));
    lines.extend(memory(node));
    lines.extend(persistence(node, node.setting("save").await.as_deref()));
    lines.extend(replicas(node, kind));
    lines.extend(clients(node));
    lines
}

fn number(node: &Node, name: &str) -> u64 {
    node.field(name).and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn version(node: &Node) -> CheckFinding {
    if let Some(version) = node.field("valkey_version") {
        return CheckFinding::ok("version", format!("Valkey {version}"));
    }
    let text = node.field("redis_version").unwrap_or("of an unknown version");
    let mut parts = text.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if let Some(dragonfly) = node.field("dragonfly_version") {
        return CheckFinding::new(
            Mark::Warn,
            "version",
            format!("Dragonfly {dragonfly}: Tollgate has not been tested on it"),
        )
        .cured_by("use Redis 6.2 or newer, or Valkey");
    }
    match version {
        older if older < OLDEST => {
            CheckFinding::new(Mark::Fail, "version", format!("Redis {text} is too old"))
                .cured_by("use Redis 6.2 or newer, or Valkey")
        }
        _ => CheckFinding::ok("version", format!("Redis {text}")),
    }
}

/// Whether its role fits the address.
fn part(node: &Node, kind: Deployment) -> Vec<CheckFinding> {
    let is_cluster = node.field("cluster_enabled") == Some("1");
    let mut lines = Vec::new();
    match (kind, is_cluster) {
        (Deployment::Cluster, false) => lines.push(
            CheckFinding::new(Mark::Fail, "role", "it is no cluster: cluster-enabled is off")
                .cured_by("write redis://, or redis-sentinel://"),
        ),
        (Deployment::Single | Deployment::Sentinel, true) => lines.push(
            CheckFinding::new(Mark::Fail, "role", "it is part of a cluster, which keeps most keys elsewhere")
                .cured_by("write redis-cluster://"),
        ),
        _ => {}
    }
    if node.field("redis_mode") == Some("sentinel") {
        let cure = "write redis-sentinel://HOST:26379/SERVICE";
        return vec![
            CheckFinding::new(Mark::Fail, "role", "it is a sentinel, which keeps no counters").cured_by(cure),
        ];
    }
    match node.field("role") {
        Some("master") if lines.is_empty() => {
            lines.push(CheckFinding::ok("role", "it is a primary, and takes writes"))
        }
        Some("master") => {}
        Some(role) => {
            let primary = node.field("master_host").zip(node.field("master_port"));
            let primary = primary
                .map_or("its primary".to_owned(), |(host, port)| format!("its primary, {host}:{port}"));
            let cure = format!("name {primary}; or let sentinels tell: redis-sentinel://HOST:26379/SERVICE");
            lines.push(
                CheckFinding::new(Mark::Fail, "role", format!("it is a {role}, which takes no writes"))
                    .cured_by(cure),
            );
        }
        None => {}
    }
    if number(node, "loading") == 1 {
        lines.push(
            CheckFinding::new(Mark::Fail, "role", "it still reads its data, and answers nothing else")
                .cured_by("wait; `INFO persistence` tells how far it is"),
        );
    }
    lines
}

/// Its policy when it is full. Every counter of Tollgate has a TTL, so the `volatile` policies reach all of them.
fn eviction(node: &Node) -> CheckFinding {
    let policy = node.field("maxmemory_policy").unwrap_or("unknown");
    let is_bounded = number(node, "maxmemory") > 0;
    let cure = "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file";
    match (policy, is_bounded) {
        ("noeviction", _) => CheckFinding::ok("eviction", "noeviction: when it is full it says so, and no counter is forgotten"),
        ("volatile-ttl", _) => CheckFinding::new(
            Mark::Warn,
            "eviction",
            "volatile-ttl: when it is full, counters are forgotten before their time, those first that end soonest",
        )
        .cured_by(cure),
        (_, false) => CheckFinding::new(
            Mark::Warn,
            "eviction",
            format!("{policy} would forget counters that are in use; without maxmemory it never acts"),
        )
        .cured_by(cure),
        (_, true) => CheckFinding::new(
            Mark::Fail,
            "eviction",
            format!("{policy}: when it is full, counters in use are evicted, and their keys get a full quota again"),
        )
        .cured_by(cure),
    }
}

fn memory(node: &Node) -> Vec<CheckFinding> {
    let (used, most) = (number(node, "used_memory"), number(node, "maxmemory"));
    let machine = number(node, "total_system_memory");
    if most == 0 {
        let found = format!(
            "{} used, and no bound: the system ends it when the machine's {} are full",
            mib(used),
            mib(machine)
        );
        return vec![
            CheckFinding::new(Mark::Warn, "memory", found)
                .cured_by("CONFIG SET maxmemory, such as to half of the machine's memory; with persistence, a fork may need as much again"),
        ];
    }
    let share = used.saturating_mul(100) / most;
    let room = most.saturating_sub(used) / COUNTER_BYTES;
    let found =
        format!("{} of {} used ({share} %), room for about {room} more counters", mib(used), mib(most));
    let cure = "CONFIG SET maxmemory to more, or spread the keys over a cluster";
    vec![match share {
        FULL.. => CheckFinding::new(Mark::Fail, "memory", format!("{found}: soon it refuses new counters"))
            .cured_by(cure),
        NEARLY_FULL.. => CheckFinding::new(Mark::Warn, "memory", found).cured_by(cure),
        _ => CheckFinding::ok("memory", found),
    }]
}

/// The data that survives its restart.
fn persistence(node: &Node, save: Option<&str>) -> Vec<CheckFinding> {
    let mut lines = Vec::new();
    let found = match number(node, "aof_enabled") == 1 {
        true => "an append-only file is written: a restart forgets about a second",
        false if save.is_none() => {
            "no append-only file: a restart forgets what came after the last snapshot, if any is taken"
        }
        false if save != Some("") => {
            "no append-only file: a restart forgets what came after the last snapshot"
        }
        false => "nothing is written to disk: a restart forgets all counters",
    };
    lines.push(CheckFinding::new(Mark::Note, "persistence", found));
    for (field, what) in
        [("rdb_last_bgsave_status", "the last snapshot"), ("aof_last_write_status", "the append-only file")]
    {
        if node.field(field).is_some_and(|status| status != "ok") {
            let found = format!("{what} could not be written; it may refuse all writes for it (MISCONF)");
            lines.push(
                CheckFinding::new(Mark::Warn, "persistence", found)
                    .cured_by("see its log: the disk is full, or its directory cannot be written; or take no snapshots (CONFIG SET save \"\")"),
            );
        }
    }
    lines
}

fn replicas(node: &Node, kind: Deployment) -> Vec<CheckFinding> {
    if kind == Deployment::Cluster {
        return Vec::new(); // Reported for the cluster as a whole.
    }
    let replicas = number(node, "connected_slaves");
    let line = match (replicas, kind) {
        (0, Deployment::Sentinel) => {
            CheckFinding::new(Mark::Fail, "replicas", "no replica: the sentinels have no server to promote")
                .cured_by("start a replica (replicaof), and see whether it is connected")
        }
        (0, _) => CheckFinding::new(
            Mark::Note,
            "replicas",
            "none: while it is down, each limit does what its on_store_failure says",
        ),
        (1, _) => CheckFinding::ok("replicas", "1 connected"),
        (several, _) => CheckFinding::ok("replicas", format!("{several} connected")),
    };
    vec![line]
}

fn clients(node: &Node) -> Vec<CheckFinding> {
    let (now, most) = (number(node, "connected_clients"), number(node, "maxclients"));
    if most == 0 {
        return Vec::new();
    }
    let found = format!("{now} of {most} connected");
    vec![match now.saturating_mul(100) / most {
        CROWDED.. => CheckFinding::new(Mark::Warn, "clients", found)
            .cured_by("raise maxclients, and the process's open files with it"),
        _ => CheckFinding::ok("clients", found),
    }]
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
