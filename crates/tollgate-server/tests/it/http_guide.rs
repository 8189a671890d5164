//! `docs/http.md` is run.

const GUIDE: &str = include_str!("../../../../docs/http.md");

/// Every command of the guide works, and answers what the guide says.
#[test]
fn the_guide_is_true() {
    crate::guide::follow(GUIDE, 8);
}
