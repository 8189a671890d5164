//! The guide `docs/migrate.md` is run: its files are written, its servers started, its commands executed, and what it shows as
//! their output is compared with what comes out.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::program::{Server, tollgate};

const GUIDE: &str = include_str!("../../../../docs/migrate.md");
/// The address that the guide's commands name; the test puts its own server's there.
const GUIDE_ADDRESS: &str = "127.0.0.1:8080";

/// Every command of the guide works, and answers what the guide says.
#[test]
fn the_guide_is_true() {
    let directory = std::env::temp_dir().join(format!("tollgate-migrate-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (mut server, mut last, mut compared) = (None, String::new(), 0);
    let mut lines = GUIDE.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let block = block.join("\n");
        match language {
            "yaml foreign" => {
                let name = block
                    .lines()
                    .next()
                    .and_then(|line| line.strip_prefix("# "))
                    .expect("a file begins with its name");
                std::fs::write(directory.join(name), &block).unwrap();
            }
            "sh" if block.starts_with("tollgate serve ") => {
                drop(server.take());
                server = Some(serve(&block, &directory));
            }
            "sh" => last = executed(&block, server.as_ref(), &directory),
            "json" => {
                let shown: Value = serde_json::from_str(&block).expect("the guide shows JSON");
                let mut actual: Value =
                    serde_json::from_str(&last).unwrap_or_else(|_| panic!("{block}\n{last}"));
                without_times(&mut actual);
                let mut expected = shown;
                without_times(&mut expected);
                assert_eq!(expected, actual);
                compared += 1;
            }
            "text" => {
                assert_eq!(block.trim(), last.trim());
                compared += 1;
            }
            _ => {}
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(compared >= 6, "only {compared} outputs were compared");
}

fn serve(command: &str, directory: &Path) -> Server {
    let arguments: Vec<&str> = command.split_whitespace().skip(1).chain(["--http", "127.0.0.1:0"]).collect();
    let mut command = tollgate(&arguments);
    command.current_dir(directory);
    Server::spawn(command, "")
}

fn executed(block: &str, server: Option<&Server>, directory: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
    let path = std::env::join_paths(
        [program.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    )
    .unwrap();
    let address = server.map_or_else(|| GUIDE_ADDRESS.to_owned(), |server| server.address.to_string());
    let script = format!("set -u\n{}", block.replace(GUIDE_ADDRESS, &address));
    let output =
        Command::new("sh").args(["-c", &script]).current_dir(directory).env("PATH", path).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{block}\n{errors}");
    format!("{}{errors}", String::from_utf8(output.stdout).unwrap())
}

/// Times differ from run to run.
fn without_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_time = name == "durationUntilReset" || name == "expires_in_seconds";
                if is_time { *value = Value::Null } else { without_times(value) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_times),
        _ => {}
    }
}
