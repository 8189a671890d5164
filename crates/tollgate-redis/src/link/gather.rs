//! Requests that somebody lines up in one go, as a pipeline does: they leave together and in their order, not as each finds a round free.

use std::cell::RefCell;
use std::sync::Arc;

use super::shard::Shard;
use super::{Hub, Link};

/// Rounds that are to begin when all have lined up, one for each shard.
type Starts = Vec<(Arc<Hub>, Arc<Shard>)>;

thread_local! {
    /// Of what this thread gathers at the moment. It is set for the time of one call, in which nobody waits.
    static STARTS: RefCell<Option<Starts>> = const { RefCell::new(None) };
}

/// Begins the rounds when it is dropped, also by a panic: what lines up has been counted on.
struct Gathering;

impl Drop for Gathering {
    fn drop(&mut self) {
        for (hub, shard) in STARTS.with_borrow_mut(Option::take).unwrap_or_default() {
            hub.runtime.clone().spawn(hub.run_rounds(shard));
        }
    }
}

impl Link {
    /// What lines up while this runs goes out afterwards, in its order: in one message, as far as one may have it.
    pub(crate) fn gather<R>(ask: impl FnOnce() -> R) -> R {
        if STARTS.with_borrow(Option::is_some) {
            return ask();
        }
        STARTS.set(Some(Vec::new()));
        let _gathering = Gathering;
        ask()
    }

    /// Begins a round for a shard whose queue gave the turn for it, now or when all have lined up.
    pub(super) fn start(&self, shard: Arc<Shard>) {
        let left = STARTS.with_borrow_mut(|starts| match starts {
            None => Some(shard),
            // One round takes them all; two would race.
            Some(starts) if starts.iter().any(|(_, known)| Arc::ptr_eq(known, &shard)) => {
                drop(shard.queue.turn());
                None
            }
            Some(starts) => {
                starts.push((Arc::clone(&self.0), shard));
                None
            }
        });
        if let Some(shard) = left {
            self.0.runtime.spawn(Arc::clone(&self.0).run_rounds(shard));
        }
    }
}
