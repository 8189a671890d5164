//! Errors of HTTP requests, and their representation. A denial is not an error: it is an answer.

use tollgate::RequestError;
use tollgate::engine::CommitError;
use tollgate_gateway::problem::{Kind as Common, detail_text};

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
    /// The HTTP status.
    pub(crate) const fn status(self) -> u16 {
        match self {
            Kind::InvalidRequest | Kind::BodyCutOff => 400,
            Kind::Unauthorized => 401,
            Kind::NotFound | Kind::WrongFormat | Kind::UnknownReservation => 404,
            Kind::MethodNotAllowed(_) => 405,
            Kind::BodyTooSlow => 408,
            Kind::ReservationSettled | Kind::ReservationBusy | Kind::ReservationExpired => 409,
            Kind::BodyTooLarge => 413,
            Kind::UnsupportedMediaType => 415,
            Kind::TooManyReservations | Kind::StoreUnavailable => 503,
            Kind::Admin(refusal) => refusal.status(),
        }
    }

    /// The problem type: a stable name.
    pub(crate) const fn urn(self) -> &'static str {
        match self {
            Kind::InvalidRequest => Common::InvalidRequest.urn(),
            Kind::BodyTooLarge => "urn:tollgate:problem:body-too-large",
            Kind::BodyTooSlow => Common::BodyTooSlow.urn(),
            Kind::BodyCutOff => Common::BodyCutOff.urn(),
            Kind::UnsupportedMediaType => "urn:tollgate:problem:unsupported-media-type",
            Kind::Unauthorized => "urn:tollgate:problem:unauthorized",
            Kind::WrongFormat => "urn:tollgate:problem:wrong-format",
            Kind::NotFound => "urn:tollgate:problem:not-found",
            Kind::MethodNotAllowed(accepted) => Common::MethodNotAllowed(accepted).urn(),
            Kind::UnknownReservation => "urn:tollgate:problem:unknown-reservation",
            Kind::ReservationSettled => "urn:tollgate:problem:reservation-settled",
            Kind::ReservationBusy => "urn:tollgate:problem:reservation-busy",
            Kind::ReservationExpired => "urn:tollgate:problem:reservation-expired",
            Kind::TooManyReservations => "urn:tollgate:problem:too-many-reservations",
            Kind::StoreUnavailable => "urn:tollgate:problem:store-unavailable",
            Kind::Admin(refusal) => refusal.urn(),
        }
    }

    /// The title of all problems of this kind.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Kind::InvalidRequest => Common::InvalidRequest.title(),
            Kind::BodyTooLarge => "The body is too large",
            Kind::BodyTooSlow => Common::BodyTooSlow.title(),
            Kind::BodyCutOff => Common::BodyCutOff.title(),
            Kind::UnsupportedMediaType => "The body must be JSON",
            Kind::Unauthorized => "The request needs a token",
            Kind::WrongFormat => "The active policy has another format",
            Kind::NotFound => "Nothing is at this path",
            Kind::MethodNotAllowed(accepted) => Common::MethodNotAllowed(accepted).title(),
            Kind::UnknownReservation => "There is no such reservation",
            Kind::ReservationSettled => "The reservation was settled before",
            Kind::ReservationBusy => "The reservation is being settled",
            Kind::ReservationExpired => "The reservation has expired",
            Kind::TooManyReservations => "Too many reservations are open",
            Kind::StoreUnavailable => "The store did not answer",
            Kind::Admin(refusal) => refusal.title(),
        }
    }
}
