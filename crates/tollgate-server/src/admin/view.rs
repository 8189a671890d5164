//! What the admin interface shows, as JSON. Times are RFC 3339 in UTC.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use tollgate::policy::{Change, Difference, FieldChange, Mode, Policy};
use tollgate::{Block, Explained, Explanation, Ruled, Ruling, Stance, State, Ticks, Timestamp};

use crate::foreign::Foreign;
use crate::service::cells::Asker;
use crate::telemetry::names::SOURCES;
use crate::telemetry::{Event, TopKey};
use crate::time_text::rfc3339_millis;

/// An instant as programs and people read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instant(pub(super) Timestamp);

impl Instant {
    pub(super) fn text(self) -> String {
        rfc3339_millis(self.0)
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

/// Names with values.
#[derive(Debug)]
struct Pairs<'a>(&'a [(String, String)]);

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

pub(super) const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    }
}

#[derive(Serialize)]
pub(super) struct RuledView {
    ruling: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<u8>,
    until: Instant,
}

impl From<Ruled> for RuledView {
    fn from(ruled: Ruled) -> Self {
        let (ruling, percent) = match ruled.ruling {
            Ruling::Off => ("off", None),
            Ruling::Shadow => ("shadow", None),
            Ruling::Percent(percent) => ("percent", Some(percent)),
        };
        Self { ruling, percent, until: Instant(ruled.until) }
    }
}

#[derive(Serialize)]
pub(super) struct BlockView<'a> {
    attributes: Pairs<'a>,
    until: Instant,
}

impl<'a> From<&'a Block> for BlockView<'a> {
    fn from(block: &'a Block) -> Self {
        Self { attributes: Pairs(block.attributes()), until: Instant(block.until()) }
    }
}

#[derive(Serialize)]
struct LimitView<'a> {
    name: &'a str,
    sentence: String,
    mode: &'static str,
    percent: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    ruled: Option<RuledView>,
}

/// The limits in force and everything that was said over them.
#[derive(Serialize)]
pub(super) struct LimitsView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<RuledView>,
    limits: Vec<LimitView<'a>>,
    /// Limits beyond those that are listed.
    left_off: usize,
    blocks: Vec<BlockView<'a>>,
    /// What each rule of somebody else's means, where such rules are in force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    foreign: Vec<String>,
}

impl<'a> LimitsView<'a> {
    /// Limits that are listed; those with a ruling always are.
    const LISTED_MAX: usize = 1_000;

    /// The same with somebody else's rules in the place of limits.
    pub(super) fn of_foreign(mut self, rules: &Foreign) -> Self {
        self.limits.clear();
        self.foreign = rules.sentences();
        self.left_off = self.foreign.len().saturating_sub(Self::LISTED_MAX);
        self.foreign.truncate(Self::LISTED_MAX);
        self
    }

    pub(super) fn new(
        policy: &'a Policy,
        (all, mut ruled): (Option<Ruled>, Vec<(String, Ruled)>),
        blocks: &'a [std::sync::Arc<Block>],
    ) -> Self {
        let mut view = Self {
            all: all.map(RuledView::from),
            limits: Vec::new(),
            left_off: 0,
            blocks: blocks.iter().map(|block| BlockView::from(&**block)).collect(),
            foreign: Vec::new(),
        };
        for limit in policy.limits() {
            let own = ruled.iter().position(|(name, _)| name == limit.name());
            let own = own.map(|position| ruled.swap_remove(position).1);
            if own.is_none() && view.limits.len() >= Self::LISTED_MAX {
                view.left_off += 1;
                continue;
            }
            view.limits.push(LimitView {
                name: limit.name(),
                sentence: limit.sentence(),
                mode: mode_name(limit.mode()),
                percent: limit.enforce_percent(),
                ruled: own.map(RuledView::from),
            });
        }
        view
    }
}

#[derive(Serialize)]
struct StateView {
    allowed: bool,
    cost: u64,
    #[serde(flatten)]
    numbers: Option<NumbersView>,
    source: &'static str,
    stance: &'static str,
    quota: String,
    chosen: String,
}

/// The numbers of a counter; a limit that counts nothing for the key has none.
#[derive(Serialize)]
struct NumbersView {
    limit: u64,
    remaining: u64,
    /// Whether there is a counter, or nothing that it would remember.
    counted: bool,
    next_unit_after_ms: u64,
    reset_after_ms: u64,
}

impl From<&State> for StateView {
    fn from(state: &State) -> Self {
        let outcome = &state.outcome;
        Self {
            allowed: state.admits,
            cost: state.cost,
            numbers: state.source.has_numbers().then(|| NumbersView {
                limit: outcome.limit,
                remaining: outcome.remaining,
                counted: outcome.is_touched(),
                next_unit_after_ms: outcome.next_unit_after.ceil_millis(),
                reset_after_ms: outcome.reset_after.ceil_millis(),
            }),
            source: state.source.name(),
            stance: match state.stance {
                Stance::Enforced => "enforce",
                Stance::Shadow => "shadow",
            },
            quota: state.allowance.clone(),
            chosen: state.choice.to_string(),
        }
    }
}

#[derive(Serialize)]
struct ExplainedView<'a> {
    name: &'a str,
    applies: bool,
    sentence: &'a str,
    mode: &'static str,
    percent: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    ruled: Option<RuledView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StateView>,
    unmet: Vec<String>,
    what_would_change_it: &'a [String],
}

