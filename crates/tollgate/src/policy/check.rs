//! Checks between the parts of a limit and between limits, from a file or from Rust.

use std::collections::{BTreeMap, HashMap};

use crate::memory::state_bytes;
use crate::policy::by::By;
use crate::policy::condition::{Choices, Condition, Negation};
use crate::policy::expression::{Demands, Expression, Parts};
use crate::policy::finding::{Position, Problem, Report, quoted};
use crate::policy::glob::Glob;
use crate::policy::limit::{
    ANY, BY_MAX, CONDITIONS_MAX, Consistency, Cost, ExtraAttributes, LIMIT_NAME_BYTES_MAX, Limit,
    MATCHED_MAX, Mode, QUOTAS_MAX, TIER_SEPARATOR,
};
use crate::policy::vocabulary::{Kind, Vocabulary};
use crate::policy::{exact, pattern};
use crate::quota::Quota;
use crate::request::{COST_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use crate::store::Lease;
use crate::time::Ticks;

/// Windows shorter than this are below the jitter of networks and schedulers, so they have no visible effect.
const WINDOW_MIN: Ticks = Ticks::from_millis(1);

/// A state larger than this leaves a store of the usual size with few keys.
const STATE_BYTES_LARGE: u64 = 128 << 10;

/// Looks up the position of a field of the current limit.
pub(crate) type FieldPositions<'p> = &'p dyn Fn(&str) -> Position;

/// Reports the problems of one limit.
pub(crate) fn alone(limit: &Limit, vocabulary: &Vocabulary, places: FieldPositions<'_>, report: &mut Report) {
    by(limit, vocabulary, places, report);
    when(limit, vocabulary, places, report);
    quotas(limit, vocabulary, places, report);
    cost(limit, vocabulary, places, report);
    leases(limit, places("consistency"), report);
    roll_out(limit, places, report);
    failures(limit, places, report);
}

/// Reports problems between limits. Each limit comes with its index and the position of its name.
pub(crate) fn together(limits: &[Limit], places: &[(usize, Position)], report: &mut Report) {
    let mut names: HashMap<&str, (usize, Position)> = HashMap::new();
    // A `when` that could not be read looks like none, so a file with errors is not checked.
    let sound = report.errors() == 0;
    // Limits without a condition, by what they count by: all of them apply to a request that has it.
    let mut unconditional = Unconditional::default();
    for (limit, &(position, at)) in limits.iter().zip(places) {
        report.enter_limit(position, Some(&limit.name));
        if limit.name.is_empty() {
            // Reported already.
        } else if let Some((first, place)) = names.get(limit.name.as_str()) {
            let message = format!("limits[{first}] on line {} has this name too", place.line);
            let accepted = "a name of its own: it is the identity of its counters";
            report.error(at, "name", Problem::new(message, accepted));
        } else {
            names.insert(&limit.name, (position, at));
        }
        if sound && is_unconditional(limit) {
            unconditional.add(limit, (position, at));
        }
    }
    if let Some((by, (position, at))) = unconditional.too_many() {
        let which = if by.is_empty() { String::new() } else { format!(" with {}", quoted(&by.join(", "))) };
        let message = format!(
            "more than {MATCHED_MAX} limits apply to every request{which}, so none would be answered"
        );
        let accepted = format!("at most {MATCHED_MAX} limits without `when` that one request meets");
        report.enter_limit(position, limits.get(position).map(Limit::name));
        report.error(at, "", Problem::new(message, accepted));
    }
    report.leave_limit();
}

/// Most attributes of a `by` whose subsets are checked, so that a large policy compiles fast.
const PARTS_OF_MAX: usize = 5;

/// Limits that apply to every request with the attributes of their `by`, by those attributes, each set with its last limit.
#[derive(Default)]
struct Unconditional<'l>(BTreeMap<Vec<&'l str>, (usize, (usize, Position))>);

impl<'l> Unconditional<'l> {
    fn add(&mut self, limit: &'l Limit, place: (usize, Position)) {
        let mut by: Vec<&str> = limit.by.iter().map(By::name).collect();
        by.sort_unstable();
        let (count, last) = self.0.entry(by).or_insert((0, place));
        *count += 1;
        if *count <= MATCHED_MAX + 1 {
            *last = place;
        }
    }

