//! Why the gateway did not send a request on, or has no answer to it, and the response that says so. Each kind has one
//! status and one name that stays. `details` writes problems of other protocols too.

mod details;

pub(crate) use details::problem_details;
pub use details::{ProblemDetails, detail_text, response};

/// The registered type of a problem that is over when there is capacity again.
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is not valid.
    InvalidRequest,
    /// The body came too slowly.
    BodyTooSlow,
    /// The body did not arrive completely.
    BodyCutOff,
    /// The method is not accepted. Accepted are these.
    MethodNotAllowed(&'static str),
    /// The path and its query are too long.
    TargetTooLong,
    /// The header fields are too large.
    FieldsTooLarge,
    /// The client expects what the gateway does not know.
    ExpectationFailed,
    /// It has passed gateways too often.
    Loop,
    /// The active rules are those of another program, which know no HTTP requests.
    CompatRules,
    /// No route is for its host and path.
    NoRoute,
    /// No upstream of its route is healthy.
    NoUpstream,
    /// As many requests are at the upstream as may be.
    Busy,
    /// The client has its share of what the upstream takes.
    Share,
    /// Another protocol inside of HTTP/2 than those that are carried.
    UnknownProtocol,
    /// The upstream did not switch to the protocol that was asked for.
    NotSwitched,
    /// The upstream cannot be reached.
    Unreachable,
    /// The upstream hung up without an answer.
    Lost,
    /// The upstream did not answer in time.
    Late,
}

impl Kind {
    /// The status to answer with.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Kind::InvalidRequest | Kind::BodyCutOff => 400,
            Kind::MethodNotAllowed(_) => 405,
            Kind::BodyTooSlow => 408,
            Kind::TargetTooLong => 414,
            Kind::FieldsTooLarge => 431,
            Kind::ExpectationFailed => 417,
            Kind::Loop => 508,
            Kind::NoRoute => 404,
            Kind::CompatRules | Kind::NoUpstream | Kind::Busy | Kind::Share => 503,
            Kind::UnknownProtocol => 501,
            Kind::Unreachable | Kind::Lost | Kind::NotSwitched => 502,
            Kind::Late => 504,
        }
    }

    /// The problem type: a name that stays.
    #[must_use]
    pub const fn urn(self) -> &'static str {
        match self {
            Kind::InvalidRequest => "urn:tollgate:problem:invalid-request",
            Kind::BodyTooSlow => "urn:tollgate:problem:body-too-slow",
            Kind::BodyCutOff => "urn:tollgate:problem:body-cut-off",
            Kind::MethodNotAllowed(_) => "urn:tollgate:problem:method-not-allowed",
            Kind::TargetTooLong => "urn:tollgate:problem:target-too-long",
            Kind::FieldsTooLarge => "urn:tollgate:problem:fields-too-large",
            Kind::ExpectationFailed => "urn:tollgate:problem:expectation-failed",
            Kind::Loop => "urn:tollgate:problem:loop",
            Kind::CompatRules => "urn:tollgate:problem:foreign-rules",
            Kind::NoRoute => "urn:tollgate:problem:no-route",
            Kind::NoUpstream | Kind::Busy | Kind::Share => REDUCED_CAPACITY,
            Kind::UnknownProtocol => "urn:tollgate:problem:unknown-protocol",
            Kind::NotSwitched => "urn:tollgate:problem:upstream-not-switched",
            Kind::Unreachable => "urn:tollgate:problem:upstream-unreachable",
            Kind::Lost => "urn:tollgate:problem:upstream-lost",
            Kind::Late => "urn:tollgate:problem:upstream-late",
        }
    }

    /// Which of several kinds with one type it is.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Kind::NoUpstream => Some("no-upstream"),
            Kind::Busy => Some("upstream-busy"),
            Kind::Share => Some("client-share"),
            _ => None,
        }
    }

    /// The title of all problems of this kind.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Kind::InvalidRequest => "The request is not valid",
            Kind::BodyTooSlow => "The body came too slowly",
            Kind::BodyCutOff => "The body did not arrive whole",
            Kind::MethodNotAllowed(_) => "The path does not accept this method",
            Kind::TargetTooLong => "The path and its query are too long",
            Kind::FieldsTooLarge => "The header fields are too large",
            Kind::ExpectationFailed => "The expectation is not known",
            Kind::Loop => "The request goes round in circles",
            Kind::CompatRules => "The active rules are not for the gateway",
            Kind::NoRoute => "No route is for this host and path",
            Kind::NoUpstream | Kind::Busy | Kind::Share => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
            Kind::UnknownProtocol => "The protocol is not known",
            Kind::NotSwitched => "The upstream did not switch protocols",
            Kind::Unreachable => "The upstream cannot be reached",
            Kind::Lost => "The upstream hung up without an answer",
            Kind::Late => "The upstream did not answer in time",
        }
    }
}

/// A kind, and an explanation that says what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) detail: String,
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail_text(detail) }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, detail)
    }
}
