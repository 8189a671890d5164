//! Warnings about a policy for HTTP requests: limits that an unauthenticated client can evade, because it can invent or
//! omit the attributes they count by; and limits that mean less on some protocols, or while a store is unreachable.

use std::collections::BTreeSet;

use tollgate::credential::CREDENTIAL;
use tollgate::policy::source::{Position, quoted};
use tollgate::policy::{
    By, Condition, ExtraAttributes, Finding, Grant, Limit, Mode, Negation, OnStoreFailure, Severity,
};
use tollgate::{Policy, Quota};
use tollgate_tower::attributes::Reader;
use tollgate_tower::attributes::source::{SetBy, Source};

/// A policy and the name of its file, for warnings about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubts<'p> {
    pub(crate) file: &'p str,
    pub(crate) policy: &'p Policy,
}

impl Doubts<'_> {
    /// A warning about a field of the limit with this index.
    pub(crate) fn finding(self, index: usize, field: &str, message: String, accepted: String) -> Finding {
        let Position { line, column } = self.policy.position(index, field);
        Finding {
            severity: Severity::Warning,
            file: self.file.to_owned(),
            line,
            column,
            field: format!("limits[{index}].{field}"),
            limit: self.policy.limits().get(index).map(|limit| quoted(limit.name())),
            message,
            accepted,
        }
    }
}

/// The attributes that an unauthenticated client chooses, and whether credentials are known.
#[derive(Debug)]
pub(crate) struct UntrustedAttributes {
    /// Attributes that a client can invent.
    invented: BTreeSet<String>,
    /// Attributes that a request may lack.
    absent: BTreeSet<String>,
    knows_callers: bool,
}

impl Default for UntrustedAttributes {
    /// The defaults, for an unknown config.
    fn default() -> Self {
        Self::of(&Reader::default())
    }
}

impl UntrustedAttributes {
    /// The attributes as `reader` reads them from requests.
    pub(crate) fn of(reader: &Reader) -> Self {
        let knows_callers = reader.callers.is_some();
        let named = |is_so: &dyn Fn(&Source) -> bool| {
            let mapped = reader.mapped.iter().filter(|mapped| is_so(&mapped.source));
            mapped.map(|mapped| mapped.name.clone()).collect::<BTreeSet<String>>()
        };
        let mut invented = named(&|source| is_invented(source, reader));
        let mut absent = named(&|source| may_lack(source));
        if !knows_callers {
            invented.insert(CREDENTIAL.to_owned());
        }
        absent.insert(CREDENTIAL.to_owned());
        if let Some(callers) = &reader.callers {
            absent.extend(callers.now().names().map(str::to_owned));
        }
        Self { invented, absent, knows_callers }
    }

    /// The warnings about a policy, each with what would be accepted.
    pub(crate) fn warnings(&self, doubts: Doubts<'_>) -> Vec<Finding> {
        let Doubts { policy, .. } = doubts;
        let limits = policy.limits();
        let deciding = || limits.iter().enumerate().filter(|(_, limit)| limit.mode() != Mode::Off);
        let doubtful = deciding().filter_map(|(index, limit)| {
            let name = limit.by().iter().map(By::name).find(|name| self.is_chosen(name))?;
            let is_covered = |(_, other): (usize, &Limit)| self.covers(policy, other, limit);
            (!deciding().any(is_covered)).then(|| self.warning(doubts, index, limit, name))
        });
        doubtful.collect()
    }

    /// Whether a client can choose the counter by this attribute.
    fn is_chosen(&self, name: &str) -> bool {
        self.invented.contains(name) || self.absent.contains(name)
    }

    /// Whether `limit` bounds, by address, every request to which `other` applies.
    fn covers(&self, policy: &Policy, limit: &Limit, other: &Limit) -> bool {
        let names = || limit.by().iter().map(By::name);
        let is_client = |name: &str| policy.is_address(name) && !self.is_chosen(name);
        let counts_addresses =
            names().any(is_client) && !names().any(|name| self.is_chosen(name) || is_open(limit, name));
        let shown = |condition: &Condition| format!("{condition:?}");
        let others: Vec<String> = other.when().iter().map(shown).collect();
        counts_addresses
            && limit.extra_attributes() == ExtraAttributes::Any
            && self.refuses(limit)
            && limit.when().iter().all(|condition| others.contains(&shown(condition)))
    }

    /// Whether a limit refuses every unauthenticated client that exceeds it.
    fn refuses(&self, limit: &Limit) -> bool {
        let is_whole =
            limit.mode() == Mode::Enforce && limit.enforce_percent() == 100 && limit.failures().is_none();
        // A client that can choose its tier may choose an unlimited one.
        let may_choose = limit.tier_by().iter().any(|name| self.is_chosen(name));
        let is_bounded = |(name, grant): &(String, Grant<&Quota>)| {
            let is_meant = name == "rate" || may_choose && name.starts_with("tier ");
            !is_meant || *grant != Grant::Unlimited
        };
        is_whole && limit.named_grants().iter().all(is_bounded)
    }

