//! The other nodes of the fleet, as the console shows them: their numbers, their history, and what operators did there.
//! They are asked as the views of the admin API ask them, with the key of an operator who is logged in here.

use bytes::Bytes;
use serde_json::{Map, Value};
use tollgate::together::together;
use tollgate::{Ticks, Timestamp};

use super::super::act::AdminAnswer;
use super::super::token::Role;
use super::counts::NodeCounts;
use super::form::encoded;
use super::recorder::Recorder;
use super::respond;
use crate::control::ControlPlane;
use crate::fleet::{AnswerLimits, NodeKey, NodeView, PeerRequest, ask_each};
use crate::problem::Problem;
use crate::telemetry::history::{MINUTES, SECONDS};

/// Numbers of other nodes that are older are asked for again before a page is shown.
const NUMBERS_LIFETIME: Ticks = Ticks::from_secs(5);
/// Maximum number of entries of the audit log of a node.
pub(super) const AUDIT_SHOWN: usize = 30;

/// Another node, and what it answered.
#[derive(Clone, Debug)]
pub(super) struct OtherNode {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) numbers: Result<NodeCounts, String>,
    /// Entries of its audit log.
    audit: Vec<Value>,
}

impl OtherNode {
    fn is(&self, node: &NodeView) -> bool {
        self.name == node.name && self.id == node.id
    }
}

/// The other nodes, each as it last answered.
#[derive(Clone, Debug, Default)]
pub(super) struct OtherNodes {
    pub(super) nodes: Vec<OtherNode>,
    /// When they were last asked.
    pub(super) at: Timestamp,
}

impl OtherNodes {
    /// The problem of a node, if it has not answered.
    pub(super) fn problem_of(&self, id: Option<&str>) -> Option<&str> {
        let found = self.nodes.iter().find(|node| node.id.as_deref() == id)?;
        found.numbers.as_ref().err().map(String::as_str)
    }

    /// How many answered.
    pub(super) fn answered(&self) -> usize {
        self.nodes.iter().filter(|node| node.numbers.is_ok()).count()
    }

    /// Entries of their audit logs, each with the name of its node.
    pub(super) fn audit(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.nodes.iter().flat_map(|node| node.audit.iter().map(|entry| (node.name.as_str(), entry)))
    }

    /// Keeps the answers of these nodes only.
    fn keep(&mut self, nodes: &[NodeView], at: Timestamp) {
        self.nodes.retain(|known| nodes.iter().any(|node| known.is(node)));
        self.at = at;
    }

    /// Takes the numbers of a node.
    fn take_numbers(&mut self, node: &NodeView, numbers: Result<NodeCounts, String>) {
        match self.nodes.iter_mut().find(|known| known.is(node)) {
            Some(known) => known.numbers = numbers,
            None => {
                let (id, name) = (node.id.clone(), node.name.clone());
                self.nodes.push(OtherNode { id, name, numbers, audit: Vec::new() });
                self.nodes.sort_by(|one, other| one.name.cmp(&other.name));
            }
        }
    }

    /// Takes entries of the audit log of a node.
    fn take_audit(&mut self, node: &NodeView, entries: Vec<Value>) {
        if let Some(known) = self.nodes.iter_mut().find(|known| known.is(node)) {
            known.audit = entries;
        }
    }
}

/// A node that is being asked, until this is dropped.
struct Asking<'c> {
    control: &'c ControlPlane,
    name: String,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.control.web_console.asking().remove(&self.name);
    }
}

/// The numbers of this node, for another one.
pub(in super::super) fn own_numbers(control: &ControlPlane) -> Result<AdminAnswer, Problem> {
    let mut recorder = control.web_console.recorder();
    let numbers = recorder.as_mut().map(|recorder| {
        recorder.asked_at = control.service.now();
        NodeCounts::of(control, recorder)
    });
    AdminAnswer::json(&numbers.unwrap_or_default())
}

