//! The section of `docs/admin.md` about operating a running server is run: its policy is served, its commands are executed in
//! order, and what it shows as their output is compared with what comes out.

use crate::admin::{Scratch, TOKEN};
use crate::guide;
use crate::program::{Server, tollgate};

const GUIDE: &str = include_str!("../../../../docs/admin.md");
const HEADING: &str = "## Operate a running server";

/// Every command of the section works, and prints what the section says.
#[test]
fn the_section_is_true() {
    let (_, section) = GUIDE.split_once(HEADING).expect("the guide has the section");
    let blocks = guide::blocks(section.split("\n## ").next().unwrap());
    let scratch = Scratch::new();
    let file = scratch.file("policy.yaml", guide::first(&blocks, "yaml"));
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &file]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    // Without `-e`: some verbs tell by their status what they found.
    guide::follow_blocks(&blocks, &server, ("-u", 8), |shell| {
        shell
            .current_dir(scratch.folder())
            .env("TOLLGATE_SERVER", format!("http://{}", server.address))
            .env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    });
}
