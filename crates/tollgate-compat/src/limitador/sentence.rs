//! The meaning of each limit, as a sentence.

use super::{LimitadorConfig, LimitadorLimit};
use crate::rule::Numbered;

impl LimitadorConfig {
    pub(crate) fn numbers(&self) -> Vec<Numbered> {
        let limits = self.namespaces.iter().flat_map(|namespace| &namespace.limits);
        limits
            .map(|limit| Numbered {
                name: limit.subject(),
                off: None,
                units: limit.max_value,
                seconds: limit.seconds,
            })
            .collect()
    }

    pub(crate) fn meanings(&self) -> Vec<(String, String)> {
        let limits = self.namespaces.iter().flat_map(|namespace| &namespace.limits);
        limits.map(|limit| (limit.subject(), limit.sentence())).collect()
    }

    pub(crate) fn sentences(&self) -> Vec<String> {
        self.namespaces.iter().flat_map(|namespace| &namespace.limits).map(LimitadorLimit::sentence).collect()
    }
}

impl LimitadorLimit {
    /// The subject of the limit.
    fn subject(&self) -> String {
        let (_, conditions, variables) = self.identity();
        let mut name = self.namespace.clone();
        for part in self.name.iter().chain(&self.id).chain(&conditions).chain(&variables) {
            name.push_str(&format!(", {part}"));
        }
        // The same limit may exist for several windows.
        name.push_str(&format!(", {} s", self.seconds));
        name
    }

    pub(super) fn sentence(&self) -> String {
        let joined = |expressions: &[tollgate::policy::source::Cel], between: &str| {
            expressions.iter().map(|expression| expression.source()).collect::<Vec<_>>().join(between)
        };
        let who = match self.variables.len() {
            0 => "everybody together".to_owned(),
            _ => format!("each {}", joined(&self.variables, ", ")),
        };
        let what = match (self.max_value, self.seconds) {
            (0, _) => "may pass nothing".to_owned(),
            (max, 0) => format!("may pass up to {max} at once, uncounted"),
            (max, seconds) => format!("may pass {max} in the {seconds} seconds from the first"),
        };
        let when = match self.conditions.len() {
            0 => String::new(),
            _ => format!(", where {}", joined(&self.conditions, " and ")),
        };
        let name =
            self.name.as_ref().or(self.id.as_ref()).map_or_else(String::new, |name| format!(" {name}"));
        format!("{}{name}: {who} {what}{when}", self.namespace)
    }
}
