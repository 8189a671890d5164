//! The meaning of a limit in a sentence that its author can check.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::address::{Network, Prefixes};
use crate::algorithm::calendar::CalendarUnit;
use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_window::Estimate;
use crate::policy::by::By;
use crate::policy::condition::{Choices, Condition, Negation};
use crate::policy::glob::Glob;
use crate::policy::limit::{
    ANY, Consistency, Cost, DefaultQuota, ExtraAttributes, Grant, Limit, Mode, QuotaIndex, TIER_SEPARATOR,
    stricter,
};
use crate::policy::on_store_failure::Stages;
use crate::policy::text::TextMap;
use crate::quota::Quota;
use crate::rate::Rate;
use crate::time::Ticks;

/// Overrides that a sentence spells out; the others are counted.
const OVERRIDES_SHOWN: usize = 3;

/// Whether a sentence names single keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Named,
    Hidden,
}

impl Limit {
    /// Its meaning, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        self.sentence_with(Keys::Named)
    }

    /// Its meaning, in a sentence without the values of attributes that it counts by: it names no key.
    #[must_use]
    pub fn sentence_without_keys(&self) -> String {
        self.sentence_with(Keys::Hidden)
    }

    fn sentence_with(&self, keys: Keys) -> String {
        let mut text = format!("{}: ", self.name);
        let only = (self.extra_attributes == ExtraAttributes::None).then(|| self.only_named());
        if !self.when.is_empty() || only.is_some() {
            let condition = |of: &Condition| match self.key_attribute(of).filter(|_| keys == Keys::Hidden) {
                Some(name) => format!("{name} meets a condition"),
                None => condition(of),
            };
            let conditions: Vec<String> = self.when.iter().map(condition).chain(only).collect();
            let _ = write!(text, "when {}, ", conditions.join(" and "));
        }
        match self.quotas.only().map(|only| self.grant(only)) {
            Some(Grant::Deny) => {
                let _ = write!(text, "{} is denied with 403", every_request(&self.by));
            }
            Some(Grant::Unlimited) => text.push_str("every request passes, and none is counted"),
            Some(Grant::Quota(_)) | None => {
                text.push_str(&subject(&self.by));
                text.push_str(" may ");
                text.push_str(&self.amounts(keys));
                text.push_str(&self.overrides(keys));
            }
        }
        if let Some(Quota::Concurrency(permits)) = self.quotas.all.first() {
            let _ = write!(text, "; a permit returns by itself after {}", duration(permits.ttl()));
        }
        text.push_str(&self.cost_clause());
        if let Some(failures) = &self.failures {
            let _ = write!(text, "; only responses {failures} count");
        }
        text.push_str(&self.penalty_clause());
        text.push_str(&self.failure_clause());
        text.push_str(&self.mode_clause());
        text
    }

    /// The condition that a request has no other attributes.
    fn only_named(&self) -> String {
        let names: BTreeSet<&str> = self.attributes().collect();
        if names.is_empty() {
            return "the request has no attributes".to_owned();
        }
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        format!("the request has only {}", listed(&names, "and"))
    }

    /// The rate that one of its quotas allows, in words that follow "may".
    #[must_use]
    pub fn allowance(&self, index: QuotaIndex) -> String {
        format!("{} {}", self.verb(), self.quota_phrase(index))
    }

    /// The amount that a quota of its own admits, in a few words: `100 requests a second, burst 200`.
    #[must_use]
    pub fn amount(&self, quota: &Quota) -> String {
        let short = |rate: Rate, burst| {
            format!(
                "{} {}, burst {}",
                counted(rate.units(), self.noun()),
                each(rate.period()),
                grouped(burst)
            )
        };
        match quota {
            Quota::TokenBucket(bucket) => short(bucket.rate(), bucket.burst()),
            Quota::Gcra(bucket) => short(bucket.rate(), bucket.burst()),
            Quota::FixedWindow(window) => windowed(window, self.noun()),
            other => phrase(other, self.noun()),
        }
    }

    /// The allowance of a key, by tier if there are tiers.
    fn amounts(&self, keys: Keys) -> String {
        let verb = self.verb();
        let (DefaultQuota::Given(default) | DefaultQuota::Strictest(default)) = self.quotas.default;
        if self.quotas.tier_by.is_empty() {
            return format!("{verb} {}", self.quota_phrase(default));
        }
        let attribute = listed(&self.quotas.tier_by, "and");
        let is_key = self.quotas.tier_by.iter().any(|tier| self.by.iter().any(|by| by.name() == &**tier));
        if keys == Keys::Hidden && is_key {
            return format!("{verb} {}, or another quota by its {attribute}", self.quota_phrase(default));
        }
        let tiers = sorted(&self.quotas.tiers, |a, b| stricter(self.grant(a), self.grant(b)));
        let each: Vec<String> = tiers
            .iter()
            .map(|&(tier, index)| format!("{} ({})", self.quota_phrase(index), self.tier(tier)))
            .collect();
        let mut text = format!("{verb}, by its {attribute}, {}", listed(&each, "or"));
        match self.quotas.default {
            // The last tier is for every other pair.
            _ if self.quotas.everything().is_some() => {}
            DefaultQuota::Given(index) => {
                let _ = write!(text, "; with any other {attribute}, {}", self.quota_phrase(index));
            }
            DefaultQuota::Strictest(index) => {
                let known = tiers.iter().find(|&&(_, other)| other == index);
                let tier = known.map_or_else(String::new, |&(tier, _)| self.tier(tier));
                let _ = write!(text, "; with any other {attribute}, or none, it counts as {tier}");
            }
        }
        text
    }

    /// An attribute that it counts by and that a condition is about.
    fn key_attribute(&self, condition: &Condition) -> Option<&str> {
        self.by.iter().map(By::name).find(|by| match condition {
            Condition::OneOf { name, .. } => name == by,
            Condition::Holds(expression) => expression.attributes().any(|name| name == *by),
        })
    }

    fn overrides(&self, keys: Keys) -> String {
        let overrides = sorted(&self.quotas.overrides, |_, _| false);
        let Some(attribute) = self.by.first().map(By::name) else {
            return String::new();
        };
        let mut text = String::new();
        let shown = if keys == Keys::Named { OVERRIDES_SHOWN } else { 0 };
        for &(value, index) in overrides.iter().take(shown) {
            let _ = write!(text, "; {attribute} {value} may {}", self.allowance(index));
        }
        match overrides.len().saturating_sub(shown) as u64 {
            0 => {}
            more if keys == Keys::Named => {
                let _ = write!(text, "; {} more have quotas of their own", grouped(more));
            }
            hidden => {
                let _ = write!(text, "; {} by {attribute} have quotas of their own", grouped(hidden));
            }
        }
        text
    }

    /// The name of a tier, in words where it stands for any value.
    fn tier(&self, name: &str) -> String {
        if let ([first, second], Some(two)) = (self.tier_by(), name.split_once(TIER_SEPARATOR)) {
            let word = |attribute: &str, value: &str| match value {
                ANY => format!("any other {attribute}"),
                value => value.to_owned(),
            };
            return format!("{}, {}", word(first, two.0), word(second, two.1));
        }
        name.to_owned()
    }

    /// How much one of its quotas admits, without a verb: `5 requests in any minute`.
    pub(crate) fn quota_phrase(&self, index: QuotaIndex) -> String {
        let noun = self.noun();
        let in_flight = match self.quotas.all.first() {
            Some(Quota::Concurrency(_)) => " in flight",
            _ => "",
        };
        match self.grant(index) {
            Grant::Quota(quota) => phrase(quota, noun),
            Grant::Deny => format!("no {noun}s{in_flight}"),
            Grant::Unlimited => format!("any number of {noun}s{in_flight}"),
        }
    }

    fn verb(&self) -> &'static str {
        match (self.quotas.all.first(), &self.cost) {
            (Some(Quota::Concurrency(_)), _) => "have",
            (_, Cost::Asked | Cost::Units(1)) => "make",
            (_, Cost::Units(_) | Cost::Attribute(_) | Cost::Computed(_)) => "use",
        }
    }

    fn noun(&self) -> &'static str {
        match &self.cost {
            Cost::Asked | Cost::Units(1) if self.failures.is_some() => "failed request",
            Cost::Asked | Cost::Units(1) => "request",
            Cost::Units(_) | Cost::Attribute(_) | Cost::Computed(_) => "unit",
        }
    }

    fn cost_clause(&self) -> String {
        match &self.cost {
            Cost::Asked | Cost::Units(1) => String::new(),
            Cost::Units(units) => format!("; a request counts as {}", grouped(*units)),
            Cost::Attribute(name) => format!("; a request costs what its {name} says"),
            Cost::Computed(expression) => format!("; a request costs {expression}"),
        }
    }

    fn penalty_clause(&self) -> String {
        // A limit in shadow refuses no key.
        let Some(penalty) = self.block_for.as_ref().filter(|_| self.mode != Mode::Shadow) else {
            return String::new();
        };
        let (after, within) = (counted(penalty.after(), "denial"), span(penalty.within()));
        format!("; after {after} in any {within} a key is refused for {}", duration(penalty.lasts()))
    }

    fn failure_clause(&self) -> String {
        let Stages { open_for, open_up_to, deny_after } = self.on_store_failure.stages();
        let mut clause = String::new();
        let mut stage = |text: String| {
            clause.push_str(if clause.is_empty() { "; while the store fails " } else { ", then " });
            clause.push_str(&text);
        };
        let is_open = !open_for.is_zero();
        if is_open {
            let bound = match open_up_to {
                Some(1) => "up to this node's share".to_owned(),
                Some(times) => format!("up to {} times this node's share", grouped(u64::from(times))),
                None => "without a bound".to_owned(),
            };
            stage(format!("every request passes for {}, {bound}", duration(open_for)));
        }
        match deny_after {
            None if !is_open => {}
            None => stage("by this node's share".to_owned()),
            Some(after) if after.is_zero() || after == open_for => stage("no request passes".to_owned()),
            Some(after) => {
                stage("by this node's share".to_owned());
                stage(format!("after {} no request passes", duration(after)));
            }
        }
        clause
    }

    fn mode_clause(&self) -> String {
        let leased = match self.consistency {
            Consistency::Leased => "; counted in leases",
            Consistency::Exact | Consistency::Auto => "",
        };
        let mode = match (self.mode, self.enforce_percent) {
            (Mode::Enforce, 100) => String::new(),
            (Mode::Enforce, percent) => {
                format!("; enforced for {percent} % of keys, only counted for the others")
            }
            (Mode::Shadow, _) => "; only counted, never denied (shadow)".to_owned(),
            (Mode::Off, _) => "; switched off".to_owned(),
        };
        format!("{leased}{mode}")
    }
}

