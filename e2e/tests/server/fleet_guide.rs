//! The guide `docs/fleet.md` is run: its Redis and its servers are started on free ports and ended by its own commands, in one shell
//! from the first block to the last, and what it shows is compared with what comes out.

use tollgate_testkit::{Scratch, free_port};

use crate::guide::{Last, blocks, shell, succeeded};

const GUIDE: &str = include_str!("../../../docs/fleet.md");
/// Stands between the outputs of two blocks.
const MARK: &str = "=== next block ===";
/// How often the guide is followed until the machine was quick enough for it.
const ATTEMPTS: usize = 5;

/// Every command of the guide works, and shows what the guide says. A decision that the machine had no time for is made without the
/// store, and says so: then the guide is followed again, with a store and servers of its own.
#[test]
fn the_guide_is_true() {
    let blocks = blocks(GUIDE);
    let is_quick = |output: &String| !output.contains("(local)") && output.matches("node only").count() == 1;
    let outputs = (0..ATTEMPTS).map(|_| followed(&blocks)).find(is_quick);
    let outputs = outputs.expect("the machine was never quick enough");
    let (mut outputs, mut last) = (outputs.split(MARK), Last::default());
    for (language, block) in &blocks {
        match *language {
            "sh" => last.ran(block, outputs.next().expect("each block has an output")),
            _ => last.compare(language, block),
        }
    }
    last.at_least(6);
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
    output
}
