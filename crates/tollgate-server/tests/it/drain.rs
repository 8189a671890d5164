//! A stop under load: every request that was sent is answered, and what was admitted is on disk.

use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::program::Server;
use crate::restart::{Scratch, await_until, start};
use crate::wire::{Response, request};

const POLICY: &str = "limits: [{name: monthly, by: [api_key], rate: 1_000_000_000/month, algorithm: fixed-window, align: first-hit}]";
const CONNECTIONS: u64 = 12;

/// What the clients of one round saw.
#[derive(Default)]
struct Seen {
    sent: AtomicU64,
    answered: AtomicU64,
    told_to_close: AtomicU64,
}

/// Asks on one connection until the server says that it was the last answer. Every request must be answered.
fn ask_on(server: &Server, seen: &Seen) {
    let mut stream = server.connect();
    let reader = stream.try_clone().unwrap();
    let mut answers = BufReader::new(&reader);
    let question = request("POST", "/v1/check", "", br#"{"attributes":{"api_key":"k"}}"#);
    loop {
        stream.write_all(&question).unwrap();
        seen.sent.fetch_add(1, Ordering::SeqCst);
        let response = Response::read(&mut answers);
        assert_eq!((response.status, &response.json()["allowed"]), (200, &true.into()));
        seen.answered.fetch_add(1, Ordering::SeqCst);
        if response.header("connection") == Some("close") {
            seen.told_to_close.fetch_add(1, Ordering::SeqCst);
            return;
        }
    }
}

/// Three times over: twelve clients that ask without a pause, a SIGTERM in the middle of it. As many answers as requests, each
/// connection was told that it ends, and the next server has counted every one of them.
#[test]
fn a_stop_under_load_fails_no_decision() {
    let scratch = Scratch::new("drain");
    let mut counted = 0;
    for round in 0..3 {
        let mut server = start(&scratch, "100ms", POLICY);
        assert_eq!(1_000_000_000 - server.remaining("k"), counted, "round {round}");
        let seen = Seen::default();
        thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| ask_on(&server, &seen));
            }
            await_until(|| seen.answered.load(Ordering::SeqCst) > 50 * CONNECTIONS);
            server.signal("-TERM");
        });
        let [sent, answered, told] =
            [seen.sent, seen.answered, seen.told_to_close].map(AtomicU64::into_inner);
        assert_eq!((sent, told), (answered, CONNECTIONS), "round {round}");
        counted += answered;
        server.await_log("counters are on disk");
        assert_eq!(server.wait().code(), Some(0));
    }
    let server = start(&scratch, "off", POLICY);
    assert_eq!(1_000_000_000 - server.remaining("k"), counted);
}

/// A connection that was made, and even one whose request came, just before the stop, is answered: the server may not have looked
/// at either yet.
#[test]
fn what_was_sent_before_the_stop_is_answered() {
    for _ in 0..5 {
        let mut server = Server::start(POLICY);
        let question = request("POST", "/v1/check", "", br#"{"attributes":{"api_key":"k"}}"#);
        let streams: Vec<_> = (0..20)
            .map(|_| {
                let mut stream = server.connect();
                stream.write_all(&question).unwrap();
                stream
            })
            .collect();
        server.signal("-TERM");
        for stream in &streams {
            assert_eq!(Response::read(&mut BufReader::new(stream)).status, 200);
        }
        drop(streams);
        assert_eq!(server.wait().code(), Some(0));
    }
}
