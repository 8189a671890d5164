//! How the server starts, refuses to start, and stops.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::program::{SLOW_POLICY, Server, run, stderr, stdout, tollgate};
use crate::raw_http::Response;

/// A newcomer's first start: the example's limits in words, and a line that works when it is pasted into a shell.
#[test]
fn the_first_start_explains_itself() {
    let server = Server::start_with(&["serve", "--http", "127.0.0.1:0"], "");
    let banner = &server.banner;
    for expected in [
        "Tollgate ",
        "store   memory, at most 512 MiB",
        "policy  the built-in example policy",
        "  per-key: each api_key may make 100 requests a second on average, 200 at once and at most 300 in any second\n",
        "  platform: everybody together",
        "Ctrl-C",
    ] {
        assert!(banner.contains(expected), "{expected:?} is not in {banner}");
    }
    let line = banner.lines().find(|line| line.trim().starts_with("curl")).unwrap();
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["allowed"], true);
    assert_eq!(answer["limits"][0]["name"], "plan");
}

/// Flags come from the environment as well, and a policy's warnings are shown at the start.
#[test]
fn settings_come_from_the_environment() {
    let mut command = tollgate(&["serve"]);
    command.env("TOLLGATE_HTTP", "localhost:0").env("TOLLGATE_POLICY", "-").env("TOLLGATE_MEMORY", "2GiB");
    let server = Server::spawn(command, "limits: [{name: all, by: [k], rate: 10/s, enforce_percent: 0}]");
    assert!(server.banner.contains("memory, at most 2 GiB"), "{}", server.banner);
    assert!(server.banner.contains("policy  <stdin>"), "{}", server.banner);
    assert!(server.banner.contains("warning: limits[0] \"all\""), "{}", server.banner);
    assert_eq!(server.check(r#"{"attributes":{"k":"x"}}"#)["limits"][0]["limit"], 10);
}

/// A stopping server takes no new connection, answers what is in flight, and ends well.
#[test]
fn a_request_in_flight_is_answered_before_the_end() {
    for signal in ["-TERM", "-INT"] {
        let mut server = Server::start(SLOW_POLICY);
        let body = br#"{"attributes":{"api_key":"k"}}"#;
        let mut in_flight = server.connect();
        let head =
            "POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 30\r\nExpect: 100-continue\r\n\r\n";
        in_flight.write_all(head.as_bytes()).unwrap();
        let mut answers = BufReader::new(&in_flight);
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 100"), "{line}"); // The server waits for the body: the request is in flight.
        answers.read_line(&mut line).unwrap();
        let idle = server.connect();

        server.signal(signal);
        server.await_log("stopping");
        while TcpStream::connect(server.address).is_ok() {
            std::thread::yield_now(); // The door closes a moment after the log says so.
        }
        (&in_flight).write_all(body).unwrap();
        let response = Response::read(&mut answers);
        assert_eq!(response.status, 200);
        assert_eq!(response.json()["allowed"], true);
        server.await_log("stopped");
        assert_eq!(server.wait().code(), Some(0));
        drop(idle);
    }
}

/// A second signal does not wait for a client that is stuck.
#[test]
fn a_second_signal_stops_at_once() {
    let mut server = Server::start(SLOW_POLICY);
    let mut stuck = server.connect();
    stuck
        .write_all(
            b"POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 30\r\nExpect: 100-continue\r\n\r\n",
        )
        .unwrap();
    BufReader::new(&stuck).read_line(&mut String::new()).unwrap();
    server.signal("-TERM");
    server.await_log("stopping");
    server.signal("-TERM");
    server.await_log("stopped at once");
    assert_eq!(server.wait().code(), Some(0));
}

/// A port that another program has is named, with what to do.
#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["serve", "--http", &address], b"");
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains(&format!("{address} is in use by another program; ")), "{message}");
    assert!(message.contains("--http 127.0.0.1:0"), "{message}");
    assert!(!message.contains("off"), "HTTP is always served: {message}");
    let output = run(&["serve", "--http", "127.0.0.1:0", "--grpc", &address], b"");
    assert!(stderr(&output).contains(", or turn it off with --grpc off"), "{}", stderr(&output));
}

/// Starts that are refused, each with its reason and its cure.
#[test]
fn refused_starts() {
    let cases: [(&[&str], &str, i32, &str); 10] = [
        (&["serve", "--http", "0.0.0.0:0"], "", 2, "add --insecure"),
        (&["serve", "--http", "[::]:0"], "", 2, "can be reached from other machines"),
        (&["serve", "--http", "8080"], "", 2, "accepted: 127.0.0.1:8080"),
        (&["serve", "--http", "127.0.0.1:0", "--grpc", "0.0.0.0:0"], "", 2, "add --insecure"),
        (&["serve", "--grpc", "of"], "", 2, "or off"),
        (&["serve", "--store", "localhost"], "", 2, "a store's URL begins with redis://"),
        (&["serve", "--gateway", "127.0.0.1:0"], "", 2, "there is nothing behind it; add --upstream URL"),
        (&["serve", "--memory", "5"], "", 2, "accepted: 1MiB to 1TiB"),
        (&["serve", "--policy", "no/such/file.yaml"], "", 2, "no/such/file.yaml: no such file"),
        (
            &["serve", "--policy", "-"],
            "limits: [{name: a, rate: s/5}]",
            2,
            "<stdin>:1:26: limits[0] \"a\".rate",
        ),
    ];
    for (arguments, input, status, expected) in cases {
        let output = run(arguments, input.as_bytes());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

/// The story: a gateway whose upstream was Tollgate's own address started, and answered with Tollgate's 404.
#[test]
fn an_own_address_is_no_upstream() {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for flag in ["--http", "--gateway"] {
        let address = free();
        let upstream = format!("http://localhost:{}", address.port());
        let others = if flag == "--http" { "--gateway" } else { "--http" };
        let output = run(
            &[
                "serve",
                flag,
                &address.to_string(),
                others,
                "127.0.0.1:0",
                "--grpc",
                "off",
                "--resp",
                "off",
                "--upstream",
                &upstream,
            ],
            b"",
        );
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        let expected = format!("this Tollgate's own {flag} address; name the address of the service");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
}

/// The story: the banner described a store that did not answer like any other.
#[test]
fn a_store_that_does_not_answer_is_named_at_the_start() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = format!("redis://{dead}");
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--store", &store]);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let warning = lines.map_while(Result::ok).find(|line| line.contains("does not answer"));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(warning.is_some_and(|line| line.contains(&store) && line.contains("tollgate store check URL")));
}

/// With --insecure it listens everywhere, and says what that means.
#[test]
fn insecure_is_possible_and_warned_about() {
    let server = Server::start_with(&["serve", "--http", "0.0.0.0:0", "--insecure"], "");
    assert!(server.banner.contains("warning: --insecure"), "{}", server.banner);
    assert!(server.banner.contains("curl -s http://127.0.0.1:"), "{}", server.banner);
}

/// An environment that switches the flag off leaves the server as careful as before.
#[test]
fn insecure_can_be_switched_off_by_the_environment() {
    for (value, status) in [("0", 2), ("false", 2), ("perhaps", 2)] {
        let output =
            tollgate(&["serve", "--http", "0.0.0.0:0"]).env("TOLLGATE_INSECURE", value).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{value}");
    }
}
