//! The section of `docs/admin.md` about operating a running server is run: its policy is served, its commands are executed in
//! order, and what it shows as their output is compared with what comes out.

use std::path::Path;
use std::process::Command;

use crate::admin::{Scratch, TOKEN};
use crate::program::{Server, tollgate};

const GUIDE: &str = include_str!("../../../../docs/admin.md");
const HEADING: &str = "## Operate a running server";
/// Stands between the outputs of two blocks.
const MARK: &str = "=== next block ===";

/// The fenced blocks of the section with their languages, in order.
fn blocks() -> Vec<(&'static str, String)> {
    let (_, section) = GUIDE.split_once(HEADING).expect("the guide has the section");
    let section = section.split("\n## ").next().unwrap();
    let mut blocks = Vec::new();
    let mut lines = section.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((language, inside.join("\n")));
        }
    }
    blocks
}

/// Whether a line is what the guide shows, in which `…` stands for anything.
fn agrees(shown: &str, actual: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = actual.strip_prefix(parts.next().unwrap()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(found) => rest = &rest[found + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Every command of the section works, and prints what the section says.
#[test]
fn the_section_is_true() {
    let blocks = blocks();
    let policy = &blocks.iter().find(|(language, _)| *language == "yaml").expect("it has a policy").1;
    let scratch = Scratch::new("guide");
    let file = scratch.file("policy.yaml", policy);
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &file]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    let mut script = String::from("set -u\n");
    for (_, commands) in blocks.iter().filter(|(language, _)| *language == "sh") {
        script.push_str(&commands.replace("127.0.0.1:8080", &server.address.to_string()));
        script.push_str(&format!("\nprintf '%s\\n' '{MARK}'\n"));
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(&scratch.0)
        .env("PATH", path)
        .env("TOLLGATE_SERVER", format!("http://{}", server.address))
        .env("TOLLGATE_ADMIN_TOKEN", TOKEN)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no command complains");
    let output = String::from_utf8(output.stdout).unwrap();
    let mut outputs = output.split(MARK);
    let mut compared = 0;
    let mut last = ("", "");
    for (language, block) in &blocks {
        match *language {
            "sh" => last = (outputs.next().expect("each block has an output").trim(), block),
            "text" => {
                let (shown, actual): (Vec<_>, Vec<_>) =
                    (block.trim().lines().collect(), last.0.lines().collect());
                let same = shown.len() == actual.len()
                    && shown.iter().zip(&actual).all(|(shown, actual)| agrees(shown, actual));
                assert!(same, "{}\nshown:\n{block}\nactual:\n{}", last.1, last.0);
                compared += 1;
            }
            _ => {}
        }
    }
    assert!(compared >= 8, "only {compared} outputs were compared");
}
