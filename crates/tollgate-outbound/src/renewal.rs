//! Renewal of the permit of a call, for as long as the call holds it. The permits of a process that dies expire.

use std::sync::{Arc, Weak};

use tokio::task::JoinHandle;
use tollgate::store::Store;
use tollgate::{Permit, Ticks};

use crate::state::Shared;

/// A permit is renewed after this fraction of its lifetime, so that a short outage of the store does not expire it.
const FRACTION: u64 = 3;
/// The shortest time between two renewals.
const INTERVAL_MIN: Ticks = Ticks::from_millis(10);

/// Renews a permit until it is dropped.
#[derive(Debug)]
pub(crate) struct Renewal(JoinHandle<()>);

impl Renewal {
    /// Begins to renew a permit. Without a runtime no task can renew, and the permit expires.
    pub(crate) fn start<S: Store + Send + Sync + 'static>(
        shared: &Arc<Shared<S>>,
        permit: &Permit,
    ) -> Option<Self> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(Self(runtime.spawn(renew(Arc::downgrade(shared), permit.clone()))))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn renew<S: Store + Send + Sync + 'static>(shared: Weak<Shared<S>>, permit: Permit) {
    loop {
        let sleep = {
            let Some(shared) = shared.upgrade() else { return };
            // By the active policy, which may be newer than the permit.
            let ttl = shared.engine.reservations().renewed_for(&permit);
            let interval = Ticks::from_micros(ttl.as_micros() / FRACTION).max(INTERVAL_MIN);
            shared.engine.maintenance().clock().sleep_until(shared.engine.now() + interval)
        };
        sleep.await;
        let Some(shared) = shared.upgrade() else { return };
        // If the store does not answer, the next round renews it, in time.
        let _ = shared.engine.reservations().renew(&permit, shared.engine.now()).await;
    }
}
