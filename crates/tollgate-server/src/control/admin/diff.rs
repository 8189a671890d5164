//! `diff`: what a candidate policy would change, for the limits, for the requests of the last hour, and for those to
//! come.

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use serde_json::json;
use tollgate::policy::Policy;

use super::act::{Act, AdminAnswer};
use super::form::Query;
use super::guard::Sender;
use super::view;
use super::wording::not_begun;
use super::{fleet, past_hour, policy_change};
use crate::problem::{AdminProblem, Problem};
use crate::request_body::{self, BATCH_BYTES_MAX};
use crate::service::comparison::ComparisonStatus;

/// The name of the candidate in findings.
pub(super) const CANDIDATE: &str = "candidate";

/// Shows what a candidate would change. On request it shows how many decisions of the last requests it would have
/// changed, or starts counting how many it changes from now on.
pub(super) async fn diff(
    act: &Act<'_>,
    sender: &Sender<'_>,
    request: Request<Incoming>,
) -> Result<AdminAnswer, Problem> {
    let service = act.service();
    let query = request.uri().query().map(str::to_owned);
    let query = Query::read(query.as_deref(), &["for", "last", "fleet", "node"])?;
    let (lasting, last, scope) = (query.comparison()?, query.last()?, query.scope()?);
    if lasting.is_some() && last.is_some() {
        return Err(Problem::invalid("for and last: give one of them"));
    }
    let text = request_body::read_any(request, BATCH_BYTES_MAX).await?;
    let candidate = Policy::compile_for(CANDIDATE, &text, service.identity.credentials())
        .map_err(|findings| Problem::of_findings(AdminProblem::WrongPolicy, findings.to_string()))?;
    let difference = service.engine.policy().difference(&candidate);
    let mut document = json!({
        "policy": policy_change::fields(&difference.fields),
        "changes": policy_change::changes(&difference),
        "unchanged": difference.unchanged,
        "warnings": candidate.warnings().to_string().lines().collect::<Vec<_>>(),
    });
    if let Some(last) = last {
        let policies = [service.engine.policy(), Arc::new(candidate)];
        let nodes = fleet::meant(&act.control.fleet, &scope).await?;
        let view = past_hour::compared(act.control, policies, last, &nodes, sender.key).await?;
        let decisions = view.comparison.tallied.decisions;
        act.audit("the last requests", &format!("{decisions} of them compared"));
        document["decisions"] = serde_json::to_value(&view).unwrap_or_default();
    } else if let Some(lasting) = lasting {
        let (until, comparison) = (act.now + lasting, &service.comparison);
        let id = comparison.begin(&service.engine, candidate, until, act.now).map_err(not_begun)?;
        act.audit(&id.to_string(), &format!("compared until {}", act.shown(until).text()));
        document["comparison"] = json!({ "id": id.to_string(), "for_ms": view::millis(lasting) });
    }
    AdminAnswer::json(&document)
}

/// The state of a comparison with the requests to come.
pub(super) fn standing(standing: Option<ComparisonStatus>) -> Result<AdminAnswer, Problem> {
    let standing = standing.ok_or_else(|| {
        Problem::of_admin(AdminProblem::Unknown, "no comparison has this id; only the latest one is kept")
    })?;
    AdminAnswer::json(&standing)
}
