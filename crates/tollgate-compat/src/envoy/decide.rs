//! Decides by the original's rules: every descriptor is charged, whatever the results of the others; a refused request
//! stays charged; a read at exactly the limit passes.

use tollgate::engine::Counted;
use tollgate::store::Store;
use tollgate::{Source, Ticks, Timestamp};

use super::tree::{Domain, EnvoyConfig, MatchedNode, RateAllowance};
use crate::counters::Counters;
use crate::rls::{Answer, Code, CurrentLimit, Descriptor, RlsRequest, Status, Unit};
use crate::rule::{Answered, Options, REQUEST_LIMIT, Rule};

/// Maximum that one descriptor adds to a counter: more than any limit allows, and small enough that a counter does not
/// soon overflow.
const ADDEND_MAX: u64 = 1 << 33;

/// The rule for one descriptor.
enum DescriptorRule<'c> {
    /// No rule, or one that another rule of this request replaces.
    None,
    /// A rule that allows everything.
    Unlimited { called: Called<'c> },
    /// A number of requests per unit.
    Counted {
        current: CurrentLimit,
        unit: Unit,
        is_shadow: bool,
        is_quota: bool,
        patterns: Vec<Option<&'c str>>,
        called: Called<'c>,
    },
}

/// The name of a rule in the metrics, and one with values of the request where the rule asks for that.
type Called<'c> = (&'c str, Option<String>);

/// Answers a question.
pub(crate) async fn answer<'c, S: Store>(
    config: &'c EnvoyConfig,
    rls_request: &RlsRequest,
    counters: &Counters<'_, S>,
    options: &Options,
    now: Timestamp,
) -> Answered<'c> {
    let descriptor_rules = descriptor_rules(config.domain(&rls_request.domain), rls_request, options);
    let mut statuses = Vec::with_capacity(descriptor_rules.len());
    let mut outcomes = Vec::with_capacity(descriptor_rules.len());
    let asked = rls_request.descriptors.iter().zip(&descriptor_rules);
    let asked = asked
        .map(|(descriptor, descriptor_rule)| status(rls_request, descriptor, descriptor_rule, counters, now));
    for (status, is_over) in counters.together(asked.collect()).await {
        outcomes.push((status.limit_remaining, is_over, status.source));
        statuses.push(status);
    }
    let is_quota = |descriptor_rule: &DescriptorRule<'_>| matches!(descriptor_rule, DescriptorRule::Counted { is_quota, .. } if *is_quota || options.is_quota);
    let quotas: Vec<bool> = descriptor_rules.iter().map(is_quota).collect();
    let overall = overall(&statuses, &quotas);
    let headers = if options.has_headers { headers(&statuses, &quotas) } else { Vec::new() };
    let overall = if options.is_shadow { Code::Ok } else { overall };
    let asked = rls_request.descriptors.iter().map(|descriptor| !descriptor.is_negative_hits);
    let counted = descriptor_rules.into_iter().zip(outcomes).zip(asked);
    let rules = counted.filter(|(_, asked)| *asked);
    let rules =
        rules.filter_map(|((descriptor_rule, outcome), _)| rule(descriptor_rule, outcome, options)).collect();
    // The original does not report requests without a rule, so only the metrics do.
    let answer =
        Answer { overall, statuses, headers, refusal: None, meets_no_limit: false, is_faulty: false };
    Answered { answer, rules }
}

/// The result of a rule, for the metrics: the rest, and whether the request is over it.
fn rule<'c>(
    descriptor_rule: DescriptorRule<'c>,
    (left, is_over, source): (u32, bool, Source),
    options: &Options,
) -> Option<Rule<'c>> {
    let ((name, detail), is_shadow, limit) = match descriptor_rule {
        DescriptorRule::None => return None,
        DescriptorRule::Unlimited { called } => (called, false, 0),
        DescriptorRule::Counted { called, is_shadow, current, .. } => {
            (called, is_shadow, current.requests_per_unit)
        }
    };
    let is_near = !is_over && left < limit.div_ceil(5);
    let is_shadow = is_shadow || options.is_shadow;
    Some(Rule { name, detail, is_denied: is_over, is_shadow, is_near, source })
}

/// The rule of each descriptor, without the rules that others replace.
fn descriptor_rules<'c>(
    domain: Option<&'c Domain>,
    rls_request: &RlsRequest,
    options: &Options,
) -> Vec<DescriptorRule<'c>> {
    let Some(domain) = domain else {
        return rls_request.descriptors.iter().map(|_| DescriptorRule::None).collect();
    };
    let met: Vec<_> = rls_request
        .descriptors
        .iter()
        .map(|descriptor| if descriptor.limit.is_some() { None } else { domain.met(&descriptor.entries) })
        .collect();
    let replaced: Vec<&str> =
        met.iter().flatten().flat_map(|met| met.limit.replaces.iter().map(String::as_str)).collect();
    let mut descriptor_rules = Vec::with_capacity(met.len());
    for (descriptor, met) in rls_request.descriptors.iter().zip(met) {
        descriptor_rules.push(match (descriptor.limit, met) {
            (Some(brought), _) => DescriptorRule::Counted {
                current: CurrentLimit {
                    name: String::new(),
                    requests_per_unit: brought.requests_per_unit.min(options.override_max),
                    unit: Some(brought.unit),
                },
                unit: brought.unit,
                is_shadow: false,
                is_quota: false,
                patterns: Vec::new(),
                called: (REQUEST_LIMIT, None),
            },
            (None, Some(met)) if !replaced.contains(&met.limit.name.as_str()) => rule_of_node(met),
            _ => DescriptorRule::None,
        });
    }
    descriptor_rules
}

