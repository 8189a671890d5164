//! Who decides: an engine with a clock, or a program that counts what its engine decides.

use std::future::Future;
use std::sync::Arc;

use tollgate::clock::Sleep;
use tollgate::store::Store;
use tollgate::{CheckRequest, Clock, Decision, Engine, Reservation, Ticks, Timestamp};

/// Whoever decides about requests, and knows what time it is.
pub trait Decide: Send + Sync + 'static {
    /// Where counters live.
    type Store: Store + Send + Sync + 'static;

    /// The engine that gives back what its decisions took.
    fn engine(&self) -> &Engine<Self::Store>;

    /// The time by which requests are decided.
    fn now(&self) -> Timestamp;

    /// The clock that tells it.
    fn clock(&self) -> &Clock;

    /// What the wall clock shows at an instant, for absolute times in headers: by the setting that the engine's windows end by.
    #[inline]
    fn on_wall(&self, at: Timestamp) -> Timestamp {
        at.on_wall(self.engine().wall())
    }

    /// Something to await until an instant.
    fn sleep_until(&self, at: Timestamp) -> Sleep {
        self.clock().sleep_until(at)
    }

    /// A number that changes whenever decisions come to depend on other attributes than before; none where all are wanted.
    fn changes(&self) -> Option<u64> {
        None
    }

    /// Decides, if nobody need be waited for.
    fn check_at_once(&self, request: &CheckRequest<'_>, now: Timestamp) -> Option<Decision>;

    /// The same, written where it is needed: a decision is large.
    #[inline]
    fn decide_at_once(&self, request: &CheckRequest<'_>, now: Timestamp, decided: &mut Option<Decision>) {
        *decided = self.check_at_once(request, now);
    }

    /// Decides.
    fn check(&self, request: &CheckRequest<'_>, now: Timestamp) -> impl Future<Output = Decision> + Send;

    /// Decides, and sets aside what the request may cost until that is known.
    fn reserve(
        &self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
    ) -> impl Future<Output = (Decision, Option<Reservation>)> + Send;

    /// A request begins to wait for its turn.
    fn began_waiting(&self, wait: Ticks) {
        let _ = wait;
    }

    /// A request waits no longer: its turn has come, or it has gone away.
    fn ended_waiting(&self) {}
}

/// An engine of one's own.
pub struct Own<S> {
    engine: Arc<Engine<S>>,
    clock: Clock,
}

impl<S> Own<S> {
    /// Decides by this engine, at the times of this clock.
    pub const fn new(engine: Arc<Engine<S>>, clock: Clock) -> Self {
        Self { engine, clock }
    }

    pub(crate) const fn shared_engine(&self) -> &Arc<Engine<S>> {
        &self.engine
    }
}

impl<S: Store + Send + Sync + 'static> Decide for Own<S> {
    type Store = S;

    #[inline]
    fn engine(&self) -> &Engine<S> {
        &self.engine
    }

    #[inline]
    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        // Whoever has an engine of its own has no task that would tell it.
        self.engine.follow_wall(self.clock.wall_offset(now), now);
        now
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    fn changes(&self) -> Option<u64> {
        Some(self.engine.changes())
    }

    fn check_at_once(&self, request: &CheckRequest<'_>, now: Timestamp) -> Option<Decision> {
        self.engine.check_at_once(std::slice::from_ref(request), now)
    }

    #[inline]
    fn decide_at_once(&self, request: &CheckRequest<'_>, now: Timestamp, decided: &mut Option<Decision>) {
        self.engine.decide_at_once(std::slice::from_ref(request), now, decided);
    }

    fn check(&self, request: &CheckRequest<'_>, now: Timestamp) -> impl Future<Output = Decision> + Send {
        self.engine.check(request, now)
    }

    fn reserve(
        &self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
    ) -> impl Future<Output = (Decision, Option<Reservation>)> + Send {
        self.engine.reserve(request, lifetime, now)
    }
}
