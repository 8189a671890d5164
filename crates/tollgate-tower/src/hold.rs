//! What an admitted request holds until it is over, whichever way it ends: by its body's last byte, by a caller who goes away, or by
//! a panic. Each of them drops the hold, and dropping gives back.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use http::{Extensions, HeaderMap};
use tollgate::policy::Ended;
use tollgate::{Permit, Reservation, Turn};

use crate::background::run;
use crate::decide::Decide;
use crate::grpc;
use crate::keep::{Keeper, Place};
use crate::settle::{self, Settle, Settling, Unserved};

/// In the extensions of a request that has a permit of a limit on concurrency. The permit is free when the response is over or given up;
/// a service that still works for the request then can hold it for longer.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Vec<Weak<dyn Any + Send + Sync>>);

/// Holds the permits of a request until it is dropped, and each of its clones.
#[derive(Clone, Debug)]
pub struct HeldPermits(
    #[allow(dead_code, reason = "it is only to be dropped")] Vec<Arc<dyn Any + Send + Sync>>,
);

impl InFlight {
    /// Holds the permits that the request still has.
    #[must_use]
    pub fn hold(&self) -> HeldPermits {
        HeldPermits(self.0.iter().filter_map(Weak::upgrade).collect())
    }
}

/// What is held.
pub(crate) struct Hold<D: Decide> {
    decide: Arc<D>,
    settling: Settling,
    place: Option<Arc<Place<D>>>,
    reservation: Option<Reservation>,
    /// What limits took that count only failures, until it is known how the request ended.
    awaiting: Option<Reservation>,
    /// Its turn in a line that moves up.
    turn: Option<Turn>,
    /// Whether its turn is still to come.
    is_waiting: bool,
}

impl<D: Decide> Hold<D> {
    /// Holds what a decision gave; none if that is nothing.
    pub(crate) fn new(
        keeper: &Arc<Keeper<D>>,
        settling: &Settling,
        permit: Option<Permit>,
        mut reservation: Option<Reservation>,
    ) -> Option<Self> {
        let permit = permit.or_else(|| reservation.as_mut().and_then(Reservation::take_permit));
        if permit.is_none() && reservation.is_none() {
            return None;
        }
        let mut hold = Self::empty(&keeper.decide, settling);
        hold.place = permit.map(|permit| Arc::new(Keeper::keep(keeper, permit)));
        hold.set_aside(reservation);
        Some(hold)
    }

    /// Holds nothing yet.
    pub(crate) fn empty(decide: &Arc<D>, settling: &Settling) -> Self {
        Self {
            decide: Arc::clone(decide),
            settling: settling.clone(),
            place: None,
            reservation: None,
            awaiting: None,
            turn: None,
            is_waiting: false,
        }
    }

    /// Tells the service that the request has a permit, if it has one. Layers around this one may have added theirs.
    pub(crate) fn tell(&self, extensions: &mut Extensions) {
        if let Some(place) = &self.place {
            let place: Arc<dyn Any + Send + Sync> = Arc::<Place<D>>::clone(place);
            let mut in_flight = extensions.remove::<InFlight>().unwrap_or_default();
            in_flight.0.push(Arc::downgrade(&place));
            extensions.insert(in_flight);
        }
    }

    /// Keeps what is to be settled, and apart from it what awaits the end of the request.
    fn set_aside(&mut self, mut reservation: Option<Reservation>) {
        let engine = self.decide.engine();
        if let Some(awaiting) = reservation.as_mut().and_then(|all| engine.split_awaiting(all)) {
            self.awaiting = Some(awaiting);
        }
        self.reservation = reservation;
    }

    /// Holds what limits took that count only failures.
    pub(crate) fn await_its_end(&mut self, awaiting: Reservation) {
        self.awaiting = Some(awaiting);
    }

