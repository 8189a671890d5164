//! Files that are too large or too deep, and bytes that are not text.

use super::super::{Expression, FILE_BYTES_MAX, Policy};
use super::{findings, policy};
use crate::request::CheckRequest;

/// Aliases of aliases cannot fill the memory, nesting cannot fill the stack.
#[test]
fn bombs_are_refused_quickly() {
    let mut laughs = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..9 {
        let alias = format!("*a{}", level - 1);
        laughs.push_str(&format!("a{level}: &a{level} [{}]\n", vec![alias; 10].join(",")));
    }
    let said = findings(&laughs).to_string();
    assert!(said.contains("too many values"), "{said}");
    let said = findings(&format!("limits: {}", "[".repeat(100_000))).to_string();
    assert!(said.contains("nested") || said.contains("not YAML"), "{said}");
    let said = findings(&"a: {".repeat(17)).to_string();
    assert!(said.contains("nested") || said.contains("not YAML"), "{said}");
}

/// Bytes that are no text, and files that are no policy by their size alone, are refused before they are read.
#[test]
fn bytes_are_checked_before_they_are_read() {
    let said = Policy::compile("p", b"limits:\n  - name: \xff\n").unwrap_err().to_string();
    assert_eq!(said, "p:2:11: byte 18 (0xff) is not UTF-8; accepted: a file in UTF-8");
    let said = Policy::compile("p", &vec![b'a'; FILE_BYTES_MAX + 1]).unwrap_err().to_string();
    assert!(said.contains("the file has 16777217 bytes; accepted: at most 16777216"), "{said}");
    let said = Policy::compile("p", &vec![b'a'; 10 << 20]).unwrap_err().to_string();
    assert!(said.contains("a text of 10485760 bytes"), "{said}");
    assert!(Policy::compile("p", "\u{feff}limits: [{name: a, rate: 1/s}]".as_bytes()).is_ok());
}

/// Too many limits, fields or attributes are refused, and the error names them.
#[test]
fn counts_beyond_the_bounds_are_refused() {
    let limits = format!("limits: [{}]", "{},".repeat(1_000_000));
    let said = findings(&limits).to_string();
    assert!(said.contains("limits: more than 100000 items"), "{said}");
    let by = format!("limits: [{{name: a, rate: 1/s, by: [{}]}}]", "x,".repeat(50_000));
    let said = findings(&by).to_string();
    assert!(said.contains("by: 50000 attributes; accepted: at most 8"), "{said}");
    let names: Vec<String> = (0..8_200)
        .map(|i| format!("{{name: l{i}, by: [a{i},b{i},c{i},d{i},e{i},f{i},g{i},h{i}], rate: 1/s}}"))
        .collect();
    let said = findings(&format!("limits: [{}]", names.join(","))).to_string();
    assert!(said.contains("limits: too many attribute names; accepted: at most 65535"), "{said}");
    let bad = format!("limits: [{}]", "{name: 5, rate: s},".repeat(2_000));
    let said = findings(&bad);
    assert_eq!((said.as_slice().len(), said.len()), (1000, 3999));
    assert!(said.to_string().ends_with("... and 2999 more"));
}

/// More limits that always apply than a decision may charge would leave every request unanswered.
#[test]
fn too_many_unconditional_limits_are_refused() {
    let limits: Vec<String> = (0..33).map(|i| format!("  - {{name: l{i}, rate: 1/s}}\n")).collect();
    let said = findings(&format!("limits:\n{}", limits.concat())).to_string();
    assert!(said.contains("34:12: limits[32] \"l32\": more than 32 limits apply to every request"), "{said}");
    policy(&format!("limits:\n{}", limits[..32].concat()));
}

