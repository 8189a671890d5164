//! Answers Envoy's rate-limit requests by the active rules: `native` for a Tollgate policy, and its own evaluator for a
//! compat configuration.

use tollgate::Timestamp;
use tollgate::store::Store;

use super::{Service, compat};
use crate::protocol::Protocol;
use crate::rls::{Answer, RlsRequest, Unanswerable};
use crate::telemetry::Stopwatch;

mod native;

pub(crate) use native::Envoy;

/// Answers a request by the active rules. gRPC and JSON both use this function.
///
/// # Errors
/// When the request is invalid. A decision is never an error, whatever happened to the store: Envoy would let the
/// request pass.
pub(crate) async fn answer<S: Store>(
    service: &Service<S>,
    rls_request: &RlsRequest,
    now: Timestamp,
) -> Result<Answer, Unanswerable> {
    rls_request.check()?;
    if let Some(compat) = service.compat() {
        return Ok(Box::pin(compat::answer(service, &compat, rls_request, Protocol::Rls, now)).await);
    }
    let watch = Stopwatch::start();
    let answer = native::answer(service, rls_request, now).await;
    // Compat rules may have become active meanwhile, so that the guard policy refused the request.
    if answer.is_faulty
        && let Some(compat) = service.compat()
    {
        return Ok(Box::pin(compat::answer(service, &compat, rls_request, Protocol::Rls, now)).await);
    }
    service.meter.took(Protocol::Rls, watch.elapsed());
    Ok(answer)
}
