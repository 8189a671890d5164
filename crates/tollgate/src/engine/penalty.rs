//! Penalties (`block_for`): a limit blocks a key for a while because it denied the key too often. Two companion
//! counters in the limit's own store implement that: one of denials, and one of a single unit that is taken while the
//! key is blocked. So the whole fleet sees a block, it ends by itself, and keys that behave use no memory.

use std::slice;

use smallvec::SmallVec;

use super::Engine;
use super::check::ChargeSet;
use crate::active::{ActivePolicy, Companion};
use crate::decision::Decision;
use crate::outcome::Source;
use crate::request::CheckRequest;
use crate::store::{Answers, Charge, ChargeAnswer, Charges, Enforcement, Store};
use crate::time::{Ticks, Timestamp};

/// A limit that blocks the request's key, and the counter of the block.
pub(super) struct Blocked<'l> {
    pub(super) limit: u32,
    pub(super) rest: Ticks,
    block: Charge<'l>,
}

impl<'l> Blocked<'l> {
    /// A charge that the block's counter never admits, whatever it holds: its capacity is one unit.
    pub(super) fn refusing(&self) -> Charge<'l> {
        self.block.costing(2)
    }
}

/// The limits that block the request's key; usually none.
pub(super) type PenaltyBlocks<'l> = SmallVec<[Blocked<'l>; 1]>;

/// How long a key is still blocked, by the counter of its block. A counter that keys share says nothing about one of
/// them.
fn blocked_for(answer: &ChargeAnswer) -> Option<Ticks> {
    let is_own = matches!(answer.source, Source::Exact | Source::DenyCache);
    let rest = answer.outcome.reset_after;
    (is_own && answer.outcome.remaining == 0 && rest > Ticks::ZERO).then_some(rest)
}

impl<S: Store> Engine<S> {
    /// The limits that have blocked the request's key. If the store does not answer, the fallbacks of the limits
    /// decide.
    pub(super) async fn blocks_of<'l>(
        &self,
        active: &'l ActivePolicy,
        request: &CheckRequest<'_>,
        set: &ChargeSet<'_>,
        now: Timestamp,
    ) -> PenaltyBlocks<'l> {
        let asked = set.matched.matches.iter().zip(&set.charges);
        let enforced = asked.filter(|(_, charge)| charge.enforcement == Enforcement::Enforced);
        let blocks: SmallVec<[(u32, Charge<'l>); 2]> = enforced
            .filter_map(|(matched, _)| {
                Some((matched.limit, active.companion(request, matched, Companion::Block)?))
            })
            .collect();
        if blocks.is_empty() {
            return PenaltyBlocks::new();
        }
        let looks: Charges<'_> = blocks.iter().map(|(_, block)| block.costing(0)).collect();
        let Ok(answers) = self.store.charge(&looks, now).await else { return PenaltyBlocks::new() };
        let found = blocks.into_iter().zip(&answers);
        found
            .filter_map(|((limit, block), answer)| Some(Blocked { limit, rest: blocked_for(answer)?, block }))
            .collect()
    }

    /// Decides about a request whose key is blocked. The counters are charged together with the blocks, which deny. So
    /// nothing is taken, and each limit reports when it would admit the request. `None`: the store did not answer.
    pub(super) async fn decide_blocked(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        blocks: &PenaltyBlocks<'_>,
        now: Timestamp,
    ) -> Option<Decision> {
        let blocking = blocks.iter().map(|blocked| blocked.block);
        let charges: Charges<'_> = set.charges.iter().copied().chain(blocking).collect();
        let mut answers = self.store.charge(&charges, now).await.ok()?;
        let block_answers: Answers = answers.drain(set.charges.len()..).collect();
        let mut decision = self.conclude(active, set, &answers, None);
        if decision.is_allowed() && block_answers.iter().all(|answer| answer.outcome.is_allowed()) {
            // The blocks ended after they were looked at. The request has passed, and must not begin them again.
            let ended: Charges<'_> = blocks.iter().map(|blocked| blocked.block).collect();
            let _ = self.store.reset(&ended, now).await;
            self.follow_store(active, set, &answers, now);
            return Some(decision);
        }
        for (blocked, answer) in blocks.iter().zip(&block_answers) {
            if let Some(rest) = blocked_for(answer) {
                decision.penalise(blocked.limit, rest);
            }
        }
        decision.give(None);
        Some(decision)
    }

    /// Counts a denial for each limit that blocks keys and denied this request. A limit that has denied often enough
    /// blocks the key from now on, and the decision shows the block.
    pub(super) async fn strike(
        &self,
        active: &ActivePolicy,
        request: &CheckRequest<'_>,
        set: &ChargeSet<'_>,
        decision: &mut Decision,
        now: Timestamp,
    ) {
        for matched in set.matched.matches.iter().filter(|matched| matched.cost > 0) {
            let companions = [Companion::Strikes, Companion::Block];
            let [Some(strike), Some(block)] =
                companions.map(|which| active.companion(request, matched, which))
            else {
                continue;
            };
            if !decision.is_denied_by(matched.limit) {
                continue;
            }
            let Ok(struck) = self.store.charge(slice::from_ref(&strike), now).await else { continue };
            let is_last =
                |answer: &ChargeAnswer| answer.outcome.remaining == 0 || !answer.outcome.is_allowed();
            let is_due =
                struck.first().is_some_and(|answer| answer.source == Source::Exact && is_last(answer));
            if !is_due {
                continue;
            }
            // If this is denied, another request has begun the block.
            if let Ok(begun) = self.store.charge(slice::from_ref(&block), now).await
                && let Some(rest) = begun.first().and_then(blocked_for)
            {
                decision.penalise(matched.limit, rest);
            }
        }
    }
}
