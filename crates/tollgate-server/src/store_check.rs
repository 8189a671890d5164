//! `tollgate store check`: finds problems of a store that a fleet shares, and their cures.

use std::path::PathBuf;
use std::time::Duration;

use redis::{ClientTlsConfig, TlsCertificates};
use tollgate_redis::{Host, Settings, Topology};

use crate::cli::StoreCheckArguments;
use crate::console::Console;
use crate::operate::blocking;
use crate::store::{self, bytes};
use crate::{FAILURE, SUCCESS};
use node::{Entrance, Node};
use report::{CheckFinding, Mark, Report};
use slot::SLOTS;

mod about;
mod cluster;
mod node;
mod pace;
mod report;
mod rights;
mod sentinel;
mod slot;

/// Difference of the clocks of one cluster's servers from which it is too large, in microseconds.
const CLOCK_DIFFERENCE_MAX: i64 = 1_000_000;
/// Every slot, for a server that holds all keys.
const EVERY_SLOT: [(u16, u16); 1] = [(0, SLOTS - 1)];

/// Checks a store, and prints the findings.
///
/// # Errors
/// When the settings of the store cannot be used.
pub(crate) fn run(arguments: &StoreCheckArguments, console: &mut Console) -> Result<u8, String> {
    let prepared = prepared(arguments)?;
    let report = blocking(inspect(&prepared))?;
    match arguments.json {
        true => console.line(serde_json::to_string(&report).unwrap_or_default()),
        false => report.lines().into_iter().for_each(|line| console.line(line)),
    }
    Ok(if report.fit { SUCCESS } else { FAILURE })
}

/// The settings of the store, with the certificates from files.
struct StoreAccess {
    settings: Settings,
    certificates: TlsCertificates,
}

fn prepared(arguments: &StoreCheckArguments) -> Result<StoreAccess, String> {
    if arguments.url.text() == "memory" {
        return Err(
            "memory needs no check; name the address of a Redis or Valkey, such as redis://127.0.0.1:6379"
                .to_owned(),
        );
    }
    let settings = store::settings(arguments.url.text(), &arguments.entrance.login());
    let mut settings = settings.map_err(|error| format!("the store's address: {error}"))?;
    if let Some(deadline) = arguments.store_deadline {
        let deadline = Duration::from_micros(deadline.as_micros());
        settings = settings.deadline(deadline).map_err(|error| error.to_string())?;
    }
    let files = settings.tls_files().cloned().unwrap_or_default();
    let read = |path: &Option<PathBuf>| path.as_deref().map(bytes).transpose();
    let client_tls = read(&files.certificate)?.zip(read(&files.key)?);
    let client_tls = client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok(StoreAccess { certificates: TlsCertificates { client_tls, root_cert: read(&files.ca)? }, settings })
}

async fn inspect(StoreAccess { settings, certificates }: &StoreAccess) -> Report {
    let (user, password) = settings.credentials();
    let is_secure = settings.is_encrypted();
    let password = password.as_deref();
    let entrance = Entrance { user, password, database: settings.database(), is_secure, certificates };
    let deadline = settings.timeout();
    let mut lines = Vec::new();
    if settings.is_exposed() {
        let line = CheckFinding::new(
            Mark::Warn,
            "transport",
            "in plain text over a network: anyone on the path can read the password and change counters",
        );
        lines.push(line.cured_by("let the store speak TLS (tls-port), and write rediss://"));
    }
    match settings.topology() {
        Topology::Standalone(host) => {
            lines.extend(single(host, Deployment::Single, &entrance, deadline).await)
        }
        Topology::Cluster(hosts) => lines.extend(whole(hosts, &entrance, deadline).await),
        Topology::Sentinel { sentinels, service } => {
            // Sentinels have no databases, and their own users if any.
            let plain = Entrance { user: None, password: None, database: 0, ..entrance };
            let (found, primary) = sentinel::inspect(sentinels, service, &plain).await;
            lines.extend(found);
            if let Some(primary) = primary {
                lines.extend(single(&primary, Deployment::Sentinel, &entrance, deadline).await);
            }
        }
    }
    let place = settings.topology().to_string();
    Report::new(if is_secure { place.replacen("redis", "rediss", 1) } else { place }, lines)
}

