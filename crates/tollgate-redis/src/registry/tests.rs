//! Quota tags in a real Redis, shared by nodes with different policies.

use tollgate::policy::{Cost, Limit};
use tollgate::{CheckRequest, Engine, Policy, Quota, Rate, Source, Ticks, Timestamp, Verdict};

use tollgate_testkit::redis::Redis;

use crate::client::tests::until;
use crate::{RedisStore, Settings};

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

async fn node(server: &Redis, units: u64) -> Engine<RedisStore> {
    let settings = server.url().parse::<Settings>().unwrap().long_deadline();
    let store =
        RedisStore::start(settings.secret(b"sixteen bytes, or more").unwrap().injected_time()).unwrap();
    until(|| store.report().shards.iter().any(|shard| shard.is_connected)).await;
    Engine::builder().policy(policy(units)).store(store).build()
}

fn policy(units: u64) -> Policy {
    policy_at(Rate::per_hour(units))
}

fn policy_at(rate: Rate) -> Policy {
    let quota = Quota::gcra(rate).unwrap();
    Policy::new(vec![Limit::new("limit", quota).by(["key"]).cost(Cost::Asked)]).unwrap()
}

/// Charges a counter in the store and returns what remains.
async fn take(node: &Engine<RedisStore>, cost: u64, now: Timestamp) -> (Verdict, u64) {
    let request = CheckRequest::new().with("key", "k").unwrap().cost(cost).unwrap();
    let decision = node.check(&request, now).await;
    let status = decision.limits().next().unwrap();
    assert_eq!(status.source, Source::Exact);
    (status.outcome.verdict, status.outcome.remaining)
}

/// Two nodes with different policies share a counter: each sees what the other charged, up to its own capacity.
#[tokio::test]
async fn nodes_with_different_policies_share_counters() {
    let server = Redis::start(&[]);
    let (small, large) = (node(&server, 10).await, node(&server, 20).await);
    assert_eq!(take(&small, 4, START).await, (Verdict::Allow, 6));
    assert_eq!(take(&large, 1, START).await, (Verdict::Allow, 5));
    assert_eq!(take(&small, 1, START).await, (Verdict::Allow, 4));
    assert_eq!(take(&large, 0, START).await, (Verdict::Allow, 4));
    let names = server.run(&["KEYS", "tg:{quotas}:*"]);
    let fields = server.run(&["HVALS", names.trim()]);
    assert_eq!(fields.lines().count(), 2, "{fields}");
    assert!(fields.contains("1 gcra 10 3600000000 -"), "{fields}");
    assert!(server.run(&["TTL", names.trim()]).trim().parse::<i64>().unwrap() > 86_400 * 366);
}

/// Nodes with the same policy agree on one tag, and a node that starts later finds it.
#[tokio::test]
async fn nodes_with_the_same_policy_use_one_tag() {
    let server = Redis::start(&[]);
    let nodes = [node(&server, 10).await, node(&server, 10).await, node(&server, 10).await];
    let (first, second, third) =
        tokio::join!(take(&nodes[0], 1, START), take(&nodes[1], 1, START), take(&nodes[2], 1, START));
    let mut left = [first.1, second.1, third.1];
    left.sort_unstable();
    assert_eq!(left, [7, 8, 9]);
    let late = node(&server, 10).await;
    assert_eq!(take(&late, 1, START).await, (Verdict::Allow, 6));
    let names = server.run(&["KEYS", "tg:{quotas}:*"]);
    assert_eq!(server.run(&["HLEN", names.trim()]).trim(), "1");
}

/// A quota that becomes active again gets a new tag, also on the node that only follows.
#[tokio::test]
async fn reactivated_quota_gets_a_new_tag() {
    let server = Redis::start(&[]);
    let (one, other) = (node(&server, 10).await, node(&server, 10).await);
    for (step, units) in [10, 20, 10].into_iter().enumerate() {
        let now = START + Ticks::from_secs(60 * step as u64);
        for node in [&one, &other] {
            if step > 0 {
                node.swap(policy(units), now).unwrap();
            }
            take(node, 1, now).await;
        }
    }
    let names = server.run(&["KEYS", "tg:{quotas}:*"]);
    let mut fields: Vec<String> =
        server.run(&["HVALS", names.trim()]).lines().map(|line| line.trim_matches('"').to_owned()).collect();
    fields.sort();
    let of = |generation: u32, units: u32| format!("{generation} gcra {units} 3600000000 -");
    assert_eq!(fields, [of(1, 10), of(1, 20), of(2, 10)]);
    // Six units in two minutes; less than one was refilled.
    assert_eq!(take(&one, 0, START + Ticks::from_secs(120)).await.1, 4);
}

/// During a rollout a node with the new policy meets states counted under the old one. It does not date them before its
/// own change: a key that was charged one unit is not left with none.
#[tokio::test]
async fn states_of_slower_nodes_are_converted() {
    let server = Redis::start(&[]);
    let (first, late) = (node(&server, 3_600).await, node(&server, 3_600).await);
    take(&first, 1, START).await;
    first.swap(policy_at(Rate::per_day(10)), START).unwrap();
    // Two hours later the slower node's bucket is full again.
    let now = START + Ticks::from_secs(7_200);
    assert_eq!(take(&late, 1, now).await, (Verdict::Allow, 3_599));
    assert_eq!(take(&first, 0, now).await, (Verdict::Allow, 10));
    assert_eq!(take(&first, 3, now).await, (Verdict::Allow, 7));
    assert_eq!(take(&late, 0, now).await, (Verdict::Allow, 7));
}

