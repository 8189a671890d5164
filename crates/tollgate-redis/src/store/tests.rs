//! The store on a real redis-server, through an engine.

use tollgate::policy::{Cost, Limit, LimitBuilder};
use tollgate::{CheckRequest, Clock, Engine, Policy, Quota, Rate, Source};

use tollgate_testkit::redis::Redis;

use super::*;
use crate::client::tests::until;
use crate::shared_state::{SharedItem, Written};

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

fn item(id: &str, written: u64, text: &str) -> SharedItem {
    SharedItem { id: id.to_owned(), written, until: 4_000_000_000_000_000, text: text.to_owned() }
}

fn writing(items: Vec<SharedItem>) -> FleetExchange {
    FleetExchange { items, ..FleetExchange::default() }
}

/// Of two items with one id the later one wins, whatever the node. What a node knows is not sent again, and the number
/// of items is bounded.
#[tokio::test]
async fn shared_items_are_merged_and_bounded() {
    let server = Redis::start(&[]);
    let (one, other) = (store(&server.url()).await, store(&server.url()).await);
    let news = one.exchange(&writing(vec![item("a", 0, "first")])).await.unwrap();
    let [Written::At(first)] = news.written[..] else { panic!("{news:?}") };
    let news = other.exchange(&writing(vec![item("a", first - 1, "older")])).await.unwrap();
    assert_eq!(news.written, [Written::Older]);
    assert_eq!(news.items, Some(vec![item("a", first, "first")]));
    let known = FleetExchange { version: news.version, ..FleetExchange::default() };
    assert_eq!(other.exchange(&known).await.unwrap().items, None);
    let news = other.exchange(&writing(vec![item("a", 0, "second")])).await.unwrap();
    assert!(matches!(news.written[..], [Written::At(second)] if second > first), "{news:?}");
    assert_eq!(one.exchange(&known).await.unwrap().items.unwrap()[0].text, "second");
    let mut taken = 0;
    for batch in 0..70 {
        let id = |number: usize| format!("{batch}-{number}");
        let items = (0..FleetExchange::ITEMS_MAX).map(|number| item(&id(number), 0, "x")).collect();
        let written = one.exchange(&writing(items)).await.unwrap().written;
        taken += written.iter().filter(|written| matches!(written, Written::At(_))).count();
    }
    assert!((4_000..4_096).contains(&taken), "{taken}");
    let news = one.exchange(&writing(vec![item("b", 0, "x"), item("a", 0, "third")])).await.unwrap();
    assert!(
        matches!(news.written[..], [Written::Full, Written::At(_)]),
        "what is there can be changed: {news:?}"
    );
}

/// A reset reaches each node once, and a node is listed until it leaves.
#[tokio::test]
async fn resets_and_nodes_are_shared() {
    let server = Redis::start(&[]);
    let (one, other) = (store(&server.url()).await, store(&server.url()).await);
    let asked = |mark: &str| FleetExchange {
        mark: mark.to_owned(),
        heartbeat: "about".to_owned(),
        lists_nodes: true,
        ..FleetExchange::default()
    };
    let mark = one.exchange(&asked("")).await.unwrap().mark;
    let keys: Vec<u128> = (0..200).map(|number| u128::MAX - number).collect();
    let reset = FleetExchange { resets: keys.clone(), ..asked("") };
    let news = other.exchange(&reset).await.unwrap();
    assert_eq!((news.resets.len(), news.is_reset_unheard, news.nodes.len()), (0, false, 2));
    let news = one.exchange(&asked(&mark)).await.unwrap();
    let (mut learned, mut expected) = (news.resets, keys);
    learned.sort_unstable();
    expected.sort_unstable();
    assert_eq!(learned, expected);
    assert!(one.exchange(&asked(&news.mark)).await.unwrap().resets.is_empty());
    other.leave().await;
    let nodes = one.exchange(&asked(&news.mark)).await.unwrap().nodes;
    assert_eq!(nodes.iter().map(|node| node.id.as_str()).collect::<Vec<_>>(), [one.node_id()]);
}

/// A node that stopped without a word stays listed for an hour. Of those only the hundred that were seen last do.
#[tokio::test]
async fn a_lost_node_is_listed_for_an_hour() {
    let server = Redis::start(&[]);
    let one = store(&server.url()).await;
    let asked =
        FleetExchange { heartbeat: "about".to_owned(), lists_nodes: true, ..FleetExchange::default() };
    let now = one.exchange(&asked).await.unwrap().now;
    let beat = |id: &str, minutes: u64| {
        server.cli(&["HSET", "tg:{fleet}nodes", id, &format!("{} about", now - minutes * 60_000_000)]);
    };
    beat("lost", 50);
    beat("forgotten", 61);
    let mut ids: Vec<String> =
        one.exchange(&asked).await.unwrap().nodes.into_iter().map(|node| node.id).collect();
    ids.sort();
    let mut expected = [one.node_id(), "lost"];
    expected.sort_unstable();
    assert_eq!(ids, expected);
    (0..100).for_each(|number| beat(&format!("later-{number}"), 20));
    let nodes = one.exchange(&asked).await.unwrap().nodes;
    assert_eq!(nodes.len(), 101);
    assert!(nodes.iter().all(|node| node.id != "lost"));
    assert_eq!(server.cli(&["HLEN", "tg:{fleet}nodes"]).trim(), "101");
}
