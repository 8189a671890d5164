//! Renewal of the permits in flight, for as long as their requests last. One task of a layer renews all of them. The
//! permits of a process that crashes expire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::task::JoinSet;
use tollgate::{Permit, Ticks, Timestamp};

use crate::background::run;
use crate::decide::Decide;

/// A permit is renewed after this fraction of its lifetime, and checked twice as often, so that a short outage of the
/// store does not expire it.
const FRACTION: u64 = 3;
/// The shortest time between two rounds of renewals.
const INTERVAL_MIN: Ticks = Ticks::from_micros(10_000);
/// How often the task checks for a new policy, which may shorten the lifetime of held permits.
const POLICY_CHECK_EVERY: Ticks = Ticks::from_micros(100_000);
/// Most renewals in flight.
const RENEWALS_MAX: usize = 32;

/// All permits in flight of a layer.
pub(crate) struct PermitRenewer<D> {
    pub(crate) decide: Arc<D>,
    /// Locked for lookups only, never across an await.
    table: Mutex<PermitTable>,
}

#[derive(Default)]
struct PermitTable {
    permits: HashMap<u64, RenewedPermit>,
    /// The time between two rounds, while a task renews.
    interval: Option<Ticks>,
    /// The number of the task that renews. Tasks with a lower number end when they wake.
    task: u64,
    /// The engine's number of policy changes when all permits were last renewed or taken.
    changes: u64,
}

struct RenewedPermit {
    permit: Arc<Permit>,
    ttl: Ticks,
    renew_at: Timestamp,
}

/// Holds a permit until it is dropped, which releases the permit.
pub(crate) struct PermitGuard<D: Decide> {
    renewer: Arc<PermitRenewer<D>>,
    permit: Arc<Permit>,
}

impl<D: Decide> PermitRenewer<D> {
    pub(crate) fn new(decide: Arc<D>) -> Self {
        Self { decide, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, PermitTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a permit that a decision gave a moment ago.
    pub(crate) fn hold(renewer: &Arc<Self>, permit: Permit) -> PermitGuard<D> {
        // By the active policy, which may be newer than the decision.
        let (ttl, permit) = (renewer.decide.engine().reservations().renewed_for(&permit), Arc::new(permit));
        let renew_at = renewer.decide.now() + fraction(ttl, FRACTION);
        let interval = fraction(ttl, 2 * FRACTION).max(INTERVAL_MIN);
        let renewed = RenewedPermit { permit: Arc::clone(&permit), ttl, renew_at };
        let mut table = renewer.table();
        table.permits.insert(permit.id().0, renewed);
        if table.interval.is_none() {
            table.changes = renewer.decide.engine().maintenance().changes();
        }
        // Without a runtime no task can renew, and the permit expires.
        if table.interval.is_none_or(|current| interval < current)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            table.interval = Some(interval);
            table.task += 1;
            runtime.spawn(renew_until_released(Arc::downgrade(renewer), table.task));
        }
        drop(table);
        PermitGuard { renewer: Arc::clone(renewer), permit }
    }

    /// When the next round is due. Returns `None` if no permit is held or another task renews.
    fn next_round(&self, task: u64) -> Option<Timestamp> {
        let mut table = self.table();
        if table.task != task {
            return None;
        }
        let shortest = table.permits.values().map(|renewed| renewed.ttl).min();
        table.interval = shortest.map(|ttl| fraction(ttl, 2 * FRACTION).max(INTERVAL_MIN));
        table.interval.map(|interval| self.decide.now() + interval)
    }

    /// Whether the policy has changed since the last call. After a change every permit is due.
    fn has_changed(&self) -> bool {
        let changes = self.decide.engine().maintenance().changes();
        let now = self.decide.now();
        let mut table = self.table();
        let has_changed = table.changes != changes;
        if has_changed {
            table.changes = changes;
            table.permits.values_mut().for_each(|renewed| renewed.renew_at = now);
        }
        has_changed
    }

    /// Renews the permits that are due. A renewal that fails is due again in the next round.
    async fn renew_due(self: Arc<Self>) {
        let now = self.decide.now();
        let due: Vec<Arc<Permit>> = {
            let table = self.table();
            let due = table.permits.values().filter(|renewed| renewed.renew_at <= now);
            due.map(|renewed| Arc::clone(&renewed.permit)).collect()
        };
        let mut renewing = JoinSet::new();
        for permit in due {
            if renewing.len() >= RENEWALS_MAX {
                renewing.join_next().await;
            }
            let renewer = Arc::clone(&self);
            renewing.spawn(async move { renewer.renew(&permit).await });
        }
        while renewing.join_next().await.is_some() {}
    }

    async fn renew(&self, permit: &Permit) {
        let now = self.decide.now();
        let ttl = self.decide.engine().reservations().renewed_for(permit);
        if self.decide.engine().reservations().renew(permit, now).await.is_ok()
            && let Some(renewed) = self.table().permits.get_mut(&permit.id().0)
        {
            (renewed.ttl, renewed.renew_at) = (ttl, now + fraction(ttl, FRACTION));
        }
    }
}

impl<D: Decide> Drop for PermitGuard<D> {
    fn drop(&mut self) {
        self.renewer.table().permits.remove(&self.permit.id().0);
        let (decide, permit) = (Arc::clone(&self.renewer.decide), Arc::clone(&self.permit));
        run(async move {
            // If the store does not answer, the permit expires.
            let _ = decide.engine().reservations().release(&permit, decide.now()).await;
        });
    }
}

/// Renews the permits that are due, round by round, until all are released.
async fn renew_until_released<D: Decide>(renewer: Weak<PermitRenewer<D>>, task: u64) {
    loop {
        let Some(at) = renewer.upgrade().and_then(|renewer| renewer.next_round(task)) else { return };
        loop {
            let sleep = {
                let Some(renewer) = renewer.upgrade() else { return };
                let now = renewer.decide.now();
                if renewer.has_changed() || now >= at {
                    break;
                }
                renewer.decide.sleep_until(at.min(now + POLICY_CHECK_EVERY))
            };
            sleep.await;
        }
        let Some(renewer) = renewer.upgrade() else { return };
        renewer.renew_due().await;
    }
}

fn fraction(ttl: Ticks, parts: u64) -> Ticks {
    Ticks::from_micros(ttl.as_micros() / parts)
}
