//! A question that a policy has an answer to, for people who try it the first time.

use serde_json::{Map, Value};
use tollgate::policy::{Condition, Cost, Limit};
use tollgate::{CheckRequest, Policy};

/// Limits that are looked at; a policy of which none of these can be asked about gets no sample.
const LIMITS_TRIED: usize = 100;

/// The body of a check that at least one limit answers, safe inside single quotes of a shell; none if none can be made up.
pub(super) fn sample(policy: &Policy) -> Option<String> {
    let candidates = policy.limits().iter().take(LIMITS_TRIED).filter_map(attributes);
    let mut matching = candidates.filter(|attributes| is_answered(policy, attributes));
    let attributes = matching.next()?;
    let body = serde_json::json!({ "attributes": attributes }).to_string();
    (!body.contains('\'')).then_some(body)
}

/// Attributes that this limit should apply to; none where an expression decides that.
fn attributes(limit: &Limit) -> Option<Map<String, Value>> {
    let mut attributes = Map::new();
    for name in limit.by() {
        let value = if name == "ip" { "203.0.113.7" } else { "demo" };
        attributes.insert(name.clone(), value.into());
    }
    for condition in limit.when() {
        let Condition::OneOf { name, values, globs } = condition else {
            return None;
        };
        let pattern = globs.first().map(|glob| glob.to_string().replace('*', "demo"));
        attributes.insert(name.clone(), values.first().cloned().or(pattern)?.into());
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

/// Whether the policy can say something about these attributes.
fn is_answered(policy: &Policy, attributes: &Map<String, Value>) -> bool {
    let mut request = CheckRequest::new();
    for (name, value) in attributes {
        let added = match value {
            Value::String(text) => request.with(name, text),
            _ => request.with(name, value.as_i64().unwrap_or(1)),
        };
        let Ok(added) = added else { return false };
        request = added;
    }
    policy.matches(&request).is_ok_and(|matches| !matches.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limits: &str) -> Option<String> {
        let (policy, _) = Policy::compile("test", format!("limits: [{limits}]").as_bytes()).unwrap();
        sample(&policy)
    }

    /// The sample meets a limit, whatever the limit asks for; where only an expression could tell, there is none.
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

    /// Nothing in a policy can end the quotes of the command that a person copies.
    #[test]
    fn a_sample_never_has_a_single_quote() {
        assert_eq!(of(r#"{name: a, when: {path: "/it's"}, rate: 1/s}"#), None);
    }
}
