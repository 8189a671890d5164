//! Limits built in Rust instead of a file. [`Policy::new`](super::Policy::new) checks them like those of a file.

use crate::policy::by::By;
use crate::policy::condition::Condition;
use crate::policy::expression::Expression;
use crate::policy::failures::Failures;
use crate::policy::limit::{
    Consistency, Cost, DefaultQuota, ExtraAttributes, Grant, Limit, Mode, QuotaIndex, Quotas, stricter,
    tier_name,
};
use crate::policy::on_store_failure::OnStoreFailure;
use crate::policy::penalty::Penalty;
use crate::policy::vocabulary::Vocabulary;
use crate::quota::Quota;
use crate::store::{Lease, SHARE_MAX, TTL_MAX, TTL_MIN};
use crate::time::Ticks;

/// Builds a limit.
///
/// ```
/// use tollgate::policy::{Limit, Policy};
/// use tollgate::{Quota, Rate};
///
/// let quota = Quota::token_bucket(Rate::per_second(100).burst(200))?;
/// let policy = Policy::new(vec![Limit::new("per-key", quota).by(["api_key"])])?;
/// assert_eq!(
///     policy.limits()[0].sentence(),
///     "per-key: each api_key may make 100 requests a second on average, 200 at once and at most 300 in any second"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LimitBuilder {
    limit: Limit,
}

impl Limit {
    /// A limit that counts all requests together, unless [`by`](Self::by) is called.
    #[must_use]
    #[allow(
        clippy::new_ret_no_self,
        reason = "a limit exists only inside a policy, which checks what is built here"
    )]
    pub fn new(name: &str, grant: impl Into<Grant>) -> LimitBuilder {
        let grant = grant.into();
        let cost = match &grant {
            Grant::Quota(Quota::Concurrency(_)) => Cost::Units(1),
            _ => Cost::Asked,
        };
        LimitBuilder {
            limit: Limit {
                name: name.to_owned(),
                when: Vec::new(),
                by: Vec::new(),
                extra_attributes: ExtraAttributes::default(),
                quotas: Quotas::one(grant),
                cost,
                mode: Mode::default(),
                enforce_percent: 100,
                on_store_failure: OnStoreFailure::default(),
                consistency: Consistency::default(),
                lease: Lease::default(),
                block_for: None,
                failures: None,
            },
        }
    }
}

