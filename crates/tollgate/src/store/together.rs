//! Runs several futures concurrently in one task, so that those that wait for the same store share its calls.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Store;
use crate::together::together as concurrently;

/// Maximum number of concurrent futures of one caller. Each wake-up polls all of them, and a store takes this many in
/// one call.
pub const TOGETHER_MAX: usize = 64;
/// Maximum number of concurrent futures of all callers, beside one of each caller. A store refuses too many at the same
/// time, and half of its capacity is left to callers with a single request.
const SLOTS_MAX: usize = 256;

static SLOTS: Slots = Slots::new(SLOTS_MAX);

/// The outputs of all futures, in order. The futures start in this order, so that their requests are queued at the
/// store in it, and then proceed independently. If too many other callers do the same, fewer futures run together, or
/// one after the other.
pub async fn together<S, F>(store: &S, futures: Vec<F>) -> Vec<F::Output>
where
    S: Store,
    F: Future,
{
    together_in(&SLOTS, store, futures).await
}

async fn together_in<S, F>(all: &Slots, store: &S, futures: Vec<F>) -> Vec<F::Output>
where
    S: Store,
    F: Future,
{
    let mut outputs = Vec::with_capacity(futures.len());
    let mut futures = futures.into_iter();
    while futures.len() > 0 {
        let taken = all.take(futures.len().min(TOGETHER_MAX));
        // One future may always run, and needs no slot.
        let count = taken.count.max(1);
        let mut some = pin!(concurrently(futures.by_ref().take(count)));
        outputs.extend(poll_fn(|context| store.gather(|| some.as_mut().poll(context))).await);
    }
    outputs
}

/// How many more futures may run concurrently.
struct Slots(AtomicUsize);

/// Slots that are taken until this is dropped.
struct Taken<'s> {
    slots: &'s Slots,
    count: usize,
}

impl Slots {
    const fn new(count: usize) -> Self {
        Self(AtomicUsize::new(count))
    }

    /// Takes at most `wanted` slots, and none if there are not at least two. Relaxed orderings suffice: the number
    /// protects no other memory.
    fn take(&self, wanted: usize) -> Taken<'_> {
        let taken = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
            let count = wanted.min(free);
            (count > 1).then(|| free - count)
        });
        Taken { slots: self, count: taken.map_or(0, |free| wanted.min(free)) }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.slots.0.fetch_add(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::memory::MemoryStore;
    use crate::time::Timestamp;

    /// Is ready with a number after that many polls.
    fn after(number: usize) -> impl Future<Output = usize> {
        let mut polls = 0;
        poll_fn(move |_| {
            polls += 1;
            if polls >= number { Poll::Ready(number) } else { Poll::Pending }
        })
    }

    /// The output of all, and how often they were polled together.
    fn polled(all: &Slots, numbers: &[usize]) -> (Vec<usize>, usize) {
        let store = MemoryStore::new(1 << 16, Timestamp::from_unix_seconds(1));
        let mut future =
            pin!(together_in(all, &store, numbers.iter().map(|&number| after(number)).collect()));
        let mut rounds = 1;
        loop {
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outputs) => return (outputs, rounds),
                Poll::Pending => rounds += 1,
            }
        }
    }

    /// As many futures as permitted take as long as the longest of them, further ones follow, and the outputs stay in
    /// order.
    #[test]
    fn futures_run_at_once_and_answer_in_order() {
        let all = Slots::new(SLOTS_MAX);
        let numbers: Vec<usize> = (1..=TOGETHER_MAX).rev().collect();
        assert_eq!(polled(&all, &numbers), (numbers.clone(), TOGETHER_MAX));
        let numbers: Vec<usize> = (1..=100).rev().collect();
        // The last poll of one batch is the first of the next.
        assert_eq!(polled(&all, &numbers), (numbers.clone(), 100 + 36 - 1));
        assert_eq!(polled(&all, &[]), (Vec::new(), 1));
    }

    /// Without slots the futures run one after the other, and with few slots a few at a time. No future waits for a
    /// slot, and every slot is given back.
    #[test]
    fn slots_are_shared() {
        for (slots, batches) in [(0, 6), (1, 6), (2, 3), (4, 2), (6, 1)] {
            let all = Slots::new(slots);
            // Each future is pending once; a batch after the first begins with the poll that ends the one before.
            assert_eq!(polled(&all, &[2; 6]), (vec![2; 6], batches + 1), "{slots}");
            assert_eq!(all.0.load(Ordering::Relaxed), slots);
        }
    }
}
