//! The RESP wire: what any redis client can ask. Bytes become commands in [`frame`], a [`session`] carries them out, [`reply`]
//! turns answers into bytes, and a [`connection`] moves both. `TG.CHECK` asks the service as every wire does; `CL.THROTTLE` tells
//! its limit with each call, so its arithmetic ([`cell`]) and its memory ([`cells`]) are here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::MemoryStore;

use crate::service::Service;
use cells::Cells;

mod frame;
mod reply;
mod cell;
mod cells;
mod catalog;
mod session;
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
pub(crate) struct Resp<S = MemoryStore> {
    service: Arc<Service<S>>,
    cells: Cells,
    /// How many connections there ever were. Relaxed: the numbers need only differ.
    ids: AtomicU64,
}

impl<S> Resp<S> {
    /// Answers by this service; what `CL.THROTTLE` remembers takes at most so many bytes.
    pub(crate) fn new(service: Arc<Service<S>>, bytes: u64) -> Self {
        Self { service, cells: Cells::new(bytes), ids: AtomicU64::new(0) }
    }

    /// A number for another connection.
    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
