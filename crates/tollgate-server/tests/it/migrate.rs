//! The guide `docs/migrate.md` is run: its files are written, its servers started, its commands executed, and what it shows as
//! their output is compared with what comes out.

use tollgate_testkit::Scratch;

use crate::guide::{GUIDE_ADDRESS, Last, blocks, shell, succeeded};
use crate::program::{Server, tollgate};

const GUIDE: &str = include_str!("../../../../docs/migrate.md");

/// Every command of the guide works, and answers what the guide says.
#[test]
fn the_guide_is_true() {
    let scratch = Scratch::new();
    let (mut server, mut last) = (None, Last::default());
    for (language, block) in blocks(GUIDE) {
        match language {
            "yaml foreign" => {
                let name = block.lines().next().and_then(|line| line.strip_prefix("# "));
                scratch.replace(name.expect("a file begins with its name"), &block);
            }
            "sh" if block.starts_with("tollgate serve ") => {
                drop(server.take());
                server = Some(serve(&block, &scratch));
            }
            "sh" => last.ran(&block, executed(&block, server.as_ref(), &scratch)),
            _ => last.compare(language, &block),
        }
    }
    last.at_least(6);
}

fn serve(command: &str, scratch: &Scratch) -> Server {
    let arguments: Vec<&str> = command.split_whitespace().skip(1).chain(["--http", "127.0.0.1:0"]).collect();
    let mut command = tollgate(&arguments);
    command.current_dir(scratch.path(""));
    Server::spawn(command, "")
}

/// The output of commands, and then their errors.
fn executed(block: &str, server: Option<&Server>, scratch: &Scratch) -> String {
    let address = server.map_or_else(|| GUIDE_ADDRESS.to_owned(), |server| server.address.to_string());
    let mut shell = shell(&format!("set -u\n{}", block.replace(GUIDE_ADDRESS, &address)));
    shell.current_dir(scratch.path(""));
    let (stdout, stderr) = succeeded(shell);
    stdout + &stderr
}
