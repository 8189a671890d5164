//! Places in flight that were given without the store: the store learns of them before it gives another, and one that it gave at the
//! same time is not used, so that together they are never too many.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use tollgate::algorithm::concurrency::Concurrency;
use tollgate::policy::LimitBuilder;
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{CheckRequest, Engine, MemoryStore, Quota, Secret, Ticks, Timestamp};

use super::{Dice, Fleet, source};
use crate::fixture::{NOW, asking, bucket, limit, now_or_never, permits, policy};

/// The story: a crowd met a new cluster at once. Ten permits were given without the store, whose connections were not made yet, and ten
/// more by it, since the first ten were reported only a second later, and were then not recorded.
#[test]
fn the_store_learns_of_places_before_it_gives_another() {
    for lost in [false, true] {
        let fleet = Fleet::of(1, || permits("in-flight", 10));
        fleet.see(NOW);
        let engine = &fleet.engines[0];
        let mut held = Vec::new();
        for _ in 0..10 {
            // Either the store is away, or it gives the permit and its answer is lost.
            fleet.shared.set(!lost);
            fleet.shared.unanswered.store(usize::from(lost), Ordering::SeqCst);
            let mut decision = fleet.check(0, "k", 1, NOW);
            assert!(decision.is_allowed(), "{} of 10", held.len());
            held.push(decision.take_permit().unwrap());
        }
        fleet.shared.set(false);
        fleet.shared.unanswered.store(0, Ordering::SeqCst);
        for _ in 0..10 {
            assert!(!fleet.check(0, "k", 1, NOW).is_allowed(), "ten are in flight");
        }
        // A returned permit is free again, once.
        now_or_never(engine.reservations().release(&held.pop().unwrap(), NOW)).unwrap();
        let passed = (0..10).filter(|_| fleet.check(0, "k", 1, NOW).is_allowed()).count();
        assert_eq!(passed, 1, "lost: {lost}");
    }
}

/// The story: a new server whose deadlines were missed could hold more permits than the limit has. The server did not know yet that it was alone, so its
/// share was a third, and only three of the ten permits of the store fitted into it. When the share became the whole
/// limit, it had room for the others, which were in flight. A permit counts beyond the share, too.
#[test]
fn a_growing_share_has_no_room_for_permits_in_flight() {
    let fleet = Fleet::counting(1, 0, || policy(vec![permits("in-flight", 10)]));
    let mut held = Vec::new();
    for _ in 0..9 {
        held.push(fleet.check(0, "k", 1, NOW).take_permit().expect("the store gives nine"));
    }
    fleet.nodes.store(1, Ordering::SeqCst);
    fleet.see(NOW);
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 1, NOW).is_allowed(), "the tenth is this node's");
    assert!(!fleet.check(0, "k", 1, NOW).is_allowed(), "ten are in flight");
    let _ = now_or_never(fleet.engines[0].reservations().release(&held.pop().unwrap(), NOW));
    assert!(fleet.check(0, "k", 1, NOW).is_allowed(), "one has left");
    assert!(!fleet.check(0, "k", 1, NOW).is_allowed());
}

/// A permit with more units than this node's share counts in full, too.
#[test]
fn a_permit_larger_than_the_share_fills_it() {
    let quota = || Quota::Concurrency(Concurrency::new(10, Ticks::from_secs(60)).expect("valid"));
    let fleet = Fleet::counting(1, 2, || policy(vec![limit("in-flight", quota())]));
    let mut large = fleet.check(0, "k", 7, NOW);
    assert!(large.is_allowed());
    fleet.shared.set(true);
    assert!(!fleet.check(0, "k", 1, NOW).is_allowed(), "seven of five are in flight");
    let permit = large.take_permit().unwrap();
    let _ = now_or_never(fleet.engines[0].reservations().release(&permit, NOW));
    let passed = (0..8).filter(|_| fleet.check(0, "k", 1, NOW).is_allowed()).count();
    assert_eq!(passed, 5, "this node's share");
}

