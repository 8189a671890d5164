//! Which limits match a request, with which quota and at what cost.

use super::super::{Cost, Expression, Limit, Mode, Policy};
use super::policy;
use crate::policy::Fault;
use crate::quota::Quota;
use crate::rate::Rate;
use crate::request::{COST_MAX, CheckRequest, Spelling, Value};

fn request<'a>(attributes: &[(&'a str, Value<'a>)]) -> CheckRequest<'a> {
    attributes
        .iter()
        .try_fold(CheckRequest::new(), |request, &(name, value)| request.with(name, value))
        .unwrap()
}

fn text(value: &str) -> Value<'_> {
    Value::Text(value)
}

/// The names of the matching limits.
fn names<'p>(policy: &'p Policy, request: &CheckRequest<'_>) -> Vec<&'p str> {
    let matches = policy.matches(request).unwrap();
    matches.iter().map(|found| policy.limits()[found.limit as usize].name()).collect()
}

/// Whether the one limit of a policy with this `when` applies.
fn applies(when: &str, attributes: &[(&str, Value<'_>)]) -> bool {
    let policy = policy(&format!("limits: [{{name: a, rate: 1/s, when: {when}}}]"));
    !names(&policy, &request(attributes)).is_empty()
}

/// A limit applies if all attributes of its `by` are present and every condition holds.
#[test]
fn conditions_must_all_hold() {
    let (get, post) = (("method", text("GET")), ("method", text("POST")));
    let path = ("path", text("/v1/chat"));
    assert!(applies("{method: POST}", &[post]));
    assert!(!applies("{method: POST}", &[get]));
    assert!(!applies("{method: POST}", &[]));
    assert!(applies("{method: POST, path: /v1/*}", &[path, post]));
    assert!(!applies("{method: POST, path: /v2/*}", &[path, post]));
    assert!(applies("{method: [GET, POST], path: [/x, /v1/*]}", &[path, post]));
    assert!(!applies("{method: [PUT, POST], path: '*'}", &[path, get]));
    assert!(!applies("{method: '*'}", &[path]));
    assert!(applies("{method: '*'}", &[("method", text(""))]));
}

/// The names of the limits that match a path with its loose form, at a host with a port.
fn spelled<'p>(policy: &'p Policy, path: &str) -> Vec<&'p str> {
    let loose = crate::path::loose_path(path);
    let mut request = CheckRequest::new();
    request.push_spelled("host", "a.test", Spelling::AsIs("a.test:8443")).unwrap();
    request.push_spelled("path", path, Spelling::LoosePath(&loose)).unwrap();
    names(policy, &request)
}

