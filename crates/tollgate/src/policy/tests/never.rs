//! Conditions and keys that no request has: each is refused, with a spelling that is accepted.

use super::super::Policy;
use super::{findings, policy, warnings};
use crate::credential::CredentialAttributes;
use crate::request::CheckRequest;

/// A file with one limit of these fields.
fn limit(fields: &str) -> String {
    format!("limits:\n  - name: a\n    rate: 1/s\n    {fields}\n")
}

/// The advice in the findings of one limit with these fields.
fn advice(fields: &str) -> Vec<String> {
    let found = findings(&limit(fields)).to_string();
    let advice: Vec<String> =
        found.lines().filter_map(|line| Some(line.split_once("accepted: ")?.1.to_owned())).collect();
    assert!(!advice.is_empty(), "{fields}: {found}");
    advice
}

/// The story: each of these compiled without a word, and the limit never applied.
#[test]
fn expressions_that_are_never_true_are_refused() {
    for (expression, accepted) in [
        ("has(plan) && !has(plan)", "conditions that can hold together"),
        ("!has(plan) && plan == 'x'", "conditions that can hold together"),
        ("plan in []", "at least one value"),
        ("plan == null", "!has(plan)"),
        ("plan != null", "has(plan)"),
        ("plan == 'a' && plan in ['b']", "conditions that can hold together"),
        ("plan == 'a' && plan != 'a'", "conditions that can hold together"),
        ("path.startsWith('/a') && path == '/b'", "conditions that can hold together"),
        ("path.startsWith('/a') && path.startsWith('/b')", "conditions that can hold together"),
        ("plan.endsWith('x') && plan in ['a', 'b']", "conditions that can hold together"),
        ("n > 5 && n < 3", "conditions that can hold together"),
        ("n > 5 && 5 >= n", "conditions that can hold together"),
        ("n == 1 && n == 2", "conditions that can hold together"),
        ("path.contains('//')", "'/'"),
        ("path.endsWith('//')", "'/'"),
        ("path == ''", "has(path)"),
        ("ip == ''", "has(ip)"),
        ("ip.contains('::ffff:')", "when: { ip: 10.0.0.0/8 }"),
        ("ip.startsWith('localhost')", "when: { ip: 10.0.0.0/8 }"),
        ("method.matches('^get$')", "'^GET$'"),
        ("host.matches('^WWW[.]')", "'^www[.]'"),
        ("path.matches('^v1/')", "'^/v1/'"),
        ("path.matches('/a//b')", "'/a/b'"),
        ("ip in '10.0.0.0/8'", "when: { ip: 10.0.0.0/8 }"),
        ("'/v1' in path", "path.contains('/v1')"),
        ("plan in 'free'", "plan == 'free', or plan in ['free']"),
        ("header['x-tenant'] == 'a'", "attributes: { tenant: { header: x-tenant } }"),
        ("plan['x'] == 'a'", "an attribute of its own"),
    ] {
        let advice = advice(&format!("when: \"{expression}\""));
        assert!(advice.iter().any(|advice| advice.contains(accepted)), "{expression}: {advice:?}");
    }
    for expression in [
        "n > 5 && n < 7",
        "n >= 5 && n <= 5",
        "plan == 'a' && plan in ['a', 'b']",
        "path.startsWith('/a') && path.startsWith('/a/b') && path != '/a/b/c'",
        "path.startsWith('/a') && path == '/a/b'",
        "!has(plan) || plan == 'x'",
        "plan == ''",
        "ip == '10.0.0.1' && ip.startsWith('10.')",
        "ip.startsWith('2001:db8:')",
        "method.matches('^(GET|POST)$')",
        "method.matches('(?i)get')",
        "host.matches('^[A-Za-z]+')",
        "path.matches('^/v[0-9]+/')",
        "plan in ['a']",
        "{'a': 1}['a'] == n",
    ] {
        policy(&limit(&format!("when: \"{expression}\"")));
    }
}

