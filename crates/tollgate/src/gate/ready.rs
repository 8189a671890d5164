//! The two waits that a gate hands out: for units, and for a place in flight to hold.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::wait::{NotReady, Wait};
use super::{InFlight, KeyedGate};
use crate::key::Fingerprint;
use crate::outcome::Outcome;

/// A wait in line for units. Resolves when its turn has come and it was admitted. Dropping it gives up the place in line and
/// costs nothing.
#[must_use = "a wait does nothing unless awaited"]
pub struct Ready(Wait);

/// A wait in line for a place in flight. Resolves to the place when its turn has come. Dropping it gives up the place in
/// line and takes nothing; a place that was delivered and is dropped is given back.
#[must_use = "a wait does nothing unless awaited"]
pub struct Acquiring(Wait);

impl Ready {
    pub(super) const fn new(gate: KeyedGate, key: Fingerprint) -> Self {
        Self(Wait::new(gate, key))
    }

    /// Waits for so many units.
    pub const fn cost(mut self, cost: u64) -> Self {
        self.0.cost = cost;
        self
    }

    /// Waits at most so long, counted from the first poll, and refuses at once when that is known not to be enough.
    ///
    /// Known is what the counter and the line say at the first poll: when its turn comes if those ahead all stay, each is
    /// served as early as the counter allows, and nobody gives units back. If that is too late it is refused at once, and
    /// takes no place in line; if it is in time, to the last tick, it is not. When others who do not stand in line take what it
    /// waits for, it is refused as soon as it is the first and learns of it, and at the deadline at the latest.
    ///
    /// A forecast is bounded. For windows and logs it goes through the first 4,096 instants at which somebody ahead is served;
    /// for buckets it may be a tick early for each of them. What it cannot tell is not refused at once.
    ///
    /// Of a concurrency gate nothing is known beforehand, since a place may be given back at any time: it waits until the
    /// deadline and refuses then. A deadline of zero refuses at once what is not free.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.0.within(deadline);
        self
    }
}

impl Acquiring {
    pub(super) const fn new(gate: KeyedGate, key: Fingerprint) -> Self {
        Self(Wait::new(gate, key))
    }

    /// Waits at most so long, counted from the first poll. A place may be given back at any time, so it waits until the
    /// deadline and refuses then; a deadline of zero refuses at once when no place is free.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Gate, NotReady, Quota};
    /// let gate = Gate::new(Quota::concurrency(1, Duration::from_secs(30))?);
    /// # pollster::block_on(async {
    /// let place = gate.until_acquired().within(Duration::ZERO).await;
    /// assert!(place.is_ok());
    /// let refused = gate.until_acquired().within(Duration::from_millis(5)).await;
    /// assert!(matches!(refused, Err(NotReady::TooLate { .. })));
    /// # });
    /// # Ok::<(), tollgate::QuotaError>(())
    /// ```
    pub fn within(mut self, deadline: Duration) -> Self {
        self.0.within(deadline);
        self
    }
}

impl Future for Ready {
    type Output = Result<Outcome, NotReady>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map_ok(|grant| grant.outcome)
    }
}

impl Future for Acquiring {
    type Output = Result<InFlight, NotReady>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Wait { gate, key, .. } = &mut self.0;
        let (gate, key) = (gate.clone(), *key);
        // What was taken in this poll is delivered by it, so there is no instant in which nobody would give it back.
        self.0.poll(context).map_ok(|grant| InFlight::new(gate, key, grant.permit))
    }
}
