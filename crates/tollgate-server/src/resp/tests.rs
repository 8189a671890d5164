//! The protocol as bytes, on a clock that a test moves: the input, and the exact output.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate::{Engine, ManualClock, MemoryStore, Policy};

use super::{Resp, connection};
use crate::service::Service;
use crate::service::throttle_counters::CounterTable;

mod check;
mod greeting;
mod hostile;
mod slow;
mod throttle;

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 3/min}
  - {name: tokens, by: [tenant], rate: 100/h, cost: tokens}
  - {name: in-flight, by: [worker], concurrency: 1, permit_ttl: 30s}
  - {name: queue, by: [queue], algorithm: leaky-bucket, rate: 1/s, queue: 1}
  - {name: watched, by: [watched], rate: 1/h, mode: shadow}
";
/// Capacity of the pipe in bytes: more than any test sends.
const PIPE_BYTES: usize = 1 << 20;

/// A server and its clock.
struct Server {
    resp: Arc<Resp<MemoryStore>>,
    time: ManualClock,
    stop: watch::Sender<bool>,
}

/// A client's end of a connection.
struct Client {
    stream: DuplexStream,
    server: JoinHandle<()>,
    /// Kept alive, because a server stops when its stop sender is dropped.
    _stop: watch::Sender<bool>,
}

impl Server {
    fn new() -> Self {
        let time = ManualClock::new();
        let policy = Policy::compile("test", POLICY.as_bytes()).unwrap();
        let service =
            Service::new(Engine::builder().policy(policy).clock(time.clock()).build(), time.clock());
        let resp = Arc::new(Resp::new(Arc::new(service.throttling(CounterTable::new(1 << 20)))));
        Self { resp, time, stop: watch::channel(false).0 }
    }

    fn connect(&self) -> Client {
        self.connect_with(PIPE_BYTES)
    }

    /// A connection with a pipe of this many bytes.
    fn connect_with(&self, bytes: usize) -> Client {
        let (stream, theirs) = duplex(bytes);
        let server = tokio::spawn(connection(theirs, Arc::clone(&self.resp), self.stop.subscribe()));
        Client { stream, server, _stop: self.stop.clone() }
    }

    fn advance(&self, milliseconds: u64) {
        self.time.advance(Duration::from_millis(milliseconds));
    }
}

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends bytes, and expects exactly this reply.
    async fn expect(&mut self, sent: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
        self.send(sent.as_ref()).await;
        self.receive(expected).await;
    }

    async fn receive(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut received = vec![0; expected.len()];
        self.stream.read_exact(&mut received).await.unwrap();
        assert_eq!(received.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    /// Expects the end of the connection without further bytes.
    async fn ends(mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.escape_ascii().to_string(), "");
        self.server.await.unwrap();
    }
}

/// A command as an array of bulk strings, from words separated by spaces.
fn command(words: &str) -> Vec<u8> {
    let words: Vec<&str> = words.split(' ').collect();
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

/// An array of integers.
fn integers<const N: usize>(numbers: [i64; N]) -> String {
    numbers.iter().fold(format!("*{N}\r\n"), |text, number| format!("{text}:{number}\r\n"))
}
