//! Explains a decision: every limit of the policy, whether it applies and why not, what remains of it, and what would
//! change that. Nothing is charged. It asks the store exactly as a decision does, so the two cannot differ.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Operator;
use crate::active::{ActivePolicy, counts_tiers_apart};
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Block, LimitStatus, Status};
use crate::engine::ATTEMPTS;
use crate::engine::check::{ChargeSet, MatchedRequest};
use crate::engine::penalty::{Blocked, PenaltyBlocks};
use crate::outcome::{Outcome, Source};
use crate::overrides::{ActiveOverrides, ExpiringOverride, LimitOverride};
use crate::policy::compared::Replaced;
use crate::policy::source::grouped;
use crate::policy::{
    BY_MAX, Choice, Fault, Limit, MATCHED_MAX, Match, Matches, Mode, Penalty, Policy, QuotaIndex, Unmet,
};
use crate::quota::Quota;
use crate::request::{CheckRequest, Descriptor, GET, HEAD};
use crate::store::{Charge, Charges, Enforcement, Foreseen, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

/// Maximum number of limits in one explanation; the others do not apply, and are counted.
pub const LIMITS_EXPLAINED_MAX: usize = 200;

/// Why a request gets its decision.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The operator's block that denies it before any limit is asked.
    pub block: Option<Arc<Block>>,
    /// The fault of the request itself, if it has one.
    pub fault: Option<Fault>,
    /// Every limit of the policy: first those that apply, then those that mention an attribute of the request and do
    /// not apply, then the others, each group in the policy's order.
    pub limits: Vec<Explained>,
    /// How many more limits do not apply.
    pub left_off: usize,
}

impl Explanation {
    /// Whether the request would pass now.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        let refuses = |limit: &Explained| {
            limit
                .state
                .as_ref()
                .is_some_and(|state| state.enforcement == Enforcement::Enforced && !state.admits)
        };
        self.block.is_none() && self.fault.is_none() && !self.limits.iter().any(refuses)
    }

    /// Whether the request would pass because no limit applies to it.
    #[must_use]
    pub fn meets_no_limit(&self) -> bool {
        self.is_allowed() && !self.limits.iter().any(|limit| limit.state.is_some())
    }
}

/// How one limit relates to a request.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The name of the limit.
    pub name: String,
    /// The meaning of the limit, as a sentence.
    pub sentence: String,
    /// Why it does not apply, by the policy; empty if it does.
    pub unmet: Vec<Unmet>,
    /// The operator's override of it.
    pub effective_override: Option<ExpiringOverride>,
    /// Whether it decides now, and for which share of keys, overrides included.
    pub mode: Mode,
    /// See [`Explained::mode`].
    pub percent: u8,
    /// The remaining quota; `None` where it does not apply.
    pub state: Option<State>,
    /// The remaining quota of the key where it does not apply, but may apply to a request with further attributes.
    pub counter: Option<State>,
    /// Changes that would lead to another answer, in sentences.
    pub changes: Vec<String>,
}

/// The remaining quota of a limit for a request's key.
#[derive(Clone, Debug)]
pub struct State {
    /// The cost of the request.
    pub cost: u64,
    /// Whether that much remains.
    pub admits: bool,
    /// Whether it would take part in the verdict.
    pub enforcement: Enforcement,
    /// Where the numbers come from.
    pub source: Source,
    /// The numbers.
    pub outcome: Outcome,
    /// For how long its `block_for` denies the key, if it does. The request passes when the block is over and the
    /// counter admits the request; that is the time in the verdict.
    pub refused_for: Option<Ticks>,
    /// How its quota was chosen.
    pub choice: Choice,
    /// The rate that the quota allows, in words.
    pub allowance: String,
    /// The attributes that name a tier and that the request lacks, where tiers have counters of their own. A request
    /// with one of them is decided by another counter.
    pub open_tiers: Vec<String>,
}

