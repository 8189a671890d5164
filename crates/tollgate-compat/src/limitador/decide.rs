//! Decides by Limitador's rules: every limit that a request matches must have room for it, and a refused request adds
//! nothing. Adding and checking are one step here: the request is added to all counters, and taken back if one limit
//! has no room. So concurrent requests may refuse each other, but never pass together.

use std::cmp::Reverse;

use tollgate::engine::Counted;
use tollgate::rate::EXACT_MAX;
use tollgate::store::Store;
use tollgate::{Source, Ticks, Timestamp};

use super::matching::{MatchedLimit, parts};
use super::{CounterLedger, LimitadorConfig, LimitadorLimit};
use crate::counters::Counters;
use crate::rls::{Answer, Code, CurrentLimit, Descriptor, RlsRequest, Status, Unit};
use crate::rule::{Answered, Options, Rule};

/// The operation on the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Only check whether there is room.
    Check,
    /// Add, whether there is room or not.
    Report,
    /// Add if there is room.
    CheckAndReport,
}

/// The question.
pub struct Asked<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// Names and values, in sets.
    pub descriptors: Vec<&'a [(String, String)]>,
    /// The cost.
    pub delta: u64,
    /// The operation on the counters.
    pub action: Action,
}

/// The state of one counter.
pub struct Load<'c> {
    /// Its limit.
    pub limit: &'c LimitadorLimit,
    /// Requests that are left.
    pub remaining: u64,
    /// Whether it has no room for the request.
    pub is_over: bool,
    /// Until its window ends; the whole length if none has begun.
    pub resets_after: Ticks,
    /// Where its count comes from.
    pub source: Source,
}

/// The result of all limits together.
pub struct LimitadorDecision<'c> {
    /// Whether a limit refuses the request.
    pub is_limited: bool,
    /// The tightest first.
    pub loads: Vec<Load<'c>>,
}

impl<'c> LimitadorDecision<'c> {
    /// The result of each limit, for the metrics.
    pub fn rules(&self, options: &Options) -> Vec<Rule<'c>> {
        let rule = |load: &Load<'c>| Rule {
            name: &load.limit.metric,
            detail: None,
            is_denied: load.is_over,
            is_shadow: options.is_shadow,
            is_near: !load.is_over && load.remaining < load.limit.max_value.div_ceil(5),
            source: load.source,
        };
        self.loads.iter().map(rule).collect()
    }
}

/// Decides, and counts.
pub(crate) async fn decide<'c, S: Store>(
    config: &'c LimitadorConfig,
    asked: &Asked<'_>,
    counters: &Counters<'_, S>,
    ledger: &CounterLedger,
    now: Timestamp,
) -> LimitadorDecision<'c> {
    let met = config.met(asked.namespace, asked.descriptors.iter().copied());
    let is_hopeless = met.iter().any(|met| asked.delta > met.limit.max_value);
    let adds = match asked.action {
        Action::Check => 0,
        Action::CheckAndReport if is_hopeless => 0,
        Action::Report | Action::CheckAndReport => asked.delta,
    };
    let counted = met.iter().map(|met| count(met, asked.action, adds, counters, now)).collect();
    let mut totals = Vec::with_capacity(met.len());
    let mut is_limited = false;
    for (met, counted) in met.iter().zip(counters.together(counted).await) {
        // If the count failed, nothing was added; taking it back would add room that does not exist.
        let added = if counted.total == u64::MAX { 0 } else { adds };
        let wanted = counted.total.saturating_add(asked.delta - adds);
        let is_over = asked.action != Action::Report && wanted > met.limit.max_value;
        is_limited |= is_over;
        totals.push((Counted { total: counted.total.saturating_sub(added), ..counted }, added, is_over));
    }
    let gives_back = is_limited && asked.action == Action::CheckAndReport;
    if gives_back {
        let added = met.iter().zip(&totals).filter(|(_, (_, added, _))| *added > 0);
        let given =
            added.map(|(met, (before, added, _))| take_back(met, *added, before, counters, now)).collect();
        counters.together(given).await;
    }
    let mut loads = Vec::with_capacity(met.len());
    for (met, (before, added, is_over)) in met.iter().zip(totals) {
        let kept = if gives_back { 0 } else { added };
        if kept > 0 && before.total == 0 {
            ledger.begin(met, now);
        }
        let load = Load::new(met, before, kept);
        loads.push(if is_over { load.over() } else { load });
    }
    // Of equal ones the longest comes first, so that a client that follows the advice waits long enough.
    loads.sort_by_key(|load| (!load.is_over, load.remaining, Reverse(load.resets_after)));
    LimitadorDecision { is_limited, loads }
}

/// Adds to the counter of one limit.
async fn count<S: Store>(
    met: &MatchedLimit<'_>,
    action: Action,
    adds: u64,
    counters: &Counters<'_, S>,
    now: Timestamp,
) -> Counted {
    let (seconds, parts) = (met.limit.seconds, parts(met.limit, &met.values));
    match action {
        // Usage that has already happened is counted up to the maximum of a counter, so that the next check is refused.
        Action::Report => counters.fill_from_first(seconds, &parts, adds, now).await,
        Action::Check | Action::CheckAndReport => counters.add_from_first(seconds, &parts, adds, now).await,
    }
}

/// Takes back from the counter of one limit what this request added to it, from the window in which it was counted,
/// which may have ended.
async fn take_back<S: Store>(
    met: &MatchedLimit<'_>,
    units: u64,
    counted: &Counted,
    counters: &Counters<'_, S>,
    now: Timestamp,
) {
    let parts = parts(met.limit, &met.values);
    counters.take_back_from_first(met.limit.seconds, &parts, units, counted, now).await;
}

