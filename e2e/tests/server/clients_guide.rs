//! The guide `docs/clients.md` is run: its policy is served, and its blocks in curl, Python and TypeScript print what it shows. Go is
//! not installed where the tests run.

use crate::client_packages::Packages;

/// Every block of the guide works, and prints what the guide says.
#[test]
fn the_guide_is_true() {
    Packages::install("guide").follow(include_str!("../../../docs/clients.md"), 3);
}
