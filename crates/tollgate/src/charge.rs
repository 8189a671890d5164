//! The question to a store: which counters a request wants to charge, and by how much.

use smallvec::SmallVec;

use crate::algorithm::concurrency::PermitId;
use crate::decision::{Source, Stance};
use crate::key::{Fingerprint, Prefix, Secret};
use crate::outcome::Outcome;
use crate::quota::Quota;
use crate::time::Timestamp;

/// Counters that the new keys of one limit share while a store is full.
pub(crate) const OVERFLOW_SHARES: usize = 8;

/// All counters of one limit: where their keys start, and every quota that one of them may have been counted under.
#[derive(Debug)]
pub struct Family {
    prefix: Prefix,
    overflow: [Fingerprint; OVERFLOW_SHARES],
    records: Vec<Option<Record>>,
    wide: bool,
}

/// A quota that counters of a family were, or are, counted under. Its place in the family is its number.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) quota: Quota,
    /// When a new policy replaced it; counters that it left are carried over from that instant.
    pub(crate) retired_at: Option<Timestamp>,
}

impl Family {
    pub(crate) fn new(secret: &Secret, identity: &[&[u8]], records: Vec<Option<Record>>) -> Self {
        let prefix = secret.prefix(identity);
        let overflow = std::array::from_fn(|share| prefix.overflow(secret, share as u64));
        let wide = records.iter().flatten().any(|record| is_wide(&record.quota));
        Self { prefix, overflow, records, wide }
    }

    #[inline]
    pub(crate) const fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The shared counter that stands in for `key` when there is no room for it.
    pub(crate) fn overflow(&self, key: Fingerprint) -> Fingerprint {
        let share = key.rest % OVERFLOW_SHARES as u64;
        self.overflow[usize::try_from(share).unwrap_or(0)]
    }

    pub(crate) fn record(&self, number: u32) -> Option<&Record> {
        self.records.get(number as usize)?.as_ref()
    }

    pub(crate) fn records(&self) -> &[Option<Record>] {
        &self.records
    }

    /// Whether its token buckets need two words: if one of them does, all do, so that a key has one place whatever its tier.
    #[inline]
    pub(crate) const fn is_wide(&self) -> bool {
        self.wide
    }
}

/// Whether a quota's state needs a second word for fractions of a tick.
pub(crate) fn is_wide(quota: &Quota) -> bool {
    matches!(quota, Quota::TokenBucket(bucket) if bucket.reservoir().word().is_none())
}

/// One counter to charge.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    pub(crate) key: Fingerprint,
    pub(crate) family: &'a Family,
    pub(crate) number: u32,
    pub(crate) quota: &'a Quota,
    pub(crate) cost: u64,
    pub(crate) stance: Stance,
    pub(crate) permit: PermitId,
}

/// What a store answers for one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The limit's answer.
    pub outcome: Outcome,
    /// Where it came from.
    pub source: Source,
}

/// One answer for each charge, in order.
pub type Answers = SmallVec<[Answer; 6]>;
