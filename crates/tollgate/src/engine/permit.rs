//! Permits: held by id, renewed while their holder lives, and released where they were acquired.

use super::active::ActivePolicy;
use super::{ATTEMPTS, Charges, Engine};
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Held, Permit};
use crate::outcome::Source;
use crate::policy::Match;
use crate::store::{Charge, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

/// The permit that the charges acquired under this id; `None` if they only looked.
pub(super) fn taken(
    active: &ActivePolicy,
    matches: &[Match],
    charges: &[Charge<'_>],
    sources: impl Iterator<Item = Source>,
    id: PermitId,
) -> Option<Permit> {
    let takes = |matched: &Match, charge: &Charge<'_>| charge.cost > 0 && active.takes_permit(matched);
    let held = matches.iter().zip(charges).zip(sources);
    let held = held.filter(|((matched, charge), _)| takes(matched, charge));
    let held = held.map(|((matched, charge), source)| Held::new(&active.policy, matched, charge, source));
    Permit::new(id, held.collect())
}

impl<S: Store> Engine<S> {
    /// Renews a permit, for a holder that keeps it for longer than `permit_ttl`. The holder must renew it before that
    /// time has passed, otherwise another request may take it. Renewing a permit that was released, or has expired,
    /// changes nothing.
    ///
    /// # Errors
    /// When the store does not answer; the call may be repeated.
    pub async fn renew(&self, permit: &Permit, now: Timestamp) -> Result<(), StoreFailure> {
        let now = now.decidable();
        let active = self.active.load_full();
        let charges: Charges<'_> = permit
            .held()
            .iter()
            .filter(|held| !self.renew_here(&active, permit, held, now))
            .filter_map(|held| active.charge_of(held, permit.id(), held.cost))
            .collect();
        if charges.is_empty() {
            return Ok(());
        }
        self.store.renew(&charges, now).await
    }

    /// How long a permit lives after it is renewed, by the active policy: it must be renewed again before that.
    #[must_use]
    pub fn renewed_for(&self, permit: &Permit) -> Ticks {
        let active = self.active.load();
        let lives = permit.held().iter().filter_map(|held| active.charge_of(held, permit.id(), held.cost));
        lives.map(|charge| charge.quota.memory()).min().unwrap_or_else(|| permit.ttl())
    }

    /// Releases a permit where it was acquired. Releasing it again, or after it expired, changes nothing.
    ///
    /// # Errors
    /// When the store does not answer; the permit then returns by itself when it expires.
    pub async fn release(&self, permit: &Permit, now: Timestamp) -> Result<(), StoreFailure> {
        let now = now.decidable();
        let (mut attempts, mut is_first) = (0, true);
        loop {
            let active = self.active.load_full();
            let charges: Charges<'_> = permit
                .held()
                .iter()
                .filter(|held| !(is_first && self.release_here(&active, permit, held, now)))
                .filter_map(|held| active.charge_of(held, permit.id(), held.cost))
                .collect();
            is_first = false;
            if charges.is_empty() {
                return Ok(());
            }
            match self.store.refund(&charges, now).await {
                Err(StoreFailure::Superseded) if attempts < ATTEMPTS => attempts += 1,
                released => return released,
            }
        }
    }
}
