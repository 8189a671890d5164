//! A store that is milliseconds away: what each round trip costs shows.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::program::{Server, tollgate};
use crate::redis::Redis;
use crate::scratch::rest;
use crate::shared::turn;

/// Stands before a port. Every byte arrives this much later, in either direction. Its threads end with their connections.
fn far(to: u16, delay: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (Ok(near), Ok(there)) = (near, TcpStream::connect(("127.0.0.1", to))) else { continue };
            for stream in [&near, &there] {
                stream.set_nodelay(true).unwrap();
            }
            carry(near.try_clone().unwrap(), there.try_clone().unwrap(), delay);
            carry(there, near, delay);
        }
    });
    port
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if sender.send((now() + delay, bytes[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            rest(due.saturating_duration_since(now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[allow(clippy::disallowed_methods, reason = "the delay of a network is real")]
fn now() -> Instant {
    Instant::now()
}

/// A server on that store, with the deadline that decisions have unless something else is said.
fn on(port: u16, policy: &str, deadline: &str) -> Server {
    let store = format!("redis://127.0.0.1:{port}");
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--store", &store];
    let mut command = tollgate(&arguments);
    command.args(["--store-deadline", deadline]);
    Server::spawn(command, policy)
}

/// The first decision about a limit, a tier or an override takes one round trip: what the fleet must agree on before was agreed when the
/// policy was put in force, although that takes longer than a decision may.
#[test]
fn the_first_decision_is_made_in_the_store() {
    let _turn = turn();
    let redis = Redis::start(&[]);
    let port = far(redis.port, Duration::from_millis(1));
    let policy = "limits:
  - {name: plan, by: [tenant], tier_by: plan, tiers: {free: 10/h, pro: 20/h}, overrides: {acme: 30/h}}
  - {name: whole, rate: 1000/h}";
    let questions = [("t", "free"), ("u", "pro"), ("acme", "free")]
        .map(|(tenant, plan)| format!(r#"{{"attributes":{{"tenant":"{tenant}","plan":"{plan}"}}}}"#));
    // A busy machine can make 5 ms pass by itself, so each question may have three servers to be the first of.
    for question in &questions {
        let is_exact = || {
            redis.cli(&["FLUSHALL"]);
            let server = on(port, policy, "5ms");
            rest(Duration::from_secs(1));
            let answer = server.check(question);
            let limits = answer["limits"].as_array().unwrap().clone();
            limits.len() == 2 && limits.iter().all(|limit| limit["source"] == "exact")
        };
        assert!((0..3).any(|_| is_exact()), "{question}");
    }
}
