//! Detects a new policy that looks like an accident: most limits gone, a limit switched off, no limit left that denies,
//! or a number changed tenfold. A limit that only counts from now on, the first step of a rollout, is a warning. It compares [`PolicySummary`] values, which every kind of rules provides.

use std::collections::BTreeMap;

use tollgate::policy::{Grant, Mode};
use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Policy, Quota, Ticks};
use tollgate_compat::{CompatConfig, Numbered};

use crate::policy_file::Rules;

/// A number that changes by this factor or more is suspicious.
const FACTOR: u128 = 10;
/// Why a rule of another program only counts.
const SHADOW_RULE: &str = "shadow_mode";
/// Maximum number of suspicions that are spelled out, and of names in one of them.
const SHOWN_MAX: usize = 10;

/// A summary of rules: the name and numbers of each limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicySummary {
    /// By name.
    pub(crate) limits: BTreeMap<String, LimitSummary>,
}

/// One limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitSummary {
    /// Whether it denies requests.
    pub(crate) enforcement: Enforcement,
    /// Its numbers, by role: `rate`, `tier free`, `override acme`.
    pub(crate) numbers: BTreeMap<String, Grant<Number>>,
}

/// Whether a limit denies requests, or else by which setting it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Enforcement {
    #[default]
    Denies,
    /// It counts and reports.
    Counts(&'static str),
    Off(&'static str),
}

/// The guard's findings in new rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Suspicions {
    /// Changes that look like an accident. Only force activates the rules.
    pub(crate) accidents: Vec<String>,
    /// Changes that are accepted, and shown.
    pub(crate) warnings: Vec<String>,
}

/// The units per period, and the maximum at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    pub(crate) units: u64,
    /// Zero for a concurrency limit, which has no period.
    pub(crate) period: Ticks,
    pub(crate) burst: u64,
}

impl PolicySummary {
    /// Summarizes rules.
    pub(crate) fn of(rules: &Rules) -> Self {
        match rules.compat() {
            None => Self::of_policy(rules.policy()),
            Some(compat) => Self::of_compat(compat),
        }
    }

    /// Summarizes another program's configuration.
    fn of_compat(compat: &CompatConfig) -> Self {
        let line = |rule: Numbered| {
            let number =
                Number { units: rule.units, period: Ticks::from_secs(rule.seconds), burst: rule.units };
            let numbers = BTreeMap::from([("rate".to_owned(), Grant::Quota(number))]);
            let enforcement = match rule.off {
                None => Enforcement::Denies,
                Some(why) if why == SHADOW_RULE => Enforcement::Counts(why),
                Some(why) => Enforcement::Off(why),
            };
            (rule.name, LimitSummary { enforcement, numbers })
        };
        Self { limits: compat.numbers().into_iter().map(line).collect() }
    }

    /// Summarizes a policy.
    pub(crate) fn of_policy(policy: &Policy) -> Self {
        let line = |limit: &tollgate::policy::Limit| LimitSummary {
            enforcement: match (limit.mode(), limit.enforce_percent()) {
                (Mode::Off, _) => Enforcement::Off("mode: off"),
                (Mode::Shadow, _) => Enforcement::Counts("mode: shadow"),
                (Mode::Enforce, 0) => Enforcement::Counts("enforce_percent: 0"),
                (Mode::Enforce, _) => Enforcement::Denies,
            },
            numbers: limit
                .named_grants()
                .into_iter()
                .map(|(name, grant)| (name, numbers_of(grant)))
                .collect(),
        };
        Self { limits: policy.limits().iter().map(|limit| (limit.name().to_owned(), line(limit))).collect() }
    }
}

fn numbers_of(grant: Grant<&Quota>) -> Grant<Number> {
    match grant {
        Grant::Deny => Grant::Deny,
        Grant::Quota(quota) => Grant::Quota(Number::of(quota)),
        Grant::Unlimited => Grant::Unlimited,
    }
}

impl Number {
    fn of(quota: &Quota) -> Self {
        let burst = quota.capacity();
        match quota.rate() {
            Some(rate) => Self { units: rate.units(), period: rate.period(), burst },
            None => Self { units: burst, period: Ticks::ZERO, burst },
        }
    }
}

