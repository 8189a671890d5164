//! The counters of a server: where they live, and what survives a restart.

use std::path::Path;
use std::sync::Arc;

use tollgate::{Clock, Engine, MemoryStore, Policy};

use crate::service::throttle_counters::CounterTable;
use crate::snapshot::{self, CounterCapacity, HeldDirectory, SnapshotInterval, Snapshots};
use crate::store::{StoreChoice, Stores};
use crate::store_watch::StoreWatch;

/// The fraction of the counter memory for `CL.THROTTLE`, whose keys no policy knows: one part in this many.
const THROTTLE_PART: u64 = 8;

/// The settings of the counters.
#[derive(Clone, Copy)]
pub(super) struct CounterSettings<'a> {
    /// Bytes for all counters.
    pub(super) memory: u64,
    /// Whether a protocol accepts `CL.THROTTLE`.
    pub(super) throttles: bool,
    pub(super) state_dir: Option<&'a Path>,
    pub(super) snapshot_every: SnapshotInterval,
}

/// The counters' memory and state directory, before any counter exists.
pub(super) struct Opened {
    choice: StoreChoice,
    capacity: CounterCapacity,
    state: Option<snapshot::SnapshotStart>,
    /// Held for the life of the server, so that no other server uses its directory.
    held: Option<HeldDirectory>,
}

/// The engine, and where its counters are kept.
pub(super) struct Counting {
    pub(super) engine: Engine<Stores>,
    pub(super) throttled: CounterTable,
    pub(super) snapshots: Option<Arc<Snapshots>>,
    pub(super) held: Option<HeldDirectory>,
    /// Watches a shared store.
    pub(super) watch: Option<Arc<StoreWatch>>,
}

impl Opened {
    /// Locks the state directory, and reads the counters in it if they belong there.
    ///
    /// # Errors
    /// When the directory or its contents cannot be read, or another server uses it.
    pub(super) fn open(
        choice: StoreChoice,
        settings: CounterSettings<'_>,
        clock: &Clock,
    ) -> Result<Self, String> {
        let throttle_bytes = if settings.throttles { settings.memory / THROTTLE_PART } else { 0 };
        let capacity = CounterCapacity { bytes: settings.memory - throttle_bytes, throttle_bytes };
        let (mut state, mut held) = (None, None);
        match (&choice, settings.state_dir) {
            (StoreChoice::Memory, Some(path)) => {
                state = Some(Snapshots::open(path, settings.snapshot_every, capacity, clock)?);
            }
            (StoreChoice::Shared(_), Some(path)) => held = Some(snapshot::hold(path)?),
            (_, None) => {}
        }
        Ok(Self { choice, capacity, state, held })
    }

    /// The lines of the banner about the store.
    pub(super) fn store_lines(&self) -> Vec<String> {
        let StoreChoice::Shared(shared) = &self.choice else {
            let bytes = self.capacity.bytes + self.capacity.throttle_bytes;
            return vec![format!("memory, at most {}", super::banner::bytes(bytes))];
        };
        let mut lines = vec![shared.line()];
        if self.capacity.throttle_bytes > 0 {
            lines.push("CL.THROTTLE and THROTTLE count in this process alone, and start empty".to_owned());
        }
        if shared.settings.is_exposed() {
            lines.push("warning: without TLS the store's password and its answers can be read and changed on their way; write rediss://".to_owned());
        }
        lines
    }

    /// The line of the banner about the state directory.
    pub(super) fn state_line(&self) -> Option<&str> {
        let held = self
            .held
            .as_ref()
            .map(|_| "the policy and the operator state are kept here; counters are in the store");
        self.state.as_ref().map(|state| state.line.as_str()).or(held)
    }

    /// Creates the engine, with the counters of the last run if there are any here.
    ///
    /// # Errors
    /// When the counters cannot be used under this policy.
    pub(super) fn counting(self, policy: Policy, clock: &Clock) -> Result<Counting, String> {
        let Self { choice, capacity, state, held } = self;
        let now = clock.now();
        let (snapshot, throttled, snapshots) = match state {
            Some(state) => (state.snapshot, state.throttled, Some(Arc::new(state.snapshots))),
            None => (None, CounterTable::new(capacity.throttle_bytes), None),
        };
        let watch = match &choice {
            StoreChoice::Memory => None,
            StoreChoice::Shared(shared) => Some(StoreWatch::new(shared.settings.topology().to_string())),
        };
        let engine = match (choice, snapshot) {
            (StoreChoice::Memory, Some(snapshot)) => {
                let restored = snapshot.restore(policy, Stores::Memory, now);
                restored.map_err(|error| format!("the snapshot cannot be used: {error}"))?.0
            }
            (StoreChoice::Memory, None) => {
                let store = Stores::Memory(MemoryStore::new(capacity.bytes, now));
                Engine::builder().policy(policy).store(store).build()
            }
            (StoreChoice::Shared(shared), _) => shared.engine(policy)?,
        };
        Ok(Counting { engine, throttled, snapshots, held, watch })
    }
}
