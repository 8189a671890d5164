//! Permits and reservations that an admitted request holds until its end: the last byte of its body, a caller that disconnects, or a panic. Each
//! of them drops the hold, and dropping releases it.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use http::{Extensions, HeaderMap};
use tollgate::engine::Departure;
use tollgate::policy::Ended;
use tollgate::{Permit, Reservation};

use crate::background::run;
use crate::decide::Decide;
use crate::grpc;
use crate::permits::{PermitGuard, PermitRenewer};
use crate::settle::{self, Settle, Settling, Unserved};

/// In the extensions of a request that has a permit of a concurrency limit. The permit is released at the end of the
/// response. A service that works for the request beyond that can hold the permit for longer.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Vec<Weak<dyn Any + Send + Sync>>);

/// Holds the permits of a request until this and all of its clones are dropped.
#[derive(Clone, Debug)]
pub struct HeldPermits(
    #[allow(dead_code, reason = "the permits are released on drop")] Vec<Arc<dyn Any + Send + Sync>>,
);

impl InFlight {
    /// Holds the permits that the request still has.
    #[must_use]
    pub fn hold(&self) -> HeldPermits {
        HeldPermits(self.0.iter().filter_map(Weak::upgrade).collect())
    }
}

/// The permit and the reservations of a request.
pub(crate) struct Hold<D: Decide> {
    decide: Arc<D>,
    settling: Settling,
    permit: Option<Arc<PermitGuard<D>>>,
    reservation: Option<Reservation>,
    /// The charge of limits that count only failures, until the outcome of the request is known.
    awaiting: Option<Reservation>,
    /// Its slot in a queue that moves up.
    turn: Option<Departure>,
    /// Whether it still waits in the queue.
    is_waiting: bool,
}

impl<D: Decide> Hold<D> {
    /// Holds what a decision gave. Returns `None` if it gave nothing.
    pub(crate) fn new(
        renewer: &Arc<PermitRenewer<D>>,
        settling: &Settling,
        permit: Option<Permit>,
        mut reservation: Option<Reservation>,
    ) -> Option<Self> {
        let permit = permit.or_else(|| reservation.as_mut().and_then(Reservation::take_permit));
        if permit.is_none() && reservation.is_none() {
            return None;
        }
        let mut hold = Self::empty(&renewer.decide, settling);
        hold.permit = permit.map(|permit| Arc::new(PermitRenewer::hold(renewer, permit)));
        hold.hold_reservation(reservation);
        Some(hold)
    }

    /// Holds nothing yet.
    pub(crate) fn empty(decide: &Arc<D>, settling: &Settling) -> Self {
        Self {
            decide: Arc::clone(decide),
            settling: settling.clone(),
            permit: None,
            reservation: None,
            awaiting: None,
            turn: None,
            is_waiting: false,
        }
    }

    /// Adds the permit to the extensions for the service. Layers around this one may have added theirs.
    pub(crate) fn announce(&self, extensions: &mut Extensions) {
        if let Some(permit) = &self.permit {
            let permit: Arc<dyn Any + Send + Sync> = Arc::<PermitGuard<D>>::clone(permit);
            let mut in_flight = extensions.remove::<InFlight>().unwrap_or_default();
            in_flight.0.push(Arc::downgrade(&permit));
            extensions.insert(in_flight);
        }
    }

    /// Holds a reservation to settle. Splits off the part that awaits the end of the request.
    fn hold_reservation(&mut self, mut reservation: Option<Reservation>) {
        let engine = self.decide.engine();
        if let Some(awaiting) = reservation.as_mut().and_then(|all| engine.reservations().split_awaiting(all))
        {
            self.awaiting = Some(awaiting);
        }
        self.reservation = reservation;
    }

    /// Holds the charge of limits that count only failures.
    pub(crate) fn await_its_end(&mut self, awaiting: Reservation) {
        self.awaiting = Some(awaiting);
    }

    /// Reports how the request ended, if the head of its response says so. An unserved request that is refunded did not
    /// fail.
    pub(crate) fn report_by_head(&mut self, head: &http::response::Parts, unserved: Option<Unserved>) {
        let Some(awaiting) = self.awaiting.take() else { return };
        if unserved.is_some() && self.settling.refunds_unserved {
            // If the response settles nothing, the refund of the whole charge includes this one.
            if self.settling.is_any() {
                refund(&self.decide, awaiting);
            }
            return;
        }
        match settle::ended(head) {
            Some(ended) => report(&self.decide, awaiting, ended),
            None => self.awaiting = Some(awaiting), // A gRPC call has its status in the trailers.
        }
    }

