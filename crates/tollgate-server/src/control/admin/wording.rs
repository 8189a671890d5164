//! Sentences and problems of answers to operators.

use tollgate::CheckRequest;
use tollgate::policy::source::nearest;
use tollgate::policy::{Limit, Policy};
use tollgate::store::StoreFailure;

use super::route::Verb;
use crate::identity::UnknownCredential;
use crate::problem::{AdminProblem, Problem};
use crate::service::comparison::NotBegun;
use crate::text;

/// Maximum number of limits that a refusal lists.
const NAMES_LISTED: usize = 20;

pub(super) fn unknown_limit(name: &str, policy: &Policy) -> Problem {
    let meant = match nearest(name, policy.limits().iter().map(Limit::name)) {
        Some(meant) => format!("did you mean {meant}?"),
        None if (1..=NAMES_LISTED).contains(&policy.limits().len()) => {
            let names: Vec<&str> = policy.limits().iter().map(Limit::name).collect();
            format!("accepted: {}", names.join(", "))
        }
        None => "`tollgate limits` and GET /admin/v1/limits list them".to_owned(),
    };
    let detail = format!("the active policy has no limit {name:?}; {meant}");
    Problem::of_admin(AdminProblem::Unknown, detail)
}

pub(super) fn not_with_a_body(verb: Verb) -> Problem {
    Problem::invalid(format!("{} has no body", verb.name()))
}

pub(super) fn unknown_credential(unknown_credential: UnknownCredential) -> Problem {
    Problem::of_admin(AdminProblem::Conflict, unknown_credential.to_string())
}

pub(super) fn not_begun(reason: NotBegun) -> Problem {
    match reason {
        NotBegun::Busy => {
            let detail =
                "another comparison is running; wait for its end, or DELETE /admin/v1/policy/diff/{id}";
            Problem::of_admin(AdminProblem::Conflict, detail)
        }
        NotBegun::NoId => {
            Problem::of_admin(AdminProblem::Conflict, "the system has no random numbers for its id")
        }
    }
}

/// The limits that count these attributes separately. A counter shared by all requests is reset only by its name.
pub(super) fn own_limits<'p>(policy: &'p Policy, readings: &CheckRequest<'_>) -> Vec<&'p str> {
    let mut names: Vec<&str> = Vec::new();
    for limit in readings.descriptors().flat_map(|reading| policy.may_count(reading)) {
        if !limit.by().is_empty() && !names.contains(&limit.name()) {
            names.push(limit.name());
        }
    }
    names
}

/// Why the named limits count no request with these attributes.
pub(super) fn not_counted(policy: &Policy, named: &[&str], readings: &CheckRequest<'_>) -> Vec<String> {
    let why = |limit: &Limit| {
        let mut reasons = readings.descriptors().map(|reading| limit.never_counts(reading));
        let first = reasons.next().filter(|first| !first.is_empty())?;
        if reasons.any(|reasons| reasons.is_empty()) {
            return None;
        }
        let reasons: Vec<String> = first.iter().map(ToString::to_string).collect();
        Some(format!("{} counts no such request: {}", limit.name(), reasons.join(", and ")))
    };
    policy.limits().iter().filter(|limit| named.contains(&limit.name())).filter_map(why).collect()
}

/// Describes a reset that failed.
pub(super) fn unforgotten(failure: StoreFailure) -> String {
    match failure {
        StoreFailure::Unanswered => {
            format!("{failure}: some counters may have been forgotten; ask again when it answers")
        }
        _ => format!("{failure}: nothing was reset, here or there; ask again when it answers"),
    }
}

/// Names and values of a request, as text.
pub(super) fn texts<'r>(request: &CheckRequest<'r>) -> Vec<(&'r str, String)> {
    request.attributes().iter().map(|given| (given.name, given.value.to_string())).collect()
}

/// A request for the audit log.
pub(super) fn joined(request: &CheckRequest<'_>) -> String {
    text::joined(texts(request))
}

pub(super) fn remarked(what: &str, note: &str) -> String {
    if note.is_empty() { what.to_owned() } else { format!("{what}: {note}") }
}
