//! Checks a cluster as a whole: whether every slot is served, and whether every primary has a replica that can take
//! over.

use std::collections::HashSet;

use tollgate_redis::Host;

use super::node::{Node, error_text, fields};
use super::report::{CheckFinding, Mark};
use super::slot::SLOTS;

/// Longest `cluster-node-timeout` without a warning, in milliseconds: for so long the keys of a failed primary are
/// unavailable.
const NODE_TIMEOUT_MS: u64 = 5_000;
/// Maximum number of primaries that are checked individually.
const PRIMARIES_MAX: usize = 64;

/// A primary with slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Primary {
    pub(super) host: Host,
    pub(super) slots: Vec<(u16, u16)>,
}

/// One line of CLUSTER NODES.
#[derive(Debug)]
struct ClusterMember {
    id: String,
    host: Host,
    is_primary: bool,
    is_gone: bool,
    follows: String,
    slots: Vec<(u16, u16)>,
    is_moving: bool,
}

/// Findings about the cluster, and its primaries.
pub(super) async fn inspect(node: &Node) -> (Vec<CheckFinding>, Vec<Primary>) {
    let ask = |what: &str| {
        let mut command = redis::cmd("CLUSTER");
        command.arg(what);
        command
    };
    let (state, members) = (ask("INFO"), ask("NODES"));
    let (state, members) = (node.ask::<String>(&state).await, node.ask::<String>(&members).await);
    let (state, members) = match (state, members) {
        (Ok(state), Ok(members)) => (fields(&state), read(&members, &node.host)),
        (Err(error), _) | (_, Err(error)) => {
            let line = CheckFinding::new(
                Mark::Fail,
                "cluster",
                format!("it does not tell about its cluster: {}", error_text(&error)),
            );
            return (
                vec![line.cured_by("allow it: ACL SETUSER USER +cluster|info +cluster|nodes +cluster|slots")],
                Vec::new(),
            );
        }
    };
    let mut lines = Vec::new();
    lines.push(match state.get("cluster_state").map(String::as_str) {
        Some("ok") => CheckFinding::ok("cluster", format!("{} servers, state ok", members.len())),
        other => {
            CheckFinding::new(Mark::Fail, "cluster", format!("its state is {}", other.unwrap_or("unknown")))
                .cured_by("see the other lines about the cluster; redis-cli --cluster check tells more")
        }
    });
    lines.push(coverage(&members));
    lines.extend(gone(&members));
    lines.extend(replicas(&members));
    lines.extend(moving(&members));
    lines.extend(settings(node).await);
    (lines, primaries(&members))
}

fn primaries(members: &[ClusterMember]) -> Vec<Primary> {
    let serving =
        members.iter().filter(|member| member.is_primary && !member.is_gone && !member.slots.is_empty());
    serving
        .take(PRIMARIES_MAX)
        .map(|member| Primary { host: member.host.clone(), slots: member.slots.clone() })
        .collect()
}

fn coverage(members: &[ClusterMember]) -> CheckFinding {
    let serving = members.iter().filter(|member| member.is_primary && !member.is_gone);
    let count = |(first, last): &(u16, u16)| u64::from(last.saturating_sub(*first)) + 1;
    let covered: u64 = serving.flat_map(|member| &member.slots).map(count).sum();
    match u64::from(SLOTS).saturating_sub(covered) {
        0 => CheckFinding::ok("slots", format!("all {SLOTS} are served")),
        missing => CheckFinding::new(
            Mark::Fail,
            "slots",
            format!("{missing} of {SLOTS} are served by no node; keys there are decided without the store"),
        )
        .cured_by("start the servers that are gone, or redis-cli --cluster fix"),
    }
}

fn gone(members: &[ClusterMember]) -> Option<CheckFinding> {
    let gone: Vec<String> =
        members.iter().filter(|member| member.is_gone).map(|member| member.host.to_string()).collect();
    let line =
        CheckFinding::new(Mark::Warn, "members", format!("not reached by the others: {}", gone.join(", ")));
    (!gone.is_empty()).then(|| line.cured_by("start them, or let the cluster forget them (CLUSTER FORGET)"))
}

/// Whether each primary has a replica that could take over.
fn replicas(members: &[ClusterMember]) -> Vec<CheckFinding> {
    let followed: HashSet<&str> = members
        .iter()
        .filter(|member| !member.is_primary && !member.is_gone)
        .map(|member| member.follows.as_str())
        .collect();
    let serving =
        members.iter().filter(|member| member.is_primary && !member.is_gone && !member.slots.is_empty());
    let alone: Vec<String> = serving
        .filter(|member| !followed.contains(member.id.as_str()))
        .map(|member| member.host.to_string())
        .collect();
    if alone.is_empty() {
        return vec![CheckFinding::ok("replicas", "each primary has one")];
    }
    let found = format!(
        "without a replica: {}; if one of them fails, its keys are decided without the store",
        alone.join(", ")
    );
    vec![
        CheckFinding::new(Mark::Warn, "replicas", found)
            .cured_by("redis-cli --cluster add-node HOST:PORT EXISTING:PORT --cluster-slave"),
    ]
}

