//! Several nodes under load, each with its own store connection, and a record of what their clients saw.
//!
//! Hot keys are requested more often than their quota allows, so that over-admission shows. Quiet keys are requested
//! less than any node's share, so that every denial is wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::Instant;
use tollgate::policy::{Consistency, Limit, Policy};
use tollgate::store::Store;
use tollgate::{CheckRequest, Clock, Decision, Engine, Quota, Rate, Source, Ticks, Timestamp};

use crate::checker::Bucket;
use crate::faults::DEADLINE;
use crate::record::{Mode, RecordedDecision, Recorder};
use tollgate_testkit::rest;

/// A decision takes at most twice its deadline.
pub(crate) const LATE: Duration = DEADLINE.saturating_mul(2);
/// Runtime polls that a decision gets beyond that before it counts as late: they are the machine's fault.
const POLLS: u32 = 32;
/// How often the load catches up with the clock.
const PACE: Duration = Duration::from_millis(2);
/// How often deferred charges are reconciled.
const SETTLE_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of decisions in flight.
const IN_FLIGHT_MAX: u64 = 4_096;

/// Quotas and load of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The quota of each hot key: about two thirds of its load.
    pub(crate) hot: Bucket,
    /// The quota of each quiet key: many times its load.
    pub(crate) quiet: Bucket,
    /// Units requested of a hot key per second.
    pub(crate) requested: u64,
    /// Units of a hot key that one node may lease.
    pub(crate) ahead: u64,
}

const QUIET: Bucket = Bucket { burst: 300, limit: 300, period: 1_000_000 };

/// Every decision asks the store.
pub(crate) const EXACT: Terms =
    Terms { hot: Bucket { burst: 20, limit: 20, period: 1_000_000 }, quiet: QUIET, requested: 30, ahead: 0 };
/// Hot keys are leased: a tenth of the burst to each node.
pub(crate) const LEASED: Terms = Terms {
    hot: Bucket { burst: 180, limit: 180, period: 1_000_000 },
    quiet: QUIET,
    requested: 270,
    ahead: 18,
};
/// The share of a limit that a node may lease, in millionths, and for how long.
const SHARE: u32 = 100_000;
pub(crate) const TTL: Ticks = Ticks::from_millis(250);

/// The load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Decisions per second of all nodes together.
    pub(crate) rate: u64,
    pub(crate) hot: u32,
    pub(crate) quiet: u32,
}

impl Load {
    /// One in ten requests is for a quiet key; each quiet key gets ten units per second.
    pub(crate) fn of(rate: u64, terms: &Terms) -> Self {
        let keys = |share: u64, each: u64| u32::try_from((rate * share / 10 / each).max(1)).unwrap();
        Self { rate, hot: keys(9, terms.requested), quiet: keys(1, 10) }
    }
}

/// The policy of every node.
pub(crate) fn policy(terms: &Terms) -> Policy {
    let quota =
        |bucket: Bucket| Quota::token_bucket(Rate::per_second(bucket.limit).burst(bucket.burst)).unwrap();
    let hot = Limit::new("hot", quota(terms.hot)).by(["hot"]);
    let hot = match terms.ahead {
        0 => hot,
        _ => hot.consistency(Consistency::Leased).lease(SHARE, TTL),
    };
    let quiet = Limit::new("quiet", quota(terms.quiet)).by(["quiet"]);
    Policy::new(vec![hot, quiet]).unwrap()
}

/// The source of a decision.
pub(crate) fn mode(decision: &Decision) -> Mode {
    let mut modes = decision.limits().map(|status| match status.source {
        Source::Exact | Source::Lease | Source::DenyCache => Mode::Exact,
        Source::Local | Source::Overflow => Mode::Local,
        Source::Open => Mode::Open,
        Source::Closed | Source::Full | Source::Policy | Source::Penalty => Mode::Closed,
    });
    modes.next().expect("each request of the rig has one limit")
}

/// The nodes.
pub(crate) struct Fleet<S> {
    pub(crate) engines: Vec<Arc<Engine<S>>>,
    pub(crate) terms: Terms,
    /// Twice the deadline of its decisions.
    pub(crate) late: Duration,
    /// The clock error of each node, in microseconds.
    pub(crate) skews: Vec<i64>,
    clock: Clock,
}

