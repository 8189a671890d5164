//! What earlier decisions took, as charges under this policy.

use super::Live;
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::decision::Held;
use crate::policy::QuotaIndex;
use crate::store::{Charge, Stance};

impl Live {
    /// The charge of what was taken, under this policy; `None` when the limit is gone, or counts anew.
    pub(in crate::engine) fn charge_of(
        &self,
        held: &Held,
        permit: PermitId,
        cost: u64,
    ) -> Option<Charge<'_>> {
        let (limit, counters) = self.counters_of(&held.limit)?;
        let family = match held.stance {
            Stance::Enforced => &counters.enforced,
            Stance::Shadow => &counters.shadow,
        };
        if family.id() != held.family {
            return None;
        }
        let at = held.quota_in(limit);
        let (number, quota) = (*counters.numbers.get(at)?, limit.quotas().get(at)?);
        Some(Charge {
            key: held.key,
            family,
            number,
            quota,
            cost,
            stance: held.stance,
            permit,
            group: held.group,
            // Later settlement goes to the counter itself, not to a lease.
            lease: None,
            charged: held.charged_at.map_or(Charged::UNKNOWN, Charged::At),
        })
    }

    /// The indexes of the limit and of the quota that it was taken from, in this policy.
    pub(in crate::engine) fn place_of(&self, held: &Held) -> Option<(usize, QuotaIndex)> {
        let position = self.position(&held.limit)?;
        let at = held.quota_in(&self.policy.limits()[position]);
        Some((position, QuotaIndex(u32::try_from(at).ok()?)))
    }
}
