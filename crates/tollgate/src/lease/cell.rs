//! What a node holds and knows of one key. Spending takes no lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::Loan;
use super::crowd::Want;
use super::denials::Denials;
use super::draws::{Draw as Drawn, Draws};
use super::share::{Brought, Draw, Share};
use super::size::Demand;
use super::turn::Turn;
use crate::charge::Charge;
use crate::outcome::{Outcome, Verdict};
use crate::policy::Lease;
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// How long a denial is remembered at most: what another node gave back or reset is known within that.
const DENIAL_MAX: Ticks = Ticks::from_millis(900);
/// Fewer units than this are not drawn ahead of time: whoever asks next would do as well by himself.
const SIZE_MIN: u64 = 2;
/// What is added to a remembered retry time, since the store said it a little later than it was asked.
const WAY: Ticks = Ticks::from_millis(1);

/// Spent units are told of as soon as they are so small a part of a lease.
const NEWS: u64 = 4;

/// One key.
pub(super) struct Cell<R> {
    /// The quota's number in its family: under another quota nothing of this counts.
    pub(super) number: u32,
    /// Whose counter it is.
    pub(super) family: u64,
    pub(super) lease: Lease,
    units: AtomicU64,
    /// What `units` would be if only that had been spent which an answer has told of. It follows `units`, so that spending writes one word.
    heard: AtomicU64,
    /// Until when units may be spent.
    ends: AtomicU64,
    /// Which lease they are of: another once all of them were taken out, and the same however often it is renewed.
    generation: AtomicU64,
    /// When the oldest of them was drawn, by the counter's clock.
    drawn_at: AtomicU64,
    /// Whether the counter was reset that they were taken of: then they go nowhere.
    is_forgotten: AtomicBool,
    /// The size of the last draw, by which one tells when it runs out.
    size: AtomicU64,
    /// Whether the last draw brought less than was wanted.
    is_scarce: AtomicBool,
    /// Whether it is no longer in the book: what a draw brings it then goes back.
    is_gone: AtomicBool,
    /// Whether it is already noted to be renewed.
    pub(super) is_wanted: AtomicBool,
    demand: AtomicU64,
    /// Units that others wait for.
    waiting: AtomicU64,
    /// Where units are counted that were asked for and not heard of again, of all keys.
    pub(super) lost: Arc<AtomicU64>,
    told: Told,
    denials: Denials,
    inner: Mutex<Inner<R>>,
}

/// What a draw was for.
#[derive(Clone, Copy)]
pub(super) struct Asked<'q> {
    pub(super) quota: &'q Quota,
    pub(super) cost: u64,
    /// What was wanted beyond that.
    pub(super) want: Want,
    /// When it was asked for.
    pub(super) sent: Timestamp,
    /// Whether all counters of the request let it pass.
    pub(super) is_admitted: bool,
}

/// What names the units that a request spends, if it has to put them back.
#[derive(Clone, Copy, Default)]
pub(super) struct Spent {
    /// The lease that they are of; 0 for none.
    generation: u64,
    /// When the oldest of those that were held was drawn: no unit is older.
    pub(super) drawn_at: Timestamp,
}

/// Units that go back, and what it takes to give them back.
pub(super) struct Leftover<R> {
    pub(super) receipt: R,
    pub(super) units: u64,
    pub(super) drawn_at: Timestamp,
}

/// All that a cell held.
pub(super) struct Taken<R> {
    pub(super) leftovers: Vec<Leftover<R>>,
    /// Units that cannot go back.
    pub(super) stranded: u64,
}

/// What the store last said.
#[derive(Default)]
struct Told {
    remaining: AtomicU64,
    next_at: AtomicU64,
    reset_at: AtomicU64,
}

/// What changes together.
pub(super) struct Inner<R> {
    pub(super) is_drawing: bool,
    /// Draws that have begun, and the number of the last one that brought no answer.
    pub(super) begun: u64,
    pub(super) failed: u64,
    /// The number of the last one that ended, and whether the counter was found empty.
    pub(super) ended: u64,
    is_empty: bool,
    pub(super) wakers: Vec<Waker>,
    pub(super) receipt: Option<R>,
    /// Which window the units are of; 0 where there are none.
    window: u64,
    draws: Draws,
    demand: Demand,
    share: Share,
}

