//! What each descriptor is told: of the limits that apply to it, the one that denies longest, else the one with
//! the least left.

use tollgate::{Decision, LimitStatus, Quota, Source, Stance, Ticks, Timestamp, Verdict};

use super::brought::{Brought, Said};
use crate::rls::{Code, CurrentLimit, Question, Status, Unit};

/// One status for each descriptor, in order.
pub(super) fn statuses(
    question: &Question,
    decision: &Decision,
    brought: &Brought,
    now: Timestamp,
) -> Vec<Status> {
    let mut statuses = Vec::with_capacity(question.descriptors.len());
    for (position, descriptor) in question.descriptors.iter().enumerate() {
        let met = decision.limits().filter(|status| status.view == position);
        let denial = met.clone().filter(denies).max_by_key(LimitStatus::refusal_rank);
        let met = denial.or_else(|| met.min_by_key(left));
        let own = brought.of(position).filter(|own| met.is_none_or(|met| is_tighter(own, &met)));
        let mut status = match (own, met) {
            // Nothing was counted for a request at fault, or one that an operator blocks, and no descriptor of it may pass.
            _ if decision.fault().is_some() || decision.block().is_some() => {
                Status::of_no_limit(Code::OverLimit)
            }
            (Some(own), _) => own.status(now),
            (None, Some(met)) => told(&met),
            (None, None) => Status::of_no_limit(Code::Ok),
        };
        if descriptor.is_negative_hits {
            status.code = Code::Ok;
        }
        statuses.push(status);
    }
    statuses
}

/// Whether a limit that the descriptor brought says more about it than one of the policy's.
fn is_tighter(own: &Said, met: &LimitStatus<'_>) -> bool {
    match own.away {
        Some(own_away) => !denies(met) || own_away > away(met),
        None => !denies(met) && (false, false, own.remaining()) < left(met),
    }
}

fn denies(status: &LimitStatus<'_>) -> bool {
    status.stance == Stance::Enforced && !status.outcome.is_allowed()
}

/// How long a limit that denies keeps the request away.
fn away(status: &LimitStatus<'_>) -> Ticks {
    match status.outcome.verdict {
        Verdict::Deny { retry_after } => retry_after,
        Verdict::Never | Verdict::Forbidden => Ticks::MAX,
        Verdict::Allow | Verdict::Wait(_) => Ticks::ZERO,
    }
}

/// What is left of a limit that passed, with those first that say most about the request: enforced ones, and counted ones.
fn left(status: &LimitStatus<'_>) -> (bool, bool, u64) {
    (status.stance == Stance::Shadow, !status.source.is_counted(), status.outcome.remaining)
}

fn told(status: &LimitStatus<'_>) -> Status {
    let is_unlimited = status.source == Source::Policy && status.outcome.is_allowed();
    if status.source == Source::Open || is_unlimited {
        return Status::of_no_limit(Code::Ok); // Nobody counted, so there is no number to tell.
    }
    let until_reset = match status.outcome.verdict {
        Verdict::Deny { retry_after } => Some(retry_after),
        // Until more is there, as a denial and the `t` of the header tell it, and not until all is.
        Verdict::Allow | Verdict::Wait(_) => Some(status.outcome.next_unit_after),
        Verdict::Never | Verdict::Forbidden => None,
    };
    Status {
        code: if denies(status) { Code::OverLimit } else { Code::Ok },
        current_limit: Some(current_limit(status)),
        limit_remaining: if status.outcome.is_allowed() { saturating(status.outcome.remaining) } else { 0 },
        until_reset,
        source: status.source,
    }
}

/// The limit as a rate in the protocol's units. One that has no such unit is told without: its size, and no time. One that denies
/// whatever was counted has the size 0.
fn current_limit(status: &LimitStatus<'_>) -> CurrentLimit {
    let (units, unit) = match (status.quota, status.quota.and_then(Quota::rate)) {
        (_, Some(rate)) => (rate.units(), Unit::lasting(rate.period())),
        (Some(quota), None) => (quota.capacity(), None),
        (None, None) => (0, None),
    };
    CurrentLimit { name: status.limit.name().to_owned(), requests_per_unit: saturating(units), unit }
}

/// The protocol's numbers have 32 bits.
fn saturating(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
