//! Examples that are Rust programs. Each is run in its own directory, as its README says, on a free port.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::guide::{Last, blocks, first, follow_readme};

/// The command in every README that starts its program.
const COMMAND: &str = "cargo run";
/// Where services listen as their READMEs have it.
const ADDRESS: &str = "127.0.0.1:3000";

/// A service that is ended with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn readme(folder: &str) -> String {
    fs::read_to_string(Path::new(folder).join("README.md")).unwrap()
}

/// Starts a service, executes the commands of its README, and compares what they print with what it shows.
pub fn follow_service(program: &str, folder: &str) {
    let readme = readme(folder);
    assert_eq!(first(&blocks(&readme), "sh serve"), COMMAND);
    let mut command = Command::new(program);
    command.arg("127.0.0.1:0").current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut service = Service(command.spawn().unwrap());
    let mut lines = BufReader::new(service.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    follow_readme(&readme, &[(ADDRESS, address.expect("the service says where it listens"))]);
}

/// Runs a program to its end. Returns what it printed.
pub fn run(program: &str, folder: &str) -> String {
    assert_eq!(first(&blocks(&readme(folder)), "sh run"), COMMAND);
    let output = Command::new(program).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program to its end, and compares what it prints with what its README shows.
pub fn follow_program(program: &str, folder: &str) {
    let mut last = Last::default();
    last.ran(COMMAND, run(program, folder));
    blocks(&readme(folder)).iter().for_each(|(language, block)| last.compare(language, block));
    last.at_least(1);
}
