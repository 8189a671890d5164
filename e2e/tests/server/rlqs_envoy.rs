//! Two real Envoys with the `rate_limit_quota` filter, the configuration of `deploy/envoy/quota.yaml`, and the commands of `docs/rlqs.md`.

#![allow(
    clippy::disallowed_methods,
    reason = "Envoy is a program of its own: it reports every five seconds of real time, and load has a pace"
)]

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::envoy::{Envoy, Upstream};
use crate::guide::{Last, blocks, shell, succeeded};
use crate::program::Server;
use crate::raw_http::Response;

const CONFIGURATION: &str = include_str!("../../../deploy/envoy/quota.yaml");
const POLICY: &str = include_str!("../../../deploy/envoy/quota-policy.yaml");
const GUIDE: &str = include_str!("../../../docs/rlqs.md");
/// Envoy's time between two reports, whatever its configuration says.
const REPORT: Duration = Duration::from_secs(5);

/// Requests at a pace, to one Envoy and with one key, until it is dropped.
struct Load {
    per_second: Arc<AtomicU64>,
    passed: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(envoy: &Envoy, per_second: u64) -> Self {
        let address = envoy.address;
        let [pace, passed, refused] = [per_second, 0, 0].map(|number| Arc::new(AtomicU64::new(number)));
        let is_over = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&pace), Arc::clone(&passed), Arc::clone(&refused), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            let (pace, passed, refused, is_over) = shared;
            let stream = TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut answers = BufReader::new(&stream);
            let mut due = Instant::now();
            while !is_over.load(Ordering::SeqCst) {
                let per_second = pace.load(Ordering::SeqCst);
                if per_second == 0 {
                    std::thread::sleep(Duration::from_millis(10));
                    due = Instant::now();
                    continue;
                }
                due += Duration::from_secs(1) / u32::try_from(per_second).unwrap();
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                (&stream).write_all(b"GET / HTTP/1.1\r\nHost: test\r\nX-API-Key: k1\r\n\r\n").unwrap();
                match Response::read(&mut answers).status {
                    200 => passed.fetch_add(1, Ordering::SeqCst),
                    429 => refused.fetch_add(1, Ordering::SeqCst),
                    other => panic!("{other}"),
                };
            }
        });
        Self { per_second: pace, passed, refused, is_over, thread: Some(thread) }
    }

    fn pace(&self, per_second: u64) {
        self.per_second.store(per_second, Ordering::SeqCst);
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// The requests a second that two loads passed in a while.
fn measure(loads: [&Load; 2], time: Duration) -> [u64; 2] {
    let (begun, before) = (Instant::now(), loads.map(Load::passed));
    std::thread::sleep(time);
    let millis = u64::try_from(begun.elapsed().as_millis()).unwrap();
    let after = loads.map(Load::passed);
    [0, 1].map(|which| (after[which] - before[which]) * 1_000 / millis)
}

/// Two Envoys share a limit of 60 a second. Four fifths of the load come to one of them: it gets the greater part and the other all that
/// it asks for. Then it falls silent, and the other gets what it had. All the time both together let pass what is promised.
#[test]
fn two_envoys_share_a_limit_by_demand() {
    let (upstream, server) = (Upstream::start(), Server::start(POLICY));
    let start = || Envoy::start_with(CONFIGURATION, upstream.address, server.grpc.unwrap(), &[]);
    let (one, other) = (start(), start());
    let begun = Instant::now();
    let (busy, quiet) = (Load::start(&one, 80), Load::start(&other, 20));
    std::thread::sleep(2 * REPORT + Duration::from_secs(1));
    let [most, least] = measure([&busy, &quiet], Duration::from_secs(5));
    assert!((28..=46).contains(&most) && (16..=22).contains(&least), "{most} and {least}: {}", one.log());
    assert!(busy.refused() > 50, "the filter refuses no request");

    busy.pace(0);
    quiet.pace(80);
    // The report under way shows a part of it, the next all of it, and with the one after that it is done.
    std::thread::sleep(3 * REPORT + Duration::from_secs(1));
    eprintln!("{most} and {least} a second");
    let [none, all] = measure([&busy, &quiet], Duration::from_secs(4));
    eprintln!("then {none} and {all} a second");
    assert!(none == 0 && all >= 48, "{none} and {all}: {}", other.log());

    let millis = u64::try_from(begun.elapsed().as_millis()).unwrap();
    let passed = busy.passed() + quiet.passed();
    // The limit's own, a second of its rate, a tenth of its burst, three for each Envoy, and what each let pass before its first assignment.
    let most = 60 + 60 * millis / 1_000 + 60 + 6 + 3 * 2 + 2 * 20;
    assert!(passed <= most, "{passed} passed, of {most}");
    assert!(passed * 10 >= 60 * millis / 1_000 * 6, "only {passed} passed in {millis} ms");
    assert!(upstream.served() >= passed);
    assert_eq!(server.metric("tollgate_rlqs_streams"), 2);
    assert_eq!(
        (server.metric("tollgate_rlqs_buckets"), server.metric("tollgate_rlqs_subscriptions")),
        (1, 2)
    );
    let reported = server.metric("tollgate_rlqs_reported_requests_total{outcome=\"allow\"}");
    assert!(reported <= upstream.served() && reported + 6 * 80 >= passed, "{reported} of {passed}");
}

/// The commands of the guide, run in order, print what the guide shows.
#[test]
fn the_guide_is_true() {
    let (upstream, server) = (Upstream::start(), Server::start(POLICY));
    let envoy = Envoy::start_with(CONFIGURATION, upstream.address, server.grpc.unwrap(), &[]);
    let blocks = blocks(GUIDE);
    let policy = blocks.iter().find(|(language, _)| *language == "yaml").map(|(_, text)| text.trim());
    assert_eq!(policy, Some(POLICY.trim()), "the guide shows the policy of the recipe");
    let mut last = Last::default();
    for (language, block) in &blocks {
        if *language != "sh" {
            last.compare(language, block);
            continue;
        }
        let commands = block
            .replace("127.0.0.1:10000", &envoy.address.to_string())
            .replace("127.0.0.1:8080", &server.address.to_string());
        last.ran(block, succeeded(shell(&format!("set -eu\n{commands}"))).0);
    }
    last.at_least(4);
}
