//! Why the gateway did not send a request on, or has no answer to it. Each kind has one status and one name that stays.

/// The registered type of a problem that is over when there is capacity again.
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    /// The path and its query are too long.
    TargetTooLong,
    /// The header fields are too large.
    FieldsTooLarge,
    /// The client expects what the gateway does not know.
    ExpectationFailed,
    /// It has passed gateways too often.
    Loop,
    /// In force are rules that requests of HTTP cannot be asked by.
    ForeignRules,
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

impl Turned {
    /// The status to answer with.
    pub(crate) const fn status(self) -> u16 {
        match self {
            Turned::TargetTooLong => 414,
            Turned::FieldsTooLarge => 431,
            Turned::ExpectationFailed => 417,
            Turned::Loop => 508,
            Turned::NoRoute => 404,
            Turned::ForeignRules | Turned::NoUpstream | Turned::Busy | Turned::Share => 503,
            Turned::UnknownProtocol => 501,
            Turned::Unreachable | Turned::Lost | Turned::NotSwitched => 502,
            Turned::Late => 504,
        }
    }

    /// The problem type: a name that stays.
    pub(crate) const fn urn(self) -> &'static str {
        match self {
            Turned::TargetTooLong => "urn:tollgate:problem:target-too-long",
            Turned::FieldsTooLarge => "urn:tollgate:problem:fields-too-large",
            Turned::ExpectationFailed => "urn:tollgate:problem:expectation-failed",
            Turned::Loop => "urn:tollgate:problem:loop",
            Turned::ForeignRules => "urn:tollgate:problem:foreign-rules",
            Turned::NoRoute => "urn:tollgate:problem:no-route",
            Turned::NoUpstream | Turned::Busy | Turned::Share => REDUCED_CAPACITY,
            Turned::UnknownProtocol => "urn:tollgate:problem:unknown-protocol",
            Turned::NotSwitched => "urn:tollgate:problem:upstream-not-switched",
            Turned::Unreachable => "urn:tollgate:problem:upstream-unreachable",
            Turned::Lost => "urn:tollgate:problem:upstream-lost",
            Turned::Late => "urn:tollgate:problem:upstream-late",
        }
    }

    /// Which of several kinds with one type it is.
    pub(crate) const fn reason(self) -> Option<&'static str> {
        match self {
            Turned::NoUpstream => Some("no-upstream"),
            Turned::Busy => Some("upstream-busy"),
            Turned::Share => Some("client-share"),
            _ => None,
        }
    }

    /// What all problems of this kind have in common.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Turned::TargetTooLong => "The path and its query are too long",
            Turned::FieldsTooLarge => "The header fields are too large",
            Turned::ExpectationFailed => "The expectation is not known",
            Turned::Loop => "The request goes round in circles",
            Turned::ForeignRules => "The rules in force are not for the gateway",
            Turned::NoRoute => "No route is for this host and path",
            Turned::NoUpstream | Turned::Busy | Turned::Share => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
            Turned::UnknownProtocol => "The protocol is not known",
            Turned::NotSwitched => "The upstream did not switch protocols",
            Turned::Unreachable => "The upstream cannot be reached",
            Turned::Lost => "The upstream hung up without an answer",
            Turned::Late => "The upstream did not answer in time",
        }
    }
}