/// Asks each of the other nodes, unless it is being asked.
pub(super) async fn ask_others(control: &ControlPlane) {
    let (nodes, now) = (other_nodes(control), control.service.now());
    let keys = [Role::Viewer, Role::Admin].map(|role| control.web_console.sessions.key(role, now));
    let nodes = if keys[0].is_some() { nodes } else { Vec::new() };
    if let Some(recorder) = control.web_console.recorder().as_mut() {
        recorder.others.keep(&nodes, now);
    }
    let [Some(viewer), admin] = keys else { return };
    let free = nodes.iter().filter(|node| control.web_console.asking().insert(node.name.clone()));
    let free: Vec<(&NodeView, Asking<'_>)> =
        free.map(|node| (node, Asking { control, name: node.name.clone() })).collect();
    let ask = |(node, asking)| ask_other(control, node, (&viewer, admin.as_ref()), asking);
    let asked: Vec<_> = free.into_iter().map(ask).collect();
    together(asked).await;
}

/// Asks one node for its numbers, and for its audit log if an operator may see it. Each answer is shown when it comes.
async fn ask_other(
    control: &ControlPlane,
    node: &NodeView,
    (viewer, admin): (&NodeKey, Option<&NodeKey>),
    _asking: Asking<'_>,
) {
    let one = std::slice::from_ref(node);
    if let Some((_, answer)) = answers(control, one, "/admin/v1/numbers", viewer.clone()).await.next() {
        let numbers = answer.and_then(|numbers| {
            serde_json::from_value(numbers).map_err(|_| "its numbers have another form".to_owned())
        });
        if let Some(recorder) = control.web_console.recorder().as_mut() {
            recorder.others.take_numbers(node, numbers);
        }
    }
    let Some(admin) = admin else { return };
    let path = format!("/admin/v1/audit?limit={AUDIT_SHOWN}");
    let answer = answers(control, one, &path, admin.clone()).await.next();
    let answer = answer.and_then(|(_, answer)| answer.ok());
    let entries = answer.and_then(|mut answer| answer["entries"].as_array_mut().map(std::mem::take));
    if let Some(recorder) = control.web_console.recorder().as_mut() {
        recorder.others.take_audit(node, entries.unwrap_or_default());
    }
}

/// Asks the other nodes before a page is shown, if their numbers are old.
pub(super) async fn ask_others_if_old(control: &ControlPlane) {
    let at = control.web_console.recorder().as_ref().map(|recorder| recorder.others.at);
    if at.is_some_and(|at| control.service.now().since(at) > NUMBERS_LIFETIME) {
        ask_others(control).await;
    }
}

/// The other nodes that the last look found.
fn other_nodes(control: &ControlPlane) -> Vec<NodeView> {
    let recorder = control.web_console.recorder();
    let roster = recorder.as_ref().and_then(|recorder: &Recorder| recorder.roster.as_ref());
    let nodes = roster.into_iter().flat_map(|roster| &roster.nodes);
    nodes.filter(|node| !node.is_this).cloned().collect()
}

async fn answers<'n>(
    control: &ControlPlane,
    nodes: &'n [NodeView],
    path: &str,
    key: NodeKey,
) -> impl Iterator<Item = (&'n NodeView, Result<Value, String>)> + use<'n> {
    let question = PeerRequest { method: "GET", path: path.to_owned(), body: Bytes::new(), key };
    let answers = match ask_each(&control.fleet, nodes, &question, AnswerLimits::VIEW).await {
        Ok(answers) => answers.into_iter().map(|answer| answer.answer).collect(),
        Err(busy) => vec![Err(busy.detail); nodes.len()],
    };
    nodes.iter().zip(answers)
}

/// The explanations of the other nodes about a request.
pub(super) async fn explained_elsewhere(
    control: &ControlPlane,
    body: String,
    key: &NodeKey,
) -> Vec<(String, Result<Value, String>)> {
    let (nodes, key) = (other_nodes(control), key.clone());
    let path = "/admin/v1/explain".to_owned();
    let question = PeerRequest { method: "POST", path, body: body.into(), key };
    match ask_each(&control.fleet, &nodes, &question, AnswerLimits::VIEW).await {
        Ok(answers) => answers.into_iter().map(|answer| (answer.node.name, answer.answer)).collect(),
        Err(busy) => nodes.into_iter().map(|node| (node.name, Err(busy.detail.clone()))).collect(),
    }
}

/// The history of all nodes that answer, of all decisions or of one limit.
pub(super) async fn fleet_history(
    control: &ControlPlane,
    limit: Option<&str>,
    key: &NodeKey,
) -> Result<Value, Problem> {
    let nodes = other_nodes(control);
    let query = limit.map_or_else(String::new, |limit| format!("?{}", encoded(&[("limit", limit)])));
    let own = respond::history(control, limit);
    if nodes.is_empty() {
        return own;
    }
    let mut sum: Option<Value> = own.as_ref().ok().cloned();
    for (_, answer) in answers(control, &nodes, &format!("/admin/v1/history{query}"), key.clone()).await {
        // A node without decisions of this limit has no history of it. The panel of nodes names those that do not
        // answer.
        let Ok(history) = answer else { continue };
        let sum = sum.get_or_insert_with(|| serde_json::json!({ "seconds": {}, "minutes": {} }));
        add_history(sum, &history);
    }
    sum.map_or(own, Ok)
}

/// Adds the counts of another node. The last count of each is that of now.
fn add_history(sum: &mut Value, history: &Value) {
    for (range, most) in [("seconds", SECONDS), ("minutes", MINUTES)] {
        let Some(sums) = sum[range].as_object_mut() else { continue };
        for (name, counts) in history[range].as_object().unwrap_or(&Map::new()) {
            let counts = numbers(counts);
            let mut total = sums.get(name).map(numbers).unwrap_or_default();
            let length = total.len().max(counts.len()).min(most);
            let missing = length.saturating_sub(total.len());
            total.splice(0..0, std::iter::repeat_n(0, missing));
            total.iter_mut().rev().zip(counts.iter().rev()).for_each(|(sum, count)| *sum += count);
            sums.insert(name.clone(), total.into());
        }
    }
}

fn numbers(counts: &Value) -> Vec<u64> {
    counts.as_array().map(|counts| counts.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Histories of different lengths are summed from their ends, which are now.
    #[test]
    fn histories_end_now() {
        let mut sum = json!({ "seconds": { "allow": [1, 2, 3] }, "minutes": {} });
        add_history(
            &mut sum,
            &json!({ "seconds": { "allow": [10], "deny": [7, 8] }, "minutes": { "deny": [5] } }),
        );
        add_history(&mut sum, &json!({ "seconds": { "allow": [100, 0, 0, 0] } }));
        assert_eq!(
            sum,
            json!({ "seconds": { "allow": [100, 1, 2, 13], "deny": [7, 8] }, "minutes": { "deny": [5] } })
        );
    }
}