/// Subtracts from the counter of one limit what an earlier request added to it. The request does not name the window.
/// As for all files of other programs, it is taken to be the current one.
async fn subtract<S: Store>(met: &MatchedLimit<'_>, units: u64, counters: &Counters<'_, S>, now: Timestamp) {
    let parts = parts(met.limit, &met.values);
    counters.subtract_from_first(met.limit.seconds, &parts, units, Ticks::ZERO, now).await;
}

impl<'c> Load<'c> {
    /// The state of a counter with this count before, to which so much was added.
    fn new(met: &MatchedLimit<'c>, before: Counted, kept: u64) -> Self {
        let Counted { ends_after, source, .. } = before;
        let (limit, total) = (met.limit, before.total.saturating_add(kept));
        let remaining = limit.max_value.saturating_sub(total);
        let resets_after = if ends_after.is_zero() { Ticks::from_secs(limit.seconds) } else { ends_after };
        Self { limit, remaining, is_over: false, resets_after, source }
    }

    /// The same counter without room for the request.
    fn over(self) -> Self {
        Self { is_over: true, remaining: 0, ..self }
    }
}

/// Answers Envoy's question. The first status contains the tightest limit; the others contain none, because Limitador's
/// limits apply to the request as a whole.
pub(crate) async fn answer<'c, S: Store>(
    config: &'c LimitadorConfig,
    rls_request: &RlsRequest,
    counters: &Counters<'_, S>,
    ledger: &CounterLedger,
    options: &Options,
    now: Timestamp,
) -> Answered<'c> {
    let gives_back = rls_request.descriptors.iter().all(|descriptor| descriptor.is_negative_hits);
    let mut asked = Asked {
        namespace: &rls_request.domain,
        descriptors: rls_request.descriptors.iter().map(|descriptor| descriptor.entries.as_slice()).collect(),
        delta: if gives_back { refund(rls_request) } else { cost(rls_request) },
        action: Action::CheckAndReport,
    };
    if gives_back {
        give_back(config, &asked, counters, now).await;
        // This is no request to pass; it only reads the current counts.
        (asked.delta, asked.action) = (0, Action::Report);
    }
    let decision = decide(config, &asked, counters, ledger, now).await;
    let mut statuses = vec![Status::of_no_limit(Code::Ok); rls_request.descriptors.len()];
    if let (Some(first), Some(tightest)) = (statuses.first_mut(), decision.loads.first()) {
        *first = status(tightest);
    }
    let overall = if decision.is_limited && !options.is_shadow { Code::OverLimit } else { Code::Ok };
    let headers = if options.has_headers { headers(&decision.loads) } else { Vec::new() };
    let rules = if gives_back { Vec::new() } else { decision.rules(options) };
    // The original does not report requests without a rule, so only the metrics do.
    let answer =
        Answer { overall, statuses, headers, refusal: None, meets_no_limit: false, is_faulty: false };
    Answered { answer, rules }
}

/// Subtracts what the request gives back from every counter that it matches.
async fn give_back<S: Store>(
    config: &LimitadorConfig,
    asked: &Asked<'_>,
    counters: &Counters<'_, S>,
    now: Timestamp,
) {
    let met = config.met(asked.namespace, asked.descriptors.iter().copied());
    let given = met.iter().map(|met| subtract(met, asked.delta, counters, now)).collect();
    counters.together(given).await;
}

/// The cost of a request: the maximum over its descriptors, or else the number of the request. Limits apply to the
/// request as a whole, so a descriptor has no cost of its own, and one that gives back beside others that pay changes
/// nothing.
fn cost(rls_request: &RlsRequest) -> u64 {
    let paying = rls_request.descriptors.iter().filter(|descriptor| !descriptor.is_negative_hits);
    largest(rls_request, paying)
}

/// The units that a request gives back, found as its cost is.
fn refund(rls_request: &RlsRequest) -> u64 {
    largest(rls_request, rls_request.descriptors.iter()).min(EXACT_MAX)
}

fn largest<'q>(rls_request: &RlsRequest, descriptors: impl Iterator<Item = &'q Descriptor>) -> u64 {
    let given = descriptors.filter_map(|descriptor| descriptor.hits_addend).max();
    given.unwrap_or(u64::from(rls_request.hits_addend.max(1)))
}

fn status(load: &Load<'_>) -> Status {
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let current_limit = CurrentLimit {
        name: load.limit.name.clone().unwrap_or_default(),
        requests_per_unit: narrow(load.limit.max_value),
        unit: Unit::lasting(Ticks::from_secs(load.limit.seconds)),
    };
    Status {
        code: if load.is_over { Code::OverLimit } else { Code::Ok },
        current_limit: Some(current_limit),
        limit_remaining: narrow(load.remaining),
        until_reset: Some(load.resets_after),
        source: load.source,
    }
}

/// The headers of the third draft, the tightest limit first.
pub fn headers(loads: &[Load<'_>]) -> Vec<(String, String)> {
    let Some(tightest) = loads.first() else { return Vec::new() };
    let mut all = tightest.limit.max_value.to_string();
    for load in loads {
        all.push_str(&format!(", {};w={}", load.limit.max_value, load.limit.seconds));
        if let Some(name) = &load.limit.name {
            // Characters that a header cannot carry, or that would end the text, are left out.
            let name: String =
                name.chars().filter(|c| (' '..='~').contains(c) && !"\"\\".contains(*c)).collect();
            all.push_str(&format!(";name=\"{name}\""));
        }
    }
    let header = |name: &str, value: String| (name.to_owned(), value);
    vec![
        header("X-RateLimit-Limit", all),
        header("X-RateLimit-Remaining", tightest.remaining.to_string()),
        header("X-RateLimit-Reset", tightest.resets_after.ceil_seconds().to_string()),
    ]
}