fn subject(by: &[By]) -> String {
    let names: Vec<String> = by.iter().map(dimension).collect();
    match names.as_slice() {
        [] => "everybody together".to_owned(),
        [one] => format!("each {one}"),
        [one, other] => format!("each pair of {one} and {other}"),
        many => format!("each combination of {}", listed(many, "and")),
    }
}

/// The requests that a limit without counters is about.
fn every_request(by: &[By]) -> String {
    let names: Vec<&str> = by.iter().map(By::name).collect();
    match names.as_slice() {
        [] => "every request".to_owned(),
        some => format!("every request with {}", listed(some, "and")),
    }
}

/// An attribute, with how its addresses count if the policy says so.
fn dimension(by: &By) -> String {
    let name = by.name();
    match by.prefixes() {
        None | Some(Prefixes::Default) => name.to_owned(),
        Some(Prefixes::Bits { ipv4: 32, ipv6 }) => format!("{name} (IPv6 by /{ipv6})"),
        Some(Prefixes::Bits { ipv4, ipv6 }) => format!("{name} (IPv4 by /{ipv4}, IPv6 by /{ipv6})"),
    }
}

fn condition(condition: &Condition) -> String {
    match condition {
        Condition::Holds(expression) => expression.to_string(),
        Condition::OneOf { name, choices, sense: Negation::Is } => {
            format!("{name} {}", ways(name, choices).join(" or "))
        }
        Condition::OneOf { name, choices, sense: Negation::IsNot } => {
            let is_any = choices.globs().iter().any(Glob::is_any);
            if is_any {
                return format!("{name} is missing");
            }
            let ways: Vec<String> = ways(name, choices).iter().map(|way| negated(way)).collect();
            format!("{name} is missing or {}", ways.join(" and "))
        }
    }
}

