//! Permits: held by id, renewed while their holder lives, and released where they were acquired.

use super::Reservations;
use crate::decision::{Held, Permit};
use crate::engine::ATTEMPTS;
use crate::outcome::Source;
use crate::store::{Charges, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

impl<S: Store> Reservations<'_, S> {
    /// Renews a permit, for a holder that keeps it for longer than `permit_ttl`. The holder must renew it before that
    /// time has passed, otherwise another request may take it. Renewing a permit that was released, or has expired,
    /// changes nothing.
    ///
    /// # Errors
    /// When the store does not answer; the call may be repeated.
    pub async fn renew(self, permit: &Permit, now: Timestamp) -> Result<(), StoreFailure> {
        let now = now.decidable();
        let active = self.engine.active.load_full();
        if let Some(fallback) = self.engine.fallback_if_any(&active, now) {
            permit.held().iter().for_each(|held| fallback.renew(permit, held));
        }
        let charges: Charges<'_> = permit
            .held()
            .iter()
            .filter(|held| held.source != Source::Open) // The store never knew of those.
            .filter_map(|held| active.charge_of(held, permit.id(), held.cost))
            .collect();
        if charges.is_empty() {
            return Ok(());
        }
        self.engine.store.renew(&charges, now).await
    }

    /// How long a permit lives after it is renewed, by the active policy: it must be renewed again before that.
    #[must_use]
    pub fn renewed_for(self, permit: &Permit) -> Ticks {
        let active = self.engine.active.load();
        let lives = permit.held().iter().filter_map(|held| active.charge_of(held, permit.id(), held.cost));
        lives.map(|charge| charge.quota.memory()).min().unwrap_or_else(|| permit.ttl())
    }

    /// Releases a permit where it was acquired. Releasing it again, or after it expired, changes nothing.
    ///
    /// # Errors
    /// When the store does not answer; the permit then returns by itself when it expires.
    pub async fn release(self, permit: &Permit, now: Timestamp) -> Result<(), StoreFailure> {
        let now = now.decidable();
        let (mut attempts, mut is_first) = (0, true);
        loop {
            let active = self.engine.active.load_full();
            let fallback = self.engine.fallback_if_any(&active, now).filter(|_| is_first);
            let is_local =
                |held: &Held| fallback.as_ref().is_some_and(|fallback| fallback.release(permit, held));
            let charges: Charges<'_> = permit
                .held()
                .iter()
                .filter(|held| !is_local(held))
                .filter_map(|held| active.charge_of(held, permit.id(), held.cost))
                .collect();
            is_first = false;
            if charges.is_empty() {
                return Ok(());
            }
            match self.engine.store.refund(&charges, now).await {
                Err(StoreFailure::Superseded) if attempts < ATTEMPTS => attempts += 1,
                released => return released,
            }
        }
    }
}
