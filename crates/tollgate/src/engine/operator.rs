//! Operator commands on a running engine: overrides, blocks, explanations and resets. Overrides and blocks are not
//! in a store: they work while the store is down, and they survive a reload. They are kept in memory. A program that
//! wants them to survive a restart saves what `overrides` and `blocks` return, and restores it with `resume_overrides`
//! and `block`.

use std::sync::Arc;

use super::Engine;
use super::block::BlockError;
use crate::decision::{Block, Decision};
use crate::overrides::{ActiveOverrides, ExpiringOverride, LimitOverride, OverrideError, OverrideSet, Scope};
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::Timestamp;

mod explain;
mod reset;

pub use explain::{Explained, Explanation, LIMITS_EXPLAINED_MAX, State};
pub use reset::Forgotten;

/// Operator commands on a running engine.
pub struct Operator<'e, S> {
    pub(super) engine: &'e Engine<S>,
}

impl<S> Copy for Operator<'_, S> {}

impl<S> Clone for Operator<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store> Operator<'_, S> {
    /// Denies every request that has these attributes, whatever else it has, until `until`. An address includes all
    /// addresses that count as one with it, and may be a network. A block with the same attributes is replaced.
    ///
    /// # Errors
    /// When it names no attribute or too many, an address that is none, or there are too many blocks.
    pub fn block(
        self,
        attributes: &CheckRequest<'_>,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Arc<Block>, BlockError> {
        let block = self.engine.blocks.add(
            attributes,
            &self.engine.policy(),
            (until, self.engine.wall_offset()),
            now,
        );
        self.engine.changed();
        block
    }

    /// Removes the block with exactly these attributes. Returns whether there was one.
    pub fn unblock(self, attributes: &CheckRequest<'_>, now: Timestamp) -> bool {
        let was_blocked = self.engine.blocks.remove(attributes, &self.engine.policy(), now);
        self.engine.changed();
        was_blocked
    }

    /// The active blocks, oldest first.
    #[must_use]
    pub fn blocks(self, now: Timestamp) -> Vec<Arc<Block>> {
        self.engine.blocks.list(now)
    }

    /// The block that lasts longest among those that match these names and values, for a program that decides by rules
    /// of its own. Any number of pairs of any length is accepted, and a name may have several values.
    #[must_use]
    pub fn blocked(self, pairs: &[(&str, &str)], now: Timestamp) -> Option<Arc<Block>> {
        self.engine.blocks.of_pairs(pairs, now)
    }

    /// Overrides the policy for a limit, or for all limits, until an instant. An earlier override of the same scope is
    /// replaced. Where an override of the limit and one of all limits apply at once, the milder one wins.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Engine, ExpiringOverride, LimitOverride, Scope, Ticks};
    /// let policy = "limits: [{name: all, rate: 1/h}]".parse()?;
    /// let request = CheckRequest::new();
    /// let engine = Engine::builder().policy(policy).build();
    /// let now = engine.now();
    /// assert!(engine.try_check(&request, now)?.is_allowed());
    /// assert!(!engine.try_check(&request, now)?.is_allowed());
    /// let killed = ExpiringOverride { kind: LimitOverride::Off, until: now + Ticks::from_secs(60) };
    /// engine.operator().set_override(Scope::Limit("all"), killed, now)?;
    /// assert!(engine.try_check(&request, now + Ticks::from_secs(59))?.is_allowed());
    /// assert!(!engine.try_check(&request, now + Ticks::from_secs(60))?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the policy has no such limit or it is off there, or too many limits have overrides.
    pub fn set_override(
        self,
        scope: Scope<'_>,
        expiring: ExpiringOverride,
        now: Timestamp,
    ) -> Result<(), OverrideError> {
        self.engine.overrides.rule(&self.engine.policy(), scope, expiring, now)?;
        self.prepare_shadow(scope, expiring.kind);
        Ok(())
    }

    /// Prepares the shadow counters: a limit that an override puts in shadow, fully or in part, is counted apart.
    fn prepare_shadow(self, scope: Scope<'_>, kind: LimitOverride) {
        let active = self.engine.active.load();
        match scope {
            _ if kind == LimitOverride::Off => {}
            Scope::All => self.engine.store.prepare(active.shadows(None)),
            Scope::Limit(name) => {
                if let Some(place) = active.position(name) {
                    self.engine.store.prepare(active.shadows(Some(place)));
                }
            }
        }
    }

    /// Removes an override. Returns whether there was one. The policy then applies again, unless another override does:
    /// see [`ActiveOverrides::of`].
    pub fn lift_override(self, scope: Scope<'_>, now: Timestamp) -> bool {
        self.engine.overrides.restore(scope, now)
    }

    /// The overrides at an instant, of all limits and of single ones.
    #[must_use]
    pub fn overrides(self, now: Timestamp) -> ActiveOverrides {
        self.engine.overrides.at(now)
    }

    /// Replaces all overrides with those that [`ActiveOverrides::list`] returned earlier, as after a restart. Overrides that
    /// have ended since are left out. An override of a limit that the policy does not have waits for a policy that has
    /// the limit, as it does over a swap.
    ///
    /// # Errors
    /// When there are too many, or a percentage is above 100; nothing is changed then.
    pub fn resume_overrides(
        self,
        (all, single): (Option<ExpiringOverride>, Vec<(String, ExpiringOverride)>),
        now: Timestamp,
    ) -> Result<(), OverrideError> {
        if let Some(all) = &all {
            self.prepare_shadow(Scope::All, all.kind);
        }
        single.iter().for_each(|(name, expiring)| self.prepare_shadow(Scope::Limit(name), expiring.kind));
        self.engine.overrides.resume(OverrideSet::new(all, single), now)
    }

    /// The decision that the request would get, without charging anything.
    pub async fn peek(self, request: &CheckRequest<'_>, now: Timestamp) -> Decision {
        self.engine.check(&request.clone().looking(), now).await
    }
}
