//! The guide `docs/redis.md` is run: its Redis and its servers are started on free ports, stopped and started again by its own commands,
//! in one shell from the first block to the last, and what it shows is compared with what comes out.

use tollgate_testkit::{Scratch, free_port};

use crate::guide::{Last, blocks, shell, succeeded};
use crate::program::{run, stderr};

const GUIDE: &str = include_str!("../../../docs/redis.md");
/// Stands between the outputs of two blocks.
const MARK: &str = "=== next block ===";

/// How often the guide is followed until the machine was quick enough for it.
const ATTEMPTS: usize = 5;

/// Every command of the guide works, and shows what the guide says. A decision that the machine had no time for is made without the
/// store, and says so: then the guide is followed again, with a store and servers of its own.
#[test]
fn the_guide_is_true() {
    let blocks = blocks(GUIDE);
    let shown = |outputs: &str| {
        let mut outputs = outputs.split(MARK);
        let mut last = Last::default();
        for (language, block) in &blocks {
            match *language {
                "sh" => last.ran(block, outputs.next().expect("each block has an output")),
                _ => last.compare(language, block),
            }
        }
        last.at_least(7);
    };
    // The guide itself makes one decision without the store, and takes it away once.
    let is_once = |output: &str, text: &str| output.matches(text).count() <= 1;
    let is_quick = |output: &String| {
        is_once(output, "\"source\":\"local\"") && is_once(output, "the store does not serve")
    };
    let outputs = (0..ATTEMPTS).map(|_| followed(&blocks)).find(is_quick);
    shown(&outputs.expect("the machine was never quick enough"));
}

/// The output of the guide's commands, each block's behind a mark.
fn followed(blocks: &[(&str, String)]) -> String {
    let folder = Scratch::new();
    let ports = ["6379", "8080", "8090"].map(|port| (port, free_port().to_string()));
    // Where many tests share a few processors, a decision may take longer than it does elsewhere.
    let mut script = format!("set -eu\ncd '{}'\nexport TOLLGATE_STORE_DEADLINE=50ms\n", folder.text(""));
    script.push_str("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n");
    for (_, commands) in blocks.iter().filter(|(language, _)| *language == "sh") {
        script.push_str(commands);
        script.push_str(&format!("\nprintf '\\n%s\\n' '{MARK}'\n"));
    }
    for (port, free) in &ports {
        script = script.replace(port, free);
    }
    let (mut output, complaints) = succeeded(shell(&script));
    assert_eq!(complaints, "", "no command complains");
    for (port, free) in &ports {
        output = output.replace(free, port);
    }
    output.replace("within 50 ms", "within 5 ms")
}

/// The config file that the guide shows is one, up to its password that is not there.
#[test]
fn the_guides_config_is_understood() {
    let (folder, blocks) = (Scratch::new(), blocks(GUIDE));
    let (_, config) = blocks.iter().find(|(language, _)| *language == "yaml config").unwrap();
    folder.replace("config.yaml", config);
    let output = run(&["serve", "--http", "127.0.0.1:0", "--config", &folder.text("config.yaml")], b"");
    let printed = stderr(&output);
    assert!(output.status.code() == Some(1) && printed.contains("/etc/tollgate/store-password"), "{printed}");
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
