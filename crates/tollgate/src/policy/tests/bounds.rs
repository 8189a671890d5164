//! Files that are too large, too deep, or too many, and bytes that are no text.

use super::super::{FILE_BYTES_MAX, Policy};
use super::{findings, policy};

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
    let said = Policy::compile("p", b"limits:\n  - name: \xff\n")
        .unwrap_err()
        .to_string();
    assert_eq!(
        said,
        "p:2:11: byte 18 (0xff) is not UTF-8; accepted: a file in UTF-8"
    );
    let said = Policy::compile("p", &vec![b'a'; FILE_BYTES_MAX + 1])
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("the file has 16777217 bytes; accepted: at most 16777216"),
        "{said}"
    );
    let said = Policy::compile("p", &vec![b'a'; 10 << 20])
        .unwrap_err()
        .to_string();
    assert!(said.contains("a text of 10485760 bytes"), "{said}");
    assert!(Policy::compile("p", "\u{feff}limits: [{name: a, rate: 1/s}]".as_bytes()).is_ok());
}

/// More than the bounds is refused by name: limits, fields, attributes.
#[test]
fn crowds_are_refused() {
    let limits = format!("limits: [{}]", "{},".repeat(1_000_000));
    let said = findings(&limits).to_string();
    assert!(said.contains("limits: more than 100000 items"), "{said}");
    let by = format!("limits: [{{name: a, rate: 1/s, by: [{}]}}]", "x,".repeat(50_000));
    let said = findings(&by).to_string();
    assert!(
        said.contains("by: 50000 attributes; accepted: at most 8"),
        "{said}"
    );
    let names: Vec<String> = (0..70_000)
        .map(|i| format!("{{name: l{i}, by: x{i}, rate: 1/s}}"))
        .collect();
    let said = findings(&format!("limits: [{}]", names.join(","))).to_string();
    assert!(
        said.contains("limits: too many attribute names; accepted: at most 65535"),
        "{said}"
    );
    let bad = format!("limits: [{}]", "{name: 5, rate: s},".repeat(2_000));
    let said = findings(&bad);
    assert_eq!((said.as_slice().len(), said.len()), (1000, 3999));
    assert!(said.to_string().ends_with("… and 2999 more"));
}

/// More limits that always apply than a decision may charge would leave every request unanswered.
#[test]
fn too_many_unconditional_limits_are_refused() {
    let limits: Vec<String> = (0..33)
        .map(|i| format!("  - {{name: l{i}, rate: 1/s}}\n"))
        .collect();
    let said = findings(&format!("limits:\n{}", limits.concat())).to_string();
    assert!(
        said.contains("34:12: limits[32] \"l32\": more than 32 limits apply to every request"),
        "{said}"
    );
    policy(&format!("limits:\n{}", limits[..32].concat()));
}