impl<S: Store> Operator<'_, S> {
    /// Explains the decision about a request. Nothing is charged.
    pub async fn explain(self, request: &CheckRequest<'_>, now: Timestamp) -> Explanation {
        let now = now.decidable();
        let overrides = self.engine.overrides.at(now);
        let RelatedLimits { policy, fault, met, open } = self.related(request, &overrides, now).await;
        let block = self.engine.blocks.of(request, now);
        let mut explanation = Explanation {
            // A blocked request is denied before its cost is computed.
            fault: fault.filter(|_| block.is_none()),
            block,
            limits: Vec::new(),
            left_off: 0,
        };
        // Limits compare some values in a normalized form.
        match policy.compared(request.first(), &mut Replaced::new()) {
            None => explanation.go_through(&policy, [&met, &open], request.first(), &overrides),
            Some(request) => explanation.go_through(&policy, [&met, &open], &request, &overrides),
        }
        explanation
    }

    /// The limits that apply or may apply, with what remains of each.
    async fn related(
        self,
        request: &CheckRequest<'_>,
        overrides: &ActiveOverrides,
        now: Timestamp,
    ) -> RelatedLimits {
        for attempt in 0.. {
            let active = self.engine.active.load_full();
            let policy = Arc::clone(&active.policy);
            let (matches, fault, unpriced) = priced(&policy, request, overrides);
            let is_on = |limit: &Limit| overrides.mode_of(limit).0 != Mode::Off;
            let open = policy.open_matches(request.first(), &matches, is_on);
            let asked = AskedLimits { active: &active, request, overrides };
            let (met, failure) = self.inspect(&asked, matches, &unpriced, now).await;
            let (open, open_failure) =
                if open.is_empty() { (Vec::new(), None) } else { self.inspect(&asked, open, &[], now).await };
            let is_superseded = [failure, open_failure].contains(&Some(StoreFailure::Superseded));
            if attempt < ATTEMPTS && is_superseded {
                continue;
            }
            return RelatedLimits { policy, fault, met, open };
        }
        unreachable!("the last attempt concludes")
    }

    /// Looks at the counters of limits. Returns why the store did not answer, if it did not.
    async fn inspect(
        self,
        asked: &AskedLimits<'_, '_>,
        mut matches: Matches,
        unpriced: &[(u32, String)],
        now: Timestamp,
    ) -> (Vec<MetLimit>, Option<StoreFailure>) {
        let AskedLimits { active, request, overrides } = *asked;
        let looking = request.clone().looking();
        let mut looks = MatchedRequest::default();
        active.take_uncounted(request, &mut matches, overrides, &mut looks.uncounted);
        looks.matches = matches.iter().map(|matched| Match { cost: 0, ..*matched }).collect();
        let charges = active.charges(request, &looks.matches, overrides, PermitId(0));
        let set = ChargeSet { matched: looks, charges, permits_reported: 0 };
        let blocks = self.engine.blocks_of(active, &looking, &set, now).await;
        let answers = self.engine.store.charge(&set.charges, now).await;
        let failure = answers.as_ref().err().copied();
        let mut foreseen = self.foreseen(&set, &matches, now);
        if failure.is_some() && foreseen.iter().any(Option::is_none) {
            foreseen.clear(); // The store would be asked, and would not answer.
        }
        let answers = self.engine.answers_or_fallback(active, &set, answers, now).await;
        let mut decision = self.engine.conclude(active, &set, &answers, failure);
        let counters = self.counters_behind(&blocks, &set, &matches, now).await;
        for blocked in &blocks {
            let counter = counters.iter().find(|(limit, _)| *limit == blocked.limit);
            let rest = counter.map_or(blocked.rest, |(_, counter)| blocked.rest.max(*counter));
            decision.penalise(blocked.limit, rest);
        }
        let counted = decision.limits().filter(|status| status.quota.is_some());
        let mut foreseen = foreseen.into_iter().chain(std::iter::repeat(None));
        let mut met: Vec<MetLimit> = matches
            .into_iter()
            .zip(counted)
            .map(|(matched, LimitStatus { enforcement, source, outcome, .. })| {
                let unpriced = unpriced.iter().find(|(limit, _)| *limit == matched.limit);
                let unpriced = unpriced.map(|(_, reason)| reason.clone());
                let foreseen = foreseen.next().flatten().filter(|_| source != Source::Penalty);
                let blocked = blocks.iter().find(|blocked| blocked.limit == matched.limit);
                let refused_for = blocked.filter(|_| source == Source::Penalty).map(|blocked| blocked.rest);
                MetLimit { matched, enforcement, source, outcome, foreseen, unpriced, refused_for }
            })
            .collect();
        met.extend(set.matched.uncounted.iter().map(MetLimit::from));
        met.sort_by_key(|met| met.matched.limit);
        (met, failure)
    }

    /// The answer that this node would give without asking the store.
    fn foreseen(self, set: &ChargeSet<'_>, matches: &[Match], now: Timestamp) -> Foreseen {
        let priced = set.charges.iter().zip(matches);
        let charges: Charges<'_> = priced.map(|(charge, matched)| charge.costing(matched.cost)).collect();
        if charges.iter().any(|charge| charge.lease.is_some()) {
            self.engine.store.foreseen(&charges, now)
        } else {
            Foreseen::new()
        }
    }

    /// When the counters of blocked limits would admit the request. They are charged together with the block's counter,
    /// which cannot admit the charge. So every counter reports a time, and nothing is taken.
    async fn counters_behind(
        self,
        blocks: &PenaltyBlocks<'_>,
        set: &ChargeSet<'_>,
        matches: &[Match],
        now: Timestamp,
    ) -> SmallVec<[(u32, Ticks); 1]> {
        let Some(refusing) = blocks.first().map(Blocked::refusing) else { return SmallVec::new() };
        let priced = set.charges.iter().zip(matches);
        let priced = priced.map(|(charge, matched)| Charge { lease: None, ..charge.costing(matched.cost) });
        let charges: Charges<'_> = priced.chain([refusing]).collect();
        let Ok(answers) = self.engine.store.charge(&charges, now).await else { return SmallVec::new() };
        let when = matches.iter().zip(&answers);
        when.filter_map(|(matched, answer)| Some((matched.limit, answer.outcome.verdict.retry_after()?)))
            .collect()
    }
}

