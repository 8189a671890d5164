//! Awaits several futures concurrently.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Starts all futures in order and awaits them all. The results are in the same order.
pub async fn together<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_over = true;
        for (future, result) in waiting.iter_mut().zip(&mut results) {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => is_over = false,
                }
            }
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// All futures are started before any completes, and each has its own result.
    #[test]
    fn all_run_at_once() {
        let started = AtomicU32::new(0);
        let each = (0..5).map(|number| {
            let started = &started;
            async move {
                started.fetch_add(1, Ordering::Relaxed);
                poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if started.load(Ordering::Relaxed) == 5 { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                number
            }
        });
        assert_eq!(pollster::block_on(together(each)), [0, 1, 2, 3, 4]);
    }
}