    /// Begins to wait in the queue. A request that is dropped while it waits leaves the queue and is refunded.
    pub(crate) fn wait(&mut self, reserve: impl FnOnce() -> Reservation) {
        self.is_waiting = true;
        if self.reservation.is_none() {
            self.hold_reservation(Some(reserve()));
        }
        if let Some(reservation) = &mut self.reservation {
            self.turn = self.decide.engine().reservations().enqueue(reservation, self.decide.clock());
        }
    }

    /// The queue slot to await. Returns `None` if the wait of the decision is fixed.
    pub(crate) const fn take_turn(&mut self) -> Option<Departure> {
        self.turn.take()
    }

    /// Ends the wait. The charge stays, unless the response settles it.
    pub(crate) fn go(&mut self) {
        self.is_waiting = false;
        if !self.settling.is_any() {
            self.reservation = None;
        }
    }

    /// Settles by the head of the response, if that states the cost of the request.
    pub(crate) async fn settle_by_head(&mut self, head: &http::response::Parts) {
        if let Some(settle) = self.settling.by_head(head)
            && let Some(reservation) = self.reservation.take()
        {
            apply(&self.decide, reservation, settle).await;
        }
    }

    /// Whether nothing is left to release or to settle.
    pub(crate) const fn is_over(&self) -> bool {
        self.permit.is_none() && self.reservation.is_none() && self.awaiting.is_none()
    }
}

/// Something that waits for the end of a body.
pub(crate) trait Finish: Send + Sync {
    /// The body has ended with these trailers.
    fn ended(&mut self, trailers: &HeaderMap);
}

impl<D: Decide> Finish for Hold<D> {
    fn ended(&mut self, trailers: &HeaderMap) {
        if let Some(code) = grpc::status(trailers)
            && let Some(awaiting) = self.awaiting.take()
        {
            report(&self.decide, awaiting, Ended::Status(grpc::http_status(code)));
        }
        if let Some(settle) = self.settling.by_trailers(trailers)
            && let Some(reservation) = self.reservation.take()
        {
            let decide = Arc::clone(&self.decide);
            run(async move { apply(&decide, reservation, settle).await });
        }
    }
}

impl<D: Decide> Drop for Hold<D> {
    fn drop(&mut self) {
        if self.is_waiting {
            let taken = [self.reservation.take(), self.awaiting.take()];
            taken.into_iter().flatten().for_each(|reservation| refund(&self.decide, reservation));
        }
        // A reservation that was not settled stays charged at its estimate. The permit guard releases the permit.
    }
}

/// A check that waits for the store. If its request is dropped meanwhile, a task awaits the answer, so that the permit and
/// the reservation of the answer are released.
pub(crate) struct PendingCheck<T: Send + 'static> {
    check: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    is_started: bool,
}

impl<T: Send + 'static> PendingCheck<T> {
    pub(crate) fn new(check: impl Future<Output = T> + Send + 'static) -> Self {
        Self { check: Some(Box::pin(check)), is_started: false }
    }
}

impl<T: Send + 'static> Future for PendingCheck<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.is_started = true;
        // A future that is polled after its end stays pending. One that panics is dropped and not polled again.
        let Some(mut check) = self.check.take() else { return Poll::Pending };
        let answer = check.as_mut().poll(context);
        if answer.is_pending() {
            self.check = Some(check);
        }
        answer
    }
}

impl<T: Send + 'static> Drop for PendingCheck<T> {
    fn drop(&mut self) {
        if self.is_started
            && let Some(check) = self.check.take()
        {
            run(async move { drop(check.await) });
        }
    }
}

async fn apply<D: Decide>(decide: &Arc<D>, mut reservation: Reservation, settle: Settle) {
    let now = decide.now();
    let engine = decide.engine();
    // If settling fails, the charge stays at its estimate, so that no caller gets more than the limit.
    let _ = match settle {
        Settle::Keep => return,
        Settle::Refund => engine.reservations().cancel(&mut reservation, now).await,
        Settle::Cost(cost) => engine.reservations().commit(&mut reservation, cost, now).await,
    };
}

/// Reports how a request ended.
fn report<D: Decide>(decide: &Arc<D>, mut awaiting: Reservation, ended: Ended) {
    let decide = Arc::clone(decide);
    run(async move {
        // If the report fails, the charge stays.
        let _ = decide.engine().reservations().report(&mut awaiting, ended, decide.now()).await;
    });
}

/// Refunds a whole reservation.
pub(crate) fn refund<D: Decide>(decide: &Arc<D>, reservation: Reservation) {
    let decide = Arc::clone(decide);
    run(async move { apply(&decide, reservation, Settle::Refund).await });
}