/// The accepted values of an attribute, in words that follow its name.
fn ways(name: &str, choices: &Choices) -> Vec<String> {
    let mut ways = Vec::new();
    let (single, networks): (Vec<_>, Vec<_>) =
        choices.networks().iter().copied().partition(Network::is_single);
    let mut values: Vec<String> = choices.values().to_vec();
    values.extend(single.iter().map(ToString::to_string));
    let has = |method: &str| choices.values().iter().any(|value| value == method);
    if name == "method" && has("GET") && !has("HEAD") {
        values.push("HEAD".to_owned());
    }
    if !values.is_empty() {
        ways.push(format!("is {}", listed(&values, "or")));
    }
    if !networks.is_empty() {
        let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
        ways.push(format!("is in {}", listed(&networks, "or")));
    }
    let (any, some): (Vec<_>, Vec<_>) = choices.globs().iter().partition(|glob| glob.is_any());
    if !some.is_empty() {
        let patterns: Vec<String> = some.iter().map(ToString::to_string).collect();
        ways.push(format!("matches {}", listed(&patterns, "or")));
    }
    if !any.is_empty() {
        ways.push("is anything".to_owned());
    }
    ways
}

/// The negation of one choice.
fn negated(way: &str) -> String {
    match way.strip_prefix("is ") {
        Some(rest) => format!("is not {rest}"),
        None => way.replacen("matches ", "does not match ", 1),
    }
}