impl Explanation {
    /// Adds the limits that relate to a request: those that apply, and those that may with further attributes.
    fn go_through(
        &mut self,
        policy: &Policy,
        [met, open]: [&[MetLimit]; 2],
        request: &Descriptor<'_>,
        overrides: &ActiveOverrides,
    ) {
        for met in met {
            let limit = &policy.limits()[met.matched.limit as usize];
            self.limits.push(applied(limit, met, request, overrides));
        }
        let is_met = |number: u32| met.iter().any(|met| met.matched.limit == number);
        let others = || (0u32..).zip(policy.limits()).filter(|(number, _)| !is_met(*number));
        let near = others().filter(|(_, limit)| limit.mentions(request));
        let far = others().filter(|(_, limit)| !limit.mentions(request));
        for (number, limit) in near.chain(far) {
            if self.limits.len() >= LIMITS_EXPLAINED_MAX {
                self.left_off += 1;
                continue;
            }
            let mut explained = unapplied(limit, request, overrides);
            if let Some(open) = open.iter().find(|open| open.matched.limit == number) {
                let counter = applied(limit, open, request, overrides);
                explained
                    .changes
                    .extend(counter.changes.first().map(|what| format!("where it applies: {what}")));
                explained.counter = counter.state;
            }
            self.limits.push(explained);
        }
    }
}

/// The limits of one policy that relate to a request.
struct RelatedLimits {
    policy: Arc<Policy>,
    fault: Option<Fault>,
    /// Those that apply.
    met: Vec<MetLimit>,
    /// Those that may apply to a request with further attributes.
    open: Vec<MetLimit>,
}

