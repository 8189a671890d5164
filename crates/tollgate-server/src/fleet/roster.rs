//! The list of nodes: what each says about itself in its heartbeat, how it is shown, and which are missed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tollgate::time::WallOffset;
use tollgate::{Ticks, Timestamp};
use tollgate_redis::{FleetNews, FleetNode, ReplyClass};

use crate::reload::Reloader;
use crate::time_text::rfc3339_millis;

/// A node whose last heartbeat is older is shown as silent, in microseconds.
const SILENT_AFTER: u64 = 5_000_000;
/// A node whose last heartbeat is older is lost, in microseconds. The store lists it for an hour.
const LOST_AFTER: u64 = 60_000_000;
/// How much later a restart may seem to be than it was, by clocks that differ, in microseconds.
const CLOCKS_DIFFER: u64 = 10_000_000;
/// Maximum number of nodes that are listed.
const NODES_MAX: usize = 1_000;

/// Where the admin token of a node is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenOrigin {
    /// It was given, so other nodes may have it as well.
    Given,
    /// The node made it at its start, so no other node knows it.
    Made,
}

/// A node's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAbout {
    /// The host and port of its admin interface.
    pub(crate) name: String,
    /// The URL of its admin interface for other nodes. `None` if they cannot ask it.
    pub(crate) admin: Option<String>,
    /// When it started, by the wall clock.
    pub(crate) started: Timestamp,
    pub(crate) token: TokenOrigin,
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
    /// Whether it made its token itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    own_token: bool,
}

/// Whether a node lives, by its heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeState {
    Ok,
    /// It has sent no heartbeat for more than five seconds.
    Silent,
    /// It has sent none for more than a minute, and has not left in order.
    Lost,
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
    /// Whether it made its token itself, so that no other node can show its views.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    own_token: bool,
}

impl NodeView {
    /// Whether it makes sense to ask it.
    ///
    /// # Errors
    /// When it is lost, with since when. A view of all nodes does not wait for it.
    pub(super) fn not_lost(&self) -> Result<(), String> {
        match self.state {
            NodeState::Ok | NodeState::Silent => Ok(()),
            NodeState::Lost => Err(format!("it is lost: its last heartbeat was at {}", self.last_seen)),
        }
    }
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
            own_token: self.token == TokenOrigin::Made,
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
            own_token: self.token == TokenOrigin::Made,
        }
    }
}

fn policy(reloader: &Reloader) -> Option<String> {
    reloader.status().version.map(crate::file_watch::Version::short)
}

/// A change in the list of nodes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeChange {
    /// A node sends no heartbeat any more.
    Missed { name: String, last_seen: String },
    /// A node that was missed sends heartbeats again, or was restarted.
    Back { name: String },
}

/// The nodes that the store listed last.
#[derive(Debug, Default)]
pub(super) struct SeenNodes {
    nodes: Vec<FleetNode>,
    /// The store's time of the list, and that of this node's wall clock.
    listed: Option<(u64, Timestamp)>,
    /// The store's time of the first list since it answers without a gap. Before that the silence of nodes was the
    /// store's.
    steady_since: Option<u64>,
    /// The ids of listed nodes that have lived since this node started.
    living: BTreeSet<String>,
    /// Nodes that are missed, by their ids, with their names.
    missed: BTreeMap<String, String>,
    /// Why the last exchange failed, if it did.
    pub(super) problem: Option<ReplyClass>,
}

