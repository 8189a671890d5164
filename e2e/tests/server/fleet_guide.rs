//! The guide `docs/fleet.md` is run: its Redis and its servers are started on free ports and ended by its own commands, in one shell
//! from the first block to the last, and what it shows is compared with what comes out.

use crate::guide::{blocks, compare, until_quick, with_own_store};

const GUIDE: &str = include_str!("../../../docs/fleet.md");

/// Every command of the guide works, and shows what the guide says. A decision that the machine had no time for is made without the
/// store, and says so: then the guide is followed again, with a store and servers of its own.
#[test]
fn the_guide_is_true() {
    let blocks = blocks(GUIDE);
    let is_quick = |output: &String| !output.contains("(local)") && output.matches("node only").count() == 1;
    compare(&blocks, &until_quick(|| with_own_store(&blocks), is_quick), 6);
}