    fn warning(&self, doubts: Doubts<'_>, index: usize, limit: &Limit, name: &str) -> Finding {
        let what = if self.invented.contains(name) {
            "a stranger can invent, each time for a fresh quota, or leave out"
        } else {
            "a request may lack"
        };
        let beside = if limit.when().is_empty() { "" } else { " and the same `when`" };
        let known = if self.knows_callers || name != CREDENTIAL {
            ""
        } else {
            "; with a callers file (`callers:` in the config) an invented key is no identity, and counts by ip alone"
        };
        let message = format!("counts by {name}, which {what}, and no limit by ip stands beside it");
        let accepted = format!("another limit with `by: [ip]`{beside}{known}");
        doubts.finding(index, "by", message, accepted)
    }
}

/// Whether a client can send any number of values of a part of the request, each with a fresh quota, because no
/// condition lists them.
fn is_open(limit: &Limit, name: &str) -> bool {
    let is_named = |condition: &Condition| match condition {
        Condition::OneOf { name: of, choices, sense: Negation::Is } => {
            of == name && choices.globs().is_empty()
        }
        _ => false,
    };
    ["path", "host", "method"].contains(&name) && !limit.when().iter().any(is_named)
}

/// Whether requests are known to come through the gateway, which sees how they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The config has routes.
    Seen,
    /// The config is unknown.
    Unknown,
}

/// Cases in which a limit does not do what it says: on protocols that do not report how a request ended, and while a
/// shared store is unreachable.
pub(crate) fn exceptions(doubts: Doubts<'_>, ends: Ends) -> Vec<Finding> {
    let mut found = Vec::new();
    let limits = doubts.policy.limits().iter().enumerate();
    for (index, limit) in limits.filter(|(_, limit)| limit.mode() != Mode::Off) {
        if limit.failures().is_some() && ends == Ends::Unknown {
            let message = "RLS, RLQS, RESP and /v1/authz do not tell how a request ended, so all requests through them \
                           count as failures";
            let accepted = "the gateway, the middleware, or POST /v1/check with reports";
            found.push(doubts.finding(index, "count", message.to_owned(), accepted.to_owned()));
        }
        let stays_closed =
            matches!(limit.on_store_failure(), OnStoreFailure::Deny | OnStoreFailure::Staged(_));
        if limit.block_for().is_some() && !stays_closed {
            let message = "while a shared store is away blocks are not seen and none begins";
            let accepted = "`on_store_failure: deny` beside it, where a blocked key must not pass then";
            found.push(doubts.finding(index, "block_for", message.to_owned(), accepted.to_owned()));
        }
    }
    found
}

/// Whether the client can invent the value.
fn is_invented(source: &Source, reader: &Reader) -> bool {
    match source {
        Source::Header { set_by, .. } => *set_by == SetBy::Client,
        Source::Query(_) | Source::Cookie(_) | Source::Bearer => true,
        Source::Credential => reader.callers.is_none(),
        Source::Hashed(inner) | Source::Attribute { source: inner, .. } => is_invented(inner, reader),
        Source::FirstOf(sources) => sources.iter().any(|source| is_invented(source, reader)),
        _ => false,
    }
}

