//! Limits for requests with the attributes that they name and no others.

use proptest::prelude::*;

use super::policy;
use crate::policy::{Expression, ExtraAttributes, Limit, Policy, Unmet};
use crate::quota::Quota;
use crate::rate::Rate;
use crate::request::CheckRequest;

fn request<'a>(attributes: &[(&'a str, &'a str)]) -> CheckRequest<'a> {
    let mut request = CheckRequest::new();
    for (name, value) in attributes {
        request.push(name, *value).unwrap();
    }
    request
}

fn names<'p>(policy: &'p Policy, attributes: &[(&str, &str)]) -> Vec<&'p str> {
    let matches = policy.matches(&request(attributes)).unwrap();
    matches.iter().map(|found| policy.limits()[found.limit as usize].name()).collect()
}

/// A limit without extra attributes applies to requests whose attributes it all names: in `by`, `when`, `tier_by` or `cost`.
#[test]
fn every_attribute_of_the_request_is_named() {
    let policy = policy(
        "defaults: {extra_attributes: none}
limits:
- {name: foo, by: [foo], rate: 1/s}
- {name: pair, by: [foo], when: {bar: {not: banned}}, rate: 1/s}
- {name: cel, by: [foo], when: \"has(bar) && bar.startsWith('b')\", rate: 1/s}
- {name: banned, when: {foo: x, bar: banned}, rate: deny}
- {name: tier, by: [foo], tier_by: plan, tiers: {free: 1/s}}
- {name: cost, by: [user], rate: 9/s, cost: tokens}
- {name: nothing, rate: 1/s}
- {name: any, by: [foo], rate: 1/s, extra_attributes: any}
",
    );
    for (attributes, expected) in [
        (&[][..], &["nothing"][..]),
        (&[("foo", "x")], &["foo", "pair", "tier", "any"]),
        (&[("bar", "y")], &[]),
        (&[("foo", "x"), ("bar", "y")], &["pair", "any"]),
        (&[("bar", "b"), ("foo", "x")], &["pair", "cel", "any"]),
        (&[("bar", "banned"), ("foo", "x")], &["cel", "banned", "any"]),
        (&[("foo", "x"), ("unknown", "y")], &["any"]),
        (&[("foo", "x"), ("plan", "free")], &["tier", "any"]),
        (&[("foo", "x"), ("plan", "free"), ("tokens", "2")], &["any"]),
        (&[("user", "u"), ("tokens", "2")], &["cost"]),
    ] {
        assert_eq!(names(&policy, attributes), expected, "{attributes:?}");
    }
}

/// The only limit of a policy has no short way past its field.
#[test]
fn a_single_limit_looks_at_all_attributes() {
    let policy = policy("limits: [{name: a, by: [foo], rate: 1/s, extra_attributes: none}]");
    assert_eq!(names(&policy, &[("foo", "x")]), ["a"]);
    assert_eq!(names(&policy, &[("foo", "x"), ("bar", "y")]), [""; 0]);
    let quota = Quota::token_bucket(Rate::per_second(1)).unwrap();
    let built = Limit::new("a", quota).by(["foo"]).extra_attributes(ExtraAttributes::None);
    let built = Policy::new(vec![built]).unwrap();
    assert!(policy.difference(&built).is_empty(), "{:?}", policy.difference(&built));
    assert!(policy.uses("bar") && !policy.names("bar") && policy.names("foo"));
}

/// The reason names the attributes. More attributes of a request do not change it, so the reason is final for
/// an operator who names some of them.
#[test]
fn the_reason_names_the_extra_attributes() {
    let policy = policy("limits: [{name: a, by: [foo], rate: 1/s, extra_attributes: none}]");
    let limit = &policy.limits()[0];
    let given = request(&[("foo", "x"), ("bar", "y"), ("baz", "z")]);
    let reason = Unmet::Extra { attributes: vec!["bar".to_owned(), "baz".to_owned()] };
    assert_eq!(limit.unmet(given.first()), std::slice::from_ref(&reason));
    assert_eq!(reason.to_string(), "the request also has bar and baz");
    assert_eq!(limit.never_counts(given.first()), [reason]);
    assert!(policy.may_count(given.first()).is_empty());
    assert_eq!(policy.may_count(request(&[("foo", "x")]).first()).len(), 1);
}

/// The sentence says which attributes a request may have.
#[test]
fn sentences_say_so() {
    for (fields, expected) in [
        (
            "by: [foo], rate: deny",
            "a: when the request has only foo, every request with foo is denied with 403",
        ),
        ("rate: deny", "a: when the request has no attributes, every request is denied with 403"),
        (
            "by: [foo], when: {bar: x, baz: y}, rate: unlimited",
            "a: when bar is x and baz is y and the request has only bar, baz and foo, every request passes, and none \
             is counted",
        ),
    ] {
        let policy = policy(&format!("limits: [{{name: a, {fields}, extra_attributes: none}}]"));
        assert_eq!(policy.limits()[0].sentence(), expected);
    }
}

proptest! {
    /// The field is what a chain of conditions on all other attributes says.
    #[test]
    fn it_is_the_absence_of_all_others(
        named in proptest::collection::btree_set(proptest::sample::select(vec!["a", "b", "c", "d"]), 0..4),
        given in proptest::collection::btree_set(proptest::sample::select(vec!["a", "b", "c", "d"]), 0..5),
    ) {
        let by: Vec<&str> = named.iter().copied().collect();
        let quota = || Quota::token_bucket(Rate::per_second(1)).unwrap();
        let closed = Limit::new("x", quota()).by(by.clone()).extra_attributes(ExtraAttributes::None);
        let absent = ["a", "b", "c", "d"].into_iter().filter(|name| !named.contains(name));
        let absent = absent.map(|name| Expression::new(&format!("!has({name})")).unwrap());
        let chain = absent.fold(Limit::new("x", quota()).by(by), |limit, absent| limit.when_holds(absent));
        let given: Vec<(&str, &str)> = given.iter().map(|name| (*name, "v")).collect();
        let matched = |limit| names(&Policy::new(vec![limit]).unwrap(), &given).len();
        prop_assert_eq!(matched(closed), matched(chain));
    }
}
