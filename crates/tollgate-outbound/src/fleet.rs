//! A fleet: processes that share limits and freezes through Redis or Valkey. Counters are in the store, and each process
//! leases from them by its demand. A freeze that one process learns of holds for all of them within a quarter of a second,
//! and a process that starts learns of those that hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tollgate::lease::LeasedStore;
use tollgate::store::Store;
use tollgate::{Engine, Policy, Ticks, Timestamp};
use tollgate_redis::{
    ConnectError, FleetExchange, FleetNews, RedisStore, SettingsError, SharedItem, SharedTopic,
};

use crate::outbound::Outbound;
use crate::random::Random;
use crate::settings::Settings;
use crate::shared_freezes::SharedFreeze;
use crate::state::Shared;

/// How often a process asks for the freezes of others.
const EXCHANGE_EVERY: Duration = Duration::from_millis(250);
/// How much later than the process that was refused the others send a call: by then they know whether its probe was
/// refused again.
const PROBE_LATER: Ticks = Ticks::from_millis(500);
/// The others follow spread over a tenth of the freeze, but no more than the second number, and the first besides.
const PROBE_JITTER: Ticks = Ticks::from_millis(500);
const PROBE_JITTER_MAX: Ticks = Ticks::from_secs(10);
/// How often leases are renewed and returned.
const MAINTAIN_EVERY: Duration = Duration::from_millis(5);
/// Maximum number of counters with a lease in this process.
const LEASED_KEYS_MAX: usize = 100_000;

/// The store of a fleet: counters in Redis, of which each process holds leases.
pub type FleetStore = LeasedStore<RedisStore>;

impl Outbound<FleetStore> {
    /// Joins the fleet of a Redis or Valkey: by its URL, or by [`tollgate_redis::Settings`]. The processes of a fleet
    /// share the limits of their policies, and freezes. The store has a second to answer before a call is decided by this
    /// process's share, whatever the deadline in the settings: a server refuses what is above its limit, and a call can
    /// wait.
    ///
    /// # Errors
    /// A setting is invalid, there is no tokio runtime, or the store does not answer within five seconds.
    pub async fn connect<T>(store: T, policy: Policy, settings: Settings) -> Result<Self, ConnectError>
    where
        T: TryInto<tollgate_redis::Settings, Error: Into<SettingsError>>,
    {
        let store: tollgate_redis::Settings = store.try_into().map_err(Into::into)?;
        let store = LeasedStore::new(RedisStore::connect(store.patient()).await?, LEASED_KEYS_MAX);
        let outbound = Self::new(Engine::builder().policy(policy).store(store).build(), settings);
        tokio::spawn(exchange(Arc::downgrade(&outbound.shared), |store: &FleetStore| Some(store.store())));
        tokio::spawn(maintain(Arc::downgrade(&outbound.shared)));
        Ok(outbound)
    }

    /// Returns what this process holds to the fleet, before it ends. A process that ends without it returns its share,
    /// too, when its leases expire.
    pub async fn leave(&self) {
        let store = self.shared.engine.store();
        store.close(self.shared.engine.now()).await;
        store.store().leave().await;
    }
}

/// Maintains the leases until the last clone of the handle is dropped.
async fn maintain(shared: Weak<Shared<FleetStore>>) {
    while let Some(shared) = shared.upgrade() {
        shared.engine.store().maintain(shared.engine.now()).await;
        drop(shared);
        tokio::time::sleep(MAINTAIN_EVERY).await;
    }
}

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

