//! Why the admin interface did not do what was asked, beyond what every path of HTTP may refuse.

use tollgate_gateway::problem::ProblemType as Type;

/// The kind of refusal, which programs may match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminProblem {
    /// The host of the request is not one of the server's names.
    WrongHost,
    /// Another site's page asked.
    CrossSite,
    /// There is no token, or not a known one.
    NoToken,
    /// Too many wrong tokens came from this address.
    TooManyLogins {
        /// When to try again.
        seconds: u64,
    },
    /// The token's role may not do this.
    NotAllowed,
    /// The policy has no such limit, or there is no such comparison.
    Unknown,
    /// The state of the server does not allow it.
    Conflict,
    /// The candidate is no policy.
    WrongPolicy,
    /// As many live views are open as may be.
    TooManyWatchers,
    /// As many answers of this kind are being made as may be.
    Busy,
}

impl AdminProblem {
    /// The status, the name and the title of all refusals of this kind.
    pub(crate) const fn problem_type(self) -> Type {
        match self {
            AdminProblem::WrongHost => {
                Type::new(421, "wrong-host", "The host is not one of this server's names")
            }
            AdminProblem::CrossSite => Type::new(403, "cross-site", "Another site may not use this server"),
            AdminProblem::NoToken => {
                Type::new(401, "no-token", "A valid token is needed to operate this server")
            }
            AdminProblem::TooManyLogins { .. } => {
                Type::new(429, "too-many-logins", "Too many wrong tokens were tried")
            }
            AdminProblem::NotAllowed => Type::new(403, "not-allowed", "The token's role may not do this"),
            AdminProblem::Unknown => Type::new(404, "unknown", "There is no such thing"),
            AdminProblem::Conflict => Type::new(409, "conflict", "The server cannot do this now"),
            AdminProblem::WrongPolicy => Type::new(422, "wrong-policy", "The candidate is not a policy"),
            AdminProblem::TooManyWatchers => {
                Type::new(503, "too-many-watchers", "Too many live views are open")
            }
            AdminProblem::Busy => {
                Type::new(503, "busy", "The server is busy with as many such requests as it may be")
            }
        }
    }
}
