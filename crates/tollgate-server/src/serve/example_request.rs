//! A sample request to which limits of a policy apply, for people who try the server once or many times.

use serde_json::{Map, Value};
use tollgate::policy::glob::Glob;
use tollgate::policy::{Condition, Cost, Grant, Limit, Negation};
use tollgate::{CheckRequest, Policy, Quota};

/// Maximum number of limits that are examined. A policy without a suitable one among these gets no sample.
const LIMITS_TRIED: usize = 100;
/// Maximum number of overrides of a limit that are examined.
const OVERRIDES_TRIED: usize = 3;
/// How many times in a row the sample should be admitted.
const TRIES: u64 = 1_000;

/// The body of a check to which at least one limit applies, safe inside single quotes of a shell. `None` if no such
/// check can be built. The check can be sent [`TRIES`] times if the policy allows one that can. Otherwise it shows a
/// limit at work. If each check would take a permit that is never released, the sample has cost 0 and only reads.
pub(super) fn example_request(policy: &Policy) -> Option<String> {
    let tried = policy.limits().iter().take(LIMITS_TRIED);
    let candidates =
        tried.flat_map(|limit| attributes(limit).into_iter().flat_map(|one| variants(limit, one)));
    let answered = candidates.filter_map(|attributes| Some((lasting(policy, &attributes)?, attributes)));
    // The first of the best candidates.
    let (lasting, attributes) = answered.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    let body = match lasting {
        Lasting::Permits => serde_json::json!({ "attributes": attributes, "cost": 0 }),
        Lasting::Refused | Lasting::Denied | Lasting::Long => serde_json::json!({ "attributes": attributes }),
    };
    let body = body.to_string();
    (!body.contains('\'')).then_some(body)
}

/// How long a request can be repeated, from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lasting {
    /// The policy always denies it.
    Refused,
    /// Each request takes a permit, until none is left.
    Permits,
    /// A limit denies it after a while.
    Denied,
    /// [`TRIES`] times or more.
    Long,
}

/// The attributes as they are, and with each of the first overrides of the limit, which may allow more.
fn variants(limit: &Limit, attributes: Map<String, Value>) -> Vec<Map<String, Value>> {
    let mut all = vec![attributes.clone()];
    let Some(first) = limit.by().first() else { return all };
    let named = limit.named_grants();
    let overrides = named.iter().filter_map(|(name, _)| name.strip_prefix("override "));
    for value in overrides.take(OVERRIDES_TRIED) {
        let mut other = attributes.clone();
        other.insert(first.name().to_owned(), value.into());
        all.push(other);
    }
    all
}

/// Attributes to which this limit should apply. `None` if an expression decides that.
fn attributes(limit: &Limit) -> Option<Map<String, Value>> {
    let mut attributes = Map::new();
    for by in limit.by() {
        let value = if by.prefixes().is_some() { "203.0.113.7" } else { "demo" };
        attributes.insert(by.name().to_owned(), value.into());
    }
    for condition in limit.when() {
        let (name, choices) = match condition {
            Condition::OneOf { name, choices, sense: Negation::Is } => (name, choices),
            // It holds without the attribute, and probably with the value above.
            Condition::OneOf { sense: Negation::IsNot, .. } => continue,
            Condition::Holds(_) => return None,
        };
        let network = choices.networks().first().map(|network| network.first().to_string());
        let pattern = choices.globs().first().map(Glob::example);
        attributes.insert(name.clone(), choices.values().first().cloned().or(network).or(pattern)?.into());
    }
    match limit.cost() {
        Cost::Asked | Cost::Units(_) => {}
        Cost::Attribute(name) => {
            attributes.insert(name.clone(), 1.into());
        }
        Cost::Computed(expression) => {
            for name in expression.attributes() {
                attributes.entry(name).or_insert_with(|| 1.into());
            }
        }
    }
    Some(attributes)
}