/// A request, and what its limits are looked at under.
#[derive(Clone, Copy)]
struct AskedLimits<'a, 'r> {
    active: &'a ActivePolicy,
    request: &'a CheckRequest<'r>,
    overrides: &'a ActiveOverrides,
}

/// A limit that applies and its outcome, without the decision.
struct MetLimit {
    matched: Match,
    enforcement: Enforcement,
    source: Source,
    outcome: Outcome,
    /// The source that answers instead of the counter, if there is one.
    foreseen: Option<Source>,
    /// Why its cost cannot be computed.
    unpriced: Option<String>,
    /// For how long its block denies the key.
    refused_for: Option<Ticks>,
}

impl From<&Status> for MetLimit {
    /// A limit that needs no counter for the request.
    fn from(status: &Status) -> Self {
        let Status { limit, quota, descriptor, enforcement, source, outcome, .. } = *status;
        let matched = Match { limit, quota, cost: 0, descriptor, by: [0; BY_MAX] };
        Self { matched, enforcement, source, outcome, foreseen: None, unpriced: None, refused_for: None }
    }
}

/// The limits that a decision would charge, with their costs. When it would charge none because the request is at
/// fault, the limits that apply are listed anyway, and which of them cannot compute their costs.
fn priced(
    policy: &Policy,
    request: &CheckRequest<'_>,
    overrides: &ActiveOverrides,
) -> (Matches, Option<Fault>, Vec<(u32, String)>) {
    let mut matches = Matches::new();
    let fault = overrides.match_into(policy, request, &mut matches).err();
    let mut unpriced = Vec::new();
    if fault.is_none() {
        return (matches, fault, unpriced);
    }
    matches.clear();
    // A fault that a look finds was found before.
    let looking = request.clone().looking();
    let _ = overrides.match_into(policy, &looking, &mut matches);
    let mut digests = Replaced::new();
    let request = request.first();
    let request =
        policy.compared(request, &mut digests).unwrap_or_else(|| request.replaced(std::iter::empty()));
    matches.retain(|matched| {
        let limit = &policy.limits()[matched.limit as usize];
        match limit.cost_of(&request) {
            Ok(cost) => matched.cost = cost,
            Err(_) if !matched.quota.is_counted() => {}
            // A limit in shadow that cannot compute the cost does not count the request.
            Err(_) if overrides.matching_mode(limit).0 == Mode::Shadow => return false,
            Err(reason) => unpriced.push((matched.limit, reason)),
        }
        true
    });
    (matches, fault, unpriced)
}

fn applied(
    limit: &Limit,
    met: &MetLimit,
    request: &Descriptor<'_>,
    overrides: &ActiveOverrides,
) -> Explained {
    let MetLimit { matched, source, outcome, foreseen, unpriced, .. } = met;
    let (mode, percent) = overrides.mode_of(limit);
    let admits = match foreseen {
        _ if unpriced.is_some() => false,
        Some(source) => *source == Source::Lease,
        None if source.is_counted() => matched.cost <= outcome.remaining,
        None => outcome.is_allowed(),
    };
    let state = State {
        cost: matched.cost,
        admits,
        // A request at fault is denied, also where its key would only be counted.
        enforcement: if unpriced.is_some() { Enforcement::Enforced } else { met.enforcement },
        source: foreseen.unwrap_or(*source),
        outcome: *outcome,
        refused_for: met.refused_for,
        choice: limit.choice(request),
        allowance: limit.quota_phrase(matched.quota),
        open_tiers: open_tiers(limit, request),
    };
    let effective_override = overrides.of(limit);
    let mut changes = Vec::new();
    changes.push(match (unpriced, state.source) {
        (Some(reason), _) => format!("its cost cannot be computed, so nothing passes: {reason}"),
        (None, Source::Policy) => by_policy(&state),
        (None, Source::Penalty) => by_penalty(limit, &state),
        (None, Source::DenyCache) => {
            "this server has denied such a request a moment ago, and does not ask the counter again for up to a second"
                .to_owned()
        }
        (None, Source::Lease) => format!(
            "this server holds a lease with units left, so the request passes here; the shared counter has {} of {} left",
            grouped(outcome.remaining),
            grouped(outcome.limit)
        ),
        (None, source) if source.is_counted() => counted(limit.quota(matched.quota), &state),
        _ => uncounted(&state),
    });
    changes.extend(instead(&state));
    changes.extend(enforcement(state.enforcement, mode, percent, effective_override.is_some()));
    if !state.open_tiers.is_empty() {
        let names = state.open_tiers.join(" and ");
        changes.push(format!(
            "the request has no {names}: requests with one have counters of their own, by tier"
        ));
    }
    changes.extend(more(limit, matched.quota));
    Explained {
        name: limit.name().to_owned(),
        sentence: limit.sentence(),
        unmet: Vec::new(),
        effective_override,
        mode,
        percent,
        state: Some(state),
        counter: None,
        changes,
    }
}

