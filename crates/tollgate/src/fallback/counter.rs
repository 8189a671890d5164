//! The counter of a deferred charge or a permit: a counter of a limit in the policy, or a tally, which no policy knows.

use std::sync::Arc;

use super::local::KeySlot;
use crate::active::ActivePolicy;
use crate::algorithm::concurrency::PermitId;
use crate::decision::Held;
use crate::key::Fingerprint;
use crate::memory::NUMBER_OF_TALLIES;
use crate::quota::Quota;
use crate::store::{Charge, Family};

/// The definition of a tally. Deferred charges keep it, because no policy does.
#[derive(Debug)]
pub(crate) struct Windows {
    pub(crate) family: Family,
    pub(crate) quota: Quota,
}

impl Windows {
    /// The charge of one counter.
    pub(crate) fn charge(&self, key: Fingerprint, cost: u64) -> Charge<'_> {
        Charge::new(key, &self.family, NUMBER_OF_TALLIES, &self.quota, cost)
    }
}

/// The counter of a deferred charge.
#[derive(Clone, Debug)]
pub(super) enum Counter {
    Limit(Box<Held>),
    Tally(Arc<Windows>, Fingerprint),
}

impl From<Held> for Counter {
    fn from(held: Held) -> Self {
        Counter::Limit(Box::new(held))
    }
}

impl Counter {
    /// The charge of this counter under the active policy; `None` when its limit is gone.
    pub(super) fn charge<'c>(
        &'c self,
        active: &'c ActivePolicy,
        permit: PermitId,
        cost: u64,
    ) -> Option<Charge<'c>> {
        match self {
            Counter::Limit(held) => active.charge_of(held, permit, cost),
            Counter::Tally(windows, key) => Some(windows.charge(*key, cost)),
        }
    }

    pub(super) fn key_slot<'c>(
        &'c self,
        active: &'c ActivePolicy,
        charge: &'c Charge<'c>,
    ) -> Option<KeySlot<'c>> {
        match self {
            Counter::Limit(held) => KeySlot::held(active, held, charge),
            Counter::Tally(..) => Some(KeySlot::tally(charge)),
        }
    }

    /// Whether the counter has a share of a limit, which changes with the policy and the number of nodes.
    pub(super) const fn has_share(&self) -> bool {
        matches!(self, Counter::Limit(_))
    }
}
