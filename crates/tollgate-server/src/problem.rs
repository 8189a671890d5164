//! Errors of HTTP requests, and their representation. A denial is not an error: it is an answer.

use tollgate::RequestError;
use tollgate::engine::CommitError;
use tollgate_gateway::problem::{Kind as Common, ProblemType as Type, detail_text};

mod admin;
mod details;

pub(crate) use admin::AdminProblem;
pub(crate) use details::{problem_details, problem_text};
pub(crate) use tollgate_gateway::problem::response;

/// The kind of a problem, which programs may match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The body is not what this path accepts.
    InvalidRequest,
    /// The body is too large.
    BodyTooLarge,
    /// The body came too slowly.
    BodyTooSlow,
    /// The body did not arrive completely.
    BodyCutOff,
    /// The content type is not JSON.
    UnsupportedMediaType,
    /// The request has no valid token.
    Unauthorized,
    /// The path does not exist.
    NotFound,
    /// The path belongs to another format than that of the active policy.
    WrongFormat,
    /// The path exists, but not with this method. Accepted are these.
    MethodNotAllowed(&'static str),
    /// No such reservation exists, or it exists no longer.
    UnknownReservation,
    /// The reservation was committed or cancelled before.
    ReservationSettled,
    /// Another request is settling the reservation.
    ReservationBusy,
    /// The reservation can no longer be settled.
    ReservationExpired,
    /// The server remembers as many open reservations as it can.
    TooManyReservations,
    /// The store did not answer.
    StoreUnavailable,
    /// The admin API refused the request.
    Admin(AdminProblem),
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

    pub(crate) fn of_admin(refusal: AdminProblem, detail: impl Into<String>) -> Self {
        Self::new(Kind::Admin(refusal), detail)
    }

    /// A refusal with the findings about a file, one in each line. They are not shortened: the compiler bounds them.
    pub(crate) fn of_findings(refusal: AdminProblem, findings: impl Into<String>) -> Self {
        Self { kind: Kind::Admin(refusal), detail: findings.into() }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, detail)
    }
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<CommitError> for Problem {
    fn from(error: CommitError) -> Self {
        let kind = match error {
            CommitError::Expired => Kind::ReservationExpired,
            CommitError::AlreadySettled => Kind::ReservationSettled,
            // That of a store, and what a later version may add: nothing was settled.
            _ => Kind::StoreUnavailable,
        };
        Self::new(kind, error.to_string())
    }
}

impl Kind {
    /// The status, the name and the title of all problems of this kind.
    pub(crate) const fn problem_type(self) -> Type {
        match self {
            Kind::InvalidRequest => Common::InvalidRequest.problem_type(),
            Kind::BodyTooLarge => Type::new(413, "body-too-large", "The body is too large"),
            Kind::BodyTooSlow => Common::BodyTooSlow.problem_type(),
            Kind::BodyCutOff => Common::BodyCutOff.problem_type(),
            Kind::UnsupportedMediaType => Type::new(415, "unsupported-media-type", "The body must be JSON"),
            Kind::Unauthorized => Type::new(401, "unauthorized", "The request needs a token"),
            Kind::NotFound => Type::new(404, "not-found", "Nothing is at this path"),
            Kind::WrongFormat => Type::new(404, "wrong-format", "The active policy has another format"),
            Kind::MethodNotAllowed(accepted) => Common::MethodNotAllowed(accepted).problem_type(),
            Kind::UnknownReservation => Type::new(404, "unknown-reservation", "There is no such reservation"),
            Kind::ReservationSettled => {
                Type::new(409, "reservation-settled", "The reservation was settled before")
            }
            Kind::ReservationBusy => Type::new(409, "reservation-busy", "The reservation is being settled"),
            Kind::ReservationExpired => Type::new(409, "reservation-expired", "The reservation has expired"),
            Kind::TooManyReservations => {
                Type::new(503, "too-many-reservations", "Too many reservations are open")
            }
            Kind::StoreUnavailable => Type::new(503, "store-unavailable", "The store did not answer"),
            Kind::Admin(refusal) => refusal.problem_type(),
        }
    }
}