/// The topology of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deployment {
    /// One server.
    Single,
    /// A cluster that divides the keys.
    Cluster,
    /// One server that sentinels watch and replace.
    Sentinel,
}

/// Checks one server that holds all keys.
async fn single(
    host: &Host,
    kind: Deployment,
    entrance: &Entrance<'_>,
    deadline: Duration,
) -> Vec<CheckFinding> {
    let node = match Node::reach(host, entrance).await {
        Ok(node) => node,
        Err(line) => return vec![line],
    };
    let reached = format!("{host} answers as {} after {} ms", entrance.user(), pace::millis(node.took));
    let mut lines = vec![CheckFinding::ok("reach", reached)];
    lines.extend(about::lines(&node, kind).await);
    if node.field("redis_mode") == Some("sentinel") || node.field("cluster_enabled") == Some("1") {
        return lines; // Nothing else could be tried there.
    }
    lines.extend(tried(&node, entrance, kind, &EVERY_SLOT, deadline).await.0);
    lines
}

/// Findings of active tests, and the clock offset.
async fn tried(
    node: &Node,
    entrance: &Entrance<'_>,
    kind: Deployment,
    slots: &[(u16, u16)],
    deadline: Duration,
) -> (Vec<CheckFinding>, Option<i64>) {
    let mut lines = rights::lines(node, entrance, kind, slots).await;
    let offset = pace::offset(node).await;
    lines.extend(offset.map(pace::clock));
    lines.extend(pace::latency(node, slots, deadline).await);
    (lines, offset)
}

/// Checks a cluster: as a whole, and each primary.
async fn whole(hosts: &[Host], entrance: &Entrance<'_>, deadline: Duration) -> Vec<CheckFinding> {
    let mut lines = Vec::new();
    let mut first = None;
    for host in hosts {
        match Node::reach(host, entrance).await {
            Ok(node) => {
                lines.push(CheckFinding::ok(
                    "reach",
                    format!("{host} answers as {} after {} ms", entrance.user(), pace::millis(node.took)),
                ));
                first.get_or_insert(node);
            }
            // An unreachable server is a warning while another one knows the whole cluster.
            Err(line) => lines.push(CheckFinding { mark: Mark::Warn, ..line }),
        }
    }
    let Some(node) = first else {
        lines
            .iter_mut()
            .for_each(|line| line.mark = if line.check == "reach" { Mark::Fail } else { line.mark });
        return lines;
    };
    if node.field("cluster_enabled") == Some("0") {
        lines.extend(about::lines(&node, Deployment::Cluster).await);
        return lines;
    }
    let (found, primaries) = cluster::inspect(&node).await;
    lines.extend(found);
    let mut offsets = Vec::new();
    for primary in primaries {
        let mut found = Vec::new();
        match Node::reach(&primary.host, entrance).await {
            Err(line) => found.push(line),
            Ok(node) => {
                found.extend(about::lines(&node, Deployment::Cluster).await);
                let (tried, offset) =
                    tried(&node, entrance, Deployment::Cluster, &primary.slots, deadline).await;
                found.extend(tried);
                offsets.extend(offset);
            }
        }
        let name = primary.host.to_string();
        lines.extend(found.into_iter().map(|line| CheckFinding { nodes: vec![name.clone()], ..line }));
    }
    lines.extend(clock_difference(&offsets));
    lines
}

/// Whether the servers of a cluster agree on the time: after a failover counters follow another clock.
fn clock_difference(offsets: &[i64]) -> Option<CheckFinding> {
    let difference = offsets.iter().max()?.saturating_sub(*offsets.iter().min()?);
    let line = || {
        CheckFinding::new(
            Mark::Warn,
            "clock",
            format!("the servers' own clocks differ by {} ms", difference / 1_000),
        )
    };
    (difference >= CLOCK_DIFFERENCE_MAX).then(|| line().cured_by("let all of them follow NTP"))
}