/// A permit that is reported twice counts once.
#[test]
fn a_permit_counts_once_however_often_it_is_reported() {
    let fleet = Fleet::of(1, || permits("in-flight", 3));
    fleet.see(NOW);
    fleet.shared.unanswered.store(1, Ordering::SeqCst);
    let mut decision = fleet.check(0, "k", 1, NOW);
    assert_eq!((decision.is_allowed(), source(&decision)), (true, "local"));
    fleet.settle(NOW);
    let left = now_or_never(fleet.engines[0].operator().peek(&asking("k", 1), NOW));
    assert_eq!(left.limits().next().unwrap().outcome.remaining, 2);
    now_or_never(fleet.engines[0].reservations().release(&decision.take_permit().unwrap(), NOW)).unwrap();
    let left = now_or_never(fleet.engines[0].operator().peek(&asking("k", 1), NOW));
    assert_eq!(left.limits().next().unwrap().outcome.remaining, 3);
}

/// The fault of a store.
#[derive(Default)]
struct Wrong {
    /// Answers to charges are held up after what they are about was done.
    holds_answers: AtomicBool,
    /// Debits are held up before they are done.
    holds_debits: AtomicBool,
    /// Debits are lost on the way there.
    loses_debits: AtomicBool,
    is_down: AtomicBool,
}

#[derive(Clone)]
struct Crossing {
    memory: Arc<MemoryStore>,
    wrong: Arc<Wrong>,
}

impl Crossing {
    fn new() -> Self {
        Self { memory: Arc::new(MemoryStore::new(1 << 20, NOW)), wrong: Arc::default() }
    }
}

/// Waits as long as something is so.
async fn while_set(flag: &AtomicBool) {
    poll_fn(|_| if flag.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(()) }).await;
}

impl Store for Crossing {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        if self.wrong.is_down.load(Ordering::SeqCst) {
            return Err(StoreFailure::Unreachable);
        }
        let answers = self.memory.charge(charges, now).await?;
        while_set(&self.wrong.holds_answers).await;
        Ok(answers)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.reset(charges, now).await
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        while_set(&self.wrong.holds_debits).await;
        if self.wrong.loses_debits.load(Ordering::SeqCst) {
            return Err(StoreFailure::Unanswered);
        }
        self.memory.debit(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }

    fn nodes(&self) -> u32 {
        1
    }
}

/// One server on such a store; by default with four permits for each key.
struct Server {
    engine: Engine<Crossing>,
    wrong: Arc<Wrong>,
}

impl Server {
    fn new() -> Self {
        Self::of(vec![permits("in-flight", 4)])
    }

    fn of(limits: Vec<LimitBuilder>) -> Self {
        let store = Crossing::new();
        let wrong = Arc::clone(&store.wrong);
        let engine =
            Engine::builder().policy(policy(limits)).store(store).secret(Secret::repeatable(7)).build();
        assert!(now_or_never(engine.operator().peek(&asking("k", 1), NOW)).is_allowed());
        Self { engine, wrong }
    }

    fn set(flag: &AtomicBool, to: bool) {
        flag.store(to, Ordering::SeqCst);
    }

    /// How many of so many requests pass.
    fn passed(&self, asked: usize) -> usize {
        (0..asked).filter(|_| now_or_never(self.engine.check(&asking("k", 1), NOW)).is_allowed()).count()
    }

