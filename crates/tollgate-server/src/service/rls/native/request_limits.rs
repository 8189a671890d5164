//! Limits that descriptors carry. Such a limit can only tighten: it is counted beside the limits of the policy, and all
//! of them must admit. Its counter is named by the descriptor's entries and the unit. Whatever number a request carries
//! therefore applies to the same count, and unforeseen numbers take no memory. It counts only requests that carry a
//! limit. The policy counts all requests.

use std::sync::Arc;

use tollgate::engine::Counted;
use tollgate::store::Store;
use tollgate::{LimitOverride, Source, Ticks, Timestamp};
use tollgate_compat::counters::{Counters, Tallies};
use tollgate_compat::{REQUEST_LIMIT, Rule};

use super::NEGATIVE_HITS_WITHIN;
use crate::rls::{Code, CurrentLimit, Descriptor, Override, RlsRequest, Status, Unit};
use crate::service::Service;

/// The outcome of a counter that was not charged.
const NOTHING: Counted = Counted {
    total: 0,
    ends_after: Ticks::ZERO,
    source: Source::Exact,
    charged_at: Timestamp::from_unix_seconds(0),
};

/// The outcomes of the limits that a request's descriptors carry, in the order of the descriptors.
#[derive(Default)]
pub(super) struct RequestLimits {
    outcomes: Vec<DescriptorLimitOutcome>,
}

/// The outcome of one such limit.
pub(super) struct DescriptorLimitOutcome {
    /// The descriptor's index in the request.
    position: usize,
    limit: Override,
    /// The units added to its counter.
    added: u64,
    /// The count, including those units.
    total: u64,
    /// How long the limit denies the request, if it does. For ever if the request costs more than the limit ever
    /// admits.
    pub(super) away: Option<Ticks>,
    /// The raw outcome of its counter.
    counted: Counted,
}

impl RequestLimits {
    /// Charges the limits that the descriptors carry. If one of them denies, nothing stays charged.
    pub(super) async fn charge<S: Store>(
        service: &Service<S>,
        rls_request: &RlsRequest,
        now: Timestamp,
    ) -> Self {
        let mut request_limits = Self::default();
        if rls_request.descriptors.iter().all(|descriptor| descriptor.limit.is_none()) {
            return request_limits;
        }
        // An operator's override of all limits applies here too.
        let override_of_all = service.engine.operator().overrides(now).of_all();
        let Some(tallies) = tallies(service).filter(|_| override_of_all != Some(LimitOverride::Off)) else {
            return request_limits;
        };
        let counters = Counters { engine: &service.engine, tallies: &tallies };
        for (position, descriptor) in rls_request.descriptors.iter().enumerate() {
            let Some(limit) = descriptor.limit else { continue };
            let counted = NOTHING;
            let mut outcome =
                DescriptorLimitOutcome { position, limit, added: 0, total: 0, away: None, counted };
            outcome.charge(&counters, rls_request, descriptor, now).await;
            outcome.away = outcome.away.filter(|_| override_of_all != Some(LimitOverride::Shadow));
            request_limits.outcomes.push(outcome);
        }
        if request_limits.refuses() {
            request_limits.give_back(service, rls_request, now).await;
        }
        request_limits
    }

