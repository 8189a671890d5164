//! Counts decisions by another program's rules like those by a policy. The outcomes of single rules are counted by the
//! names in the file. Limits that requests carry are counted together.

use std::sync::atomic::Ordering;

use tollgate::{Block, Source, Ticks, Timestamp};
use tollgate_compat::Rule;

use super::events::NO_SOURCE;
use super::names::{ALLOW, BLOCKED, DENY, VERDICTS};
use super::overflow::is_crowded;
use super::sketch::Denial;
use super::{Event, Meter, verdict_cell};
use crate::protocol::Protocol;
use crate::text;

/// A decision.
#[derive(Debug)]
pub(crate) struct RuleVerdict<'a> {
    pub(crate) is_allowed: bool,
    /// An operator blocks the request, and no rule was evaluated.
    pub(crate) is_blocked: bool,
    /// The name of the rule that denied, or of a rule that was evaluated. Empty if there was none.
    pub(crate) limit: &'a str,
    pub(crate) retry_after: Option<Ticks>,
    /// The key of each descriptor of the request.
    pub(crate) keys: &'a [Key<'a>],
    /// The outcome of each rule.
    pub(crate) rules: &'a [Rule<'a>],
}

/// One descriptor of a request, and the rule that applies to it.
#[derive(Debug)]
pub(crate) struct Key<'a> {
    pub(crate) limit: &'a str,
    pub(crate) attributes: &'a [(String, String)],
    pub(crate) is_denied: bool,
    /// Whether a rule applies to it.
    pub(crate) is_counted: bool,
}

impl<'a> Key<'a> {
    /// A descriptor to which no rule applies.
    pub(crate) const fn unmet(attributes: &'a [(String, String)]) -> Self {
        Self { limit: "", attributes, is_denied: false, is_counted: false }
    }
}

impl Meter {
    /// Counts one decision.
    pub(crate) fn record_compat(&self, verdict: &RuleVerdict<'_>, protocol: Protocol, now: Timestamp) {
        self.verdicts.add(verdict_cell(protocol, verdict.index()), 1);
        self.record_rules(verdict.rules, protocol);
        if verdict.is_allowed && verdict.rules.is_empty() {
            let names = verdict.keys.iter().flat_map(|key| key.attributes).map(|(name, _)| name.as_str());
            self.unlimited.without_limit(names, protocol, now);
        }
        for rule in verdict.rules.iter().filter(|rule| is_crowded(rule.source)) {
            self.overflow.note(rule.name, rule.source, now);
        }
        if let Some(retry) = verdict.retry_after {
            self.retries.observe(retry.as_micros().saturating_mul(1_000));
        }
        self.top.record_keys(verdict.keys, Denial { at: now, retry_after: verdict.retry_after });
        // Relaxed, as for every decision.
        if self.is_watched.load(Ordering::Relaxed) {
            self.publish(now, || event(verdict, protocol, now));
        }
        if !verdict.is_allowed {
            let denied = verdict.keys.iter().find(|key| key.is_denied).or(verdict.keys.first());
            let share = self.recent.share(denied.map(|key| (key.limit, key.attributes)));
            self.recent.keep(share, now, || (String::new(), event(verdict, protocol, now)));
        }
        if let Some(shadow) = verdict.rules.iter().find(|rule| rule.is_shadow && rule.is_denied) {
            let counted = verdict.keys.iter().find(|key| key.limit == shadow.name).or(verdict.keys.first());
            let share = self.recent_in_shadow.share(counted.map(|key| (key.limit, key.attributes)));
            self.recent_in_shadow.keep(share, now, || (String::new(), event(verdict, protocol, now)));
        }
        if let Some(tracer) = self.tracer.get() {
            tracer.record_compat(verdict, protocol, now);
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            log(verdict, protocol, now);
        }
    }

    /// Counts the outcomes of single rules of a decision that is counted already.
    pub(crate) fn record_rules(&self, rules: &[Rule<'_>], protocol: Protocol) {
        rules.iter().for_each(|rule| self.ledger.record_rule(rule, protocol));
    }
}

impl RuleVerdict<'_> {
    /// Its index in [`VERDICTS`].
    pub(super) const fn index(&self) -> usize {
        match (self.is_blocked, self.is_allowed) {
            (true, _) => BLOCKED,
            (false, true) => ALLOW,
            (false, false) => DENY,
        }
    }

    /// The source of the decision: that of the rule that denied, or of the first evaluated rule.
    pub(super) fn source(&self) -> Option<Source> {
        let denied = self.rules.iter().find(|rule| rule.is_denied && !rule.is_shadow);
        denied.or(self.rules.first()).map(|rule| rule.source)
    }
}

/// Writes one decision to the log.
#[cold]
fn log(verdict: &RuleVerdict<'_>, protocol: Protocol, now: Timestamp) {
    let event = event(verdict, protocol, now);
    tracing::debug!(
        wire = protocol.name(),
        verdict = VERDICTS[verdict.index()],
        limit = event.limit,
        source = event.source,
        retry_after_ms = event.retry_after_ms,
        attributes = text::joined(event.attributes),
        "decided"
    );
}

fn event(verdict: &RuleVerdict<'_>, protocol: Protocol, now: Timestamp) -> Event {
    let pairs = verdict.keys.iter().flat_map(|key| key.attributes);
    Event {
        verdict: VERDICTS[if verdict.is_allowed { ALLOW } else { DENY }],
        at: now,
        protocol,
        allowed: verdict.is_allowed,
        limit: text::shown(verdict.limit),
        would_deny: verdict
            .rules
            .iter()
            .filter(|rule| rule.is_shadow && rule.is_denied)
            .map(|rule| text::shown(rule.name))
            .collect(),
        attributes: pairs
            .take(ATTRIBUTES_SHOWN)
            .map(|(name, value)| (text::shown(name), text::shown(&text::unsecret(name, value))))
            .collect(),
        retry_after_ms: verdict.retry_after.map(Ticks::ceil_millis),
        reason: verdict.is_blocked.then(|| Block::NAME.to_owned()),
        source: verdict.source().map_or(NO_SOURCE, Source::name),
    }
}

/// Maximum number of attributes of one decision in the live view and the top keys.
pub(super) const ATTRIBUTES_SHOWN: usize = 32;
