//! The quotas of a limit: its algorithm, the default numbers, and those of each tier and of single keys.

use std::collections::HashMap;

use crate::algorithm::calendar::{BILLING_DAY_MAX, Calendar};
use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::{Estimate, SlidingWindow};
use crate::credential::CredentialDigest;
use crate::policy::builder::strictest;
use crate::policy::document::{Entry, Node, Tree};
use crate::policy::fields::{self, Fields};
use crate::policy::finding::{Problem, Report, nearest, quoted};
use crate::policy::limit::{ANY, DefaultQuota, QuotaIndex, Quotas, TIER_BY_MAX, tier_name};
use crate::policy::text::TextMap;
use crate::quota::Quota;
use crate::rate::{EXACT_MAX, QuotaError, ZONES};
use crate::rate_text::{self, RATES, TimeUnit, WrittenRate};
use crate::time::Ticks;

/// Default number of sub-windows of a sliding window.
const PRECISION: u64 = 10;
/// Default lifetime of a permit.
const PERMIT_TTL: Ticks = Ticks::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum AlgorithmName {
    TokenBucket,
    Gcra,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    LeakyBucket,
    Concurrency,
}

use AlgorithmName as A;

const ALGORITHMS: [(&str, AlgorithmName); 7] = [
    ("token-bucket", A::TokenBucket),
    ("gcra", A::Gcra),
    ("fixed-window", A::FixedWindow),
    ("sliding-window", A::SlidingWindow),
    ("sliding-log", A::SlidingLog),
    ("leaky-bucket", A::LeakyBucket),
    ("concurrency", A::Concurrency),
];

/// The fields with the default amount. Tiers and overrides have other amounts.
const AMOUNTS: [&str; 2] = ["rate", "concurrency"];

/// The algorithms that have a field.
const NUMBERS: [(&str, &[AlgorithmName]); 10] = [
    ("rate", &[A::TokenBucket, A::Gcra, A::FixedWindow, A::SlidingWindow, A::SlidingLog, A::LeakyBucket]),
    ("burst", &[A::TokenBucket, A::Gcra, A::LeakyBucket]),
    ("queue", &[A::LeakyBucket]),
    ("align", &[A::FixedWindow]),
    ("timezone", &[A::FixedWindow]),
    ("billing_day", &[A::FixedWindow]),
    ("precision", &[A::SlidingWindow]),
    ("estimate", &[A::SlidingWindow]),
    ("concurrency", &[A::Concurrency]),
    ("permit_ttl", &[A::Concurrency]),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum AlignKind {
    Epoch,
    FirstHit,
    Calendar,
}

const ALIGNMENTS: [(&str, AlignKind); 3] =
    [("epoch", AlignKind::Epoch), ("first-hit", AlignKind::FirstHit), ("calendar", AlignKind::Calendar)];

const ESTIMATES: [(&str, Estimate); 2] =
    [("interpolate", Estimate::Interpolate), ("strict", Estimate::Strict)];

/// Values that need no counter.
const WORDS: [(&str, QuotaIndex); 2] = [("unlimited", QuotaIndex::UNLIMITED), ("deny", QuotaIndex::DENY)];

/// The fields that say how a limit counts.
const COUNTING: [&str; 16] = [
    "burst",
    "algorithm",
    "align",
    "timezone",
    "billing_day",
    "precision",
    "estimate",
    "queue",
    "permit_ttl",
    "cost",
    "on_store_failure",
    "consistency",
    "lease",
    "block_for",
    "count",
    "failures",
];

/// How much a limit admits, as written. It identifies a quota of the limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum WrittenAmount {
    Rate(WrittenRate),
    Permits(u64),
}

/// Everything of a quota but its amount: tiers and overrides inherit it.
struct QuotaShape<'n> {
    algorithm: AlgorithmName,
    burst: Option<u64>,
    queue: u64,
    align: AlignKind,
    zone: &'n str,
    billing_day: Option<u8>,
    precision: u32,
    estimate: Estimate,
    permit_ttl: Ticks,
}

