//! The log of the real program: nothing that a request says can look like a line of it, or act on a terminal.

use std::io::Read;
use std::process::Command;

use serde_json::Value;

use crate::program::{SLOW_POLICY, Server, stderr, tollgate};

/// Bytes of a client that wants to forge a line, hide one, or take over a terminal.
const EVIL: &str = r#"{"attributes":{"tenant":"k\n{\"level\":\"ERROR\",\"forged\":true}\r\n\u001b[2J\u001b]0;title\u0007\u009b31m\u202eevil","n\nforged\u001b":"x","api_key":"k"}}"#;

/// Starts a server that logs each request, asks it the evil question, stops it, and returns what it logged.
fn logged(format: &str) -> String {
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-", "--log-format", format]);
    command.env("TOLLGATE_LOG", "tollgate_server=debug");
    logged_by(command)
}

fn logged_by(command: Command) -> String {
    let mut server = Server::spawn(command, SLOW_POLICY);
    assert_eq!(server.send("POST", "/v1/check", EVIL).status, 200);
    let long = format!(r#"{{"attributes":{{"api_key":"{}"}}}}"#, "x".repeat(4_000));
    assert_eq!(server.send("POST", "/v1/check", &long).status, 200);
    server.signal("-TERM");
    assert!(server.wait().success());
    let mut log = String::new();
    server.log().read_to_string(&mut log).unwrap();
    log
}

/// No control character, no character that turns text around, and no line that a request made.
fn is_clean(log: &str) {
    let acts = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
    for line in log.lines() {
        assert!(!line.contains(acts), "{line:?}");
        assert!(line.len() < 1_000, "{line}");
    }
    assert!(!log.lines().any(|line| line.starts_with("{\"level\"") || line.starts_with("forged")));
    assert!(log.contains("forged"), "the request is in the log, escaped: {log}");
    assert!(!log.contains(&"x".repeat(100)), "values are short");
}

/// As JSON each line is one object, whatever the request says.
#[test]
fn json_lines_are_objects() {
    let log = logged("json");
    is_clean(&log);
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let decided: Vec<&Value> = lines.iter().filter(|line| line["fields"]["message"] == "decided").collect();
    assert_eq!(decided.len(), 2);
    let fields = &decided[0]["fields"];
    assert_eq!((&fields["wire"], &fields["verdict"]), (&"http".into(), &"allow".into()));
    assert_eq!((&fields["limit"], &fields["source"]), (&"per-key".into(), &"exact".into()));
    let expected = r#"tenant=k\n{"level":"ERROR","forged":true}\r\n\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m\u{202e}evil n\nforged\u{1b}=x api_key=sha256:8254c329a92850f6d539dd376f4816ee"#;
    assert_eq!(fields["attributes"], expected);
    assert!(lines.iter().all(|line| line["level"] != "ERROR" && line.get("forged").is_none()));
}

/// As text, too, one event is one line.
#[test]
fn text_lines_are_events() {
    let log = logged("text");
    is_clean(&log);
    assert!(log.lines().all(|line| line.contains("DEBUG") || line.contains("INFO")), "{log}");
    assert_eq!(log.lines().filter(|line| line.contains("decided")).count(), 2);
}

/// Unless asked for, single requests are not in the log.
#[test]
fn requests_are_not_logged_unless_asked_for() {
    let log = logged_by(tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-"]));
    assert!(!log.contains("decided") && !log.contains("forged"), "{log}");
    assert!(log.contains("stopped"));
}

/// An unknown level is an error of the command line, as an unknown format is.
#[test]
fn a_wrong_log_level_is_refused() {
    for wrong in ["loud", "tollgate=loud"] {
        let mut command = tollgate(&["serve", "--http", "127.0.0.1:0"]);
        let output = command.env("TOLLGATE_LOG", wrong).output().unwrap();
        let expected =
            "tollgate: TOLLGATE_LOG: \"loud\" is no level; accepted: error, warn, info, debug, trace, off\n";
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(2), expected));
    }
}

/// Ten thousand decisions, in batches on one connection.
fn flood(server: &Server) {
    let batch = format!("[{}]", vec![r#"{"attributes":{"api_key":"k"}}"#; 250].join(","));
    for _ in 0..40 {
        assert_eq!(server.send("POST", "/v1/check/batch", &batch).status, 200);
    }
}

/// When no process reads the log, decisions are made all the same, and lost lines are counted.
#[test]
fn an_unread_log_blocks_nothing() {
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-"]);
    command.env("TOLLGATE_LOG", "tollgate_server=debug");
    let server = Server::spawn(command, SLOW_POLICY);
    flood(&server);
    assert!(server.metric("tollgate_log_lines_lost_total") > 1_000);
    assert_eq!(server.metric(r#"tollgate_decisions_total{outcome="deny",wire="http"}"#), 9_995);
}

/// A full disk behind the log stops nothing, either.
#[test]
fn a_full_disk_stops_nothing() {
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-"]);
    command.env("TOLLGATE_LOG", "tollgate_server=debug");
    command.stderr(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let server = Server::spawn(command, SLOW_POLICY);
    flood(&server);
    assert!(server.metric("tollgate_log_lines_lost_total") > 1_000);
}
