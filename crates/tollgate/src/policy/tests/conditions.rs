//! Conditions, keys of addresses, declared attributes and defaults: what a file may say, what it means, and what is refused.

use super::super::Policy;
use super::{findings, policy, warnings};
use crate::request::{CheckRequest, Spelling, Value};

fn request<'a>(attributes: &[(&'a str, &'a str)]) -> CheckRequest<'a> {
    attributes
        .iter()
        .try_fold(CheckRequest::new(), |request, &(name, value)| request.with(name, value))
        .unwrap()
}

fn names<'p>(policy: &'p Policy, request: &CheckRequest<'_>) -> Vec<&'p str> {
    let matches = policy.matches(request).unwrap();
    matches.iter().map(|found| policy.limits()[found.limit as usize].name()).collect()
}

/// Whether the one limit of a policy with this `when` applies. What explains the limit agrees with what matches it.
fn applies(when: &str, attributes: &[(&str, &str)]) -> bool {
    let policy = policy(&format!("limits: [{{name: a, rate: 1/s, when: {when}}}]"));
    let request = request(attributes);
    let applies = !names(&policy, &request).is_empty();
    assert_eq!(policy.limits()[0].unmet(request.first()).is_empty(), applies, "{when} on {attributes:?}");
    applies
}

/// `when: {ip: 10.0.0.0/8}` compiled, read back as if right, and compared the text "10.0.0.0/8" with each address.
#[test]
fn addresses_match_by_network() {
    for (address, inside) in [
        ("10.0.0.1", true),
        ("10.255.255.255", true),
        ("11.0.0.1", false),
        ("::ffff:10.1.2.3", true),
        ("10.0.0.0/8", true),
        ("2001:db8::1", false),
        ("none", false),
    ] {
        assert_eq!(applies("{ip: 10.0.0.0/8}", &[("ip", address)]), inside, "{address}");
        assert_eq!(applies("{ip: {not: 10.0.0.0/8}}", &[("ip", address)]), !inside, "{address}");
    }
    assert!(applies("{ip: ['2001:db8::/32', 10.0.0.1]}", &[("ip", "2001:DB8:0:1::7")]));
    assert!(applies("{ip: '2001:db8::7'}", &[("ip", "2001:db8:0:0::7")]));
    // A caller that sends a network is met by every condition that it could be in, and by none that exempts a part of it.
    assert!(applies("{ip: '2001:db8::7'}", &[("ip", "2001:db8::/64")]));
    assert!(applies("{ip: {not: '2001:db8::7'}}", &[("ip", "2001:db8::/64")]));
    assert!(applies("{client_ip: 10.0.0.0/8}", &[("client_ip", "10.0.0.1")]));
}

/// A request without the attribute satisfies `not`, so that a client cannot escape a limit by leaving an attribute out.
#[test]
fn a_missing_attribute_satisfies_not() {
    assert!(applies("{plan: {not: internal}}", &[]));
    assert!(applies("{plan: {not: internal}}", &[("plan", "free")]));
    assert!(!applies("{plan: {not: internal}}", &[("plan", "internal")]));
    assert!(!applies("{plan: {not: [internal, test-*]}}", &[("plan", "test-1")]));
    // The remaining part is a condition for requests without the attribute.
    assert!(applies("{plan: {not: '*'}}", &[]));
    assert!(!applies("{plan: {not: '*'}}", &[("plan", "free")]));
    let sentences = policy("limits: [{name: a, rate: 1/s, when: {plan: {not: internal}}}]").sentences();
    assert_eq!(
        sentences[0],
        "a: when plan is missing or is not internal, everybody together may make 1 request a second on average, 1 at once and at most 2 in any second"
    );
}

/// `path: "/users/{id}"` compared the braces as text.
#[test]
fn templates_match_segments_of_paths() {
    let when = "{path: '/users/{id}'}";
    assert!(applies(when, &[("path", "/users/7")]));
    assert!(!applies(when, &[("path", "/users")]));
    assert!(!applies(when, &[("path", "/users/7/orders")]));
    assert!(applies("{path: ['/users/{id}/*', /health]}", &[("path", "/users/7/orders")]));
    assert!(!applies("{path: {not: '/users/{id}'}}", &[("path", "/users/7")]));
    assert!(applies("{route: '/users/{id}'}", &[("route", "/users/{id}")]));
}