/// A condition holds for either spelling of a value, and a limit is met once however many of its values do.
#[test]
fn other_spellings_hold_too() {
    let policy = policy(
        "limits:
- {name: login, rate: 1/s, when: {path: /login}}
- {name: large, rate: 1/s, when: {path: /Admin/}}
- {name: both, rate: 1/s, when: {path: [/x, /X, /X/]}}
- {name: below, rate: 1/s, when: {path: /V1/*}}
- {name: cel, rate: 1/s, when: \"path == '/cel' && host == 'a.test:8443'\"}
- {name: named, rate: 1/s, when: {host: a.test, path: /host}}
- {name: port, rate: 1/s, when: {host: 'a.test:8443', path: /host}}
- {name: other, rate: 1/s, when: {host: 'a.test:1', path: /host}}
- {name: pdf, rate: 1/s, when: {path: /files/report.pdf}}
- {name: any-pdf, rate: 1/s, when: {path: /files/*.pdf}}
- {name: dots, rate: 1/s, when: {path: /v1.2/x.y.z}}
",
    );
    for (path, met) in [
        ("/login", &["login"][..]),
        ("/LOGIN;x/", &["login"]),
        ("/logins", &[]),
        ("/admin", &["large"]),
        ("/ADMIN", &["large"]),
        ("/Admin/", &["large"]),
        ("/X", &["both"]),
        ("/x/", &["both"]),
        ("/v1/a", &["below"]),
        ("/V1", &["below"]),
        ("/v10", &[]),
        ("/CEL", &["cel"]),
        ("/host.", &["named", "port"]),
        // Format suffixes: the handler of a path serves them, too.
        ("/login.json", &["login"]),
        ("/Login.JSON/", &["login"]),
        ("/login.a.b", &["login"]),
        ("/login/.json", &["login"]),
        ("/admin.xml", &["large"]),
        ("/x.json", &["both"]),
        ("/v1.json", &["below"]),
        ("/cel.json", &["cel"]),
        ("/cel.a.b", &["cel"]),
        ("/files/report.pdf", &["pdf", "any-pdf"]),
        ("/files/Report.PDF", &["pdf", "any-pdf"]),
        ("/files/report.pdf.json", &["pdf", "any-pdf"]),
        ("/files/report", &[]),
        ("/files/report.html", &[]),
        ("/v1.2/x.y.z", &["dots"]),
        ("/v1.2/x.y.z.json", &["dots"]),
        ("/v1.2/x.y", &[]),
    ] {
        assert_eq!(spelled(&policy, path), met, "{path}");
    }
    // A path that comes with itself as its other spelling is itself.
    for (path, met) in [("/login", &["login"][..]), ("/LOGIN", &[]), ("/admin", &[]), ("/v1/a", &[])] {
        let mut request = CheckRequest::new();
        request.push_spelled("path", path, Spelling::AsIs(path)).unwrap();
        assert_eq!(names(&policy, &request), met, "{path}");
    }
}

/// Regression: `/LOGIN`, sent by Envoy or to `/v1/check`, passed a limit on `/login` that the gateway applied. A path that
/// no protocol has spelled is compared by its loose form, in a table, in CEL, for tiers and overrides; and a spelling that
/// the gateway refuses is compared as each server might read it.
#[test]
fn paths_are_compared_loosely_on_every_protocol() {
    let policy = policy(
        "limits:
- {name: login, rate: 1/s, when: {path: /login}}
- {name: large, rate: 1/s, when: {path: /Admin/}}
- {name: below, rate: 1/s, when: {path: /v1/*}}
- {name: cel, rate: 1/s, when: \"path == '/cel'\"}
- {name: but, rate: 1/s, when: {path: {not: [/login, /admin, /cel, /v1*, /health]}}}
",
    );
    let met = |path: &str| names(&policy, &request(&[("path", text(path))]));
    for path in [
        "/login",
        "/LOGIN",
        "/login/",
        "/login?next=/x",
        "/LOGIN?x",
        "//login",
        "/a/../login",
        "/%6Cogin",
        "/login;jsessionid=1",
        "/login.json",
        "/login%20",
        "/(S(x))/login",
        "/log%C4%B1n",
        "/x/..;/login",
        "/x/..;a=b/LOGIN?y",
        "/.;/login",
        "/a%2f..%2flogin",
        "/a\\..\\login",
        "/%5clogin",
    ] {
        assert!(met(path).contains(&"login"), "{path}: {:?}", met(path));
    }
    for path in ["/logins", "/login/x", "/x/login", "/log", "login", "LOGIN", "*", ""] {
        assert!(!met(path).contains(&"login"), "{path}");
    }
    assert_eq!((met("/ADMIN")[0], met("/V1")[0], met("/Cel.json")[0]), ("large", "below", "cel"));
    // The loose form never exempts.
    assert_eq!((met("/health"), met("/HEALTH")), (vec![], vec!["but"]));
}

/// A policy that declares paths as texts compares them as they stand.
#[test]
fn declared_texts_are_compared_as_they_stand() {
    let policy = policy("{attributes: [{path: text}], limits: [{name: a, rate: 1/s, when: {path: /login}}]}");
    for (path, is_met) in [("/login", true), ("/LOGIN", false), ("//login", false), ("/login?x", false)] {
        assert_eq!(!names(&policy, &request(&[("path", text(path))])).is_empty(), is_met, "{path}");
    }
}

/// Numbers compare by their decimal text, with values, patterns, tiers and overrides alike.
#[test]
fn numbers_compare_by_their_text() {
    assert!(applies("{size: 42}", &[("size", Value::Number(42))]));
    assert!(applies("{size: -4*}", &[("size", Value::Number(-42))]));
    assert!(!applies("{size: 42}", &[("size", Value::Number(420))]));
    let policy = policy("limits: [{name: a, by: [id], rate: 1/s, overrides: {7: 9/s}}]");
    let found = policy.matches(&request(&[("id", Value::Number(7))])).unwrap();
    assert_eq!(policy.limits()[0].quota(found[0].quota).unwrap().capacity(), 9);
}

/// In CEL an absent attribute makes the limit not apply; any other error makes it apply.
#[test]
fn cel_errors_make_a_limit_apply() {
    let path = ("path", text("/v1/chat"));
    let post = ("method", text("POST"));
    assert!(applies("\"path.startsWith('/v1')\"", &[path]));
    assert!(!applies("\"path.startsWith('/v2')\"", &[path]));
    assert!(!applies("\"path.startsWith('/v1')\"", &[]));
    assert!(applies("\"method == 'POST' || plan == 'free'\"", &[post]));
    assert!(!applies("\"method == 'GET' || plan == 'free'\"", &[post]));
    assert!(applies("\"!(method == 'GET' && plan == 'free')\"", &[post]));
    assert!(!applies("\"method == 'POST' && plan == 'free'\"", &[post]));
    assert!(applies("\"size > 10\"", &[("size", Value::Number(11))]));
    assert!(applies("\"size > 10\"", &[("size", text("eleven"))]), "an error applies");
    assert!(applies("\"1 / size > 10\"", &[("size", Value::Number(0))]), "an error applies");
    assert!(applies("dyn(path)", &[path]), "what is no truth applies");
    assert!(applies("\"a.b == 'x'\"", &[("a.b", text("x"))]), "dots are part of a name");
    assert!(applies("\"['GET', 'POST'].exists(m, m == method)\"", &[post]));
    assert!(!applies("\"['GET'].exists(m, m == method)\"", &[]));
    assert!(applies("'size(path) * 9223372036854775807 > 0'", &[path]), "an overflow applies");
}

/// `has` tells whether an attribute is there, so a condition can be said for requests without it. Whatever names the attribute
/// elsewhere stays false without it.
#[test]
fn cel_asks_whether_an_attribute_is_there() {
    let plan = |plan| [("plan", text(plan))];
    let unless_internal = "\"!has(plan) || plan != 'internal'\"";
    assert!(applies(unless_internal, &[]));
    assert!(applies(unless_internal, &plan("free")));
    assert!(!applies(unless_internal, &plan("internal")));
    assert!(!applies("\"plan != 'internal'\"", &[]));
    assert!(applies("has(plan)", &plan("")));
    assert!(!applies("has(plan)", &[("other", text("x"))]));
    assert!(applies("\"has(a.b) && has(plan) == false\"", &[("a.b", text("x"))]));
    assert!(applies("\"has(plan) ? plan == 'pro' : has(ip)\"", &[("ip", text("::1"))]));
    assert!(!applies("\"has(plan) ? plan == 'pro' : has(ip)\"", &plan("free")));
    assert!(applies("\"['x', 'y'].exists(p, has(plan) && p == plan)\"", &plan("y")));
    assert!(!applies("\"plan == 'has(plan)'\"", &plan("x")));
    let costs = policy("limits: [{name: a, rate: 9/s, cost: 'has(tokens) ? tokens : 2'}]");
    let cost = |attributes: &[_]| costs.matches(&request(attributes)).unwrap()[0].cost;
    assert_eq!((cost(&[]), cost(&[("tokens", Value::Number(7))])), (2, 7));
    let bare = policy("limits: [{name: a, rate: 9/s, cost: dyn(has(tokens))}]");
    assert!(bare.matches(&CheckRequest::new()).is_err(), "a truth is no cost");
}

/// A limit that is off does not match; one in shadow does.
#[test]
fn a_limit_that_is_off_is_not_met() {
    let policy = policy(
        "limits: [{name: off, rate: 1/s, mode: off}, {name: shadow, rate: 1/s, mode: shadow}, {name: on, rate: 1/s}]",
    );
    assert_eq!(names(&policy, &CheckRequest::new()), ["shadow", "on"]);
}

/// An override takes precedence over the tier, and the tier over the rate. An unknown tier gets the strictest.
#[test]
fn the_quota_follows_override_then_tier_then_default() {
    let strict = "limits: [{name: a, by: [t], tier_by: plan, tiers: {pro: 50/s, free: 100/min burst 90, max: 99/s}, \
                  overrides: {acme: 7/s}}]";
    let said = strict.replace("tier_by", "rate: 3/s, tier_by");
    let capacity = |file: &str, tenant: &str, plan: Option<&str>| {
        let policy = policy(file);
        let mut asked = CheckRequest::new().with("t", tenant).unwrap();
        if let Some(plan) = plan {
            asked = asked.with("plan", plan).unwrap();
        }
        let found = policy.matches(&asked).unwrap();
        policy.limits()[0].quota(found[0].quota).unwrap().capacity()
    };
    assert_eq!(capacity(strict, "acme", Some("pro")), 7);
    assert_eq!(capacity(strict, "other", Some("pro")), 50);
    assert_eq!(capacity(strict, "other", Some("platinum")), 90);
    assert_eq!(capacity(strict, "other", None), 90);
    assert_eq!(capacity(&said, "other", Some("platinum")), 3);
    assert_eq!(capacity(&said, "other", None), 3);
}

/// Tiers without a burst of their own inherit that of the limit.
#[test]
fn tiers_inherit_the_numbers_of_their_limit() {
    let policy =
        policy("limits: [{name: a, rate: 5/s, burst: 20, tier_by: p, tiers: {x: 9/s, y: 9/s burst 3}}]");
    let mut capacities: Vec<u64> = policy.limits()[0].quotas().iter().map(Quota::capacity).collect();
    capacities.sort_unstable();
    assert_eq!(capacities, [3, 20, 20]);
}

fn cost(file: &str, asked: &CheckRequest<'_>) -> Result<u64, String> {
    let policy = policy(&format!("limits: [{{name: a, rate: 1k/s, {file}}}]"));
    match policy.matches(asked) {
        Ok(matches) => Ok(matches[0].cost),
        Err(Fault::Cost { limit, reason }) => {
            assert_eq!(limit, "a");
            Err(reason)
        }
        Err(fault) => panic!("{fault}"),
    }
}

/// The limit sets the cost, and a request with a cost of 0 costs nothing at any limit.
#[test]
fn costs_are_computed() {
    let tokens = |value| request(&[("tokens", value)]).cost(3).unwrap();
    assert_eq!(cost("by: []", &tokens(Value::Number(5))), Ok(3));
    assert_eq!(cost("cost: 7", &tokens(Value::Number(5))), Ok(7));
    assert_eq!(cost("cost: tokens", &tokens(Value::Number(5))), Ok(5));
    assert_eq!(cost("cost: tokens", &tokens(text("0042"))), Ok(42));
    assert_eq!(cost("cost: 2 * tokens + 1", &tokens(Value::Number(5))), Ok(11));
    assert_eq!(cost("cost: 2 * tokens", &tokens(text("5"))), Ok(10));
    let looking = CheckRequest::new().cost(0).unwrap();
    assert_eq!(cost("cost: 7", &looking), Ok(0));
    assert_eq!(cost("cost: tokens", &looking), Ok(0));
    assert_eq!(cost("cost: 2 * tokens", &looking), Ok(0));
}

/// A cost that cannot be computed is the request's fault, with a reason; it never opens the limit.
#[test]
fn costs_that_cannot_be_computed_are_faults() {
    let too_much = i64::try_from(COST_MAX).unwrap() + 1;
    for (file, value, wanted) in [
        ("cost: tokens", Value::Number(-1), "tokens is -1; accepted: whole numbers"),
        ("cost: tokens", Value::Number(too_much), "accepted: whole numbers from 0"),
        ("cost: tokens", text("many"), "tokens is many"),
        ("cost: tokens", text("1.5"), "tokens is 1.5"),
        ("cost: tokens", text(""), "the attribute tokens is ;"),
        ("cost: units", text("5"), "the attribute units is missing"),
        ("cost: tokens + units", text("5"), "the attribute units is missing"),
        ("cost: 0 - tokens", Value::Number(5), "out of range"),
        ("cost: 2 * tokens", Value::Number(i64::MAX), "it is too large to compute"),
        ("cost: 2 * tokens", text("many"), "the text many is not a whole number"),
        ("cost: 10 / tokens", Value::Number(0), "it divides by 0"),
        ("cost: int(tokens) + 1", text("many"), "int() does not take such a value"),
        ("cost: dyn(tokens > 3)", Value::Number(5), "true is not a whole number"),
        ("cost: dyn(double(tokens) / 2.0)", Value::Number(5), "2.5 is not a whole number"),
    ] {
        let reason = cost(file, &request(&[("tokens", value)])).unwrap_err();
        assert!(reason.contains(wanted), "{file} with {value:?}: {reason}");
    }
}

/// A request in flight takes one permit, whatever its cost.
#[test]
fn a_request_takes_one_permit() {
    let policy = policy(
        "limits: [{name: a, concurrency: 5}, {name: b, concurrency: 5, cost: 2}, {name: c, rate: 9/s}]",
    );
    let matches = policy.matches(&CheckRequest::new().cost(4).unwrap()).unwrap();
    let costs: Vec<u64> = matches.iter().map(|found| found.cost).collect();
    assert_eq!(costs, [1, 2, 4]);
}

/// A request that meets more limits than a decision may charge is refused, not half checked.
#[test]
fn too_many_matches_are_a_fault() {
    let limits: Vec<String> =
        (0..33).map(|i| format!("{{name: l{i}, when: {{x: '*'}}, rate: 1/s}}")).collect();
    let policy = policy(&format!("limits: [{}]", limits.join(",")));
    assert_eq!(policy.matches(&request(&[("x", text("1"))])), Err(Fault::TooManyLimits));
    assert_eq!(policy.matches(&request(&[("y", text("1"))])).map(|matches| matches.len()), Ok(0));
}

/// Limits built in Rust are checked and matched like those of a file.
#[test]
fn limits_made_in_rust_behave_like_those_of_files() {
    let bucket = |units| Quota::token_bucket(Rate::per_second(units)).unwrap();
    let policy = Policy::new(vec![
        Limit::new("a", bucket(5))
            .by(["t"])
            .when("m", "P*")
            .when_one_of("n", ["1", "2"])
            .tiers("plan", [("pro", bucket(9))])
            .override_for("acme", bucket(7)),
        Limit::new("b", bucket(5)).when_holds(Expression::new("m == 'POST'").unwrap()).cost(Cost::Units(2)),
        Limit::new("c", bucket(5)).mode(Mode::Off),
    ])
    .unwrap();
    let asked = request(&[("t", text("acme")), ("m", text("POST")), ("n", Value::Number(2))]);
    assert_eq!(names(&policy, &asked), ["a", "b"]);
    let said = Policy::new(vec![
        Limit::new("a", bucket(5)).by(["t", "t"]).cost(Cost::Units(6)),
        Limit::new("a", bucket(5)).when("m", "A").when("m", "B"),
        Limit::new("b", bucket(5)).override_for("x", Quota::gcra(Rate::per_second(1)).unwrap()),
    ])
    .unwrap_err()
    .to_string();
    for wanted in [
        "policy: limits[0] \"a\".by[1]: t is named twice",
        "policy: limits[0] \"a\".cost: each request costs 6",
        "policy: limits[1] \"a\".name: limits[0]",
        "policy: limits[1] \"a\".when: never matches",
        "policy: limits[2] \"b\".overrides: overrides are by",
        "policy: limits[2] \"b\".algorithm: its quotas have different algorithms",
    ] {
        assert!(said.contains(wanted), "{said}\nwanted: {wanted}");
    }
}

/// Matching five plain limits allocates nothing.
#[test]
fn plain_limits_are_matched_without_allocation() {
    let policy = policy(
        "limits: [{name: a, by: [k], rate: 1/s}, {name: b, by: [t], rate: 1/s}, {name: c, by: [i, t], rate: 1/s}, \
         {name: d, when: {m: POST}, by: [a, b, c, d, e, k, t, i], rate: 1/s}, {name: e, rate: 1/s}]",
    );
    let names = ["k", "t", "i", "m", "a", "b", "c", "d", "e"];
    let asked = request(&names.map(|name| (name, text("POST"))));
    let matches = policy.matches(&asked).unwrap();
    assert_eq!(matches.len(), 5);
    assert!(!matches.spilled());
    assert!(!policy.index.candidates(asked.first(), &policy.index.known(asked.first())).spilled());
}
