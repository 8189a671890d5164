//! The examples of the crate and the page that shows them.

const GATE: &str = include_str!("../../examples/gate.rs");
const GUIDE: &str = include_str!("../../../../docs/library.md");

/// The page shows the program that `./test` builds without the feature `policy`.
#[test]
fn the_page_shows_the_example_without_a_policy() {
    let start = GATE.find("use std::").expect("the program begins with its imports");
    assert!(
        GUIDE.contains(&format!("```rust\n{}```\n", &GATE[start..])),
        "docs/library.md shows another program"
    );
}