fn counted(quota: Option<&Quota>, state: &State) -> String {
    let State { cost, outcome, .. } = state;
    let missing = cost.saturating_sub(outcome.remaining);
    let [cost, limit, remaining] = [*cost, outcome.limit, outcome.remaining].map(grouped);
    let (next, all) = (outcome.next_unit_after.readable(), outcome.reset_after.readable());
    if state.cost > outcome.limit {
        return format!("a cost of {cost} never passes: at most {limit} at once");
    } else if state.admits {
        return format!("it admits the request: {remaining} of {limit} are left");
    }
    match (quota, missing) {
        (Some(Quota::Concurrency(_)), 1) => {
            format!(
                "all {limit} are in flight: it admits the request when one of them ends, in {next} at the latest"
            )
        }
        (_, 1) => {
            let again = match outcome.limit {
                0..=1 => String::new(),
                _ => format!(", and has all {limit} again in {all}"),
            };
            format!("{remaining} of {limit} are left: it admits the request in {next}{again}")
        }
        _ => format!(
            "the request costs {cost}, and {remaining} of {limit} are left: the next one is back in {next}, all are in {all}"
        ),
    }
}

/// The lease, share or overflow counter that counts instead of the key's own counter, if there is one.
fn instead(state: &State) -> Option<String> {
    match state.source {
        Source::Overflow => Some(
            "memory is full, so this key shares a counter with other new keys, until some of those that are known are idle"
                .to_owned(),
        ),
        Source::Local => Some(format!(
            "counted by this node alone, because the store does not answer: its share of the quota is {}",
            state.outcome.limit
        )),
        _ => None,
    }
}

fn uncounted(state: &State) -> String {
    if state.source == Source::Full {
        return "memory is full, and there is no room for a counter, so the request is denied".to_owned();
    }
    let what = if state.admits { "passes" } else { "is denied" };
    format!("the store does not answer ({}), so the request {what} until it does", state.source.name())
}

fn by_penalty(limit: &Limit, state: &State) -> String {
    let passes_in = state.outcome.verdict.retry_after().unwrap_or_default();
    let rest = state.refused_for.unwrap_or(passes_in);
    let denials = limit.block_for().map_or(0, Penalty::after);
    let plural = if denials == 1 { "" } else { "s" };
    let counter = if passes_in > rest {
        format!(", and its counter admits it in {}", passes_in.readable())
    } else {
        String::new()
    };
    format!(
        "denied for another {} after {denials} denial{plural}{counter}; `tollgate reset` ends that",
        rest.readable()
    )
}

fn by_policy(state: &State) -> String {
    let what = if state.admits {
        "it admits every such request, and counts none"
    } else {
        "the policy denies it, and waiting does not help"
    };
    what.to_owned()
}

fn enforcement(enforcement: Enforcement, mode: Mode, percent: u8, is_overridden: bool) -> Option<String> {
    let whose = if is_overridden { "an operator has put it" } else { "it is" };
    match (enforcement, mode) {
        (Enforcement::Enforced, _) => None,
        (Enforcement::Shadow, Mode::Shadow) => {
            Some(format!("{whose} in shadow: it counts, and never denies"))
        }
        (Enforcement::Shadow, _) => {
            Some(format!("it decides for {percent} % of its keys, and only counts this one"))
        }
    }
}

