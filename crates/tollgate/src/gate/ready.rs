//! The two futures of a gate: waiting for units, and for a permit to hold.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::wait::{NotReady, Wait};
use super::{InFlight, KeyedGate};
use crate::key::Fingerprint;
use crate::outcome::Outcome;

/// A wait for units. It resolves when it was served. Dropping it leaves the queue and costs nothing.
#[must_use = "a wait does nothing unless awaited"]
pub struct Ready(Wait);

/// A wait for a permit. It resolves to the permit. Dropping it leaves the queue and takes nothing; a permit
/// that was already assigned is returned.
#[must_use = "a wait does nothing unless awaited"]
pub struct Acquiring(Wait);

impl Ready {
    pub(super) const fn new(gate: KeyedGate, key: Fingerprint) -> Self {
        Self(Wait::new(gate, key))
    }

    /// Waits for `cost` units.
    pub const fn cost(mut self, cost: u64) -> Self {
        self.0.cost = cost;
        self
    }

    /// Waits at most this long, counted from the first poll, and fails immediately if that cannot be enough.
    ///
    /// The forecast at the first poll considers the counter and the queue: all waiters ahead stay, each is
    /// served as early as possible, and no units are given back. If the forecast exceeds the deadline, the
    /// wait fails immediately and does not queue; if it meets the deadline, to the last tick, the wait
    /// queues. If other requests take the units without queueing, it fails when it is the first waiter and
    /// notices, and at the deadline at the latest.
    ///
    /// A forecast is bounded. For windows and logs it simulates up to 4,096 instants; for buckets it may be a
    /// tick early per waiter ahead. An uncertain wait does not fail immediately.
    ///
    /// With a concurrency quota there is no forecast, since a permit may be returned at any time: it waits
    /// until the deadline. A deadline of zero fails immediately if no permit is free.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.0.within(deadline);
        self
    }
}

impl Acquiring {
    pub(super) const fn new(gate: KeyedGate, key: Fingerprint) -> Self {
        Self(Wait::new(gate, key))
    }

    /// Waits at most this long, counted from the first poll. A permit may be returned at any time, so it fails only at
    /// the deadline; a deadline of zero fails immediately if no permit is free.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Gate, NotReady, Quota};
    /// let gate = Gate::new(Quota::concurrency(1, Duration::from_secs(30))?)?;
    /// # pollster::block_on(async {
    /// let permit = gate.until_acquired().within(Duration::ZERO).await;
    /// assert!(permit.is_ok());
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
        // The permit is delivered by the poll that takes it, so it always has an owner that returns it.
        self.0.poll(context).map_ok(|grant| InFlight::new(gate, key, grant.permit))
    }
}
