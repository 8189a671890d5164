//! Why the gateway did not send a request on, or has no answer to it. Each kind has one status and one name that stays;
//! `details` writes the response. The program has more kinds, of the same [`ProblemType`].

mod details;

pub(crate) use details::problem_details;
pub use details::{ProblemType, detail_text, response};

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
    /// The status, the name and the title of all problems of this kind.
    #[must_use]
    pub const fn problem_type(self) -> ProblemType {
        use ProblemType as Type;
        match self {
            Kind::InvalidRequest => Type::new(400, "invalid-request", "The request is not valid"),
            Kind::BodyTooSlow => Type::new(408, "body-too-slow", "The body came too slowly"),
            Kind::BodyCutOff => Type::new(400, "body-cut-off", "The body did not arrive whole"),
            Kind::MethodNotAllowed(_) => {
                Type::new(405, "method-not-allowed", "The path does not accept this method")
            }
            Kind::TargetTooLong => Type::new(414, "target-too-long", "The path and its query are too long"),
            Kind::FieldsTooLarge => Type::new(431, "fields-too-large", "The header fields are too large"),
            Kind::ExpectationFailed => Type::new(417, "expectation-failed", "The expectation is not known"),
            Kind::Loop => Type::new(508, "loop", "The request goes round in circles"),
            Kind::CompatRules => Type::new(503, "foreign-rules", "The active rules are not for the gateway"),
            Kind::NoRoute => Type::new(404, "no-route", "No route is for this host and path"),
            Kind::NoUpstream => Type::reduced_capacity("no-upstream"),
            Kind::Busy => Type::reduced_capacity("upstream-busy"),
            Kind::Share => Type::reduced_capacity("client-share"),
            Kind::UnknownProtocol => Type::new(501, "unknown-protocol", "The protocol is not known"),
            Kind::NotSwitched => {
                Type::new(502, "upstream-not-switched", "The upstream did not switch protocols")
            }
            Kind::Unreachable => Type::new(502, "upstream-unreachable", "The upstream cannot be reached"),
            Kind::Lost => Type::new(502, "upstream-lost", "The upstream hung up without an answer"),
            Kind::Late => Type::new(504, "upstream-late", "The upstream did not answer in time"),
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
