//! Single decisions, for whoever watches: the live view, and the log at level debug.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{CheckRequest, Decision, LimitStatus, Stance, Ticks, Timestamp};

use super::names::{VERDICTS, verdict_index};
use super::{Event, Meter};
use crate::decision_json::{Why, verdict_name};
use crate::protocol::Wire;
use crate::text;

/// Most decisions in a second that are told to those who watch, so that nobody slows the server down by watching.
pub(crate) const EVENTS_PER_SECOND: u64 = 10_000;
/// Where an answer came from that no limit gave.
pub(super) const NO_SOURCE: &str = "none";

/// So many in each second, and no more.
pub(super) struct EventBudget {
    most: u64,
    second: AtomicU64,
    spent: AtomicU64,
}

impl EventBudget {
    pub(super) const fn new(most: u64) -> Self {
        Self { most, second: AtomicU64::new(0), spent: AtomicU64::new(0) }
    }

    /// Whether there is one more in this second.
    pub(super) fn spend(&self, now: Timestamp) -> bool {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        // Relaxed: the numbers guard nothing, and a few more at the turn of a second do no harm.
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.spent.store(0, Ordering::Relaxed);
        }
        self.spent.fetch_add(1, Ordering::Relaxed) < self.most
    }
}

impl Meter {
    /// Tells those who watch.
    #[cold]
    pub(super) fn tell(&self, request: &CheckRequest<'_>, decision: &Decision, wire: Wire, now: Timestamp) {
        self.publish(now, || event(request, decision, wire, now));
    }

    /// Tells those who watch, if anybody does.
    #[cold]
    pub(super) fn publish(&self, now: Timestamp, event: impl FnOnce() -> Event) {
        if self.events.receiver_count() == 0 {
            self.is_watched.store(false, Ordering::SeqCst);
            // Somebody may have come between the two lines, and must not be forgotten.
            if self.events.receiver_count() == 0 {
                return;
            }
            self.is_watched.store(true, Ordering::SeqCst);
        }
        if self.budget.spend(now) {
            // It fails when nobody is left, which is no failure.
            let _ = self.events.send(Arc::new(event()));
        }
    }
}

fn event(request: &CheckRequest<'_>, decision: &Decision, wire: Wire, now: Timestamp) -> Event {
    let deciding = deciding(decision);
    Event {
        at: now,
        wire,
        allowed: decision.is_allowed(),
        verdict: verdict_name(decision.verdict()),
        limit: decision
            .refused_by()
            .or(deciding.map(|status| status.limit.name()))
            .unwrap_or_default()
            .to_owned(),
        attributes: text::attributes(request),
        retry_after_ms: decision.retry_advice().map(Ticks::ceil_millis),
        reason: Why::of(decision).reason.map(|reason| text::shown(&reason)),
        source: deciding.map_or(NO_SOURCE, |status| status.source.name()),
    }
}

/// The limit that denied or, if none did, the enforced one of which the smallest share is left.
pub(super) fn deciding(decision: &Decision) -> Option<LimitStatus<'_>> {
    let share = |status: &LimitStatus<'_>| {
        let outcome = status.outcome;
        let share = u128::from(outcome.remaining) * u128::from(u64::MAX) / u128::from(outcome.limit.max(1));
        (status.quota.is_none(), share) // What is unlimited decides nothing.
    };
    let enforced = decision.limits().filter(|status| status.stance == Stance::Enforced);
    decision.cause().or_else(|| enforced.min_by_key(share))
}

/// One line of the log for one decision. What the request says comes escaped and short.
#[cold]
pub(super) fn log(request: &CheckRequest<'_>, decision: &Decision, wire: Wire) {
    let deciding = deciding(decision);
    let mut attributes = String::new();
    for (name, value) in text::attributes(request) {
        if !attributes.is_empty() {
            attributes.push(' ');
        }
        attributes.push_str(&name);
        attributes.push('=');
        attributes.push_str(&value);
    }
    tracing::debug!(
        wire = wire.name(),
        verdict = VERDICTS[verdict_index(decision)],
        limit = deciding.map_or("", |status| status.limit.name()),
        cause = decision.refused_by(),
        reason = Why::of(decision).reason.map(|reason| text::shown(&reason)),
        source = deciding.map_or(NO_SOURCE, |status| status.source.name()),
        retry_after_ms = decision.retry_advice().map(Ticks::ceil_millis),
        attributes,
        "decided"
    );
}
