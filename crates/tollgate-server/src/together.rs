//! Several things at once, in one task: what waits for the same store waits for it once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use tollgate::store::Store;

/// How many wait at a time: each is asked whenever one of them may go on, and a store takes so many in one call.
pub(crate) const TOGETHER_MAX: usize = 64;

/// What all of them say, in their order. They begin in this order, so that what they ask of the store is lined up in it, and then each
/// goes on whenever it can.
pub(crate) async fn together<S, F>(store: &S, futures: Vec<F>) -> Vec<F::Output>
where
    S: Store,
    F: Future,
{
    let mut said = Vec::with_capacity(futures.len());
    let mut futures = futures.into_iter();
    while futures.len() > 0 {
        let mut some: Vec<Going<F>> =
            futures.by_ref().take(TOGETHER_MAX).map(|future| Going::On(Box::pin(future))).collect();
        poll_fn(|context| store.gather(|| poll_all(&mut some, context))).await;
        said.extend(some.into_iter().filter_map(Going::said));
    }
    said
}

fn poll_all<F: Future>(all: &mut [Going<F>], context: &mut Context<'_>) -> Poll<()> {
    let mut is_done = true;
    for one in all {
        let Going::On(future) = one else { continue };
        match future.as_mut().poll(context) {
            Poll::Ready(said) => *one = Going::Done(said),
            Poll::Pending => is_done = false,
        }
    }
    if is_done { Poll::Ready(()) } else { Poll::Pending }
}

enum Going<F: Future> {
    On(Pin<Box<F>>),
    Done(F::Output),
}

impl<F: Future> Going<F> {
    fn said(self) -> Option<F::Output> {
        match self {
            Going::Done(said) => Some(said),
            Going::On(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};
    use tollgate::{MemoryStore, Timestamp};

    use super::*;

    /// As many waits as there may be take as long as the longest, more follow them, and answers keep their places.
    #[tokio::test(start_paused = true)]
    async fn they_go_on_at_once() {
        let start = Instant::now();
        let wait = |number: u64| async move {
            sleep(Duration::from_millis(100 - number)).await;
            number
        };
        let store = MemoryStore::new(1 << 16, Timestamp::from_unix_seconds(1));
        assert_eq!(together(&store, (0..64).map(wait).collect()).await, (0..64).collect::<Vec<_>>());
        assert_eq!(start.elapsed(), Duration::from_millis(100));
        assert_eq!(together(&store, (0..100).map(wait).collect()).await, (0..100).collect::<Vec<_>>());
        assert_eq!(start.elapsed(), Duration::from_millis(200 + 36));
        assert!(together(&store, Vec::<std::future::Ready<()>>::new()).await.is_empty());
    }
}
