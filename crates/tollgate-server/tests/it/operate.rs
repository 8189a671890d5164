//! The guides `docs/operate.md` and `docs/security.md` are run: servers are started, its commands are executed in order, and what it shows as their
//! output is compared with what comes out.

use tollgate_testkit::Scratch;

use crate::guide::{GUIDE_ADDRESS, Last, blocks, shell, succeeded};
use crate::program::{Server, tollgate};

const GUIDE: &str = include_str!("../../../../docs/operate.md");
const SECURITY: &str = include_str!("../../../../docs/security.md");

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

/// Runs a guide, and returns how many servers it started and how many outputs were compared.
fn followed(guide: &str) -> (usize, usize) {
    let scratch = Scratch::new();
    let (mut server, mut last) = (None, Last::default());
    let mut servers = 0;
    for (language, block) in blocks(guide) {
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
    (servers, last.compared)
}

/// Every command of the guide works, and answers what the guide says.
#[test]
fn the_guide_is_true() {
    assert_eq!(followed(GUIDE), (1, 4));
}

/// So does every command of the page about security. Its certificates and its token were once the test's own, so a reader could not
/// follow the page: now its commands make them.
#[test]
fn the_security_page_is_true() {
    assert_eq!(followed(SECURITY), (2, 4));
}
