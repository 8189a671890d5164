//! The requests of the last hour: shown to other nodes, and decided by a candidate policy.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tollgate::{Policy, Ticks};

use super::act::{Act, AdminAnswer};
use crate::control::ControlPlane;
use crate::fleet::{AnswerLimits, AskedNode, NodeAnswer, NodeKey, NodeView, PeerRequest, ask_each};
use crate::problem::{AdminProblem, Problem};
use crate::service::comparison::{Pair, PastComparison, past_comparison};
use crate::service::request_ring::{BYTES_MAX, KeptMinute, PastRequests};

/// How far back requests are kept.
pub(super) const LAST_MAX: Ticks = Ticks::from_secs(3_600);
/// Maximum number of requests, of all nodes, that two policies decide about.
const REQUESTS_MAX: usize = 4_000_000;
/// The most that another node may send, and how long it may take. As JSON, requests take about as many bytes as in memory.
const ANSWER_LIMITS: AnswerLimits =
    AnswerLimits { timeout: Duration::from_secs(10), bytes_max: 4 * BYTES_MAX };

/// The kept requests of a node.
#[derive(Deserialize, Serialize)]
struct KeptRequests {
    minutes: Vec<KeptMinute>,
}

/// A document that is being sent, and the permit to have it in memory.
struct HeldDocument {
    text: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for HeldDocument {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// The effect that a candidate policy would have had.
#[derive(Serialize)]
pub(super) struct PastView {
    #[serde(flatten)]
    pub(super) comparison: PastComparison,
    /// The nodes whose requests these are, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nodes: Vec<AskedNode>,
}

/// The kept requests of this node. A few answers at a time: each may be large.
pub(super) async fn kept(act: &Act<'_>, last: Ticks) -> Result<AdminAnswer, Problem> {
    let permit = Arc::clone(&act.control.admin.kept_requests).try_acquire_owned().map_err(|_| {
        let detail = "other nodes are reading the requests of the last hour; try again in a few seconds";
        Problem::of_admin(AdminProblem::Busy, detail)
    })?;
    let (service, since, wall) = (Arc::clone(act.service()), act.now - last, act.wall);
    let answer = tokio::task::spawn_blocking(move || {
        let kept = AdminAnswer::json(&KeptRequests { minutes: service.ring.since(since, wall) })?;
        Ok(match kept {
            AdminAnswer::Json(text) => {
                AdminAnswer::Json(Bytes::from_owner(HeldDocument { text, _permit: permit }))
            }
            lines @ AdminAnswer::Lines(_) => lines,
        })
    });
    answer.await.unwrap_or_else(|_| Err(ended()))
}

/// Lets two policies decide about the last requests of this node and of others. One comparison at a time.
pub(super) async fn compared(
    control: &ControlPlane,
    policies: [Arc<Policy>; 2],
    last: Ticks,
    nodes: &[NodeView],
    key: &NodeKey,
) -> Result<PastView, Problem> {
    let Ok(_one) = control.admin.comparing.try_acquire() else {
        let detail = "another policy is compared with the last hour; try again in a few seconds";
        return Err(Problem::of_admin(AdminProblem::Conflict, detail));
    };
    let (now, wall) = (control.service.now(), control.service.engine.maintenance().wall());
    let since = now - last;
    let question = PeerRequest {
        method: "GET",
        path: format!("/admin/v1/requests?last={}ms", last.ceil_millis()),
        body: Bytes::new(),
        key: key.clone(),
    };
    let answers = ask_each(&control.fleet, nodes, &question, ANSWER_LIMITS).await?;
    let mut asked: Vec<AskedNode> = answers.iter().map(NodeAnswer::asked).collect();
    let mut minutes = Vec::new();
    for (answer, asked) in answers.into_iter().zip(&mut asked).filter(|(answer, _)| !answer.node.is_this) {
        match answer.answer.map(serde_json::from_value::<KeptRequests>) {
            Ok(Ok(kept)) => minutes.extend(kept.minutes),
            Ok(Err(_)) => {
                asked.answered = false;
                asked.problem = Some("its requests have another form: it is of another version".to_owned());
            }
            // It is among the nodes, with the reason.
            Err(_) => {}
        }
    }
    let service = Arc::clone(&control.service);
    let compared = tokio::task::spawn_blocking(move || {
        minutes.extend(service.ring.since(since, wall));
        let past = PastRequests::merged(minutes, since, wall, REQUESTS_MAX);
        let first = past.ends().map_or(now, |(first, _)| first);
        past_comparison(&Pair::of_past(&service.engine, policies, first), &past, wall)
    });
    let mut comparison = compared.await.map_err(|_| ended())?;
    for node in asked.iter().filter(|node| !node.answered) {
        let problem = node.problem.as_deref().unwrap_or_default();
        comparison.notes.push(format!("without the requests of {}: {problem}", node.name));
    }
    Ok(PastView { comparison, nodes: asked })
}

fn ended() -> Problem {
    Problem::of_admin(AdminProblem::Conflict, "the comparison ended because of a fault in Tollgate")
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// A document counts against the bound until the last of it has been sent, however slowly it is read.
    #[test]
    fn a_document_holds_its_permit_until_it_is_sent() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let mut left =
            Bytes::from_owner(HeldDocument { text: Bytes::from_static(b"[1,2]"), _permit: permit });
        let sent = left.split_to(4);
        assert_eq!((&*sent, &*left, permits.available_permits()), (&b"[1,2"[..], &b"]"[..], 0));
        drop(sent);
        assert_eq!(permits.available_permits(), 0);
        drop(left);
        assert_eq!(permits.available_permits(), 1);
    }
}