fn rule_of_node(MatchedNode { limit, patterns, detail }: MatchedNode<'_>) -> DescriptorRule<'_> {
    let called = (limit.metric.as_str(), detail);
    match limit.allowance {
        RateAllowance::Unlimited => DescriptorRule::Unlimited { called },
        RateAllowance::PerUnit(requests_per_unit, unit) => DescriptorRule::Counted {
            current: CurrentLimit { name: limit.name.clone(), requests_per_unit, unit: Some(unit) },
            unit,
            is_shadow: limit.is_shadow,
            is_quota: limit.is_quota,
            patterns,
            called,
        },
    }
}

/// Charges one descriptor. Returns the status of its rule, and whether it is over its limit, which the status of a rule
/// in shadow mode does not show.
async fn status<S: Store>(
    rls_request: &RlsRequest,
    descriptor: &Descriptor,
    descriptor_rule: &DescriptorRule<'_>,
    counters: &Counters<'_, S>,
    now: Timestamp,
) -> (Status, bool) {
    let (current, unit, is_shadow, patterns) = match descriptor_rule {
        DescriptorRule::None => return (Status::of_no_limit(Code::Ok), false),
        DescriptorRule::Unlimited { .. } => {
            return (Status { limit_remaining: u32::MAX, ..Status::of_no_limit(Code::Ok) }, false);
        }
        DescriptorRule::Counted { current, unit, is_shadow, patterns, .. } => {
            (current, *unit, *is_shadow, patterns)
        }
    };
    let mut parts: Vec<&[u8]> = vec![rls_request.domain.as_bytes()];
    for (index, (key, value)) in descriptor.entries.iter().enumerate() {
        let counted_as = patterns.get(index).copied().flatten().unwrap_or(value);
        parts.extend([key.as_bytes(), counted_as.as_bytes()]);
    }
    let addend = descriptor.hits(rls_request).min(ADDEND_MAX);
    let limit = u64::from(current.requests_per_unit);
    let counted = if descriptor.is_negative_hits {
        // The original subtracts from the window in which the request arrives, whenever the hits were counted.
        counters.subtract(unit, &parts, addend, Ticks::ZERO, now).await
    } else {
        counters.add(unit, &parts, addend, now).await
    };
    let Counted { total: after, source, .. } = counted;
    let is_over = after > limit && !descriptor.is_negative_hits;
    // The limit may have room for a request that only this node's share refuses, so this charge is not reported to the
    // store.
    if is_over && source == Source::Local && after < u64::MAX {
        counters.take_back(unit, &parts, addend, &counted, now).await;
    }
    let status = Status {
        code: if is_over && !is_shadow { Code::OverLimit } else { Code::Ok },
        limit_remaining: u32::try_from(limit.saturating_sub(after)).unwrap_or(u32::MAX),
        current_limit: Some(current.clone()),
        until_reset: Some(until_reset(unit, now.on_wall(counters.engine.maintenance().wall()))),
        source,
    };
    (status, is_over)
}

/// Whole seconds from a time of the wall clock to the end of the window, at least one.
fn until_reset(unit: Unit, wall: Timestamp) -> Ticks {
    let seconds = unit.seconds();
    let into = wall.unix_micros() / 1_000_000 % seconds;
    Ticks::from_secs(seconds - into)
}

/// Over when a rule that is no quota is over, or when all quotas are.
fn overall(statuses: &[Status], quotas: &[bool]) -> Code {
    let is_over = |status: &Status| status.code == Code::OverLimit;
    let pairs = || statuses.iter().zip(quotas);
    let is_refused = pairs().any(|(status, is_quota)| !is_quota && is_over(status));
    let mut of_quotas = pairs().filter(|(_, is_quota)| **is_quota).peekable();
    let are_used_up = of_quotas.peek().is_some() && of_quotas.all(|(status, _)| is_over(status));
    if is_refused || are_used_up { Code::OverLimit } else { Code::Ok }
}

/// The numbers of one descriptor: the last that refuses and is no quota, or else the first with the least left.
fn headers(statuses: &[Status], quotas: &[bool]) -> Vec<(String, String)> {
    let mut pairs = statuses.iter().zip(quotas);
    let refused = pairs.rfind(|(status, is_quota)| !**is_quota && status.code == Code::OverLimit);
    let counted = statuses.iter().filter(|status| status.current_limit.is_some());
    let chosen =
        refused.map(|(status, _)| status).or_else(|| counted.min_by_key(|status| status.limit_remaining));
    let Some((status, limit)) = chosen.and_then(|status| Some((status, status.current_limit.as_ref()?)))
    else {
        return Vec::new();
    };
    let reset = status.until_reset.unwrap_or_default().ceil_seconds();
    let header = |name: &str, value: String| (name.to_owned(), value);
    vec![
        header("RateLimit-Limit", limit.requests_per_unit.to_string()),
        header("RateLimit-Remaining", status.limit_remaining.to_string()),
        header("RateLimit-Reset", reset.to_string()),
    ]
}
