//! The RESP wire: what any redis client can ask. Bytes become commands in [`frame`], a [`session`] carries them out, [`reply`]
//! turns answers into bytes, and a [`connection`] moves both. `TG.CHECK` asks the service as every wire does; `CL.THROTTLE` tells
//! its limit with each call, so it has counters of its own there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::service::Service;
use crate::store::Stores;

mod frame;
mod reply;
mod catalog;
mod session;
mod line;
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

/// What all connections share.
pub(crate) struct Resp<S = Stores> {
    service: Arc<Service<S>>,
    /// How many connections there ever were. Relaxed: the numbers need only differ.
    ids: AtomicU64,
}

impl<S> Resp<S> {
    /// Answers by this service.
    pub(crate) const fn new(service: Arc<Service<S>>) -> Self {
        Self { service, ids: AtomicU64::new(0) }
    }

    /// A number for another connection.
    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
