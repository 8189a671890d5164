//! The views of the admin interface, as JSON. Times are RFC 3339 in UTC.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use tollgate::engine::{Explained, Explanation, State};
use tollgate::policy::{Limit, Mode, Policy, Unmet};
use tollgate::time::WallOffset;
use tollgate::{Block, CheckRequest, ExpiringOverride, LimitOverride, Ticks, Timestamp};
use tollgate_compat::CompatConfig;

use crate::readiness::PolicyReport;
use crate::service::throttle::ThrottledKey;
use crate::service::throttle_counters::ThrottleCommand;
use crate::telemetry::{Denial, LastDenial};
use crate::time_text::rfc3339_millis;

/// A wall-clock instant, for programs and people.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instant(Timestamp);

impl Instant {
    /// Converts the instant `at` of the decision clock by the offset of the wall clock.
    pub(super) const fn new(at: Timestamp, wall: WallOffset) -> Self {
        Self(at.on_wall(wall))
    }

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
pub(super) struct Pairs<'a>(pub(super) &'a [(String, String)]);

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[derive(Serialize)]
pub(super) struct ExpiringOverrideView {
    #[serde(rename = "override")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<u8>,
    until: Instant,
}

impl ExpiringOverrideView {
    pub(super) const fn new(expiring: ExpiringOverride, wall: WallOffset) -> Self {
        let (kind, percent) = match expiring.kind {
            LimitOverride::Off => ("off", None),
            LimitOverride::Shadow => ("shadow", None),
            LimitOverride::Percent(percent) => ("percent", Some(percent)),
        };
        Self { kind, percent, until: Instant::new(expiring.until, wall) }
    }
}

#[derive(Serialize)]
pub(super) struct BlockView<'a> {
    attributes: Pairs<'a>,
    until: Instant,
}

impl<'a> From<&'a Block> for BlockView<'a> {
    fn from(block: &'a Block) -> Self {
        Self { attributes: Pairs(block.attributes()), until: Instant(block.until_on_wall()) }
    }
}

/// An override with its scope.
#[derive(Serialize)]
pub(super) struct OtherView {
    /// The limit, or `None` for an override of all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    #[serde(flatten)]
    expiring: ExpiringOverrideView,
}

impl OtherView {
    pub(super) const fn about_all(expiring: ExpiringOverrideView) -> Self {
        Self { limit: None, expiring }
    }

    pub(super) const fn about(limit: String, expiring: ExpiringOverrideView) -> Self {
        Self { limit: Some(limit), expiring }
    }
}

/// An override with its overload controller.
#[derive(Serialize)]
pub(super) struct OverloadView {
    pub(super) controller: &'static str,
    #[serde(flatten)]
    pub(super) expiring: ExpiringOverrideView,
}

/// A new override, with those that apply instead because they are milder.
#[derive(Serialize)]
pub(super) struct OverrideView {
    #[serde(flatten)]
    pub(super) expiring: ExpiringOverrideView,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) milder: Vec<OtherView>,
}

#[derive(Serialize)]
struct LimitView<'a> {
    name: &'a str,
    sentence: String,
    /// The mode and percentage now, including overrides.
    mode: &'static str,
    percent: u8,
    /// The override of this limit alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_override: Option<ExpiringOverrideView>,
    /// The milder of that one and the override of all limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    effective_override: Option<ExpiringOverrideView>,
    /// Whether it applied to any request since this server started, if that is counted for it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<bool>,
}

/// The effective state of a limit at one instant, and the override of this limit alone.
pub(super) struct LimitFooting {
    pub(super) footing: (Mode, u8),
    pub(super) own_override: Option<ExpiringOverride>,
    pub(super) effective_override: Option<ExpiringOverride>,
    pub(super) applied: Option<bool>,
}

/// The active limits with all overrides and blocks.
#[derive(Serialize)]
pub(super) struct LimitsView<'a> {
    /// Where the limits come from.
    policy: PolicyReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<ExpiringOverrideView>,
    limits: Vec<LimitView<'a>>,
    /// The number of limits that are not listed.
    left_off: usize,
    /// The attributes that limits read, or that requests are known to have. None under the rules of another program.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    attributes: BTreeSet<String>,
    blocks: Vec<BlockView<'a>>,
    /// Overrides of overload controllers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) overload: Vec<OverloadView>,
    /// The meaning of each rule of another program's configuration, if one is active.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    compat: Vec<String>,
}

