//! The companion counters of limits that block keys (`block_for`), in the same store as the limit's own counters.

use super::ActivePolicy;
use crate::address::Text;
use crate::key::Secret;
use crate::memory::NUMBER_OF_TALLIES;
use crate::policy::{By, Limit, Match, Penalty};
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::store::{Charge, Charges, Family};

/// The companion counters of a limit.
pub(crate) struct Companions {
    strikes: Family,
    block: Family,
}

impl Companions {
    /// The companions of a limit, if it blocks keys. Their identity includes the penalty's numbers, so a change of
    /// these starts new counters.
    pub(crate) fn of(limit: &Limit, secret: &Secret) -> Option<Self> {
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
    pub(crate) fn families(&self) -> [&Family; 2] {
        [&self.strikes, &self.block]
    }
}

/// One of the two counters.
#[derive(Clone, Copy)]
pub(crate) enum Companion {
    Strikes,
    Block,
}

impl ActivePolicy {
    /// Whether any limit blocks keys.
    #[inline]
    pub(crate) const fn has_penalties(&self) -> bool {
        self.has_penalties
    }

    fn penalty_of(&self, matched: &Match) -> Option<&Penalty> {
        self.policy.limits()[matched.limit as usize].block_for()
    }

    /// The charge of a companion counter for the key of a match.
    pub(crate) fn companion<'l>(
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
        let charge = Charge::new(key.finish(&self.secret), family, NUMBER_OF_TALLIES, quota, 1);
        Some(Charge { group: self.group_of(descriptor, matched, counters), ..charge })
    }

    /// The companion counters of all matches, to be reset with them.
    pub(crate) fn companions<'l>(&'l self, request: &CheckRequest<'_>, matches: &[Match]) -> Charges<'l> {
        let both = [Companion::Strikes, Companion::Block];
        let of = |matched| both.into_iter().filter_map(move |which| self.companion(request, matched, which));
        matches.iter().flat_map(of).collect()
    }
}