impl LimitBuilder {
    /// Counts each combination of values of these attributes separately. Addresses may have a prefix, as in a file: `ip/64`,
    /// `ip/24,64`.
    #[must_use]
    pub fn by<'n>(mut self, attributes: impl IntoIterator<Item = &'n str>) -> Self {
        let read = |written| By::read(written, &Vocabulary::default()).unwrap_or_else(|_| By::named(written));
        self.limit.by = attributes.into_iter().map(read).collect();
        self
    }

    /// Applies only where the attribute has this value, or matches this pattern with `*`. All such conditions must hold.
    #[must_use]
    pub fn when(self, attribute: &str, value: &str) -> Self {
        self.when_one_of(attribute, [value])
    }

    /// Applies only where the attribute is one of these values or patterns.
    #[must_use]
    pub fn when_one_of<'v>(mut self, attribute: &str, values: impl IntoIterator<Item = &'v str>) -> Self {
        self.limit.when.push(Condition::one_of(attribute, values));
        self
    }

    /// Applies only where the attribute is none of these values or patterns, or is missing.
    #[must_use]
    pub fn when_none_of<'v>(mut self, attribute: &str, values: impl IntoIterator<Item = &'v str>) -> Self {
        self.limit.when.push(Condition::none_of(attribute, values));
        self
    }

    /// Applies only where the expression is true.
    #[must_use]
    pub fn when_holds(mut self, expression: Expression) -> Self {
        self.limit.when.push(Condition::Holds(expression));
        self
    }

    /// Whether it applies to requests with attributes that it does not name.
    #[must_use]
    pub fn extra_attributes(mut self, extra: ExtraAttributes) -> Self {
        self.limit.extra_attributes = extra;
        self
    }

    /// Gives a request the quota of the tier that its `attribute` names. Other requests keep the first quota.
    #[must_use]
    pub fn tiers<'n, G: Into<Grant>>(
        mut self,
        attribute: &str,
        tiers: impl IntoIterator<Item = (&'n str, G)>,
    ) -> Self {
        self.limit.quotas.tier_by = vec![attribute.to_owned()];
        for (tier, grant) in tiers {
            let index = intern(&mut self.limit.quotas.all, grant.into());
            self.limit.quotas.tiers.insert(tier.into(), index);
        }
        self
    }

    /// Selects the tier by two attributes. The value `*` matches every value without a tier of its own, and a missing one.
    #[must_use]
    pub fn tiers_by_two<'n, G: Into<Grant>>(
        mut self,
        attributes: [&str; 2],
        tiers: impl IntoIterator<Item = ([&'n str; 2], G)>,
    ) -> Self {
        self.limit.quotas.tier_by = attributes.map(str::to_owned).to_vec();
        for ([first, second], grant) in tiers {
            let index = intern(&mut self.limit.quotas.all, grant.into());
            self.limit.quotas.tiers.insert(tier_name(first, second).into(), index);
        }
        self
    }

    /// Gives a single value of the first `by` attribute its own quota.
    #[must_use]
    pub fn override_for(mut self, value: &str, grant: impl Into<Grant>) -> Self {
        let index = intern(&mut self.limit.quotas.all, grant.into());
        let key = self.limit.by.first().map_or_else(|| value.to_owned(), |by| by.key_text(value.into()));
        self.limit.quotas.overrides.insert(key.into(), index);
        self
    }

    /// How a request counts.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        self.limit.cost = cost;
        self
    }

    /// Whether the limit decides.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.limit.mode = mode;
        self
    }

    /// The share of keys, in per cent, for which it decides.
    #[must_use]
    pub fn enforce_percent(mut self, percent: u8) -> Self {
        self.limit.enforce_percent = percent;
        self
    }

    /// The fallback while its store is unreachable.
    #[must_use]
    pub fn on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.limit.on_store_failure = answer;
        self
    }

    /// How closely it follows its store.
    #[must_use]
    pub fn consistency(mut self, consistency: Consistency) -> Self {
        self.limit.consistency = consistency;
        self.limit.lease.is_auto = consistency == Consistency::Auto;
        self
    }

    /// The share of the limit that one node may hold ahead of time, in millionths, and for how long; see [`Lease`].
    #[must_use]
    pub fn lease(mut self, share: u32, ttl: Ticks) -> Self {
        let is_auto = self.limit.lease.is_auto;
        self.limit.lease =
            Lease { share: share.clamp(1, SHARE_MAX), ttl: ttl.clamp(TTL_MIN, TTL_MAX), is_auto };
        self
    }

    /// Counts only requests whose response is one of these failures.
    #[must_use]
    pub fn count_failures(mut self, failures: Failures) -> Self {
        self.limit.failures = Some(failures);
        self
    }

    /// Blocks a key for a while after too many denials.
    #[must_use]
    pub fn block_for(mut self, penalty: Penalty) -> Self {
        self.limit.block_for = Some(penalty);
        self
    }

    /// The limit, not yet checked.
    pub(crate) fn into_limit(self) -> Limit {
        self.limit
    }
}

/// The index of a value. Equal quotas are stored once.
pub(crate) fn intern(all: &mut Vec<Quota>, grant: Grant) -> QuotaIndex {
    let quota = match grant {
        Grant::Deny => return QuotaIndex::DENY,
        Grant::Unlimited => return QuotaIndex::UNLIMITED,
        Grant::Quota(quota) => quota,
    };
    let position = all.iter().position(|known| *known == quota).unwrap_or_else(|| {
        all.push(quota);
        all.len() - 1
    });
    QuotaIndex(u32::try_from(position).unwrap_or(QuotaIndex::DENY.0))
}

/// The default quota of a limit with tiers and without a rate.
pub(crate) fn strictest(quotas: &Quotas) -> Option<DefaultQuota> {
    let tiers = quotas.tiers.values().copied();
    tiers
        .reduce(|best, next| if stricter(quotas.grant(next), quotas.grant(best)) { next } else { best })
        .map(DefaultQuota::Strictest)
}
