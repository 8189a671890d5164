//! The guide `docs/operate.md` is run: its servers are started, its commands are executed in order, and what it shows as their
//! output is compared with what comes out.

use std::process::Command;

use serde_json::Value;

use crate::guide::{GUIDE_ADDRESS, agrees, blocks};
use crate::pki::Authority;
use crate::program::{Server, tollgate};
use crate::scratch::Scratch;

const GUIDE: &str = include_str!("../../../../docs/operate.md");

/// The files that the guide takes for granted.
fn prepare(scratch: &Scratch, policy: &str) {
    let authority = Authority::new("ours");
    let (server, client) = (authority.server(), authority.client());
    for (name, text) in [
        ("policy.yaml", policy),
        ("ca.pem", &authority.pem),
        ("server.pem", &server.certificate),
        ("server-key.pem", &server.key),
        ("client.pem", &client.certificate),
        ("client-key.pem", &client.key),
        ("token", "6f1ed002ab5595859014ebf0951522d9"),
    ] {
        scratch.replace(name, text);
    }
}

/// Starts a server as the guide says, on a free port.
fn start(scratch: &Scratch, command: &str) -> Server {
    let free = command.replace(GUIDE_ADDRESS, "127.0.0.1:0");
    let arguments: Vec<&str> = free.split_whitespace().skip(1).collect();
    let mut command = tollgate(&arguments);
    command.current_dir(scratch.path(""));
    Server::spawn(command, "")
}

fn output(scratch: &Scratch, server: &Server, commands: &str) -> String {
    let script = format!("set -eu\n{}", commands.replace(GUIDE_ADDRESS, &server.address.to_string()));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(scratch.path("")).env("PID", server.id().to_string());
    let output = shell.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{commands}\n{errors}\n{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).unwrap()
}

/// Every command of the guide works, and answers what the guide says.
#[test]
fn the_guide_is_true() {
    let scratch = Scratch::new();
    let (mut server, mut last, mut policy) = (None, String::new(), String::new());
    let (mut compared, mut servers) = (0, 0);
    for (language, block) in blocks(GUIDE) {
        match language {
            "yaml" => policy = block,
            "sh serve" => {
                drop(server.take());
                prepare(&scratch, &policy);
                server = Some(start(&scratch, &block));
                servers += 1;
            }
            "sh" => last = output(&scratch, server.as_ref().unwrap(), &block),
            "json" => {
                let shown: Value = serde_json::from_str(&block).unwrap();
                let actual: Value = serde_json::from_str(&last).unwrap_or_else(|_| panic!("{last}"));
                assert!(agrees(&shown, &actual), "shown: {block}\nactual: {last}");
                compared += 1;
            }
            "text" => {
                assert_eq!(block.trim(), last.trim());
                compared += 1;
            }
            _ => {}
        }
    }
    assert_eq!((servers, compared), (3, 7));
}
