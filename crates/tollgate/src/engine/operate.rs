//! What an operator may do to a running engine. All of it is over the policy, none of it in a store: it works with the store down,
//! and outlives a reload. It lives in memory; whoever wants it to outlive the process keeps what `rulings` and `blocks` tell, and says it
//! again with `resume_rulings` and `block`.

use std::sync::Arc;

use super::Engine;
use super::block::BlockError;
use super::ruling::{Ruled, Ruling, RulingError, Rulings, Scope};
use crate::decision::Block;
use crate::memory::MemoryStore;
use crate::policy::{Limit, Mode, Policy};
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::Timestamp;

impl<S: Store> Engine<S> {
    /// Denies every request that has these attributes, whatever else it has, until then. An address stands for all that count as
    /// one with it, and may be a network. A block of the same attributes is replaced.
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

    /// Takes the block of exactly these attributes back; tells whether there was one.
    pub fn unblock(&self, attributes: &CheckRequest<'_>, now: Timestamp) -> bool {
        let was_blocked = self.blocks.remove(attributes, &self.policy(), now);
        self.changed();
        was_blocked
    }

    /// The blocks that hold, oldest first.
    #[must_use]
    pub fn blocks(&self, now: Timestamp) -> Vec<Arc<Block>> {
        self.blocks.list(now)
    }

    /// The block that denies longest what has these names and values, for whoever decides by rules of its own. Nothing is too
    /// long or too many for it, and a name may have several values.
    #[must_use]
    pub fn blocked(&self, pairs: &[(&str, &str)], now: Timestamp) -> Option<Arc<Block>> {
        self.blocks.of_pairs(pairs, now)
    }

    /// What is ruled about all limits at this instant, if anything is, for whoever decides by rules of its own.
    #[must_use]
    pub fn ruling_about_all(&self, now: Timestamp) -> Option<Ruling> {
        self.bench.at(now).about_all()
    }

    /// Rules about a limit, or all of them, over the policy and until then. An earlier ruling of the same scope is replaced.
    /// Where one about a limit and one about all hold at once, the milder does.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Clock, Engine, Policy, Ruled, Ruling, Scope, Ticks};
    /// let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: all, rate: 1/h}]")?;
    /// let (clock, request) = (Clock::precise(), CheckRequest::new());
    /// let (now, engine) = (clock.now(), Engine::new(policy, clock.now()));
    /// assert!(engine.check_now(&request, now).is_allowed());
    /// assert!(!engine.check_now(&request, now).is_allowed());
    /// let killed = Ruled { ruling: Ruling::Off, until: now + Ticks::from_secs(60) };
    /// engine.rule(Scope::Limit("all"), killed, now)?;
    /// assert!(engine.check_now(&request, now + Ticks::from_secs(59)).is_allowed());
    /// assert!(!engine.check_now(&request, now + Ticks::from_secs(60)).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the policy has no such limit or it is off there, or too many limits have rulings.
    pub fn rule(&self, scope: Scope<'_>, ruled: Ruled, now: Timestamp) -> Result<(), RulingError> {
        self.bench.rule(&self.policy(), scope, ruled, now)?;
        self.prepare_shadow(scope, ruled.ruling);
        Ok(())
    }

    /// What is ruled to shadow, in whole or in part, is counted apart.
    fn prepare_shadow(&self, scope: Scope<'_>, ruling: Ruling) {
        let live = self.live.load();
        match scope {
            _ if ruling == Ruling::Off => {}
            Scope::All => self.store.prepare(live.shadows(None)),
            Scope::Limit(name) => {
                if let Some(place) = live.position(name) {
                    self.store.prepare(live.shadows(Some(place)));
                }
            }
        }
    }

    /// The limits of the policy in force that may be [leased](crate::lease), and the [numbers](crate::store::Family::id) of their
    /// counters: of those that decide, and of those that only shadow.
    #[must_use]
    pub fn leased_families(&self) -> Vec<(String, [u64; 2])> {
        let live = self.live.load();
        let each = live.policy.limits().iter().zip(&live.counters);
        each.filter(|(limit, _)| limit.lease().is_some())
            .map(|(limit, counters)| {
                (limit.name().to_owned(), [counters.enforced.id(), counters.shadow.id()])
            })
            .collect()
    }

    /// What an operator's word about a limit is at this instant: the milder one where one about it and one about all hold. None for a
    /// limit that is off in the policy, which no ruling turns on.
    #[must_use]
    pub fn ruled(&self, limit: &Limit, now: Timestamp) -> Option<Ruled> {
        self.bench.at(now).over(limit)
    }

    /// Whether a limit decides at this instant, and for which share of keys, rulings included.
    #[must_use]
    pub fn footing(&self, limit: &Limit, now: Timestamp) -> (Mode, u8) {
        self.bench.at(now).standing(limit)
    }

    /// Takes a ruling back; tells whether there was one. The policy holds again, unless another ruling holds too: see
    /// [`Engine::ruled`].
    pub fn lift(&self, scope: Scope<'_>, now: Timestamp) -> bool {
        self.bench.restore(scope, now)
    }

    /// An engine of another policy, or the same, with counters of its own in memory that start empty: for a look at what it would
    /// decide. Rulings of this engine hold there, too, and `enforce_percent` chooses the same keys.
    pub fn beside(&self, policy: Arc<Policy>, bytes: u64, now: Timestamp) -> Engine<MemoryStore> {
        let now = now.decidable();
        let engine =
            Engine::with_shared(policy, MemoryStore::new(bytes, now), self.live.load().secret.copy());
        engine.bench.follow(&self.bench, now);
        engine.follow_wall(self.wall(), now);
        engine
    }

    /// The rulings that hold: the one about all limits, and those about single ones by name.
    #[must_use]
    pub fn rulings(&self, now: Timestamp) -> (Option<Ruled>, Vec<(String, Ruled)>) {
        self.bench.list(now)
    }

    /// Takes up what [`Engine::rulings`] told earlier, as after a restart, instead of all rulings that there are. What has ended since
    /// is left out. A ruling about a limit that the policy does not have waits for one that does, as it does over a swap.
    ///
    /// # Errors
    /// When there are too many, or a share is more than all; nothing is changed then.
    pub fn resume_rulings(
        &self,
        (all, single): (Option<Ruled>, Vec<(String, Ruled)>),
        now: Timestamp,
    ) -> Result<(), RulingError> {
        if let Some(all) = &all {
            self.prepare_shadow(Scope::All, all.ruling);
        }
        single.iter().for_each(|(name, ruled)| self.prepare_shadow(Scope::Limit(name), ruled.ruling));
        self.bench.resume(Rulings::new(all, single), now)
    }
}
