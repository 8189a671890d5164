//! Eight processes and one key: together they admit exactly the bound. A naive limiter that reads and then writes
//! admits more, which shows that the test can detect it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::algorithm::concurrency::Concurrency;
use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::algorithm::sliding_log::SlidingLog;
use tollgate::algorithm::sliding_window::{Estimate, SlidingWindow};
use tollgate::policy::{Limit, Policy};
use tollgate::{CheckRequest, Clock, Engine, Quota, Rate, Ticks};

use crate::fleet::mode;
use crate::record::Mode;
use crate::server::Server;
use crate::store::{Shared, connect, new_runtime, secret};

const PROCESSES: u64 = 8;
/// Requests of each process, and how many of them are concurrent.
const ASKS: u64 = 1_250;
const CONCURRENCY: u64 = 16;
/// Units of the key, without a refill during the test.
const BOUND: u64 = 1_000;
/// The environment variable with a child's task.
const PART: &str = "TOLLGATE_TEST_PART";
const WHERE: &str = "TOLLGATE_TEST_URL";
/// The name of the test, which the child runs.
const TEST: &str = "processes::eight_processes_admit_exactly_the_bound";

/// Every algorithm, with a bound that lasts for days.
fn quota(algorithm: &str) -> Quota {
    let rate = || Rate::per_day(BOUND);
    let slow = || Rate::per_day(50).burst(BOUND);
    match algorithm {
        "token-bucket" => Quota::token_bucket(slow()).unwrap(),
        "gcra" => Quota::gcra(slow()).unwrap(),
        "fixed-window" => Quota::FixedWindow(FixedWindow::new(rate(), Align::FirstHit).unwrap()),
        "sliding-window" => Quota::SlidingWindow(SlidingWindow::new(rate(), 1, Estimate::Strict).unwrap()),
        "sliding-log" => Quota::SlidingLog(SlidingLog::new(rate()).unwrap()),
        "leaky-bucket" => Quota::LeakyBucket(LeakyBucket::new(Rate::per_day(50), BOUND - 1).unwrap()),
        "concurrency" => Quota::Concurrency(Concurrency::new(BOUND, Ticks::from_secs(3_600)).unwrap()),
        other => panic!("no algorithm {other}"),
    }
}

const ALGORITHMS: [&str; 7] =
    ["token-bucket", "gcra", "fixed-window", "sliding-window", "sliding-log", "leaky-bucket", "concurrency"];

/// A child that waits for the signal to begin.
struct Worker {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Worker {
    fn start(part: &str, url: &str) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe().unwrap());
        command.args([TEST, "--exact", "--nocapture", "--test-threads", "1"]);
        command.env(PART, part).env(WHERE, url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut worker = Self { child, says };
        worker.hear("ready");
        worker
    }

    /// The text after a marker in its output.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).unwrap(), 0, "a process ended without saying {word}");
            // The test harness writes the name of the test before it.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn begin(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"begin\n").unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Units admitted by all processes, and decisions that the store did not make.
fn together(part: &str, url: &str) -> (u64, u64) {
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(part, url)).collect();
    for worker in &mut workers {
        worker.begin();
    }
    let mut sum = (0, 0);
    for worker in &mut workers {
        let printed = worker.hear("admitted");
        let (admitted, without) = printed.split_once(' ').unwrap();
        sum.0 += admitted.parse::<u64>().unwrap();
        sum.1 += without.parse::<u64>().unwrap();
    }
    sum
}

/// All algorithms admit exactly the bound, and the naive limiter admits more.
#[test]
fn eight_processes_admit_exactly_the_bound() {
    if let Ok(part) = std::env::var(PART) {
        return child(&part, &std::env::var(WHERE).unwrap());
    }
    let server = Server::redis();
    for algorithm in ALGORITHMS {
        assert_eq!(together(algorithm, &server.url()), (BOUND, 0), "{algorithm}");
    }
    let (naive, _) = together("naive", &server.url());
    assert!(naive > BOUND, "the naive limiter admitted {naive}, so this test cannot tell");
}

#[allow(clippy::print_stdout, reason = "that is how a child answers")]
fn child(part: &str, url: &str) {
    let say = |text: &str| println!("{text}");
    let wait = || {
        say("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
    };
    if part == "naive" {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        wait();
        let admitted = (0..ASKS).filter(|_| naive(&mut connection)).count();
        return say(&format!("admitted {admitted} 0"));
    }
    let runtime = new_runtime();
    let _inside = runtime.enter();
    let limit = Limit::new("limit", quota(part)).by(["key"]);
    let engine = Engine::builder()
        .policy(Policy::new(vec![limit]).unwrap())
        .store(connect(url))
        .secret(secret())
        .build();
    wait();
    let (admitted, without) = runtime.block_on(ask(Arc::new(engine), part.to_owned()));
    say(&format!("admitted {admitted} {without}"));
}

/// Reads the counter, pauses, and writes it.
fn naive(connection: &mut redis::Connection) -> bool {
    let used: Option<u64> = redis::cmd("GET").arg("naive").query(connection).unwrap();
    let used = used.unwrap_or_default();
    if used >= BOUND {
        return false;
    }
    redis::cmd("SET").arg("naive").arg(used + 1).query::<()>(connection).unwrap();
    true
}

async fn ask(engine: Arc<Engine<Shared>>, key: String) -> (u64, u64) {
    let (admitted, without) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let left = Arc::new(AtomicU64::new(ASKS));
    let clock = Clock::precise();
    let tasks: Vec<_> = (0..CONCURRENCY)
        .map(|_| {
            let (engine, clock, key) = (Arc::clone(&engine), clock.clone(), key.clone());
            let (admitted, without, left) = (Arc::clone(&admitted), Arc::clone(&without), Arc::clone(&left));
            tokio::spawn(async move {
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .is_ok()
                {
                    let request = CheckRequest::new().with("key", &key).unwrap();
                    let decision = engine.check(&request, clock.now()).await;
                    admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                    without.fetch_add(u64::from(mode(&decision) != Mode::Exact), Ordering::Relaxed);
                    tokio::time::sleep(Duration::ZERO).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    (admitted.load(Ordering::Relaxed), without.load(Ordering::Relaxed))
}
