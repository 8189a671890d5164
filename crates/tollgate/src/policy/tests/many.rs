//! Many limits: how long they take, and that a request looks only at those that mention it.

use std::fmt::Write;

use super::super::Policy;
use crate::request::CheckRequest;

fn ten_thousand() -> Policy {
    let mut text = String::from("limits:\n  - {name: all, rate: 1k/s}\n");
    for i in 0..9_999 {
        let _ = match i % 3 {
            0 => writeln!(
                text,
                "  - {{name: l{i}, when: {{method: POST, path: /p{i}}}, by: [ip], rate: 5/min}}"
            ),
            1 => writeln!(text, "  - {{name: l{i}, by: [tenant, a{i}], rate: 10/s}}"),
            _ => writeln!(text, "  - {{name: l{i}, when: {{method: GET, route: [r{i}, s{i}]}}, rate: 10/s}}"),
        };
    }
    super::policy(&text)
}

/// Ten thousand limits compile, and the test prints the time.
#[test]
#[allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "the time is printed, nothing depends on it"
)]
fn ten_thousand_limits_compile() {
    let before = std::time::Instant::now();
    let policy = ten_thousand();
    println!("10,000 limits compiled in {:?}", before.elapsed());
    assert_eq!(policy.limits().len(), 10_000);
}

/// A request is compared with the limits that its values select, not with all that share a common attribute.
#[test]
fn matching_looks_only_at_limits_that_mention_the_request() {
    let policy = ten_thousand();
    let look = |attributes: &[(&'static str, &'static str)]| {
        let request = attributes
            .iter()
            .try_fold(CheckRequest::new(), |request, (name, value)| request.with(name, *value))
            .unwrap();
        let candidates = policy.index.candidates(request.first(), &policy.index.known(request.first())).len();
        (candidates, policy.matches(&request).unwrap().len())
    };
    assert_eq!(look(&[]), (1, 1));
    assert_eq!(look(&[("method", "POST"), ("ip", "1"), ("tenant", "t")]), (1, 1));
    assert_eq!(look(&[("method", "POST"), ("ip", "1"), ("path", "/p3")]), (2, 2));
    assert_eq!(look(&[("method", "GET"), ("route", "s5")]), (2, 2));
    assert_eq!(look(&[("method", "PUT"), ("route", "s5")]), (2, 1));
    assert_eq!(look(&[("tenant", "t"), ("a4", "x")]), (2, 2));
    assert_eq!(look(&[("a4", "x")]), (2, 1));
}