/// Whether an algorithm has a field.
pub(super) fn has_field(algorithm: &str, field: &str) -> bool {
    let known = ALGORITHMS.iter().find(|(word, _)| *word == algorithm);
    let numbers = NUMBERS.iter().find(|(number, _)| *number == field);
    known.zip(numbers).is_some_and(|((_, algorithm), (_, algorithms))| algorithms.contains(algorithm))
}

/// Whether units of an algorithm can be leased.
pub(super) fn may_be_leased(algorithm: &str, align: Option<&str>) -> bool {
    match algorithm {
        "concurrency" | "sliding-log" | "leaky-bucket" => false,
        "fixed-window" => align != Some("calendar"),
        _ => true,
    }
}

/// Reports the problem with a default for one of the fields that shape a quota.
pub(super) fn check_default(fields: &Fields<'_>, field: &str, report: &mut Report) {
    match field {
        "algorithm" => {
            let algorithm = fields.choice("algorithm", &ALGORITHMS, report);
            if algorithm == Some(A::Concurrency) {
                let message = "a limit is one on permits by its field `concurrency`";
                let problem = Problem::new(message, "any other algorithm");
                report.error(fields.place("algorithm"), "algorithm", problem);
            }
        }
        "align" => {
            fields.choice("align", &ALIGNMENTS, report);
        }
        "estimate" => {
            fields.choice("estimate", &ESTIMATES, report);
        }
        "precision" => {
            fields.count("precision", u64::from(u32::MAX), report);
        }
        "permit_ttl" => {
            permit_ttl(*fields, report);
        }
        _ => {}
    }
}

/// Reads the quotas of a limit.
pub(super) fn read(fields: Fields<'_>, report: &mut Report) -> Option<Quotas> {
    let errors = report.errors();
    let shape = QuotaShape::read(fields, report);
    let mut reader = AmountReader { shape, fields, all: Vec::new(), known: HashMap::new() };
    let given = if reader.shape.algorithm == A::Concurrency { "concurrency" } else { "rate" };
    let base = fields.get(given).map(|node| reader.quota(node, given, report));
    let tier_by = tier_by(fields, report);
    let tiers = match &*tier_by {
        [_, second] => reader.nested(second, report),
        _ => reader.table("tiers", report),
    };
    let overrides = reader.table("overrides", report);
    paired(fields, report);
    let mut quotas =
        Quotas { all: reader.all, burst: reader.shape.burst, tier_by, tiers, overrides, ..Quotas::none() };
    let default = match (quotas.everything(), base) {
        (Some(index), _) => Some(DefaultQuota::Given(index)),
        (None, Some(base)) => base.map(DefaultQuota::Given),
        (None, None) => strictest(&quotas),
    };
    if quotas.everything().is_some() && base.is_some() {
        let message = "no request has it: the tier \"*\" of \"*\" holds for every pair that is not listed";
        let problem = Problem::new(message, format!("either {given}, or that tier"));
        report.warning(fields.key_position(given), given, problem);
    }
    if base.is_none() && !fields.has("tiers") {
        let accepted = if given == "rate" { RATES } else { "a number of permits, such as 20" };
        let problem = Problem::new("missing: it says nothing about how much passes", accepted);
        report.error(fields.place(given), given, problem);
    }
    (report.errors() == errors).then_some(())?;
    quotas.default = default?;
    uncounted(&quotas, given, fields, report);
    Some(quotas)
}

/// Warns about a limit that counts nothing: about its fields without effect, and if the limit has no effect at all.
fn uncounted(quotas: &Quotas, given: &str, fields: Fields<'_>, report: &mut Report) {
    if !quotas.all.is_empty() {
        return;
    }
    for field in COUNTING.into_iter().filter(|field| fields.has(field)) {
        let problem = Problem::new("it has no effect: this limit counts nothing", "no such field");
        report.warning(fields.key_position(field), field, problem);
    }
    if quotas.only() == Some(QuotaIndex::UNLIMITED) {
        let problem = Problem::new(
            "every request passes and none is counted, so the limit does nothing",
            "a rate, or tiers or overrides with one",
        );
        report.warning(fields.place(given), given, problem);
    }
}

