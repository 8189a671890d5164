//! Which limits a request matches, and which counter of each.

use tollgate::policy::source::{DescriptorValues, Evaluated};

use super::{LimitadorConfig, LimitadorLimit};

/// A limit that a request matches.
pub(super) struct MatchedLimit<'c> {
    pub(super) limit: &'c LimitadorLimit,
    /// The value of each variable, in their order.
    pub(super) values: Vec<Counted>,
}

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// A text, or a value that was converted to text.
    By(String),
    /// A value that is not usable as a key: all such requests share one counter, because leaving them out would open
    /// the limit.
    Together,
}

impl LimitadorConfig {
    /// Every limit of a namespace that the descriptors match.
    pub(super) fn met<'c, 'd>(
        &'c self,
        namespace: &str,
        descriptors: impl Iterator<Item = &'d [(String, String)]>,
    ) -> Vec<MatchedLimit<'c>> {
        let limits = self.limits(namespace);
        if limits.is_empty() {
            return Vec::new();
        }
        let mut scene = DescriptorValues::new(descriptors);
        let mut met = Vec::new();
        for limit in limits {
            scene.enter(limit.name.as_deref(), limit.id.as_deref());
            if limit.conditions.iter().all(|condition| holds(&condition.evaluate(&scene)))
                && let Some(values) = values(limit, &scene)
            {
                met.push(MatchedLimit { limit, values });
            }
        }
        met
    }
}

/// Whether a condition holds. An attribute that the request lacks makes it false; a value that is no boolean makes it
/// true, the stricter reading.
fn holds(evaluated: &Evaluated) -> bool {
    match evaluated {
        Evaluated::Truth(held) => *held,
        Evaluated::Absent => false,
        Evaluated::Text(_) | Evaluated::Failed(_) => true,
    }
}

/// The values of all variables; `None` when the request lacks one, and the limit does not apply.
fn values(limit: &LimitadorLimit, scene: &DescriptorValues<'_>) -> Option<Vec<Counted>> {
    limit
        .variables
        .iter()
        .map(|variable| match variable.evaluate(scene) {
            Evaluated::Text(text) => Some(Counted::By(text)),
            Evaluated::Truth(truth) => Some(Counted::By(truth.to_string())),
            Evaluated::Failed(_) => Some(Counted::Together),
            Evaluated::Absent => None,
        })
        .collect()
}

/// The parts of a counter's name, apart from its window's length: the namespace, the conditions, and the variables with
/// their values. The number and the names are not parts, so changing those keeps the counter.
pub(super) fn parts<'p>(limit: &'p LimitadorLimit, values: &'p [Counted]) -> Vec<&'p [u8]> {
    let mut parts: Vec<&[u8]> = vec![limit.namespace.as_bytes()];
    for condition in &limit.conditions {
        parts.extend([&b"if"[..], condition.source().as_bytes()]);
    }
    for (variable, value) in limit.variables.iter().zip(values) {
        match value {
            Counted::By(text) => parts.extend([&b"by"[..], variable.source().as_bytes(), text.as_bytes()]),
            Counted::Together => parts.extend([&b"together"[..], variable.source().as_bytes()]),
        }
    }
    parts
}
