//! The HTTP protocol. The path of a request: `connection` (its timeouts) → `route` (what it asks for) → `access` (its
//! token) → `handler` (calls the function of the route) → `request_body` (bytes, bounded) → `request_json` → `check`,
//! `held` and their likes (ask the service) → `reply` (converts answers to HTTP; `problem` converts problems).

mod connection;
mod route;
mod access;
mod root;
mod handler;
mod check;
mod held;
mod authz;
mod rls_json;
mod limitador;
mod reply;

pub(crate) use connection::connection;

/// The part of this protocol for fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use crate::request_json::JsonRequest;
    use crate::rls::json;

    /// The attributes of a request as text, and its cost; or why it is invalid.
    ///
    /// # Errors
    /// The text that the protocol would send.
    pub fn check_request(bytes: &[u8]) -> Result<(Vec<(String, String)>, u64), String> {
        let json_request = JsonRequest::check(bytes).map_err(|problem| problem.detail)?;
        let request = json_request.request().map_err(|error| error.to_string())?;
        let attributes = request.attributes().iter();
        let texts = attributes.map(|given| (given.name.to_owned(), given.value.to_string())).collect();
        Ok((texts, request.units()))
    }

    /// No body of `/json` causes a panic. A valid one is answered.
    pub fn rls_json(bytes: &[u8]) {
        let Ok(rls_request) = json::rls_request(bytes) else { return };
        if rls_request.check().is_ok() {
            let answer = tollgate_compat::fuzzing::answer(&rls_request);
            assert!(
                answer.is_some_and(|answer| !json::document(&answer).to_string().is_empty()),
                "no answer"
            );
        }
    }
}