impl<S: Store + 'static> Fleet<S> {
    pub(crate) fn new(engines: Vec<Engine<S>>) -> Self {
        Self::of(engines.into_iter().map(Arc::new).collect())
    }

    pub(crate) fn of(engines: Vec<Arc<Engine<S>>>) -> Self {
        let skews = vec![0; engines.len()];
        Self { engines, terms: EXACT, late: LATE, skews, clock: Clock::precise() }
    }

    /// The clock of each node.
    pub(crate) fn clocks(&self) -> Vec<NodeClock> {
        self.skews.iter().map(|&skew| NodeClock { clock: self.clock.clone(), skew }).collect()
    }

    /// Starts a load in the background, on keys of its own.
    pub(crate) fn ask(&self, runtime: &Runtime, run: &str, load: Load) -> Running {
        let _inside = runtime.enter();
        let running = Running {
            recorder: Arc::new(Recorder::start()),
            stopped: Arc::new(AtomicBool::new(false)),
            in_flight: Arc::new(AtomicU64::new(0)),
            skipped: Arc::new(AtomicU64::new(0)),
        };
        let nodes = self.engines.len() as u64;
        for ((node, engine), clock) in (0..).zip(&self.engines).zip(self.clocks()) {
            let asker = LoadClient {
                engine: Arc::clone(engine),
                clock: clock.clone(),
                running: running.clone(),
                node,
                nodes,
                run: run.into(),
                load,
                late: self.late,
            };
            runtime.spawn(settle(Arc::clone(engine), clock, running.clone()));
            runtime.spawn(asker.run());
        }
        running
    }
}

/// A node's clock, which may be wrong.
#[derive(Clone)]
pub(crate) struct NodeClock {
    clock: Clock,
    skew: i64,
}

impl NodeClock {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_unix_micros(self.clock.now().unix_micros().saturating_add_signed(self.skew))
    }
}

/// A running load.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) recorder: Arc<Recorder>,
    stopped: Arc<AtomicBool>,
    in_flight: Arc<AtomicU64>,
    pub(crate) skipped: Arc<AtomicU64>,
}

impl Running {
    /// Stops the load, waits for the last answers, and returns the record.
    pub(crate) fn stop(self) -> Vec<RecordedDecision> {
        self.stopped.store(true, Ordering::Relaxed);
        for _ in 0..500 {
            if self.in_flight.load(Ordering::Acquire) == 0 {
                return self.recorder.since(0);
            }
            rest(Duration::from_millis(20));
        }
        panic!("{} decisions were never answered", self.in_flight.load(Ordering::Acquire));
    }
}

/// Reconciles the node's deferred charges periodically, as a server does.
async fn settle<S: Store + 'static>(engine: Arc<Engine<S>>, clock: NodeClock, running: Running) {
    while !running.stopped.load(Ordering::Relaxed) {
        tokio::time::sleep(SETTLE_EVERY).await;
        // A failed attempt is repeated the next time.
        let _ = engine.maintenance().reconcile(clock.now()).await;
    }
}

/// The clients of one node.
struct LoadClient<S> {
    engine: Arc<Engine<S>>,
    clock: NodeClock,
    running: Running,
    node: u8,
    nodes: u64,
    run: Arc<str>,
    load: Load,
    late: Duration,
}

impl<S: Store + 'static> LoadClient<S> {
    /// Sends requests at its share of the rate, whatever the answers.
    async fn run(self) {
        let (start, mut sent) = (Instant::now(), 0);
        let mut beat = tokio::time::interval(PACE);
        while !self.running.stopped.load(Ordering::Relaxed) {
            beat.tick().await;
            let micros = u64::try_from(start.elapsed().as_micros()).unwrap();
            let due = micros * self.load.rate / self.nodes / 1_000_000;
            while sent < due {
                sent += 1;
                if self.running.in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
                    self.running.skipped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                self.running.in_flight.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(self.request(sent));
            }
        }
    }

    /// One request. Nodes use the same keys, each in its own order.
    fn request(&self, number: u64) -> impl Future<Output = ()> + Send + use<S> {
        let (engine, clock) = (Arc::clone(&self.engine), self.clock.clone());
        let (running, node, late) = (self.running.clone(), self.node, self.late);
        let quiet = number.is_multiple_of(10);
        let turn = if quiet { number / 10 } else { number - number / 10 };
        let keys = u64::from(if quiet { self.load.quiet } else { self.load.hot });
        let key = u32::try_from((turn + u64::from(node) * 7) % keys).unwrap();
        let name = format!("{}-{key}", self.run);
        async move {
            let kind = if quiet { "quiet" } else { "hot" };
            let request = CheckRequest::new().with(kind, &name).unwrap();
            let sent = running.recorder.now();
            let (decision, late) = watched(engine.check(&request, clock.now()), late).await;
            running.recorder.add(RecordedDecision {
                key: if quiet { key | QUIET_BIT } else { key },
                cost: 1,
                sent,
                replied: running.recorder.now() + 1,
                admitted: decision.is_allowed(),
                mode: mode(&decision),
                node,
                late,
            });
            running.in_flight.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Marks the quiet keys in a record.
pub(crate) const QUIET_BIT: u32 = 1 << 31;

/// Waits for a decision and returns whether it was late. The decision is polled first and gets some more polls, so that
/// a stalled machine does not make it late.
async fn watched<T>(decision: impl Future<Output = T>, timeout: Duration) -> (T, bool) {
    let limit = Instant::now() + timeout;
    let mut decision = std::pin::pin!(decision);
    let late = async {
        tokio::time::sleep_until(limit).await;
        for _ in 0..POLLS {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = &mut decision => return (done, false),
        () = late => {}
    }
    (decision.await, true)
}