/// The attributes that name a tier: one, or a list of up to two.
fn tier_by(fields: Fields<'_>, report: &mut Report) -> Vec<String> {
    let accepted = "the name of an attribute, or a list of two such as [plan, region]";
    let Some(node) = fields.get("tier_by") else { return Vec::new() };
    let Tree::List(items) = &node.tree else {
        return fields::text(node, "tier_by", accepted, report).map(str::to_owned).into_iter().collect();
    };
    if items.is_empty() || items.len() > TIER_BY_MAX {
        let message = format!("a list of {} attributes", items.len());
        report.error(node.at, "tier_by", Problem::new(message, accepted));
    }
    let read = |(i, item)| fields::text(item, &format!("tier_by[{i}]"), accepted, report).map(str::to_owned);
    items.iter().take(TIER_BY_MAX).enumerate().filter_map(read).collect()
}

/// `tier_by` and `tiers` need each other.
fn paired(fields: Fields<'_>, report: &mut Report) {
    for (given, missing) in [("tier_by", "tiers"), ("tiers", "tier_by")] {
        if fields.has(given) && !fields.has(missing) {
            let problem = Problem::new(
                format!("{given} without {missing}"),
                "both, such as tier_by: plan with tiers: {free: 10/s, pro: 100/s}",
            );
            report.error(fields.key_position(given), given, problem);
        }
    }
}

impl<'n> QuotaShape<'n> {
    fn read(fields: Fields<'n>, report: &mut Report) -> Self {
        let default = if fields.has("concurrency") { A::Concurrency } else { A::TokenBucket };
        let given = fields.choice("algorithm", &ALGORITHMS, report);
        let algorithm = given.unwrap_or(default);
        // It is not known which numbers fit an unknown algorithm.
        if given.is_some() || !fields.has("algorithm") {
            fitting(algorithm, fields, report);
        }
        let align = fields.choice("align", &ALIGNMENTS, report).unwrap_or(AlignKind::Epoch);
        let zone = fields.text("timezone", "an IANA name such as Europe/Rome", report);
        if zone.is_some() && align != AlignKind::Calendar && algorithm == A::FixedWindow {
            let problem =
                Problem::new("a time zone matters only to calendar windows", "align: calendar with it");
            report.error(fields.key_position("timezone"), "timezone", problem);
        }
        let precision = fields.count("precision", u64::from(u32::MAX), report).unwrap_or(PRECISION);
        Self {
            algorithm,
            burst: fields.count("burst", EXACT_MAX, report),
            queue: fields.count("queue", EXACT_MAX, report).unwrap_or(0),
            align,
            zone: zone.unwrap_or("UTC"),
            billing_day: billing_day(fields, align, report),
            precision: u32::try_from(precision).unwrap_or(u32::MAX),
            estimate: fields.choice("estimate", &ESTIMATES, report).unwrap_or(Estimate::Strict),
            permit_ttl: permit_ttl(fields, report).unwrap_or(PERMIT_TTL),
        }
    }

    /// The quota of one amount.
    fn quota(&self, amount: WrittenAmount) -> Result<Quota, QuotaError> {
        let written = match amount {
            WrittenAmount::Permits(permits) => {
                return Concurrency::new(permits, self.permit_ttl).map(Quota::Concurrency);
            }
            WrittenAmount::Rate(written) => written,
        };
        let rate = written.rate();
        Ok(match self.algorithm {
            A::Gcra => Quota::gcra(rate)?,
            A::FixedWindow => Quota::FixedWindow(FixedWindow::new(rate, self.align(written)?)?),
            A::SlidingWindow => {
                Quota::SlidingWindow(SlidingWindow::new(rate, self.precision, self.estimate)?)
            }
            A::SlidingLog => Quota::SlidingLog(SlidingLog::new(rate)?),
            A::LeakyBucket => Quota::LeakyBucket(LeakyBucket::new(rate, self.queue)?),
            A::TokenBucket | A::Concurrency => Quota::token_bucket(rate)?,
        })
    }

