//! What an operator may do to a running engine. All of it overrides the policy, and none of it is in a store: it works
//! while the store is down, and it survives a reload. It is kept in memory. A program that wants it to survive a
//! restart saves what `rulings` and `blocks` return, and restores it with `resume_rulings` and `block`.

use std::sync::Arc;

use super::Engine;
use super::block::BlockError;
use super::overrides::{OverrideSet, Ruled, Ruling, RulingError, Scope};
use crate::decision::Block;
use crate::memory::MemoryStore;
use crate::policy::{Limit, Mode, Policy};
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::Timestamp;

impl<S: Store> Engine<S> {
    /// Denies every request that has these attributes, whatever else it has, until `until`. An address includes all
    /// addresses that count as one with it, and may be a network. A block with the same attributes is replaced.
    ///
    /// # Errors
    /// When it names no attribute or too many, an address that is none, or there are too many blocks.
    pub fn block(
        &self,
        attributes: &CheckRequest<'_>,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Arc<Block>, BlockError> {
        let block = self.blocks.add(attributes, &self.policy(), (until, self.wall()), now);
        self.changed();
        block
    }

    /// Removes the block with exactly these attributes. Returns whether there was one.
    pub fn unblock(&self, attributes: &CheckRequest<'_>, now: Timestamp) -> bool {
        let was_blocked = self.blocks.remove(attributes, &self.policy(), now);
        self.changed();
        was_blocked
    }

    /// The active blocks, oldest first.
    #[must_use]
    pub fn blocks(&self, now: Timestamp) -> Vec<Arc<Block>> {
        self.blocks.list(now)
    }

    /// The block that lasts longest among those that match these names and values, for a program that decides by rules
    /// of its own. Any number of pairs of any length is accepted, and a name may have several values.
    #[must_use]
    pub fn blocked(&self, pairs: &[(&str, &str)], now: Timestamp) -> Option<Arc<Block>> {
        self.blocks.of_pairs(pairs, now)
    }

    /// The override of all limits at this instant, if there is one, for a program that decides by rules of its own.
    #[must_use]
    pub fn ruling_about_all(&self, now: Timestamp) -> Option<Ruling> {
        self.overrides.at(now).about_all()
    }

    /// Overrides the policy for a limit, or for all limits, until an instant. An earlier override of the same scope is
    /// replaced. Where an override of the limit and one of all limits apply at once, the milder one wins.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Clock, Engine, Policy, Ruled, Ruling, Scope, Ticks};
    /// let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: all, rate: 1/h}]")?;
    /// let (clock, request) = (Clock::precise(), CheckRequest::new());
    /// let (now, engine) = (clock.now(), Engine::new(policy, clock.now()));
    /// assert!(engine.try_check(&request, now)?.is_allowed());
    /// assert!(!engine.try_check(&request, now)?.is_allowed());
    /// let killed = Ruled { ruling: Ruling::Off, until: now + Ticks::from_secs(60) };
    /// engine.rule(Scope::Limit("all"), killed, now)?;
    /// assert!(engine.try_check(&request, now + Ticks::from_secs(59))?.is_allowed());
    /// assert!(!engine.try_check(&request, now + Ticks::from_secs(60))?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the policy has no such limit or it is off there, or too many limits have overrides.
    pub fn rule(&self, scope: Scope<'_>, ruled: Ruled, now: Timestamp) -> Result<(), RulingError> {
        self.overrides.rule(&self.policy(), scope, ruled, now)?;
        self.prepare_shadow(scope, ruled.ruling);
        Ok(())
    }

    /// Prepares the shadow counters: a limit that an override puts in shadow, fully or in part, is counted apart.
    fn prepare_shadow(&self, scope: Scope<'_>, ruling: Ruling) {
        let active = self.active.load();
        match scope {
            _ if ruling == Ruling::Off => {}
            Scope::All => self.store.prepare(active.shadows(None)),
            Scope::Limit(name) => {
                if let Some(place) = active.position(name) {
                    self.store.prepare(active.shadows(Some(place)));
                }
            }
        }
    }

    /// The limits of the active policy that may be [leased](crate::lease), and the [numbers](crate::store::Family::id)
    /// of their counters: first those that decide, then those in shadow.
    #[must_use]
    pub fn leased_families(&self) -> Vec<(String, [u64; 2])> {
        let active = self.active.load();
        let each = active.policy.limits().iter().zip(&active.counters);
        each.filter(|(limit, _)| limit.lease().is_some())
            .map(|(limit, counters)| {
                (limit.name().to_owned(), [counters.enforced.id(), counters.shadow.id()])
            })
            .collect()
    }

    /// The operator's override of a limit at this instant. Where an override of the limit and one of all limits apply,
    /// it is the milder one. `None` for a limit that is off in the policy, which no override turns on.
    #[must_use]
    pub fn ruled(&self, limit: &Limit, now: Timestamp) -> Option<Ruled> {
        self.overrides.at(now).over(limit)
    }

    /// Whether a limit decides at this instant, and for which share of keys, overrides included.
    #[must_use]
    pub fn footing(&self, limit: &Limit, now: Timestamp) -> (Mode, u8) {
        self.overrides.at(now).shown_mode(limit)
    }

    /// Removes an override. Returns whether there was one. The policy then applies again, unless another override does:
    /// see [`Engine::ruled`].
    pub fn lift(&self, scope: Scope<'_>, now: Timestamp) -> bool {
        self.overrides.restore(scope, now)
    }

    /// An engine of another policy, or the same, with counters of its own in memory that start empty: for a candidate
    /// policy. The overrides of this engine apply there, too, and `enforce_percent` selects the same keys.
    pub fn beside(&self, policy: Arc<Policy>, bytes: u64, now: Timestamp) -> Engine<MemoryStore> {
        let now = now.decidable();
        let engine =
            Engine::with_shared(policy, MemoryStore::new(bytes, now), self.active.load().secret.copy());
        engine.overrides.follow(&self.overrides, now);
        engine.follow_wall(self.wall(), now);
        engine
    }

    /// The active overrides: the one of all limits, and those of single limits by name.
    #[must_use]
    pub fn rulings(&self, now: Timestamp) -> (Option<Ruled>, Vec<(String, Ruled)>) {
        self.overrides.list(now)
    }

    /// Replaces all overrides with those that [`Engine::rulings`] returned earlier, as after a restart. Overrides that
    /// have ended since are left out. An override of a limit that the policy does not have waits for a policy that has
    /// the limit, as it does over a swap.
    ///
    /// # Errors
    /// When there are too many, or a percentage is above 100; nothing is changed then.
    pub fn resume_rulings(
        &self,
        (all, single): (Option<Ruled>, Vec<(String, Ruled)>),
        now: Timestamp,
    ) -> Result<(), RulingError> {
        if let Some(all) = &all {
            self.prepare_shadow(Scope::All, all.ruling);
        }
        single.iter().for_each(|(name, ruled)| self.prepare_shadow(Scope::Limit(name), ruled.ruling));
        self.overrides.resume(OverrideSet::new(all, single), now)
    }
}
