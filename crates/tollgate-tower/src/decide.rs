//! The decider of a layer: an engine with a clock, or a program that wraps its engine, for example to count decisions.

use std::future::Future;
use std::sync::Arc;

use tollgate::clock::Sleep;
use tollgate::engine::Prepared;
use tollgate::store::Store;
use tollgate::{CheckRequest, Clock, Decision, Engine, Reservation, Ticks, Timestamp};

/// Decides about requests, and provides the time.
pub trait Decide: Send + Sync + 'static {
    /// The store of the counters.
    type Store: Store + Send + Sync + 'static;

    /// The engine, for refunds, renewals and reports.
    fn engine(&self) -> &Engine<Self::Store>;

    /// The time of a decision.
    fn now(&self) -> Timestamp;

    /// The clock of `now`.
    fn clock(&self) -> &Clock;

    /// The wall-clock time of an instant, for absolute times in headers. It uses the offset that the engine's windows use.
    #[inline]
    fn on_wall(&self, at: Timestamp) -> Timestamp {
        at.on_wall(self.engine().maintenance().wall())
    }

    /// Sleeps until an instant.
    fn sleep_until(&self, at: Timestamp) -> Sleep {
        self.clock().sleep_until(at)
    }

    /// A number that changes whenever decisions depend on other attributes than before. `None` requests all attributes.
    fn changes(&self) -> Option<u64> {
        None
    }

    /// Decides if that is possible without waiting for the store.
    ///
    /// # Errors
    /// When the store must be awaited; [`Decide::check_prepared`] does.
    fn try_check(&self, request: &CheckRequest<'_>, now: Timestamp) -> Result<Decision, Prepared>;

    /// Decides about a request that [`Decide::try_check`] has prepared, and awaits the store.
    fn check_prepared(
        &self,
        prepared: Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Decision> + Send;

    /// Decides, and reserves the estimated cost of the request until the cost is known.
    fn reserve(
        &self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
    ) -> impl Future<Output = (Decision, Option<Reservation>)> + Send;

    /// Called when a request begins to wait in the queue of a limit.
    fn began_waiting(&self, wait: Ticks) {
        let _ = wait;
    }

    /// Called when a request waits no longer, because it is served or its caller is gone.
    fn ended_waiting(&self) {}
}

/// An engine, at the time of its own clock.
pub struct EngineDecider<S> {
    engine: Arc<Engine<S>>,
}

impl<S> EngineDecider<S> {
    /// Decides by an engine.
    pub const fn new(engine: Arc<Engine<S>>) -> Self {
        Self { engine }
    }
}

impl<S: Store + Send + Sync + 'static> Decide for EngineDecider<S> {
    type Store = S;

    #[inline]
    fn engine(&self) -> &Engine<S> {
        &self.engine
    }

    #[inline]
    fn now(&self) -> Timestamp {
        self.engine.now()
    }

    fn clock(&self) -> &Clock {
        self.engine.maintenance().clock()
    }

    #[inline]
    fn changes(&self) -> Option<u64> {
        Some(self.engine.maintenance().changes())
    }

    #[inline]
    fn try_check(&self, request: &CheckRequest<'_>, now: Timestamp) -> Result<Decision, Prepared> {
        self.engine.try_check(request, now)
    }

    fn check_prepared(
        &self,
        prepared: Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Decision> + Send {
        prepared.check(&self.engine, request, now)
    }

    fn reserve(
        &self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
    ) -> impl Future<Output = (Decision, Option<Reservation>)> + Send {
        self.engine.reservations().reserve(request, lifetime, now)
    }
}