/// Regression: `cost: tokens * 1.5` compiled, and every request was denied with a message of the interpreter;
/// `when: path > 5` compiled, and the limit applied to every request.
#[test]
fn expressions_without_a_value_are_refused() {
    for (expression, message) in [
        ("path > 5", "`>` does not compare path (a text) with a whole number"),
        ("path == 5", "path (a text) never equals a whole number"),
        ("size(path) != 'a'", "a whole number never equals a text"),
        ("path + 1 == 2", "`+` does not take path (a text) and a whole number"),
        ("!path", "`!` needs a truth value, not path (a text)"),
        ("!plan", "`!` needs a truth value, not plan (a whole number or a text)"),
        ("tokens && true", "`&&` needs a truth value, not tokens (a whole number or a text)"),
        ("has(plan) || tokens", "`||` needs a truth value, not tokens (a whole number or a text)"),
        ("plan ? true : false", "`?` needs a truth value, not plan (a whole number or a text)"),
        ("size(path)", "its value is a whole number"),
        ("size(path + 1) > 5", "`+` does not take path (a text) and a whole number"),
        ("size(5) > 5", "size() does not take a whole number"),
        ("path.startsWith(5)", "startsWith() does not take a whole number"),
        ("n / 0 == 1", "it divides by 0"),
        ("path.exists(c, c == '/')", "a macro goes through a list, and this is a text"),
        ("-path == 1", "`-` needs a number, not path (a text)"),
    ] {
        let found = findings(&limit(&format!("when: \"{expression}\""))).to_string();
        assert!(found.contains(&format!("when: {message}; accepted: ")), "{expression}: {found}");
    }
    for (expression, message) in [
        ("tokens * 1.5", "`*` does not take tokens (a whole number or a text) and a fraction"),
        ("double(tokens) * 1.5", "its value is a fraction"),
        ("tokens / 0", "it divides by 0"),
        ("tokens % 0", "it divides by 0"),
        ("tokens > 5", "its value is a truth value"),
        ("size(path) + 'a'", "`+` does not take a whole number and a text"),
        ("string(tokens)", "its value is a text"),
        ("uint(tokens) + 1", "`+` does not take an unsigned number and a whole number"),
    ] {
        let found = findings(&limit(&format!("cost: \"{expression}\""))).to_string();
        assert!(found.contains(&format!("cost: {message}; accepted: ")), "{expression}: {found}");
    }
    for expression in [
        "tokens * 3 / 2",
        "int(double(tokens) * 1.5)",
        "plan == 'pro' ? 1 : size(path) / 10",
        "a + b * 2 - c % 3",
        "uint(tokens) + 1u",
        "dyn(tokens) * 2",
        "[1, 2, 3].filter(n, n > 1).size() + tokens",
        "size({'a': 1}) + tokens",
    ] {
        policy(&limit(&format!("cost: \"{expression}\"")));
    }
    for expression in [
        "bool(flag)",
        "tokens > 1.5",
        "double(tokens) / 3.0 > 1.5",
        "a == b",
        "a + b == 'xy'",
        "['a', 'b'].exists(x, x == plan)",
        "size(path) > 5 && !has(plan)",
        "type(tokens) == type(plan)",
        "(plan == 'a') == has(x)",
        "has(plan) ? plan == 'a' : true",
    ] {
        policy(&limit(&format!("when: \"{expression}\"")));
    }
}

/// The story: `plan == 'x' ? false : true` says what plan must not be, and only the other spellings of that got a warning.
#[test]
fn a_choice_that_negates_is_a_negation() {
    for expression in ["plan == 'x' ? false : true", "!(plan == 'x')"] {
        let warned = warnings(&limit(&format!("when: \"{expression}\""))).to_string();
        assert!(warned.contains("a request without plan is not limited"), "{expression}: {warned}");
    }
    assert!(warnings(&limit("when: \"plan == 'x' ? true : false\"")).is_empty());
}

/// The story: of credentials everything was accepted and hashed, so `!k1` was a credential that no one has. A finding shows none of them.
#[test]
fn credentials_that_are_patterns_are_refused() {
    let wrong = [
        "!s3cret",
        "not s3cret",
        "s3cret|k2",
        "s3cret, k2",
        "s3cret or k2",
        "~ ^s3cret",
        "^s3cret$",
        " s3cret",
        "s3cret ",
        "Bearer s3cret",
        "regex:s3cret",
        "sha256:6ab9",
        "SHA256:6ab9f1eb8f7d3388f4f9d586f66e99fd",
        "sha256:6ab9f1eb8f7d3388f4f9d586f66e99f",
        "",
    ];
    for text in wrong {
        for fields in [
            format!("when: {{api_key: \"{text}\"}}"),
            format!("when: {{api_key: {{not: [\"{text}\", k2]}}}}"),
            format!("by: [api_key]\n    overrides: {{\"{text}\": 5/s}}"),
            format!("tier_by: api_key\n    tiers: {{\"{text}\": 5/s}}"),
            format!("when: 'api_key == \"{text}\"'"),
            format!("when: 'api_key in [\"{text}\"]'"),
            format!("when: 'api_key != \"{text}\"'"),
        ] {
            let found = findings(&limit(&fields)).to_string();
            assert!(!found.contains("s3cret"), "{fields}: {found}");
        }
    }
    for advice in advice("when: {api_key: \"k1|k2\"}") {
        let digest = advice.split("or sha256:").nth(1).and_then(|rest| rest.get(..32)).unwrap();
        policy(&limit(&format!("when: {{api_key: \"sha256:{digest}\"}}")));
    }
    assert!(advice("when: {api_key: {in: s3cret}}")[0].starts_with("api_key: [k1]"));
    for text in
        ["k1", "sk_live_4eC39HqLyjWDarjtT1zdp7dc", "dXNlcjpwYXNz==", "eyJhbGciOiJ.eyJzdWIi.c2ln", "a+b/c="]
    {
        policy(&limit(&format!("when: {{api_key: \"{text}\"}}")));
        policy(&limit(&format!("by: [api_key]\n    overrides: {{\"{text}\": 5/s}}")));
    }
}