    fn align(&self, written: WrittenRate) -> Result<Align, QuotaError> {
        Ok(match (self.align, written.period.calendar()) {
            (AlignKind::Calendar, Some(unit)) => {
                let calendar = Calendar::new(unit, self.zone)?;
                Align::Calendar(match self.billing_day {
                    Some(day) => calendar.billed_on(day)?,
                    None => calendar,
                })
            }
            (AlignKind::FirstHit, _) => Align::FirstHit,
            _ => Align::Epoch,
        })
    }
}

/// The day of the month on which calendar months begin.
fn billing_day(fields: Fields<'_>, align: AlignKind, report: &mut Report) -> Option<u8> {
    let day = fields.count("billing_day", u64::from(BILLING_DAY_MAX), report)?;
    if align != AlignKind::Calendar {
        let problem =
            Problem::new("a billing day matters only to calendar months", "align: calendar with it");
        report.error(fields.key_position("billing_day"), "billing_day", problem);
    }
    if day == 0 {
        let problem = Problem::new("there is no day 0", format!("1 to {BILLING_DAY_MAX}"));
        report.error(fields.place("billing_day"), "billing_day", problem);
    }
    u8::try_from(day).ok().filter(|day| *day > 0)
}

fn permit_ttl(fields: Fields<'_>, report: &mut Report) -> Option<Ticks> {
    let text = fields.text("permit_ttl", "a period such as 30s", report)?;
    match rate_text::period(text.trim()) {
        Ok(period) => Some(period.ticks()),
        Err(problem) => {
            report.error(fields.place("permit_ttl"), "permit_ttl", problem);
            None
        }
    }
}

/// Reports numbers that the algorithm does not have.
fn fitting(algorithm: AlgorithmName, fields: Fields<'_>, report: &mut Report) {
    let word = |wanted: AlgorithmName| {
        let found = ALGORITHMS.iter().find(|&&(_, algorithm)| algorithm == wanted);
        found.map_or("", |&(word, _)| word)
    };
    for (field, algorithms) in NUMBERS {
        if fields.has(field) && !algorithms.contains(&algorithm) {
            let message = format!("algorithm {} has no {field}", word(algorithm));
            let words: Vec<&str> = algorithms.iter().map(|&algorithm| word(algorithm)).collect();
            let mut accepted = format!("{field} with {}", words.join(", "));
            if field == "rate" {
                accepted.push_str("; to limit both, two limits");
            }
            report.error(fields.key_position(field), field, Problem::new(message, accepted));
        }
    }
}

/// Reads amounts, and stores each distinct quota once.
struct AmountReader<'n> {
    shape: QuotaShape<'n>,
    fields: Fields<'n>,
    all: Vec<Quota>,
    known: HashMap<WrittenAmount, QuotaIndex>,
}

