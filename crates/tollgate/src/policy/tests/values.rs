//! Values in policies and in requests have one spelling. What is written otherwise, or where no request can have it, compiled once, read
//! back as if right, and never applied.

use super::super::Policy;
use super::{findings, policy, warnings};
use crate::request::{CheckRequest, Spelling, Value};

fn applies(when: &str, name: &'static str, value: impl Into<Value<'static>>) -> bool {
    let policy = policy(&format!("limits: [{{name: a, rate: 1/s, when: {when}}}]"));
    let request = CheckRequest::new().with(name, value).unwrap();
    !policy.matches(&request).unwrap().is_empty()
}

/// `when: {path: /café}` denied no request: they have `/caf%C3%A9`, whatever their clients write. So in globs, templates, lists, `not` and
/// CEL. Each is refused with the spelling that applies, and that one does apply.
#[test]
fn paths_have_the_spelling_of_requests() {
    for (when, right) in [
        ("{path: /café}", "path: /caf%C3%A9"),
        ("{path: /a b}", "path: /a%20b"),
        ("{path: /a%40b}", "path: /a@b"),
        ("{path: [/ok, /a%2Bb]}", "path: /a+b"),
        ("{path: {not: /café}}", "path: /caf%C3%A9"),
        ("{path: '/café/*'}", "path: /caf%C3%A9/*"),
        ("{path: '/users/{id}/é'}", "path: /users/{id}/%C3%A9"),
        ("\"path == '/café'\"", "'/caf%C3%A9'"),
        ("\"'/café' != path\"", "'/caf%C3%A9'"),
        ("\"path in ['/ok', '/a%40b']\"", "'/a@b'"),
        ("\"path == '/a//b'\"", "'/a/b'"),
        ("\"path == 'login'\"", "path: /login"),
        ("\"path == '/users/{id}'\"", "when: { path: /users/{id} }"),
        ("\"path == '/search?q=1'\"", "path: /search"),
        ("\"path.startsWith('/café')\"", "'/caf%C3%A9'"),
        ("\"path.startsWith('login')\"", "'/login'"),
        ("\"path.endsWith('é')\"", "'%C3%A9'"),
        ("\"path.matches('^/café')\"", "caf%C3%A9"),
        ("\"tenant == 'é' && (path == '/a b' || plan == 'x')\"", "'/a%20b'"),
    ] {
        let found = findings(&format!("limits: [{{name: a, rate: 1/s, when: {when}}}]")).to_string();
        assert!(found.contains(right), "{when}: {found}");
    }
    for when in [
        "{path: /caf%C3%A9}",
        "{path: '/caf%C3%A9*'}",
        "\"path == '/caf%C3%A9'\"",
        "\"path.startsWith('/caf%C3%A9')\"",
    ] {
        assert!(applies(when, "path", "/caf%C3%A9"), "{when}");
        // A caller that sends attributes need not know the spelling.
        assert!(applies(when, "path", "/café"), "{when}");
        assert!(applies(when, "path", "/x/../caf%c3%a9"), "{when}");
    }
    assert!(applies("{path: /search}", "path", "//search"));
    assert!(applies("{path: '/search*'}", "path", "//search?q=%61"));
    // The story: over RLS, where Envoy sends `:path` with its query, `/login?x` passed a limit on `/login`.
    for path in ["/login?", "/login?x", "/login?x=/y", "//%6cogin?a?b"] {
        for when in ["{path: /login}", "{path: '/log*n'}", "\"path == '/login'\"", "\"path.endsWith('n')\""] {
            assert!(applies(when, "path", path), "{when}: {path}");
        }
        assert!(!applies("{path: {not: /login}}", "path", path), "{path}");
    }
    assert!(!applies("{path: /login}", "path", "/?/login"));
    assert!(!applies("{path: {not: /caf%C3%A9}}", "path", "/café"));
    // Where a policy says that its paths are no paths, they are compared as they stand.
    policy("{attributes: [{path: text}], limits: [{name: a, rate: 1/s, when: {path: /café}}]}");
    policy("limits: [{name: a, rate: 1/s, when: \"route == '/café' && title.startsWith('É')\"}]");
}

