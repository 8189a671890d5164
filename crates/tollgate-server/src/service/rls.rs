//! Answers Envoy's rate-limit questions by the rules in force: those of a policy of our own in `native`, a foreign configuration's by its own.

use tollgate::Timestamp;
use tollgate::store::Store;

use super::Service;
use crate::protocol::Wire;
use crate::rls::{Answer, Question, Unanswerable};
use crate::telemetry::Stopwatch;

mod native;

pub(crate) use native::Envoy;

/// Answers a question by the rules in force: the one way from gRPC and from JSON.
///
/// # Errors
/// When the question is no question. A decision, whatever became of the store, is never an error: Envoy would let the
/// request pass.
pub(crate) async fn answer<S: Store>(
    service: &Service<S>,
    question: &Question,
    now: Timestamp,
) -> Result<Answer, Unanswerable> {
    question.check()?;
    if let Some(foreign) = service.foreign() {
        return Ok(Box::pin(service.answer_foreign(&foreign, question, Wire::Rls, now)).await);
    }
    let watch = Stopwatch::start();
    let answer = native::answer(service, question, now).await;
    // Foreign rules may have come into force meanwhile, so that the guard has refused.
    if answer.is_faulty
        && let Some(foreign) = service.foreign()
    {
        return Ok(Box::pin(service.answer_foreign(&foreign, question, Wire::Rls, now)).await);
    }
    service.meter.took(Wire::Rls, watch.elapsed());
    Ok(answer)
}
