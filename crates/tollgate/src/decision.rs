//! The decision: the verdict of all matched limits together, and the status of each of them. Headers and bodies are
//! left to [`crate::headers`].

use std::sync::Arc;

use smallvec::SmallVec;

use crate::key::Fingerprint;
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::{Fault, Limit, Policy, QuotaIndex};
use crate::quota::Quota;
use crate::store::Enforcement;
use crate::time::{Ticks, Timestamp};

mod block;
mod held;
mod reason;

pub use block::Block;
pub(crate) use held::Held;
pub use held::{Permit, Settled};

/// Why a request was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A quota is exhausted; waiting cures it.
    Quota,
    /// It costs more than a limit ever admits.
    Cost,
    /// The request itself is at fault; see [`Decision::fault`].
    Fault,
    /// An operator blocks such requests for a while; see [`Decision::block`].
    Blocked,
    /// A limit blocks the key for a while, because it denied it too often (`block_for`); waiting cures it.
    Penalty,
    /// The policy denies it (`deny`), whatever was counted; waiting does not help.
    Forbidden,
    /// The limits that denied it could not count it: their store is unreachable, or full. The caller did nothing wrong.
    Unavailable,
}

/// The status of one limit, as kept inside a decision: also what a reservation of the decision needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    pub(crate) limit: u32,
    pub(crate) quota: QuotaIndex,
    pub(crate) descriptor: u8,
    pub(crate) enforcement: Enforcement,
    pub(crate) source: Source,
    pub(crate) key: Fingerprint,
    pub(crate) group: Option<u16>,
    pub(crate) cost: u64,
    pub(crate) outcome: Outcome,
    pub(crate) charged_at: Timestamp,
}

impl Status {
    pub(crate) const fn refuses(&self) -> bool {
        matches!(self.enforcement, Enforcement::Enforced) && !self.outcome.is_allowed()
    }
}

/// The status of one limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'a> {
    /// Its index in the policy of the decision, from 0.
    pub index: usize,
    /// The limit.
    pub limit: &'a Limit,
    /// The quota that it applied to this key; `None` where the policy says `unlimited` or `deny`.
    pub quota: Option<&'a Quota>,
    /// The index of the request's descriptor that it applied to, from 0.
    pub descriptor: usize,
    /// Whether it took part in the verdict.
    pub enforcement: Enforcement,
    /// Where its answer came from.
    pub source: Source,
    /// A hash of the key, for jitter that is stable for each key. Never shown in an answer.
    pub key_hash: u64,
    /// The units that the request costs here; 0 only reads.
    pub cost: u64,
    /// Its outcome.
    pub outcome: Outcome,
    /// When it was charged, by the clock of its counter; see [`crate::store::ChargeAnswer::charged_at`].
    pub charged_at: Timestamp,
}

/// The decision about one request. A denial is a value, not an error.
#[derive(Clone, Debug)]
pub struct Decision {
    policy: Arc<Policy>,
    verdict: Verdict,
    statuses: SmallVec<[Status; 6]>,
    fault: Option<Box<Fault>>,
    block: Option<Arc<Block>>,
    permit: Option<Box<Permit>>,
}

impl Decision {
    /// A decision without any status yet.
    #[inline]
    pub(crate) fn open(policy: Arc<Policy>) -> Self {
        let statuses = SmallVec::new();
        Self { policy, verdict: Verdict::Allow, statuses, fault: None, block: None, permit: None }
    }

    /// Adds the statuses of the limits, and the verdict that follows from them.
    #[inline]
    pub(crate) fn conclude(&mut self, statuses: impl Iterator<Item = Status>) {
        self.statuses.extend(statuses);
        self.verdict = combine(&self.statuses);
    }

    /// Adds the statuses of limits without a counter, in the policy's order.
    pub(crate) fn add_uncounted(&mut self, statuses: &[Status]) {
        if !statuses.is_empty() {
            self.statuses.extend_from_slice(statuses);
            self.statuses.sort_by_key(|status| status.limit);
            self.verdict = combine(&self.statuses);
        }
    }

