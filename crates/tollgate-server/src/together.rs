//! Several things at once, in one task: what waits for the same store waits for it once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// What all of them say, in their order. They begin in this order, and then each goes on whenever it can. Give it a bounded number: each
/// is asked whenever one of them may go on.
pub(crate) async fn together<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<Going<F>> = futures.map(|future| Going::On(Box::pin(future))).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for one in &mut all {
            let Going::On(future) = one else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(said) => *one = Going::Done(said),
                Poll::Pending => is_done = false,
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let said = |one| match one {
        Going::Done(said) => Some(said),
        Going::On(_) => None,
    };
    all.into_iter().filter_map(said).collect()
}

enum Going<F: Future> {
    On(Pin<Box<F>>),
    Done(F::Output),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    /// A hundred waits take as long as the longest, and answers keep their places.
    #[tokio::test(start_paused = true)]
    async fn they_go_on_at_once() {
        let start = Instant::now();
        let wait = |number: u64| async move {
            sleep(Duration::from_millis(100 - number)).await;
            number
        };
        assert_eq!(together((0..100).map(wait)).await, (0..100).collect::<Vec<_>>());
        assert_eq!(start.elapsed(), Duration::from_millis(100));
        assert!(together(std::iter::empty::<std::future::Ready<()>>()).await.is_empty());
    }
}
