//! Places in flight are kept for as long as their holders live, however long that is: one timer of a layer renews all of them. A process that
//! crashes renews nothing, and its places come back when they expire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::task::JoinSet;
use tollgate::{Permit, Ticks, Timestamp};

use crate::background::run;
use crate::decide::Decide;

/// A place is renewed after this part of its life, and looked after twice as often, so that a store may be away for a while.
const PART: u64 = 3;
/// The shortest time between two rounds.
const ROUND_MIN: Ticks = Ticks::from_micros(10_000);
/// How often it is seen whether the policy has changed: one that lets places live for less cuts the life of those that are held.
const LOOK: Ticks = Ticks::from_micros(100_000);
/// Places that are renewed at the same time.
const AT_ONCE: usize = 32;

/// All places in flight that requests of a layer hold.
pub(crate) struct Keeper<D> {
    pub(crate) decide: Arc<D>,
    /// Locked for as long as it takes to look a number up, and never while anybody is waited for.
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    kept: HashMap<u64, Kept>,
    /// How often rounds are made, while anybody makes them.
    round: Option<Ticks>,
    /// Who makes them; others that still sleep go when they wake.
    turn: u64,
    /// What the engine had changed when everything was last renewed, or taken.
    changes: u64,
}

struct Kept {
    permit: Arc<Permit>,
    ttl: Ticks,
    renew_at: Timestamp,
}

/// A place that is kept until this is dropped, and free then.
pub(crate) struct Place<D: Decide> {
    keeper: Arc<Keeper<D>>,
    permit: Arc<Permit>,
}

impl<D: Decide> Keeper<D> {
    pub(crate) fn new(decide: Arc<D>) -> Self {
        Self { decide, book: Mutex::default() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a decision gave at this instant, or a little before.
    pub(crate) fn keep(keeper: &Arc<Self>, permit: Permit) -> Place<D> {
        // By the policy that is in force now, which may be younger than the decision.
        let (ttl, permit) = (keeper.decide.engine().renewed_for(&permit), Arc::new(permit));
        let renew_at = keeper.decide.now() + part(ttl, PART);
        let round = part(ttl, 2 * PART).max(ROUND_MIN);
        let kept = Kept { permit: Arc::clone(&permit), ttl, renew_at };
        let mut book = keeper.book();
        book.kept.insert(permit.id().0, kept);
        // Without a runtime nobody can make rounds, and a place ends when it expires.
        if book.round.is_none() {
            book.changes = keeper.decide.engine().changes();
        }
        if book.round.is_none_or(|current| round < current)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            book.round = Some(round);
            book.turn += 1;
            runtime.spawn(make_rounds(Arc::downgrade(keeper), book.turn));
        }
        drop(book);
        Place { keeper: Arc::clone(keeper), permit }
    }

    /// When the next round is due; none if nobody holds anything, or another makes the rounds.
    fn next_round(&self, turn: u64) -> Option<Timestamp> {
        let mut book = self.book();
        if book.turn != turn {
            return None;
        }
        let least = book.kept.values().map(|kept| kept.ttl).min();
        book.round = least.map(|ttl| part(ttl, 2 * PART).max(ROUND_MIN));
        book.round.map(|round| self.decide.now() + round)
    }

    /// Whether the policy has changed since somebody looked; then everything is due.
    fn has_changed(&self) -> bool {
        let changes = self.decide.engine().changes();
        let now = self.decide.now();
        let mut book = self.book();
        let has_changed = book.changes != changes;
        if has_changed {
            book.changes = changes;
            book.kept.values_mut().for_each(|kept| kept.renew_at = now);
        }
        has_changed
    }

    /// Renews what is due. What the store does not answer is due again in the next round.
    async fn renew_due(self: Arc<Self>) {
        let now = self.decide.now();
        let due: Vec<Arc<Permit>> = {
            let book = self.book();
            book.kept
                .values()
                .filter(|kept| kept.renew_at <= now)
                .map(|kept| Arc::clone(&kept.permit))
                .collect()
        };
        let mut renewing = JoinSet::new();
        for permit in due {
            if renewing.len() >= AT_ONCE {
                renewing.join_next().await;
            }
            let keeper = Arc::clone(&self);
            renewing.spawn(async move { keeper.renew(&permit).await });
        }
        while renewing.join_next().await.is_some() {}
    }

    async fn renew(&self, permit: &Permit) {
        let now = self.decide.now();
        let ttl = self.decide.engine().renewed_for(permit);
        if self.decide.engine().renew(permit, now).await.is_ok()
            && let Some(kept) = self.book().kept.get_mut(&permit.id().0)
        {
            (kept.ttl, kept.renew_at) = (ttl, now + part(ttl, PART));
        }
    }
}

impl<D: Decide> Drop for Place<D> {
    fn drop(&mut self) {
        self.keeper.book().kept.remove(&self.permit.id().0);
        let (decide, permit) = (Arc::clone(&self.keeper.decide), Arc::clone(&self.permit));
        run(async move {
            // A store that does not answer lets the permit expire.
            let _ = decide.engine().release(&permit, decide.now()).await;
        });
    }
}

/// Renews what is due, again and again, until nobody holds anything.
async fn make_rounds<D: Decide>(keeper: Weak<Keeper<D>>, turn: u64) {
    loop {
        let Some(at) = keeper.upgrade().and_then(|keeper| keeper.next_round(turn)) else { return };
        loop {
            let sleep = {
                let Some(keeper) = keeper.upgrade() else { return };
                let now = keeper.decide.now();
                if keeper.has_changed() || now >= at {
                    break;
                }
                keeper.decide.sleep_until(at.min(now + LOOK))
            };
            sleep.await;
        }
        let Some(keeper) = keeper.upgrade() else { return };
        keeper.renew_due().await;
    }
}

fn part(ttl: Ticks, parts: u64) -> Ticks {
    Ticks::from_micros(ttl.as_micros() / parts)
}
