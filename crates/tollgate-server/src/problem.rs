//! Why a request over HTTP got no answer of its own kind, and how that is told. A denial is not among these: it is an answer.

use tollgate::RequestError;
use tollgate::engine::CommitError;

mod admin;
mod details;
mod gateway;

pub(crate) use admin::Refusal;
pub(crate) use details::{problem_details, response};
pub(crate) use gateway::Turned;

/// Longest explanation, in characters. It may quote what the request said.
const DETAIL_CHARS_MAX: usize = 500;

/// What kind of problem it is: what a program may match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The body is not what this path accepts.
    InvalidRequest,
    /// The body is too large.
    BodyTooLarge,
    /// The body came too slowly.
    BodyTooSlow,
    /// The body did not arrive whole.
    BodyCutOff,
    /// The body is said to be something else than JSON.
    UnsupportedMediaType,
    /// The request does not prove that it may ask.
    Unauthorized,
    /// Nothing is at this path.
    NotFound,
    /// The path belongs to another format than that of the policy in force.
    WrongFormat,
    /// The path is right, the method is not; these are accepted.
    MethodNotAllowed(&'static str),
    /// No such reservation, or none any more.
    UnknownReservation,
    /// The reservation was committed or cancelled before.
    ReservationSettled,
    /// Another request is settling the reservation.
    ReservationBusy,
    /// The reservation can no longer be settled.
    ReservationExpired,
    /// As many reservations are open as the server can remember.
    TooManyReservations,
    /// The store did not answer.
    StoreUnavailable,
    /// The admin interface did not do what was asked.
    Admin(Refusal),
    /// The gateway did not send a request on, or got no answer to it.
    Gateway(Turned),
}

/// A kind, and what is wrong in words that say what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) detail: String,
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX) {
            detail.truncate(end);
            detail.push('…');
        }
        Self { kind, detail }
    }

    pub(crate) fn of_admin(refusal: Refusal, detail: impl Into<String>) -> Self {
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
            CommitError::Store(_) => Kind::StoreUnavailable,
        };
        Self::new(kind, error.to_string())
    }
}

impl Kind {
    /// The status to answer with.
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
            Kind::Gateway(turned) => turned.status(),
        }
    }

    /// The problem type: a name that stays.
    pub(crate) const fn urn(self) -> &'static str {
        match self {
            Kind::InvalidRequest => "urn:tollgate:problem:invalid-request",
            Kind::BodyTooLarge => "urn:tollgate:problem:body-too-large",
            Kind::BodyTooSlow => "urn:tollgate:problem:body-too-slow",
            Kind::BodyCutOff => "urn:tollgate:problem:body-cut-off",
            Kind::UnsupportedMediaType => "urn:tollgate:problem:unsupported-media-type",
            Kind::Unauthorized => "urn:tollgate:problem:unauthorized",
            Kind::WrongFormat => "urn:tollgate:problem:wrong-format",
            Kind::NotFound => "urn:tollgate:problem:not-found",
            Kind::MethodNotAllowed(_) => "urn:tollgate:problem:method-not-allowed",
            Kind::UnknownReservation => "urn:tollgate:problem:unknown-reservation",
            Kind::ReservationSettled => "urn:tollgate:problem:reservation-settled",
            Kind::ReservationBusy => "urn:tollgate:problem:reservation-busy",
            Kind::ReservationExpired => "urn:tollgate:problem:reservation-expired",
            Kind::TooManyReservations => "urn:tollgate:problem:too-many-reservations",
            Kind::StoreUnavailable => "urn:tollgate:problem:store-unavailable",
            Kind::Admin(refusal) => refusal.urn(),
            Kind::Gateway(turned) => turned.urn(),
        }
    }

    /// Which of several kinds with one type it is.
    pub(crate) const fn reason(self) -> Option<&'static str> {
        match self {
            Kind::Gateway(turned) => turned.reason(),
            _ => None,
        }
    }

    /// What all problems of this kind have in common.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Kind::InvalidRequest => "The request is not valid",
            Kind::BodyTooLarge => "The body is too large",
            Kind::BodyTooSlow => "The body came too slowly",
            Kind::BodyCutOff => "The body did not arrive whole",
            Kind::UnsupportedMediaType => "The body must be JSON",
            Kind::Unauthorized => "The request needs a token",
            Kind::WrongFormat => "The policy in force has another format",
            Kind::NotFound => "Nothing is at this path",
            Kind::MethodNotAllowed(_) => "The path does not accept this method",
            Kind::UnknownReservation => "There is no such reservation",
            Kind::ReservationSettled => "The reservation was settled before",
            Kind::ReservationBusy => "The reservation is being settled",
            Kind::ReservationExpired => "The reservation has expired",
            Kind::TooManyReservations => "Too many reservations are open",
            Kind::StoreUnavailable => "The store did not answer",
            Kind::Admin(refusal) => refusal.title(),
            Kind::Gateway(turned) => turned.title(),
        }
    }
}