/// How much a quota admits.
fn phrase(quota: &Quota, noun: &str) -> String {
    match quota {
        Quota::TokenBucket(bucket) => averaged(bucket.rate(), bucket.burst(), noun),
        Quota::Gcra(bucket) => averaged(bucket.rate(), bucket.burst(), noun),
        Quota::FixedWindow(window) => windowed(window, noun) + &across(window),
        Quota::SlidingWindow(window) => {
            let amount = counted(window.limit(), noun);
            match window.estimate() {
                Estimate::Strict => format!("{amount} in any {}", span(window.period())),
                Estimate::Interpolate => format!("about {amount} in any {}", span(window.period())),
            }
        }
        Quota::SlidingLog(log) => {
            let amount = counted(log.limit(), noun);
            format!("{amount} in any {}, each counted by its own time", span(log.period()))
        }
        Quota::LeakyBucket(bucket) => spaced(bucket, noun),
        Quota::Concurrency(permits) => format!("{} in flight", counted(permits.limit(), noun)),
    }
}

/// A bucket that fills while it is emptied, so that a period may have its burst and its rate.
fn averaged(rate: Rate, burst: u64, noun: &str) -> String {
    let amount = counted(rate.units(), noun);
    let (on_average, immediate) = (each(rate.period()), grouped(burst));
    let at_most = grouped(burst.saturating_add(rate.units()));
    format!(
        "{amount} {on_average} on average, {immediate} at once and at most {at_most} in any {}",
        span(rate.period())
    )
}

fn windowed(window: &FixedWindow, noun: &str) -> String {
    let amount = counted(window.limit(), noun);
    match window.align() {
        Align::Epoch => format!("{amount} in each window of {}", whole_span(window.period())),
        Align::FirstHit => {
            let period = whole_span(window.period());
            format!("{amount} in each window of {period}, which begins with the first {noun}")
        }
        Align::Calendar(calendar) => {
            let unit = match calendar.unit() {
                CalendarUnit::Minute => "minute",
                CalendarUnit::Hour => "hour",
                CalendarUnit::Day => "day",
                CalendarUnit::Week => "week",
                CalendarUnit::Month => "month",
                CalendarUnit::Year => "year",
            };
            match calendar.billing_day() {
                1 => format!("{amount} in each calendar {unit} in {}", calendar.zone()),
                day => {
                    let clamped = if day > 28 { " or its last day" } else { "" };
                    format!("{amount} in each month from day {day}{clamped} on in {}", calendar.zone())
                }
            }
        }
    }
}

