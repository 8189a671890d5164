//! Why the admin interface did not do what was asked, beyond what every path of HTTP may refuse.

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
    /// It cannot be done as things are.
    Conflict,
    /// The candidate is no policy.
    WrongPolicy,
    /// As many live views are open as may be.
    TooManyWatchers,
}

impl AdminProblem {
    /// The status to answer with.
    pub(crate) const fn status(self) -> u16 {
        match self {
            AdminProblem::NoToken => 401,
            AdminProblem::CrossSite | AdminProblem::NotAllowed => 403,
            AdminProblem::Unknown => 404,
            AdminProblem::Conflict => 409,
            AdminProblem::WrongHost => 421,
            AdminProblem::WrongPolicy => 422,
            AdminProblem::TooManyLogins { .. } => 429,
            AdminProblem::TooManyWatchers => 503,
        }
    }

    /// The problem type: a name that stays.
    pub(crate) const fn urn(self) -> &'static str {
        match self {
            AdminProblem::WrongHost => "urn:tollgate:problem:wrong-host",
            AdminProblem::CrossSite => "urn:tollgate:problem:cross-site",
            AdminProblem::NoToken => "urn:tollgate:problem:no-token",
            AdminProblem::TooManyLogins { .. } => "urn:tollgate:problem:too-many-logins",
            AdminProblem::NotAllowed => "urn:tollgate:problem:not-allowed",
            AdminProblem::Unknown => "urn:tollgate:problem:unknown",
            AdminProblem::Conflict => "urn:tollgate:problem:conflict",
            AdminProblem::WrongPolicy => "urn:tollgate:problem:wrong-policy",
            AdminProblem::TooManyWatchers => "urn:tollgate:problem:too-many-watchers",
        }
    }

    /// The title of all refusals of this kind.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            AdminProblem::WrongHost => "The host is not one of this server's names",
            AdminProblem::CrossSite => "Another site may not use this server",
            AdminProblem::NoToken => "A token is needed to operate this server",
            AdminProblem::TooManyLogins { .. } => "Too many wrong tokens were tried",
            AdminProblem::NotAllowed => "The token's role may not do this",
            AdminProblem::Unknown => "There is no such thing",
            AdminProblem::Conflict => "It cannot be done as things are",
            AdminProblem::WrongPolicy => "The candidate is not a policy",
            AdminProblem::TooManyWatchers => "Too many live views are open",
        }
    }
}
