//! One question to several nodes at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;

use super::{AnswerLimits, FleetMember, NodeView, PeerRequest};
use crate::problem::{AdminProblem, Problem};

/// Maximum number of concurrent views for which other nodes are asked: each asks up to 64 nodes, for 4 MiB each.
pub(super) const FAN_OUTS_MAX: usize = 8;
/// Maximum number of nodes that are asked at once.
pub(crate) const ASKED_MAX: usize = 64;

/// A node, and whether its answer is part of a view.
#[derive(Debug, Serialize)]
pub(crate) struct AskedNode {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "this")]
    is_this: bool,
    pub(crate) answered: bool,
    /// Why it has not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

/// The answer of a node.
pub(crate) struct NodeAnswer {
    pub(crate) node: NodeView,
    pub(crate) answer: Result<Value, String>,
}

impl NodeAnswer {
    pub(crate) fn asked(&self) -> AskedNode {
        AskedNode {
            name: self.node.name.clone(),
            id: self.node.id.clone(),
            is_this: self.node.is_this,
            answered: self.answer.is_ok(),
            problem: self.answer.as_ref().err().cloned(),
        }
    }
}

/// Asks the other nodes at once. The place of this node stays without an answer.
///
/// # Errors
/// When they are being asked for as many views as may be.
pub(crate) async fn ask_each(
    fleet: &Arc<FleetMember>,
    nodes: &[NodeView],
    question: &PeerRequest,
    limits: AnswerLimits,
) -> Result<Vec<NodeAnswer>, Problem> {
    let _asking = fleet.fan_outs.try_acquire().map_err(|_| {
        let detail =
            "this server is asking the other nodes for as many views as it may; try again in a second";
        Problem::of_admin(AdminProblem::Busy, detail)
    })?;
    let mut asked = JoinSet::new();
    for (place, node) in nodes.iter().enumerate() {
        let (fleet, node, question) = (Arc::clone(fleet), node.clone(), question.clone());
        asked.spawn(async move {
            let answer = match place {
                _ if node.is_this => Ok(Value::Null),
                0..ASKED_MAX => fleet.ask(&node, &question, limits).await,
                _ => Err(format!("it was not asked: at most {ASKED_MAX} nodes are")),
            };
            (place, NodeAnswer { node, answer })
        });
    }
    let mut answers: BTreeMap<usize, NodeAnswer> = BTreeMap::new();
    while let Some(answered) = asked.join_next().await {
        answers.extend(answered);
    }
    let missing = |node: &NodeView| NodeAnswer {
        node: node.clone(),
        answer: Err("it was not asked because of a fault in Tollgate".to_owned()),
    };
    let each = nodes.iter().enumerate();
    Ok(each.map(|(place, node)| answers.remove(&place).unwrap_or_else(|| missing(node))).collect())
}
