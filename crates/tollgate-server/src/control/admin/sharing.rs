//! Changes that hold for all nodes of a fleet, and those that last: an operator hears which nodes and what disk have
//! them.

use super::act::AdminAnswer;
use crate::control::ControlPlane;
use crate::fleet::{FleetMember, Reached};
use crate::problem::Problem;

/// Makes a change, and answers once the other nodes and the disk have it, or with the reason why not. The change is
/// active on this node in any case.
pub(super) async fn changed(
    control: &ControlPlane,
    change: impl FnOnce() -> Result<AdminAnswer, Problem>,
) -> Result<AdminAnswer, Problem> {
    let (answer, ids) = control.fleet.change(change);
    let mut answer = answer?;
    if !ids.is_empty() {
        answer = match control.fleet.share(&ids).await {
            Reached::OnlyNode => answer,
            Reached::Fleet => answer
                .with("scope", "fleet")?
                .with("notice", "this holds on every node that reaches the store, within a second")?,
            Reached::ThisNode { problem } => answer.with("scope", "node")?.with(
                "notice",
                &format!(
                    "this holds on this node only: {problem}; the other nodes get it as soon as the store takes it"
                ),
            )?,
        };
    }
    let Some(operator_state) = &control.operator_state else { return Ok(answer) };
    match operator_state.keep().await {
        Ok(()) => Ok(answer),
        Err(error) => answer.with("warning", &error),
    }
}

/// Announces a reset to the other nodes. The answer says so if it does not reach them.
pub(super) async fn announce_reset(
    fleet: &FleetMember,
    answer: AdminAnswer,
    keys: Vec<u128>,
) -> Result<AdminAnswer, Problem> {
    match fleet.announce_reset(keys).await {
        Ok(()) => Ok(answer),
        Err(problem) => answer.with(
            "notice",
            &format!(
                "the other nodes do not know of it ({problem}): one that holds a lease of such a counter goes on with it \
                 until the lease ends"
            ),
        ),
    }
}