/// The story: `free|pro` as the name of a tier, and an empty text for a path, compiled and were never met.
#[test]
fn names_that_no_request_has_are_refused() {
    for fields in [
        "tier_by: plan\n    tiers: {\"free|pro\": 5/s}",
        "tier_by: plan\n    tiers: {\"free, pro\": 5/s}",
        "by: [tenant]\n    overrides: {\"a, b\": 5/s}",
        "by: [path]\n    overrides: {\"\": 5/s}",
        "when: {ip: \"\"}",
        "when: {path: \"\"}",
        "when: {host: [a.test, \"\"]}",
        "when: {method: {not: \"\"}}",
    ] {
        assert!(!advice(fields).is_empty());
    }
    policy(&limit("by: [tenant]\n    overrides: {\"Acme, Inc.\": 5/s}"));
    policy(&limit("when: {plan: \"\"}"));
}

/// The story: the advice of an error was refused by the compiler itself. What an error says to write compiles.
#[test]
fn advice_compiles() {
    for (name, written) in [
        ("path", "/users/{id:[0-9]+}"),
        ("path", "/users/:id"),
        ("path", "/users/{}"),
        ("path", "/files/{name}.json"),
        ("path", "/v[0-9]+/x"),
        ("path", "~* \\\\.php$"),
        ("path", "^/v1"),
        ("path", "/v1/.*"),
        ("path", "/a|/b"),
        ("path", "/café"),
        ("path", "prefix:/v1"),
        ("path", "suffix:.json"),
        ("path", "contains:/admin/"),
        ("path", "regex:^/v[0-9]"),
        ("path", "!/health"),
        ("path", ""),
        ("method", "/GET|POST/"),
        ("method", "GET|POST"),
        ("method", "in: GET, POST"),
        ("method", "!GET"),
        ("method", "get"),
        ("host", "*.Example.com"),
        ("host", "*.example.com:080"),
        ("host", "[2001:db8:0::1]"),
        ("host", ".example.com"),
        ("ip", "10.0.*"),
        ("ip", "!10.0.0.0/8"),
        ("tenant", "acme-[0-9]"),
        ("plan", "free,pro"),
        ("plan", "regex:^f"),
        ("size", ">= 5"),
    ] {
        for advice in advice(&format!("when: {{{name}: \"{written}\"}}")) {
            let fields = if let Some(condition) = advice.strip_prefix("when: ") {
                let quote = &condition[..1];
                let end = advice.rfind(quote).unwrap();
                advice[..=end].to_owned()
            } else {
                let ends = [", or ", "; ", " for any value", ", in which"];
                let end = ends.iter().filter_map(|end| advice.find(end)).min().unwrap_or(advice.len());
                format!("when:\n      {}", &advice[..end])
            };
            policy(&limit(&fields));
        }
    }
}

