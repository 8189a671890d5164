//! One primary: its connection, its breaker and its queue. [`supervisor`] maintains the connection.

pub(crate) mod factory;
pub(crate) mod queue;
mod supervisor;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::breaker::{Breaker, BreakerState};
use crate::connection::Connection;
use crate::metrics::ShardReport;
use crate::reply::{Failure, ReplyClass};
use crate::settings::Host;
use queue::Queue;

/// Whether requests should wait for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// There is one.
    Connected,
    /// An attempt to connect is in progress.
    Connecting,
    /// The last attempt failed, and the next one is too far away to wait for.
    Unavailable,
}

pub(crate) struct Shard {
    /// The host in the URL or the slot map. Behind sentinels it is the service, and the primary may change.
    pub(crate) host: Host,
    pub(crate) breaker: Breaker,
    pub(crate) queue: Queue,
    pub(crate) connection: ArcSwapOption<Connection>,
    pub(crate) state: watch::Sender<ConnectionState>,
    /// Wakes the supervisor to check a suspect connection.
    pub(crate) suspect: Notify,
    /// A key group in one of the shard's slots, for probes; above `u16::MAX` if the shard has no slot.
    pub(crate) group: AtomicU32,
    in_flight: AtomicUsize,
    in_flight_max: usize,
    error: Mutex<Option<String>>,
    supervisor: Mutex<Option<AbortHandle>>,
    /// When another node last redirected a request here.
    redirected_at: Mutex<Option<Instant>>,
}

/// Permits one request in flight.
pub(crate) struct InFlightPermit(Arc<Shard>);

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shard {
    pub(crate) fn new(host: Host, deadline: Duration, in_flight_max: usize, now: Instant) -> Self {
        Self {
            host,
            breaker: Breaker::new(deadline, now),
            queue: Queue::default(),
            connection: ArcSwapOption::empty(),
            state: watch::Sender::new(ConnectionState::Connecting),
            suspect: Notify::new(),
            group: AtomicU32::new(0),
            in_flight: AtomicUsize::new(0),
            in_flight_max,
            error: Mutex::new(None),
            supervisor: Mutex::new(None),
            redirected_at: Mutex::new(None),
        }
    }

    /// Acquires a permit for one request if the breaker and the in-flight limit allow it.
    pub(crate) fn acquire(self: &Arc<Self>) -> Result<InFlightPermit, Failure> {
        if !self.breaker.admits() {
            return Err(ReplyClass::Open.into());
        }
        // Relaxed: concurrent requests may exceed the limit by their number.
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= self.in_flight_max {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Err(ReplyClass::Shed.into());
        }
        Ok(InFlightPermit(Arc::clone(self)))
    }

    /// The connection, waiting for an attempt in progress.
    pub(crate) async fn connection(&self, deadline: Instant) -> Option<Arc<Connection>> {
        if let Some(connection) = self.open_connection() {
            return Some(connection);
        }
        let mut state = self.state.subscribe();
        let changed = state.wait_for(|state| *state != ConnectionState::Connecting);
        let _ = timeout_at(deadline, changed).await.ok()?;
        self.open_connection()
    }

    pub(crate) fn open_connection(&self) -> Option<Arc<Connection>> {
        self.connection.load_full().filter(|connection| connection.is_open())
    }

    /// Drops the connection. The supervisor makes a new one.
    pub(crate) fn disconnect(&self) {
        if let Some(connection) = self.connection.swap(None) {
            self.state.send_replace(ConnectionState::Connecting);
            connection.close();
        }
        self.suspect.notify_one();
    }

    /// Records a redirection to this node.
    pub(crate) fn mark_redirect_target(&self, now: Instant) {
        *self.redirected_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Forgets redirections to this node: the slot map now lists it, or it redirected a request itself.
    pub(crate) fn clear_redirect_target(&self) {
        *self.redirected_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn is_redirect_target(&self) -> bool {
        self.redirected_at.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether a request was redirected here within this time.
    pub(crate) fn was_redirect_target_within(&self, time: Duration, now: Instant) -> bool {
        let redirected_at = *self.redirected_at.lock().unwrap_or_else(PoisonError::into_inner);
        redirected_at.is_some_and(|redirected_at| now < redirected_at + time)
    }

    /// Whether the breaker admits probes only.
    pub(crate) fn admits_only_probes(&self) -> bool {
        matches!(self.breaker.state(), BreakerState::Open | BreakerState::Probing)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.open_connection().is_some()
    }

    /// Sets the last error. Returns whether it changed.
    pub(crate) fn set_last_error(&self, error: Option<String>) -> bool {
        let mut last = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *last != error;
        *last = error;
        is_news
    }

    /// Sets the last error, and logs it if it is new.
    pub(crate) fn report_problem(&self, problem: String) {
        let reason = problem.clone();
        if self.set_last_error(Some(problem)) {
            tracing::warn!(store = %self.host, reason, "the store does not answer as it should");
        }
    }

    pub(crate) fn set_supervisor(&self, supervisor: AbortHandle) {
        *self.supervisor.lock().unwrap_or_else(PoisonError::into_inner) = Some(supervisor);
    }

    /// Stops maintaining the connection: the node is no longer a primary of this cluster.
    pub(crate) fn retire(&self) {
        if let Some(supervisor) = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take() {
            supervisor.abort();
        }
        self.state.send_replace(ConnectionState::Unavailable);
        // Calls in flight keep their reference until they are answered.
        self.connection.store(None);
    }

    pub(crate) fn report(&self, now: Instant) -> ShardReport {
        let is_connected = self.is_connected();
        let last_error = self.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ShardReport {
            address: self.host.to_string(),
            state: self.breaker.state(),
            opened: u64::from(self.breaker.opened()),
            is_connected,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            away_for: self.breaker.away_for(now).unwrap_or_default(),
            // A connection that was just lost has no error until the next attempt to connect has failed.
            last_error: last_error.or_else(|| (!is_connected).then(|| "there is no connection".to_owned())),
        }
    }
}
