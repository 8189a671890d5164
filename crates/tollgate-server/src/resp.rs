//! The RESP protocol, for any redis client. [`frame`] parses bytes into commands, a [`session`] executes them,
//! [`reply`] encodes answers, and a [`connection`] moves the bytes. `TG.CHECK` asks the service like every protocol.
//! `CL.THROTTLE` carries its limit in each call, so the service has separate counters for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::service::Service;
use crate::store::Stores;

mod frame;
mod reply;
mod catalog;
mod session;
mod pipeline;
mod check;
mod throttle;
mod greeting;
mod client;
mod about;
mod connection;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;

pub(crate) use connection::connection;

/// State that all connections share.
pub(crate) struct Resp<S = Stores> {
    service: Arc<Service<S>>,
    /// The number of connections so far. Relaxed: the numbers only have to be distinct.
    ids: AtomicU64,
}

impl<S> Resp<S> {
    /// Answers with this service.
    pub(crate) const fn new(service: Arc<Service<S>>) -> Self {
        Self { service, ids: AtomicU64::new(0) }
    }

    /// The number of a new connection.
    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
