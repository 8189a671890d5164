//! A fleet whose store is away: what all nodes together admit, in which order limits open, count by themselves and close, and what the
//! store gets afterwards. All of it in virtual time, on a store that fails on command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use tollgate::policy::LimitBuilder;
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{Decision, Engine, MemoryStore, Policy, Secret, Ticks, Timestamp};

use crate::fixture::{NOW, asking, now_or_never, policy};

mod bounds;
mod deferred;
mod stages;
mod parts;
mod permits;

/// Into how many parts a store is divided.
const PARTS: usize = 4;

/// The counters that a fleet shares, and what is wrong with them.
struct Shared {
    memory: MemoryStore,
    down: [AtomicBool; PARTS],
    /// Whether it answers, and says that it is not well yet.
    unwell: AtomicBool,
    /// How many calls are yet to be done without an answer.
    unanswered: AtomicUsize,
    /// After how many calls all of it goes away; never while this is 0.
    lasts: AtomicUsize,
    /// Whether debits are believed and not made: what a fleet would do without them.
    forgets_debits: AtomicBool,
    debits: AtomicUsize,
    failures: AtomicUsize,
}

/// One node's way to them.
#[derive(Clone)]
struct Node {
    shared: Arc<Shared>,
    /// Whether this node alone cannot reach the store.
    cut: Arc<AtomicBool>,
    nodes: Arc<AtomicU32>,
    /// How long the store says that it has been away, in microseconds; nothing while this is the largest number.
    away: Arc<AtomicU64>,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(4 << 20, NOW),
            down: Default::default(),
            unwell: AtomicBool::new(false),
            unanswered: AtomicUsize::new(0),
            lasts: AtomicUsize::new(0),
            forgets_debits: AtomicBool::new(false),
            debits: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
        })
    }

    fn part(charge: &Charge<'_>) -> usize {
        usize::try_from(charge.key() % PARTS as u128).expect("it is small")
    }

    fn set(&self, down: bool) {
        self.down.iter().for_each(|part| part.store(down, Ordering::SeqCst));
    }
}

impl Node {
    fn fails(&self, charge: &Charge<'_>) -> bool {
        self.cut.load(Ordering::SeqCst) || self.shared.down[Shared::part(charge)].load(Ordering::SeqCst)
    }

    fn reach(&self, charges: &[Charge<'_>]) -> Result<(), StoreFailure> {
        if charges.iter().any(|charge| self.fails(charge)) {
            self.shared.failures.fetch_add(1, Ordering::SeqCst);
            return Err(StoreFailure::Unreachable);
        }
        let lasts = &self.shared.lasts;
        if lasts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |calls| calls.checked_sub(1)) == Ok(1) {
            self.shared.set(true); // This call is the last that it answers.
        }
        Ok(())
    }

    /// The answer, unless it is to be lost.
    fn answer<T>(&self, answer: T) -> Result<T, StoreFailure> {
        let lost =
            self.shared.unanswered.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if lost.is_ok() { Err(StoreFailure::Unanswered) } else { Ok(answer) }
    }
}

impl Store for Node {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.reach(charges)?;
        let answers = self.shared.memory.charge(charges, now).await?;
        self.answer(answers)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.reach(charges)?;
        self.shared.memory.refund(charges, now).await?;
        self.answer(())
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.reach(charges)?;
        self.shared.memory.reset(charges, now).await?;
        self.answer(())
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.reach(charges)?;
        self.shared.debits.fetch_add(charges.len(), Ordering::SeqCst);
        if !self.shared.forgets_debits.load(Ordering::SeqCst) {
            self.shared.memory.debit(charges, now).await?;
        }
        self.answer(())
    }

    fn hold(&self, hold: &Hold) {
        self.shared.memory.hold(hold);
    }

    fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::SeqCst)
    }

    fn away_for(&self, _: &Charge<'_>, _: Timestamp) -> Option<Ticks> {
        let micros = self.away.load(Ordering::SeqCst);
        (micros < u64::MAX).then(|| Ticks::from_micros(micros))
    }

    fn is_away(&self, charge: &Charge<'_>) -> bool {
        self.fails(charge) || self.shared.unwell.load(Ordering::SeqCst)
    }
}

/// Several engines on one store.
struct Fleet {
    shared: Arc<Shared>,
    engines: Vec<Engine<Node>>,
    nodes: Arc<AtomicU32>,
    cuts: Vec<Arc<AtomicBool>>,
    away: Arc<AtomicU64>,
}

impl Fleet {
    fn new(nodes: u32, policies: impl Fn() -> Policy) -> Self {
        Self::counting(nodes, nodes, policies)
    }

    /// A fleet of so many nodes in which the store counts another number of them.
    fn counting(nodes: u32, counted: u32, policies: impl Fn() -> Policy) -> Self {
        let (shared, count) = (Shared::new(), Arc::new(AtomicU32::new(counted)));
        let (mut engines, mut cuts) = (Vec::new(), Vec::new());
        let away = Arc::new(AtomicU64::new(u64::MAX));
        for _ in 0..nodes {
            let cut = Arc::new(AtomicBool::new(false));
            let (shared, nodes, away) = (Arc::clone(&shared), Arc::clone(&count), Arc::clone(&away));
            let store = Node { shared, cut: Arc::clone(&cut), nodes, away };
            engines.push(
                Engine::builder().policy(policies()).store(store).secret(Secret::repeatable(7)).build(),
            );
            cuts.push(cut);
        }
        Self { shared, engines, nodes: count, cuts, away }
    }

    fn of(nodes: u32, limit: impl Fn() -> LimitBuilder) -> Self {
        Self::new(nodes, || policy(vec![limit()]))
    }

    fn check(&self, node: usize, key: &str, cost: u64, now: Timestamp) -> Decision {
        now_or_never(self.engines[node].check(&asking(key, cost), now))
    }

    /// Has every node see that the store is there.
    fn see(&self, now: Timestamp) {
        for engine in &self.engines {
            let _ = now_or_never(engine.operator().peek(&asking("unused", 1), now));
        }
    }

    fn settle(&self, now: Timestamp) {
        for engine in &self.engines {
            while now_or_never(engine.maintenance().reconcile(now)).is_ok_and(|replayed| replayed.settled > 0)
            {
            }
        }
    }
}

/// A number that follows a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most.max(1)
    }
}

fn source(decision: &Decision) -> &'static str {
    decision.limits().next().map_or("", |status| status.source.name())
}

fn after(micros: u64) -> Timestamp {
    NOW + Ticks::from_micros(micros)
}
