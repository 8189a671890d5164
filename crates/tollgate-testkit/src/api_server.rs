//! A provider of an API behind a socket, as the network makes it: each way takes a random time, and some responses are
//! lost. It remembers the calls that it refused.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::provider::{Answer, Asked, Provider};
use crate::wait::rest;

/// How the network treats requests and responses.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The longest time that a request takes, and a response.
    pub way_max: Duration,
    /// Of a hundred responses so many are lost.
    pub lost: u64,
}

/// A call that the provider refused: a violation of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    /// The number in its field `x-call`.
    pub number: u64,
    /// How often its limits had changed by then.
    pub changes: u64,
}

struct Shared {
    provider: Mutex<Provider>,
    network: Network,
    refused: Mutex<Vec<RefusedCall>>,
    changes: AtomicU64,
    /// How many random numbers were drawn.
    drawn: AtomicU64,
    lost: AtomicU64,
}

/// The server. Its threads end with the test.
pub struct ApiServer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl ApiServer {
    /// Rules of the provider that are for each route count each credential apart here.
    pub fn start(provider: Provider, network: Network) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            provider: Mutex::new(provider),
            network,
            refused: Mutex::default(),
            changes: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || shared.serve(&stream));
            }
        });
        Self { address, shared }
    }

    pub fn provider(&self) -> MutexGuard<'_, Provider> {
        self.shared.provider.lock().unwrap()
    }

    /// Changes the limits while calls are under way.
    pub fn change(&self, change: impl FnOnce(&mut Provider)) {
        let mut provider = self.provider();
        change(&mut provider);
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
    }

    pub fn refused(&self) -> Vec<RefusedCall> {
        self.shared.refused.lock().unwrap().clone()
    }

    /// How many responses were lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// A random number below this: SplitMix64, by how many were drawn before.
    fn below(&self, most: u64) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let mut z = drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % most.max(1)
    }

    /// One way through the network.
    fn travel(&self) {
        let most = u64::try_from(self.network.way_max.as_micros()).unwrap();
        rest(Duration::from_micros(self.below(most)));
    }

    /// Answers the requests of a connection, which have no bodies. A lost response ends it.
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(head) = head(&mut reader) {
            self.travel();
            let answer = self.decide(&head);
            self.travel();
            if self.below(100) < self.network.lost {
                self.lost.fetch_add(1, Ordering::SeqCst);
                return;
            }
            if (&*stream).write_all(response(&answer).as_bytes()).is_err() {
                return;
            }
        }
    }

    fn decide(&self, head: &[String]) -> Answer {
        let field = |name: &str| {
            let value = head.iter().filter_map(|line| line.split_once(": "));
            value
                .into_iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
                .map_or("", |(_, value)| value)
        };
        let asked = Asked { route: field("authorization"), units: 1 };
        let now = wall_micros();
        let mut provider = self.provider.lock().unwrap();
        let answer = provider.call(asked, now);
        provider.end(asked, now);
        if answer.is_refused {
            let (number, changes) = (field("x-call").parse().unwrap(), self.changes.load(Ordering::SeqCst));
            self.refused.lock().unwrap().push(RefusedCall { number, changes });
        }
        answer
    }
}

/// The lines of the next request.
fn head(reader: &mut BufReader<&TcpStream>) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => return Some(lines),
            text => lines.push(text.to_owned()),
        }
    }
}

fn response(answer: &Answer) -> String {
    let body = answer.body.as_deref().unwrap_or("{}");
    let mut text = format!("HTTP/1.1 {} -\r\n", answer.status);
    for (name, value) in &answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    text
}

#[allow(clippy::disallowed_methods, reason = "the calls come from another process")]
fn wall_micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}
