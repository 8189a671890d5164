//! One compiled limit. It is what a line of the policy means, not how it was written.

use std::collections::HashMap;

use crate::policy::expression::Expression;
use crate::policy::glob::Glob;
use crate::quota::Quota;

/// Most attributes a limit counts by.
pub const BY_MAX: usize = 8;
/// Most limits one request may match.
pub const MATCHED_MAX: usize = 32;

/// Whether a limit decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It counts and reports, never denies, and never touches an enforced counter.
    Shadow,
    /// It is not asked.
    Off,
}

/// What a limit answers when its store cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Let pass, bounded in time.
    Allow,
    /// Decide by a bucket in this process, at this node's share.
    #[default]
    Local,
    /// Refuse.
    Deny,
}

/// How closely a limit follows its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// A round trip for each decision.
    #[default]
    Exact,
    /// Batches of units are drawn and spent locally.
    Leased,
    /// Exact for quiet keys, leased for hot ones.
    Auto,
}

/// One condition of `when`. A limit applies when all of them hold.
#[derive(Debug)]
pub enum Condition {
    /// The attribute has exactly this value.
    Equals {
        /// Which attribute.
        name: String,
        /// Its value, as text.
        value: String,
    },
    /// The attribute matches a pattern with `*`.
    Matches {
        /// Which attribute.
        name: String,
        /// The pattern.
        glob: Glob,
    },
    /// A CEL expression is true.
    Holds(Expression),
}

/// How a limit counts a request.
#[derive(Debug)]
pub enum Cost {
    /// As the caller says: 1 unless it says more.
    Asked,
    /// Always this many units.
    Units(u64),
    /// As many as an attribute says.
    Attribute(String),
    /// As many as a CEL expression says.
    Computed(Expression),
}

/// Which of its quotas a limit applies: an index that only [`Limit::quota`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuotaIndex(pub(crate) u32);

/// The quotas of a limit: one for everybody, by tier, and for single keys. Equal quotas are kept once.
#[derive(Debug, Default)]
pub struct Quotas {
    /// Every distinct quota.
    pub(crate) all: Vec<Quota>,
    /// The one that applies when no tier or override does; a limit that has only tiers leaves it out.
    pub(crate) base: Option<QuotaIndex>,
    /// The attribute that names the tier.
    pub(crate) tier_by: Option<String>,
    /// By the value of that attribute.
    pub(crate) tiers: HashMap<String, QuotaIndex>,
    /// By the value of the first attribute of `by`.
    pub(crate) overrides: HashMap<String, QuotaIndex>,
}

/// One named rule, compiled. One that exists is valid.
#[derive(Debug)]
pub struct Limit {
    pub(crate) name: String,
    pub(crate) when: Vec<Condition>,
    pub(crate) by: Vec<String>,
    pub(crate) quotas: Quotas,
    pub(crate) cost: Cost,
    pub(crate) mode: Mode,
    pub(crate) enforce_percent: u8,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) consistency: Consistency,
}

impl Limit {
    /// Its name: unique in the policy, and the identity of its counters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The attributes whose values make its keys.
    #[must_use]
    pub fn by(&self) -> &[String] {
        &self.by
    }

    /// Whether it decides.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The share of keys, in per cent, for which it decides; it shadows the others.
    #[must_use]
    pub const fn enforce_percent(&self) -> u8 {
        self.enforce_percent
    }

    /// What it answers when its store cannot.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How closely it follows its store.
    #[must_use]
    pub const fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// One of its quotas.
    #[must_use]
    pub fn quota(&self, index: QuotaIndex) -> &Quota {
        &self.quotas.all[index.0 as usize]
    }

    /// Every distinct quota it may apply.
    #[must_use]
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas.all
    }
}
