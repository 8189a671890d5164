//! What every wire asks: the engine with its clock, what callers hold, and what is counted about it all. A wire turns bytes into a
//! [`CheckRequest`] and a [`Decision`] into bytes; between the two it is here.

use tollgate::store::Store;
use tollgate::{
    CheckRequest, Clock, Decision, Engine, HeaderPolicy, MemoryStore, Permit, Quota, Reservation, Ticks,
    Timestamp,
};

use crate::decision_json::Hold;
use crate::seldom::Seldom;
use holds::Holds;

pub(crate) mod holds;

/// Most permits that the server remembers; about 64 MiB of them.
const PERMITS_MAX: usize = 1 << 18;
/// Most open reservations; about 64 MiB of them.
const RESERVATIONS_MAX: usize = 1 << 17;

/// The way a question came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// JSON over HTTP.
    Http,
}

/// The engine, and what its callers hold.
pub(crate) struct Service<S = MemoryStore> {
    pub(crate) engine: Engine<S>,
    clock: Clock,
    pub(crate) headers: HeaderPolicy,
    pub(crate) permits: Holds<Permit>,
    pub(crate) reservations: Holds<Reservation>,
    no_room: Seldom,
}

impl<S: Store> Service<S> {
    /// Answers by this engine, at the times of this clock.
    pub(crate) fn new(engine: Engine<S>, clock: Clock) -> Self {
        Self {
            engine,
            clock,
            headers: HeaderPolicy::default(),
            permits: Holds::new(PERMITS_MAX),
            reservations: Holds::new(RESERVATIONS_MAX),
            no_room: Seldom::default(),
        }
    }

    /// The time by which requests are answered.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Answers one question. The only way from a wire to the engine, so that every decision is counted once.
    pub(crate) async fn check(&self, request: &CheckRequest<'_>, now: Timestamp, wire: Wire) -> Decision {
        let decision = self.engine.check(request, now).await;
        tracing::trace!(?wire, allowed = decision.is_allowed(), "decided");
        decision
    }

    /// The same, and keeps the permit that a concurrency limit gave, so that the caller can give it back by its id.
    pub(crate) async fn check_and_hold(
        &self,
        request: &CheckRequest<'_>,
        now: Timestamp,
        wire: Wire,
    ) -> (Decision, Hold) {
        let mut decision = self.check(request, now, wire).await;
        let Some(permit) = decision.take_permit() else {
            return (decision, Hold::None);
        };
        let hold = match self.permits.put(permit, now + permit_lifetime(&decision), now) {
            Ok(id) => Hold::Permit { id: id.to_string() },
            Err(_) => {
                // The place stays taken until it expires: that denies too much for a while, and admits nothing too much.
                if let Some(skipped) = self.no_room.due(now) {
                    tracing::warn!(
                        skipped,
                        "no room for another permit: it cannot be given back before it expires"
                    );
                }
                Hold::None
            }
        };
        (decision, hold)
    }
}

/// How long the permits of a decision live: the longest of its concurrency limits.
fn permit_lifetime(decision: &Decision) -> Ticks {
    let lifetime = |quota: &Quota| match quota {
        Quota::Concurrency(permits) => permits.ttl(),
        _ => Ticks::ZERO,
    };
    decision.limits().map(|status| lifetime(status.quota)).max().unwrap_or_default()
}