/// Everything suspicious about the `new` rules compared with the `old` ones, each in a sentence.
pub(crate) fn suspicions(old: &PolicySummary, new: &PolicySummary) -> Suspicions {
    let mut found: Vec<String> = vanished(old, new).into_iter().collect();
    let mut counting: Vec<String> = Vec::new();
    for (name, was) in &old.limits {
        let Some(is) = new.limits.get(name) else { continue };
        match (was.enforcement, is.enforcement) {
            (Enforcement::Denies, Enforcement::Off(why)) => {
                found.push(format!("limit \"{name}\" is switched off ({why})"));
            }
            (Enforcement::Denies, Enforcement::Counts(why)) => {
                counting.push(format!("limit \"{name}\" denied requests, and only counts them now ({why})"));
            }
            _ => {}
        }
        // When a tier or an override is removed, its keys get the default rate.
        let everybody = is.numbers.get("rate");
        for (role, was) in &was.numbers {
            let Some(is) = is.numbers.get(role).or(everybody) else { continue };
            found.extend(changed(was, is).map(|change| format!("limit \"{name}\", {role}: {change}")));
        }
    }
    let denies = |limit: &LimitSummary| limit.enforcement == Enforcement::Denies;
    // The first step of a rollout leaves others, or is about the only limit. A template gone wrong changes all of several.
    if counting.len() > 1 && !new.limits.values().any(denies) {
        found.insert(0, "no limit denies requests any more".to_owned());
        found.append(&mut counting);
    }
    Suspicions { accidents: shortened(found), warnings: shortened(counting) }
}

fn vanished(old: &PolicySummary, new: &PolicySummary) -> Option<String> {
    let gone: Vec<&String> = old.limits.keys().filter(|name| !new.limits.contains_key(*name)).collect();
    if gone.len() * 2 <= old.limits.len() {
        return None;
    }
    let named: Vec<String> = gone.iter().map(|name| format!("\"{name}\"")).collect();
    Some(format!("{} of {} limits vanish: {}", gone.len(), old.limits.len(), shortened(named).join(", ")))
}

/// The suspicious aspect of a changed value.
fn changed(was: &Grant<Number>, is: &Grant<Number>) -> Option<String> {
    match (was, is) {
        (Grant::Quota(was), Grant::Quota(is)) => changed_number(was, is),
        (Grant::Deny, _) | (Grant::Unlimited, Grant::Unlimited) => None,
        (was, Grant::Deny) => Some(format!("{} becomes deny, which admits no request", value(was))),
        (was, is) => Some(format!("{} becomes {}", value(was), value(is))),
    }
}

fn value(value: &Grant<Number>) -> String {
    match value {
        Grant::Deny => "deny".to_owned(),
        Grant::Quota(number) => rate(number),
        Grant::Unlimited => "unlimited".to_owned(),
    }
}

/// The suspicious aspect of a changed number.
fn changed_number(was: &Number, is: &Number) -> Option<String> {
    if is.units == 0 && was.units > 0 {
        return Some(format!("{} becomes 0, which admits no request", rate(was)));
    }
    let over_time = (
        u128::from(was.units) * u128::from(is.period.as_micros()),
        u128::from(is.units) * u128::from(was.period.as_micros()),
    );
    let burst = (u128::from(was.burst), u128::from(is.burst));
    if let Some(much) = factor(over_time) {
        return Some(format!("{} becomes {}, {much}", rate(was), rate(is)));
    }
    factor(burst).map(|much| format!("{} at once becomes {} at once, {much}", was.burst, is.burst))
}

/// The factor of a change, if it is suspicious. Without a number there is nothing to compare.
fn factor((was, is): (u128, u128)) -> Option<String> {
    let times = |larger: u128, smaller: u128| larger.checked_div(smaller).filter(|times| *times >= FACTOR);
    if is > was {
        times(is, was).map(|times| format!("{times} times as much"))
    } else {
        times(was, is).map(|times| format!("{times} times less"))
    }
}

fn rate(number: &Number) -> String {
    let micros = number.period.as_micros();
    let units = [
        (86_400 * TICKS_PER_SECOND, "d"),
        (3_600 * TICKS_PER_SECOND, "h"),
        (60 * TICKS_PER_SECOND, "min"),
        (TICKS_PER_SECOND, "s"),
        (1_000, "ms"),
    ];
    if micros == 0 {
        return format!("{} in flight", number.units);
    }
    let exact = units.into_iter().find(|(unit, _)| micros.is_multiple_of(*unit));
    let (count, unit) = exact.map_or((micros, "us"), |(unit, name)| (micros / unit, name));
    if count == 1 {
        format!("{}/{unit}", number.units)
    } else {
        format!("{} per {count}{unit}", number.units)
    }
}

