//! One primary: its connection, its breaker, and what is under way to it. Keeping the connection is left to [`super::keep`].

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::class::{Class, Failure};
use super::queue::Queue;
use super::tally::ShardReport;
use super::wire::Wire;
use crate::breaker::{Breaker, BreakerState};
use crate::settings::Host;

/// Whether there is a connection to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// There is one.
    Connected,
    /// One is being made.
    Connecting,
    /// None could be made, and the next try is a while away.
    Away,
}

pub(super) struct Shard {
    /// As the URL or the cluster names it. Behind sentinels the primary may be another from time to time.
    pub(super) host: Host,
    pub(super) breaker: Breaker,
    pub(super) queue: Queue,
    pub(super) wire: ArcSwapOption<Wire>,
    pub(super) standing: watch::Sender<Standing>,
    /// Wakes the keeper when somebody found the connection wanting.
    pub(super) doubted: Notify,
    /// A group of keys that lies in one of its slots, for probes; above all groups if it has none.
    pub(super) group: AtomicU32,
    in_flight: AtomicUsize,
    in_flight_max: usize,
    error: Mutex<Option<String>>,
    keeper: Mutex<Option<AbortHandle>>,
    /// When somebody was last sent here by another node.
    named: Mutex<Option<Instant>>,
}

/// A request's place among those under way.
pub(super) struct Place(Arc<Shard>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shard {
    pub(super) fn new(host: Host, deadline: Duration, in_flight_max: usize, now: Instant) -> Self {
        Self {
            host,
            breaker: Breaker::new(deadline, now),
            queue: Queue::default(),
            wire: ArcSwapOption::empty(),
            standing: watch::Sender::new(Standing::Connecting),
            doubted: Notify::new(),
            group: AtomicU32::new(0),
            in_flight: AtomicUsize::new(0),
            in_flight_max,
            error: Mutex::new(None),
            keeper: Mutex::new(None),
            named: Mutex::new(None),
        }
    }

    /// A place for one request, if the breaker and the bound allow.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Place, Failure> {
        if !self.breaker.admits() {
            return Err(Class::Open.into());
        }
        // Relaxed: the bound may be passed by as many as count at the same instant.
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= self.in_flight_max {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Err(Class::Shed.into());
        }
        Ok(Place(Arc::clone(self)))
    }

    /// The connection, waited for while it is being made.
    pub(super) async fn wire(&self, deadline: Instant) -> Option<Arc<Wire>> {
        if let Some(wire) = self.open_wire() {
            return Some(wire);
        }
        let mut standing = self.standing.subscribe();
        let changed = standing.wait_for(|standing| *standing != Standing::Connecting);
        let _ = timeout_at(deadline, changed).await.ok()?;
        self.open_wire()
    }

    pub(super) fn open_wire(&self) -> Option<Arc<Wire>> {
        self.wire.load_full().filter(|wire| wire.is_open())
    }

    /// Lets the connection go, so that the keeper makes a new one.
    pub(super) fn disconnect(&self) {
        if let Some(wire) = self.wire.swap(None) {
            self.standing.send_replace(Standing::Connecting);
            wire.close();
        }
        self.doubted.notify_one();
    }

    /// Somebody was sent here.
    pub(super) fn name(&self, now: Instant) {
        *self.named.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// It is known by the map, or has sent somebody away: that it was named says nothing any more.
    pub(super) fn unname(&self) {
        *self.named.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn is_named(&self) -> bool {
        self.named.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether somebody was sent here in this time.
    pub(super) fn was_named_within(&self, time: Duration, now: Instant) -> bool {
        let named = *self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.is_some_and(|named| now < named + time)
    }

    /// Whether only probes are sent.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.breaker.state(), BreakerState::Open | BreakerState::Probing)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.open_wire().is_some()
    }

    /// Remembers why the store could not be reached. Whether that is news.
    pub(super) fn note(&self, error: Option<String>) -> bool {
        let mut last = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *last != error;
        *last = error;
        is_news
    }

    /// Remembers what is wrong with the store, and says so if that is news.
    pub(super) fn complain(&self, what: String) {
        let words = what.clone();
        if self.note(Some(what)) {
            tracing::warn!(store = %self.host, reason = words, "the store does not answer as it should");
        }
    }

    pub(super) fn kept_by(&self, keeper: AbortHandle) {
        *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
    }

    /// Stops keeping the connection: the node is no primary of this cluster any more.
    pub(super) fn retire(&self) {
        if let Some(keeper) = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take() {
            keeper.abort();
        }
        self.standing.send_replace(Standing::Away);
        // Calls under way hold it until they are answered.
        self.wire.store(None);
    }

    pub(super) fn report(&self, now: Instant) -> ShardReport {
        ShardReport {
            address: self.host.to_string(),
            state: self.breaker.state(),
            opened: u64::from(self.breaker.opened()),
            is_connected: self.is_connected(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            away_for: self.breaker.away_for(now).unwrap_or_default(),
            last_error: self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