    /// The attributes of a request that would match too many limits, with the first limit beyond the bound.
    fn too_many(&self) -> Option<(&[&'l str], (usize, Position))> {
        self.0.keys().find_map(|by| {
            // A request with all of these attributes has each subset of them.
            let parts = (0..1_usize << by.len().min(PARTS_OF_MAX)).map(|part| {
                let names = by.iter().enumerate().filter(|(at, _)| part >> at & 1 == 1);
                names.map(|(_, name)| *name).collect::<Vec<_>>()
            });
            let whole = (by.len() > PARTS_OF_MAX).then(|| by.clone());
            let met: Vec<_> = parts.chain(whole).filter_map(|part| self.0.get(&part)).collect();
            let last = met.iter().map(|(_, last)| *last).max_by_key(|(position, _)| *position)?;
            let count: usize = met.iter().map(|(count, _)| count).sum();
            (count > MATCHED_MAX).then_some((by.as_slice(), last))
        })
    }
}

/// Reports a name that no attribute of a request has.
pub(crate) fn attribute(name: &str, vocabulary: &Vocabulary, at: Position, field: &str, report: &mut Report) {
    if let Some(problem) = vocabulary.problem(name) {
        report.error(at, field, problem);
    } else {
        attribute_name(name, at, field, report);
    }
}

/// Reports a name that no attribute can have.
pub(crate) fn attribute_name(name: &str, at: Position, field: &str, report: &mut Report) {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = format!("\"{}\" cannot be the name of an attribute", quoted(name));
        let accepted = format!("1 to {NAME_BYTES_MAX} bytes without control characters");
        report.error(at, field, Problem::new(message, accepted));
    }
}

fn is_unconditional(limit: &Limit) -> bool {
    let always = |condition: &Condition| match condition {
        Condition::Holds(expression) => expression.constant() == Some(true),
        Condition::OneOf { .. } => false,
    };
    let is_for_any = limit.extra_attributes == ExtraAttributes::Any;
    limit.mode == Mode::Enforce && is_for_any && limit.when.iter().all(always)
}

/// Names go into headers and metrics, so they may have only characters that a header can quote.
pub(crate) fn name(name: &str, at: Position, report: &mut Report) {
    let printable = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    if name.is_empty() || name.len() > LIMIT_NAME_BYTES_MAX || !name.bytes().all(printable) {
        let message = format!("\"{}\" cannot be the name of a limit", quoted(name));
        let accepted = format!("1 to {LIMIT_NAME_BYTES_MAX} printable ASCII characters other than \" and \\");
        report.error(at, "name", Problem::new(message, accepted));
    }
}

fn by(limit: &Limit, vocabulary: &Vocabulary, places: FieldPositions<'_>, report: &mut Report) {
    if limit.by.len() > BY_MAX {
        let message = format!("{} attributes", limit.by.len());
        report.error(places("by"), "by", Problem::new(message, format!("at most {BY_MAX}")));
        return;
    }
    for (i, by) in limit.by.iter().enumerate() {
        let field = format!("by[{i}]");
        let (name, at) = (by.name(), places(&field));
        match By::read(name, vocabulary) {
            Err(problem) => report.error(at, &field, problem),
            Ok(_) => attribute(name, vocabulary, at, &field, report),
        }
        if limit.by[..i].iter().any(|other| other.name() == name) {
            let message = format!("{} is named twice", quoted(name));
            report.error(at, &field, Problem::new(message, "each attribute once"));
        }
    }
}

fn when(limit: &Limit, vocabulary: &Vocabulary, places: FieldPositions<'_>, report: &mut Report) {
    let at = places("when");
    if limit.when.len() > CONDITIONS_MAX {
        let message = format!("{} conditions", limit.when.len());
        report.error(at, "when", Problem::new(message, format!("at most {CONDITIONS_MAX}")));
        return;
    }
    for each in &limit.when {
        condition(each, vocabulary, places, report);
        if let Condition::Holds(expression) = each {
            absences(limit, expression, at, report);
        }
    }
    if let Some(name) = contradiction(&limit.when, vocabulary) {
        let message = format!("never matches: {} would have to be two things at once", quoted(&name));
        let problem = Problem::new(message, "conditions that can hold together");
        report.error(at, "when", problem);
    }
    if let Some(name) = absent(limit) {
        let message = format!("never matches: it counts by {name}, and applies only without it");
        report.error(at, "when", Problem::new(message, "conditions that can hold together"));
    }
}

