//! The records of an active policy's counters, converted to and from a snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ActivePolicy, Counters, Gone, Grouping, by_name};
use crate::key::Secret;
use crate::policy::{Limit, Policy};
use crate::store::Record;
use crate::time::Timestamp;

/// Every quota that the counters of one limit may be counted under, by number.
pub(crate) type Records = Vec<Option<Record>>;

/// A policy as far as its counters remember it.
#[derive(Default)]
pub(crate) struct Remembered {
    /// Each limit with the numbers of its quotas. Only what identifies its counters is needed.
    pub(crate) limits: Vec<(Limit, Vec<u32>, Records)>,
    /// Counters of limits that were gone already.
    pub(crate) gone: Gone,
    /// How many policies there were before.
    pub(crate) generation: u64,
    /// Until when the counters of each quota number are held.
    pub(crate) held: HashMap<u32, Timestamp>,
}

impl ActivePolicy {
    /// A remembered policy, for the next one to follow. No request matches a limit of it.
    pub(crate) fn recalled(remembered: Remembered, secret: Arc<Secret>) -> Self {
        let Remembered { limits, gone, generation, held } = remembered;
        let (mut known, mut counters) = (Vec::with_capacity(limits.len()), Vec::with_capacity(limits.len()));
        for (limit, numbers, records) in limits {
            counters.push(Counters::assemble(&limit, &secret, records, numbers));
            known.push(limit);
        }
        let policy = Arc::new(Policy::of_limits(known));
        let (by_name, grouping) = (by_name(&policy), Grouping::new(false, &policy, &secret));
        Self {
            by_name,
            has_penalties: false, // No request is decided by it.
            policy,
            secret,
            grouping,
            counters,
            gone,
            generation,
            held,
        }
    }

    /// How many policies the engine had before this one.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// The active limits, with the numbers of their quotas and every quota that their counters may be counted under.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (&Limit, &[u32], &[Option<Record>])> {
        self.policy
            .limits()
            .iter()
            .zip(&self.counters)
            .map(|(limit, counters)| (limit, counters.numbers.as_slice(), counters.enforced.records()))
    }

    /// Removed limits, by the identity of their counters.
    pub(crate) const fn gone(&self) -> &Gone {
        &self.gone
    }

    /// Until when the counters of each quota number are held.
    pub(crate) const fn held(&self) -> &HashMap<u32, Timestamp> {
        &self.held
    }
}
