//! Decisions without an engine: limits and their outcomes, put together by hand.

use std::sync::Arc;

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::decision::{Decision, Status};
use crate::headers::{Accepts, Answer, Audience, Caller, Dialect, Dialects, HeaderPolicy};
use crate::key::Fingerprint;
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::{
    By, Condition, Consistency, Cost, Fault, Limit, Mode, OnStoreFailure, Policy, QuotaIndex, Quotas,
};
use crate::quota::Quota;
use crate::rate::Rate;
use crate::store::Enforcement;
use crate::time::{Ticks, Timestamp};

/// The wall time of the golden vectors.
pub(crate) const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// One limit and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) by: Vec<&'static str>,
    pub(crate) path: Option<&'static str>,
    pub(crate) quota: Quota,
    pub(crate) enforcement: Enforcement,
    pub(crate) source: Source,
    pub(crate) key_hash: u64,
    pub(crate) outcome: Outcome,
}

impl Case {
    /// A limit that was never charged.
    pub(crate) fn new(name: &str, quota: Quota) -> Self {
        let outcome = Outcome {
            verdict: Verdict::Allow,
            limit: quota.capacity(),
            remaining: quota.capacity(),
            next_unit_after: Ticks::ZERO,
            reset_after: Ticks::ZERO,
        };
        Self {
            name: name.to_owned(),
            by: vec!["api_key"],
            path: None,
            quota,
            enforcement: Enforcement::Enforced,
            source: Source::Exact,
            key_hash: 7,
            outcome,
        }
    }

    /// This many units left, the next one and a full counter after these times.
    pub(crate) fn left(mut self, remaining: u64, next_unit: Ticks, reset: Ticks) -> Self {
        self.outcome.remaining = remaining;
        self.outcome.next_unit_after = next_unit;
        self.outcome.reset_after = reset;
        self
    }

    /// Denied for this long.
    pub(crate) fn denied(mut self, retry_after: Ticks) -> Self {
        self.outcome.verdict = Verdict::Deny { retry_after };
        self
    }

    pub(crate) fn says(mut self, verdict: Verdict) -> Self {
        self.outcome.verdict = verdict;
        self
    }

    pub(crate) fn sourced(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    pub(crate) fn in_shadow(mut self) -> Self {
        self.enforcement = Enforcement::Shadow;
        self
    }

    pub(crate) fn by(mut self, by: &[&'static str]) -> Self {
        self.by = by.to_vec();
        self
    }

    pub(crate) fn only_on(mut self, path: &'static str) -> Self {
        self.path = Some(path);
        self
    }

    pub(crate) fn keyed(mut self, key_hash: u64) -> Self {
        self.key_hash = key_hash;
        self
    }

    fn limit(&self) -> Limit {
        let quotas = Quotas::one(self.quota.clone().into());
        let when = self.path.map(|path| Condition::one_of("path", [path]));
        Limit {
            name: self.name.clone(),
            when: when.into_iter().collect(),
            by: self.by.iter().map(|&name| By::named(name)).collect(),
            extra_attributes: crate::policy::ExtraAttributes::Any,
            quotas,
            cost: Cost::Asked,
            mode: Mode::Enforce,
            enforce_percent: 100,
            on_store_failure: OnStoreFailure::Local,
            consistency: Consistency::Exact,
            lease: crate::store::Lease::default(),
            block_for: None,
            failures: None,
        }
    }
}

/// The decision that follows from the outcomes of the limits.
pub(crate) fn decision(cases: &[Case]) -> Decision {
    let policy = Policy::of_limits(cases.iter().map(Case::limit).collect());
    let statuses = (0..).zip(cases).map(|(limit, case)| Status {
        limit,
        quota: QuotaIndex(0),
        descriptor: 0,
        enforcement: case.enforcement,
        source: case.source,
        key: Fingerprint { tag: case.key_hash, rest: 0 },
        group: None,
        cost: 1,
        outcome: case.outcome,
        charged_at: Timestamp::default(),
    });
    let mut decision = Decision::open(Arc::new(policy));
    decision.conclude(statuses);
    decision
}

/// A decision about a request that is itself at fault.
pub(crate) fn faulty(fault: Fault) -> Decision {
    Decision::faulty(Arc::new(Policy::of_limits(Vec::new())), fault)
}

pub(crate) fn authenticated() -> Audience {
    Audience { caller: Caller::Authenticated, accepts: Accepts::Json, cost: Some(1) }
}

pub(crate) fn speaking(dialects: &[Dialect]) -> HeaderPolicy {
    HeaderPolicy { dialects: Dialects::new(dialects.iter().copied()).unwrap(), ..HeaderPolicy::default() }
}

/// The answer to an authenticated caller in some dialects.
pub(crate) fn answer(cases: &[Case], dialects: &[Dialect]) -> Answer {
    Answer::of(&decision(cases), &speaking(dialects), authenticated(), NOW)
}

/// One header of the answer in one dialect.
pub(crate) fn header(case: Case, dialect: Dialect, name: &str) -> Option<String> {
    answer(&[case], &[dialect]).headers.get(name).map(str::to_owned)
}

pub(crate) fn lines(answer: &Answer) -> Vec<String> {
    let headers = answer.headers.iter();
    headers.map(|(name, value)| format!("{name}: {value}")).collect()
}

pub(crate) fn secs(seconds: u64) -> Ticks {
    Ticks::from_secs(seconds)
}

pub(crate) fn millis(millis: u64) -> Ticks {
    Ticks::from_millis(millis)
}

pub(crate) fn bucket(rate: Rate) -> Quota {
    Quota::token_bucket(rate).unwrap()
}

pub(crate) fn leaky(rate: Rate, queue: u64) -> Quota {
    Quota::LeakyBucket(LeakyBucket::new(rate, queue).unwrap())
}

pub(crate) fn fixed(rate: Rate) -> Quota {
    Quota::FixedWindow(FixedWindow::new(rate, Align::Epoch).unwrap())
}

pub(crate) fn log(rate: Rate) -> Quota {
    Quota::SlidingLog(SlidingLog::new(rate).unwrap())
}

pub(crate) fn permits(limit: u64, ttl: Ticks) -> Quota {
    Quota::Concurrency(Concurrency::new(limit, ttl).unwrap())
}

/// The case of the contract: 100 per 60 s, 20 left, 12 s advertised.
pub(crate) fn contract(name: &str) -> Case {
    Case::new(name, fixed(Rate::per_minute(100))).left(20, secs(12), secs(12))
}
