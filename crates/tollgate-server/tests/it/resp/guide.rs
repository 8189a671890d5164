//! The guide `docs/resp.md` is run: its policy is served, its commands are executed in order, and what it shows as their output is
//! compared with what comes out.

use std::process::Command;

use super::{cached, succeeds};
use crate::program::Server;

const GUIDE: &str = include_str!("../../../../../docs/resp.md");
/// The port that the guide's commands name; the test puts its own server's there.
const GUIDE_PORT: &str = "6380";

/// Fenced blocks with their language, in order.
fn blocks() -> Vec<(&'static str, String)> {
    let mut blocks = Vec::new();
    let mut lines = GUIDE.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((language, inside.join("\n")));
        }
    }
    blocks
}

/// Whether a line is what the guide shows. A `…` stands for any text that has no space.
fn agrees(shown: &str, actual: &str) -> bool {
    match shown.split_once('…') {
        None => shown == actual,
        Some((start, end)) => actual
            .strip_prefix(start)
            .and_then(|rest| rest.strip_suffix(end))
            .is_some_and(|middle| !middle.is_empty() && !middle.contains(' ')),
    }
}

/// Every command of the guide works, and answers what the guide says.
#[test]
fn the_guide_is_true() {
    let blocks = blocks();
    let policy = &blocks.iter().find(|(language, _)| *language == "yaml").expect("the guide has a policy").1;
    let server = Server::start(policy);
    let port = server.resp().port().to_string();
    let (mut compared, mut last) = (0, String::new());
    for (language, block) in &blocks {
        match *language {
            "sh" => last = succeeds(Command::new("sh").args(["-euc", &block.replace(GUIDE_PORT, &port)])),
            "python" => {
                let program = block.replace(GUIDE_PORT, &port);
                last = succeeds(Command::new(cached("python/bin/python")).args(["-c", &program]));
            }
            "javascript" => {
                let mut node = Command::new("node");
                node.env("NODE_PATH", cached("node/node_modules"))
                    .args(["-e", &block.replace(GUIDE_PORT, &port)]);
                last = succeeds(&mut node);
            }
            "text" => {
                let (shown, actual): (Vec<&str>, Vec<&str>) =
                    (block.lines().collect(), last.trim_end().lines().collect());
                let same = shown.len() == actual.len()
                    && shown
                        .iter()
                        .zip(&actual)
                        .all(|(shown, actual)| agrees(shown.trim_end(), actual.trim_end()));
                assert!(same, "shown:\n{block}\nactual:\n{last}");
                compared += 1;
            }
            _ => {}
        }
    }
    assert!(compared >= 8, "only {compared} outputs were compared");
}