    /// Whether no descriptor carries a limit.
    pub(super) const fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Whether one of the limits denies.
    pub(super) fn refuses(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.away.is_some())
    }

    /// How long to wait before a retry. `None` if the request may pass, or never will.
    pub(super) fn retry_after(&self) -> Option<Ticks> {
        self.outcomes.iter().filter_map(|outcome| outcome.away).max().filter(|&away| away < Ticks::MAX)
    }

    /// Gives back what was charged, for instance when a limit of the policy denies. If the counter is shared with other
    /// keys, as while the store is full, the charge stays: that denies too much for a while, but admits nothing too
    /// much.
    pub(super) async fn give_back<S: Store>(
        &mut self,
        service: &Service<S>,
        rls_request: &RlsRequest,
        now: Timestamp,
    ) {
        let Some(tallies) = tallies(service) else { return };
        let counters = Counters { engine: &service.engine, tallies: &tallies };
        for outcome in self.outcomes.iter_mut().filter(|outcome| outcome.added > 0) {
            let Some(descriptor) = rls_request.descriptors.get(outcome.position) else { continue };
            let parts = descriptor.counted_by(&rls_request.domain);
            counters.take_back(outcome.limit.unit, &parts, outcome.added, &outcome.counted, now).await;
            (outcome.total, outcome.added) = (outcome.total.saturating_sub(outcome.added), 0);
        }
    }

    /// The outcomes for metrics. A descriptor that gives back is not a request for admission, so it is left out.
    pub(super) fn rules(&self, rls_request: &RlsRequest) -> Vec<Rule<'static>> {
        let asks = |outcome: &&DescriptorLimitOutcome| {
            rls_request
                .descriptors
                .get(outcome.position)
                .is_some_and(|descriptor| !descriptor.is_negative_hits)
        };
        let rule = |outcome: &DescriptorLimitOutcome| Rule {
            name: REQUEST_LIMIT,
            detail: None,
            is_denied: outcome.away.is_some(),
            is_shadow: false,
            is_near: outcome.remaining() < u64::from(outcome.limit.requests_per_unit).div_ceil(5),
            source: outcome.counted.source,
        };
        self.outcomes.iter().filter(asks).map(rule).collect()
    }

    /// The outcome of the limit that this descriptor carries.
    pub(super) fn of(&self, position: usize) -> Option<&DescriptorLimitOutcome> {
        self.outcomes.iter().find(|outcome| outcome.position == position)
    }
}

impl DescriptorLimitOutcome {
    /// The remaining units.
    pub(super) fn remaining(&self) -> u64 {
        u64::from(self.limit.requests_per_unit).saturating_sub(self.total)
    }

    /// The status of its descriptor.
    pub(super) fn status(&self, now: Timestamp) -> Status {
        let Override { requests_per_unit, unit } = self.limit;
        let (code, remaining, until_reset) = match self.away {
            Some(away) => (Code::OverLimit, 0, Some(away).filter(|&away| away < Ticks::MAX)),
            None if self.total == 0 => (Code::Ok, self.remaining(), Some(Ticks::ZERO)),
            None => (Code::Ok, self.remaining(), Some(until_end(unit, now))),
        };
        Status {
            code,
            current_limit: Some(CurrentLimit { name: String::new(), requests_per_unit, unit: Some(unit) }),
            limit_remaining: u32::try_from(remaining).unwrap_or(requests_per_unit),
            until_reset,
            source: self.counted.source,
        }
    }

    async fn charge<S: Store>(
        &mut self,
        counters: &Counters<'_, S>,
        rls_request: &RlsRequest,
        descriptor: &Descriptor,
        now: Timestamp,
    ) {
        let (unit, most) = (self.limit.unit, u64::from(self.limit.requests_per_unit));
        let parts = descriptor.counted_by(&rls_request.domain);
        let hits = descriptor.hits(rls_request);
        if hits > most && !descriptor.is_negative_hits {
            self.away = Some(Ticks::MAX);
            return;
        }
        let counted = if descriptor.is_negative_hits {
            counters.subtract(unit, &parts, hits, NEGATIVE_HITS_WITHIN, now).await
        } else {
            counters.add(unit, &parts, hits, now).await
        };
        (self.total, self.counted) = (counted.total, counted);
        if descriptor.is_negative_hits {
            return;
        }
        if hits > 0 && self.total > most {
            self.away = Some(until_end(unit, now.on_wall(counters.engine.maintenance().wall())));
        }
        // A counter that is at its maximum, or has no room, was not charged.
        self.added = if self.total == u64::MAX { 0 } else { hits };
    }
}

fn tallies<S: Store>(service: &Service<S>) -> Option<Arc<Tallies>> {
    if let Some(tallies) = service.envoy.tallies.load_full() {
        return Some(tallies);
    }
    // Every unit is a valid window length. If two threads create this at the same time, the results are equal.
    let tallies = Arc::new(Tallies::new(&service.engine, std::iter::empty()).ok()?);
    service.envoy.tallies.store(Some(Arc::clone(&tallies)));
    Some(tallies)
}

/// The time until the window of a unit ends, from a wall-clock instant.
fn until_end(unit: Unit, wall: Timestamp) -> Ticks {
    let length = Ticks::from_secs(unit.seconds()).as_micros();
    Ticks::from_micros(length - wall.unix_micros() % length)
}