/// The tier attributes that a request lacks, where tiers count apart and the key has no override.
fn open_tiers(limit: &Limit, request: &Descriptor<'_>) -> Vec<String> {
    if !counts_tiers_apart(limit) || matches!(limit.choice(request), Choice::Override { .. }) {
        return Vec::new();
    }
    let is_given = |name: &&String| request.attributes().iter().any(|given| given.name == name.as_str());
    limit.tier_by().iter().filter(|name| !is_given(name)).cloned().collect()
}

/// The tiers that would allow more.
fn more(limit: &Limit, quota: QuotaIndex) -> Option<String> {
    let (tier, index) = limit.larger_tiers(quota).into_iter().next()?;
    Some(format!("with {} it may {}", pairs(&limit.by_tier(tier)), limit.allowance(index)))
}

fn unapplied(limit: &Limit, request: &Descriptor<'_>, overrides: &ActiveOverrides) -> Explained {
    let (mode, percent) = overrides.mode_of(limit);
    let (unmet, effective_override) = (limit.unmet(request), overrides.of(limit));
    let mut changes: Vec<String> = unmet.iter().map(ToString::to_string).collect();
    if unmet.is_empty() && mode == Mode::Shadow {
        changes.push(uncounted_in_shadow(limit, request));
    }
    if let Some(ExpiringOverride { kind: LimitOverride::Off, .. }) = effective_override {
        changes.push(
            "an operator has turned it off; it decides again when that ends, or after `tollgate restore`"
                .to_owned(),
        );
    }
    if changes.is_empty() && mode == Mode::Enforce {
        changes.push(format!(
            "it applies, but {MATCHED_MAX} limits do already, which is as many as one request may meet"
        ));
    }
    Explained {
        name: limit.name().to_owned(),
        sentence: limit.sentence(),
        unmet,
        effective_override,
        mode,
        percent,
        state: None,
        counter: None,
        changes,
    }
}

/// Why a limit in shadow does not count a request although all of its conditions hold.
fn uncounted_in_shadow(limit: &Limit, request: &Descriptor<'_>) -> String {
    match limit.cost_of(request) {
        Err(reason) => format!("it is in shadow, and its cost cannot be computed: {reason}"),
        Ok(_) => format!("{MATCHED_MAX} limits apply already, and one in shadow is left out then"),
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unmet::Off => f.write_str("it is off in the policy"),
            Unmet::Missing { attribute } => write!(f, "the request has no {attribute}"),
            Unmet::Differs { attribute, given, accepted } => {
                write!(f, "{attribute} is {given:?}, and it applies to {}", accepted.join(", "))?;
                let has = |wanted: &str| accepted.iter().any(|method| method == wanted);
                if attribute == "method" && has(GET) && !has(HEAD) {
                    f.write_str(" and HEAD")?;
                }
                f.write_str(" only")
            }
            Unmet::Excluded { attribute, given, excluded } => {
                write!(f, "{attribute} is {given:?}, and it applies to all but {}", excluded.join(", "))
            }
            Unmet::Extra { attributes } => write!(f, "the request also has {}", attributes.join(" and ")),
            Unmet::False { expression } => write!(f, "{expression} is not true"),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Only => f.write_str("its only quota"),
            Choice::Override { attribute, value } => write!(f, "the override of {attribute} {value:?}"),
            Choice::Tier { by } => write!(f, "the tier {}", pairs(by)),
            Choice::Otherwise { attributes } => {
                write!(f, "the quota for any other {}", attributes.join(" and "))
            }
        }
    }
}

/// Attributes with their values.
fn pairs(by: &[(String, String)]) -> String {
    by.iter().map(|(attribute, value)| format!("{attribute}={value}")).collect::<Vec<_>>().join(" and ")
}
