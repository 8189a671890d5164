//! The statements of a response about the limits of the server that sent it, in one form for all dialects.

use tollgate::Ticks;

/// The statements of one response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The state of the server's counters.
    pub windows: Vec<Window>,
    /// The server refused the call, and how.
    pub throttle: Option<Throttle>,
    /// Whether the server asks for another attempt or forbids it; `None` if it does not say.
    pub should_retry: Option<bool>,
    /// The server's name of the bucket that the call was counted in, such as `X-RateLimit-Bucket` of Discord or
    /// `X-RateLimit-Resource` of GitHub. Routes with the same name share their windows.
    pub bucket: Option<String>,
}

/// One counter of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its name: the name of a policy item, `requests`, `tokens`, `input-tokens`, `app`. Servers with one counter and
    /// no name for it have `requests`.
    pub name: String,
    /// The unit that it counts.
    pub unit: WindowUnit,
    /// How much it admits in a period.
    pub limit: Option<u64>,
    /// How much is left of it, after this call.
    pub remaining: Option<u64>,
    /// When it is full again, counted from the receipt of the response.
    pub resets_in: Option<Ticks>,
    /// The length of a period.
    pub period: Option<Ticks>,
}

impl Window {
    /// A window of which only its name and unit are known.
    #[must_use]
    pub fn named(name: impl Into<String>, unit: WindowUnit) -> Self {
        Self { name: name.into(), unit, limit: None, remaining: None, resets_in: None, period: None }
    }
}

/// The unit that a window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WindowUnit {
    /// One for each call.
    Requests,
    /// The cost of each call: tokens, points, bytes.
    Cost,
    /// Calls in flight. Such a window has no period.
    Concurrent,
}

/// A refusal by the server: 429, or 403 and 503 where they mean a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// When the server takes calls again, counted from the receipt of the response; `None` if it does not say.
    pub retry_after: Option<Ticks>,
    /// Which calls it concerns.
    pub scope: ThrottleScope,
    /// Which kind of limit it was.
    pub kind: ThrottleKind,
}

/// Which calls a refusal concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThrottleScope {
    /// All calls that the server counts in the same bucket.
    Bucket,
    /// All calls of the same route, or of the same bucket if the server names it.
    Route,
    /// All calls to this server with this credential.
    Everything,
    /// A limit that other clients share: our own counters are right. It concerns the calls of the same route, or of the
    /// same bucket if the server names it.
    Shared,
}

/// Which kind of limit refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThrottleKind {
    /// A rate, which waiting cures.
    Rate,
    /// Too many calls in flight.
    Concurrency,
    /// The quota of a day or of a longer period.
    Day,
    /// A budget of money. Only its owner can raise it.
    Money,
    /// The server is overloaded. The client did nothing wrong.
    Overload,
}

impl ThrottleKind {
    /// Whether a wait of seconds or minutes is useless.
    #[must_use]
    pub const fn is_long(self) -> bool {
        matches!(self, ThrottleKind::Day | ThrottleKind::Money)
    }

    /// A word for logs, metrics and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ThrottleKind::Rate => "rate",
            ThrottleKind::Concurrency => "concurrency",
            ThrottleKind::Day => "day",
            ThrottleKind::Money => "money",
            ThrottleKind::Overload => "overload",
        }
    }
}
