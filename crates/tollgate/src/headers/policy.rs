//! The disclosure settings of the operator, and the caller that gets an answer.

use std::collections::HashMap;
use std::str::FromStr;

use super::dialect::Dialects;

/// How answers are written: settings of the process.
#[derive(Clone, Debug, Default)]
pub struct HeaderPolicy {
    /// The header families to send.
    pub dialects: Dialects,
    /// When quota headers are sent.
    pub disclosure: Disclosure,
    /// How much a caller without an identity sees.
    pub anonymous: Exposure,
    /// Whether advertised windows are stretched to the sustained rate.
    pub pacing: Pacing,
    /// The status of a denial.
    pub denial: DenialStatus,
    /// The units that limits count, by their names. A limit that is not listed counts requests.
    pub units: HashMap<String, Unit>,
}

impl HeaderPolicy {
    /// Whether the answer to an allowed request may have any headers for such a caller.
    #[must_use]
    pub fn tells_allowed(&self, caller: Caller) -> bool {
        let is_shown = caller == Caller::Authenticated || self.anonymous == Exposure::Full;
        is_shown && matches!(self.disclosure, Disclosure::Always | Disclosure::NearExhaustion)
    }

    /// The unit that a limit counts.
    pub(super) fn unit_of(&self, limit: &str) -> Unit {
        self.units.get(limit).copied().unwrap_or_default()
    }
}

/// When quota headers are sent. A refusal keeps its `Retry-After` at every level, with one exception: an anonymous
/// caller at [`Exposure::None`] does not get it at [`Disclosure::Never`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Disclosure {
    /// With every answer.
    #[default]
    Always,
    /// With refusals, and when a limit has at most a fifth left; limits with more are then not listed.
    NearExhaustion,
    /// With refusals.
    DeniedOnly,
    /// Not at all, and no numbers or names in bodies either.
    Never,
}

impl FromStr for Disclosure {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let names = [
            ("always", Disclosure::Always),
            ("near-exhaustion", Disclosure::NearExhaustion),
            ("denied-only", Disclosure::DeniedOnly),
            ("never", Disclosure::Never),
        ];
        named("disclosure", &names, name)
    }
}

/// How much a caller without an identity sees. Limits without `by` are shown to no caller at all: the remaining units
/// of a shared counter show how much others use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exposure {
    /// As `RetryAfter`, and at [`Disclosure::Never`] nothing at all.
    None,
    /// Refusals say when to retry, and nothing else.
    RetryAfter,
    /// As much as a caller with an identity.
    #[default]
    Full,
}

impl FromStr for Exposure {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let names =
            [("none", Exposure::None), ("retry-after", Exposure::RetryAfter), ("full", Exposure::Full)];
        named("exposure", &names, name)
    }
}

/// Whether the advertised window is stretched, so that a client that spreads the remaining units over it keeps the
/// sustained rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pacing {
    /// At least the time in which the remaining units would refill.
    #[default]
    Sustained,
    /// Just the time to the next unit.
    NextUnit,
}

/// The status of a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DenialStatus {
    /// 429.
    #[default]
    TooManyRequests,
    /// 503, for clients that were written against NGINX's `limit_req`.
    ServiceUnavailable,
}

impl DenialStatus {
    /// The status code.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            DenialStatus::TooManyRequests => 429,
            DenialStatus::ServiceUnavailable => 503,
        }
    }
}

/// The unit that a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Requests.
    #[default]
    Requests,
    /// Bytes of content: a cost that can never pass is then answered with 413.
    Bytes,
    /// Tokens of a language model.
    Tokens,
}

/// The caller of an answer: its identity and the formats that it can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// Whether it is authenticated.
    pub caller: Caller,
    /// The formats that it can read.
    pub accepts: Accepts,
    /// The cost that the request asked for, where the protocol knows it.
    pub cost: Option<u64>,
}

/// Whether the caller is authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Caller {
    /// It is not. This is the default.
    #[default]
    Anonymous,
    /// The protocol has authenticated it.
    Authenticated,
}

/// Which bodies a caller can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accepts {
    /// JSON.
    #[default]
    Json,
    /// Only text.
    Text,
}

impl Accepts {
    /// The formats that an `Accept` header allows. JSON is preferred wherever any range covers it; a caller that sends
    /// no such header accepts everything.
    #[must_use]
    pub fn from_header(accept: &str) -> Self {
        const JSON: [&str; 4] = ["application/problem+json", "application/json", "application/*", "*/*"];
        let covers = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let refused = parts.any(|part| {
                let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
                weight.is_some_and(|weight| weight.bytes().all(|byte| matches!(byte, b'0' | b'.')))
            });
            !refused && JSON.iter().any(|json| json.eq_ignore_ascii_case(kind))
        };
        // The values that most callers send need no parsing.
        if JSON.contains(&accept) || accept.split(',').any(covers) { Accepts::Json } else { Accepts::Text }
    }
}

/// A name that is not one of a setting's names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: unknown name {name:?}; accepted: {accepted}")]
pub struct UnknownName {
    /// The setting.
    pub what: &'static str,
    /// The unknown name.
    pub name: String,
    /// The names that are accepted.
    pub accepted: String,
}

/// Finds a setting by its name.
pub(super) fn named<T: Copy>(
    what: &'static str,
    names: &[(&'static str, T)],
    name: &str,
) -> Result<T, UnknownName> {
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| UnknownName {
        what,
        name: name.to_owned(),
        accepted: names.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", "),
    })
}