/// Reports the problems of one condition.
pub(crate) fn condition(
    condition: &Condition,
    vocabulary: &Vocabulary,
    places: FieldPositions<'_>,
    report: &mut Report,
) {
    match condition {
        Condition::OneOf { name, choices, .. } => {
            let field = format!("when.{}", quoted(name));
            let at = places(&field);
            attribute(name, vocabulary, at, &field, report);
            let kind = vocabulary.kind(name);
            // Credentials were checked before they became digests, and no finding may show one.
            let is_credential = report.credentials().contains(name);
            let written = choices.written().iter().filter(|_| !is_credential);
            let problems: Vec<_> =
                written.filter_map(|written| pattern::problem(kind, name, written)).collect();
            for problem in problems {
                report.error(at, &field, problem);
            }
            if let Some(problem) = number_of(choices) {
                report.error(at, &field, problem);
            }
        }
        Condition::Holds(expression) => {
            let at = places("when");
            if expression.constant() == Some(false) {
                let problem =
                    Problem::new("the expression is never true", "mode: off, to switch a limit off");
                report.error(at, "when", problem);
            }
            for problem in expression.attributes().filter_map(|name| vocabulary.problem(name)) {
                report.error(at, "when", problem);
            }
        }
    }
}

/// An attribute that the limit counts by and that it must not have.
fn absent(limit: &Limit) -> Option<&str> {
    let is_absent = |condition: &Condition, by: &By| match condition {
        Condition::OneOf { name, choices, sense: Negation::IsNot } => {
            name == by.name() && choices.globs().iter().any(Glob::is_any)
        }
        _ => false,
    };
    let found = limit.by.iter().find(|by| limit.when.iter().any(|condition| is_absent(condition, by)));
    found.map(By::name)
}

/// Warns about attributes that a condition only excludes values of: a request without them is not limited, which is rarely
/// intended.
fn absences(limit: &Limit, expression: &Expression, at: Position, report: &mut Report) {
    let requires = |condition: &Condition, name: &str| {
        let is_itself = matches!(condition, Condition::Holds(other) if std::ptr::eq(other, expression));
        !is_itself && condition.required().any(|required| required == name)
    };
    for name in expression.unguarded() {
        let is_counted = limit.by.iter().any(|by| by.name() == name);
        if is_counted || limit.when.iter().any(|condition| requires(condition, &name)) {
            continue;
        }
        let shown = quoted(&name);
        let comparison =
            if expression.is_comparison() { quoted(&expression.to_string()) } else { "...".to_owned() };
        let message =
            format!("a request without {shown} is not limited: the comparison does not hold without it");
        let accepted = format!(
            "(!has({shown}) || {comparison}) to limit it too, or has({shown}) && {comparison} if it is meant so"
        );
        report.warning(at, "when", Problem::new(message, accepted));
    }
}

/// The problem with the number or the size of the choices of a condition, if there is one.
fn number_of(choices: &Choices) -> Option<Problem> {
    let count = choices.written().len();
    if count == 0 {
        Some(Problem::new("an empty list never matches", "at least one value"))
    } else if count > CONDITIONS_MAX {
        Some(Problem::new(format!("{count} values"), format!("at most {CONDITIONS_MAX}")))
    } else if choices.values().iter().any(|value| value.len() > VALUE_BYTES_MAX) {
        let message = format!("a value longer than any request's: more than {VALUE_BYTES_MAX} bytes");
        Some(Problem::new(message, "a shorter value"))
    } else {
        None
    }
}

/// An attribute that no value would satisfy.
fn contradiction(when: &[Condition], vocabulary: &Vocabulary) -> Option<String> {
    let mut demands: BTreeMap<String, Demands> = BTreeMap::new();
    for condition in when {
        match condition {
            Condition::OneOf { name, choices, sense: Negation::Is } if choices.networks().is_empty() => {
                let has_any = !choices.values().is_empty() || !choices.globs().is_empty();
                if has_any {
                    demands.entry(name.clone()).or_default().one_of(choices.values(), choices.globs());
                }
            }
            Condition::OneOf { .. } => {}
            Condition::Holds(expression) => {
                for (name, others) in expression.demands() {
                    demands.entry(name).or_default().join(others);
                }
            }
        }
    }
    let contradicts = |(name, demands): &(&String, &Demands)| demands.contradict(parts_of(name, vocabulary));
    demands.iter().find(contradicts).map(|(name, _)| name.clone())
}

/// An address is compared as the client that it counts as, and its parts as they stand.
fn parts_of(name: &str, vocabulary: &Vocabulary) -> Parts {
    if vocabulary.kind(name) == Kind::Address { Parts::Unknown } else { Parts::Known }
}

