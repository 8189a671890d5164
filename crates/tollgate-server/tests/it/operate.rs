//! The guide `docs/operate.md` is run: its servers are started, its commands are executed in order, and what it shows as their
//! output is compared with what comes out.

use tollgate_testkit::Scratch;

use crate::guide::{GUIDE_ADDRESS, Last, blocks, shell, succeeded};
use crate::program::{Server, tollgate};

const GUIDE: &str = include_str!("../../../../docs/operate.md");

/// Starts a server as the guide says, on a free port.
fn start(scratch: &Scratch, command: &str) -> Server {
    let free = command.replace(GUIDE_ADDRESS, "127.0.0.1:0");
    let arguments: Vec<&str> = free.split_whitespace().skip(1).collect();
    let mut command = tollgate(&arguments);
    command.current_dir(scratch.path(""));
    Server::spawn(command, "")
}

fn output(scratch: &Scratch, server: &Server, commands: &str) -> String {
    let commands = commands.replace(GUIDE_ADDRESS, &server.address.to_string());
    let mut shell = shell(&format!("set -eu\n{commands}"));
    shell.current_dir(scratch.path("")).env("PID", server.id().to_string());
    succeeded(shell).0
}

/// Every command of the guide works, and answers what the guide says. Its certificates and its token were the test's own, so a reader could not
/// follow the page: now its commands make them.
#[test]
fn the_guide_is_true() {
    let scratch = Scratch::new();
    let (mut server, mut last) = (None, Last::default());
    let mut servers = 0;
    for (language, block) in blocks(GUIDE) {
        match language {
            "yaml" => scratch.replace("policy.yaml", &block),
            "sh files" => {
                let mut shell = shell(&format!("set -eu\n{block}"));
                shell.current_dir(scratch.path(""));
                drop(succeeded(shell));
            }
            "sh serve" => {
                drop(server.take());
                server = Some(start(&scratch, &block));
                servers += 1;
            }
            "sh" => last.ran(&block, output(&scratch, server.as_ref().unwrap(), &block)),
            _ => last.compare(language, &block),
        }
    }
    assert_eq!((servers, last.compared), (3, 8));
}
