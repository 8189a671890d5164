//! The origin of a table: the time, the commit, the machine, and how busy it was.

use std::fs;
use std::process::Command;

/// A line for the head of a report.
#[must_use]
pub fn describe() -> String {
    let date = output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]);
    let changed = if output("git", &["status", "--porcelain"]).is_empty() { "" } else { " and changes" };
    let commit = output("git", &["rev-parse", "--short=12", "HEAD"]);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = first_words(&read("/proc/loadavg"), 1);
    format!("{date} · commit {commit}{changed} · {}, {cores} cores · load before the run {load}", processor())
}

/// The memory of this process that is in use, in bytes; zero where Linux does not tell.
#[must_use]
pub fn resident_bytes() -> u64 {
    let status = read("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes =
        line.and_then(|text| text.split_whitespace().next()).and_then(|text| text.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1_024
}

fn processor() -> String {
    let text = read("/proc/cpuinfo");
    let name = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("processor unknown");
    name.trim_start_matches([' ', '\t', ':']).to_owned()
}

fn first_words(text: &str, count: usize) -> String {
    text.split_whitespace().take(count).collect::<Vec<_>>().join(" ")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
