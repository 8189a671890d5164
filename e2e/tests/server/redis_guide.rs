//! The guide `docs/redis.md` is run: its Redis and its servers are started on free ports, stopped and started again by its own commands,
//! in one shell from the first block to the last, and what it shows is compared with what comes out.

use tollgate_testkit::Scratch;

use crate::guide::{blocks, compare, until_quick, with_own_store};
use crate::program::{run, stderr};

const GUIDE: &str = include_str!("../../../docs/redis.md");

/// Every command of the guide works, and shows what the guide says. A decision that the machine had no time for is made without the
/// store, and says so: then the guide is followed again, with a store and servers of its own.
#[test]
fn the_guide_is_true() {
    let blocks = blocks(GUIDE);
    // The guide itself makes one decision without the store, and takes it away once.
    let is_once = |output: &str, text: &str| output.matches(text).count() <= 1;
    let is_quick = |output: &String| {
        is_once(output, "\"source\":\"local\"") && is_once(output, "the store does not serve")
    };
    let followed = || with_own_store(&blocks).replace("within 50 ms", "within 5 ms");
    compare(&blocks, &until_quick(followed, is_quick), 7);
}

/// The config file that the guide shows is one, up to its password that is not there.
#[test]
fn the_guides_config_is_understood() {
    let (folder, blocks) = (Scratch::new(), blocks(GUIDE));
    let (_, config) = blocks.iter().find(|(language, _)| *language == "yaml config").unwrap();
    folder.replace("config.yaml", config);
    let output = run(&["serve", "--http", "127.0.0.1:0", "--config", &folder.text("config.yaml")], b"");
    let printed = stderr(&output);
    assert!(output.status.code() == Some(2) && printed.contains("/etc/tollgate/store-password"), "{printed}");
}

/// The user that the guide shows is the one that `store check` recommends.
#[test]
fn the_guides_user_is_the_recommended_one() {
    let source = include_str!("../../../crates/tollgate-server/src/store_check/rights.rs");
    let (_, rights) = source.split_once("RIGHTS: &str = \"").unwrap();
    let (rights, _) = rights.split_once('"').unwrap();
    let rights: Vec<&str> = rights.split_whitespace().filter(|word| *word != "\\").collect();
    let (_, shown) = GUIDE.split_once("ACL SETUSER tollgate on >PASSWORD ").unwrap();
    let shown: Vec<&str> = shown.lines().next().unwrap().split(' ').collect();
    assert_eq!(shown, rights);
}