fn quotas(limit: &Limit, vocabulary: &Vocabulary, places: FieldPositions<'_>, report: &mut Report) {
    let quotas = &limit.quotas;
    for (i, name) in quotas.tier_by.iter().enumerate() {
        attribute(name, vocabulary, places("tier_by"), "tier_by", report);
        if quotas.tier_by[..i].contains(name) {
            let problem = Problem::new(format!("{} is named twice", quoted(name)), "each attribute once");
            report.error(places("tier_by"), "tier_by", problem);
        }
    }
    let (separators, expected) = (|name: &str| name.matches(TIER_SEPARATOR).count(), quotas.tier_by.len());
    if quotas.tiers.keys().any(|name| separators(name) + 1 > expected) {
        let problem = Problem::new("a tier's name has a control character", "names without U+001F");
        report.error(places("tiers"), "tiers", problem);
    }
    names(limit, vocabulary, places, report);
    if !quotas.overrides.is_empty() && limit.by.is_empty() {
        let message = "overrides are by the first attribute of `by`, and there is none";
        let problem = Problem::new(message, "`by` with at least one attribute");
        report.error(places("overrides"), "overrides", problem);
    }
    if quotas.all.len() > QUOTAS_MAX {
        let message = format!("{} different quotas in one limit", quotas.all.len());
        let accepted = format!("at most {QUOTAS_MAX}; keys whose numbers are equal share a quota");
        report.error(places("overrides"), "overrides", Problem::new(message, accepted));
    }
    let largest = quotas.all.iter().map(state_bytes).max().unwrap_or(0);
    if largest > STATE_BYTES_LARGE && !limit.by.is_empty() {
        let message = match quotas.all.first() {
            Some(Quota::Concurrency(_)) => {
                format!(
                    "a key with all of its permits in flight takes {largest} bytes, so memory holds few of them"
                )
            }
            _ => format!("each key takes {largest} bytes, so memory holds few of them"),
        };
        let (field, accepted) = match quotas.all.first() {
            Some(Quota::Concurrency(_)) => ("concurrency", "fewer permits, or a larger store"),
            Some(Quota::SlidingLog(_)) => ("rate", "a smaller number, a sliding-window, or a larger store"),
            _ => ("rate", "a smaller number, or a larger store"),
        };
        report.warning(places(field), field, Problem::new(message, accepted));
    }
    let algorithm = quotas.all.first().map_or("", Quota::algorithm);
    if quotas.all.iter().any(|quota| quota.algorithm() != algorithm) {
        let problem = Problem::new("its quotas have different algorithms", "one algorithm for each limit");
        report.error(places("algorithm"), "algorithm", problem);
    }
    if let Some(window) = quotas.all.iter().filter_map(window).min()
        && window < WINDOW_MIN
    {
        let micros = window.as_micros();
        let message = format!(
            "its windows of {micros} microseconds are shorter than clocks and networks can keep apart"
        );
        let problem = Problem::new(message, "windows of at least 1 ms, or a token-bucket");
        report.warning(places("rate"), "rate", problem);
    }
}

/// Reports names of tiers and overrides that no request has: patterns, and spellings that requests do not have. Addresses
/// among overrides are networks, which are checked when they are read. Credentials are already digests.
fn names(limit: &Limit, vocabulary: &Vocabulary, places: FieldPositions<'_>, report: &mut Report) {
    let quotas = &limit.quotas;
    let is_known = |name: &str| !report.credentials().contains(name);
    let mut problems: Vec<(String, Problem)> = Vec::new();
    if let Some(by) = limit.by.first().filter(|by| by.prefixes().is_none() && is_known(by.name())) {
        let kind = vocabulary.kind(by.name());
        problems.extend(quotas.overrides.keys().filter_map(|name| {
            let problem = exact::name_problem(kind, by.name(), name)?;
            Some((format!("overrides.{}", quoted(name)), problem))
        }));
    }
    for tier in quotas.tiers.keys() {
        let mut field = "tiers".to_owned();
        for (part, name) in tier.split(TIER_SEPARATOR).zip(&quotas.tier_by) {
            field = format!("{field}.{}", quoted(part));
            let is_any = part == ANY && quotas.tier_by.len() > 1;
            if !is_any && is_known(name) {
                let problem = exact::name_problem(vocabulary.kind(name), name, part);
                problems.extend(problem.map(|problem| (field.clone(), problem)));
            }
        }
    }
    problems.sort_by(|(one, _), (other, _)| one.cmp(other));
    problems.dedup();
    for (field, problem) in problems {
        report.error(places(&field), &field, problem);
    }
}

/// The shortest window of an algorithm; buckets have none.
fn window(quota: &Quota) -> Option<Ticks> {
    match quota {
        Quota::FixedWindow(window) => Some(window.period()),
        Quota::SlidingLog(log) => Some(log.period()),
        Quota::SlidingWindow(window) => {
            Some(Ticks::from_micros(window.period().as_micros() / u64::from(window.precision().max(1))))
        }
        Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_) | Quota::Concurrency(_) => None,
    }
}