/// An exemption holds for the exact path only, while a limit on a path holds for its loose form too.
#[test]
fn loose_paths_are_never_exempt() {
    let policy = policy(
        "limits: [{name: on, rate: 1/s, when: {path: /Health}}, {name: off, rate: 1/s, when: {path: {not: /health}}}]",
    );
    let spelled = |path: &'static str| {
        let loose = crate::path::loose_path(path).into_owned();
        let mut request = CheckRequest::new();
        request.push_spelled("path", path, Spelling::LoosePath(&loose)).unwrap();
        names(&policy, &request).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(spelled("/health"), ["on"]);
    assert_eq!(spelled("/HEALTH/"), ["on", "off"]);
}

/// HEAD counts as GET, so that a client cannot escape a limit on GET by HEAD.
#[test]
fn head_counts_as_get() {
    assert!(applies("{method: GET}", &[("method", "HEAD")]));
    assert!(applies("{method: [POST, GET]}", &[("method", "HEAD")]));
    assert!(!applies("{method: {not: GET}}", &[("method", "HEAD")]));
    assert!(applies("\"method == 'GET'\"", &[("method", "HEAD")]));
    assert!(!applies("{method: POST}", &[("method", "HEAD")]));
    assert!(applies("{method: HEAD}", &[("method", "HEAD")]));
    assert!(!applies("{method: HEAD}", &[("method", "GET")]));
    let sentences = policy("limits: [{name: a, rate: 1/s, when: {method: GET}}]").sentences();
    assert!(sentences[0].starts_with("a: when method is GET or HEAD, everybody"), "{}", sentences[0]);
}

/// The sentence of a limit with conditions.
#[test]
fn sentences_say_what_conditions_mean() {
    let file = "limits:
- {name: a, by: [ip/48], rate: 1/s, when: {ip: {not: [10.0.0.0/8, 127.0.0.1]}, path: '/users/{id}'}}
- {name: b, by: ['ip/24,64'], rate: 1/s}
- {name: c, by: [ip/24,64, tenant], rate: 1/s}
- {name: d, by: [ip], rate: 1/s, when: {ip: [10.0.0.0/8, '2001:db8::/32']}}
";
    let sentences = policy(file).sentences();
    let wanted = [
        "a: when ip is missing or is not 127.0.0.1 and is not in 10.0.0.0/8 and path matches /users/{id}, \
         each ip (IPv6 by /48) may make",
        "b: each ip (IPv4 by /24, IPv6 by /64) may make",
        "c: each pair of ip (IPv4 by /24, IPv6 by /64) and tenant may make",
        "d: when ip is in 10.0.0.0/8 or 2001:db8::/32, each ip may make",
    ];
    for (sentence, wanted) in sentences.iter().zip(wanted) {
        assert!(sentence.starts_with(wanted), "{sentence}");
    }
}

/// The findings of one limit with these fields.
fn refused(fields: &str) -> String {
    let file = format!("limits:\n  - name: a\n    rate: 1/s\n    {fields}\n");
    match Policy::compile("policy.yaml", file.as_bytes()) {
        Ok(_) => panic!("compiles: {fields}"),
        Err(findings) => findings.to_string(),
    }
}

