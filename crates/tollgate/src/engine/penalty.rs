//! Penalties (`block_for`): a limit blocks a key for a while because it denied the key too often. Two companion
//! counters in the limit's own store implement that: one of denials, and one of a single unit that is taken while the
//! key is blocked. So the whole fleet sees a block, it ends by itself, and keys that behave use no memory.

use std::slice;

use smallvec::SmallVec;

use super::active::ActivePolicy;
use super::check::ChargeSet;
use super::{Charges, Engine};
use crate::address::Text;
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::decision::Decision;
use crate::key::Secret;
use crate::memory::NUMBER_OF_TALLIES;
use crate::outcome::Source;
use crate::policy::{By, Limit, Match, Penalty};
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::store::{Answers, Charge, ChargeAnswer, Enforcement, Family, Store};
use crate::time::{Ticks, Timestamp};

/// The companion counters of a limit.
pub(super) struct Companions {
    strikes: Family,
    block: Family,
}

impl Companions {
    /// The companions of a limit, if it blocks keys. Their identity includes the penalty's numbers, so a change of
    /// these starts new counters.
    pub(super) fn of(limit: &Limit, secret: &Secret) -> Option<Self> {
        let penalty = limit.block_for()?;
        let family = |what: &'static [u8], quota: &Quota| {
            let numbers = [penalty.after(), penalty.within().as_micros(), penalty.lasts().as_micros()];
            let numbers = numbers.map(u64::to_le_bytes);
            let by: Vec<String> = limit.by().iter().map(By::identity).collect();
            let mut identity: Vec<&[u8]> = vec![what, limit.name().as_bytes()];
            identity.extend(numbers.iter().map(|number| &number[..]));
            identity.extend(by.iter().map(String::as_bytes));
            Family::single(secret, &identity, quota.clone())
        };
        Some(Self {
            strikes: family(b"strikes", penalty.strikes()),
            block: family(b"block", penalty.block()),
        })
    }

    /// Both families, for a store to prepare.
    pub(super) fn families(&self) -> [&Family; 2] {
        [&self.strikes, &self.block]
    }
}

/// One of the two counters.
#[derive(Clone, Copy)]
enum Companion {
    Strikes,
    Block,
}

impl ActivePolicy {
    /// Whether any limit blocks keys.
    #[inline]
    pub(super) const fn has_penalties(&self) -> bool {
        self.has_penalties
    }

    fn penalty_of(&self, matched: &Match) -> Option<&Penalty> {
        self.policy.limits()[matched.limit as usize].block_for()
    }

    /// The charge of a companion counter for the key of a match.
    fn companion<'l>(
        &'l self,
        request: &CheckRequest<'_>,
        matched: &Match,
        which: Companion,
    ) -> Option<Charge<'l>> {
        let counters = &self.counters[matched.limit as usize];
        let companions = counters.companions.as_ref()?;
        let penalty = self.penalty_of(matched)?;
        let (family, quota) = match which {
            Companion::Strikes => (&companions.strikes, penalty.strikes()),
            Companion::Block => (&companions.block, penalty.block()),
        };
        let descriptor = request.descriptor(matched.descriptor);
        // By the key alone, without its tier: a client that changes its tier stays blocked.
        let mut key = *family.prefix();
        for (&position, by) in matched.by.iter().zip(&counters.by) {
            let value = descriptor.attributes().get(usize::from(position))?.value;
            by.counted(value, &mut Text::EMPTY.clone()).add_to(&mut key, &self.secret);
        }
        Some(Charge {
            key: key.finish(&self.secret),
            family,
            number: NUMBER_OF_TALLIES,
            quota,
            cost: 1,
            enforcement: Enforcement::Enforced,
            permit: PermitId(0),
            group: self.group_of(descriptor, matched, counters),
            lease: None,
            charged: Charged::UNKNOWN,
        })
    }

    /// The companion counters of all matches, to be reset with them.
    pub(super) fn companions<'l>(&'l self, request: &CheckRequest<'_>, matches: &[Match]) -> Charges<'l> {
        let both = [Companion::Strikes, Companion::Block];
        let of = |matched| both.into_iter().filter_map(move |which| self.companion(request, matched, which));
        matches.iter().flat_map(of).collect()
    }
}

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
        let asked = set.matches.iter().zip(&set.charges);
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
        for matched in set.matches.iter().filter(|matched| matched.cost > 0) {
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
