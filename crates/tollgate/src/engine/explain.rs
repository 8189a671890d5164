//! Why a request is answered as it is: every limit of the policy, whether it applies and why not, what is left of it, and what would
//! change that. Nothing is charged. It asks the same questions as a decision does, so the two cannot differ.

use std::fmt;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::block::Block;
use super::ruling::{InForce, Ruled, Ruling};
use super::{ATTEMPTS, Engine, Question};
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Fault, LimitStatus, Source, Stance, Status};
use crate::outcome::Outcome;
use crate::policy::compared::Replaced;
use crate::policy::{Choice, Limit, MATCHED_MAX, Match, Matches, Mode, Penalty, Policy, QuotaIndex, Unmet};
use crate::request::CheckRequest;
use crate::store::{Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

/// Most limits that one explanation lists; the others do not apply, and are counted.
pub const LIMITS_EXPLAINED_MAX: usize = 200;

/// Why a request is answered as it is.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The operator's block that denies it before any limit is asked.
    pub block: Option<Arc<Block>>,
    /// What is wrong with the request itself, if anything is.
    pub fault: Option<Fault>,
    /// Every limit of the policy: those that apply, then those that mention an attribute of the request and do not apply, then the
    /// others, each in the policy's order.
    pub limits: Vec<Explained>,
    /// How many more do not apply.
    pub left_off: usize,
}

impl Explanation {
    /// Whether the request would pass now.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        let refuses = |limit: &Explained| {
            limit.state.as_ref().is_some_and(|state| state.stance == Stance::Enforced && !state.admits)
        };
        self.block.is_none() && self.fault.is_none() && !self.limits.iter().any(refuses)
    }

    /// Whether the request would pass because no limit applies to it.
    #[must_use]
    pub fn meets_no_limit(&self) -> bool {
        self.is_allowed() && !self.limits.iter().any(|limit| limit.state.is_some())
    }
}

/// What one limit has to do with a request.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Its name.
    pub name: String,
    /// What it means.
    pub sentence: String,
    /// Why it does not apply, by the policy; none if it does.
    pub unmet: Vec<Unmet>,
    /// What an operator ruled about it.
    pub ruled: Option<Ruled>,
    /// Whether it decides now, and for which share of keys, rulings included.
    pub mode: Mode,
    /// See [`Explained::mode`].
    pub percent: u8,
    /// What is left of it; none where it does not apply.
    pub state: Option<State>,
    /// What would change its answer, in sentences.
    pub changes: Vec<String>,
}

/// What is left of a limit for a request's key.
#[derive(Clone, Debug)]
pub struct State {
    /// What the request would cost.
    pub cost: u64,
    /// Whether so much is left.
    pub admits: bool,
    /// Whether it would take part in the verdict.
    pub stance: Stance,
    /// Where the numbers come from.
    pub source: Source,
    /// The numbers.
    pub outcome: Outcome,
    /// How its quota was chosen.
    pub choice: Choice,
    /// What that quota allows, in words.
    pub allowance: String,
}

impl<S: Store> Engine<S> {
    /// Why a request is answered as it is. Nothing is charged.
    pub async fn explain(&self, request: &CheckRequest<'_>, now: Timestamp) -> Explanation {
        let now = now.decidable();
        let rulings = self.bench.at(now);
        let (policy, fault, met) = self.met(request, &rulings, now).await;
        let block = self.blocks.of(slice::from_ref(request), now);
        let mut explanation = Explanation {
            // A blocked request is denied before its cost is looked at.
            fault: fault.filter(|_| block.is_none()),
            block,
            limits: Vec::new(),
            left_off: 0,
        };
        // Limits compare some values in a form of their own.
        match policy.compared(request, &mut Replaced::new()) {
            None => explanation.go_through(&policy, &met, request, &rulings),
            Some(request) => explanation.go_through(&policy, &met, &request, &rulings),
        }
        explanation
    }

