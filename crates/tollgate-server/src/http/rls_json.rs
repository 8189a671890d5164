//! `POST /json`: Envoy's rate-limit service for callers without gRPC.

use tollgate::Timestamp;
use tollgate::store::Store;

use super::handler::{CompatAnswer, CompatBody, HttpAnswer};
use crate::problem::{Kind, Problem};
use crate::rls::{Code, Unanswerable, json};
use crate::service::{Service, rls};

/// Answers a request of Envoy: 200 if it may pass, 429 if it may not.
pub(super) async fn answer<S: Store>(service: &Service<S>, body: &[u8]) -> Result<HttpAnswer, Problem> {
    let rls_request = json::rls_request(body).map_err(Problem::invalid)?;
    let now: Timestamp = service.now();
    let answer = rls::answer(service, &rls_request, now).await.map_err(|error| match error {
        Unanswerable::Invalid(text) => Problem::new(Kind::InvalidRequest, text),
    })?;
    let status = if answer.overall == Code::Ok { 200 } else { 429 };
    let body = CompatBody::Json(json::document(&answer));
    Ok(HttpAnswer::Compat(CompatAnswer { status, headers: answer.headers, body }))
}