impl<'a> LimitsView<'a> {
    /// Maximum number of listed limits. Those with an override are always listed.
    const LISTED_MAX: usize = 1_000;

    /// Replaces the limits by the rules of another program.
    pub(super) fn of_compat(mut self, rules: &CompatConfig) -> Self {
        self.limits.clear();
        self.attributes.clear();
        self.compat = rules.sentences();
        self.left_off = self.compat.len().saturating_sub(Self::LISTED_MAX);
        self.compat.truncate(Self::LISTED_MAX);
        self
    }

    pub(super) fn new(
        (policy, known): (&'a Policy, BTreeSet<String>),
        about: PolicyReport,
        all: Option<ExpiringOverride>,
        holding: impl Fn(&Limit) -> LimitFooting,
        blocks: &'a [std::sync::Arc<Block>],
        wall: WallOffset,
    ) -> Self {
        let shown = |expiring: ExpiringOverride| ExpiringOverrideView::new(expiring, wall);
        let mut view = Self {
            policy: about,
            all: all.map(shown),
            limits: Vec::new(),
            left_off: 0,
            attributes: known,
            blocks: blocks.iter().map(|block| BlockView::from(&**block)).collect(),
            overload: Vec::new(),
            compat: Vec::new(),
        };
        for limit in policy.limits() {
            let LimitFooting { footing: (mode, percent), own_override, effective_override, applied } =
                holding(limit);
            if own_override.is_none() && view.limits.len() >= Self::LISTED_MAX {
                view.left_off += 1;
                continue;
            }
            view.limits.push(LimitView {
                name: limit.name(),
                sentence: limit.sentence(),
                mode: mode.name(),
                percent,
                own_override: own_override.map(shown),
                effective_override: effective_override.map(shown),
                applied,
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
    numbers: Option<CounterView>,
    /// How long `block_for` still refuses the key, and when the request passes: after that time, once the counter
    /// admits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_for_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    source: &'static str,
    mode: &'static str,
    quota: String,
    chosen: String,
    /// Attributes that select a tier with its own counters, and that the request lacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    open_tiers: Vec<String>,
}

/// The numbers of a counter. A limit that counts nothing for the key has none.
#[derive(Serialize)]
struct CounterView {
    limit: u64,
    remaining: u64,
    /// Whether a counter exists. Otherwise the numbers are those of an unused key.
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
            // A key that is refused for a while still has a counter.
            numbers: (state.source.has_numbers() || state.refused_for.is_some()).then(|| CounterView {
                limit: outcome.limit,
                remaining: outcome.remaining,
                counted: outcome.is_touched(),
                next_unit_after_ms: outcome.next_unit_after.ceil_millis(),
                reset_after_ms: outcome.reset_after.ceil_millis(),
            }),
            refused_for_ms: state.refused_for.map(Ticks::ceil_millis),
            retry_after_ms: state
                .refused_for
                .and_then(|_| outcome.verdict.retry_after())
                .map(Ticks::ceil_millis),
            source: state.source.name(),
            mode: state.enforcement.name(),
            quota: state.allowance.clone(),
            chosen: state.choice.to_string(),
            open_tiers: state.open_tiers.clone(),
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
    effective_override: Option<ExpiringOverrideView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StateView>,
    /// The counter of the key where the limit does not apply, but may apply to a request with further attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    counter: Option<StateView>,
    unmet: Vec<String>,
    what_would_change_it: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    last_denied: Option<LastDeniedView>,
}

/// The latest denial of a key.
#[derive(Serialize)]
pub(super) struct LastDeniedView {
    #[serde(flatten)]
    denial: DenialView,
    ago_ms: u64,
    /// The number of denials of the key since an instant.
    #[serde(flatten)]
    recent: Option<RecentDenialsView>,
}

#[derive(Serialize)]
struct RecentDenialsView {
    denials: u64,
    since: Instant,
}

impl LastDeniedView {
    /// `since` is the start of the recent denials.
    pub(super) fn new(last: LastDenial, since: Timestamp, now: Timestamp, wall: WallOffset) -> Self {
        let recent = RecentDenialsView { denials: last.recent, since: Instant::new(since, wall) };
        Self {
            denial: DenialView::new(last.denial, wall),
            ago_ms: now.since(last.denial.at).ceil_millis(),
            recent: (last.recent > 0).then_some(recent),
        }
    }
}

#[derive(Serialize)]
pub(super) struct DenialView {
    at: Instant,
    /// When the caller may come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Instant>,
}

impl DenialView {
    pub(super) fn new(denial: Denial, wall: WallOffset) -> Self {
        let retry_at = denial.retry_after.map(|wait| Instant::new(denial.at + wait, wall));
        Self { at: Instant::new(denial.at, wall), retry_at }
    }
}

/// The explanation of a decision.
#[derive(Serialize)]
pub(super) struct ExplanationView<'a> {
    /// Whether the request would pass now. `None` for a call that carries its limit, if the result depends on that
    /// limit.
    allowed: Option<bool>,
    /// Whether it is a call that carries its limit, so that no limit of the policy applies.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    carries_its_limit: bool,
    /// Whether it would pass because no limit applies to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_limit_applies: bool,
    /// The digests of credentials that were given as they are, by attribute.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) digests: BTreeMap<String, String>,
    /// Doubts about the names of the attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) doubt: Option<String>,
    /// Limits that may apply to a request with more attributes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    incomplete: Vec<IncompleteView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// If no denial is remembered: the instant up to which keys were denied of which none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    denials_forgotten_until: Option<Instant>,
    limits: Vec<ExplainedView<'a>>,
    left_off: usize,
    /// The request names a credential that the callers file does not contain.
    #[serde(rename = "unknown_credential", skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_stranger: bool,
    /// The active policy, if the file on disk is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<PolicyReport>,
    /// The counters of commands whose calls carry their limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    throttled: Vec<ThrottledView>,
    /// The decision about the same attributes if they are sent as given and not read from HTTP, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) as_given: Option<AsGivenView>,
}

/// The decision about attributes that a program sends as given, through `/v1/check`, RLS or RESP. The gateway and
/// `/v1/authz` normalize all spellings of a path.
#[derive(Serialize)]
pub(super) struct AsGivenView {
    allowed: bool,
    /// The limits that apply in that case.
    limits: Vec<String>,
}

impl AsGivenView {
    /// `None` if it makes no difference: the same limits apply, with the same keys.
    pub(super) fn beside(
        read: &ExplainedRequest<'_, '_>,
        given: &ExplainedRequest<'_, '_>,
        policy: &Policy,
    ) -> Option<Self> {
        let is_same = read.met(policy) == given.met(policy)
            && read.explanation.block.is_some() == given.explanation.block.is_some()
            && read.explanation.fault == given.explanation.fault;
        (!is_same).then(|| Self {
            allowed: given.explanation.is_allowed(),
            limits: given.met(policy).into_iter().map(|(name, _)| name.to_owned()).collect(),
        })
    }
}

/// A request with its explanation.
pub(super) struct ExplainedRequest<'a, 'r> {
    pub(super) request: &'a CheckRequest<'r>,
    pub(super) explanation: &'a Explanation,
}

impl<'a> ExplainedRequest<'a, '_> {
    /// The limits that apply, each with its key.
    fn met(&self, policy: &Policy) -> Vec<(&'a str, Vec<String>)> {
        let value = |name: &str| self.request.attributes().iter().find(|given| given.name == name);
        let key = |name: &str| {
            let limit = policy.limits().iter().find(|limit| limit.name() == name);
            let by = limit.map(Limit::by).unwrap_or_default().iter();
            by.filter_map(|by| Some(by.key_text(value(by.name())?.value))).collect()
        };
        let applied = self.explanation.limits.iter().filter(|limit| limit.state.is_some());
        applied.map(|limit| (limit.name.as_str(), key(&limit.name))).collect()
    }
}

#[derive(Serialize)]
struct ThrottledView {
    command: &'static str,
    reset_after_ms: u64,
}

/// How much of an explanation is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Only limits that have a counter for it.
    State,
    /// All of it.
    Reasons,
}

impl<'a> ExplanationView<'a> {
    pub(super) fn new(
        explanation: &'a Explanation,
        depth: Depth,
        throttled: &ThrottledKey,
        wall: WallOffset,
    ) -> Self {
        let is_call = throttled.is_call;
        let shown = explanation.limits.iter().filter(|_| !is_call);
        let has_state = |limit: &Explained| limit.state.is_some() || limit.counter.is_some();
        let shown = shown.filter(|limit| depth == Depth::Reasons || has_state(limit));
        Self {
            allowed: if is_call { throttled.passes } else { Some(explanation.is_allowed()) },
            carries_its_limit: is_call,
            no_limit_applies: explanation.meets_no_limit() && !is_call,
            digests: BTreeMap::new(),
            doubt: None,
            incomplete: Vec::new(),
            blocked: explanation.block.as_ref().map(ToString::to_string),
            fault: explanation.fault.as_ref().filter(|_| !is_call).map(ToString::to_string),
            denials_forgotten_until: None,
            limits: shown.map(|limit| explained(limit, wall)).collect(),
            left_off: if depth == Depth::Reasons && !is_call { explanation.left_off } else { 0 },
            is_stranger: false,
            policy: None,
            throttled: throttled.counted.iter().map(ThrottledView::from).collect(),
            as_given: None,
        }
    }
}

impl<'a> ExplanationView<'a> {
    /// Adds the latest denial by each limit that applies or may apply. `forgotten` is the instant up to which keys were
    /// denied of which nothing is remembered.
    pub(super) fn remember(
        &mut self,
        last: impl Fn(&str) -> Option<LastDeniedView>,
        forgotten: Option<Instant>,
    ) {
        let mut has_denial = false;
        for limit in self.limits.iter_mut().filter(|limit| limit.applies || limit.counter.is_some()) {
            limit.last_denied = last(limit.name);
            has_denial |= limit.last_denied.is_some();
        }
        self.denials_forgotten_until = forgotten.filter(|_| !has_denial);
    }

    /// Names the limits about the given attributes that do not apply only because the request lacks others.
    pub(super) fn doubt_missing(&mut self, asked: &ExplainedRequest<'a, '_>, policy: &Policy) {
        let request = asked.request.descriptors().next();
        let mentions = |name: &str| {
            let limit = policy.limits().iter().find(|limit| limit.name() == name);
            limit.zip(request).is_some_and(|(limit, request)| limit.mentions(request))
        };
        let unmet = asked.explanation.limits.iter().filter(|limit| limit.mode != Mode::Off);
        let incomplete = unmet.filter_map(|limit| {
            let depends_on: Option<Vec<&str>> = limit.unmet.iter().map(missing).collect();
            let depends_on = depends_on.filter(|missing| !missing.is_empty())?;
            mentions(&limit.name).then_some(IncompleteView { limit: &limit.name, depends_on })
        });
        self.incomplete = incomplete.collect();
    }
}

/// A limit that may apply to a request with these attributes as well.
#[derive(Serialize)]
struct IncompleteView<'a> {
    limit: &'a str,
    depends_on: Vec<&'a str>,
}

/// The attribute that a request lacks, if that is the reason.
fn missing(unmet: &Unmet) -> Option<&str> {
    match unmet {
        Unmet::Missing { attribute } => Some(attribute),
        _ => None,
    }
}

impl From<&(ThrottleCommand, Ticks)> for ThrottledView {
    fn from((command, reset_after): &(ThrottleCommand, Ticks)) -> Self {
        Self { command: command.command(), reset_after_ms: reset_after.ceil_millis() }
    }
}

fn explained(limit: &Explained, wall: WallOffset) -> ExplainedView<'_> {
    ExplainedView {
        name: &limit.name,
        applies: limit.state.is_some(),
        sentence: &limit.sentence,
        mode: limit.mode.name(),
        percent: limit.percent,
        effective_override: limit
            .effective_override
            .map(|expiring| ExpiringOverrideView::new(expiring, wall)),
        state: limit.state.as_ref().map(StateView::from),
        counter: limit.counter.as_ref().map(StateView::from),
        unmet: limit.unmet.iter().map(ToString::to_string).collect(),
        what_would_change_it: &limit.changes,
        last_denied: None,
    }
}

/// Milliseconds, rounded up.
pub(super) fn millis(time: Ticks) -> u64 {
    time.ceil_millis()
}
