//! A stop under load: every request that was sent is answered, and what was admitted is on disk.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::program::Server;
use crate::raw_http::{Response, request};
use crate::restart::{Scratch, await_until, start};
use crate::rls::{Client, question};

const POLICY: &str = "limits: [{name: monthly, by: [api_key], rate: 1_000_000_000/month, algorithm: fixed-window, align: first-hit}]";
const CONNECTIONS: u64 = 12;

/// The answers to the clients of one round.
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
/// connection got notice of its end, and the next server has counted every one of them.
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
        let [sent, answered, reported] =
            [seen.sent, seen.answered, seen.told_to_close].map(AtomicU64::into_inner);
        assert_eq!((sent, reported), (answered, CONNECTIONS), "round {round}");
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
fn commands_sent_before_the_stop_are_answered() {
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

/// A connection for redis clients.
fn resp_connection(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.resp()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Sends pipelines without a pause until `is_over`, while another thread reads; tells how many commands were sent, and answered.
fn pipe_on(server: &Server, answered: &AtomicU64, is_over: &AtomicBool) -> (u64, u64) {
    const PIPELINE: u64 = 200;
    let mut stream = resp_connection(server);
    let reader = stream.try_clone().unwrap();
    thread::scope(|scope| {
        let answers = scope.spawn(|| {
            let mut answers = 0;
            for line in BufReader::new(&reader).lines() {
                assert_eq!(line.unwrap(), "+PONG");
                answers += 1;
                answered.fetch_add(1, Ordering::SeqCst);
            }
            answers
        });
        let mut sent = 0;
        let pipeline = b"PING\r\n".repeat(usize::try_from(PIPELINE).unwrap());
        while !is_over.load(Ordering::SeqCst) {
            stream.write_all(&pipeline).unwrap();
            sent += PIPELINE;
        }
        (sent, answers.join().unwrap())
    })
}

/// Clients that pipeline without a pause, and stop asking just after the SIGTERM: what was in the sockets by then is answered, to
/// the last command, and the connection ends with a goodbye and not with an error.
#[test]
fn a_stop_under_pipelines_answers_every_command() {
    for round in 0..3 {
        let mut server = Server::start(POLICY);
        let (answered, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let clients: Vec<_> =
                (0..4).map(|_| scope.spawn(|| pipe_on(&server, &answered, &is_over))).collect();
            await_until(|| answered.load(Ordering::SeqCst) > 4_000);
            server.signal("-TERM");
            is_over.store(true, Ordering::SeqCst);
            for client in clients {
                let (sent, answers) = client.join().unwrap();
                assert_eq!(sent, answers, "round {round}");
            }
        });
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// A redis client whose connection was made, or rested, when the stop came is answered, too, and hears the end.
#[test]
fn redis_commands_on_their_way_at_the_stop_are_answered() {
    for _ in 0..3 {
        let mut server = Server::start(POLICY);
        let mut resting = resp_connection(&server);
        resting.write_all(b"PING\r\n").unwrap();
        resting.read_exact(&mut [0; 7]).unwrap();
        let mut streams: Vec<_> = (0..20).map(|_| resp_connection(&server)).collect();
        server.signal("-TERM");
        streams.push(resting);
        server.await_log("stopping");
        for stream in &mut streams {
            stream.write_all(b"PING\r\n").unwrap();
            stream.read_exact(&mut [0; 7]).unwrap();
            stream.write_all(b"TG.CHECK api_key k\r\nPING\r\n").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        }
        for mut stream in streams {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("*8\r\n:1\r\n") && answer.ends_with("+PONG\r\n"), "{answer}");
        }
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// Calls under way on every connection when the SIGTERM comes: each one that was decided is answered. The next server has counted
/// as many as the clients saw; a call that fails was never begun.
#[test]
fn a_stop_under_calls_loses_no_answer() {
    let scratch = Scratch::new("drain-grpc");
    let mut server = start(&scratch, "off", POLICY);
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = Client::new(server.grpc.unwrap());
                let error = loop {
                    match client.ask(question("api", 0, "api_key=k")) {
                        Ok(_) => answered.fetch_add(1, Ordering::SeqCst),
                        Err(error) => break error,
                    };
                };
                // It could not connect again, or got GOAWAY before it had asked.
                assert!(matches!(error.code(), Code::Unavailable | Code::Cancelled), "{error}");
            });
        }
        await_until(|| answered.load(Ordering::SeqCst) > 200);
        server.signal("-TERM");
    });
    assert_eq!(server.wait().code(), Some(0));
    let server = start(&scratch, "off", POLICY);
    assert_eq!(1_000_000_000 - server.remaining("k"), answered.into_inner());
}

/// A thread that waits for a disk which never answers does not keep the process.
#[test]
fn a_hung_disk_does_not_keep_the_process() {
    let scratch = Scratch::new("hung");
    std::fs::create_dir(&scratch.0).unwrap();
    let (policy, pipe) = (scratch.0.join("policy.yaml"), scratch.0.join("pipe"));
    std::fs::write(&policy, POLICY).unwrap();
    let mut server =
        Server::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", policy.to_str().unwrap()], "");
    // A read of a pipe blocks as long as a process holds its write end, also if none writes.
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::rename(&pipe, &policy).unwrap();
    let silent = std::fs::OpenOptions::new().read(true).write(true).open(&policy).unwrap();
    server.signal("-TERM");
    server.await_log("stopped");
    let ended = server.wait_at_most(Duration::from_secs(10));
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    drop(silent);
}

/// With a delay, a stopping server says so and serves on, until the delay is over.
#[test]
fn a_delay_serves_new_connections_while_it_is_not_ready() {
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--drain-delay", "3s"];
    let mut server = Server::start_with(&arguments, POLICY);
    server.signal("-TERM");
    server.await_log("still serving");
    let ready = server.exchange(&request("GET", "/readyz", "Connection: close\r\n", b""));
    assert_eq!((ready.status, &ready.json()["status"]), (503, &"stopping".into()));
    assert_eq!(server.remaining("k"), 1_000_000_000);
    assert!(server.resp_exchange(b"PING\r\nQUIT\r\n").starts_with("+PONG"));
    let client = Client::new(server.grpc.unwrap());
    let health = client.wait(HealthClient::new(client.channel.clone()).check(HealthCheckRequest::default()));
    assert_eq!(health.unwrap().into_inner().status, i32::from(ServingStatus::NotServing));
    assert!(client.ask(question("api", 0, "api_key=k")).is_ok());
    drop(client);
    assert_eq!(server.wait_at_most(Duration::from_secs(20)).and_then(|status| status.code()), Some(0));
    assert!(TcpStream::connect(server.address).is_err());
}

/// A second signal does not wait for the delay, and still fails no request.
#[test]
fn a_second_signal_cuts_the_delay_short() {
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--drain-delay", "10m"];
    let mut server = Server::start_with(&arguments, POLICY);
    let mut stream = server.connect();
    server.signal("-TERM");
    server.await_log("still serving");
    server.signal("-TERM");
    server.await_log("stopping");
    stream.write_all(&request("POST", "/v1/check", "", br#"{"attributes":{"api_key":"k"}}"#)).unwrap();
    let response = Response::read(&mut BufReader::new(&stream));
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    drop(stream);
    assert_eq!(server.wait_at_most(Duration::from_secs(20)).and_then(|status| status.code()), Some(0));
}
