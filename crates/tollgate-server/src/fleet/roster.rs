//! The list of nodes: what each says about itself in its heartbeat, and how it is shown.

use serde::{Deserialize, Serialize};
use tollgate::time::WallOffset;
use tollgate::{Ticks, Timestamp};
use tollgate_redis::{FleetNews, FleetNode, ReplyClass};

use crate::reload::Reloader;
use crate::time_text::rfc3339_millis;

/// A node whose last heartbeat is older is shown as silent, in microseconds.
const SILENT_AFTER: u64 = 5_000_000;
/// Maximum number of nodes that are listed.
const NODES_MAX: usize = 1_000;

/// A node's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAbout {
    /// The host and port of its admin interface.
    pub(crate) name: String,
    /// The URL of its admin interface for other nodes. `None` if they cannot ask it.
    pub(crate) admin: Option<String>,
    /// When it started, by the wall clock.
    pub(crate) started: Timestamp,
}

/// A heartbeat. Nodes of other versions may say more or less.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Heartbeat {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<String>,
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    started: u64,
    /// How far its clock is ahead of the store's, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_ms: Option<i64>,
}

/// Whether a node lives, by its heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeState {
    Ok,
    /// It has sent no heartbeat for more than five seconds.
    Silent,
}

/// A node, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeView {
    /// Random, and new with each start. A server on memory has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// Whether it is the node that answers.
    #[serde(rename = "this")]
    pub(crate) is_this: bool,
    pub(crate) state: NodeState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin: Option<String>,
    version: String,
    /// The beginning of its policy's SHA-256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    started: String,
    last_seen: String,
    /// How far its clock is ahead of the store's, in milliseconds, if it has said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clock_ms: Option<i64>,
}

#[cfg(test)]
impl NodeView {
    /// A node of which only the name is known.
    pub(crate) fn named(name: &str) -> Self {
        shown(&FleetNode { id: name.to_owned(), seen: 0, text: String::new() }, 0)
    }
}

/// The nodes of a fleet.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Roster {
    pub(crate) nodes: Vec<NodeView>,
    /// When the store listed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    listed_at: Option<String>,
    /// Why the list is not a new one, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// How many blocks and overrides of this node the others do not have yet.
    unshared: usize,
}

impl NodeAbout {
    /// The heartbeat of this node.
    pub(super) fn heartbeat(&self, reloader: &Reloader, clock_ms: Option<i64>) -> String {
        let heartbeat = Heartbeat {
            name: self.name.clone(),
            admin: self.admin.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            policy: policy(reloader),
            started: self.started.unix_micros(),
            clock_ms,
        };
        // Text and numbers always have a form in JSON.
        serde_json::to_string(&heartbeat).unwrap_or_default()
    }

    /// This node, as it is shown.
    pub(super) fn view(
        &self,
        id: Option<&str>,
        reloader: &Reloader,
        now: Timestamp,
        wall: WallOffset,
    ) -> NodeView {
        NodeView {
            id: id.map(str::to_owned),
            name: self.name.clone(),
            is_this: true,
            state: NodeState::Ok,
            admin: self.admin.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            policy: policy(reloader),
            started: rfc3339_millis(self.started),
            last_seen: rfc3339_millis(now.on_wall(wall)),
            clock_ms: None,
        }
    }
}

fn policy(reloader: &Reloader) -> Option<String> {
    reloader.status().version.map(crate::file_watch::Version::short)
}

/// The nodes that the store listed last.
#[derive(Debug, Default)]
pub(super) struct SeenNodes {
    nodes: Vec<FleetNode>,
    /// The store's time of the list, and that of this node's wall clock.
    listed: Option<(u64, Timestamp)>,
    /// Why the last exchange failed, if it did.
    pub(super) problem: Option<ReplyClass>,
}

impl SeenNodes {
    /// Takes a list that came at `now`, by the wall clock of this node.
    pub(super) fn list(&mut self, news: &FleetNews, now: Timestamp) {
        self.nodes.clone_from(&news.nodes);
        self.listed = Some((news.now, now));
    }

