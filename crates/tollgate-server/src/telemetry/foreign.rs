//! Decisions by somebody else's rules, as the meter counts them: verdicts, waits, top keys and the live view. What single rules
//! answered is not counted by name, since requests may bring rules along.

use std::sync::atomic::Ordering;

use tollgate::{Ticks, Timestamp};

use super::{Event, Meter, text};
use crate::service::Wire;

/// A decision.
#[derive(Debug)]
pub(crate) struct Verdict<'a> {
    pub(crate) is_allowed: bool,
    /// The name of what denied, or of a rule that was asked; empty where none was.
    pub(crate) limit: &'a str,
    pub(crate) retry_after: Option<Ticks>,
    /// What was asked about, one for each view of the request.
    pub(crate) keys: &'a [Key<'a>],
}

/// One view of a request, and the rule that is about it.
#[derive(Debug)]
pub(crate) struct Key<'a> {
    pub(crate) limit: &'a str,
    pub(crate) attributes: &'a [(String, String)],
    pub(crate) is_denied: bool,
    /// Whether there is a rule about it.
    pub(crate) is_counted: bool,
}

impl<'a> Key<'a> {
    /// A view that no rule is about.
    pub(crate) const fn unmet(attributes: &'a [(String, String)]) -> Self {
        Self { limit: "", attributes, is_denied: false, is_counted: false }
    }
}

impl Meter {
    /// Counts one decision.
    pub(crate) fn record_foreign(&self, verdict: &Verdict<'_>, wire: Wire, now: Timestamp) {
        self.record_unnamed(verdict.is_allowed, wire);
        if let Some(retry) = verdict.retry_after {
            self.retries.observe(retry.as_micros().saturating_mul(1_000));
        }
        self.top.record_keys(verdict.keys, now);
        // Relaxed: as for every decision.
        if self.is_watched.load(Ordering::Relaxed) {
            self.publish(now, || event(verdict, wire, now));
        }
    }
}

fn event(verdict: &Verdict<'_>, wire: Wire, now: Timestamp) -> Event {
    let pairs = verdict.keys.iter().flat_map(|key| key.attributes);
    Event {
        at: now,
        wire,
        allowed: verdict.is_allowed,
        limit: text::shown(verdict.limit),
        attributes: pairs
            .take(ATTRIBUTES_SHOWN)
            .map(|(name, value)| (text::shown(name), text::shown(value)))
            .collect(),
        retry_after_ms: verdict.retry_after.map(Ticks::ceil_millis),
        source: "exact",
    }
}

/// Most attributes that the live view and the top keys show of one decision.
pub(super) const ATTRIBUTES_SHOWN: usize = 32;
