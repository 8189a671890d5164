//! Runs several futures concurrently in one task, so that those that wait for the same store share its calls.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::{Semaphore, SemaphorePermit};
use tollgate::store::Store;

/// Maximum number of concurrent futures of one caller. Each wake-up polls all of them, and a store takes this many in
/// one call.
pub(crate) const TOGETHER_MAX: usize = 64;
/// Maximum number of concurrent futures of all callers, beside one of each caller. A store refuses too many at the same
/// time, and half of its capacity is left to callers with a single request.
const PLACES_MAX: usize = 256;

static PLACES: Semaphore = Semaphore::const_new(PLACES_MAX);

/// The outputs of all futures, in order. The futures start in this order, so that their requests are queued at the
/// store in it, and then proceed independently. If too many other callers do the same, fewer futures run together, or
/// one after the other.
pub(crate) async fn together<S, F>(store: &S, futures: Vec<F>) -> Vec<F::Output>
where
    S: Store,
    F: Future,
{
    together_in(&PLACES, store, futures).await
}

async fn together_in<S, F>(all: &Semaphore, store: &S, futures: Vec<F>) -> Vec<F::Output>
where
    S: Store,
    F: Future,
{
    let mut said = Vec::with_capacity(futures.len());
    let mut futures = futures.into_iter();
    while futures.len() > 0 {
        let (count, _places) = places(all, futures.len().min(TOGETHER_MAX));
        let mut some: Vec<Going<F>> =
            futures.by_ref().take(count).map(|future| Going::On(Box::pin(future))).collect();
        poll_fn(|context| store.gather(|| poll_all(&mut some, context))).await;
        said.extend(some.into_iter().filter_map(Going::said));
    }
    said
}

/// How many of `wanted` futures may run concurrently, with their permits. One may always run, and needs no permit.
fn places(all: &Semaphore, wanted: usize) -> (usize, Option<SemaphorePermit<'_>>) {
    let count = wanted.min(all.available_permits());
    let places = u32::try_from(count).ok().filter(|&count| count > 1);
    // Another caller may have taken the permits since the check. Then only one future runs for now.
    match places.and_then(|count| all.try_acquire_many(count).ok()) {
        Some(places) => (count, Some(places)),
        None => (1, None),
    }
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

    /// As many waits as permitted take as long as the longest of them, further ones follow, and the outputs stay in
    /// order.
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

    /// Without permits the futures run one after the other, and with few permits a few at a time. No future waits for a
    /// permit.
    #[tokio::test(start_paused = true)]
    async fn places_are_shared() {
        let store = MemoryStore::new(1 << 16, Timestamp::from_unix_seconds(1));
        let wait = |_| async { sleep(Duration::from_millis(1)).await };
        for (places, milliseconds) in [(0, 6), (1, 6), (2, 3), (4, 2), (6, 1)] {
            let (all, start) = (Semaphore::new(places), Instant::now());
            together_in(&all, &store, (0..6).map(wait).collect()).await;
            assert_eq!(start.elapsed(), Duration::from_millis(milliseconds), "{places}");
            assert_eq!(all.available_permits(), places);
        }
    }
}
