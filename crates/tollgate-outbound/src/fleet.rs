//! A fleet: processes that share limits and freezes through Redis or Valkey. Counters are in the store, and each process
//! leases from them by its demand. A freeze that one process learns of holds for all of them within a quarter of a second,
//! and a process that starts learns of those that hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tollgate::lease::LeasedStore;
use tollgate::store::Store;
use tollgate::{Engine, Policy, Ticks, Timestamp};
use tollgate_redis::{
    ConnectError, FleetExchange, FleetNews, RedisStore, SettingsError, SharedItem, SharedTopic,
};

use crate::freeze::Freeze;
use crate::outbound::Outbound;
use crate::race::first_in;
use crate::random::Random;
use crate::settings::Settings;
use crate::shared_freezes::{FreezeChange, SharedFreeze};
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
        let members = vec![Arc::downgrade(&outbound.shared)];
        tokio::spawn(exchange(members, |store: &FleetStore| Some(store.store())));
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
    /// Shares the freezes of these handles with every process on the same Redis, until the last clone of each is dropped.
    /// They are on one store, which is asked for all of them together. `redis` finds the Redis store in it:
    /// `|store| Some(store)` if it is one itself. What this process admitted while Redis was away is reported to it when
    /// it is back.
    ///
    /// # Errors
    /// There is no tokio runtime to run it.
    pub fn share_freezes<'o, F>(
        handles: impl IntoIterator<Item = &'o Self>,
        redis: F,
    ) -> Result<(), tokio::runtime::TryCurrentError>
    where
        F: Fn(&S) -> Option<&RedisStore> + Send + Sync + 'static,
    {
        let runtime = tokio::runtime::Handle::try_current()?;
        let members = handles.into_iter().map(|handle| Arc::downgrade(&handle.shared)).collect();
        runtime.spawn(exchange(members, redis));
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

/// Sends the freezes of all members, and brings them those of others.
async fn exchange<S, F>(members: Vec<Weak<Shared<S>>>, redis: F)
where
    S: Store + Send + Sync + 'static,
    F: Fn(&S) -> Option<&RedisStore> + Send + Sync + 'static,
{
    let mut known = SyncState::default();
    loop {
        let handles: Vec<Arc<Shared<S>>> = members.iter().filter_map(Weak::upgrade).collect();
        let store = handles.first().and_then(|shared| redis(shared.engine.store()));
        let Some(store) = store else { return };
        let mut room = FleetExchange::ITEMS_MAX;
        let take = |shared: &Arc<Shared<S>>| {
            let taken = shared.outbox.take(room);
            room -= taken.len();
            taken
        };
        let pending: Vec<Vec<SharedFreeze>> = handles.iter().map(take).collect();
        let items = pending.iter().flatten().filter_map(|freeze| item_of(freeze, &known)).collect();
        let (topic, version) = (SharedTopic::Outbound, known.version.clone());
        match store.exchange(&FleetExchange { topic, version, items, ..FleetExchange::default() }).await {
            Ok(news) => apply_news(&handles, &mut known, news),
            // They are sent with the next exchange, unless they are over by then.
            Err(_) => {
                for (shared, unsent) in handles.iter().zip(pending) {
                    shared.outbox.restore(unsent, shared.engine.now());
                }
            }
        }
        for shared in &handles {
            // A store that is away keeps what there is to report until later.
            let _ = shared.engine.maintenance().reconcile(shared.engine.now()).await;
        }
        let news: Vec<Arc<Notify>> = handles.iter().map(|shared| Arc::clone(&shared.outbox.news)).collect();
        drop(handles);
        let notified = first_in(news.iter().map(|news| news.notified()));
        let _ = tokio::time::timeout(EXCHANGE_EVERY, notified).await;
    }
}

fn item_of(freeze: &SharedFreeze, known: &SyncState) -> Option<SharedItem> {
    let until = freeze.change.until().unix_micros().saturating_add_signed(known.ahead);
    Some(SharedItem { id: freeze.id()?, written: 0, until, text: freeze.text()? })
}

fn apply_news<S: Store + Send + Sync + 'static>(
    handles: &[Arc<Shared<S>>],
    known: &mut SyncState,
    news: FleetNews,
) {
    let Some(now) = handles.first().map(|shared| shared.engine.now()) else { return };
    let ahead = i128::from(news.now) - i128::from(now.unix_micros());
    known.ahead = i64::try_from(ahead).unwrap_or(0);
    known.version = news.version;
    for item in news.items.unwrap_or_default() {
        let until = item.until.saturating_add_signed(known.ahead.saturating_neg());
        let until = Timestamp::from_unix_micros(until.min(Timestamp::MAX.unix_micros()));
        if until > now
            && let Some(read) = SharedFreeze::read(&item.text, until)
        {
            for shared in handles.iter().filter(|shared| shared.outbox.process != read.process) {
                match read.change {
                    FreezeChange::Frozen(freeze) => follow(shared, &read, freeze, item.until, now),
                    FreezeChange::Thawed(_) => shared.queues().follow_thaw(&read.key, now),
                }
            }
        }
    }
}

