//! The idle HTTP/1 connections to one upstream, and the slots of its requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::http1_client::Http1Connection;
use crate::shares::{ClientShares, ShareOwner, Slot};

/// Maximum idle connections.
pub(crate) const RESTING_MAX: usize = 256;

/// The connections and slots of one upstream.
pub(crate) struct ConnectionPool {
    /// The slots of its requests.
    pub(crate) requests: Arc<ClientShares>,
    /// Idle connections, the last used last. Locked to push and to pop.
    resting: Mutex<Vec<Resting>>,
}

struct Resting {
    connection: Box<Http1Connection>,
    until: Instant,
}

impl ConnectionPool {
    /// A pool without connections.
    pub(crate) fn new(requests: Arc<ClientShares>) -> Arc<Self> {
        Arc::new(Self { requests, resting: Mutex::default() })
    }

    /// A slot for a request of a client, if one is free.
    pub(crate) fn free_slot(&self, client: ShareOwner) -> Option<Slot> {
        self.requests.try_take(client).ok()
    }

    /// Takes the idle connection that was used last.
    pub(crate) fn take(&self) -> Option<Box<Http1Connection>> {
        let now = Instant::now();
        let mut resting = self.resting();
        while let Some(mut kept) = resting.pop() {
            if kept.until > now && kept.connection.is_fit() {
                return Some(kept.connection);
            }
        }
        None
    }

    /// Keeps an idle connection whose answer is over.
    pub(crate) fn keep(&self, connection: Box<Http1Connection>, rest: Duration) {
        let until = Instant::now() + rest;
        let mut resting = self.resting();
        if resting.len() >= RESTING_MAX {
            resting.remove(0); // The one that was idle for longest.
        }
        resting.push(Resting { connection, until });
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn tidy(&self) {
        let now = Instant::now();
        self.resting().retain_mut(|kept| kept.until > now && kept.connection.is_fit());
    }

    /// Closes all idle connections.
    pub(crate) fn clear(&self) {
        self.resting().clear();
    }

    fn resting(&self) -> MutexGuard<'_, Vec<Resting>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
