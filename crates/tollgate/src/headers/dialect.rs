//! Header dialects: their names in a configuration, the headers of each, and which of them can be spoken together.

use std::str::FromStr;

use super::policy::{UnknownName, named};

/// One family of quota headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy` as in drafts 08 to 11 of the IETF.
    Ietf11,
    /// The same fields as the editors of the draft intend them next. Opt-in: they may still change.
    IetfNext,
    /// Draft 07: one dictionary.
    Ietf07,
    /// Draft 06: one field for each number.
    Ietf06,
    /// `X-RateLimit-*` as GitHub sends it; the reset is an instant in epoch seconds.
    XRateLimit,
    /// `X-RateLimit-*` as Kong and APISIX send it; the reset is a delay in seconds.
    XRateLimitDelta,
    /// Discord's headers, and its body.
    Discord,
    /// Stripe's reason and retry advice, on denials only.
    Stripe,
    /// OpenAI's headers, by unit, with Go durations.
    OpenAi,
    /// Anthropic's headers, by unit, with RFC 3339 instants.
    Anthropic,
    /// No quota header at all, as AWS does.
    Silent,
}

const NAMES: [(&str, Dialect); 12] = [
    ("ietf-11", Dialect::Ietf11),
    ("ietf-next", Dialect::IetfNext),
    ("ietf-07", Dialect::Ietf07),
    ("ietf-06", Dialect::Ietf06),
    ("x-ratelimit", Dialect::XRateLimit),
    ("x-ratelimit-delta", Dialect::XRateLimitDelta),
    ("discord", Dialect::Discord),
    ("stripe", Dialect::Stripe),
    ("openai", Dialect::OpenAi),
    ("anthropic", Dialect::Anthropic),
    ("none", Dialect::Silent),
    ("aws", Dialect::Silent),
];

impl FromStr for Dialect {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        named("dialect", &NAMES, name)
    }
}

impl Dialect {
    /// Its name in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, dialect)| *dialect == self).map_or("none", |(name, _)| name)
    }

    /// Every header that it may send.
    #[must_use]
    pub const fn headers(self) -> &'static [&'static str] {
        match self {
            Dialect::Ietf11 | Dialect::Ietf07 => &["RateLimit-Policy", "RateLimit"],
            Dialect::IetfNext => &["RateLimit-Policy", "RateLimit", "RateLimit-Partition"],
            Dialect::Ietf06 => {
                &["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "RateLimit-Policy"]
            }
            Dialect::XRateLimit | Dialect::XRateLimitDelta => &[
                "X-RateLimit-Limit",
                "X-RateLimit-Remaining",
                "X-RateLimit-Reset",
                "X-RateLimit-Used",
                "X-RateLimit-Resource",
            ],
            Dialect::Discord => &[
                "X-RateLimit-Limit",
                "X-RateLimit-Remaining",
                "X-RateLimit-Reset",
                "X-RateLimit-Reset-After",
                "X-RateLimit-Bucket",
                "X-RateLimit-Scope",
                "X-RateLimit-Global",
            ],
            Dialect::Stripe => &["Stripe-Rate-Limited-Reason", "Stripe-Should-Retry"],
            Dialect::OpenAi => &[
                "x-ratelimit-limit-requests",
                "x-ratelimit-remaining-requests",
                "x-ratelimit-reset-requests",
                "x-ratelimit-limit-tokens",
                "x-ratelimit-remaining-tokens",
                "x-ratelimit-reset-tokens",
                "retry-after-ms",
                "x-should-retry",
            ],
            Dialect::Anthropic => &[
                "anthropic-ratelimit-requests-limit",
                "anthropic-ratelimit-requests-remaining",
                "anthropic-ratelimit-requests-reset",
                "anthropic-ratelimit-tokens-limit",
                "anthropic-ratelimit-tokens-remaining",
                "anthropic-ratelimit-tokens-reset",
            ],
            Dialect::Silent => &[],
        }
    }

    /// Whether both write a header of the same name, or one asks for silence.
    fn conflicts_with(self, other: Dialect) -> bool {
        self != other
            && (self == Dialect::Silent
                || other == Dialect::Silent
                || self.headers().iter().any(|name| other.headers().contains(name)))
    }
}

/// Two dialects that cannot be spoken at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("dialects {} and {} exclude each other; accepted: one of the two", first.name(), second.name())]
pub struct DialectConflict {
    /// One of them.
    pub first: Dialect,
    /// The other.
    pub second: Dialect,
}

/// The dialects of an answer. No two of them write the same header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialects(u16);

impl Default for Dialects {
    /// `ietf-11` and `x-ratelimit`.
    fn default() -> Self {
        Self(bit(Dialect::Ietf11) | bit(Dialect::XRateLimit))
    }
}

impl Dialects {
    /// These dialects, at once.
    ///
    /// # Errors
    /// When two of them write the same header with different meanings, or one of several is `none`.
    pub fn new(dialects: impl IntoIterator<Item = Dialect>) -> Result<Self, DialectConflict> {
        let mut chosen = Self(0);
        for second in dialects {
            if let Some(first) = chosen.iter().find(|first| first.conflicts_with(second)) {
                return Err(DialectConflict { first, second });
            }
            chosen.0 |= bit(second);
        }
        Ok(chosen)
    }

    /// Whether it is one of them.
    #[must_use]
    pub const fn contains(self, dialect: Dialect) -> bool {
        self.0 & bit(dialect) != 0
    }

    /// Each of them once, always in the same order.
    pub fn iter(self) -> impl Iterator<Item = Dialect> {
        let names = NAMES.split_last().map_or(&NAMES[..], |(_alias, names)| names);
        names.iter().map(|(_, dialect)| *dialect).filter(move |dialect| self.contains(*dialect))
    }
}

const fn bit(dialect: Dialect) -> u16 {
    1 << dialect as u16
}

/// The value of `Access-Control-Expose-Headers`, without which a script in a browser sees none of these headers.
#[must_use]
pub fn access_control_expose_headers(dialects: Dialects) -> String {
    let mut names = vec!["Retry-After"];
    names.extend(dialects.iter().flat_map(Dialect::headers));
    names.join(", ")
}
