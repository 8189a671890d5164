//! Why the admin interface did not do what was asked, beyond what every path of HTTP may refuse.

/// What kind of refusal it is: what a program may match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
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

impl Refusal {
    /// The status to answer with.
    pub(crate) const fn status(self) -> u16 {
        match self {
            Refusal::NoToken => 401,
            Refusal::CrossSite | Refusal::NotAllowed => 403,
            Refusal::Unknown => 404,
            Refusal::Conflict => 409,
            Refusal::WrongHost => 421,
            Refusal::WrongPolicy => 422,
            Refusal::TooManyLogins { .. } => 429,
            Refusal::TooManyWatchers => 503,
        }
    }

    /// The problem type: a name that stays.
    pub(crate) const fn urn(self) -> &'static str {
        match self {
            Refusal::WrongHost => "urn:tollgate:problem:wrong-host",
            Refusal::CrossSite => "urn:tollgate:problem:cross-site",
            Refusal::NoToken => "urn:tollgate:problem:no-token",
            Refusal::TooManyLogins { .. } => "urn:tollgate:problem:too-many-logins",
            Refusal::NotAllowed => "urn:tollgate:problem:not-allowed",
            Refusal::Unknown => "urn:tollgate:problem:unknown",
            Refusal::Conflict => "urn:tollgate:problem:conflict",
            Refusal::WrongPolicy => "urn:tollgate:problem:wrong-policy",
            Refusal::TooManyWatchers => "urn:tollgate:problem:too-many-watchers",
        }
    }

    /// What all refusals of this kind have in common.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Refusal::WrongHost => "The host is not one of this server's names",
            Refusal::CrossSite => "Another site may not use this server",
            Refusal::NoToken => "A token is needed to operate this server",
            Refusal::TooManyLogins { .. } => "Too many wrong tokens were tried",
            Refusal::NotAllowed => "The token's role may not do this",
            Refusal::Unknown => "There is no such thing",
            Refusal::Conflict => "It cannot be done as things are",
            Refusal::WrongPolicy => "The candidate is not a policy",
            Refusal::TooManyWatchers => "Too many live views are open",
        }
    }
}