/// The same for hosts, methods and addresses: CEL compared texts that no request has.
#[test]
fn hosts_methods_and_addresses_have_the_spelling_of_requests() {
    for (when, right) in [
        ("{host: example.com.}", "host: example.com"),
        ("{host: 'example.com:443'}", "host: example.com"),
        ("\"host == 'Example.com'\"", "'example.com'"),
        ("\"host in ['example.com:080']\"", "'example.com'"),
        ("\"host == '*.example.com'\"", "when: { host: *.example.com }"),
        ("\"host.endsWith('.Example.com')\"", "'.example.com'"),
        ("\"method == 'get'\"", "accepted: GET"),
        ("\"method in ['POST', 'put']\"", "accepted: PUT"),
        ("\"method != 'G*'\"", "when: { method: G* }"),
        ("\"method.startsWith('p')\"", "'P'"),
        ("\"ip == '2001:DB8::1'\"", "2001:db8::/64"),
        ("\"ip == '2001:db8::1'\"", "2001:db8::/64"),
        ("\"ip == '::ffff:10.0.0.1'\"", "accepted: 10.0.0.1"),
        ("\"ip in ['10.0.0.0/8']\"", "when: { ip: 10.0.0.0/8 }"),
        ("\"ip == 'localhost'\"", "an address or a network"),
        ("\"client_ip.startsWith('2001:DB8')\"", "'2001:db8'"),
    ] {
        let found = findings(&format!("limits: [{{name: a, rate: 1/s, when: {when}}}]")).to_string();
        assert!(found.contains(right), "{when}: {found}");
    }
    for (when, name, value) in [
        ("{host: example.com}", "host", "Example.COM."),
        ("{host: example.com}", "host", "example.com:8443"),
        ("{host: 'example.com:8443'}", "host", "EXAMPLE.com:08443"),
        ("\"host == 'example.com'\"", "host", "Example.com:443"),
        ("\"ip == '10.0.0.1'\"", "ip", "::ffff:10.0.0.1"),
        ("\"ip == '10.0.0.1'\"", "ip", "::ffff:a00:1"),
        ("\"ip in ['10.0.0.1', '10.0.0.2']\"", "ip", "64:ff9b::10.0.0.2"),
        ("\"ip.startsWith('10.')\"", "ip", "::ffff:10.0.0.1"),
        ("\"ip == '2001:db8::/64'\"", "ip", "2001:DB8::1"),
        ("\"ip == '2001:db8::/64'\"", "ip", "2001:db8::/64"),
        ("{ip: '2001:db8::7'}", "ip", "2001:DB8:0::7"),
    ] {
        assert!(applies(when, name, value), "{when} on {value}");
    }
    // One address of a network still differs from another where a table names it.
    assert!(!applies("{ip: '2001:db8::7'}", "ip", "2001:db8::8"));
    assert!(!applies("\"ip != '10.0.0.1'\"", "ip", "::ffff:10.0.0.1"));
    let star = warnings("limits: [{name: a, rate: 1/s, when: \"path == '/v1/*'\"}]").to_string();
    assert!(star.contains("* is no pattern in CEL"), "{star}");
}

/// `n == 7` did not match the text "7", which is all that RLS and RESP can carry, and nothing said so; `n > 5` matched the text "3". A number
/// in a text compares as a number beside a number, and a number as its text beside a text.
#[test]
fn numbers_compare_on_every_protocol() {
    for (when, value, expected) in [
        ("n == 7", "7", true),
        ("n == 7", "8", false),
        ("7 == n", "7", true),
        ("n != 7", "7", false),
        ("n in [7, 8]", "8", true),
        ("n in [7, 8]", "9", false),
        ("n > 5", "3", false),
        ("n > 5", "30", true),
        ("n + 1 > 5", "3", false),
        ("n == 3 + 4", "7", true),
        ("-1 < n", "0", true),
        ("n == '7'", "7", true),
        // Whether it is more than a number is unknown, so the limit applies.
        ("n > 5", "many", true),
        ("n == 7", "many", false),
        ("size(n) == 1 && n == 7", "7", true),
        ("[7].exists(m, m == n)", "x", false),
    ] {
        let when = format!("\"{when}\"");
        assert_eq!(applies(&when, "n", value), expected, "{when} on the text {value}");
    }
    for (when, number, expected) in [
        ("n == 7", 7, true),
        ("n == '7'", 7, true),
        ("n == '8'", 7, false),
        ("n in ['7']", 7, true),
        ("n > 5", 3, false),
    ] {
        let when = format!("\"{when}\"");
        assert_eq!(applies(&when, "n", Value::Number(number)), expected, "{when} on the number {number}");
    }
    let cost = policy("limits: [{name: a, rate: 9/s, cost: \"plan == '7' ? 2 : n + 1\"}]");
    let charged = |plan: &'static str| {
        let request = CheckRequest::new().with("plan", plan).unwrap().with("n", "4").unwrap();
        cost.matches(&request).unwrap()[0].cost
    };
    assert_eq!((charged("7"), charged("8")), (2, 5));
}

