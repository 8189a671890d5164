//! Guides are run: their servers are started, their commands executed in order, and what they show as output is compared with what
//! comes out.

use std::process::{Command, Output};

use serde_json::Value;

use crate::program::Server;
use crate::{Scratch, free_port};

/// The address that the guides' commands name; a test puts its own server's there.
pub const GUIDE_ADDRESS: &str = "127.0.0.1:8080";
/// Stands between the outputs of two blocks.
const MARK: &str = "=== next block ===";
/// In shown output it stands for any text.
const ANYTHING: &str = "…";
/// The ending of the names of JSON members that count milliseconds. They differ from run to run, but not by much.
const MILLISECONDS: &str = "_after_ms";
/// By how many milliseconds they may differ, however short they are.
const SLACK_MS: u64 = 10_000;
/// Names of JSON members that depend on the time of day.
const TIMES: [&str; 2] = ["durationUntilReset", "expires_in_seconds"];

/// Fenced blocks with their language, in order.
pub fn blocks(guide: &str) -> Vec<(&str, String)> {
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

/// The first block of a language.
pub fn first<'b>(blocks: &'b [(&str, String)], language: &str) -> &'b str {
    let found = blocks.iter().find(|(found, _)| *found == language);
    &found.unwrap_or_else(|| panic!("the guide has no {language}")).1
}

/// The output of the last command, to be compared with the output that the guide shows next.
#[derive(Debug, Default)]
pub struct Last {
    command: String,
    output: String,
    /// How many outputs were compared.
    pub compared: usize,
}

impl Last {
    /// A command was executed.
    pub fn ran(&mut self, command: &str, output: impl Into<String>) {
        (self.command, self.output) = (command.to_owned(), output.into());
    }

    /// Compares a block that shows output; any other is passed over.
    pub fn compare(&mut self, language: &str, shown: &str) {
        let Self { command, output, .. } = self;
        let agrees = match language {
            "json" => {
                let shown = serde_json::from_str(shown).expect("the guide shows JSON");
                serde_json::from_str(output).is_ok_and(|actual| agrees(&shown, &actual))
            }
            "text" => lines_agree(shown.trim(), output.trim()),
            _ => return,
        };
        assert!(agrees, "{command}\nshown:\n{shown}\nactual:\n{output}");
        self.compared += 1;
    }

    /// Enough was compared.
    pub fn at_least(&self, least: usize) {
        assert!(self.compared >= least, "only {} outputs were compared", self.compared);
    }
}

/// Whether `actual` is what the guide shows. Times differ from run to run, so milliseconds need only be similar, and what
/// depends on the time of day of the same kind.
fn agrees(shown: &Value, actual: &Value) -> bool {
    match (shown, actual) {
        (Value::String(text), _) if text == ANYTHING => true,
        (Value::Object(shown), Value::Object(actual)) => {
            let is_same_kind =
                |one, other| std::mem::discriminant::<Value>(one) == std::mem::discriminant(other);
            let member_agrees = |name: &str, value, actual| match name {
                name if TIMES.contains(&name) => is_same_kind(value, actual),
                name if name.ends_with(MILLISECONDS) => is_similar(value, actual),
                _ => agrees(value, actual),
            };
            shown.len() == actual.len()
                && shown.iter().all(|(name, value)| {
                    actual.get(name).is_some_and(|actual| member_agrees(name, value, actual))
                })
        }
        (Value::Array(shown), Value::Array(actual)) => {
            shown.len() == actual.len()
                && shown.iter().zip(actual).all(|(shown, actual)| agrees(shown, actual))
        }
        _ => shown == actual,
    }
}

/// Whether two numbers of milliseconds are at most a factor of four apart, or [`SLACK_MS`].
fn is_similar(shown: &Value, actual: &Value) -> bool {
    let (Some(shown), Some(actual)) = (shown.as_u64(), actual.as_u64()) else { return agrees(shown, actual) };
    shown.abs_diff(actual) <= SLACK_MS || (shown / 4..=shown.saturating_mul(4)).contains(&actual)
}

fn lines_agree(shown: &str, actual: &str) -> bool {
    let (shown, actual): (Vec<&str>, Vec<&str>) = (shown.lines().collect(), actual.lines().collect());
    shown.len() == actual.len()
        && shown.iter().zip(actual).all(|(shown, actual)| line_agrees(shown.trim_end(), actual.trim_end()))
}

