//! The status of each descriptor. Of the limits that apply to it, the status shows the one that denies longest, or else
//! the one with the least left.

use tollgate::{Decision, Enforcement, LimitStatus, Quota, Source, Ticks, Timestamp, Verdict};

use super::request_limits::{DescriptorLimitOutcome, RequestLimits};
use crate::rls::{Code, CurrentLimit, RlsRequest, Status, Unit};

/// One status for each descriptor, in order.
pub(super) fn statuses(
    rls_request: &RlsRequest,
    decision: &Decision,
    request_limits: &RequestLimits,
    now: Timestamp,
) -> Vec<Status> {
    let mut statuses = Vec::with_capacity(rls_request.descriptors.len());
    for (position, descriptor) in rls_request.descriptors.iter().enumerate() {
        let met = decision.limits().filter(|status| status.descriptor == position);
        let denial = met.clone().filter(denies).max_by_key(LimitStatus::refusal_rank);
        let met = denial.or_else(|| met.min_by_key(left));
        let own = request_limits.of(position).filter(|own| met.is_none_or(|met| is_tighter(own, &met)));
        let mut status = match (own, met) {
            // A request that failed or is blocked by an operator was not counted, and none of its descriptors may pass.
            _ if decision.fault().is_some() || decision.block().is_some() => {
                Status::of_no_limit(Code::OverLimit)
            }
            (Some(own), _) => own.status(now),
            (None, Some(met)) => status_of(&met),
            (None, None) => Status::of_no_limit(Code::Ok),
        };
        if descriptor.is_negative_hits {
            status.code = Code::Ok;
        }
        statuses.push(status);
    }
    statuses
}

/// Whether the limit that the descriptor carries is tighter than a limit of the policy.
fn is_tighter(own: &DescriptorLimitOutcome, met: &LimitStatus<'_>) -> bool {
    match own.away {
        Some(own_away) => !denies(met) || own_away > away(met),
        None => !denies(met) && (false, false, own.remaining()) < left(met),
    }
}

fn denies(status: &LimitStatus<'_>) -> bool {
    status.enforcement == Enforcement::Enforced && !status.outcome.is_allowed()
}

/// How long a limit that denies keeps the request waiting.
fn away(status: &LimitStatus<'_>) -> Ticks {
    match status.outcome.verdict {
        Verdict::Deny { retry_after } => retry_after,
        Verdict::Never | Verdict::Forbidden => Ticks::MAX,
        Verdict::Allow | Verdict::Wait(_) => Ticks::ZERO,
    }
}

/// The remaining units of a limit that admitted. The order puts the most informative first: enforced limits, then counted
/// ones.
fn left(status: &LimitStatus<'_>) -> (bool, bool, u64) {
    (status.enforcement == Enforcement::Shadow, !status.source.is_counted(), status.outcome.remaining)
}

fn status_of(status: &LimitStatus<'_>) -> Status {
    let is_unlimited = status.source == Source::Policy && status.outcome.is_allowed();
    if status.source == Source::Open || is_unlimited {
        return Status::of_no_limit(Code::Ok); // Nothing was counted, so there is no number to report.
    }
    let until_reset = match status.outcome.verdict {
        Verdict::Deny { retry_after } => Some(retry_after),
        // The time until the next unit, as in a denial and in the `t` of the header, not until all units are back.
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

/// The limit as a rate in the protocol's units. A rate without such a unit is reported as its size without a unit. A
/// limit that denies regardless of its count has the size 0.
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
