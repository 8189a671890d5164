//! Envoy's rate-limit request and its answer, independent of a protocol: gRPC and JSON are decoded into them.
//! [`ActiveConfig`](crate::ActiveConfig) decides it by a configuration.

use tollgate::{Source, Ticks, Value};

/// The metadata field of an answer whose request passes because no limit applies to it.
pub const NO_LIMIT_APPLIES: &str = "no_limit_applies";

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It may.
    Ok,
    /// It may not.
    OverLimit,
}

/// A unit of time that a limit is stated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// Every unit, the shortest first.
    pub const ALL: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Its length: a month has 30 days and a year 365, as envoyproxy/ratelimit counts them.
    pub const fn seconds(self) -> u64 {
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

    /// The unit of this length.
    pub fn lasting(period: Ticks) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| Ticks::from_secs(unit.seconds()) == period)
    }

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
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

    /// The unit of this name, in any case.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}

/// A limit that the request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Requests in a unit.
    pub requests_per_unit: u32,
    /// The unit.
    pub unit: Unit,
}

/// One descriptor: one set of attributes of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Names and values, in the order given.
    pub entries: Vec<(String, String)>,
    /// The limit that it carries.
    pub limit: Option<Override>,
    /// The cost of this descriptor, if it differs from that of the request. 0 only reads.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back instead of taken.
    pub is_negative_hits: bool,
}

impl Descriptor {
    /// Its cost, as part of this request.
    pub fn hits(&self, rls_request: &RlsRequest) -> u64 {
        self.hits_addend.unwrap_or(u64::from(rls_request.hits_addend.max(1)))
    }

    /// Its entries as attributes.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), Value::Text(value)))
    }

    /// The key of the limit that it carries: the domain, and every entry.
    pub fn counted_by<'q>(&'q self, domain: &'q str) -> Vec<&'q [u8]> {
        let entries = self.entries.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]);
        std::iter::once(domain.as_bytes()).chain(entries).collect()
    }
}

/// A rate-limit request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RlsRequest {
    /// The domain, which names a set of rules.
    pub domain: String,
    /// Its descriptors, each of which is counted.
    pub descriptors: Vec<Descriptor>,
    /// The cost of the request. 0 means 1, as the protocol defines.
    pub hits_addend: u32,
}

impl RlsRequest {
    /// Validates what every request must have. Each protocol calls it, and later code relies on it.
    pub fn check(&self) -> Result<(), Unanswerable> {
        if self.domain.is_empty() {
            return Err(Unanswerable::Invalid("domain: it is empty; name the domain to ask".to_owned()));
        }
        if self.descriptors.is_empty() {
            return Err(Unanswerable::Invalid("descriptors: there are none; send at least one".to_owned()));
        }
        Ok(())
    }
}

/// The limit that applies to a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentLimit {
    /// Its name, empty if it has none.
    pub name: String,
    /// Requests in a unit.
    pub requests_per_unit: u32,
    /// The unit of the limit, if the protocol has it.
    pub unit: Option<Unit>,
}

/// The answer for one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether this descriptor may pass.
    pub code: Code,
    /// The limit that applies, if one does.
    pub current_limit: Option<CurrentLimit>,
    /// Requests that are left.
    pub limit_remaining: u32,
    /// When the limit's window ends.
    pub until_reset: Option<Ticks>,
    /// The source of the numbers.
    pub source: Source,
}

impl Status {
    /// The status of a descriptor to which no limit applies.
    pub const fn of_no_limit(code: Code) -> Self {
        Self { code, current_limit: None, limit_remaining: 0, until_reset: None, source: Source::Exact }
    }
}

/// The answer: one status for each descriptor, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request may pass.
    pub overall: Code,
    /// The answer for each descriptor.
    pub statuses: Vec<Status>,
    /// Headers for the response to the client, whatever the code.
    pub headers: Vec<(String, String)>,
    /// Why the request is refused, if that is known, for protocols that can carry it.
    pub refusal: Option<Refusal>,
    /// The request passes because no limit applies to it.
    pub meets_no_limit: bool,
    /// No rule decided anything, because the request is invalid.
    pub is_faulty: bool,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit, or the name of another cause.
    pub cause: String,
    /// A sentence, or a word that `detail` explains.
    pub reason: String,
    /// More about the reason.
    pub detail: Option<String>,
}

impl Answer {
    /// The longest wait among the statuses that refuse.
    pub fn retry_after(&self) -> Option<Ticks> {
        let refusing = self.statuses.iter().filter(|status| status.code == Code::OverLimit);
        refusing.filter_map(|status| status.until_reset).max()
    }

    /// The same code for the request and for each of `descriptors`, without further content.
    pub fn blank(code: Code, descriptors: usize) -> Self {
        Self {
            overall: code,
            statuses: vec![Status::of_no_limit(code); descriptors],
            headers: Vec::new(),
            refusal: None,
            meets_no_limit: false,
            is_faulty: false,
        }
    }

    /// The answer to a request to which no limit applies.
    pub fn of_no_limit(descriptors: usize) -> Self {
        Self { meets_no_limit: true, ..Self::blank(Code::Ok, descriptors) }
    }
}

/// Why a request cannot be answered. Never a decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswerable {
    /// The request is invalid. The text says what would be accepted.
    #[error("{0}")]
    Invalid(String),
}
