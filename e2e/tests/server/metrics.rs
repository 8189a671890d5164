//! `/metrics` by the judgement of Prometheus's own tool.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::program::Server;

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 5/h}, {name: all, rate: 1M/h}]";

/// Where `./test tools` puts Prometheus's own tool, unless the system has it.
const PROMTOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.cache/tools/bin/promtool");

/// Runs Prometheus's own tool.
pub(crate) fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let program = if std::path::Path::new(PROMTOOL).exists() { PROMTOOL } else { "promtool" };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is there: `./test tools` fetches it, and the Debian package prometheus has it");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

/// The format is right, and so are names and help, by the judgement of those who made the format. A broken page fails, so the
/// judgement means something.
#[test]
fn promtool_finds_nothing_to_say() {
    let server = Server::start(POLICY);
    for _ in 0..7 {
        server.send("POST", "/v1/check", r#"{"attributes":{"api_key":"k"}}"#);
    }
    let page = server.metrics();
    assert_eq!(promtool(&["check", "metrics"], &page), (true, String::new()));
    let (is_right, complaint) = promtool(&["check", "metrics"], &page.replace("_total{", "_total{{"));
    assert!(!is_right && !complaint.is_empty());
}
