//! Sharing through Redis: a freeze that one process learns of holds for all of them within a second, and a process that
//! starts learns of those that hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tollgate::store::Store;
use tollgate::{Ticks, Timestamp};
use tollgate_redis::{FleetExchange, FleetNews, RedisStore, SharedItem, SharedTopic};

use crate::outbound::Outbound;
use crate::shared_freezes::SharedFreeze;
use crate::state::Shared;

/// How often a process asks for the freezes of others.
const EXCHANGE_EVERY: Duration = Duration::from_millis(250);

impl<S: Store + Send + Sync + 'static> Outbound<S> {
    /// Shares freezes with every process on the same Redis, until the last clone of this handle is dropped. `redis`
    /// finds the Redis store in the engine's store: `|store| Some(store)` if it is one itself. What this process admitted
    /// while Redis was away is reported to it when it is back.
    ///
    /// # Errors
    /// There is no tokio runtime to run it.
    pub fn share_freezes<F>(&self, redis: F) -> Result<(), tokio::runtime::TryCurrentError>
    where
        F: Fn(&S) -> Option<&RedisStore> + Send + Sync + 'static,
    {
        let runtime = tokio::runtime::Handle::try_current()?;
        runtime.spawn(exchange(Arc::downgrade(&self.shared), redis));
        Ok(())
    }
}

/// What is known of the store.
#[derive(Default)]
struct SyncState {
    version: String,
    /// How far the store's clock is ahead of ours, in microseconds.
    ahead: i64,
}

async fn exchange<S, F>(shared: Weak<Shared<S>>, redis: F)
where
    S: Store + Send + Sync + 'static,
    F: Fn(&S) -> Option<&RedisStore> + Send + Sync + 'static,
{
    let mut known = SyncState::default();
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let Some(store) = redis(shared.engine.store()) else { return };
        let pending = shared.outbox.take();
        let items = pending.iter().filter_map(|freeze| item_of(freeze, &known)).collect();
        let (topic, version) = (SharedTopic::Outbound, known.version.clone());
        match store.exchange(&FleetExchange { topic, version, items, ..FleetExchange::default() }).await {
            Ok(news) => apply_news(&shared, &mut known, news),
            // They are sent with the next exchange, unless they are over by then.
            Err(_) => shared.outbox.restore(pending, shared.engine.now()),
        }
        // A store that is away keeps what there is to report until later.
        let _ = shared.engine.maintenance().reconcile(shared.engine.now()).await;
        let news = Arc::clone(&shared.outbox.news);
        drop(shared);
        let _ = tokio::time::timeout(EXCHANGE_EVERY, news.notified()).await;
    }
}

fn item_of(freeze: &SharedFreeze, known: &SyncState) -> Option<SharedItem> {
    let until = freeze.freeze.until.unix_micros().saturating_add_signed(known.ahead);
    Some(SharedItem { id: freeze.id()?, written: 0, until, text: freeze.text()? })
}

fn apply_news<S: Store + Send + Sync + 'static>(shared: &Shared<S>, known: &mut SyncState, news: FleetNews) {
    let now = shared.engine.now();
    let ahead = i128::from(news.now) - i128::from(now.unix_micros());
    known.ahead = i64::try_from(ahead).unwrap_or(0);
    known.version = news.version;
    for item in news.items.unwrap_or_default() {
        let until = item.until.saturating_add_signed(known.ahead.saturating_neg());
        let until = Timestamp::from_unix_micros(until.min(Timestamp::MAX.unix_micros()));
        if until.since(now) > Ticks::ZERO
            && let Some(read) = SharedFreeze::read(&item.text, until)
        {
            shared.queues().freeze(&read.key, &read.host, read.freeze, now);
        }
    }
}
