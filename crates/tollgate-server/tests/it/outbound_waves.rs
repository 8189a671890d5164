//! Calls in waves through the outbound proxy, to a server that takes five in two seconds and refuses the others.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::Clock;
use tollgate_testkit::provider::{Asked, Counter, Provider, Rule, Speech};

use crate::gateway_upstream::OPEN;
use crate::program::{Server, tollgate};
use crate::proxy::Folder;
use crate::raw_http::Response;

const WAVE: usize = 10;

/// The server, which counts the calls that it takes and refuses.
struct Strict {
    provider: Arc<Mutex<Provider>>,
    address: String,
}

impl Strict {
    fn start(speech: Speech) -> Self {
        let counter = Counter::AnyWindow { limit: 5, period: 2_000_000 };
        let provider = Provider::new(vec![Rule::calls("calls", counter)], speech, 0);
        let provider = Arc::new(Mutex::new(provider));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (shared, clock) = (Arc::clone(&provider), Clock::precise());
        // It ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, clock) = (Arc::clone(&shared), clock.clone());
                std::thread::spawn(move || answer_all(&stream, &shared, &clock));
            }
        });
        Self { provider, address }
    }

    fn refused(&self) -> usize {
        self.provider.lock().unwrap().refused.len()
    }
}

/// Answers the requests of a connection. They have no bodies.
fn answer_all(mut stream: &TcpStream, provider: &Mutex<Provider>, clock: &Clock) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while lines.next().is_some() {
        lines.by_ref().find(|line| line.is_empty());
        let now = clock.now().unix_micros();
        let answer = provider.lock().unwrap().call(Asked { route: "", units: 1 }, now);
        let fields: String =
            answer.headers.iter().map(|(name, text)| format!("{name}: {text}\r\n")).collect();
        let reply = format!("HTTP/1.1 {} Answer\r\ncontent-length: 0\r\n{fields}\r\n", answer.status);
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// The program with a proxy before the server. It ends when this is dropped.
struct Proxy {
    _server: Server,
    _folder: Folder,
    address: String,
}

impl Proxy {
    fn start(name: &str, strict: &Strict, policy: &str) -> Self {
        let folder = Folder::new(name);
        let policy = folder.write("policy.yaml", policy).display().to_string();
        let config = format!(
            "outbound: {{providers: {{api: {{url: 'http://{}', policy: {policy}}}}}}}",
            strict.address
        );
        let config = folder.write("config.yaml", &config).display().to_string();
        let arguments = ["serve", "--http", "127.0.0.1:0", "--outbound", "127.0.0.1:0", "--config", &config];
        let server = Server::spawn(tollgate(&[&arguments[..], &["--policy", "-"]].concat()), OPEN);
        let shown = server.banner.lines().find_map(|line| line.trim().strip_prefix("outbound http://"));
        let address = shown.unwrap_or_else(|| panic!("no outbound proxy in {}", server.banner)).to_owned();
        Self { _server: server, _folder: folder, address }
    }

    fn call(&self) -> u16 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET /api/x HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).unwrap();
        Response::read(&mut BufReader::new(&stream)).status
    }

    /// Calls that are made together. All are answered with 200.
    fn wave(&self) {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..WAVE).map(|_| scope.spawn(|| self.call())).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        assert_eq!(statuses, [200; WAVE]);
    }
}

/// With the limit of the server it refuses no call of any wave.
#[test]
fn waves_within_the_limit_are_never_refused() {
    let strict = Strict::start(Speech::RetryAfter);
    // Longer than the server's window, by as much as calls may differ in the time that they take to arrive.
    let policy = "limits: [{name: calls, by: [host], algorithm: sliding-log, rate: 5 per 3s}]";
    let proxy = Proxy::start("outbound-waves", &strict, policy);
    (0..2).for_each(|_| proxy.wave());
    assert_eq!(strict.refused(), 0);
}

/// With a policy that is too generous, a server that says what is left refuses calls of the first wave, and then none.
#[test]
fn a_generous_policy_is_corrected_by_the_first_wave() {
    let strict = Strict::start(Speech::Ietf);
    let policy = "limits: [{name: calls, by: [host], algorithm: sliding-log, rate: 10 per 2s}]";
    let proxy = Proxy::start("outbound-generous", &strict, policy);
    proxy.wave();
    let refused = strict.refused();
    assert!((1..=5).contains(&refused), "{refused}");
    (0..3).for_each(|_| proxy.wave());
    assert_eq!(strict.refused(), refused);
}

/// A server that says only how long to wait is followed by the pace of the calls: no wave is refused as often as the first.
#[test]
fn a_server_that_says_only_how_long_to_wait_is_followed() {
    let strict = Strict::start(Speech::RetryAfter);
    let policy = "limits: [{name: calls, by: [host], algorithm: sliding-log, rate: 10 per 2s}]";
    let proxy = Proxy::start("outbound-pace", &strict, policy);
    proxy.wave();
    let first = strict.refused();
    (0..3).for_each(|_| proxy.wave());
    let later = strict.refused() - first;
    assert!((1..=6).contains(&first) && later <= 6, "{first}, then {later} in three waves");
}
