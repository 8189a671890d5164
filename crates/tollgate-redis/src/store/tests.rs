//! The store on a real redis-server, through an engine.

use tollgate::policy::{Cost, Limit, LimitBuilder};
use tollgate::{CheckRequest, Clock, Engine, Policy, Quota, Rate, Source};

use tollgate_testkit::redis::Redis;

use super::*;
use crate::client::tests::until;

fn settings(url: &str) -> Settings {
    let settings = url.parse::<Settings>().unwrap().long_deadline();
    settings.secret(b"sixteen bytes, or more").unwrap()
}

async fn store(url: &str) -> RedisStore {
    let store = RedisStore::start(settings(url)).unwrap();
    until(|| store.report().shards.iter().any(|shard| shard.is_connected)).await;
    store
}

fn bucket(name: &str, units: u64) -> LimitBuilder {
    let quota = Quota::token_bucket(Rate::per_hour(units)).unwrap();
    Limit::new(name, quota).by(["key"]).cost(Cost::Asked)
}

fn engine(store: RedisStore, limits: Vec<LimitBuilder>) -> Engine<RedisStore> {
    Engine::builder().policy(Policy::new(limits).unwrap()).store(store).build()
}

fn asking(key: &str, cost: u64) -> CheckRequest<'_> {
    CheckRequest::new().with("key", key).unwrap().cost(cost).unwrap()
}

/// Charges are counted in Redis and denied when nothing remains. Two nodes share the counter.
#[tokio::test]
async fn charges_are_counted_in_redis() {
    let server = Redis::start(&[]);
    let one = engine(store(&server.url()).await, vec![bucket("a", 10)]);
    let other = engine(store(&server.url()).await, vec![bucket("a", 10)]);
    let clock = Clock::precise();
    for node in [&one, &other] {
        let decision = node.check(&asking("k", 4), clock.now()).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.limits().next().unwrap().source, Source::Exact);
    }
    let decision = other.check(&asking("k", 3), clock.now()).await;
    assert!(!decision.is_allowed());
    assert_eq!(decision.limits().next().unwrap().outcome.remaining, 2);
    assert!(one.check(&asking("k", 2), clock.now()).await.is_allowed());
    assert!(one.check(&asking("other", 10), clock.now()).await.is_allowed());
    let keys = server.run(&["KEYS", "tg:*"]);
    assert_eq!(keys.lines().filter(|key| key.len() == 30).count(), 2, "{keys}");
}
