//! RESP against the real program: as bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::program::{SLOW_POLICY, Server, run, stderr};

mod kept;

/// Decisions over RESP and over HTTP come from the same counters.
#[test]
fn both_wires_count_together() {
    let server = Server::start(SLOW_POLICY);
    let answer = server.resp_exchange(b"TG.CHECK api_key k COST 2\r\nQUIT\r\n");
    assert!(answer.starts_with("*8\r\n:1\r\n$5\r\nallow\r\n:3\r\n:5\r\n:0\r\n"), "{answer}");
    assert_eq!(server.remaining("k"), 3);
}

/// A hundred commands in one piece, in order; a hostile frame afterwards ends the connection with a reason.
#[test]
fn a_pipeline_and_its_end() {
    let server = Server::start(SLOW_POLICY);
    let mut bytes =
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n99\r\n$1\r\n1\r\n$4\r\n3600\r\n".repeat(100);
    bytes.extend(b"*1\r\n$-5\r\n");
    let answer = server.resp_exchange(&bytes);
    let remaining: Vec<&str> =
        answer.split("*5\r\n:0\r\n:100\r\n:").skip(1).map(|rest| rest.split('\r').next().unwrap()).collect();
    let expected: Vec<String> = (0..100).rev().map(|left: u32| left.to_string()).collect();
    assert_eq!(remaining, expected);
    let reason = "-ERR Protocol error: invalid bulk length; accepted: 0 to 8192 bytes\r\n";
    assert!(answer.ends_with(reason), "{answer}");
}

/// A stopping server ends a connection at rest in good order, and itself.
#[test]
fn a_stop_ends_resting_connections() {
    let mut server = Server::start(SLOW_POLICY);
    let mut resting = TcpStream::connect(server.resp()).unwrap();
    resting.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    resting.write_all(b"PING\r\n").unwrap();
    resting.read_exact(&mut [0; 7]).unwrap();
    server.signal("-TERM");
    assert_eq!(resting.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(server.wait().code(), Some(0));
}

/// The wire can be switched off, and its address is as carefully chosen as any.
#[test]
fn where_it_listens() {
    let server = Server::start_with(&["serve", "--http", "127.0.0.1:0", "--resp", "off"], "");
    assert!(server.banner.contains("  RESP    off\n"), "{}", server.banner);
    for (address, status, expected) in [
        ("0.0.0.0:0", 2, "add --insecure"),
        ("6380", 2, "accepted: 127.0.0.1:6380, [::1]:6380 or localhost:6380, or off"),
    ] {
        let output = run(&["serve", "--http", "127.0.0.1:0", "--resp", address], b"");
        assert_eq!(output.status.code(), Some(status), "{address}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    let taken = Server::start(SLOW_POLICY);
    let output = run(&["serve", "--http", "127.0.0.1:0", "--resp", &taken.resp().to_string()], b"");
    assert!(stderr(&output).contains("choose another port with --resp 127.0.0.1:0"), "{}", stderr(&output));
}

/// Numbers that make redis-cell's arithmetic wrap around are answered, and the server lives.
#[test]
fn extreme_numbers() {
    let server = Server::start(SLOW_POLICY);
    let ends = [i64::MIN, -1, 0, 1, i64::MAX].map(|number| number.to_string());
    let mut bytes = Vec::new();
    for burst in &ends {
        for count in &ends {
            for (period, quantity) in ends.iter().flat_map(|period| ends.iter().map(move |q| (period, q))) {
                bytes.extend(format!("CL.THROTTLE k {burst} {count} {period} {quantity}\r\n").bytes());
            }
        }
    }
    bytes.extend(b"PING\r\nQUIT\r\n");
    let answer = server.resp_exchange(&bytes);
    assert!(answer.ends_with("+PONG\r\n+OK\r\n"), "{answer}");
    let zero_rates = answer.matches("-Cell error: Zero rates are not supported\r\n").count();
    assert_eq!(answer.matches("*5\r\n").count() + zero_rates, 625);
}