/// How long a request with these attributes can be repeated. `None` if no limit applies to it.
fn lasting(policy: &Policy, attributes: &Map<String, Value>) -> Option<Lasting> {
    let mut request = CheckRequest::new();
    for (name, value) in attributes {
        let added = match value {
            Value::String(text) => request.with(name, text),
            _ => request.with(name, value.as_i64().unwrap_or(1)),
        };
        request = added.ok()?;
    }
    let matches = policy.matches(&request).ok()?;
    let quotas = matches.iter().filter_map(|found| {
        let limit = policy.limits().get(usize::try_from(found.limit).ok()?)?;
        Some(match limit.grant(found.quota) {
            Grant::Deny => Lasting::Refused,
            Grant::Quota(Quota::Concurrency(_)) => Lasting::Permits,
            Grant::Quota(quota) if quota.capacity() < TRIES.saturating_mul(found.cost.max(1)) => {
                Lasting::Denied
            }
            Grant::Quota(_) | Grant::Unlimited => Lasting::Long,
        })
    });
    quotas.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limits: &str) -> Option<String> {
        let policy = Policy::compile("test", format!("limits: [{limits}]").as_bytes()).unwrap();
        example_request(&policy)
    }

    /// The sample meets a limit, whatever the limit requires. If only an expression could decide, there is no sample.
    #[test]
    fn a_sample_meets_a_limit() {
        let cases = [
            ("{name: a, by: [api_key], rate: 1/s}", Some(r#"{"attributes":{"api_key":"demo"}}"#)),
            ("{name: a, rate: 1/s}", Some(r#"{"attributes":{}}"#)),
            (
                "{name: a, by: [ip], when: {path: '/a/*'}, rate: 1/s}",
                Some(r#"{"attributes":{"ip":"203.0.113.7","path":"/a/demo"}}"#),
            ),
            (
                "{name: a, by: [t], cost: tokens, rate: 9/s}",
                Some(r#"{"attributes":{"t":"demo","tokens":1}}"#),
            ),
            (
                r#"{name: a, when: "path == '/x'", rate: 1/s}, {name: b, by: [k], rate: 1/s}"#,
                Some(r#"{"attributes":{"k":"demo"}}"#),
            ),
            (r#"{name: a, when: "path.startsWith('/x')", rate: 1/s}"#, None),
        ];
        for (limits, expected) in cases {
            assert_eq!(of(limits).as_deref(), expected, "{limits}");
        }
    }

    /// Regression: the sample command was denied from the 21st time on, because each check took one of twenty permits
    /// for half a minute. The sample of the example policy can be sent a thousand times in a row.
    #[test]
    fn the_sample_of_the_example_can_be_asked_a_thousand_times() {
        let policy = Policy::compile("example", tollgate::policy::EXAMPLE.as_bytes()).unwrap();
        assert_eq!(example_request(&policy).as_deref(), Some(r#"{"attributes":{"tenant":"acme"}}"#));
        let now = tollgate::Timestamp::from_unix_seconds(1_700_000_000);
        let engine = tollgate::Engine::builder()
            .policy(policy)
            .clock(tollgate::ManualClock::starting_at(now).clock())
            .build();
        let request = CheckRequest::new().with("tenant", "acme").unwrap();
        assert!((0..TRIES).all(|_| engine.try_check(&request, now).unwrap().is_allowed()));
    }

    /// A limit that allows more requests is preferred to the first limit. If there are only concurrency limits, the
    /// sample takes no permit.
    #[test]
    fn a_sample_lasts_where_it_can() {
        let places = "{name: a, by: [k], concurrency: 5, permit_ttl: 30s}";
        assert_eq!(of(places).as_deref(), Some(r#"{"attributes":{"k":"demo"},"cost":0}"#));
        let small = format!("{places}, {{name: b, by: [t], rate: 5/h}}");
        assert_eq!(of(&small).as_deref(), Some(r#"{"attributes":{"t":"demo"}}"#));
        let large = format!("{small}, {{name: c, by: [u], rate: 1000/s}}");
        assert_eq!(of(&large).as_deref(), Some(r#"{"attributes":{"u":"demo"}}"#));
    }

    /// No text of a policy can end the quotes of the command that a person copies.
    #[test]
    fn a_sample_never_has_a_single_quote() {
        assert_eq!(of(r#"{name: a, when: {path: "/it's"}, rate: 1/s}"#), None);
    }
}
