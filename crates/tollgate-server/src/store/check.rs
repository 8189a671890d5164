//! `tollgate store check`: what is wrong with a store that a fleet is to share, and how to cure it.

use std::time::Duration;

use super::address::{Address, Kind};
use super::keys::{Keys, word};
use crate::cli::StoreCheckArguments;
use crate::console::Console;
use crate::{FAILURE, SUCCESS, USAGE};
use node::{Entrance, Node};
use report::{Line, Mark, Report};
use slot::SLOTS;

mod about;
mod cluster;
mod node;
mod pace;
mod report;
mod rights;
mod sentinel;
mod slot;

/// From here on the clocks of servers of one cluster differ too much, in microseconds.
const SPREAD_MAX: i64 = 1_000_000;
/// Every slot, for a server that has all keys.
const EVERY_SLOT: [(u16, u16); 1] = [(0, SLOTS - 1)];

/// Checks a store and tells what was found.
pub(crate) fn run(arguments: &StoreCheckArguments, console: &mut Console) -> u8 {
    let report = prepared(arguments).and_then(|(address, keys)| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| format!("the system gives no resources: {error}; free some and try again"))?;
        Ok(runtime.block_on(inspect(&address, &keys, arguments.deadline.into())))
    });
    match report {
        Err(problem) => {
            console.problem(format_args!("tollgate: {problem}"));
            USAGE
        }
        Ok(report) => {
            match arguments.json {
                true => console.line(serde_json::to_string(&report).unwrap_or_default()),
                false => report.lines().into_iter().for_each(|line| console.line(line)),
            }
            if report.fit { SUCCESS } else { FAILURE }
        }
    }
}

fn prepared(arguments: &StoreCheckArguments) -> Result<(Address, Keys), String> {
    let mut address = Address::parse(arguments.url.text())?;
    let files = &arguments.files;
    if let Some(path) = &files.password_file {
        address.password = Some(word(path)?);
    } else if let Some(password) = super::environment("TOLLGATE_STORE_PASSWORD") {
        address.password = Some(password);
    }
    let keys = Keys::read(files.ca.as_deref(), files.cert.as_deref(), files.key.as_deref())?;
    if !keys.is_empty() && !address.is_secure {
        return Err(
            "certificates are for TLS; write rediss:// (or leave --ca, --cert and --key out)".to_owned()
        );
    }
    Ok((address, keys))
}

async fn inspect(address: &Address, keys: &Keys, deadline: Duration) -> Report {
    let entrance = Entrance {
        user: address.user.as_deref(),
        password: address.password.as_deref(),
        database: address.database,
        is_secure: address.is_secure,
        keys,
    };
    let mut lines = Vec::new();
    if address.is_exposed() {
        let line = Line::new(
            Mark::Warn,
            "transport",
            "in plain text over a network: whoever is on the way reads the password and changes counters",
        );
        lines.push(line.cured_by("let the store speak TLS (tls-port), and write rediss://"));
    }
    match address.kind {
        Kind::Single => lines.extend(single(&address.hosts[0], address.kind, &entrance, deadline).await),
        Kind::Cluster => lines.extend(whole(address, &entrance, deadline).await),
        Kind::Sentinel => {
            // Sentinels have no databases, and users of their own if any.
            let (found, primary) =
                sentinel::look(address, &Entrance { user: None, password: None, database: 0, ..entrance })
                    .await;
            lines.extend(found);
            if let Some(primary) = primary {
                lines.extend(single(&primary, address.kind, &entrance, deadline).await);
            }
        }
    }
    Report::new(address.to_string(), lines)
}

/// One server that keeps all keys.
async fn single(
    host: &super::address::Host,
    kind: Kind,
    entrance: &Entrance<'_>,
    deadline: Duration,
) -> Vec<Line> {
    let node = match Node::reach(host, entrance).await {
        Ok(node) => node,
        Err(line) => return vec![line],
    };
    let reached = format!("{host} answers as {} after {} ms", entrance.user(), pace::millis(node.took));
    let mut lines = vec![Line::ok("reach", reached)];
    lines.extend(about::lines(&node, kind).await);
    if node.field("redis_mode") == Some("sentinel") || node.field("cluster_enabled") == Some("1") {
        return lines; // Nothing else could be tried there.
    }
    lines.extend(tried(&node, entrance, kind, &EVERY_SLOT, deadline).await.0);
    lines
}

/// What is found out by trying; and the difference of clocks.
async fn tried(
    node: &Node,
    entrance: &Entrance<'_>,
    kind: Kind,
    slots: &[(u16, u16)],
    deadline: Duration,
) -> (Vec<Line>, Option<i64>) {
    let mut lines = rights::lines(node, entrance, kind, slots).await;
    let offset = pace::offset(node).await;
    lines.extend(offset.map(pace::clock));
    lines.extend(pace::latency(node, slots, deadline).await);
    (lines, offset)
}

/// A cluster: as a whole, and primary by primary.
async fn whole(address: &Address, entrance: &Entrance<'_>, deadline: Duration) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut door = None;
    for host in &address.hosts {
        match Node::reach(host, entrance).await {
            Ok(node) => {
                lines.push(Line::ok(
                    "reach",
                    format!("{host} answers as {} after {} ms", entrance.user(), pace::millis(node.took)),
                ));
                door.get_or_insert(node);
            }
            // One that is away is a warning as long as another tells where everybody is.
            Err(line) => lines.push(Line { mark: Mark::Warn, ..line }),
        }
    }
    let Some(node) = door else {
        lines
            .iter_mut()
            .for_each(|line| line.mark = if line.check == "reach" { Mark::Fail } else { line.mark });
        return lines;
    };
    if node.field("cluster_enabled") == Some("0") {
        lines.extend(about::lines(&node, Kind::Cluster).await);
        return lines;
    }
    let (found, primaries) = cluster::look(&node).await;
    lines.extend(found);
    let mut offsets = Vec::new();
    for primary in primaries {
        let mut found = Vec::new();
        match Node::reach(&primary.host, entrance).await {
            Err(line) => found.push(line),
            Ok(node) => {
                found.extend(about::lines(&node, Kind::Cluster).await);
                let (tried, offset) = tried(&node, entrance, Kind::Cluster, &primary.slots, deadline).await;
                found.extend(tried);
                offsets.extend(offset);
            }
        }
        let name = primary.host.to_string();
        lines.extend(found.into_iter().map(|line| Line { nodes: vec![name.clone()], ..line }));
    }
    lines.extend(spread(&offsets));
    lines
}

/// Whether the servers of a cluster agree on the time: after a failover counters go by another clock.
fn spread(offsets: &[i64]) -> Option<Line> {
    let spread = offsets.iter().max()?.saturating_sub(*offsets.iter().min()?);
    let line =
        || Line::new(Mark::Warn, "clock", format!("the servers' own clocks differ by {} ms", spread / 1_000));
    (spread >= SPREAD_MAX).then(|| line().cured_by("let all of them follow NTP"))
}
