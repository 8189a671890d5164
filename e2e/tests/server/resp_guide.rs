//! The guide `docs/resp.md` is run: its policy is served, its commands are executed in order, and what it shows as their output is
//! compared with what comes out.

use std::process::Command;

use crate::cached::{cached, succeeds};
use crate::guide::{Last, blocks, first};
use crate::program::Server;

const GUIDE: &str = include_str!("../../../docs/resp.md");
/// The port that the guide's commands name; the test puts its own server's there.
const GUIDE_PORT: &str = "6380";

/// The program that executes a block, and the option before its text; nothing if the block is none to execute.
pub(crate) fn interpreter(language: &str) -> Option<(Command, &'static str)> {
    match language {
        "sh" => Some((Command::new("sh"), "-euc")),
        "python" => Some((Command::new(cached("python/bin/python")), "-c")),
        "javascript" | "typescript" => {
            let mut node = Command::new("node");
            node.env("NODE_PATH", cached("node/node_modules"));
            Some((node, "-e"))
        }
        _ => None,
    }
}

/// Every command of the guide works, and answers what the guide says.
#[test]
fn the_guide_is_true() {
    let blocks = blocks(GUIDE);
    let server = Server::start(first(&blocks, "yaml"));
    let port = server.resp().port().to_string();
    let mut last = Last::default();
    for (language, block) in &blocks {
        match interpreter(language) {
            Some((mut command, option)) => {
                let text = block.replace(GUIDE_PORT, &port);
                last.ran(block, succeeds(command.args([option, &text])));
            }
            None => last.compare(language, block),
        }
    }
    last.at_least(8);
}
