//! Limits that count only failures (`count: failures`). A request is charged when it is decided about, so that no more than the
//! limit are ever under way, and gets its units back when its response is no failure. One whose end nobody reports stays charged.

use super::Engine;
use super::hold::{CommitError, Reservation, Settled};
use crate::decision::Decision;
use crate::policy::Ended;
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::{Ticks, Timestamp};

impl<S: Store> Engine<S> {
    /// What a decision of [`Engine::check`] took of limits that count only failures, until [`Engine::report`] says how the request
    /// ended; none if it took nothing there.
    pub fn awaiting(
        &self,
        request: &CheckRequest<'_>,
        decision: &Decision,
        lifetime: Ticks,
        decided_at: Timestamp,
    ) -> Option<Reservation> {
        if !decision.is_allowed() || !decision.awaits_its_end() {
            return None;
        }
        let mut all = self.set_aside(request, decision, lifetime, decided_at);
        self.split_awaiting(&mut all)
    }

    /// Takes out of a reservation what it has of limits that count only failures.
    pub fn split_awaiting(&self, reservation: &mut Reservation) -> Option<Reservation> {
        let live = self.live.load();
        let counts_failures =
            |name: &str| live.counters_of(name).is_some_and(|(limit, _)| limit.failures().is_some());
        reservation.split(counts_failures)
    }

    /// Reports how a request ended: limits for which that is no failure get their units back. It may be tried again as
    /// [`Engine::cancel`] may.
    ///
    /// # Errors
    /// When it is too late, it was reported before, or the store does not answer.
    pub async fn report(
        &self,
        awaiting: &mut Reservation,
        ended: Ended,
        now: Timestamp,
    ) -> Result<Settled, CommitError> {
        {
            let live = self.live.load();
            awaiting.keep(|name| {
                let failures = live.counters_of(name).and_then(|(limit, _)| limit.failures());
                failures.is_some_and(|failures| !failures.count(ended))
            });
        }
        self.cancel(awaiting, now).await
    }
}