fn cost(limit: &Limit, vocabulary: &Vocabulary, places: FieldPositions<'_>, report: &mut Report) {
    let at = places("cost");
    match limit.cost {
        Cost::Units(0) => {
            let problem = Problem::new("a cost of 0 counts nothing", "at least 1, or mode: off");
            report.error(at, "cost", problem);
        }
        Cost::Units(units) if units > COST_MAX => {
            let problem = Problem::new(format!("{units} is too large"), format!("1 to {COST_MAX}"));
            report.error(at, "cost", problem);
        }
        Cost::Units(units) => {
            let smallest = limit.quotas.all.iter().map(Quota::capacity).min().unwrap_or(0);
            if units > smallest && smallest > 0 {
                let message = format!(
                    "each request costs {units}, and at most {smallest} pass at once: none ever will"
                );
                let instead = match limit.quotas.all.first() {
                    Some(Quota::Concurrency(_)) => format!("at least {units} permits"),
                    Some(Quota::TokenBucket(_) | Quota::Gcra(_)) => format!("a burst of at least {units}"),
                    Some(Quota::LeakyBucket(_)) => format!("a burst and a queue of at least {units} in all"),
                    _ => format!("a rate of at least {units} a window"),
                };
                let accepted = format!("a cost up to {smallest}, or {instead}");
                report.error(at, "cost", Problem::new(message, accepted));
            }
        }
        Cost::Attribute(ref name) => attribute(name, vocabulary, at, "cost", report),
        Cost::Computed(ref expression) => {
            for problem in expression.attributes().filter_map(|name| vocabulary.problem(name)) {
                report.error(at, "cost", problem);
            }
        }
        Cost::Asked => {}
    }
}

/// Reports a lease on an algorithm whose counters cannot lease units.
fn leases(limit: &Limit, at: Position, report: &mut Report) {
    if limit.consistency != Consistency::Leased {
        return;
    }
    let reason = match limit.quotas.all.first() {
        Some(Quota::Concurrency(_)) => "a permit must be returned to the counter that gave it",
        Some(Quota::SlidingLog(_)) => "a log is exact only if it sees the time of every request",
        Some(Quota::LeakyBucket(_)) => "requests can be spaced only by the one queue that they all wait in",
        Some(quota @ Quota::FixedWindow(_)) if !Lease::suits(quota) => {
            "only the counter knows the bounds of calendar windows, so unused units could not be returned"
        }
        _ => return,
    };
    let algorithm = limit.quotas.all.first().map_or("", Quota::algorithm);
    let message = format!("{algorithm} cannot be leased: {reason}");
    report.error(at, "consistency", Problem::new(message, "exact, auto"));
}

/// Reports `count: failures` on an algorithm without refunds.
fn failures(limit: &Limit, places: FieldPositions<'_>, report: &mut Report) {
    let reason = match limit.quotas.all.first() {
        _ if limit.failures.is_none() => return,
        Some(Quota::LeakyBucket(_)) => "a used queue slot cannot be refunded",
        Some(Quota::Concurrency(_)) => "every response returns the permit",
        _ => return,
    };
    let message = format!("{} cannot count failures: {reason}", limit.quotas.all[0].algorithm());
    report.error(places("count"), "count", Problem::new(message, "count: all, or another algorithm"));
}

fn roll_out(limit: &Limit, places: FieldPositions<'_>, report: &mut Report) {
    let at = places("enforce_percent");
    if limit.enforce_percent < 100 && limit.by.is_empty() {
        let message = "a share of keys, and a limit without `by` has only one key";
        let accepted = "`by` with at least one attribute, or mode: shadow";
        report.error(at, "enforce_percent", Problem::new(message, accepted));
    } else if limit.enforce_percent > 100 {
        let message = format!("{} per cent", limit.enforce_percent);
        report.error(at, "enforce_percent", Problem::new(message, "0 to 100"));
    } else if limit.mode == Mode::Enforce && limit.enforce_percent == 0 {
        let problem = Problem::new("0 per cent never denies anybody", "1 to 100, or mode: shadow");
        report.warning(at, "enforce_percent", problem);
    } else if limit.mode != Mode::Enforce && limit.enforce_percent < 100 {
        let problem = Problem::new("it has no effect unless the limit is enforced", "mode: enforce");
        report.warning(at, "enforce_percent", problem);
    }
}
