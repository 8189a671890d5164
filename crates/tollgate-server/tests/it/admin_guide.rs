//! `docs/admin.md` and `docs/rollout.md` are run: their policy is served, their commands are executed in order, and what they show as
//! output is compared with what comes out.

use crate::admin::{Scratch, TOKEN};
use crate::guide;
use crate::program::{Server, tollgate};

/// Serves the policy of a page, executes its commands, and compares at least `least` outputs.
fn follow(page: &str, least: usize) {
    let blocks = guide::blocks(page);
    let scratch = Scratch::new();
    let file = scratch.file("policy.yaml", guide::first(&blocks, "yaml"));
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &file]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    // Without `-e`: some verbs tell by their status what they found.
    guide::follow_blocks(&blocks, &server, ("-u", least), |shell| {
        shell
            .current_dir(scratch.folder())
            .env("TOLLGATE_SERVER", format!("http://{}", server.address))
            .env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    });
}

/// Every admin command works, and prints what the page says.
#[test]
fn the_guide_is_true() {
    follow(include_str!("../../../../docs/admin.md"), 8);
}

/// Policies are compared as the page says.
#[test]
fn the_rollout_guide_is_true() {
    follow(include_str!("../../../../docs/rollout.md"), 2);
}
