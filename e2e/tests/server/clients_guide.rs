//! The guide `docs/clients.md` is run: its policy is served, and its blocks in curl, Python and TypeScript print what it shows. Go is
//! not installed where the tests run.

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
        match interpreter(language) {
            Some((mut command, option)) => {
                let text = block.replace(GUIDE_ADDRESS, &server.address.to_string());
                last.ran(block, succeeds(command.args([option, &text])));
            }
            None => last.compare(language, block),
        }
    }
    assert_eq!(last.compared, 3);
}