impl SeenNodes {
    /// Takes a list that came at `now`, by the wall clock of this node. Returns what changed since the one before.
    pub(super) fn list(&mut self, news: &FleetNews, now: Timestamp) -> Vec<NodeChange> {
        self.nodes = without_restarted(&news.nodes, news.now);
        self.listed = Some((news.now, now));
        let steady_since = *self.steady_since.get_or_insert(news.now);
        let is_steady = news.now.saturating_sub(steady_since) > SILENT_AFTER;
        let shown_nodes: Vec<NodeView> = self.nodes.iter().map(|node| shown(node, news.now)).collect();
        let mut changes = Vec::new();
        for node in &shown_nodes {
            let id = node.id.clone().unwrap_or_default();
            if node.state == NodeState::Ok {
                changes.extend(self.missed.remove(&id).map(|name| NodeChange::Back { name }));
                self.living.insert(id);
            } else if is_steady && !self.missed.contains_key(&id) {
                // One that was lost before this node started is no change.
                let is_new = self.living.contains(&id) || node.state == NodeState::Silent;
                self.missed.insert(id, node.name.clone());
                let (name, last_seen) = (node.name.clone(), node.last_seen.clone());
                changes.extend(is_new.then_some(NodeChange::Missed { name, last_seen }));
            }
        }
        let is_listed = |id: &String| shown_nodes.iter().any(|node| node.id.as_ref() == Some(id));
        let lives =
            |name: &String| shown_nodes.iter().any(|node| node.state == NodeState::Ok && node.name == *name);
        self.living.retain(&is_listed);
        let gone: Vec<String> = self.missed.keys().filter(|id| !is_listed(id)).cloned().collect();
        let names = gone.iter().filter_map(|id| self.missed.remove(id));
        changes.extend(names.filter(lives).map(|name| NodeChange::Back { name }));
        changes
    }

    /// How many nodes the last list has.
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Notes that the store does not answer, so that the silence of nodes means nothing until it does.
    pub(super) fn interrupted(&mut self) {
        self.steady_since = None;
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
        let order = |node: &NodeView| (node.state == NodeState::Lost, node.name.clone(), node.id.clone());
        nodes.sort_by_cached_key(order);
        let listed_at = self.listed.map(|(_, at)| rfc3339_millis(at));
        Roster { nodes, listed_at, problem, unshared }
    }
}

/// The nodes without those that stopped without a word and were started again: at their address a later node lives.
fn without_restarted(nodes: &[FleetNode], listed: u64) -> Vec<FleetNode> {
    let about = |node: &FleetNode| serde_json::from_str::<Heartbeat>(&node.text).unwrap_or_default();
    let is_living = |node: &FleetNode| listed.saturating_sub(node.seen) <= SILENT_AFTER;
    let mut living: BTreeMap<(String, Option<String>), u64> = BTreeMap::new();
    for Heartbeat { name, admin, started, .. } in nodes.iter().filter(|node| is_living(node)).map(about) {
        let latest = living.entry((name, admin)).or_default();
        *latest = started.max(*latest);
    }
    let is_restarted = |node: &FleetNode| {
        let Heartbeat { name, admin, started, .. } = about(node);
        !name.is_empty()
            && living
                .get(&(name, admin))
                .is_some_and(|later| *later > started && later.saturating_add(CLOCKS_DIFFER) > node.seen)
    };
    nodes.iter().filter(|node| is_living(node) || !is_restarted(node)).cloned().collect()
}