impl<R: Clone> Cell<R> {
    pub(super) fn new(charge: &Charge<'_>, lease: Lease, lost: &Arc<AtomicU64>, now: Timestamp) -> Self {
        let inner = Inner {
            is_drawing: false,
            begun: 0,
            failed: 0,
            ended: 0,
            is_empty: false,
            wakers: Vec::new(),
            receipt: None,
            window: 0,
            draws: Draws::default(),
            demand: Demand::new(now),
            share: Share::default(),
        };
        Self {
            number: charge.number(),
            family: charge.family().id(),
            lease,
            units: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            ends: AtomicU64::new(0),
            generation: AtomicU64::new(1),
            drawn_at: AtomicU64::new(0),
            is_forgotten: AtomicBool::new(false),
            size: AtomicU64::new(0),
            is_scarce: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            demand: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            lost: Arc::clone(lost),
            told: Told::default(),
            denials: Denials::default(),
            inner: Mutex::new(inner),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner<R>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is what is held for such a charge: of its quota, within the bounds that its limit has now.
    #[inline]
    pub(super) fn is_of(&self, charge: &Charge<'_>) -> bool {
        self.number == charge.number() && charge.lease() == Some(self.lease)
    }

    /// Whether it is no longer in the book.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// It is no longer in the book. Said before what it holds is taken out of it, so that what comes later is found.
    pub(super) fn goes(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// The units that are held.
    pub(super) fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Whether it was asked about so often, when it was last drawn, that units were wanted ahead of time.
    pub(super) fn is_leased(&self) -> bool {
        self.size.load(Ordering::Relaxed) >= SIZE_MIN
    }

    pub(super) fn has_ended(&self, now: Timestamp) -> bool {
        self.ends.load(Ordering::Acquire) <= now.unix_micros()
    }

    pub(super) fn can_spend(&self, cost: u64, now: Timestamp) -> bool {
        self.units() >= cost && !self.has_ended(now)
    }

    /// Takes units of what is held, all or none. Tells how many are left.
    pub(super) fn spend(&self, cost: u64, now: Timestamp) -> Option<u64> {
        if self.has_ended(now) {
            return None;
        }
        let taken =
            self.units.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |units| units.checked_sub(cost));
        let before = taken.ok()?;
        self.demand.fetch_add(cost, Ordering::Relaxed);
        Some(before - cost)
    }

    /// Whether so few are left that it is time to draw again. Not where the last draw brought less than was wanted: who draws ahead
    /// then takes what others wait for.
    pub(super) fn runs_out(&self, left: u64) -> bool {
        left.saturating_mul(4) < self.size.load(Ordering::Relaxed)
            && !self.is_scarce.load(Ordering::Relaxed)
            && !self.is_wanted.swap(true, Ordering::Relaxed)
    }

    /// Puts back what was spent in vain, unless it was of a lease that has ended since.
    pub(super) fn put(&self, cost: u64, spent: Spent) {
        let mut inner = self.lock();
        if self.generation.load(Ordering::Relaxed) == spent.generation {
            let held = self.units.fetch_add(cost, Ordering::AcqRel) + cost;
            inner.draws.put_back(spent.drawn_at, held);
            self.drawn_at.store(inner.draws.oldest().unix_micros(), Ordering::Release);
        }
        let less = |demand: u64| Some(demand.saturating_sub(cost));
        let _ = self.demand.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Units that come to be held. Called under the lock.
    fn add(&self, units: u64) {
        // In this order, so that who sees the second sees the first: nothing is told that was not spent.
        self.units.fetch_add(units, Ordering::AcqRel);
        self.heard.fetch_add(units, Ordering::AcqRel);
    }

    /// Units that are held no more: all of them. Called under the lock.
    fn take(&self) -> u64 {
        // In the other order, for the same reason.
        let heard = self.heard.swap(0, Ordering::AcqRel);
        let units = self.units.swap(0, Ordering::AcqRel);
        self.heard.fetch_add(heard.saturating_sub(units), Ordering::AcqRel);
        // Whoever spent of them and comes to put back finds another lease.
        self.generation.fetch_add(1, Ordering::AcqRel);
        units
    }

    /// The units that were spent and that no answer has told of: all of them when they are the [`NEWS`]-th part of a lease, else none.
    pub(super) fn news(&self) -> u32 {
        // Acquire, and before the other: what was added to it is then in both.
        let heard = self.heard.load(Ordering::Acquire);
        let spent = heard.saturating_sub(self.units());
        if spent == 0 || spent < self.size.load(Ordering::Relaxed) / NEWS {
            return 0;
        }
        let told = u32::try_from(spent).unwrap_or(u32::MAX);
        let left = heard - u64::from(told);
        // Whoever comes first tells it.
        let is_first = self.heard.compare_exchange(heard, left, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_first { told } else { 0 }
    }

    /// The units that were spent and that no answer will tell of any more. Of a cell that is gone.
    pub(super) fn untold(&self) -> u64 {
        let _inner = self.lock();
        let units = self.units();
        self.heard.swap(units, Ordering::AcqRel).saturating_sub(units)
    }

    /// Takes over what another cell of the key did not tell. Before anybody spends of it.
    pub(super) fn inherits(&self, untold: u64) {
        self.heard.fetch_add(untold, Ordering::AcqRel);
    }

    /// What names the units that are about to be spent. Asked before they are: what is drawn in between is later than told.
    pub(super) fn spending(&self) -> Spent {
        let generation = self.generation.load(Ordering::Acquire);
        let drawn_at = Timestamp::from_unix_micros(self.drawn_at.load(Ordering::Acquire));
        Spent { generation, drawn_at }
    }

    /// The counter was reset: what is held of it, and what a draw that is under way brings, goes nowhere.
    pub(super) fn forgets(&self) {
        self.is_forgotten.store(true, Ordering::Release);
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Acquire)
    }

    /// Hands what it holds to the cell of another quota of the same counter, up to so many. They were debited, and what is in force now
    /// counts on from there. Not units of a window: a quota may have other windows. Tells how many were not taken.
    pub(super) fn hand_over(&self, to: &Self, most: u64) -> Option<u64> {
        let mut inner = self.lock();
        if inner.window != 0 {
            return None;
        }
        let ends = self.ends.swap(0, Ordering::AcqRel);
        let units = self.take();
        let draws = std::mem::take(&mut inner.draws);
        drop(inner);
        let mut other = to.lock();
        other.draws = draws;
        to.drawn_at.store(other.draws.oldest().unix_micros(), Ordering::Release);
        to.add(units.min(most));
        to.ends.store(ends, Ordering::Release);
        Some(units.saturating_sub(most))
    }

    /// How the counter stands, as far as it was told, with what is held.
    pub(super) fn outcome(&self, quota: &Quota, now: Timestamp) -> Outcome {
        let limit = quota.capacity();
        let remaining = self.told.remaining.load(Ordering::Relaxed).saturating_add(self.units()).min(limit);
        self.outcome_of(Verdict::Allow, limit, remaining, now)
    }

    fn outcome_of(&self, verdict: Verdict, limit: u64, remaining: u64, now: Timestamp) -> Outcome {
        let until = |at: &AtomicU64| Timestamp::from_unix_micros(at.load(Ordering::Relaxed)).since(now);
        Outcome {
            verdict,
            limit,
            remaining,
            next_unit_after: until(&self.told.next_at),
            reset_after: until(&self.told.reset_at),
        }
    }

    /// Whether a denial is in force for such a charge.
    pub(super) fn denies(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        self.denials.denies(charge.cost(), now)
    }

    /// The denial that is still in force for such a charge.
    pub(super) fn denial(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Outcome> {
        let retry_at = self.denials.retry_at(charge.cost(), now)?;
        self.demand.fetch_add(charge.cost(), Ordering::Relaxed);
        Some(self.denied_outcome(retry_at, charge, now))
    }

    fn denied_outcome(&self, retry_at: Timestamp, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let retry_after = (retry_at + WAY).since(now).max(Ticks::from_micros(1));
        let remaining = self.told.remaining.load(Ordering::Relaxed).min(charge.cost().saturating_sub(1));
        self.outcome_of(Verdict::Deny { retry_after }, charge.quota().capacity(), remaining, now)
    }

    /// The denial of those who waited for a draw that began after they came, and that was not enough for all.
    pub(super) fn denied_since(&self, since: u64, charge: &Charge<'_>, now: Timestamp) -> Option<Outcome> {
        let inner = self.lock();
        let retry_at = self.denials.last_retry_at(charge.cost())?;
        let is_denied = inner.ended > since && inner.is_empty;
        is_denied.then(|| self.denied_outcome(retry_at, charge, now))
    }

    /// Whether a draw failed that began after so many others: the store is not there, and nobody need wait for the next.
    pub(super) fn has_failed_since(&self, since: u64) -> bool {
        self.lock().failed > since
    }

    /// The right to draw, unless somebody has it. `since` becomes how many had it before the caller came.
    pub(super) fn turn(self: &Arc<Self>, since: &mut Option<u64>, cost: u64) -> Option<Turn<R>> {
        let mut inner = self.lock();
        if since.is_none() {
            *since = Some(inner.begun);
            self.demand.fetch_add(cost, Ordering::Relaxed);
        }
        if inner.is_drawing {
            return None;
        }
        inner.is_drawing = true;
        inner.begun += 1;
        Some(Turn::new(Arc::clone(self), inner.begun))
    }

    pub(super) fn waits(&self, cost: u64) {
        self.waiting.fetch_add(cost, Ordering::Relaxed);
    }

    pub(super) fn waits_no_more(&self, cost: u64) {
        self.waiting.fetch_sub(cost, Ordering::Relaxed);
    }

    /// How many units to draw beyond what is asked for: as many as are asked for in the life of a lease, within its bounds, and what
    /// others wait for. None for a key that is asked about seldom. Where less is there than all nodes are asked for, what is due to this
    /// one.
    pub(super) fn wanted(&self, quota: &Quota, cost: u64, nodes: u32, now: Timestamp) -> Want {
        let inner = &mut *self.lock();
        let asked = self.demand.swap(0, Ordering::Relaxed);
        let size = inner.demand.size(asked, self.lease.ttl(), now);
        let most = self.lease.most(quota, nodes);
        let size = size.saturating_add(self.waiting.load(Ordering::Relaxed)).min(most);
        let held = if self.has_ended(now) && inner.window != 0 { 0 } else { self.units() };
        self.size.store(size, Ordering::Relaxed);
        let wanted = if size < SIZE_MIN { 0 } else { size.saturating_sub(held) };
        let draw = Draw { quota, cost, asked, wanted, most: most.saturating_sub(held), nodes };
        inner.share.want(draw, &inner.demand, self.lease.ttl())
    }

    /// Notes what a draw brought. Tells how many units ended with their window.
    pub(super) fn received(&self, asked: Asked<'_>, loan: Loan<R>) -> u64 {
        let Asked { quota, cost, want, sent, is_admitted } = asked;
        let has_taken = is_admitted && (cost > 0 || loan.extra > 0);
        let inner = &mut *self.lock();
        let outcome = loan.answer.outcome;
        let mut ended = 0;
        let at = |after: Ticks| (sent + after).unix_micros();
        self.told.remaining.store(outcome.remaining, Ordering::Relaxed);
        self.told.next_at.store(at(outcome.next_unit_after), Ordering::Relaxed);
        self.told.reset_at.store(at(outcome.reset_after), Ordering::Relaxed);
        // Which window counts is known only where something was counted in it.
        if let Some(window) = loan.window.filter(|_| has_taken) {
            if inner.window != window {
                // Units of a window that has ended end with it.
                ended = self.take();
                inner.draws = Draws::default();
                self.ends.store(0, Ordering::Release);
                inner.window = window;
            }
            if loan.extra > 0 || self.units() > 0 {
                let ttl = self.lease.ttl();
                let life = if window == 0 { ttl } else { ttl.min(outcome.reset_after) };
                self.ends.store(at(life), Ordering::Release);
                if loan.extra > 0 {
                    let drawn = Drawn { at: loan.answer.counted_at(quota), units: loan.extra };
                    inner.draws.drew(drawn, self.units());
                    // Before they can be spent, so that none is told to be later than it is.
                    self.drawn_at.store(inner.draws.oldest().unix_micros(), Ordering::Release);
                }
                self.add(loan.extra);
            }
        }
        // A receipt is for the units that are held: one of a request that took nothing may name another window than theirs.
        if let Some(receipt) = loan.receipt.filter(|_| has_taken || inner.receipt.is_none()) {
            inner.receipt = Some(receipt);
        }
        self.is_wanted.store(false, Ordering::Relaxed);
        let is_charged = is_admitted && outcome.is_allowed();
        let brought = Brought {
            quota,
            taken: loan.extra + if is_charged { cost } else { 0 },
            remaining: outcome.remaining,
            is_all: loan.extra >= want.units,
            crowd: loan.crowd,
            sent,
            reset_after: outcome.reset_after,
        };
        let enough_for = inner.share.brought(brought, &inner.demand, self.lease.ttl());
        let denied = match outcome.verdict {
            Verdict::Deny { retry_after } => Some((cost.max(1), retry_after.max(self.pause(inner, quota)))),
            // It has had its part, and asks again when the next is due to it.
            Verdict::Allow | Verdict::Wait(_) if is_charged && enough_for.is_some() => {
                Some((cost.max(1), enough_for.unwrap_or(Ticks::ZERO).min(DENIAL_MAX)))
            }
            // Only a counter that is empty is known to deny. One that lent less than was wanted, or nothing, since another limit of
            // the request denied it, may have units for the next.
            Verdict::Allow | Verdict::Wait(_) if has_taken && outcome.remaining == 0 && want.units > 0 => {
                Some((1, outcome.next_unit_after.max(self.pause(inner, quota))))
            }
            _ => None,
        };
        inner.is_empty = denied.is_some();
        if is_admitted {
            self.is_scarce.store(loan.extra < want.units || enough_for.is_some(), Ordering::Relaxed);
        }
        match denied {
            Some((cost, retry_after)) => {
                self.denials.remember(cost, sent + retry_after, sent + retry_after.min(DENIAL_MAX));
            }
            // Where this one passed, one that costs as much or less may; one that costs more is denied as before.
            None => self.denials.forget_up_to(cost),
        }
        ended
    }

    /// How long it waits at least before it asks again where nothing was there.
    fn pause(&self, inner: &Inner<R>, quota: &Quota) -> Ticks {
        inner.share.pause(quota, self.size.load(Ordering::Relaxed)).min(self.lease.ttl()).min(DENIAL_MAX)
    }

    /// Forgets that it was denied.
    pub(super) fn forget_denial(&self) {
        let _inner = self.lock();
        self.denials.forget();
    }

    /// Takes all units out, with what it takes to give them back.
    pub(super) fn take_all(&self) -> Taken<R> {
        let mut inner = self.lock();
        self.ends.store(0, Ordering::Release);
        let units = self.take();
        let draws = inner.draws.take(units);
        let leftovers: Vec<_> = match &inner.receipt {
            Some(receipt) => {
                let each = draws.into_iter().filter(|draw| draw.units > 0);
                each.map(|Drawn { at, units }| Leftover { receipt: receipt.clone(), units, drawn_at: at })
                    .collect()
            }
            None => Vec::new(),
        };
        let returned: u64 = leftovers.iter().map(|left| left.units).sum();
        Taken { leftovers, stranded: units.saturating_sub(returned) }
    }

    /// When to look again whether something is to be given back: not before what is held ends, and what is drawn later ends no earlier
    /// than a lease from now, or with its window, after which nothing goes back.
    pub(super) fn look_at(&self, now: Timestamp) -> Timestamp {
        let ends = Timestamp::from_unix_micros(self.ends.load(Ordering::Acquire));
        if self.units() > 0 && ends > now { ends } else { now + self.lease.ttl() }
    }

    /// Whether nothing is known of it that matters any more.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let inner = self.lock();
        // While it is denied nobody looks at how often it is asked about, and who comes right after should find that.
        let last = inner.demand.looked().max(self.denials.until()) + self.lease.ttl() + self.lease.ttl();
        !inner.is_drawing && self.units() == 0 && last < now
    }
}
