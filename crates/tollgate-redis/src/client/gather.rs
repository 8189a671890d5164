//! Enqueues requests of one thread together, as a pipeline needs: they stay contiguous and in order.

use std::cell::RefCell;
use std::sync::Arc;

use super::Client;
use crate::batch::Dispatcher;
use crate::shard::Shard;
use crate::shard::queue::QueuedRequest;

/// Gathered requests by shard.
type Gathered = Vec<(Arc<Dispatcher>, Arc<Shard>, Vec<QueuedRequest>)>;

thread_local! {
    /// The batch that this thread gathers now. It is set during one synchronous call, so no other task sees it.
    static GATHERED: RefCell<Option<Gathered>> = const { RefCell::new(None) };
}

/// Enqueues the gathered requests when dropped, also after a panic: their callers wait for them.
struct EnqueueOnDrop;

impl Drop for EnqueueOnDrop {
    fn drop(&mut self) {
        for (dispatcher, shard, queued) in GATHERED.with_borrow_mut(Option::take).unwrap_or_default() {
            dispatcher.enqueue(shard, queued);
        }
    }
}

impl Client {
    /// Gathers the requests that `submit` makes and enqueues them afterwards, all together. They leave in order, in as
    /// few messages as the bounds of a flush allow.
    pub(crate) fn gather<R>(submit: impl FnOnce() -> R) -> R {
        if GATHERED.with_borrow(Option::is_some) {
            return submit();
        }
        GATHERED.set(Some(Vec::new()));
        let _enqueue = EnqueueOnDrop;
        submit()
    }

    /// Enqueues requests at a shard, now or with those that are being gathered.
    pub(super) fn enqueue(&self, shard: Arc<Shard>, queued: impl IntoIterator<Item = QueuedRequest>) {
        GATHERED.with_borrow_mut(|gathered| match gathered {
            None => Arc::clone(&self.0).enqueue(shard, queued),
            Some(gathered) => match gathered.iter_mut().find(|(_, other, _)| Arc::ptr_eq(other, &shard)) {
                Some((_, _, all)) => all.extend(queued),
                None => gathered.push((Arc::clone(&self.0), shard, queued.into_iter().collect())),
            },
        });
    }
}
