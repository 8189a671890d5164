//! The guide `docs/http.md` is run: its policy is served, its commands are executed in order, and what it shows as their
//! output is compared with what comes out.

use std::process::Command;

use serde_json::Value;

use crate::program::Server;

const GUIDE: &str = include_str!("../../../../docs/http.md");
/// The address that the guide's commands name; the test puts its own server's there.
pub(crate) const GUIDE_ADDRESS: &str = "127.0.0.1:8080";
/// Stands between the outputs of two blocks.
const MARK: &str = "=== next block ===";
/// In shown output, a member with this value may have any.
const ANYTHING: &str = "…";

/// Fenced blocks with their language, in order.
pub(crate) fn blocks(guide: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = guide.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((language, inside.join("\n")));
        }
    }
    blocks
}

/// Whether `actual` is what the guide shows. Times differ from run to run, so they need only be there.
pub(crate) fn agrees(shown: &Value, actual: &Value) -> bool {
    match (shown, actual) {
        (Value::String(text), _) if text == ANYTHING => true,
        (Value::Object(shown), Value::Object(actual)) => {
            let is_time = |name: &str| name.ends_with("_after_ms");
            shown.len() == actual.len()
                && shown.iter().all(|(name, value)| {
                    actual
                        .get(name)
                        .is_some_and(|actual| is_time(name) && actual.is_u64() || agrees(value, actual))
                })
        }
        (Value::Array(shown), Value::Array(actual)) => {
            shown.len() == actual.len()
                && shown.iter().zip(actual).all(|(shown, actual)| agrees(shown, actual))
        }
        _ => shown == actual,
    }
}

/// Every command of the guide works, and answers what the guide says.
#[test]
fn the_guide_is_true() {
    follow(GUIDE, 8);
}

/// Serves a guide's policy, executes its commands, and compares what it shows with what comes out, at least `least` times.
pub(crate) fn follow(guide: &str, least: usize) {
    let blocks = blocks(guide);
    let policy = &blocks.iter().find(|(language, _)| *language == "yaml").expect("the guide has a policy").1;
    let server = Server::start(policy);
    let address = server.address.to_string();
    let mut script = String::from("set -eu\n");
    for (_, commands) in blocks.iter().filter(|(language, _)| *language == "sh") {
        script.push_str(&commands.replace(GUIDE_ADDRESS, &address));
        script.push_str(&format!("\nprintf '\\n%s\\n' '{MARK}'\n"));
    }
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{}", String::from_utf8_lossy(&output.stdout));

    let output = String::from_utf8(output.stdout).unwrap();
    let mut outputs = output.split(MARK);
    let mut compared = 0;
    let mut last = ("", String::new());
    for (language, block) in &blocks {
        match *language {
            "sh" => last = (outputs.next().expect("each block has an output").trim(), block.clone()),
            "json" => {
                let shown: Value = serde_json::from_str(block).expect("the guide shows JSON");
                let actual: Value =
                    serde_json::from_str(last.0).unwrap_or_else(|_| panic!("{}\n{}", last.1, last.0));
                assert!(agrees(&shown, &actual), "{}\nshown: {block}\nactual: {}", last.1, last.0);
                compared += 1;
            }
            "text" => {
                assert_eq!(block.trim(), last.0, "{}", last.1);
                compared += 1;
            }
            _ => {}
        }
    }
    assert!(compared >= least, "only {compared} outputs were compared");
}
