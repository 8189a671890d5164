//! The priority of a request: four classes, and the rules that assign them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use tollgate::policy::{Condition, Problem};
use tollgate::request::{CheckRequest, Descriptor, Value};

/// The priority of a request, lowest first. The lowest is shed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Test traffic.
    Test,
    /// Requests that only read.
    Read,
    /// Requests that change something.
    Write,
    /// Requests that must work when nothing else does.
    Critical,
}

impl Priority {
    /// All priorities, lowest first.
    pub const ALL: [Priority; 4] = [Priority::Test, Priority::Read, Priority::Write, Priority::Critical];

    /// The name in files, metrics and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Priority::Test => "test",
            Priority::Read => "read",
            Priority::Write => "write",
            Priority::Critical => "critical",
        }
    }

    /// The priority of a request without a rule: read or write, by its `method`.
    #[must_use]
    pub fn of_method(method: &str) -> Self {
        let reads = ["GET", "HEAD", "OPTIONS"];
        if reads.iter().any(|read| read.eq_ignore_ascii_case(method)) {
            Priority::Read
        } else {
            Priority::Write
        }
    }

    /// The rank, lowest first.
    pub(crate) const fn rank(self) -> u64 {
        match self {
            Priority::Test => 0,
            Priority::Read => 1,
            Priority::Write => 2,
            Priority::Critical => 3,
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Priority {
    type Err = Problem;

    fn from_str(name: &str) -> Result<Self, Problem> {
        Priority::ALL.into_iter().find(|priority| priority.as_str() == name).ok_or_else(|| {
            Problem::new(
                format!("{} is not a priority", tollgate::policy::source::quoted(name)),
                "critical, write, read, test",
            )
        })
    }
}

/// A rule: requests that meet all conditions have this priority.
#[derive(Debug)]
pub struct Rule {
    /// As in a limit's `when`: values and patterns of attributes, or CEL.
    pub when: Vec<Condition>,
    /// The priority of matching requests.
    pub priority: Priority,
}

/// Rules in order: the first that matches decides.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Rules in this order.
    #[must_use]
    pub const fn new(rules: Vec<Rule>) -> Self {
        Self { rules }
    }

    /// The rules.
    #[must_use]
    pub fn as_slice(&self) -> &[Rule] {
        &self.rules
    }

    /// The priority of a request, by its first descriptor. Without a matching rule it follows the attribute `method`; without a method
    /// it is a write. A rule that fits only the loose form of its path may lower the priority and never raises it: else any spelling
    /// of a critical path would be critical.
    #[must_use]
    pub fn classify(&self, request: &CheckRequest<'_>) -> Priority {
        let request = request.first();
        let mut highest = Priority::Critical;
        for rule in &self.rules {
            if !rule.when.iter().all(|condition| condition.holds(request)) {
                continue;
            }
            highest = rule.priority.min(highest);
            if rule.when.iter().all(|condition| condition.holds_exactly(request)) {
                return highest;
            }
        }
        Self::unruled(request).min(highest)
    }

    fn unruled(request: &Descriptor<'_>) -> Priority {
        let method = request.attributes().iter().find(|attribute| attribute.name == "method");
        match method.map(|attribute| attribute.value) {
            Some(Value::Text(method)) => Priority::of_method(method),
            _ => Priority::Write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::policy::Expression;

    fn priority(rules: &Rules, attributes: &[(&str, &str)]) -> Priority {
        let mut request = CheckRequest::new();
        for (name, value) in attributes {
            request.push(name, *value).unwrap();
        }
        rules.classify(&request)
    }

    /// The first matching rule decides, by method, path, header or plan; without one the method does.
    #[test]
    fn the_first_rule_decides() {
        let rule = |name: &str, value: &str, priority| Rule {
            when: vec![Condition::one_of(name, [value])],
            priority,
        };
        let rules = Rules::new(vec![
            rule("path", "/v1/charges*", Priority::Critical),
            rule("plan", "test", Priority::Test),
            rule("header.x-batch", "*", Priority::Read),
        ]);
        assert_eq!(priority(&rules, &[("path", "/v1/charges/7"), ("plan", "test")]), Priority::Critical);
        assert_eq!(priority(&rules, &[("path", "/v1/users"), ("plan", "test")]), Priority::Test);
        assert_eq!(priority(&rules, &[("method", "POST"), ("header.x-batch", "1")]), Priority::Read);
        for (method, expected) in
            [("GET", Priority::Read), ("head", Priority::Read), ("DELETE", Priority::Write)]
        {
            assert_eq!(priority(&rules, &[("method", method)]), expected);
        }
        assert_eq!(priority(&Rules::default(), &[]), Priority::Write);
    }

    /// `POST /V1/CHARGES;x` was critical by a rule about `/v1/charges`, so that anybody could have the best priority for a path that the
    /// service answers with 404. In the loose form a rule lowers a priority, and never raises it.
    #[test]
    fn loose_paths_gain_nothing() {
        let rule = |condition: Condition, priority| Rule { when: vec![condition], priority };
        let cel = Expression::new("path == '/pay'").unwrap();
        let rules = Rules::new(vec![
            rule(Condition::one_of("path", ["/v1/charges", "/live/*"]), Priority::Critical),
            rule(Condition::Holds(cel), Priority::Critical),
            rule(Condition::one_of("path", ["/batch"]), Priority::Test),
            rule(Condition::none_of("path", ["/health", "/x", "/v1/charges", "/PAY"]), Priority::Write),
        ]);
        let classify = |path: &str| {
            let loose = tollgate::path::loose_path(path);
            let mut request = CheckRequest::new().with("method", "GET").unwrap();
            request.push_spelled("path", path, tollgate::request::Spelling::LoosePath(&loose)).unwrap();
            rules.classify(&request)
        };
        for exact in ["/v1/charges", "/live/7", "/pay"] {
            assert_eq!(classify(exact), Priority::Critical, "{exact}");
        }
        for (loose, expected) in [
            ("/V1/CHARGES", Priority::Read),
            ("/v1/charges;x", Priority::Read),
            ("/v1/charges.json", Priority::Read),
            ("/LIVE/7", Priority::Write),
            ("/Pay", Priority::Read),
            ("/batch", Priority::Test),
            ("/BATCH/", Priority::Test),
            ("/Health", Priority::Read),
            ("/users", Priority::Write),
        ] {
            assert_eq!(classify(loose), expected, "{loose}");
        }
    }

    #[test]
    fn names_are_read_and_written() {
        for priority in Priority::ALL {
            assert_eq!(priority.as_str().parse(), Ok(priority));
            assert_eq!(serde_json::to_string(&priority).unwrap(), format!("\"{priority}\""));
        }
        let problem = "urgent".parse::<Priority>().unwrap_err();
        assert_eq!(problem.to_string(), "urgent is not a priority; accepted: critical, write, read, test");
        assert!(Priority::Test < Priority::Critical);
    }
}