    /// How many of six pass while the store is away.
    fn passed_alone(&self) -> usize {
        Self::set(&self.wrong.is_down, true);
        let passed = self.passed(6);
        Self::set(&self.wrong.is_down, false);
        passed
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The store gives a permit, and before its answer is here this node gives all of them without it: the first is given back, and refused.
#[test]
fn answers_that_cross_do_not_add_up() {
    let server = Server::new();
    let request = asking("k", 1);
    Server::set(&server.wrong.holds_answers, true);
    let mut crossing = pin!(server.engine.check(&request, NOW));
    assert!(poll(crossing.as_mut()).is_pending());
    assert_eq!(server.passed_alone(), 4, "all that this node has");
    Server::set(&server.wrong.holds_answers, false);
    let Poll::Ready(crossed) = poll(crossing.as_mut()) else { panic!("it was answered") };
    assert!(!crossed.is_allowed(), "four are in flight");
    assert_eq!(server.passed(3), 0, "and stay so");
}

/// The story: `concurrency: 10` held 11 on a new cluster. A permit that was being reported was on no list any more, so an
/// answer that had been given before, and was late, found nothing that it had to be counted beside.
#[test]
fn a_permit_counts_while_it_is_being_reported() {
    let server = Server::new();
    let request = asking("k", 1);
    Server::set(&server.wrong.holds_answers, true);
    let mut late = pin!(server.engine.check(&request, NOW));
    assert!(poll(late.as_mut()).is_pending());
    assert_eq!(server.passed_alone(), 4);
    Server::set(&server.wrong.holds_answers, false);
    Server::set(&server.wrong.holds_debits, true);
    let mut telling = pin!(server.engine.check(&request, NOW));
    assert!(poll(telling.as_mut()).is_pending(), "four permits are being reported");
    let Poll::Ready(late) = poll(late.as_mut()) else { panic!("it was answered") };
    assert!(!late.is_allowed(), "four are in flight");
    Server::set(&server.wrong.holds_debits, false);
    assert!(matches!(poll(telling.as_mut()), Poll::Ready(decision) if !decision.is_allowed()));
}

/// After the report, too: an earlier answer of the store is compared with the permits recorded since.
#[test]
fn a_late_answer_is_judged_beside_places_that_the_store_has_learnt_of_since() {
    let server = Server::new();
    let request = asking("k", 1);
    Server::set(&server.wrong.holds_answers, true);
    let mut late = pin!(server.engine.check(&request, NOW));
    assert!(poll(late.as_mut()).is_pending());
    assert_eq!(server.passed_alone(), 4);
    Server::set(&server.wrong.holds_answers, false);
    assert_eq!(server.passed(3), 0, "four permits were reported");
    assert_eq!(server.engine.maintenance().fallback().unwrap().deferred_held, 0);
    let Poll::Ready(late) = poll(late.as_mut()) else { panic!("it was answered") };
    assert!(!late.is_allowed(), "four are in flight");
}

/// The story: five permits of `concurrency: 4` were held. The store left one unit when it gave a permit, and its answer
/// was late. Meanwhile the store gave that unit to a later request, and this node gave one without the store. The late
/// answer was compared with what the store had left, and not with what was given since.
#[test]
fn a_late_answer_is_judged_beside_later_answers() {
    let server = Server::new();
    let request = asking("k", 1);
    assert_eq!(server.passed(2), 2, "by the store");
    Server::set(&server.wrong.holds_answers, true);
    let mut late = pin!(server.engine.check(&request, NOW));
    assert!(poll(late.as_mut()).is_pending(), "the third, which leaves one");
    Server::set(&server.wrong.holds_answers, false);
    assert_eq!(server.passed(1), 1, "by the store, which leaves none");
    assert_eq!(server.passed_alone(), 1, "this node knows of three");
    let Poll::Ready(late) = poll(late.as_mut()) else { panic!("it was answered") };
    assert!(!late.is_allowed(), "four are in flight");
    assert_eq!(server.passed(3), 0, "and stay so");
}

/// The story: a late answer that denied a request gave back units of its other limits, which it had never taken.
#[test]
fn a_denied_request_gives_nothing_back() {
    let once = bucket("once", 1).by(["other"]);
    let server = Server::of(vec![permits("in-flight", 4), bucket("units", 10), once]);
    let used = CheckRequest::new().with("other", "x").expect("valid");
    assert!(now_or_never(server.engine.check(&used, NOW)).is_allowed());
    let request = asking("k", 1).with("other", "x").expect("valid");
    let mut held: Vec<_> = (0..3)
        .map(|_| {
            now_or_never(server.engine.check(&asking("k", 1), NOW)).take_permit().expect("the store gives it")
        })
        .collect();
    Server::set(&server.wrong.holds_answers, true);
    let mut late = pin!(server.engine.check(&request, NOW));
    assert!(poll(late.as_mut()).is_pending(), "denied by `once`, while one permit is left");
    Server::set(&server.wrong.holds_answers, false);
    for permit in held.drain(..2) {
        now_or_never(server.engine.reservations().release(&permit, NOW)).unwrap();
    }
    assert_eq!(server.passed_alone(), 3);
    assert!(matches!(poll(late.as_mut()), Poll::Ready(decision) if !decision.is_allowed()));
    now_or_never(server.engine.maintenance().reconcile(NOW)).unwrap();
    let left = now_or_never(server.engine.operator().peek(&asking("k", 1), NOW));
    let units = left.limits().find(|status| status.limit.name() == "units").unwrap();
    assert_eq!(units.outcome.remaining, 4, "six of ten are used");
}

/// The story: with a deadline of a millisecond the report of a permit was often lost, and then dropped as units
/// are, which must not be reported twice. A permit has an id: it stays on the list until the store has recorded it.
#[test]
fn a_permit_is_reported_until_the_store_has_recorded_it() {
    let server = Server::new();
    assert_eq!(server.passed_alone(), 4);
    Server::set(&server.wrong.loses_debits, true);
    assert_eq!(server.passed(8), 0, "the store knows of none of the four, and gives none");
    assert!(now_or_never(server.engine.maintenance().reconcile(NOW)).is_err());
    assert_eq!(server.engine.maintenance().fallback().unwrap().deferred_held, 4);
    Server::set(&server.wrong.loses_debits, false);
    assert_eq!(server.passed(8), 0);
    assert_eq!(server.engine.maintenance().fallback().unwrap().deferred_held, 0);
    assert_eq!(server.engine.maintenance().fallback().unwrap().deferred_dropped, 0);
}

/// A store that loses what it is asked and what it answers, at random.
#[derive(Clone)]
struct Lossy {
    memory: Arc<MemoryStore>,
    dice: Arc<Mutex<Dice>>,
    lost: Arc<AtomicUsize>,
    nodes: u32,
}

impl Lossy {
    fn roll(&self, most: u64) -> u64 {
        self.dice.lock().expect("no thread panics").below(most)
    }

    /// Lets others go first now and then, and tells whether something is lost.
    fn is_lost(&self) -> bool {
        for _ in 0..self.roll(4) {
            thread::yield_now();
        }
        let is_lost = self.roll(3) == 0;
        self.lost.fetch_add(usize::from(is_lost), Ordering::SeqCst);
        is_lost
    }

    fn there(&self) -> Result<(), StoreFailure> {
        if self.is_lost() { Err(StoreFailure::Unanswered) } else { Ok(()) }
    }
}

impl Store for Lossy {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.there()?;
        let answers = self.memory.charge(charges, now).await?;
        self.there()?;
        Ok(answers)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.there()?;
        self.memory.refund(charges, now).await?;
        self.there()
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.reset(charges, now).await
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.there()?;
        self.memory.debit(charges, now).await?;
        self.there()
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }
}

/// Under any loss, delay and order of messages, one server never holds more permits than the limit has, whether its share
/// is all of the limit or a part.
#[test]
fn one_server_never_holds_more_places_than_the_limit() {
    const LIMIT: usize = 5;
    let mut lost = 0;
    for (seed, nodes) in (1..=80).zip([1, 3].into_iter().cycle()) {
        let memory = Arc::new(MemoryStore::new(1 << 20, NOW));
        let store = Lossy { memory, dice: Arc::new(Mutex::new(Dice(seed))), lost: Arc::default(), nodes };
        let counted = Arc::clone(&store.lost);
        let engine = Engine::builder()
            .policy(policy(vec![permits("in-flight", 5)]))
            .store(store)
            .secret(Secret::repeatable(7))
            .build();
        let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 1..=8 {
                let (engine, held, most) = (&engine, &held, &most);
                scope.spawn(move || {
                    let (mut dice, mut mine) = (Dice(seed * 100 + number), Vec::new());
                    for _ in 0..60 {
                        let mut decision = now_or_never(engine.check(&asking("k", 1), NOW));
                        if let Some(permit) = decision.take_permit().filter(|_| decision.is_allowed()) {
                            most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            mine.push(permit);
                        }
                        if dice.below(3) == 0 && !mine.is_empty() {
                            let permit =
                                mine.swap_remove(usize::try_from(dice.below(mine.len() as u64)).unwrap());
                            held.fetch_sub(1, Ordering::SeqCst);
                            let _ = now_or_never(engine.reservations().release(&permit, NOW));
                        }
                    }
                });
            }
        });
        lost += counted.load(Ordering::SeqCst);
        assert!(most.load(Ordering::SeqCst) <= LIMIT, "seed {seed}: {most:?} were held");
    }
    assert!(lost > 1_000, "the fault was seen {lost} times");
}
