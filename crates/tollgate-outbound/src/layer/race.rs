//! Two futures of which the first to end counts, and a future that ends at a deadline.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use tollgate::Timestamp;
use tollgate::store::Store;

use crate::outbound::Outbound;

/// The future that ended first, with its output.
pub(crate) enum First<A, B> {
    Left(A),
    Right(B),
}

/// The output of the future that ends first. The other can go on.
pub(crate) async fn first_of<A: Future, B: Future>(
    mut left: Pin<&mut A>,
    mut right: Pin<&mut B>,
) -> First<A::Output, B::Output> {
    poll_fn(|context| match left.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(First::Left(output)),
        Poll::Pending => right.as_mut().poll(context).map(First::Right),
    })
    .await
}

/// The output of a future, or `None` when the deadline comes first.
pub(crate) async fn until<S, T>(
    outbound: &Outbound<S>,
    deadline: Option<Timestamp>,
    future: impl Future<Output = T>,
) -> Option<T>
where
    S: Store + Send + Sync + 'static,
{
    let Some(deadline) = deadline else { return Some(future.await) };
    match first_of(pin!(future), pin!(outbound.clock().sleep_until(deadline))).await {
        First::Left(output) => Some(output),
        First::Right(()) => None,
    }
}
