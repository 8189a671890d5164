//! Envoy's rate-limit question and its answer, apart from any protocol: gRPC and JSON are read into it. What is answered is decided in
//! `service::rls`.

use std::borrow::Cow;

use tollgate::{Decision, Source, Ticks, Value};

use crate::decision_json::Why;

pub(crate) mod json;

/// The field of an answer's metadata that says that the request passes because no limit applies to it.
pub(crate) const NO_LIMIT_APPLIES: &str = "no_limit_applies";

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// It may.
    Ok,
    /// It may not.
    OverLimit,
}

/// A unit of time that a limit is stated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    /// Every unit, the shortest first.
    pub(crate) const ALL: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Its length: a month has 30 days and a year 365, as envoyproxy/ratelimit counts them.
    pub(crate) const fn seconds(self) -> u64 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 7 * 86_400,
            Unit::Month => 30 * 86_400,
            Unit::Year => 365 * 86_400,
        }
    }

    /// The unit that lasts so long.
    pub(crate) fn lasting(period: Ticks) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| Ticks::from_secs(unit.seconds()) == period)
    }

    /// Its name, as configurations write it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// The unit of this name, in capitals or not.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}

/// A limit that the request brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Override {
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: Unit,
}

/// One descriptor: what is known about the request, from one point of view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Names and values, in the order given.
    pub(crate) entries: Vec<(String, String)>,
    pub(crate) limit: Option<Override>,
    /// What this descriptor costs, if not what the request costs; 0 only looks.
    pub(crate) hits_addend: Option<u64>,
    /// The hits are given back instead of taken.
    pub(crate) is_negative_hits: bool,
}

impl Descriptor {
    /// What it costs, as part of this question.
    pub(crate) fn hits(&self, question: &Question) -> u64 {
        self.hits_addend.unwrap_or(u64::from(question.hits_addend.max(1)))
    }

    /// Its entries as attributes.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), Value::Text(value)))
    }

    /// What names the counter of a limit that it brings along: the domain, and every entry.
    pub(crate) fn counted_by<'q>(&'q self, domain: &'q str) -> Vec<&'q [u8]> {
        let entries = self.entries.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]);
        std::iter::once(domain.as_bytes()).chain(entries).collect()
    }
}

/// A question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) domain: String,
    pub(crate) descriptors: Vec<Descriptor>,
    /// What the request costs; 0 means 1, as the protocol has it.
    pub(crate) hits_addend: u32,
}

impl Question {
    /// What every question must have, whoever answers it. Wires see to it; behind them it is taken for granted.
    pub(crate) fn check(&self) -> Result<(), Unanswerable> {
        if self.domain.is_empty() {
            return Err(Unanswerable::Invalid("domain: it is empty; name the domain to ask".to_owned()));
        }
        if self.descriptors.is_empty() {
            return Err(Unanswerable::Invalid("descriptors: there are none; send at least one".to_owned()));
        }
        Ok(())
    }
}

/// The limit that a descriptor met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CurrentLimit {
    /// Its name; empty where it has none.
    pub(crate) name: String,
    pub(crate) requests_per_unit: u32,
    /// The unit that the limit is stated in, if it is one that the protocol has.
    pub(crate) unit: Option<Unit>,
}

/// The answer for one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) current_limit: Option<CurrentLimit>,
    pub(crate) limit_remaining: u32,
    pub(crate) until_reset: Option<Ticks>,
    /// Where the numbers come from.
    pub(crate) source: Source,
}

impl Status {
    /// What a descriptor is told that no limit is about.
    pub(crate) const fn of_no_limit(code: Code) -> Self {
        Self { code, current_limit: None, limit_remaining: 0, until_reset: None, source: Source::Exact }
    }
}

/// The answer: one status for each descriptor, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) overall: Code,
    pub(crate) statuses: Vec<Status>,
    /// Headers for the response to the client, whatever the code.
    pub(crate) headers: Vec<(String, String)>,
    /// Why the request is refused, where that is known; for protocols that have room for it.
    pub(crate) refusal: Option<Refusal>,
    /// The request passes because no limit applies to it.
    pub(crate) meets_no_limit: bool,
    /// Nothing was decided by any rule, because the question is at fault.
    pub(crate) is_faulty: bool,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The limit, or the name of what else refuses it.
    pub(crate) cause: String,
    /// A sentence, or a word that `detail` explains.
    pub(crate) reason: String,
    pub(crate) detail: Option<String>,
}

impl Refusal {
    /// Why a decision refuses its request; none if it does not.
    pub(crate) fn of(decision: &Decision) -> Option<Self> {
        let Why { reason, detail } = Why::of(decision);
        Some(Self {
            cause: decision.refused_by()?.to_owned(),
            reason: reason?.into_owned(),
            detail: detail.map(Cow::into_owned),
        })
    }
}

impl Answer {
    /// How long those are away that refuse.
    pub(crate) fn retry_after(&self) -> Option<Ticks> {
        let refusing = self.statuses.iter().filter(|status| status.code == Code::OverLimit);
        refusing.filter_map(|status| status.until_reset).max()
    }

    /// The same code for the request and for each of so many descriptors, and nothing to tell.
    pub(crate) fn blank(code: Code, descriptors: usize) -> Self {
        Self {
            overall: code,
            statuses: vec![Status::of_no_limit(code); descriptors],
            headers: Vec::new(),
            refusal: None,
            meets_no_limit: false,
            is_faulty: false,
        }
    }

    /// The answer to a question that no limit applies to.
    pub(crate) fn of_no_limit(descriptors: usize) -> Self {
        Self { meets_no_limit: true, ..Self::blank(Code::Ok, descriptors) }
    }
}

/// Why a question cannot be answered; never a decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unanswerable {
    /// The question is wrong; the text says what would be accepted.
    #[error("{0}")]
    Invalid(String),
}