fn moving(members: &[ClusterMember]) -> Option<CheckFinding> {
    members.iter().any(|member| member.is_moving).then(|| {
        CheckFinding::new(Mark::Note, "slots", "some are being moved; decisions there take a round trip more")
    })
}

async fn settings(node: &Node) -> Vec<CheckFinding> {
    let mut lines = Vec::new();
    let timeout = node.setting("cluster-node-timeout").await.and_then(|text| text.parse::<u64>().ok());
    match timeout {
        None => lines.push(CheckFinding::new(Mark::Note, "failover", "this user may not read cluster-node-timeout; 5000 is recommended")),
        Some(timeout) if timeout > NODE_TIMEOUT_MS => lines.push(
            CheckFinding::new(Mark::Warn, "failover", format!("cluster-node-timeout is {timeout} ms: so long a failed primary's keys are decided without the store"))
                .cured_by(format!("CONFIG SET cluster-node-timeout {NODE_TIMEOUT_MS}, at every server")),
        ),
        Some(timeout) => lines.push(CheckFinding::ok("failover", format!("cluster-node-timeout is {timeout} ms"))),
    }
    if node.setting("cluster-require-full-coverage").await.as_deref() == Some("yes") {
        lines.push(
            CheckFinding::new(
                Mark::Warn,
                "failover",
                "cluster-require-full-coverage is on: one shard that is down stops all of them",
            )
            .cured_by("CONFIG SET cluster-require-full-coverage no, at every server"),
        );
    }
    lines
}

/// Parses CLUSTER NODES. A server that does not know its own address gets the address that was asked.
fn read(text: &str, asked: &Host) -> Vec<ClusterMember> {
    text.lines().filter_map(|line| member(line, asked)).collect()
}

fn member(line: &str, asked: &Host) -> Option<ClusterMember> {
    let mut words = line.split(' ');
    let (id, address, flags, follows) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let link = words.nth(3)?; // After the times of PING and PONG, and the epoch.
    let flags: Vec<&str> = flags.split(',').collect();
    let address = address.split(['@', ',']).next()?;
    let (name, port) = address.rsplit_once(':')?;
    let name = if name.is_empty() { &asked.name } else { name };
    let mut slots = Vec::new();
    let mut is_moving = false;
    for word in words {
        is_moving |= word.starts_with('[');
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
            slots.push((first, last));
        }
    }
    let is_gone = flags.iter().any(|flag| matches!(*flag, "fail" | "fail?" | "noaddr" | "handshake"))
        || link != "connected" && !flags.contains(&"myself");
    let is_primary = flags.contains(&"master");
    let host = Host { name: name.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? };
    Some(ClusterMember {
        id: id.to_owned(),
        host,
        is_primary,
        is_gone,
        follows: follows.to_owned(),
        slots,
        is_moving,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
a1 10.0.0.1:7000@17000,host-1 myself,master - 0 0 1 connected 0-5460 [77->-a2]
a2 10.0.0.2:7000@17000 master - 0 1 2 connected 5461-10921 10922
a3 10.0.0.3:7000@17000 master,fail - 1 1 3 disconnected 10923-16383
b1 10.0.0.4:7000@17000 slave a1 0 1 1 connected
b2 :7001@17001 slave,fail? a2 0 1 2 connected
";

    /// CLUSTER NODES is parsed: which node serves which slots, which node is gone, and which has no replica.
    #[test]
    fn clusters_are_read() {
        let asked = Host { name: "h".to_owned(), port: 1 };
        let members = read(NODES, &asked);
        assert_eq!(members.len(), 5);
        let primaries = primaries(&members);
        assert_eq!(
            primaries.iter().map(|primary| primary.host.to_string()).collect::<Vec<_>>(),
            ["10.0.0.1:7000", "10.0.0.2:7000"]
        );
        assert_eq!(primaries[1].slots, [(5_461, 10_921), (10_922, 10_922)]);
        assert_eq!(
            coverage(&members).found,
            "5461 of 16384 are served by no node; keys there are decided without the store"
        );
        assert_eq!(gone(&members).unwrap().found, "not reached by the others: 10.0.0.3:7000, h:7001");
        assert!(replicas(&members)[0].found.starts_with("without a replica: 10.0.0.2:7000;"), "{members:?}");
        assert!(moving(&members).is_some());
    }
}
