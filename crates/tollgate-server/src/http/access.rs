//! Whether a request may ask: the token that it brings, if one is needed.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use crate::auth::Auth;
use crate::problem::{Kind, Problem};

/// Has the token where `Authorization` is not free: a proxy that asks about a request passes that request's own on.
const TOKEN_HEADER: &str = "x-tollgate-token";

/// Whether headers have the token that is needed.
pub(super) fn is_admitted(auth: &Auth, headers: &HeaderMap) -> bool {
    match headers.get(TOKEN_HEADER) {
        Some(token) => auth.admits_token(token.as_bytes()),
        None => auth.admits_header(headers.get(AUTHORIZATION).map(|value| value.as_bytes())),
    }
}

/// What a stranger is told.
pub(super) fn refusal() -> Problem {
    Problem::new(
        Kind::Unauthorized,
        "this server wants a token; accepted: Authorization: Bearer TOKEN, or X-Tollgate-Token: TOKEN",
    )
}