/// The story: each of these compiled, had a correct sentence, and never applied.
#[test]
fn conditions_that_never_apply_are_refused() {
    for (fields, said) in [
        (
            "by: [header.x-tenant]",
            "by[0]: no request has an attribute header.x-tenant; accepted: tenant, which the config maps",
        ),
        ("when: {headers.X: a}", "when.headers.X: no request has an attribute headers.X"),
        ("when: \"header.x == 'a'\"", "when: no request has an attribute header.x"),
        ("cost: jwt.tokens", "cost: no request has an attribute jwt.tokens"),
        ("cost: 2 * query.n", "cost: no request has an attribute query.n"),
        (
            "when: {method: '!GET'}",
            "when.method: !GET is not how `not` is written; accepted: method: { not: GET }",
        ),
        ("when: {method: !GET}", "!GET is a tag of YAML; accepted: { not: GET } in a condition"),
        ("when: {path: \"~ ^/v[0-9]/\"}", "accepted: when: \"path.matches('^/v[0-9]/')\""),
        ("when: {path: {prefix: /v1}}", "when.path: prefix is no way of matching here; accepted: path: /v1*"),
        ("when: {path: {regex: ^/v1}}", "accepted: when: \"path.matches('^/v1')\""),
        ("when: {path: {not: /a, or: /b}}", "when.path: is a table of several fields"),
        ("when: {method: {not: []}}", "when.method: an empty list never matches"),
        ("when: {method: {not: get}}", "accepted: method: GET"),
        ("when: {ip: 10.1.2.3/8}", "accepted: ip: 10.0.0.0/8"),
        ("when: {tenant: 10.0.0.0/8}", "10.0.0.0/8 is a network, and tenant is no address"),
        ("by: [ip/24]", "ip/24: it does not say whether this is IPv4 or IPv6; accepted: ip/64"),
        ("by: [tenant/64]", "by[0]: tenant is no address, so it has no /64"),
        ("by: \"tenant, ip\"", "by: tenant, ip is several names in one text; accepted: by: [tenant, ip]"),
        (
            "by: [plan]\n    when: {plan: {not: '*'}}",
            "never matches: it counts by plan, and applies only without it",
        ),
        ("by: [ip]\n    overrides: {'2001:db8::1': 5/s}", "2001:db8::1 is a part of the key 2001:db8::/64"),
        ("by: [ip]\n    overrides: {10.0.0.0/8: 5/s}", "an override is for one key"),
        ("by: [ip]\n    overrides: {acme: 5/s}", "acme is not an address"),
        ("tier_by: header.plan\n    tiers: {free: 1/s}", "tier_by: no request has an attribute header.plan"),
        ("enforce_percent: 5", "enforce_percent: a share of keys, and a limit without `by` has only one key"),
    ] {
        let found = refused(fields);
        assert!(found.contains(said), "{fields}\n  said {found}");
    }
    assert!(
        findings("shard_by: cookie.sid\nlimits: []")
            .to_string()
            .contains("shard_by: no request has an attribute cookie.sid")
    );
}

/// An override for an address applies to every spelling of the address.
#[test]
fn overrides_are_by_the_key_of_an_address() {
    let policy =
        policy("limits: [{name: a, by: [ip], rate: 1/s, overrides: {10.1.2.3: 5/s, '2001:db8::/64': 7/s}}]");
    let capacity = |ip: &str| {
        let found = policy.matches(&request(&[("ip", ip)])).unwrap();
        policy.limits()[0].quota(found[0].quota).unwrap().capacity()
    };
    assert_eq!((capacity("10.1.2.3"), capacity("::ffff:10.1.2.3"), capacity("10.1.2.4")), (5, 5, 1));
    assert_eq!((capacity("2001:db8::1"), capacity("2001:db8::/64"), capacity("2001:db9::1")), (7, 7, 1));
}

/// With `attributes`, an unknown name is an error anywhere in the policy. The error suggests a similar name.
#[test]
fn declared_names_are_the_only_ones() {
    let limit = |fields: &str| {
        format!(
            "attributes: [tenant, plan, tokens, ip, path, {{client: address}}]\nlimits:\n  - {{name: a, rate: 1k/s, {fields}}}\n"
        )
    };
    for fields in
        ["by: [tenant]", "when: {plan: free}", "cost: tokens", "when: \"has(plan)\"", "by: [client/48]"]
    {
        policy(&limit(fields));
    }
    for (fields, said) in [
        ("by: [tenent]", "by[0]: tenent is not declared in `attributes`; did you mean tenant?"),
        ("when: {plam: free}", "when.plam: plam is not declared in `attributes`; did you mean plan?"),
        ("when: \"plam == 'a'\"", "when: plam is not declared"),
        ("cost: token", "cost: token is not declared in `attributes`; did you mean tokens?"),
        ("cost: 2 * token", "cost: token is not declared"),
        ("tier_by: plam, tiers: {a: 1/s}", "tier_by: plam is not declared"),
    ] {
        let found = findings(&limit(fields)).to_string();
        assert!(found.contains(said), "{fields}\n  said {found}");
    }
    for (file, said) in [
        ("attributes: [a]\nshard_by: b\nlimits: []", "shard_by: b is not declared"),
        ("attributes: a\nlimits: []", "attributes: is a single value; accepted: a list of names"),
        ("attributes: [a, a]\nlimits: []", "attributes[1]: a is named twice"),
        (
            "attributes: [{a: number}]\nlimits: []",
            "attributes[0]: number is no kind of value; accepted: address or text",
        ),
        ("attributes: [{a: text, b: text}]\nlimits: []", "attributes[0]: a table of 2 fields"),
    ] {
        let found = findings(file).to_string();
        assert!(found.contains(said), "{file}\n  said {found}");
    }
    // A name that only looks like another product's may be declared.
    policy("attributes: [header.x-tenant]\nlimits: [{name: a, by: [header.x-tenant], rate: 1/s}]");
    let declared = policy("attributes: [tenant]\nlimits: [{name: a, by: [tenant], rate: 1/s}]");
    let sent = request(&[("tenant", "t"), ("tenent", "t")]);
    assert_eq!(declared.undeclared(&sent).collect::<Vec<_>>(), ["tenent"]);
    assert_eq!(policy("limits: []").undeclared(&sent).count(), 0);
}

