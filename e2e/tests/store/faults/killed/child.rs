//! One node of a fleet in its own process: it sends requests, records decisions, and returns its leases when it shuts
//! down.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tollgate::lease::LeasedStore;
use tollgate::policy::Policy;
use tollgate::{CheckRequest, Clock, Engine};
use tollgate_redis::RedisStore;

use super::ledger::{Ledger, Line};
use super::quotas::{KINDS, policy};
use crate::fleet::mode;
use crate::record::RecordedDecision;
use crate::store::{new_runtime, secret, settings};
use tollgate_testkit::until;

/// The environment variable with a child's task.
pub(super) const PART: &str = "TOLLGATE_TEST_LEASED";
/// How often leases are maintained, as a server does.
const MAINTAIN_EVERY: Duration = Duration::from_millis(5);
const KEYS_MAX: usize = 10_000;

/// The task of a process.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The name of the test, which the child runs.
    pub(super) test: &'static str,
    pub(super) url: String,
    pub(super) ledger: PathBuf,
    pub(super) node: u8,
    /// Maximum number of concurrent requests, and requests per second.
    pub(super) at_once: u32,
    pub(super) rate: u32,
    /// The kinds of keys that it requests, as a range of [`KINDS`].
    pub(super) kinds: std::ops::Range<usize>,
}

impl Part {
    fn words(&self) -> String {
        let (path, kinds) = (self.ledger.to_str().unwrap(), &self.kinds);
        let Self { url, node, at_once, rate, .. } = self;
        format!("{url} {path} {node} {at_once} {rate} {} {}", kinds.start, kinds.end)
    }

    fn read(words: &str) -> Self {
        let words: Vec<&str> = words.split(' ').collect();
        let number = |place: usize| words[place].parse::<usize>().unwrap();
        Self {
            test: "",
            url: words[0].to_owned(),
            ledger: PathBuf::from(words[1]),
            node: u8::try_from(number(2)).unwrap(),
            at_once: u32::try_from(number(3)).unwrap(),
            rate: u32::try_from(number(4)).unwrap(),
            kinds: number(5)..number(6),
        }
    }
}

/// A process, as its parent sees it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
    pub(super) part: Part,
}

/// The report of a process that shut down about its leases.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShutdownReport {
    pub(super) held: u64,
    pub(super) paid: u64,
    pub(super) drawn: u64,
    pub(super) returned: u64,
    pub(super) stranded: u64,
}

impl Process {
    /// Starts the process, which sends requests from now on.
    pub(super) fn start(part: Part) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe().unwrap());
        command.args([part.test, "--exact", "--nocapture", "--test-threads", "1"]);
        command.env(PART, part.words()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, says, part };
        process.hear("ready");
        process
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

    pub(super) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Kills it, and returns when it is gone.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        assert!(!self.child.wait().unwrap().success());
    }

    /// Asks it to shut down, and reads its report.
    pub(super) fn end(&mut self) -> ShutdownReport {
        self.signal("-TERM");
        let printed = self.hear("shutdown_report");
        let numbers: Vec<u64> = printed.split(' ').map(|word| word.parse().unwrap()).collect();
        assert!(self.child.wait().unwrap().success());
        let [held, paid, drawn, returned, stranded] = numbers[..] else { panic!("{printed}") };
        ShutdownReport { held, paid, drawn, returned, stranded }
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        Ledger::read(&self.part.ledger)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The wall-clock time, in microseconds: the clock of the stores on the same machine.
#[allow(clippy::disallowed_methods, reason = "what several processes and their stores share")]
pub(super) fn wall() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

/// Runs the task of a child if this process is one. Returns whether it is.
pub(super) fn is_child() -> bool {
    let Ok(words) = std::env::var(PART) else { return false };
    let runtime = new_runtime();
    let _inside = runtime.enter();
    let part = Part::read(&words);
    let store = RedisStore::start(settings(&part.url).long_deadline()).unwrap();
    let node = Node::new(policy(), store, &part.ledger);
    until("the store is connected", || node.engine.store().store().is_prepared().then_some(()));
    say("ready");
    runtime.block_on(node.run(&part));
    true
}

#[allow(clippy::print_stdout, reason = "that is how a child answers")]
fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().unwrap();
}

/// The node itself.
struct Node {
    engine: Arc<Engine<LeasedStore<RedisStore>>>,
    clock: Clock,
    ledger: Arc<Ledger>,
    stopped: Arc<AtomicBool>,
}

impl Node {
    fn new(policy: Policy, store: RedisStore, ledger: &Path) -> Self {
        let engine = Engine::builder()
            .policy(policy)
            .store(LeasedStore::new(store, KEYS_MAX))
            .secret(secret())
            .build();
        Self {
            engine: Arc::new(engine),
            clock: Clock::precise(),
            ledger: Arc::new(Ledger::create(ledger)),
            stopped: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Sends requests until it is asked to stop.
    async fn run(&self, part: &Part) {
        let mut terminated = signal(SignalKind::terminate()).unwrap();
        let askers: Vec<_> =
            (0..part.at_once).map(|asker| tokio::spawn(self.ask(part.clone(), asker))).collect();
        let (engine, clock) = (Arc::clone(&self.engine), self.clock.clone());
        let stopped = Arc::clone(&self.stopped);
        let tending = tokio::spawn(async move {
            // Not aborted: what it is about to return would be lost.
            while !stopped.load(Ordering::Relaxed) {
                tokio::time::sleep(MAINTAIN_EVERY).await;
                engine.store().maintain(clock.now()).await;
            }
        });
        terminated.recv().await.unwrap();
        self.stopped.store(true, Ordering::Relaxed);
        for asker in askers {
            asker.await.unwrap();
        }
        tending.await.unwrap();
        self.engine.store().close(self.clock.now()).await;
        let report = self.engine.store().report();
        let printed = [report.held, report.lease_hits, report.acquired, report.returned, report.stranded];
        say(&format!("shutdown_report {}", printed.map(|number| number.to_string()).join(" ")));
    }

    /// One of its clients, which waits for each answer.
    fn ask(&self, part: Part, asker: u32) -> impl Future<Output = ()> + Send + use<> {
        let (engine, clock) = (Arc::clone(&self.engine), self.clock.clone());
        let (ledger, stopped) = (Arc::clone(&self.ledger), Arc::clone(&self.stopped));
        let mut random = u64::from(part.node) << 32 | u64::from(asker) | 1 << 60;
        async move {
            let mut beat = tokio::time::interval(Duration::from_secs(1) * part.at_once / part.rate);
            while !stopped.load(Ordering::Relaxed) {
                beat.tick().await;
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let kind = part.kinds.start + usize::try_from(random % part.kinds.len() as u64).unwrap();
                let request = CheckRequest::new().with("kind", KINDS[kind].name).unwrap();
                let request = request.with("key", "one").unwrap();
                let sent = wall();
                let decision = engine.check(&request, clock.now()).await;
                let seen = RecordedDecision {
                    key: u32::try_from(kind).unwrap(),
                    cost: 1,
                    sent,
                    replied: wall() + 1,
                    admitted: decision.is_allowed(),
                    mode: mode(&decision),
                    node: part.node,
                    late: false,
                };
                let source = decision.limits().next().unwrap().source;
                ledger.write(&Line::new(seen, source, &engine.store().report()));
            }
        }
    }
}