    /// How far this node's clock is ahead of the store's, in milliseconds. The way of the answer counts as ahead.
    pub(super) fn clock_ms(&self) -> Option<i64> {
        let (store, here) = self.listed?;
        let store = Timestamp::from_unix_micros(store);
        let millis = |ahead: Ticks| i64::try_from(ahead.as_micros() / 1_000).unwrap_or(i64::MAX);
        Some(millis(here.since(store)) - millis(store.since(here)))
    }

    /// The list with this node in it, whether the store knows it or not.
    pub(super) fn roster(&self, this: NodeView, problem: Option<String>, unshared: usize) -> Roster {
        let listed = self.listed.map(|(store_now, _)| store_now).unwrap_or_default();
        let others = self.nodes.iter().filter(|node| Some(&node.id) != this.id.as_ref());
        let mut nodes: Vec<NodeView> = others.take(NODES_MAX).map(|node| shown(node, listed)).collect();
        nodes.push(NodeView { clock_ms: self.clock_ms(), ..this });
        nodes.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        let listed_at = self.listed.map(|(_, at)| rfc3339_millis(at));
        Roster { nodes, listed_at, problem, unshared }
    }
}

fn shown(FleetNode { id, seen, text }: &FleetNode, listed: u64) -> NodeView {
    let heartbeat: Heartbeat = serde_json::from_str(text).unwrap_or_default();
    let Heartbeat { name, admin, version, policy, started, clock_ms } = heartbeat;
    let is_silent = listed.saturating_sub(*seen) > SILENT_AFTER;
    NodeView {
        name: if name.is_empty() { id.clone() } else { name },
        id: Some(id.clone()),
        is_this: false,
        state: if is_silent { NodeState::Silent } else { NodeState::Ok },
        admin,
        version,
        policy,
        started: rfc3339_millis(Timestamp::from_unix_micros(started)),
        last_seen: rfc3339_millis(Timestamp::from_unix_micros(*seen)),
        clock_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, seen: u64, text: &str) -> FleetNode {
        FleetNode { id: id.to_owned(), seen, text: text.to_owned() }
    }

    /// Every node is listed: one that fell silent as such, and one whose heartbeat makes no sense by its id.
    #[test]
    fn no_node_is_left_out() {
        let second = 1_000_000;
        let news = FleetNews {
            now: 100 * second,
            nodes: vec![
                node(
                    "b",
                    99 * second,
                    r#"{"name":"two","admin":"http://h:1","version":"9","later":1,"clock_ms":-7}"#,
                ),
                node("c", 90 * second, "?"),
                node("a", 99 * second, r#"{"name":"one"}"#),
            ],
            ..FleetNews::default()
        };
        let mut seen = SeenNodes::default();
        assert_eq!(seen.clock_ms(), None);
        seen.list(&news, Timestamp::from_unix_seconds(103));
        let this = NodeView { is_this: true, ..shown(&node("a", 0, r#"{"name":"one"}"#), 0) };
        let roster = seen.roster(this, None, 0);
        let listed: Vec<(&str, bool, NodeState)> =
            roster.nodes.iter().map(|node| (node.name.as_str(), node.is_this, node.state)).collect();
        assert_eq!(
            listed,
            [("c", false, NodeState::Silent), ("one", true, NodeState::Ok), ("two", false, NodeState::Ok)]
        );
        assert_eq!(roster.nodes[2].admin.as_deref(), Some("http://h:1"));
        let clocks: Vec<Option<i64>> = roster.nodes.iter().map(|node| node.clock_ms).collect();
        assert_eq!(clocks, [None, Some(3_000), Some(-7)]);
        seen.list(&news, Timestamp::from_unix_seconds(98));
        assert_eq!(seen.clock_ms(), Some(-2_000), "a clock that is behind");
    }
}