/// Why a request is answered as it is.
#[derive(Serialize)]
pub(super) struct ExplanationView<'a> {
    /// Whether it would pass now.
    allowed: bool,
    /// Whether it would pass because no limit applies to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_limit_applies: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    limits: Vec<ExplainedView<'a>>,
    left_off: usize,
    /// A credential was named that the callers file does not know.
    #[serde(rename = "unknown_credential", skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_stranger: bool,
    /// What commands have counted that tell their limit with each call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    throttled: Vec<ThrottledView>,
}

#[derive(Serialize)]
struct ThrottledView {
    command: &'static str,
    reset_after_ms: u64,
}

/// How much of an explanation is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Only limits that apply.
    State,
    /// All of it.
    Reasons,
}

impl<'a> ExplanationView<'a> {
    pub(super) fn new(explanation: &'a Explanation, depth: Depth, throttled: &[(Asker, Ticks)]) -> Self {
        let shown = explanation.limits.iter();
        let shown = shown.filter(|limit| depth == Depth::Reasons || limit.state.is_some());
        Self {
            allowed: explanation.is_allowed(),
            no_limit_applies: explanation.meets_no_limit(),
            blocked: explanation.block.as_ref().map(ToString::to_string),
            fault: explanation.fault.as_ref().map(ToString::to_string),
            limits: shown.map(explained).collect(),
            left_off: if depth == Depth::Reasons { explanation.left_off } else { 0 },
            is_stranger: false,
            throttled: throttled.iter().map(ThrottledView::from).collect(),
        }
    }
}

impl From<&(Asker, Ticks)> for ThrottledView {
    fn from((asker, reset_after): &(Asker, Ticks)) -> Self {
        Self { command: asker.command(), reset_after_ms: reset_after.ceil_millis() }
    }
}

fn explained(limit: &Explained) -> ExplainedView<'_> {
    ExplainedView {
        name: &limit.name,
        applies: limit.state.is_some(),
        sentence: &limit.sentence,
        mode: mode_name(limit.mode),
        percent: limit.percent,
        ruled: limit.ruled.map(RuledView::from),
        state: limit.state.as_ref().map(StateView::from),
        unmet: limit.unmet.iter().map(ToString::to_string).collect(),
        what_would_change_it: &limit.changes,
    }
}

#[derive(Serialize)]
struct TopKeyView<'a> {
    limit: &'a str,
    key: &'a str,
    decisions: u64,
    denied: u64,
    /// How many of its answers came from where; empty where that is not told.
    sources: BTreeMap<&'static str, u64>,
}

/// The keys that are asked about most.
#[derive(Serialize)]
pub(super) struct TopView<'a> {
    at: Instant,
    keys: Vec<TopKeyView<'a>>,
}

impl<'a> TopView<'a> {
    pub(super) fn new(keys: &'a [TopKey], now: Timestamp) -> Self {
        let view = |key: &'a TopKey| TopKeyView {
            limit: &key.limit,
            key: &key.key,
            decisions: key.decisions,
            denied: key.denied,
            sources: SOURCES
                .into_iter()
                .zip(key.sources)
                .filter(|(_, count)| *count > 0)
                .map(|(source, count)| (source.name(), count))
                .collect(),
        };
        Self { at: Instant(now), keys: keys.iter().map(view).collect() }
    }
}

/// One decision, for whoever watches.
#[derive(Serialize)]
pub(super) struct EventView<'a> {
    at: Instant,
    wire: &'static str,
    allowed: bool,
    limit: &'a str,
    attributes: Pairs<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    source: &'static str,
}

impl<'a> From<&'a Event> for EventView<'a> {
    fn from(event: &'a Event) -> Self {
        Self {
            at: Instant(event.at),
            wire: event.wire.name(),
            allowed: event.allowed,
            limit: &event.limit,
            attributes: Pairs(&event.attributes),
            retry_after_ms: event.retry_after_ms,
            reason: event.reason.as_deref(),
            source: event.source,
        }
    }
}

/// What becomes of one limit.
#[derive(Serialize)]
pub(crate) struct ChangeView<'a> {
    change: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    fields: &'a [&'static str],
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'a str>,
}

impl<'a> From<&'a Change> for ChangeView<'a> {
    fn from(change: &'a Change) -> Self {
        match change {
            Change::Added { name, sentence } => {
                Self { change: "added", name, fields: &[], before: None, after: Some(sentence) }
            }
            Change::Removed { name, sentence } => {
                Self { change: "removed", name, fields: &[], before: Some(sentence), after: None }
            }
            Change::Changed { name, fields, before, after } => {
                Self { change: "changed", name, fields, before: Some(before), after: Some(after) }
            }
        }
    }
}

/// A field of the whole policy that means something else.
#[derive(Serialize)]
pub(crate) struct FieldChangeView {
    field: &'static str,
    before: String,
    pub(super) after: String,
}

/// The fields of the whole policy that another one changes.
pub(crate) fn fields(fields: &[FieldChange]) -> Vec<FieldChangeView> {
    let view = |change: &FieldChange| {
        let FieldChange { field, before, after } = change.clone();
        FieldChangeView { field, before, after }
    };
    fields.iter().map(view).collect()
}

/// The limits that another policy changes.
pub(crate) fn changes(difference: &Difference) -> Vec<ChangeView<'_>> {
    difference.changes.iter().map(ChangeView::from).collect()
}

/// Milliseconds, rounded up.
pub(super) fn millis(time: Ticks) -> u64 {
    time.ceil_millis()
}