/// A limit has the defaults that it uses and does not set itself.
#[test]
fn defaults_are_for_limits_that_set_nothing_else() {
    let file = "
defaults: {algorithm: fixed-window, align: calendar, timezone: Europe/Rome, precision: 5, permit_ttl: 30s, mode: shadow, consistency: leased}
limits:
- {name: a, by: [t], rate: 1/day}
- {name: b, by: [t], rate: 1/day, align: epoch, mode: enforce}
- {name: c, by: [t], rate: 1/s, algorithm: sliding-window, mode: enforce}
- {name: d, by: [t], concurrency: 5, mode: enforce}
- {name: e, by: [t], rate: 1/s, algorithm: sliding-log, mode: enforce, consistency: exact}
";
    let sentences = policy(file).sentences();
    for (sentence, wanted) in sentences.iter().zip([
        "a: each t may make 1 request in each calendar day in Europe/Rome; only counted, never denied (shadow)",
        "b: each t may make 1 request in each window of one day and at most 2 in any day; counted in leases",
        "c: each t may make 1 request in any second; counted in leases",
        "d: each t may have 5 requests in flight; a permit returns by itself after 30 s",
        "e: each t may make 1 request in any second, each counted by its own time",
    ]) {
        assert_eq!(sentence, wanted);
    }
    for (defaults, said) in [
        (
            "rate: 1/s",
            "1:12: defaults.rate: is each limit's own, and has no default; accepted: extra_attributes, algorithm, align",
        ),
        ("modes: shadow", "defaults.modes: unknown field; did you mean mode?"),
        ("modus: shadow", "defaults.modus: unknown field; accepted: extra_attributes, algorithm, align"),
        ("mode: on", "defaults.mode: on is unknown; did you mean enforce? accepted: enforce, shadow, off"),
        ("algorithm: leaky", "defaults.algorithm: leaky is unknown"),
        (
            "algorithm: concurrency",
            "defaults.algorithm: a limit is one on permits by its field `concurrency`",
        ),
        ("timezone: Mars/Olympus", "defaults.timezone: "),
        ("lease: {ttl: 1h}", "defaults.lease.ttl: 1h is not how long units may be held"),
        ("on_store_failure: open", "defaults.on_store_failure: open is unknown"),
        ("permit_ttl: 30", "defaults.permit_ttl: 30 has no unit of time"),
    ] {
        let found = findings(&format!(
            "defaults: {{{defaults}}}\nlimits: [{{name: a, rate: 1/s}}, {{name: b, rate: 1/s}}]"
        ))
        .to_string();
        assert!(found.contains(said), "{defaults}\n  said {found}");
        assert_eq!(found.matches("defaults.").count(), 1, "said once: {found}");
    }
    assert!(warnings("defaults: {mode: shadow}\nlimits: [{name: a, by: [t], rate: 1/s}]").is_empty());
}

/// Numbers are never addresses, and an address attribute may be anything that a caller sends.
#[test]
fn an_address_may_be_a_number() {
    let policy = policy("limits: [{name: a, by: [ip], rate: 1/s, when: {ip: {not: 10.0.0.0/8}}}]");
    let request = CheckRequest::new().with("ip", Value::Number(7)).unwrap();
    assert_eq!(names(&policy, &request), ["a"]);
}
