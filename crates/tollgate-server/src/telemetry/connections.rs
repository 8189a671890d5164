//! The number of open connections, by protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::Protocol;

/// Connections that are open now. The numbers guard no other memory, so relaxed orderings are enough.
#[derive(Default)]
pub(super) struct Connections {
    open: Arc<[AtomicU64; Protocol::CONNECTED.len()]>,
}

/// One open connection, counted until this is dropped.
pub(crate) struct Open {
    open: Arc<[AtomicU64; Protocol::CONNECTED.len()]>,
    protocol: Protocol,
}

impl Connections {
    pub(super) fn opened(&self, protocol: Protocol) -> Open {
        self.open[protocol as usize].fetch_add(1, Ordering::Relaxed);
        Open { open: Arc::clone(&self.open), protocol }
    }

    pub(super) fn open(&self, protocol: Protocol) -> u64 {
        self.open[protocol as usize].load(Ordering::Relaxed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.open[self.protocol as usize].fetch_sub(1, Ordering::Relaxed);
    }
}
