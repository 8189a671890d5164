//! The live views: once, through a pipe, and on a terminal of the test's own.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::admin::{POLICY, TOKEN, ask, server};
use crate::admin_verbs::operate;
use crate::program::{stderr, stdout};

/// Once, without a terminal: a frame with its titles and no escape sequences.
#[test]
fn a_frame_without_a_terminal() {
    let server = server(POLICY);
    for arguments in [["top", "--once"], ["tail", "--once"]] {
        let output = operate(&server, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!stdout(&output).contains('\u{1b}'), "{}", stdout(&output));
        if arguments[0] == "top" {
            assert!(
                stdout(&output).contains("limit  decisions  denied  would deny  share  source  key"),
                "{}",
                stdout(&output)
            );
        }
    }
    let json = operate(&server, &["top", "--once", "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert!(json["keys"].is_array());
}

/// The views show decisions: denials as they happen with their cause, a block among them, and the busiest key with its numbers.
#[test]
fn decisions_appear_in_the_live_view() {
    let server = server(POLICY);
    let key = r#"{"attributes":{"api_key":"busy"}}"#;
    let mut child = operate(&server, &["tail", "--denied"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::thread::scope(|scope| {
        // The view begins a moment after its command: asked until a denial is seen, of which there is no end.
        let (seen, is_seen) = std::sync::mpsc::channel::<()>();
        let server = &server;
        scope.spawn(move || {
            while is_seen.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                server.check(key);
            }
        });
        lines.read_line(&mut line).unwrap();
        drop(seen);
    });
    assert!(line.contains("http") && line.contains("DENY, retry in ") && line.contains("per-key"), "{line}");
    assert!(line.contains("api_key="), "{line}");
    assert!(operate(&server, &["block", "api_key=bad", "--for", "1h"]).status().unwrap().success());
    server.check(r#"{"attributes":{"api_key":"bad"}}"#);
    while !line.contains("operator-block") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the view ended");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let top = stdout(&operate(&server, &["top", "--once"]).output().unwrap());
    assert!(top.lines().any(|line| line.starts_with("per-key") && !line.contains(" 0 %")), "{top}");
}

/// The story: a user said that a request was denied a minute ago, and every view was about now. A denial is remembered, and
/// so is which keys a limit in shadow would deny.
#[test]
fn past_denials_are_remembered() {
    let server = server(
        "limits: [{name: per-key, by: [api_key], rate: 1/h}, {name: new, by: [api_key], rate: 1/h, mode: shadow}, \
         {name: login, by: [ip], when: {path: /login}, rate: 1/h}]",
    );
    for _ in 0..3 {
        server.check(r#"{"attributes":{"api_key":"busy"}}"#);
    }
    let said = |arguments: &[&str]| stdout(&operate(&server, arguments).output().unwrap());
    for question in ["get", "explain"] {
        let output = said(&[question, "api_key=busy"]);
        assert!(output.contains("last denied ") && output.contains(" ago), may come back at "), "{output}");
        assert!(output.contains("; 2 denials since "), "{output}");
        assert!(output.contains("api_key is known as api_key=sha256:"), "{output}");
    }
    let past = said(&["tail", "--denied", "--since", "10m", "--once"]);
    assert_eq!(past.lines().filter(|line| line.contains("DENY, retry in ")).count(), 2, "{past}");
    // An operator knows the key or the address, and not how the request was sent.
    for (attribute, lines) in [("api_key=busy", 2), ("api_key=calm", 0)] {
        let output =
            operate(&server, &["tail", attribute, "--denied", "--since", "10m", "--once"]).output().unwrap();
        assert_eq!(stdout(&output).lines().count(), lines, "{attribute}: {output:?}");
        // The story: an empty answer looked like one about a client that was never denied.
        let notice = "no such denial is remembered, and none is forgotten";
        assert_eq!(stderr(&output).contains(notice), lines == 0, "{attribute}: {output:?}");
    }
    let top = said(&["top", "--once", "--denied", "--json"]);
    let top: serde_json::Value = serde_json::from_str(&top).unwrap();
    let keys = top["keys"].as_array().unwrap();
    let of = |name: &str| keys.iter().find(|key| key["limit"] == name).unwrap();
    assert_eq!((&of("new")["denied"], &of("new")["would_deny"]), (&0.into(), &2.into()), "{top}");
    assert_eq!((&of("per-key")["denied"], &of("per-key")["would_deny"]), (&2.into(), &0.into()), "{top}");
    assert!(of("per-key")["last_denied"]["retry_at"].is_string(), "{top}");
    let output = said(&["explain", "ip=192.0.2.1"]);
    assert!(output.starts_with("incomplete: whether login applies depends on path\n"), "{output}");
}

/// A terminal: the master's side for the test, the path of the slave's for the program.
fn terminal() -> (File, String) {
    let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (File::from(master), path)
}

/// On a terminal the view is drawn again each second, q ends it, and the terminal echoes again afterwards.
#[test]
fn a_view_on_a_terminal() {
    let server = server(POLICY);
    for view in ["top", "tail"] {
        let (mut master, path) = terminal();
        let slave = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let before = tcgetattr(&slave).unwrap().local_modes;
        assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
        let mut command = operate(&server, &[view]);
        command
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()));
        let mut child = command.spawn().unwrap();
        if view == "top" {
            let mut seen = Vec::new();
            while seen.windows(4).filter(|bytes| bytes == b"\x1b[2J").count() < 2 {
                let mut some = [0; 512];
                let read = master.read(&mut some).unwrap();
                seen.extend_from_slice(&some[..read]);
            }
            let seen = String::from_utf8_lossy(&seen).into_owned();
            assert!(seen.contains("last second") && seen.contains("q to leave"), "{seen}");
        } else {
            // It has nothing to draw: that it listens for keys is seen at the terminal.
            while tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ICANON) {
                std::thread::yield_now();
            }
        }
        assert!(!tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ICANON));
        master.write_all(b"xq").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{view}");
        assert_eq!(tcgetattr(&slave).unwrap().local_modes, before, "{view} left the terminal as it was");
    }
}

/// The story: `tail --would-deny --since` was refused, because nothing but denials was remembered: who a new limit would have
/// denied an hour ago was nowhere to be seen. It is remembered apart from denials. `DENY` does not hide it.
#[test]
fn past_decisions_of_a_shadow_are_remembered() {
    let server = server(
        "limits: [{name: old, by: [ip], rate: 2/h, burst: 2}, {name: new, by: [ip], rate: 1/h, mode: shadow}]",
    );
    let output = operate(&server, &["tail", "--since", "5m", "--once"]).output().unwrap();
    let text = stderr(&output);
    assert!(text.contains("accepted: --since with --denied or --would-deny"), "{text}");
    for _ in 0..3 {
        server.check(r#"{"attributes":{"ip":"192.0.2.1"}}"#);
    }
    let past = |which: &str| {
        let output = operate(&server, &["tail", which, "--since", "5m", "--once"]).output().unwrap();
        assert_eq!(stderr(&output), "", "{output:?}");
        stdout(&output)
    };
    let denied = past("--denied");
    assert_eq!(denied.lines().count(), 1, "{denied}");
    assert!(denied.contains("DENY, retry in ") && denied.contains(" (new would deny)  old "), "{denied}");
    let shadow = past("--would-deny");
    let seen: Vec<&str> = shadow.lines().collect();
    let [passed, refused] = seen[..] else { panic!("{shadow}") };
    assert!(passed.contains("allow (new would deny)") && passed.contains("ip=192.0.2.1"), "{shadow}");
    assert!(refused.contains("DENY, retry in ") && refused.contains("(new would deny)"), "{shadow}");
    let calm = ["tail", "ip=192.0.2.9", "--would-deny", "--since", "5m", "--once"];
    let output = operate(&server, &calm).output().unwrap();
    assert!(stderr(&output).contains("no such denial is remembered, and none is forgotten"), "{output:?}");
}

/// The story: `tail adress=203.0.113.7` showed nothing, for ever, and looked like a client without requests.
#[test]
fn a_misspelt_attribute_is_refused_by_tail() {
    let server = server("limits: [{name: a, by: [tenant_id, ip], rate: 1/h}]");
    for (given, expected) in [
        ("tennant_id=x", "tollgate: no limit uses tennant_id; did you mean tenant_id? accepted: "),
        ("adress=192.0.2.1", "tollgate: no limit uses adress; accepted: "),
    ] {
        let output = operate(&server, &["tail", given, "--once"]).output().unwrap();
        let text = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{text}");
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains("ip,") && text.contains(" tenant_id") && text.contains("or --anyway"),
            "{text}"
        );
    }
    for words in [&["tail", "tenant_id=x", "--once"][..], &["tail", "adress=x", "--once", "--anyway"]] {
        let output = operate(&server, words).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{words:?}");
    }
    for verb in ["get", "explain", "reset"] {
        let text = stderr(&operate(&server, &[verb, "adress=192.0.2.1"]).output().unwrap());
        let expected = "tollgate: warning: no limit uses adress; limits count by ip, tenant_id\n";
        assert_eq!(text, expected, "{verb}");
    }
}

/// A view gets notice that the server stops, and does not keep it from stopping.
#[test]
fn a_view_ends_with_the_server() {
    let mut server = server(POLICY);
    let mut stream = server.connect();
    let head = format!(
        "GET /admin/v1/tail?denied=true HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(&stream);
    let mut line = String::new();
    let mut seen = String::new();
    while line != "\r\n" {
        line.clear();
        lines.read_line(&mut line).unwrap();
        seen.push_str(&line);
    }
    assert!(seen.starts_with("HTTP/1.1 200") && seen.contains("application/x-ndjson"), "{seen}");
    server.signal("-TERM");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "the body has an end: {rest:?}");
    assert_eq!(server.wait().code(), Some(0));
}

/// No more views than may be; one that is closed makes room.
#[test]
fn views_are_bounded() {
    let server = server(POLICY);
    let open = || {
        let mut stream = server.connect();
        let head = format!(
            "GET /admin/v1/tail HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        (stream, line)
    };
    let mut views: Vec<_> = (0..16).map(|_| open()).collect();
    assert!(views.iter().all(|(_, line)| line.starts_with("HTTP/1.1 200")));
    assert!(ask(&server, TOKEN, "GET", "/admin/v1/tail", "").problem(503).contains("close one"));
    views.pop();
    while !open().1.starts_with("HTTP/1.1 200") {
        std::thread::yield_now(); // The server notices a moment later.
    }
}