    /// The limits that apply, with what is left of each, by one policy.
    async fn met(
        &self,
        request: &CheckRequest<'_>,
        rulings: &InForce,
        now: Timestamp,
    ) -> (Arc<Policy>, Option<Fault>, Vec<(Match, LimitStatusOwned)>) {
        let views = slice::from_ref(request);
        let looking = request.clone().looking();
        for attempt in 0.. {
            let live = self.live.load_full();
            let policy = Arc::clone(&live.policy);
            // The limits that a decision would charge. Where it would charge none because of a fault, those that apply are shown.
            let mut matches = Matches::new();
            let fault = rulings.match_into(&policy, views, &mut matches).err();
            if fault.is_some() {
                matches.clear();
                // Whatever is wrong with a request that only looks was wrong before.
                let _ = rulings.match_into(&policy, slice::from_ref(&looking), &mut matches);
            }
            let mut question = Question::of(rulings.clone());
            live.take_uncounted(views, &mut matches, rulings, &mut question.uncounted);
            question.matches = matches.iter().map(|matched| Match { cost: 0, ..matched.clone() }).collect();
            let charges = question.matches.iter();
            question.charges.extend(charges.map(|matched| live.charge(views, matched, rulings, PermitId(0))));
            let blocks = self.blocks_of(&live, slice::from_ref(&looking), &question, now).await;
            let answers = self.store.charge(&question.charges, now).await;
            if attempt < ATTEMPTS && answers == Err(StoreFailure::Superseded) {
                continue;
            }
            let failure = answers.as_ref().err().copied();
            let answers = self.answers(&live, &question, answers, now).await;
            let mut decision = self.conclude(&live, &question, &answers, failure);
            blocks.iter().for_each(|blocked| decision.penalise(blocked.limit, blocked.rest));
            let counted = decision.limits().filter(|status| status.quota.is_some());
            let statuses = counted.map(LimitStatusOwned::from);
            let mut met: Vec<_> = matches.into_iter().zip(statuses).collect();
            met.extend(question.uncounted.iter().map(uncounted_match));
            met.sort_by_key(|(matched, _)| matched.limit);
            return (policy, fault, met);
        }
        unreachable!("the last attempt concludes")
    }
}

impl Explanation {
    /// Adds the limits that have to do with a request.
    fn go_through(
        &mut self,
        policy: &Policy,
        met: &[(Match, LimitStatusOwned)],
        request: &CheckRequest<'_>,
        rulings: &InForce,
    ) {
        for (matched, status) in met {
            let limit = &policy.limits()[matched.limit as usize];
            self.limits.push(applied(limit, matched, status, request, rulings));
        }
        let is_met = |number: u32| met.iter().any(|(matched, _)| matched.limit == number);
        let others =
            || (0u32..).zip(policy.limits()).filter(|(number, _)| !is_met(*number)).map(|(_, limit)| limit);
        let near = others().filter(|limit| limit.mentions(request));
        let far = others().filter(|limit| !limit.mentions(request));
        for limit in near.chain(far) {
            if self.limits.len() >= LIMITS_EXPLAINED_MAX {
                self.left_off += 1;
                continue;
            }
            self.limits.push(unapplied(limit, request, rulings));
        }
    }
}

/// What a limit said, apart from the decision.
struct LimitStatusOwned {
    stance: Stance,
    source: Source,
    outcome: Outcome,
}

impl From<LimitStatus<'_>> for LimitStatusOwned {
    fn from(status: LimitStatus<'_>) -> Self {
        Self { stance: status.stance, source: status.source, outcome: status.outcome }
    }
}

/// A limit that needs no counter for the request.
fn uncounted_match(status: &Status) -> (Match, LimitStatusOwned) {
    let Status { limit, quota, view, stance, source, outcome, .. } = *status;
    let matched = Match { limit, quota, cost: 0, view, by: SmallVec::new() };
    (matched, LimitStatusOwned { stance, source, outcome })
}

fn applied(
    limit: &Limit,
    matched: &Match,
    status: &LimitStatusOwned,
    request: &CheckRequest<'_>,
    rulings: &InForce,
) -> Explained {
    let (mode, percent) = rulings.footing(limit);
    let is_counted = status.source.is_counted();
    let admits =
        if is_counted { matched.cost <= status.outcome.remaining } else { status.outcome.is_allowed() };
    let state = State {
        cost: matched.cost,
        admits,
        stance: status.stance,
        source: status.source,
        outcome: status.outcome,
        choice: limit.choice(request),
        allowance: limit.allowance(matched.quota),
    };
    let ruled = rulings.about(limit);
    let mut changes = Vec::new();
    changes.push(match status.source {
        Source::Policy => by_policy(&state),
        Source::Penalty => by_penalty(limit, &state),
        _ if is_counted => counted(&state),
        _ => uncounted(&state),
    });
    changes.extend(stance(state.stance, mode, percent, ruled.is_some()));
    changes.extend(more(limit, matched.quota));
    Explained {
        name: limit.name().to_owned(),
        sentence: limit.sentence(),
        unmet: Vec::new(),
        ruled,
        mode,
        percent,
        state: Some(state),
        changes,
    }
}

