//! The store under test, and the fleet's secret.

use std::sync::Arc;

use tokio::runtime::{Handle, Runtime};
use tollgate::lease::{LeaseReport, LeasedStore};
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{Secret, Ticks, Timestamp};
use tollgate_redis::{BreakerState, RedisStore, Settings, ShardReport};

use tollgate_testkit::until;

/// The secret that hashes the fleet's keys.
const WORDS: &[u8] = b"sixteen bytes or more of nothing but test";

/// An ACL user with only the permissions that the store needs.
pub(crate) const ACL_LINE: &str = "user tollgate on \">s cret\" ~tg:* resetchannels -@all +ping +time +eval +evalsha +set +getex +mget \
    +del +expire +pexpire +hget +hgetall +hset +hsetnx +hdel +hlen \
    +zadd +zcard +zrem +zrangebyscore +zremrangebyscore";

/// A store shared by several engines, as the suite allows.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Arc<RedisStore>);

impl Store for Shared {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.0.charge(charges, now).await
    }

    fn is_grouped(&self) -> bool {
        self.0.is_grouped()
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.0.refund(charges, now).await
    }

    async fn renew(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.0.renew(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.0.reset(charges, now).await
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.0.debit(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.0.hold(hold);
    }

    fn nodes(&self) -> u32 {
        self.0.nodes()
    }

    fn away_for(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Ticks> {
        self.0.away_for(charge, now)
    }

    fn is_away(&self, charge: &Charge<'_>) -> bool {
        self.0.is_away(charge)
    }
}

/// The store of a node of the rig, with or without leases.
pub(crate) trait Node: Store + 'static {
    fn redis(&self) -> &RedisStore;

    fn leases(&self) -> LeaseReport;
}

impl Node for Shared {
    fn redis(&self) -> &RedisStore {
        &self.0
    }

    fn leases(&self) -> LeaseReport {
        LeaseReport::default()
    }
}

impl Node for LeasedStore<RedisStore> {
    fn redis(&self) -> &RedisStore {
        self.store()
    }

    fn leases(&self) -> LeaseReport {
        self.report()
    }
}

pub(crate) fn new_runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn settings(url: &str) -> Settings {
    url.parse::<Settings>().unwrap().secret(WORDS).unwrap()
}

/// The fleet's secret: its nodes must agree on keys.
pub(crate) fn secret() -> Secret {
    Secret::of_words(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A store with a long deadline, for a busy machine.
pub(crate) fn connect(url: &str) -> Shared {
    ready(settings(url).long_deadline())
}

/// A store with an injected time.
pub(crate) fn with_injected_time(url: &str) -> Shared {
    with_injected_time_from(settings(url))
}

pub(crate) fn with_injected_time_from(settings: Settings) -> Shared {
    ready(settings.long_deadline().injected_time())
}

/// Connects on the current runtime. Returns once every shard answers.
pub(crate) fn ready(settings: Settings) -> Shared {
    Shared(Arc::new(usable(settings)))
}

/// Connects without sharing. Returns once every shard answers.
pub(crate) fn usable(settings: Settings) -> RedisStore {
    let _runtime = Handle::current();
    let store = RedisStore::start(settings).unwrap();
    until("the store is connected", || {
        let report = store.report();
        let shards = &report.shards;
        let usable = |shard: &ShardReport| shard.is_connected && shard.state == BreakerState::Closed;
        (!shards.is_empty() && shards.iter().all(usable)).then_some(())
    });
    store
}