/// The most that the end of one window and the beginning of the next may admit together.
fn across(window: &FixedWindow) -> String {
    let comma = match window.align() {
        Align::Epoch => "",
        Align::FirstHit => ",",
        // Who agrees on a month of the calendar has both months.
        Align::Calendar(_) => return String::new(),
    };
    let at_most = grouped(window.limit().saturating_mul(2));
    format!("{comma} and at most {at_most} in any {}", span(window.period()))
}

fn spaced(bucket: &LeakyBucket, noun: &str) -> String {
    let amount = counted(bucket.rate().units(), noun);
    let burst = match bucket.capacity() - bucket.queue() {
        1 => "evenly spaced".to_owned(),
        burst => format!("evenly spaced after {} at once", grouped(burst)),
    };
    let queue = match bucket.queue() {
        0 => "with none waiting".to_owned(),
        queue => format!("with up to {} waiting their turn", grouped(queue)),
    };
    format!("{amount} {}, {burst}, {queue}", each(bucket.rate().period()))
}

/// The pairs of a map in an order that does not change: by `before`, then by name.
fn sorted(
    map: &TextMap<QuotaIndex>,
    before: impl Fn(QuotaIndex, QuotaIndex) -> bool,
) -> Vec<(&str, QuotaIndex)> {
    let mut pairs: Vec<(&str, QuotaIndex)> = map.iter().map(|(name, &index)| (&**name, index)).collect();
    pairs.sort_by(|a, b| {
        let less = before(b.1, a.1).cmp(&before(a.1, b.1));
        less.then_with(|| a.0.cmp(b.0))
    });
    pairs
}

fn listed<T: AsRef<str>>(items: &[T], last: &str) -> String {
    match items {
        [] => String::new(),
        [one] => one.as_ref().to_owned(),
        [first @ .., end] => {
            let first: Vec<&str> = first.iter().map(AsRef::as_ref).collect();
            format!("{} {last} {}", first.join(", "), end.as_ref())
        }
    }
}

fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count))
}

/// A number for people, with commas between thousands.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const UNITS: [(u64, &str, &str); 6] = [
    (86_400_000_000, "day", "a day"),
    (3_600_000_000, "hour", "an hour"),
    (60_000_000, "minute", "a minute"),
    (1_000_000, "second", "a second"),
    (1_000, "millisecond", "a millisecond"),
    (1, "microsecond", "a microsecond"),
];

/// The largest unit of which a period is a whole number, and that number.
fn units(period: Ticks) -> (u64, &'static str, &'static str) {
    let micros = period.as_micros();
    let found = UNITS.iter().find(|(unit, ..)| micros >= *unit && micros.is_multiple_of(*unit));
    let &(unit, name, one) = found.unwrap_or(&UNITS[5]);
    (micros / unit, name, one)
}

/// `a second`, `every 5 minutes`.
fn each(period: Ticks) -> String {
    match units(period) {
        (1, _, one) => one.to_owned(),
        (count, name, _) => format!("every {} {name}s", grouped(count)),
    }
}

/// `second`, `5 minutes`.
fn span(period: Ticks) -> String {
    match units(period) {
        (1, name, _) => name.to_owned(),
        (count, name, _) => format!("{} {name}s", grouped(count)),
    }
}

/// `one second`, `5 minutes`.
fn whole_span(period: Ticks) -> String {
    match units(period) {
        (1, name, _) => format!("one {name}"),
        _ => span(period),
    }
}

/// `30 s`.
fn duration(period: Ticks) -> String {
    let (count, name, _) = units(period);
    let short = match name {
        "hour" => "h",
        "minute" => "min",
        "second" => "s",
        "millisecond" => "ms",
        "microsecond" => "us",
        _ if count == 1 => "day",
        _ => "days",
    };
    format!("{} {short}", grouped(count))
}