fn counted(state: &State) -> String {
    let State { cost, outcome, .. } = state;
    let Outcome { limit, remaining, next_unit_after, reset_after, .. } = outcome;
    if *cost > *limit {
        format!("a cost of {cost} never passes: at most {limit} at once")
    } else if !state.admits {
        let lacking = cost.saturating_sub(*remaining);
        format!(
            "{lacking} more must return: the first unit does in {}, and all of them have in {}",
            Seconds(*next_unit_after),
            Seconds(*reset_after)
        )
    } else {
        format!("nothing holds the request back here: {remaining} of {limit} are left")
    }
}

fn uncounted(state: &State) -> String {
    let what = if state.admits { "passes" } else { "is refused" };
    format!("nobody can count ({}), so it {what}; its store must answer again", state.source.name())
}

fn by_penalty(limit: &Limit, state: &State) -> String {
    let rest = state.outcome.verdict.retry_after().unwrap_or_default();
    let denials = limit.block_for().map_or(0, Penalty::after);
    format!(
        "refused for another {} after {denials} denials; a reset of the key takes that back",
        Seconds(rest)
    )
}

fn by_policy(state: &State) -> String {
    let what = if state.admits {
        "nothing holds the request back here: it is unlimited, and not counted"
    } else {
        "the policy denies it, and waiting does not help"
    };
    what.to_owned()
}

fn stance(stance: Stance, mode: Mode, percent: u8, ruled: bool) -> Option<String> {
    let whose = if ruled { "an operator has put it" } else { "it is" };
    match (stance, mode) {
        (Stance::Enforced, _) => None,
        (Stance::Shadow, Mode::Shadow) => Some(format!("{whose} in shadow: it counts, and never refuses")),
        (Stance::Shadow, _) => {
            Some(format!("it decides for {percent} % of its keys, and only counts this one"))
        }
    }
}

/// The tiers that would allow more.
fn more(limit: &Limit, quota: QuotaIndex) -> Option<String> {
    let (tier, index) = limit.larger_tiers(quota).into_iter().next()?;
    Some(format!("with {} it may {}", pairs(&limit.by_tier(tier)), limit.allowance(index)))
}

fn unapplied(limit: &Limit, request: &CheckRequest<'_>, rulings: &InForce) -> Explained {
    let (mode, percent) = rulings.footing(limit);
    let (unmet, ruled) = (limit.unmet(request), rulings.about(limit));
    let mut changes: Vec<String> = unmet.iter().map(ToString::to_string).collect();
    if unmet.is_empty() && mode == Mode::Shadow {
        changes.push(uncounted_in_shadow(limit, request));
    }
    if let Some(Ruled { ruling: Ruling::Off, .. }) = ruled {
        changes.push(
            "an operator has turned it off; it decides again when that ends or is taken back".to_owned(),
        );
    }
    Explained {
        name: limit.name().to_owned(),
        sentence: limit.sentence(),
        unmet,
        ruled,
        mode,
        percent,
        state: None,
        changes,
    }
}

/// Why a limit in shadow, all of whose conditions hold, does not count a request.
fn uncounted_in_shadow(limit: &Limit, request: &CheckRequest<'_>) -> String {
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
                write!(f, "{attribute} is {given:?}, and it applies to {} only", accepted.join(", "))
            }
            Unmet::Excluded { attribute, given, excluded } => {
                write!(f, "{attribute} is {given:?}, and it applies to all but {}", excluded.join(", "))
            }
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

/// A time in seconds, to the millisecond, rounded up as in all advice.
struct Seconds(Ticks);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.ceil_millis();
        write!(f, "{}.{:03} s", millis / 1_000, millis % 1_000)
    }
}
