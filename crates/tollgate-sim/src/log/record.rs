//! One request, as a log describes it.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate::{Ticks, Timestamp};

/// How finely a log stamps its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Whole seconds: the order and the spacing within a second are unknown.
    Second,
    /// Milliseconds or finer.
    #[default]
    Exact,
}

/// One request of a log. A field that the log does not have is `None` or empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When the request arrived: the stamp itself, or the end minus the duration.
    pub arrival: Timestamp,
    /// How finely the log stamps.
    pub precision: Precision,
    /// From arrival to answer.
    pub duration: Option<Ticks>,
    /// The address that connected.
    pub client: Option<IpAddr>,
    /// The authenticated user.
    pub user: Option<Cow<'a, str>>,
    /// The request's method.
    pub method: Option<Cow<'a, str>>,
    /// Path and query, as sent.
    pub target: Option<Cow<'a, str>>,
    /// The host that the client asked for.
    pub host: Option<Cow<'a, str>>,
    /// The program that asked.
    pub user_agent: Option<Cow<'a, str>>,
    /// Request headers that the log keeps, names in lower case.
    pub headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Attributes of the policy that the log names directly: columns of CSV, fields of NDJSON, our decision log.
    pub attributes: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The status of the answer.
    pub status: Option<u16>,
    /// Bytes of the answer's body.
    pub bytes: Option<u64>,
    /// The cost, where the log names one.
    pub cost: Option<u64>,
    /// The live system refused this request: status 429 or 503, or the proxy's flag for a rate limit.
    pub refused: bool,
}

impl Record<'_> {
    /// A request of which only the arrival is known.
    #[must_use]
    pub fn at(arrival: Timestamp, precision: Precision) -> Self {
        Self {
            arrival,
            precision,
            duration: None,
            client: None,
            user: None,
            method: None,
            target: None,
            host: None,
            user_agent: None,
            headers: Vec::new(),
            attributes: Vec::new(),
            status: None,
            bytes: None,
            cost: None,
            refused: false,
        }
    }
}
