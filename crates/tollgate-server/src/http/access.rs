//! Checks the token of a request, if one is required.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use crate::auth::Auth;
use crate::problem::{Kind, Problem};

/// Carries the token where `Authorization` is not free: a proxy that asks about a request passes on that request's own
/// header.
const TOKEN_HEADER: &str = "x-tollgate-token";

/// Whether the headers contain the required token.
pub(super) fn is_admitted(auth: &Auth, headers: &HeaderMap) -> bool {
    match headers.get(TOKEN_HEADER) {
        Some(token) => auth.admits_token(token.as_bytes()),
        None => auth.admits_header(headers.get(AUTHORIZATION).map(|value| value.as_bytes())),
    }
}

/// The answer to a request without a valid token.
pub(super) fn refusal() -> Problem {
    Problem::new(
        Kind::Unauthorized,
        "this server wants a token; accepted: Authorization: Bearer TOKEN, or X-Tollgate-Token: TOKEN",
    )
}
