//! The future of a response that may be shed. Only requests that wait allocate one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response, StatusCode};
use pin_project_lite::pin_project;
use tollgate_overload::Ending;

use super::gate::Admission;
use crate::body::Body;
use crate::hold::Finish;

/// How a request that waited ended.
pub(super) enum QueuedOutcome<T> {
    Served(T, Admission),
    Refused(Response<Bytes>),
}

type QueuedFuture<T> = Pin<Box<dyn Future<Output = QueuedOutcome<T>> + Send>>;

pin_project! {
    /// The response of a service that sheds.
    pub struct ShedFuture<F: Future> {
        #[pin]
        path: ShedPath<F>,
    }
}

pin_project! {
    #[project = ShedPathProjection]
    enum ShedPath<F: Future> {
        Passing { #[pin] served: F, admission: Option<Admission> },
        Refused { response: Option<Response<Bytes>> },
        Queued { queued: QueuedFuture<F::Output> },
    }
}

impl<F: Future> ShedFuture<F> {
    pub(super) fn passing(served: F, admission: Admission) -> Self {
        Self { path: ShedPath::Passing { served, admission: Some(admission) } }
    }

    pub(super) fn refused(response: Response<Bytes>) -> Self {
        Self { path: ShedPath::Refused { response: Some(response) } }
    }

    pub(super) fn queued(queued: impl Future<Output = QueuedOutcome<F::Output>> + Send + 'static) -> Self {
        Self { path: ShedPath::Queued { queued: Box::pin(queued) } }
    }
}

impl<F, R, E> Future for ShedFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (served, admission) = match self.project().path.project() {
            ShedPathProjection::Passing { served, admission } => {
                let served = ready!(served.poll(context));
                // A future that is polled after its end stays pending.
                let Some(admission) = admission.take() else { return Poll::Pending };
                (served, admission)
            }
            ShedPathProjection::Refused { response } => {
                let Some(response) = response.take() else { return Poll::Pending };
                return Poll::Ready(Ok(response.map(Body::refused)));
            }
            ShedPathProjection::Queued { queued } => match ready!(queued.as_mut().poll(context)) {
                QueuedOutcome::Served(served, admission) => (served, admission),
                QueuedOutcome::Refused(response) => return Poll::Ready(Ok(response.map(Body::refused))),
            },
        };
        Poll::Ready(finish(served, admission))
    }
}

/// Moves the permit into the body, which releases it at its end and reports how the request ended.
fn finish<R, E>(served: Result<Response<R>, E>, mut admission: Admission) -> Result<Response<Body<R>>, E> {
    let mut response = match served {
        Ok(response) => response,
        Err(error) => {
            admission.will_end(Ending::Dropped);
            return Err(error);
        }
    };
    let stated = response.extensions_mut().remove::<Ending>();
    if is_stream(&response) {
        // The length of a stream says nothing about capacity, so its permit is released now.
        admission.will_end(stated.unwrap_or(Ending::Success));
        drop(admission);
        return Ok(response.map(|body| Body::served(body, None)));
    }
    let status = response.status();
    let is_lost = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT);
    admission.will_end(stated.unwrap_or(if is_lost { Ending::Dropped } else { Ending::Success }));
    let hold: Box<dyn Finish> = Box::new(admission);
    Ok(response.map(|body| Body::served(body, Some(hold))))
}

fn is_stream<R>(response: &Response<R>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    response.status() == StatusCode::SWITCHING_PROTOCOLS || kind.starts_with(b"text/event-stream")
}

impl Finish for Admission {
    /// Trailers say nothing about capacity. Dropping the body releases the permit.
    fn ended(&mut self, _: &HeaderMap) {}
}