impl AmountReader<'_> {
    /// The quotas of `tiers` or `overrides`.
    fn table(&mut self, field: &str, report: &mut Report) -> TextMap<QuotaIndex> {
        let accepted = "a table such as {free: 10/s, pro: 100/s burst 200, enterprise: unlimited}";
        let Some(node) = self.fields.get(field) else {
            return TextMap::default();
        };
        let Some(table) = Fields::of(node, field, accepted, report) else {
            return TextMap::default();
        };
        if table.iter().next().is_none() {
            report.error(node.at, field, Problem::new("is empty", accepted));
        }
        let mut quotas = TextMap::default();
        let is_secret = self.is_secret(field, report);
        for entry in table.iter() {
            let shown = if is_secret {
                CredentialDigest::of_value(&entry.key).to_string()
            } else {
                quoted(&entry.key)
            };
            let path = format!("{field}.{shown}");
            if field == "tiers" && Self::is_nested(entry, &path, report) {
                continue;
            }
            if let Some(index) = self.quota(&entry.node, &path, report) {
                quotas.insert(entry.key.as_str().into(), index);
            }
        }
        quotas
    }

    /// The quotas of `tiers` by two attributes: a table of tables.
    fn nested(&mut self, second: &str, report: &mut Report) -> TextMap<QuotaIndex> {
        let accepted = format!("a table by {second}, such as {{eu: 10/s, us: 20/s, \"*\": 5/s}}");
        let outer = "a table of tables such as {pro: {eu: 10/s, us: 20/s}}";
        let mut quotas = TextMap::default();
        let table = self.fields.get("tiers").and_then(|node| Fields::of(node, "tiers", outer, report));
        for entry in table.iter().flat_map(Fields::iter) {
            let path = format!("tiers.{}", quoted(&entry.key));
            let Some(inner) = Fields::of(&entry.node, &path, &accepted, report) else { continue };
            if inner.iter().next().is_none() {
                report.error(entry.node.at, &path, Problem::new("is empty", accepted.clone()));
            }
            for leaf in inner.iter() {
                let path = format!("{path}.{}", quoted(&leaf.key));
                if let Some(index) = self.quota(&leaf.node, &path, report) {
                    quotas.insert(tier_name(&entry.key, &leaf.key).into(), index);
                }
            }
        }
        quotas
    }

    /// Whether an entry of `tiers` by one attribute is a table, which only tiers by two attributes have. Reports it.
    fn is_nested(entry: &Entry, path: &str, report: &mut Report) -> bool {
        let problem = if matches!(entry.node.tree, Tree::Table(_)) {
            Problem::new("is a table, and tier_by names one attribute", "a rate, or tier_by: [plan, region]")
        } else if entry.key == ANY {
            Problem::new("a tier for any other value is the limit's own rate", "rate, beside tiers")
        } else {
            return false;
        };
        report.error(entry.at, path, problem);
        true
    }

    /// Whether the names of a table are credentials, which no finding shows.
    fn is_secret(&self, field: &str, report: &Report) -> bool {
        let by = if field == "overrides" { self.fields.get("by") } else { self.fields.get("tier_by") };
        let name = match by.map(|node| &node.tree) {
            Some(Tree::List(items)) => items.first().map(|item| &item.tree),
            tree => tree,
        };
        matches!(name, Some(Tree::Text(name)) if report.credentials().contains(name))
    }

    fn quota(&mut self, node: &Node, field: &str, report: &mut Report) -> Option<QuotaIndex> {
        if let Tree::Text(text) = &node.tree
            && let Some(&(_, index)) = WORDS.iter().find(|(word, _)| *word == text.trim())
        {
            return Some(index);
        }
        let amount = self.amount(node, field, report)?;
        if let Some(&index) = self.known.get(&amount) {
            return Some(index);
        }
        match self.shape.quota(amount) {
            Ok(quota) => {
                let index = QuotaIndex(u32::try_from(self.all.len()).ok()?);
                self.all.push(quota);
                self.known.insert(amount, index);
                Some(index)
            }
            Err(error) => {
                self.refused(&error, node, field, report);
                None
            }
        }
    }

    fn amount(&self, node: &Node, field: &str, report: &mut Report) -> Option<WrittenAmount> {
        if self.shape.algorithm == A::Concurrency {
            return fields::count(node, field, EXACT_MAX, report).map(WrittenAmount::Permits);
        }
        let text = fields::text(node, field, RATES, report)?;
        match rate_text::rate(text) {
            Ok(written) => self.written(written, node, field, report).map(WrittenAmount::Rate),
            Err(problem) => {
                report.error(node.at, field, or_a_word(text, problem));
                None
            }
        }
    }

    /// Checks a rate against the rest of the limit, and gives it the limit's burst.
    fn written(
        &self,
        mut written: WrittenRate,
        node: &Node,
        field: &str,
        report: &mut Report,
    ) -> Option<WrittenRate> {
        let shape = &self.shape;
        let has_burst = matches!(shape.algorithm, A::TokenBucket | A::Gcra | A::LeakyBucket);
        if written.burst.is_some() && !has_burst {
            let problem = Problem::new("this algorithm has no burst", "the rate alone");
            report.error(node.at, field, problem);
            return None;
        }
        if written.burst.is_some() && shape.burst.is_some() && field == "rate" {
            let problem = Problem::new("the burst is given twice", "`burst:` or a burst in the rate");
            report.error(node.at, field, problem);
            return None;
        }
        if shape.algorithm == A::FixedWindow {
            self.calendar(written, node, field, report)?;
        }
        if has_burst {
            written.burst = written.burst.or(shape.burst);
        }
        Some(written)
    }

    /// Months and years are calendar units, and calendar windows have one unit.
    fn calendar(&self, written: WrittenRate, node: &Node, field: &str, report: &mut Report) -> Option<()> {
        if self.shape.align == AlignKind::Calendar {
            if written.period.calendar().is_none() {
                let problem = Problem::new(
                    "a calendar window is one unit of the calendar",
                    "a rate per min, h, day, week, month or year",
                );
                report.error(node.at, field, problem);
                return None;
            }
            if self.shape.billing_day.is_some() && written.period.unit != TimeUnit::Month {
                let problem = Problem::new("only months begin on a billing day", "a rate per month");
                report.error(node.at, field, problem);
                return None;
            }
        } else if matches!(written.period.unit, TimeUnit::Month | TimeUnit::Year) {
            let problem = Problem::new(
                "without `align: calendar` a month is 30 days and a year 365",
                "align: calendar, or a number of days",
            );
            report.warning(node.at, field, problem);
        }
        Some(())
    }

    /// Reports the error of a constructor, at the field that it names if the limit has it, else at the amount.
    fn refused(&self, error: &QuotaError, node: &Node, field: &str, report: &mut Report) {
        let named = match error {
            QuotaError::NoBurst => "burst",
            QuotaError::Zone { .. } => "timezone",
            QuotaError::Range { field, .. } => field,
            _ => "",
        };
        let is_amount = AMOUNTS.contains(&named);
        // A burst in the amount itself is not the field of the limit.
        let elsewhere = !is_amount && self.fields.has(named) && !(named == "burst" && says_burst(node));
        let at = if elsewhere { self.fields.place(named) } else { node.at };
        let problem = match error {
            QuotaError::Range { value, accepted, .. } if elsewhere && !AMOUNTS.contains(&field) => {
                Problem::new(format!("{value} is out of range for {field}"), accepted.clone())
            }
            QuotaError::Range { value, accepted, .. } if elsewhere || is_amount => {
                Problem::new(format!("{value} is out of range"), accepted.clone())
            }
            QuotaError::Range { value, accepted, .. } => {
                Problem::new(format!("a {named} of {value} is out of range"), accepted.clone())
            }
            // Its own words name the field again.
            QuotaError::Zone { zone } => Problem::new(format!("{} is unknown", quoted(zone)), ZONES),
            _ => Problem::new(error.to_string(), ""),
        };
        report.error(at, if elsewhere { named } else { field }, problem);
    }
}

/// Adds `unlimited` and `deny` to what would be accepted instead of a rate.
fn or_a_word(text: &str, mut problem: Problem) -> Problem {
    if let Some(word) = nearest(text.trim(), WORDS.map(|(word, _)| word)) {
        problem.message = format!("{} is unknown; did you mean {word}?", quoted(text));
    }
    if problem.accepted == RATES {
        problem.accepted.push_str(", unlimited, or deny");
    }
    problem
}

/// Whether a rate has its own burst.
fn says_burst(node: &Node) -> bool {
    matches!(&node.tree, Tree::Text(text) if rate_text::rate(text).is_ok_and(|written| written.burst.is_some()))
}
