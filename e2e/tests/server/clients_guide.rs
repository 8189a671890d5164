//! The guide `docs/clients.md` is run: its policy is served, and its blocks print what it shows.

use crate::client_packages::Packages;

/// Every block of the guide works, and prints what the guide says.
#[test]
fn the_guide_is_true() {
    Packages::install("guide").follow(include_str!("../../../docs/clients.md"), 4);
}