/// How far this process has followed the store.
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
        let wait = until.since(now);
        let process = shared.outbox.process;
        if wait > Ticks::ZERO
            && let Some(mut read) = SharedFreeze::read(&item.text, until)
            && read.process != process
        {
            // The same each time that this item comes, so that it does not prolong the freeze.
            let mut random = Random::seeded(process ^ item.until);
            let tenth = Ticks::from_micros(wait.as_micros() / 10).min(PROBE_JITTER_MAX);
            read.freeze.until = until + PROBE_LATER + random.up_to(tenth + PROBE_JITTER);
            let kept = shared.queues().freeze(&read.key, &read.host, read.freeze, now);
            // In the store it replaced a longer one. What this process adds to a freeze is not published.
            if kept.until.since(until) > PROBE_LATER + PROBE_JITTER + PROBE_JITTER_MAX {
                shared.outbox.publish(&read.key, &read.host, kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tollgate::ManualClock;

    use super::*;
    use crate::bucket::{Freeze, FreezeCause};
    use crate::call::Call;
    use crate::dialect::ResponseView;
    use crate::queues::BucketKey;
    use crate::signal::ThrottleKind;

    fn process(time: &ManualClock) -> Outbound {
        let policy = "limits: [{name: open, rate: 1000/s}]".parse().unwrap();
        Outbound::new(Engine::builder().policy(policy).clock(time.clock()).build(), Settings::default())
    }

    /// Until when a freeze holds in a process that gets these items again and again.
    fn frozen_until(process: &Outbound, items: &[SharedItem]) -> Timestamp {
        for version in 1..=3 {
            let (now, items) = (process.engine().now().unix_micros(), Some(items.to_vec()));
            let news = FleetNews { now, version: version.to_string(), items, ..FleetNews::default() };
            apply_news(&process.shared, &mut SyncState::default(), news);
        }
        let keys = [BucketKey::Origin("api.example.com".into())];
        process.shared.queues().frozen(&keys, process.engine().now()).unwrap().until
    }

    /// The process that the server refused sends its probe first. The others follow when they know how it ended, and not
    /// all at the same instant. An item that comes again does not prolong their freeze.
    #[test]
    fn processes_follow_the_probe_one_by_one() {
        let time = ManualClock::new();
        let refused = process(&time);
        let until = time.now() + Ticks::from_secs(10);
        let (key, host) = (BucketKey::Origin("api.example.com".into()), "api.example.com");
        let freeze = Freeze { until, cause: FreezeCause::Throttled(ThrottleKind::Rate) };
        refused.shared.queues().freeze(&key, host, freeze, time.now());
        refused.shared.outbox.publish(&key, host, freeze);
        let pending = refused.shared.outbox.take();
        let items: Vec<SharedItem> =
            pending.iter().filter_map(|freeze| item_of(freeze, &SyncState::default())).collect();
        assert_eq!(frozen_until(&refused, &items), until, "its own freeze is not prolonged");
        let others: BTreeSet<Timestamp> = (0..50).map(|_| frozen_until(&process(&time), &items)).collect();
        assert!(others.len() > 40, "{others:?}");
        let (first, last) = (*others.first().unwrap(), *others.last().unwrap());
        assert!(first >= until + PROBE_LATER, "{first:?}");
        assert!(last <= until + PROBE_LATER + PROBE_JITTER + Ticks::from_secs(1), "{last:?}");
    }

    /// A process is refused for a second and writes that over the hour in the store. A process that knows of the hour
    /// writes it again; one that reads its own freeze back does not.
    #[tokio::test]
    async fn a_longer_freeze_is_shared_again() {
        let outbound = Outbound::of_policy("limits: []".parse().unwrap());
        let shared = &outbound.shared;
        let guard = outbound.acquire(&Call::to("api.example.com")).await.unwrap();
        let headers = [(http::header::RETRY_AFTER, "3600".parse().unwrap())].into_iter().collect();
        let (status, received) = (http::StatusCode::TOO_MANY_REQUESTS, shared.engine.now());
        guard.settle(&ResponseView { status, headers: &headers, body: None, received }, None).await;
        let known = shared.outbox.take();
        assert_eq!(known.len(), 1);

        let news = |until: Timestamp| {
            let freeze = Freeze { until, cause: FreezeCause::Throttled(ThrottleKind::Rate) };
            let key = BucketKey::Origin("api.example.com".into());
            let process = shared.outbox.process ^ 1;
            let read = SharedFreeze { key, host: "api.example.com".to_owned(), freeze, process };
            let items = item_of(&read, &SyncState::default()).into_iter().collect();
            FleetNews { now: shared.engine.now().unix_micros(), items: Some(items), ..FleetNews::default() }
        };
        apply_news(shared, &mut SyncState::default(), news(received + Ticks::from_secs(10)));
        assert_eq!(shared.outbox.take(), known);
        apply_news(shared, &mut SyncState::default(), news(known[0].freeze.until));
        assert_eq!(shared.outbox.take(), []);
    }
}
