//! The runbook `docs/runbook.md` is run as the guides are: its policy is served, its commands are executed, its outputs compared.

use tollgate_testkit::Scratch;

use crate::guide;
use crate::program::{Server, tollgate};

const RUNBOOK: &str = include_str!("../../../../docs/runbook.md");
const TOKEN: &str = "tg_of-the-runbook-and-nothing-else";

/// Every command that needs no more than a running server works, and answers what the runbook says. `explain` and `get` of step 3 and the
/// sentences of step 4 were not run, and the page did not say that they take a token.
#[test]
fn the_runbook_is_true() {
    let (blocks, scratch) = (guide::blocks(RUNBOOK), Scratch::new());
    scratch.replace("policy.yaml", guide::first(&blocks, "yaml"));
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "policy.yaml"]);
    command.current_dir(scratch.path("")).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    guide::follow_blocks(&blocks, &server, ("-u", 9), |shell| {
        let address = format!("http://{}", server.address);
        shell.current_dir(scratch.path(""));
        shell.env("TOLLGATE_SERVER", address).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    });
}