/// The story: 40 limits by one attribute passed the check, and each request with it was refused, because it matched too many.
#[test]
fn too_many_limits_of_one_request_are_refused() {
    let limits = |count: usize, by: &str| -> String {
        (0..count).map(|i| format!("  - {{name: '{by}{i}', by: [{by}], rate: 1/s}}\n")).collect()
    };
    let said = findings(&format!("limits:\n{}", limits(40, "k"))).to_string();
    let expected = "34:12: limits[32] \"k32\": more than 32 limits apply to every request with k";
    assert!(said.contains(expected), "{said}");
    let mixed = |some: usize| {
        format!("limits:\n{}{}  - {{name: one, rate: 1/s}}\n", limits(some, "t, k"), limits(16, "k"))
    };
    let said = findings(&mixed(16)).to_string();
    assert!(said.contains("more than 32 limits apply to every request with k, t"), "{said}");
    policy(&mixed(15));
    policy(&format!("limits:\n{}{}", limits(16, "k"), limits(32, "t")));
    policy(&format!("limits:\n{}", limits(40, "k").replace("rate: 1/s", "rate: 1/s, mode: shadow")));
}

/// No expression that fits the bound on its length can exhaust the stack, neither when it is compiled nor when it is evaluated.
#[test]
fn deep_expressions_do_not_exhaust_the_stack() {
    for (open, middle, close) in [
        ("1+", "1", ""),
        ("a.", "a", ""),
        ("a[", "0", "]"),
        ("(", "a", ")"),
        ("!", "a", ""),
        ("-", "a", ""),
        ("[", "a", "]"),
        ("{1:", "a", "}"),
        ("a?b:", "c", ""),
        ("a&&", "b", ""),
        ("a||!", "b", ""),
        ("size(", "a", ")"),
        ("a", "a", ".size()"),
        ("[1].map(x,", "x", ")"),
        ("a in [", "a", "]"),
        ("a==", "b", ""),
    ] {
        for depth in [10, 20, 46, 60, 200, 500, 1000, 2047, 4095] {
            let source = format!("{}{middle}{}", open.repeat(depth), close.repeat(depth));
            if let Ok(expression) = Expression::new(&source) {
                let request =
                    CheckRequest::new().with("a", 1).unwrap().with("b", 2).unwrap().with("c", 3).unwrap();
                let _ = (expression.holds(request.first()), expression.cost(request.first()));
            }
        }
    }
}

/// Usual expressions are far from the bounds: a long chain of alternatives, and a few levels of everything.
#[test]
fn usual_expressions_are_within_the_bounds() {
    let chain: Vec<String> = (0..60).map(|i| format!("path == '/p{i}'")).collect();
    for source in [
        chain.join(" || "),
        "((a == 'x' || (b == 'y' && !(c == 'z'))) && (d > 5 ? e : f) == 'g') || size(h + i) > int(j) * (k - (l + 1))"
            .to_owned(),
    ] {
        if let Err(problem) = Expression::new(&source) {
            panic!("{source}: {problem}");
        }
    }
}

/// A key of ten megabytes is refused without being repeated to the reader.
#[test]
fn huge_keys_are_refused() {
    let key = "k".repeat(10 << 20);
    for file in
        [format!("{key}: 1"), format!("? {key}\n: 1"), format!("limits: [{{name: {key}, rate: 1/s}}]")]
    {
        let said = findings(&file).to_string();
        assert!(said.len() < 300, "{} bytes", said.len());
        assert!(said.contains("a text of 10485760 bytes") || said.contains("not YAML"), "{said}");
    }
}

/// Policies are shared between threads.
#[test]
fn policies_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Policy>();
}

/// A limit with too many distinct quotas is refused; equal ones count once.
#[test]
fn too_many_different_quotas_are_an_error() {
    let file = |distinct: usize| {
        let overrides: String = (0..2_000).map(|i| format!("    k{i}: {}/s\n", 1 + i % distinct)).collect();
        format!("limits:\n- name: x\n  by: [k]\n  rate: 1/s\n  overrides:\n{overrides}")
    };
    assert!(Policy::compile("p", file(512).as_bytes()).is_ok());
    let findings = Policy::compile("p", file(600).as_bytes()).unwrap_err().to_string();
    assert!(findings.contains("600 different quotas") && findings.contains("at most 512"), "{findings}");
}