/// Whether the client can omit the value.
fn may_lack(source: &Source) -> bool {
    match source {
        Source::Client
        | Source::Peer
        | Source::Method
        | Source::Host
        | Source::Fixed(_)
        | Source::Path(_) => false,
        // A client cannot omit what a proxy sets, or a verified token. A request without it belongs to no identity.
        Source::Header { set_by: SetBy::Proxy, .. } | Source::Jwt { .. } | Source::Extension(_) => false,
        Source::Hashed(inner) | Source::Attribute { source: inner, .. } => may_lack(inner),
        Source::FirstOf(sources) => sources.iter().all(may_lack),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::Mapped;
    use tollgate_tower::attributes::callers::{ActiveCallers, Callers};

    use super::*;

    fn warnings(strangers: &UntrustedAttributes, limits: &str) -> usize {
        let policy = Policy::compile("p", format!("limits: [{limits}]").as_bytes()).unwrap();
        let warnings = strangers.warnings(Doubts { file: "p", policy: &policy });
        assert!(warnings.iter().all(|warning| warning.accepted.contains("`by: [ip]`")), "{warnings:?}");
        warnings.len()
    }

    fn reading(source: Source, callers: Option<&str>) -> UntrustedAttributes {
        let callers = callers.map(|text| ActiveCallers::new(Callers::read("c", text.as_bytes()).unwrap()));
        let mapped = vec![Mapped { name: "caller".to_owned(), source }];
        UntrustedAttributes::of(&Reader { mapped, callers, ..Reader::default() })
    }

    /// A limit that needs to know how requests end, or needs a reachable store, gets a warning. Following the advice
    /// removes it.
    #[test]
    fn exceptions_are_reported_unless_settled() {
        let exception_text = |fields: &str, ends| {
            let text = format!("limits: [{{name: login, by: [ip], rate: 5/h, {fields}}}]");
            let policy = Policy::compile("p", text.as_bytes()).unwrap();
            let found = exceptions(Doubts { file: "p", policy: &policy }, ends);
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let failures = exception_text("count: failures", Ends::Unknown);
        assert!(
            failures.starts_with("p:1:52: warning: limits[0] \"login\".count: RLS, RLQS, RESP and /v1/authz"),
            "{failures}"
        );
        assert_eq!(exception_text("count: failures", Ends::Seen), "");
        let block = exception_text("block_for: 10m", Ends::Seen);
        assert!(
            block.starts_with("p:1:56: warning: limits[0] \"login\".block_for: while a shared store is away"),
            "{block}"
        );
        assert_eq!(exception_text("block_for: 10m, on_store_failure: deny", Ends::Seen), "");
        assert_eq!(exception_text("block_for: 10m, count: failures, mode: off", Ends::Unknown), "");
    }

    /// A limit by attributes that clients choose gets a warning, unless another limit by ip applies to the same
    /// requests.
    #[test]
    fn a_limit_by_ip_settles_it() {
        let strangers = UntrustedAttributes::default();
        let key = "{name: a, by: [api_key], rate: 3/h}";
        assert_eq!(warnings(&strangers, key), 1);
        assert_eq!(warnings(&strangers, &format!("{key}, {{name: b, by: [ip], rate: 9/h}}")), 0);
        assert_eq!(
            warnings(&strangers, &format!("{key}, {{name: b, rate: 9/h}}")),
            1,
            "one counter for all requests protects no key"
        );
        assert_eq!(warnings(&strangers, &format!("{key}, {{name: b, by: [ip, api_key], rate: 9/h}}")), 2);
        // Regression: each of these silenced the warning, although it refuses no request, or only a few.
        for fields in [
            "by: [ip], mode: off, rate: 9/h",
            "by: [ip], mode: shadow, rate: 9/h",
            "by: [ip], enforce_percent: 10, rate: 9/h",
            "by: [ip], count: failures, rate: 9/h",
            "by: [ip], rate: unlimited",
            "by: [ip, path], rate: 9/h",
            "by: [ip, host], rate: 9/h",
            "by: [ip], rate: 9/h, tier_by: api_key, tiers: {k1: unlimited}",
        ] {
            assert_eq!(warnings(&strangers, &format!("{key}, {{name: b, {fields}}}")), 1, "{fields}");
        }
        for fields in [
            "by: [remote_address], rate: 9/h",
            "by: [ip, tenant], rate: 9/h",
            "by: [ip/48], rate: 9/h, overrides: {10.0.0.1: unlimited}",
        ] {
            assert_eq!(warnings(&strangers, &format!("{key}, {{name: b, {fields}}}")), 0, "{fields}");
        }
        assert_eq!(
            warnings(&strangers, &format!("{key}, {{name: b, when: {{path: /x}}, by: [ip], rate: 9/h}}")),
            1
        );
        let narrow = "{name: a, when: {path: /x}, by: [api_key], rate: 3/h}";
        assert_eq!(
            warnings(&strangers, &format!("{narrow}, {{name: b, when: {{path: /x}}, by: [ip], rate: 9/h}}")),
            0
        );
        assert_eq!(warnings(&strangers, "{name: a, by: [tenant], rate: 3/h}, {name: b, rate: 1/h}"), 0);
    }

    /// Regression: `policy check` recommended `first_of: [api_key, ip]`, and twelve of twelve invented keys passed a
    /// limit of three. The recommendation is right once credentials are known.
    #[test]
    fn falling_back_to_the_address_helps_only_against_known_callers() {
        let chosen = || Source::FirstOf(vec![Source::Credential, Source::Client]);
        let limit = "{name: a, by: [caller], rate: 3/h}";
        assert_eq!(warnings(&reading(chosen(), None), limit), 1);
        assert_eq!(warnings(&reading(chosen(), Some("callers: [{key: k1, plan: pro}]")), limit), 0);
        let known =
            reading(Source::Cookie("sid".to_owned()).hashed(), Some("callers: [{key: k1, plan: pro}]"));
        assert_eq!(warnings(&known, limit), 1);
        assert_eq!(
            warnings(&known, "{name: a, by: [api_key], rate: 3/h}, {name: b, by: [plan], rate: 1/h}"),
            2
        );
    }
}
