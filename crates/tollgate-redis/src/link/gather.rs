//! Requests that somebody lines up in one go, as a pipeline does: they stand in line together and in their order, and leave so.

use std::cell::RefCell;
use std::sync::Arc;

use super::queue::Waiting;
use super::shard::Shard;
use super::{Hub, Link};

/// Those that wait for others to be lined up with, by shard.
type Gathered = Vec<(Arc<Hub>, Arc<Shard>, Vec<Waiting>)>;

thread_local! {
    /// What this thread gathers at the moment. It is set for the time of one call, in which nobody waits.
    static GATHERED: RefCell<Option<Gathered>> = const { RefCell::new(None) };
}

/// Lines them up when it is dropped, also by a panic: their askers wait for them.
struct Gathering;

impl Drop for Gathering {
    fn drop(&mut self) {
        for (hub, shard, waiting) in GATHERED.with_borrow_mut(Option::take).unwrap_or_default() {
            hub.push(shard, waiting);
        }
    }
}

impl Link {
    /// What is asked while this runs is lined up afterwards, all at once: it goes out in its order, and in one message as far as one may
    /// have it.
    pub(crate) fn gather<R>(ask: impl FnOnce() -> R) -> R {
        if GATHERED.with_borrow(Option::is_some) {
            return ask();
        }
        GATHERED.set(Some(Vec::new()));
        let _gathering = Gathering;
        ask()
    }

    /// Lines requests up at a shard, now or with those that are being gathered.
    pub(super) fn line_up(&self, shard: Arc<Shard>, waiting: impl IntoIterator<Item = Waiting>) {
        GATHERED.with_borrow_mut(|gathered| match gathered {
            None => Arc::clone(&self.0).push(shard, waiting),
            Some(gathered) => match gathered.iter_mut().find(|(_, known, _)| Arc::ptr_eq(known, &shard)) {
                Some((_, _, all)) => all.extend(waiting),
                None => gathered.push((Arc::clone(&self.0), shard, waiting.into_iter().collect())),
            },
        });
    }
}

impl Hub {
    /// Lines requests up, one directly after the other, and starts a round if nobody who is under way will take them along.
    fn push(self: Arc<Self>, shard: Arc<Shard>, waiting: impl IntoIterator<Item = Waiting>) {
        if shard.queue.push(waiting) {
            self.runtime.clone().spawn(self.run_rounds(shard));
        }
    }
}