/// A state with an unknown quota counts as an empty bucket, not as a full one.
#[tokio::test]
async fn unknown_quota_counts_as_exhausted() {
    let server = Redis::start(&[]);
    let node = node(&server, 10).await;
    take(&node, 1, START).await;
    let key = server.run(&["KEYS", "tg:*"]);
    let key = key.lines().find(|key| key.len() == crate::key::KEY_BYTES).unwrap().to_owned();
    let state = server.run(&["GET", &key]);
    let tag = if state.starts_with("555") { "556" } else { "555" };
    server.run(&["SET", &key, &format!("{tag}{}", &state.trim()[3..]), "PX", "60000"]);
    assert_eq!(take(&node, 1, START).await, (Verdict::Deny { retry_after: Ticks::from_secs(360) }, 0));
}

/// How often the server ran a command.
fn calls(server: &Redis, command: &str) -> u64 {
    let stats = server.run(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:calls=")));
    let number = |line: &str| line.split(['=', ',']).nth(1).unwrap().parse().unwrap();
    line.map_or(0, number)
}

async fn prepared(engine: &Engine<RedisStore>) {
    until(|| engine.store().is_prepared()).await;
}

/// Tags are claimed before the first decision, also for tiers, overrides, shadow limits and a policy that is swapped
/// in. No decision has to claim one.
#[tokio::test]
async fn tags_are_claimed_before_the_first_decision() {
    let server = Redis::start(&[]);
    let of = |rate: &str| {
        let text = format!(
            "limits:
  - {{name: tiers, by: [key], tier_by: plan, tiers: {{free: 1/h, pro: {rate}}}}}
  - {{name: partly, by: [key], rate: 5/h, enforce_percent: 50}}
  - {{name: other, by: [key], rate: 5/h, overrides: {{k: 9/h}}}}"
        );
        Policy::compile("test", text.as_bytes()).unwrap()
    };
    let engine = node(&server, 10).await;
    prepared(&engine).await;
    for (rate, second) in [("20/h", 1), ("30/h", 2)] {
        engine.swap(of(rate), START + Ticks::from_secs(second)).unwrap();
        prepared(&engine).await;
        let before = ["hgetall", "hsetnx"].map(|command| calls(&server, command));
        for (key, plan) in [("k", "free"), ("k", "pro"), ("l", "pro"), ("m", "free")] {
            let request = CheckRequest::new().with("key", key).unwrap().with("plan", plan).unwrap();
            let decision = engine.check(&request, START + Ticks::from_secs(second)).await;
            assert!(decision.limits().all(|status| status.source == Source::Exact), "{decision:?}");
        }
        assert_eq!(["hgetall", "hsetnx"].map(|command| calls(&server, command)), before);
    }
}

/// A family is claimed once, however many decisions wait for it.
#[tokio::test]
async fn a_family_is_claimed_once() {
    let server = Redis::start(&[]);
    let engine = node(&server, 1_000).await;
    let asks = tokio::task::LocalSet::new();
    let engine = std::rc::Rc::new(engine);
    for _ in 0..100 {
        let engine = std::rc::Rc::clone(&engine);
        asks.spawn_local(async move { take(&engine, 1, START).await });
    }
    asks.await;
    assert_eq!(["hgetall", "hsetnx"].map(|command| calls(&server, command)), [1, 1]);
    assert_eq!(take(&engine, 0, START).await.1, 900);
}

/// Ten thousand limits are claimed in few messages, and a decision about the last of them does not wait for all others.
#[tokio::test]
async fn many_limits_are_claimed_in_batches() {
    const LIMITS: u64 = 10_000;
    let server = Redis::start(&[]);
    let limit = |number: u64| {
        let quota = Quota::gcra(Rate::per_hour(10)).unwrap();
        Limit::new(&format!("limit-{number}"), quota).by([format!("key-{number}").as_str()])
    };
    let engine = node(&server, 1).await;
    let processed = |server: &Redis| {
        let stats = server.run(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    prepared(&engine).await;
    let before = processed(&server);
    engine.swap(Policy::new((0..LIMITS).map(limit).collect()).unwrap(), START).unwrap();
    let request = CheckRequest::new().with("key-9999", "k").unwrap();
    assert_eq!(engine.check(&request, START).await.limits().next().unwrap().source, Source::Exact);
    assert!(!engine.store().is_prepared(), "the decision came while other families were queued");
    prepared(&engine).await;
    assert_eq!(calls(&server, "hsetnx"), LIMITS + 1);
    let messages = processed(&server) - before;
    assert!(messages < LIMITS / 8, "{messages} messages");
}

/// A claim continues after its decision's deadline, and is retried until the store is reachable.
#[tokio::test]
async fn claims_continue_after_the_deadline() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = format!("redis://127.0.0.1:{port}").parse::<Settings>().unwrap();
    let settings = settings.secret(b"sixteen bytes, or more").unwrap().injected_time();
    let store = RedisStore::start(settings).unwrap();
    let engine = Engine::builder().policy(policy(10)).store(store).build();
    let request = CheckRequest::new().with("key", "k").unwrap();
    let source = |decision: tollgate::Decision| decision.limits().next().unwrap().source;
    assert_eq!(source(engine.check(&request, START).await), Source::Local);
    assert!(!engine.store().is_prepared());
    let server = Redis::start_at(port, &[]);
    prepared(&engine).await;
    assert_eq!(calls(&server, "hsetnx"), 1);
}