    /// Reports how the request ended, if the head of its response tells. One that was not served, and is given back all that it was
    /// charged, did not fail.
    pub(crate) fn report_by_head(&mut self, head: &http::response::Parts, unserved: Option<&Unserved>) {
        let Some(awaiting) = self.awaiting.take() else { return };
        if unserved.is_some() && self.settling.refunds_unserved {
            // Where nothing else is settled, it is given back with all the rest.
            if self.settling.is_any() {
                give_back(&self.decide, awaiting);
            }
            return;
        }
        match settle::ended(head) {
            Some(ended) => report(&self.decide, awaiting, ended),
            None => self.awaiting = Some(awaiting), // A call says at its end how it ended.
        }
    }

    /// The request waits for its turn. If it goes away before that, it steps back from the line, and gets back what else it was charged.
    pub(crate) fn wait(&mut self, set_aside: impl FnOnce() -> Option<Reservation>) {
        self.is_waiting = true;
        if self.reservation.is_none() {
            self.set_aside(set_aside());
        }
        if let Some(reservation) = &mut self.reservation {
            self.turn = self.decide.engine().line_up(reservation, self.decide.clock());
        }
    }

    /// What to await until its turn has come; none where it comes at the instant that it was told.
    pub(crate) const fn take_turn(&mut self) -> Option<Turn> {
        self.turn.take()
    }

    /// Its turn has come. What it was charged for stays charged, unless its response is to say so.
    pub(crate) fn go(&mut self) {
        self.is_waiting = false;
        if !self.settling.is_any() {
            self.reservation = None;
        }
    }

    /// Settles by the head of the response, if that says what the request cost.
    pub(crate) async fn settle_by_head(&mut self, head: &http::response::Parts) {
        if let Some(settle) = self.settling.by_head(head)
            && let Some(reservation) = self.reservation.take()
        {
            apply(&self.decide, reservation, settle).await;
        }
    }

    /// Whether anything is left to give back or to settle.
    pub(crate) const fn is_over(&self) -> bool {
        self.place.is_none() && self.reservation.is_none() && self.awaiting.is_none()
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
            taken.into_iter().flatten().for_each(|reservation| give_back(&self.decide, reservation));
        }
        // A reservation that nobody settled stays charged at its estimate; a place in flight is free again with this.
    }
}

/// A question that is on its way to the store. If whoever asked goes away meanwhile, the answer is waited for beside, so that what it takes,
/// and nobody wants any more, is given back.
pub(crate) struct Asking<T: Send + 'static> {
    question: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    is_asked: bool,
}

impl<T: Send + 'static> Asking<T> {
    pub(crate) fn new(question: impl Future<Output = T> + Send + 'static) -> Self {
        Self { question: Some(Box::pin(question)), is_asked: false }
    }
}

impl<T: Send + 'static> Future for Asking<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.is_asked = true;
        // Polled again after its end, it says nothing more. One that panics is gone, and not asked further.
        let Some(mut question) = self.question.take() else { return Poll::Pending };
        let answer = question.as_mut().poll(context);
        if answer.is_pending() {
            self.question = Some(question);
        }
        answer
    }
}

impl<T: Send + 'static> Drop for Asking<T> {
    fn drop(&mut self) {
        if self.is_asked
            && let Some(question) = self.question.take()
        {
            run(async move { drop(question.await) });
        }
    }
}

async fn apply<D: Decide>(decide: &Arc<D>, mut reservation: Reservation, settle: Settle) {
    let now = decide.now();
    let engine = decide.engine();
    // What cannot be settled stays charged at its estimate: nobody gets more than a limit gives.
    let _ = match settle {
        Settle::Keep => return,
        Settle::Refund => engine.cancel(&mut reservation, now).await,
        Settle::Cost(cost) => engine.commit(&mut reservation, cost, now).await,
    };
}

/// Reports how a request ended.
fn report<D: Decide>(decide: &Arc<D>, mut awaiting: Reservation, ended: Ended) {
    let decide = Arc::clone(decide);
    run(async move {
        // What cannot be reported stays charged.
        let _ = decide.engine().report(&mut awaiting, ended, decide.now()).await;
    });
}

/// Gives back all that was set aside.
pub(crate) fn give_back<D: Decide>(decide: &Arc<D>, reservation: Reservation) {
    let decide = Arc::clone(decide);
    run(async move { apply(&decide, reservation, Settle::Refund).await });
}
