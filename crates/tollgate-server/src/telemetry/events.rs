//! Single decisions, for the live view and for the log at level debug.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{CheckRequest, Decision, Enforcement, LimitStatus, Ticks, Timestamp};

use super::names::{VERDICTS, verdict_index};
use super::{Event, Meter};
use crate::decision_json::{RefusalText, verdict_name};
use crate::protocol::Protocol;
use crate::text;

/// Maximum number of decisions per second in the live view, so that watchers cannot slow the server down.
pub(crate) const EVENTS_PER_SECOND: u64 = 10_000;
/// The source of an answer that no limit gave.
pub(super) const NO_SOURCE: &str = "none";

/// A budget of events per second.
pub(super) struct EventBudget {
    most: u64,
    second: AtomicU64,
    spent: AtomicU64,
}

impl EventBudget {
    pub(super) const fn new(most: u64) -> Self {
        Self { most, second: AtomicU64::new(0), spent: AtomicU64::new(0) }
    }

    /// Whether there is budget left in this second.
    pub(super) fn spend(&self, now: Timestamp) -> bool {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        // Relaxed: the numbers guard no other memory, and a few extra events at the turn of a second do no harm. Reading
        // first, so that threads do not compete for a budget that is spent.
        if self.second.load(Ordering::Relaxed) != second {
            self.second.store(second, Ordering::Relaxed);
            self.spent.store(0, Ordering::Relaxed);
        }
        if self.spent.load(Ordering::Relaxed) >= self.most {
            return false;
        }
        self.spent.fetch_add(1, Ordering::Relaxed) < self.most
    }
}

impl Meter {
    /// Publishes a decision to the watchers.
    #[cold]
    pub(super) fn publish_decision(
        &self,
        request: &CheckRequest<'_>,
        decision: &Decision,
        protocol: Protocol,
        now: Timestamp,
    ) {
        self.publish(now, || event(request, decision, protocol, now));
    }

    /// Publishes an event if there are watchers.
    #[cold]
    pub(super) fn publish(&self, now: Timestamp, event: impl FnOnce() -> Event) {
        if self.events.receiver_count() == 0 {
            self.is_watched.store(false, Ordering::SeqCst);
            // A watcher may have subscribed between the two lines, and must not be missed.
            if self.events.receiver_count() == 0 {
                return;
            }
            self.is_watched.store(true, Ordering::SeqCst);
        }
        if self.budget.spend(now) {
            // Sending fails only if no watcher is left, which is no error.
            let _ = self.events.send(Arc::new(event()));
        }
    }
}

pub(super) fn event(
    request: &CheckRequest<'_>,
    decision: &Decision,
    protocol: Protocol,
    now: Timestamp,
) -> Event {
    let deciding = deciding(decision);
    Event {
        at: now,
        protocol,
        allowed: decision.is_allowed(),
        verdict: verdict_name(decision.verdict()),
        limit: decision
            .refused_by()
            .or(deciding.map(|status| status.limit.name()))
            .unwrap_or_default()
            .to_owned(),
        would_deny: shadow_denials(decision).map(|status| status.limit.name().to_owned()).collect(),
        attributes: text::attributes(request),
        retry_after_ms: decision.retry_advice().map(Ticks::ceil_millis),
        reason: RefusalText::of(decision).reason.map(|reason| text::shown(&reason)),
        source: deciding.map_or(NO_SOURCE, |status| status.source.name()),
    }
}

/// The limits in shadow that would have denied.
#[inline]
pub(super) fn shadow_denials(decision: &Decision) -> impl Iterator<Item = LimitStatus<'_>> {
    let in_shadow = decision.limits().filter(|status| status.enforcement == Enforcement::Shadow);
    in_shadow.filter(|status| !status.outcome.is_allowed())
}

/// The limit that denied. If none did, the enforced limit with the smallest share left.
pub(super) fn deciding(decision: &Decision) -> Option<LimitStatus<'_>> {
    let share = |status: &LimitStatus<'_>| {
        let outcome = status.outcome;
        let share = u128::from(outcome.remaining) * u128::from(u64::MAX) / u128::from(outcome.limit.max(1));
        (status.quota.is_none(), share) // What is unlimited decides nothing.
    };
    let enforced = decision.limits().filter(|status| status.enforcement == Enforcement::Enforced);
    decision.cause().or_else(|| enforced.min_by_key(share))
}

/// Writes one decision to the log. Text from the request is escaped and shortened.
#[cold]
pub(super) fn log(request: &CheckRequest<'_>, decision: &Decision, protocol: Protocol) {
    let deciding = deciding(decision);
    tracing::debug!(
        wire = protocol.name(),
        verdict = VERDICTS[verdict_index(decision)],
        limit = deciding.map_or("", |status| status.limit.name()),
        cause = decision.refused_by(),
        reason = RefusalText::of(decision).reason.map(|reason| text::shown(&reason)),
        source = deciding.map_or(NO_SOURCE, |status| status.source.name()),
        retry_after_ms = decision.retry_advice().map(Ticks::ceil_millis),
        attributes = text::joined(text::attributes(request)),
        "decided"
    );
}