fn refused(fields: &str) -> String {
    findings(&format!("limits: [{{name: a, rate: 9/h, {fields}}}]")).to_string()
}

/// Patterns and networks as names of tiers and overrides compiled, and no request ever had such a tier. They are refused, with the limit
/// that says what was meant.
#[test]
fn names_of_tiers_and_overrides_are_single_values() {
    for (fields, right) in [
        ("by: [t], overrides: {'a*': 1/h}", "`when: { t: a* }`"),
        ("by: [path], overrides: {/café: 1/h}", "path: /caf%C3%A9"),
        ("by: [path], overrides: {'/u/{id}': 1/h}", "`when: { path: /u/{id} }`"),
        ("by: [api_key], overrides: {'k*': 1/h}", "only the hash is known"),
        ("by: [t], overrides: {10.0.0.0/8: 1/h}", "t is no address"),
        ("by: [t], tier_by: plan, tiers: {'pro*': 1/h}", "`when: { plan: pro* }`"),
        ("by: [t], tier_by: plan, tiers: {'!free': 1/h}", "plan: { not: free }"),
        ("by: [t], tier_by: ip, tiers: {10.0.0.0/8: 1/h}", "`when: { ip: 10.0.0.0/8 }`"),
        ("by: [t], tier_by: ip, tiers: {'2001:db8::1': 1/h}", "2001:db8::/64"),
        ("by: [t], tier_by: method, tiers: {get: 1/h}", "method: GET"),
        ("by: [t], tier_by: path, tiers: {/v1/*: 1/h}", "`when: { path: /v1/* }`"),
        ("by: [t], tier_by: [plan, host], tiers: {pro: {Example.com: 1/h}}", "host: example.com"),
        ("by: [t], tier_by: [plan, host], tiers: {'pro*': {'*': 1/h}}", "`when: { plan: pro* }`"),
    ] {
        let found = refused(fields);
        assert!(found.contains(right), "{fields}: {found}");
    }
    policy("limits: [{name: a, by: [t], tier_by: [plan, route], tiers: {pro: {'/u/{id}': 1/h, '*': 2/h}}}]");
}

fn capacity(policy: &Policy, request: &CheckRequest<'_>) -> u64 {
    let found = policy.matches(request).unwrap();
    policy.limits()[0].quota(found[0].quota).unwrap().capacity()
}

/// `tier_by: ip` missed `::ffff:10.0.0.1` for `10.0.0.1`, and `tier_by: method` HEAD for GET: a client chose its tier by a spelling.
#[test]
fn tiers_are_found_in_every_spelling() {
    let by_ip =
        policy("limits: [{name: a, rate: 9/h, tier_by: ip, tiers: {10.0.0.1: 1/h, '2001:db8::/64': 2/h}}]");
    for (ip, expected) in [
        ("10.0.0.1", 1),
        ("::ffff:10.0.0.1", 1),
        ("2001:DB8::1", 2),
        ("2001:db8::/64", 2),
        ("10.0.0.2", 9),
        ("none", 9),
    ] {
        assert_eq!(capacity(&by_ip, &CheckRequest::new().with("ip", ip).unwrap()), expected, "{ip}");
    }
    let by_method = policy("limits: [{name: a, rate: 9/h, tier_by: method, tiers: {GET: 1/h, POST: 2/h}}]");
    let of_method =
        |method: &'static str| capacity(&by_method, &CheckRequest::new().with("method", method).unwrap());
    assert_eq!((of_method("GET"), of_method("HEAD"), of_method("POST"), of_method("PUT")), (1, 1, 2, 9));
    let by_path = policy(
        "limits: [{name: a, rate: 9/h, tier_by: [plan, path], tiers: {pro: {/Login: 1/h}}, by: [path], overrides: {/admin: 3/h}}]",
    );
    for (path, expected) in
        [("/Login", 1), ("/LOGIN/", 1), ("/login.json", 1), ("/ADMIN", 3), ("/admin;x", 3), ("/other", 9)]
    {
        let loose = crate::path::loose_path(path);
        let mut request = CheckRequest::new().with("plan", "pro").unwrap();
        request.push_spelled("path", path, Spelling::LoosePath(&loose)).unwrap();
        assert_eq!(capacity(&by_path, &request), expected, "{path}");
    }
    let other = CheckRequest::new().with("plan", "pro").unwrap().with("path", "//admin").unwrap();
    assert_eq!(capacity(&by_path, &other), 3, "a caller need not know the spelling");
}