/// The first few items, and how many more there are.
fn shortened(mut all: Vec<String>) -> Vec<String> {
    if all.len() > SHOWN_MAX {
        let more = all.len() - SHOWN_MAX;
        all.truncate(SHOWN_MAX);
        all.push(format!("and {more} more"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(policy: &str) -> PolicySummary {
        PolicySummary::of_policy(&Policy::compile("test", policy.as_bytes()).unwrap())
    }

    fn suspicion(old: &str, new: &str) -> String {
        suspicions(&summary(old), &summary(new)).accidents.join("; ")
    }

    const FOUR: &str = "limits: [{name: a, rate: 10/s}, {name: b, rate: 10/s}, {name: c, rate: 10/s}, {name: d, rate: 10/s}]";

    /// Half of the limits may be removed, but not one more, and the message names them.
    #[test]
    fn vanishing_limits() {
        assert_eq!(suspicion(FOUR, "limits: [{name: a, rate: 10/s}, {name: b, rate: 10/s}]"), "");
        assert_eq!(
            suspicion(FOUR, "limits: [{name: a, rate: 10/s}, {name: e, rate: 10/s}]"),
            "3 of 4 limits vanish: \"b\", \"c\", \"d\""
        );
    }

    /// An enforced limit that is switched off is suspicious; switching it on is not.
    #[test]
    fn switched_off() {
        let (on, off) =
            ("limits: [{name: a, by: [k], rate: 10/s}]", "limits: [{name: a, rate: 10/s, mode: off}]");
        assert_eq!(suspicion(on, off), "limit \"a\" is switched off (mode: off)");
        assert_eq!(suspicion(off, on), "");
    }

    /// The story: `mode: shadow` for a limit that is in doubt, the first step that the guides advise, was refused as an
    /// accident. It is accepted with a warning, also for the only limit. All of several limits are an accident.
    #[test]
    fn one_limit_may_only_count() {
        let of = |a: &str, b: &str| {
            format!("limits: [{{name: a, by: [k], rate: 10/s{a}}}, {{name: b, by: [k], rate: 10/s{b}}}]")
        };
        for how in ["mode: shadow", "enforce_percent: 0"] {
            let warning =
                |name: &str| format!("limit \"{name}\" denied requests, and only counts them now ({how})");
            let (on, off) = (of("", ""), of(&format!(", {how}"), ""));
            let found = suspicions(&summary(&on), &summary(&off));
            assert_eq!(found, Suspicions { accidents: Vec::new(), warnings: vec![warning("a")] });
            assert_eq!(suspicions(&summary(&off), &summary(&on)), Suspicions::default());
            let one = |more: &str| format!("limits: [{{name: a, by: [k], rate: 10/s{more}}}]");
            let found = suspicions(&summary(&one("")), &summary(&one(&format!(", {how}"))));
            assert_eq!(found, Suspicions { accidents: Vec::new(), warnings: vec![warning("a")] });
            let all = of(&format!(", {how}"), &format!(", {how}"));
            let accidents = vec!["no limit denies requests any more".to_owned(), warning("a"), warning("b")];
            let found = suspicions(&summary(&on), &summary(&all));
            assert_eq!(found, Suspicions { accidents, warnings: Vec::new() });
            assert_eq!(suspicions(&summary(&off), &summary(&all)).accidents, Vec::<String>::new());
        }
    }

    /// A ninefold change is accepted, and a tenfold change is suspicious, up or down, for the rate or the burst.
    #[test]
    fn tenfold() {
        let of = |rate: &str| format!("limits: [{{name: a, by: [k], rate: {rate}}}]");
        for (old, new, expected) in [
            ("10/s", "99/s burst 99", ""),
            ("10/s", "100/s burst 10", "limit \"a\", rate: 10/s becomes 100/s, 10 times as much"),
            ("100/min", "10/min", "limit \"a\", rate: 100/min becomes 10/min, 10 times less"),
            ("5/min", "5/h", "limit \"a\", rate: 5/min becomes 5/h, 60 times less"),
            ("10/s", "10/s burst 100", "limit \"a\", rate: 10 at once becomes 100 at once, 10 times as much"),
            ("300 per 5m", "60/min burst 300", ""),
        ] {
            assert_eq!(suspicion(&of(old), &of(new)), expected, "{old} → {new}");
        }
    }

    /// Tiers and overrides are compared by name. A removed one is compared with the rate that its keys get now.
    #[test]
    fn tiers_and_overrides() {
        let of = |tiers: &str, overrides: &str| {
            format!(
                "limits: [{{name: a, by: [t], tier_by: p, rate: 10/s, tiers: {{{tiers}}}, overrides: {{other: 7/s{overrides}}}}}]"
            )
        };
        let old = of("free: 10/s, pro: 100/s", ", acme: 5000/s");
        assert_eq!(suspicion(&old, &of("pro: 100/s, free: 20/s", ", acme: 5000/s, new: 90k/s")), "");
        assert_eq!(
            suspicion(&old, &of("free: 10/s, pro: 100/s", "")),
            "limit \"a\", override acme: 5000/s becomes 10/s, 500 times less"
        );
        assert_eq!(
            suspicion(&old, &of("free: 100/s, pro: 100/s", ", acme: 5000/s")),
            "limit \"a\", tier free: 10/s becomes 100/s, 10 times as much"
        );
    }

    /// A value that becomes `deny` or `unlimited`, or was `unlimited`, is suspicious. A value that no longer denies is
    /// not.
    #[test]
    fn words_and_rates() {
        let of = |rate: &str| format!("limits: [{{name: a, by: [t], rate: {rate}}}]");
        assert_eq!(
            suspicion(&of("10/s"), &of("deny")),
            "limit \"a\", rate: 10/s becomes deny, which admits no request"
        );
        assert_eq!(suspicion(&of("10/s"), &of("unlimited")), "limit \"a\", rate: 10/s becomes unlimited");
        assert_eq!(suspicion(&of("unlimited"), &of("10/s")), "limit \"a\", rate: unlimited becomes 10/s");
        assert_eq!(suspicion(&of("deny"), &of("10/s")), "");
    }

    /// A compat rule that becomes zero, and a tenfold change of a concurrency limit, are suspicious.
    #[test]
    fn zero_and_in_flight() {
        let number = |units| Grant::Quota(Number { units, period: Ticks::from_secs(1), burst: units });
        assert_eq!(
            changed(&number(5), &number(0)),
            Some("5/s becomes 0, which admits no request".to_owned())
        );
        assert_eq!(changed(&number(0), &number(5)), None);
        let of =
            |permits: u64| format!("limits: [{{name: a, by: [k], concurrency: {permits}, permit_ttl: 1s}}]");
        assert!(suspicion(&of(10), &of(100)).contains("10 at once becomes 100 at once"));
    }

    /// However many suspicions there are, the message stays short.
    #[test]
    fn messages_are_bounded() {
        let limits = |rate: &str| {
            let all: Vec<String> =
                (0..500).map(|n| format!("{{name: l{n}, by: [k{n}], rate: {rate}}}")).collect();
            format!("limits: [{}]", all.join(", "))
        };
        let found = suspicions(&summary(&limits("10/s")), &summary(&limits("1000/s"))).accidents;
        assert_eq!((found.len(), found.last().map(String::as_str)), (11, Some("and 490 more")));
    }

    /// Configurations of other programs are guarded like policies.
    #[test]
    fn compat_rules_are_guarded() {
        use tollgate_compat::{Format, Source, guard};
        let rules = |format, text: &str| {
            let source = Source { name: "f".to_owned(), bytes: text.as_bytes().to_vec() };
            PolicySummary::of(&Rules::Compat(
                CompatConfig::compile(format, &[source]).unwrap().0,
                guard().unwrap(),
            ))
        };
        let envoy = |requests: u32, more: &str| {
            let rule = format!("{{key: k, rate_limit: {{unit: day, requests_per_unit: {requests}}}{more}}}");
            rules(Format::Envoy, &format!("domain: d\ndescriptors: [{rule}]"))
        };
        assert_eq!(suspicions(&envoy(100, ""), &envoy(50, "")), Suspicions::default());
        let tenth = suspicions(&envoy(100, ""), &envoy(1, "")).accidents;
        assert!(tenth[0].starts_with("limit \"d: each k\", rate: "), "{tenth:?}");
        let shadow = suspicions(&envoy(9, ""), &envoy(9, ", shadow_mode: true")).warnings;
        assert!(shadow[0].contains("shadow_mode"), "{shadow:?}");
        let limitador = |text: &str| rules(Format::Limitador, text);
        let one = limitador("- {namespace: n, max_value: 5, seconds: 60, conditions: [], variables: []}");
        assert!(suspicions(&one, &limitador("[]")).accidents[0].starts_with("1 of 1 limits vanish"));
    }
}
