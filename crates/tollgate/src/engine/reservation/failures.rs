//! Limits that count only failures (`count: failures`). A request is charged when it is decided, so that no more
//! requests than the limit are ever in flight. It is refunded when its response is no failure. A request whose end is
//! never reported stays charged.

use super::{CommitError, Reservation, Reservations};
use crate::decision::{Decision, Settled};
use crate::policy::Ended;
use crate::store::Store;
use crate::time::{Ticks, Timestamp};

impl<S: Store> Reservations<'_, S> {
    /// The units that a decision of [`Engine::check`](crate::Engine::check) took from limits that count only failures, until [`Reservations::report`] says
    /// how the request ended. `None` if it took nothing there.
    pub fn awaiting(
        self,
        decision: &Decision,
        lifetime: Ticks,
        decided_at: Timestamp,
    ) -> Option<Reservation> {
        if !decision.is_allowed() || !decision.awaits_its_end() {
            return None;
        }
        let mut all = self.of_decision(decision, lifetime, decided_at);
        self.split_awaiting(&mut all)
    }

    /// Splits off the part of a reservation that belongs to limits which count only failures.
    pub fn split_awaiting(self, reservation: &mut Reservation) -> Option<Reservation> {
        let active = self.engine.active.load();
        let counts_failures =
            |name: &str| active.counters_of(name).is_some_and(|(limit, _)| limit.failures().is_some());
        reservation.split(counts_failures)
    }

    /// Reports how a request ended. Limits for which that is no failure refund it. A failed call may be repeated, as
    /// with [`Reservations::cancel`].
    ///
    /// # Errors
    /// When it is too late, it was reported before, or the store does not answer.
    pub async fn report(
        self,
        awaiting: &mut Reservation,
        ended: Ended,
        now: Timestamp,
    ) -> Result<Settled, CommitError> {
        {
            let active = self.engine.active.load();
            awaiting.keep(|name| {
                let failures = active.counters_of(name).and_then(|(limit, _)| limit.failures());
                failures.is_some_and(|failures| !failures.count(ended))
            });
        }
        self.cancel(awaiting, now).await
    }
}