    /// Whether a limit that counts only failures counted the request, so that its end is to be reported.
    #[must_use]
    pub(crate) fn awaits_its_end(&self) -> bool {
        let awaits =
            |status: LimitStatus<'_>| status.source.is_counted() && status.limit.failures().is_some();
        self.limits().any(awaits)
    }

    /// Whether an enforced limit denied the request, and waiting cures it.
    pub(crate) fn is_denied_by(&self, limit: u32) -> bool {
        let denies = |status: &Status| {
            status.limit == limit
                && status.refuses()
                && status.source.is_counted()
                && matches!(status.outcome.verdict, Verdict::Deny { .. })
        };
        self.statuses.iter().any(denies)
    }

    /// Makes an enforced limit deny the request for `rest`, or for as long as its counter needs if that is longer.
    pub(crate) fn penalise(&mut self, limit: u32, rest: Ticks) {
        let enforced =
            |status: &&mut Status| status.limit == limit && status.enforcement == Enforcement::Enforced;
        for status in self.statuses.iter_mut().filter(enforced) {
            let retry_after = match status.outcome.verdict {
                Verdict::Never | Verdict::Forbidden => continue,
                Verdict::Deny { retry_after } => retry_after.max(rest),
                Verdict::Allow | Verdict::Wait(_) => rest,
            };
            (status.source, status.outcome.verdict) = (Source::Penalty, Verdict::Deny { retry_after });
        }
        self.verdict = combine(&self.statuses);
    }

    /// Attaches the permit that the decision took, for the caller.
    pub(crate) fn give(&mut self, permit: Option<Box<Permit>>) {
        self.permit = permit;
    }

    pub(crate) fn faulty(policy: Arc<Policy>, fault: Fault) -> Self {
        Self {
            policy,
            verdict: Verdict::Never,
            statuses: SmallVec::new(),
            fault: Some(Box::new(fault)),
            block: None,
            permit: None,
        }
    }

    /// The denial of a request that an operator blocks. No limit was asked, and nothing is charged.
    pub(crate) fn blocked(policy: Arc<Policy>, block: Arc<Block>, now: Timestamp) -> Self {
        Self {
            policy,
            verdict: Verdict::Deny { retry_after: block.until().since(now) },
            statuses: SmallVec::new(),
            fault: None,
            block: Some(block),
            permit: None,
        }
    }