fn shown(FleetNode { id, seen, text }: &FleetNode, listed: u64) -> NodeView {
    let heartbeat: Heartbeat = serde_json::from_str(text).unwrap_or_default();
    let Heartbeat { name, admin, version, policy, started, clock_ms, own_token } = heartbeat;
    let state = match listed.saturating_sub(*seen) {
        0..=SILENT_AFTER => NodeState::Ok,
        age if age <= LOST_AFTER => NodeState::Silent,
        _ => NodeState::Lost,
    };
    NodeView {
        name: if name.is_empty() { id.clone() } else { name },
        id: Some(id.clone()),
        is_this: false,
        state,
        admin,
        version,
        policy,
        started: rfc3339_millis(Timestamp::from_unix_micros(started)),
        last_seen: rfc3339_millis(Timestamp::from_unix_micros(*seen)),
        clock_ms,
        own_token,
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

    const SECOND: u64 = 1_000_000;

    fn listed(seen: &mut SeenNodes, now: u64, nodes: Vec<FleetNode>) -> Vec<NodeChange> {
        let news = FleetNews { now: now * SECOND, nodes, ..FleetNews::default() };
        seen.list(&news, Timestamp::from_unix_seconds(now))
    }

    fn about(name: &str, started: u64) -> String {
        format!(r#"{{"name":"{name}","admin":"http://{name}","started":{}}}"#, started * SECOND)
    }

    fn states(seen: &SeenNodes) -> Vec<(String, NodeState)> {
        let this = NodeView { is_this: true, ..shown(&node("z", 0, "{}"), 0) };
        let nodes = seen.roster(this, None, 0).nodes;
        nodes.into_iter().filter(|node| !node.is_this).map(|node| (node.name, node.state)).collect()
    }

    /// The story: a node that hung was silent for a minute, and then it was left out without a word. It stays listed as
    /// lost, after those that live, and its neighbors say once that it is gone and once that it is back.
    #[test]
    fn a_node_that_left_without_a_word_is_lost() {
        let mut seen = SeenNodes::default();
        let at = |a: u64, b: u64| {
            vec![node("a", a * SECOND, &about("a:1", 10)), node("b", b * SECOND, &about("b:1", 10))]
        };
        let missed = |second: u64| NodeChange::Missed {
            name: "a:1".to_owned(),
            last_seen: rfc3339_millis(Timestamp::from_unix_seconds(second)),
        };
        let back = || NodeChange::Back { name: "a:1".to_owned() };
        assert_eq!(listed(&mut seen, 100, at(100, 100)), []);
        assert_eq!(listed(&mut seen, 104, at(100, 104)), []);
        assert_eq!(listed(&mut seen, 108, at(100, 108)), [missed(100)]);
        assert_eq!(states(&seen)[0], ("a:1".to_owned(), NodeState::Silent));
        assert_eq!(listed(&mut seen, 170, at(100, 170)), []);
        let order = [("b:1".to_owned(), NodeState::Ok), ("a:1".to_owned(), NodeState::Lost)];
        assert_eq!(states(&seen), order);
        assert_eq!(listed(&mut seen, 174, at(174, 174)), [back()]);
        assert_eq!(listed(&mut seen, 300, at(174, 300)), [missed(174)], "at once lost, if no list was read");
        assert_eq!(listed(&mut seen, 304, at(174, 304).split_off(1)), [], "the store has forgotten it");
        assert_eq!(listed(&mut seen, 308, at(308, 308)), []);
        assert_eq!(listed(&mut seen, 312, at(308, 312).split_off(1)), [], "it has left in order");
        assert_eq!(states(&seen).len(), 1);
    }

    /// A node that was killed and started again at the same address is not missed: it is back under another id. Another
    /// node with the same name that lived beside it does not stand for it.
    #[test]
    fn a_restarted_node_is_back() {
        let mut seen = SeenNodes::default();
        let old = || node("old", 104 * SECOND, &about("a:1", 10));
        let started = |second: u64, now: u64| node("new", now * SECOND, &about("a:1", second));
        assert_eq!(listed(&mut seen, 100, vec![old()]), []);
        assert_eq!(listed(&mut seen, 112, vec![old()]).len(), 1);
        let back = NodeChange::Back { name: "a:1".to_owned() };
        assert_eq!(listed(&mut seen, 116, vec![old(), started(114, 116)]), [back]);
        assert_eq!(states(&seen), [("a:1".to_owned(), NodeState::Ok)]);
        listed(&mut seen, 120, vec![old(), started(50, 120)]);
        assert_eq!(states(&seen).len(), 2);
    }

    /// While the store is away no node can send a heartbeat. Their silence until then is not theirs. A node that starts
    /// logs none that was lost before.
    #[test]
    fn the_silence_of_the_store_is_not_that_of_nodes() {
        let mut seen = SeenNodes::default();
        let nodes = |second: u64| vec![node("a", second * SECOND, &about("a:1", 10))];
        assert_eq!(listed(&mut seen, 100, nodes(20)), []);
        assert_eq!(listed(&mut seen, 108, nodes(20)), [], "lost before this node started");
        assert_eq!(listed(&mut seen, 112, nodes(112)).len(), 1, "it is back");
        seen.interrupted();
        assert_eq!(listed(&mut seen, 150, nodes(112)), []);
        assert_eq!(listed(&mut seen, 154, nodes(154)), []);
        assert_eq!(listed(&mut seen, 160, nodes(154)).len(), 1);
    }
}
