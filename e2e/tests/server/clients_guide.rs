//! The guide `docs/clients.md` is run: its policy is served, and its blocks print what it shows.

use std::path::Path;
use std::process::Command;

use tollgate_testkit::Scratch;

use crate::cached::succeeds;
use crate::guide::{GUIDE_ADDRESS, Last, blocks, first};
use crate::program::Server;
use crate::resp_guide::interpreter;

const GUIDE: &str = include_str!("../../../docs/clients.md");

/// Every block of the guide works, and prints what the guide says.
#[test]
fn the_guide_is_true() {
    let blocks = blocks(GUIDE);
    let server = Server::start(first(&blocks, "yaml"));
    let mut last = Last::default();
    for (language, block) in &blocks {
        let text = block.replace(GUIDE_ADDRESS, &server.address.to_string());
        match (*language, interpreter(language)) {
            ("go", _) => last.ran(block, go(&text)),
            (_, Some((mut command, option))) => last.ran(block, succeeds(command.args([option, &text]))),
            (_, None) => last.compare(language, block),
        }
    }
    assert_eq!(last.compared, 4);
}

/// Runs a Go program. What it compiles of Go's library is kept for the next run.
fn go(program: &str) -> String {
    let scratch = Scratch::new();
    let file = scratch.write("main.go", program);
    let mut command = Command::new("go");
    command.arg("run").arg(file).env("GOTOOLCHAIN", "local");
    command.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
    succeeds(&mut command)
}