    /// The policy that it was made by, which a reload may have replaced since.
    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The verdict on the request.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether it passes, now or after its wait.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// When to retry after a denial that waiting cures.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Ticks> {
        self.verdict.retry_after()
    }

    /// Why the request was denied, if it was. One limit with an exhausted quota is reason enough, whatever the others
    /// say.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        let mut refusing = self.statuses.iter().filter(|status| status.refuses());
        match self.verdict {
            Verdict::Allow | Verdict::Wait(_) => None,
            Verdict::Never if self.fault.is_some() => Some(Reason::Fault),
            Verdict::Never => Some(Reason::Cost),
            Verdict::Forbidden => Some(Reason::Forbidden),
            Verdict::Deny { .. } if self.block.is_some() => Some(Reason::Blocked),
            Verdict::Deny { .. } if self.cause().is_some_and(|cause| cause.source == Source::Penalty) => {
                Some(Reason::Penalty)
            }
            Verdict::Deny { .. } if refusing.any(|status| status.source.is_counted()) => Some(Reason::Quota),
            Verdict::Deny { .. } => Some(Reason::Unavailable),
        }
    }

    /// Whether the request passes because no limit applies to it: it was not counted anywhere.
    #[must_use]
    pub fn meets_no_limit(&self) -> bool {
        self.statuses.is_empty() && self.fault.is_none() && self.block.is_none()
    }

    /// The fault of the request itself, if that is why it was denied.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    /// The operator's block that denied the request, if that is why. No limit was asked then.
    #[must_use]
    pub fn block(&self) -> Option<&Block> {
        self.block.as_deref()
    }

    /// The name of what denied the request: the limit that is the cause, or [`Block::NAME`]. `None` where the request
    /// itself is at fault.
    #[must_use]
    pub fn cause_name(&self) -> Option<&str> {
        match &self.block {
            Some(_) => Some(Block::NAME),
            None => self.cause().map(|status| status.limit.name()),
        }
    }

    /// The permit that a concurrency limit granted, to be released when the request is done. It returns by itself when
    /// it expires.
    pub fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take().map(|permit| *permit)
    }

    /// The same decision for a caller that waits no longer than `wait_max`: a limit with a longer wait denies it, until
    /// the wait is no longer than that. The caller must refund what was charged for the wait.
    #[must_use]
    pub fn impatient(mut self, wait_max: Ticks) -> Self {
        for status in &mut self.statuses {
            if let Verdict::Wait(wait) = status.outcome.verdict
                && wait > wait_max
            {
                status.outcome.verdict = Verdict::Deny { retry_after: wait - wait_max };
            }
        }
        self.verdict = combine(&self.statuses);
        self
    }

    /// The same decision with forecast waits. `wait` computes the wait of a limit from its index in the policy, its
    /// quota and the time until its counter is idle.
    pub(crate) fn foreseen(mut self, wait: impl Fn(u32, &Quota, Ticks) -> Ticks) -> Self {
        for status in &mut self.statuses {
            let Some(quota) = self.policy.limits()[status.limit as usize].quota(status.quota) else {
                continue;
            };
            let wait = wait(status.limit, quota, status.outcome.reset_after);
            if wait > Ticks::ZERO && status.outcome.verdict == Verdict::Allow {
                status.outcome.verdict = Verdict::Wait(wait);
            }
        }
        self.verdict = combine(&self.statuses);
        self
    }

    /// The statuses as they are kept, in the policy's order.
    pub(crate) fn statuses(&self) -> &[Status] {
        &self.statuses
    }

    /// The status of each matched limit, in the policy's order.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitStatus<'_>> + Clone {
        self.statuses.iter().map(|status| {
            let limit = &self.policy.limits()[status.limit as usize];
            LimitStatus {
                index: status.limit as usize,
                limit,
                quota: limit.quota(status.quota),
                descriptor: usize::from(status.descriptor),
                enforcement: status.enforcement,
                source: status.source,
                key_hash: status.key.digest(),
                cost: status.cost,
                outcome: status.outcome,
                charged_at: status.charged_at,
            }
        })
    }

    /// The enforced limit that is the cause of a denial: the one with the longest wait, and among several that can
    /// never admit the request the smallest.
    #[must_use]
    pub fn cause(&self) -> Option<LimitStatus<'_>> {
        self.limits()
            .filter(|status| status.enforcement == Enforcement::Enforced && !status.outcome.is_allowed())
            .max_by_key(LimitStatus::refusal_rank)
    }
}

/// The verdict of all enforced limits together: the one that is hardest on the caller.
fn combine(statuses: &[Status]) -> Verdict {
    let enforced = statuses.iter().filter(|status| status.enforcement == Enforcement::Enforced);
    let verdicts = enforced.map(|status| status.outcome.verdict);
    // Most decisions admit, and then there is nothing to compare.
    let harder = verdicts.filter(|verdict| *verdict != Verdict::Allow);
    harder.max_by_key(|&verdict| severity(verdict)).unwrap_or(Verdict::Allow)
}

const fn severity(verdict: Verdict) -> (u8, Ticks) {
    match verdict {
        Verdict::Allow => (0, Ticks::ZERO),
        Verdict::Wait(wait) => (1, wait),
        Verdict::Deny { retry_after } => (2, retry_after),
        Verdict::Never => (3, Ticks::ZERO),
        Verdict::Forbidden => (4, Ticks::ZERO),
    }
}