/// Follows the freeze of another. `written_until` is its end as the store has it.
fn follow<S>(shared: &Shared<S>, read: &SharedFreeze, freeze: Freeze, written_until: u64, now: Timestamp) {
    let until = freeze.until;
    // The same each time that this item comes, so that it does not prolong the freeze.
    let mut random = Random::seeded(shared.outbox.process ^ written_until);
    let tenth = Ticks::from_micros(until.since(now).as_micros() / 10).min(PROBE_JITTER_MAX);
    let freeze = Freeze { until: until + PROBE_LATER + random.up_to(tenth + PROBE_JITTER), ..freeze };
    let kept = shared.queues().freeze(&read.key, &read.host, freeze, now);
    // In the store it replaced a longer one. What this process adds to a freeze is not published.
    if kept.until.since(until) > PROBE_LATER + PROBE_JITTER + PROBE_JITTER_MAX {
        shared.outbox.publish(&read.key, &read.host, FreezeChange::Frozen(kept));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tollgate::ManualClock;

    use super::*;
    use crate::call::Call;
    use crate::dialect::ResponseView;
    use crate::freeze::FreezeCause;
    use crate::keys::BucketKey;
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
            apply_news(std::slice::from_ref(&process.shared), &mut SyncState::default(), news);
        }
        let keys = [BucketKey::Origin("api.example.com".into())];
        process.shared.queues().frozen(&keys, process.engine().now()).unwrap().1.until
    }

    /// The process that the server refused sends its probe first. The others follow when they know how it ended, and not
    /// all at the same instant. An item that comes again does not prolong their freeze.
    #[test]
    fn processes_follow_the_probe_one_by_one() {
        let time = ManualClock::new();
        let refused = process(&time);
        let until = time.now() + Ticks::from_secs(10);
        let (key, host) = (BucketKey::Origin("api.example.com".into()), "api.example.com");
        let freeze = Freeze { until, cause: FreezeCause::Throttled(ThrottleKind::Rate), statement: None };
        refused.shared.queues().freeze(&key, host, freeze, time.now());
        refused.shared.outbox.publish(&key, host, FreezeChange::Frozen(freeze));
        let pending = refused.shared.outbox.take(64);
        let items: Vec<SharedItem> =
            pending.iter().filter_map(|freeze| item_of(freeze, &SyncState::default())).collect();
        assert_eq!(frozen_until(&refused, &items), until, "its own freeze is not prolonged");
        let others: BTreeSet<Timestamp> = (0..50).map(|_| frozen_until(&process(&time), &items)).collect();
        assert!(others.len() > 40, "{others:?}");
        let (first, last) = (*others.first().unwrap(), *others.last().unwrap());
        assert!(first >= until + PROBE_LATER, "{first:?}");
        assert!(last <= until + PROBE_LATER + PROBE_JITTER + Ticks::from_secs(1), "{last:?}");
    }

    /// An operator ends a freeze in one process, and the others follow. A later refusal freezes them again.
    #[test]
    fn the_end_of_a_freeze_is_shared() {
        let time = ManualClock::new();
        let (refused, other) = (process(&time), process(&time));
        let (key, host) = (BucketKey::Origin("api.example.com".into()), "api.example.com");
        let cause = FreezeCause::Throttled(ThrottleKind::Rate);
        let freeze = Freeze { until: time.now() + Ticks::from_secs(86_400), cause, statement: None };
        let shared = |from: &Outbound, to: &Outbound| {
            let pending = from.shared.outbox.take(64);
            let items = pending.iter().filter_map(|freeze| item_of(freeze, &SyncState::default())).collect();
            let now = time.now().unix_micros();
            let news = FleetNews { now, items: Some(items), ..FleetNews::default() };
            apply_news(std::slice::from_ref(&to.shared), &mut SyncState::default(), news);
        };
        for _ in 0..2 {
            refused.shared.queues().freeze(&key, host, freeze, time.now());
            refused.shared.outbox.publish(&key, host, FreezeChange::Frozen(freeze));
            shared(&refused, &other);
            assert_eq!((refused.freezes().len(), other.freezes().len()), (1, 1));
            assert_eq!(other.thaw(|_| true).len(), 1);
            shared(&other, &refused);
            assert_eq!((refused.freezes(), other.freezes()), (vec![], vec![]));
        }
    }

    /// A process is refused for a second and writes that over the hour in the store. A process that knows of the hour
    /// writes it again; one that reads its own freeze back does not.
    #[tokio::test]
    async fn a_longer_freeze_is_shared_again() {
        let outbound = Outbound::of_policy("limits: []".parse().unwrap());
        let (shared, all) = (&outbound.shared, std::slice::from_ref(&outbound.shared));
        let guard = outbound.acquire(&Call::to("api.example.com")).await.unwrap();
        let headers = [(http::header::RETRY_AFTER, "3600".parse().unwrap())].into_iter().collect();
        let (status, received) = (http::StatusCode::TOO_MANY_REQUESTS, shared.engine.now());
        let response = ResponseView { status, headers: &headers, body: None, received };
        guard.settle(&response, None).await.unwrap_err();
        let known = shared.outbox.take(64);
        assert_eq!(known.len(), 1);

        let news = |until: Timestamp| {
            let freeze = Freeze { until, cause: FreezeCause::Throttled(ThrottleKind::Rate), statement: None };
            let key = BucketKey::Origin("api.example.com".into());
            let process = shared.outbox.process ^ 1;
            let read = SharedFreeze {
                key,
                host: "api.example.com".to_owned(),
                change: FreezeChange::Frozen(freeze),
                process,
            };
            let items = item_of(&read, &SyncState::default()).into_iter().collect();
            FleetNews { now: shared.engine.now().unix_micros(), items: Some(items), ..FleetNews::default() }
        };
        apply_news(all, &mut SyncState::default(), news(received + Ticks::from_secs(10)));
        assert_eq!(shared.outbox.take(64), known);
        apply_news(all, &mut SyncState::default(), news(known[0].change.until()));
        assert_eq!(shared.outbox.take(64), []);
    }
}
