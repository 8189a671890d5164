//! The number of open connections, by protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::Wire;

/// Connections that are open now. The numbers guard no other memory, so relaxed orderings are enough.
#[derive(Default)]
pub(super) struct Connections {
    open: Arc<[AtomicU64; Wire::ALL.len()]>,
}

/// One open connection, counted until this is dropped.
pub(crate) struct Open {
    open: Arc<[AtomicU64; Wire::ALL.len()]>,
    wire: Wire,
}

impl Connections {
    pub(super) fn opened(&self, wire: Wire) -> Open {
        self.open[wire as usize].fetch_add(1, Ordering::Relaxed);
        Open { open: Arc::clone(&self.open), wire }
    }

    pub(super) fn open(&self, wire: Wire) -> u64 {
        self.open[wire as usize].load(Ordering::Relaxed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.open[self.wire as usize].fetch_sub(1, Ordering::Relaxed);
    }
}
