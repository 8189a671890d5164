//! Engines that hash keys with the same secret, so that they name the same counters.

use std::sync::Arc;

use super::Engine;
use crate::active::ActivePolicy;
use crate::key::Secret;
use crate::memory::MemoryStore;
use crate::policy::Policy;
use crate::store::Store;
use crate::time::Timestamp;

/// Engines that hash keys with the same secret.
pub struct Siblings<'e, S> {
    pub(super) engine: &'e Engine<S>,
}

impl<S> Copy for Siblings<'_, S> {}

impl<S> Clone for Siblings<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store> Siblings<'_, S> {
    /// Hashes keys with another secret from now on, as when the fleet's shared secret is learnt late. Every counter of
    /// this engine starts anew under it.
    pub fn rekey(self, secret: Secret) {
        self.engine.rekey_with(Arc::new(secret));
    }

    /// As [`Siblings::rekey`], with the secret of another engine.
    pub fn rekey_as<T: Store>(self, other: &Engine<T>) {
        let secret = Arc::clone(&other.active.load().secret);
        self.engine.rekey_with(secret);
    }

    /// Another engine, with a policy and counters of its own: for two engines that share a store.
    #[must_use]
    pub fn sibling<T: Store>(self, policy: Policy, store: T) -> Engine<T> {
        let secret = Arc::clone(&self.engine.active.load().secret);
        let active = ActivePolicy::first(Arc::new(policy), secret, store.is_grouped());
        Engine::assemble(active, store, self.engine.clock.clone())
    }

    /// An engine of another policy, or the same, with counters of its own in memory that start empty: for a candidate
    /// policy. The overrides of this engine apply there, too, and `enforce_percent` selects the same keys.
    pub fn candidate(self, policy: Arc<Policy>, bytes: u64, now: Timestamp) -> Engine<MemoryStore> {
        let now = now.decidable();
        let (store, secret) = (MemoryStore::new(bytes, now), Arc::clone(&self.engine.active.load().secret));
        let active = ActivePolicy::first(policy, secret, store.is_grouped());
        let engine = Engine::assemble(active, store, self.engine.clock.clone());
        engine.overrides.follow(&self.engine.overrides, now);
        engine.maintenance().follow_wall(self.engine.wall_offset(), now);
        engine
    }
}