/// The story: a method in small letters, on a way in that states attributes, met no limit on the method.
#[test]
fn methods_are_compared_in_capitals() {
    let file = "limits:
- {name: post, rate: 1/s, when: {method: POST}}
- {name: cel, rate: 1/s, when: \"method == 'POST'\"}
- {name: get, rate: 1/s, when: {method: GET}}
- {name: other, rate: 1/s, when: {method: {not: POST}}}
";
    let policy = policy(file);
    let met = |method: &str| {
        let request = CheckRequest::new().with("method", method).unwrap();
        let found = policy.matches(&request).unwrap();
        found.iter().map(|found| policy.limits()[found.limit as usize].name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(met("POST"), ["post", "cel"]);
    assert_eq!((met("post"), met("Post")), (met("POST"), met("POST")));
    assert_eq!(met("head"), met("HEAD"));
    assert_eq!(met("head"), ["get", "other"]);
}

/// The story: which override an IPv6 client had depended on another limit's condition, and none could be written for the bits that the
/// config has clients count by.
#[test]
fn overrides_of_networks_hold_for_what_is_inside() {
    let limit = "{name: b, by: [ip], rate: 500/h, overrides: {'2001:db8::/64': 7/h, '2001:db8:1::/48': 8/h}}";
    let beside = "{name: c, by: [ip], rate: 600/h, when: \"ip == '10.0.0.1'\"}";
    for file in [format!("limits: [{limit}]"), format!("limits: [{limit}, {beside}]")] {
        let policy = policy(&file);
        let capacity = |ip: &str| {
            let found = policy.matches(&CheckRequest::new().with("ip", ip).unwrap()).unwrap();
            policy.limits()[0].quota(found[0].quota).unwrap().capacity()
        };
        for (ip, wanted) in [
            ("2001:db8::1", 7),
            ("2001:db8::1/128", 7),
            ("2001:db8::/64", 7),
            ("2001:db8::/48", 500),
            ("2001:db8:1::/48", 8),
            ("2001:db8:1:2::/56", 8),
            ("2001:db8:1:2::3", 8),
            ("2001:db9::1", 500),
            ("10.0.0.1", 500),
        ] {
            assert_eq!(capacity(ip), wanted, "{ip} by {file}");
        }
    }
}

/// The story: `caller: {first_of: [api_key, ip]}` has the network of an IPv6 client without a credential. A policy that named an address of
/// it compiled, and nothing had it. IPv4 addresses and credentials are read back as what they are.
#[test]
fn addresses_beside_credentials_have_one_spelling() {
    let credentials = CredentialAttributes::with(["caller"]).or_addresses(["caller"], 56);
    let compile = |fields: &str| Policy::compile_for("p", limit(fields).as_bytes(), &credentials);
    for fields in [
        "by: [caller]\n    overrides: {\"2001:db8::1\": 9/s}",
        "when: {caller: \"2001:db8::1\"}",
        "when: 'caller == \"2001:db8::1\"'",
        "tier_by: caller\n    tiers: {\"2001:db8::1\": 9/s}",
    ] {
        let found = compile(fields).unwrap_err().to_string();
        assert!(found.contains("accepted: 2001:db8::/56"), "{fields}: {found}");
    }
    let named = "by: [caller]\n    overrides: {\"2001:db8::/56\": 9/s, 1.2.3.4: 8/s, k1: 7/s}";
    let policy = compile(named).unwrap();
    let capacity = |caller: &str| {
        let found = policy.matches(&CheckRequest::new().with("caller", caller).unwrap()).unwrap();
        policy.limits()[0].quota(found[0].quota).unwrap().capacity()
    };
    assert_eq!(
        (capacity("2001:db8::/56"), capacity("1.2.3.4"), capacity("k1"), capacity("k2")),
        (9, 8, 7, 1)
    );
    let sentence = policy.sentences().join("");
    assert!(
        sentence.contains("1.2.3.4") && sentence.contains("sha256:") && !sentence.contains("k1"),
        "{sentence}"
    );
}

/// The story: `defaults` said of a limit that counts nothing that no request passes while the store fails, and warned of fields that it has not.
#[test]
fn defaults_are_not_for_limits_that_count_nothing() {
    let defaults = "defaults: {algorithm: sliding-window, precision: 5, on_store_failure: deny, consistency: leased, mode: shadow}";
    for rate in ["unlimited", "deny"] {
        let file = format!("{defaults}\nlimits: [{{name: a, by: [t], rate: {rate}}}]");
        let alone = format!("defaults: {{mode: shadow}}\nlimits: [{{name: a, by: [t], rate: {rate}}}]");
        assert_eq!(warnings(&file).to_string(), warnings(&alone).to_string());
        assert_eq!(policy(&file).sentences(), policy(&alone).sentences());
    }
    let mixed =
        format!("{defaults}\nlimits: [{{name: a, by: [t], rate: deny, tier_by: plan, tiers: {{pro: 5/s}}}}]");
    assert!(policy(&mixed).sentences()[0].contains("in any second"), "{}", policy(&mixed).sentences()[0]);
}