/// Whether a line is what the guide shows, in which `…` stands for some text.
fn line_agrees(shown: &str, actual: &str) -> bool {
    let mut parts = shown.split(ANYTHING);
    let Some(mut rest) = parts.next().and_then(|start| actual.strip_prefix(start)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((end, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.match_indices(*part).map(|(at, _)| at).find(|at| *at > 0) {
            Some(found) => rest = &rest[found + part.len()..],
            None => return false,
        }
    }
    rest.strip_suffix(end).is_some_and(|text| !text.is_empty())
}

/// A shell that executes commands, to which `tollgate` is the program under test.
pub fn shell(commands: &str) -> Command {
    let program = crate::program::executable().parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths([program].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", commands]).env("PATH", path);
    shell
}

/// The output of a shell on both streams, once it has succeeded.
pub fn succeeded(mut shell: Command) -> (String, String) {
    let Output { status, stdout, stderr } = shell.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{shell:?}: {status}\n{stdout}\n{stderr}");
    (stdout, stderr)
}

/// A script of all commands of a guide, which puts a mark behind the output of each block.
pub fn script(start: &str, blocks: &[(&str, String)]) -> String {
    let commands = blocks.iter().filter(|(language, _)| *language == "sh");
    commands.fold(format!("{start}\n"), |script, (_, commands)| {
        script + commands + &format!("\nprintf '\\n%s\\n' '{MARK}'\n")
    })
}

/// Compares the output of such a script with what the guide shows, at least `least` times.
pub fn compare(blocks: &[(&str, String)], output: &str, least: usize) {
    let mut outputs = output.split(MARK);
    let mut last = Last::default();
    for (language, block) in blocks {
        match *language {
            "sh" => last.ran(block, outputs.next().expect("each block has an output")),
            _ => last.compare(language, block),
        }
    }
    last.at_least(least);
}

/// Executes all commands of a guide in one shell, in which variables last from block to block, and compares what it shows with what
/// comes out, at least `least` times. `options` are the shell's; `prepare` may give it more. No command complains.
pub fn follow_blocks(
    blocks: &[(&str, String)],
    server: &Server,
    (options, least): (&str, usize),
    prepare: impl FnOnce(&mut Command),
) {
    let script = script(&format!("set {options}"), blocks);
    let mut shell = shell(&script.replace(GUIDE_ADDRESS, &server.address.to_string()));
    prepare(&mut shell);
    compare(blocks, &in_silence(shell), least);
}

/// The output of a shell that succeeds and in which no command complains.
pub fn in_silence(shell: Command) -> String {
    let (output, complaints) = succeeded(shell);
    assert_eq!(complaints, "", "no command complains");
    output
}

/// The output of a guide whose commands start its Redis and its servers themselves. They get free ports, and are ended with
/// the shell.
pub fn with_own_store(blocks: &[(&str, String)]) -> String {
    let folder = Scratch::new();
    let ports = ["6379", "8080", "8090"].map(|port| (port, free_port().to_string()));
    // Where many tests share a few processors, a decision may take longer than it does elsewhere.
    let start = format!(
        "set -eu\ncd '{}'\nexport TOLLGATE_STORE_DEADLINE=50ms\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
        folder.text("")
    );
    let script = script(&start, blocks);
    let script = ports.iter().fold(script, |script, (port, free)| script.replace(port, free));
    let output = in_silence(shell(&script));
    ports.iter().fold(output, |output, (port, free)| output.replace(free, port))
}

/// Follows a guide again, at most five times, until the machine was quick enough for it. Returns the output.
pub fn until_quick(followed: impl Fn() -> String, is_quick: impl Fn(&String) -> bool) -> String {
    (0..5).map(|_| followed()).find(is_quick).expect("the machine was never quick enough")
}

/// Serves a guide's policy, executes its commands, and compares what it shows with what comes out, at least `least` times.
pub fn follow(guide: &str, least: usize) {
    let blocks = blocks(guide);
    let server = Server::start(first(&blocks, "yaml"));
    follow_blocks(&blocks, &server, ("-eu", least), |_| ());
}

/// Executes the commands of a README, with other addresses in them, and compares what it shows with what comes out. What it starts
/// (`sh serve`, `sh compose`) is the caller's to start.
pub fn follow_readme(readme: &str, addresses: &[(&str, String)]) {
    let mut last = Last::default();
    for (language, block) in &blocks(readme) {
        if *language != "sh" {
            last.compare(language, block);
            continue;
        }
        let commands =
            addresses.iter().fold(block.clone(), |commands, (from, to)| commands.replace(from, to));
        let mut shell = Command::new("sh");
        shell.args(["-euc", &commands]);
        last.ran(block, succeeded(shell).0);
    }
    last.at_least(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Different output is reported: a runner that accepts anything would prove nothing.
    #[test]
    fn a_difference_is_found() {
        assert!(lines_agree("a … c … e\nf", "a b c d e\nf"));
        for other in ["a b c d e", "a b c d\nf", "a  c d e\nf", "a b c d e \ng"] {
            assert!(!lines_agree("a … c … e\nf", other), "{other}");
        }
        let json = |text| serde_json::from_str::<Value>(text).unwrap();
        let shown = json(r#"{"id":"…","retry_after_ms":5,"n":[1]}"#);
        assert!(agrees(&shown, &json(r#"{"id":"x","retry_after_ms":7,"n":[1]}"#)));
        assert!(agrees(&json(r#"{"reset_after_ms":1800000}"#), &json(r#"{"reset_after_ms":1799000}"#)));
        for other in [
            r#"{"id":"x","retry_after_ms":"7","n":[1]}"#,
            r#"{"id":"x","retry_after_ms":1800000,"n":[1]}"#,
            r#"{"id":"x","retry_after_ms":7,"n":[2]}"#,
            r#"{"retry_after_ms":7,"n":[1]}"#,
            r#"{"id":"x","retry_after_ms":7,"n":[1],"more":1}"#,
        ] {
            assert!(!agrees(&shown, &json(other)), "{other}");
        }
    }
}
