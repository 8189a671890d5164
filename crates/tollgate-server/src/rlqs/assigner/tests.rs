//! Reports against a real engine, in virtual time.

use tollgate::{
    CheckRequest, Engine, ExpiringOverride, LimitOverride, ManualClock, MemoryStore, Policy, Scope, Ticks,
};

use super::*;
use crate::envoy_api::{BlanketRule, BucketActionKind, StrategyKind};
use crate::rlqs::message::{BucketEntry, BucketId};
use crate::store::Stores;

const POLICY: &str = "
limits:
  - {name: per-key, by: [api_key], rate: 100/s}
  - {name: all, rate: 1000/s, mode: shadow}
";

struct Rig {
    clock: ManualClock,
    service: Arc<Service>,
    assigner: Arc<QuotaAssigner>,
    stream: u64,
}

impl Rig {
    fn new(policy: &str) -> Self {
        let clock = ManualClock::starting_at(Timestamp::from_unix_seconds(1_700_000_000));
        let policy = Policy::compile("policy.yaml", policy.as_bytes()).unwrap();
        let engine = Engine::builder()
            .policy(policy)
            .store(Stores::Memory(MemoryStore::new(1 << 20, clock.now())))
            .build();
        let service = Arc::new(Service::new(engine, clock.clock()));
        let assigner = Arc::new(QuotaAssigner::new());
        let (stream, _) = assigner.open(&service).unwrap();
        Self { clock, service, assigner, stream }
    }

    /// Reports usage of the bucket of a key, and returns the answer as text.
    async fn report(&self, key: &str, allowed: u64, denied: u64) -> String {
        let entry = BucketEntry { key: b"api_key".to_vec(), value: key.as_bytes().to_vec() };
        let bucket = Bucket::new(Some(BucketId { entries: vec![entry] }), "api").unwrap();
        self.assigner.report(&self.service, self.stream, vec![(bucket, Usage { allowed, denied })]).await;
        let response = self.assigner.take(self.stream).unwrap();
        match response.actions[0].action.as_ref().unwrap() {
            BucketActionKind::Abandon(_) => "abandon".to_owned(),
            BucketActionKind::Assign(assigned) => {
                match assigned.rate_limit_strategy.unwrap().strategy.unwrap() {
                    StrategyKind::BlanketRule(rule) => {
                        format!("{:?}", BlanketRule::try_from(rule).unwrap())
                    }
                    StrategyKind::TokenBucket(bucket) => {
                        format!("{} and {}", bucket.max_tokens, bucket.tokens_per_fill.unwrap())
                    }
                }
            }
        }
    }

    fn wait(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

/// A block denies every request, and a kill switch admits every request. Both end with the first report after they
/// expire.
#[tokio::test(start_paused = true)]
async fn operators_are_heard() {
    let rig = Rig::new(POLICY);
    assert_eq!(rig.report("k", 1, 0).await, "96 and 1000");
    let (engine, until) = (&rig.service.engine, rig.clock.now() + Ticks::from_secs(7));
    let digest = tollgate::CredentialDigest::of("k");
    let key = CheckRequest::new().with("api_key", digest.as_str()).unwrap();
    engine.operator().block(&key, until, rig.clock.now()).unwrap();
    rig.wait(5);
    assert_eq!(rig.report("k", 9, 0).await, "DenyAll");
    rig.wait(5);
    assert_eq!(rig.report("k", 0, 9).await, "96 and 1000");
    let killed = ExpiringOverride { kind: LimitOverride::Off, until: rig.clock.now() + Ticks::from_secs(7) };
    engine.operator().set_override(Scope::Limit("per-key"), killed, rig.clock.now()).unwrap();
    rig.wait(5);
    assert_eq!(rig.report("k", 9, 0).await, "AllowAll");
    rig.wait(5);
    assert_eq!(rig.report("k", 9, 0).await, "96 and 1000");
}

/// Limits in shadow count reported usage too, though they deny no request.
#[tokio::test(start_paused = true)]
async fn shadows_count() {
    let rig = Rig::new("limits: [{name: all, rate: 1000/h, mode: shadow}]");
    assert_eq!(rig.report("k", 700, 0).await, "AllowAll");
    let look = rig.service.engine.operator().peek(&CheckRequest::new(), rig.clock.now()).await;
    assert_eq!(look.limits().next().unwrap().outcome.remaining, 300);
}

/// An unused bucket is abandoned and forgotten. Its next request creates a new one.
#[tokio::test(start_paused = true)]
async fn idle_buckets_are_forgotten() {
    let rig = Rig::new(POLICY);
    rig.report("k", 1, 0).await;
    for _ in 0..12 {
        rig.wait(5);
        assert_eq!(rig.report("k", 0, 0).await, "96 and 1000");
    }
    rig.wait(5);
    assert_eq!(rig.report("k", 0, 0).await, "abandon");
    assert!(rig.assigner.state().buckets.is_empty());
    let summary = rig.assigner.state().shares.summary(rig.clock.now());
    assert_eq!((summary.subscriptions, summary.buckets), (0, 0));
    rig.wait(1);
    assert!(rig.report("k", 1, 0).await.ends_with("and 1000"));
    rig.assigner.close(rig.stream, rig.clock.now());
    assert!(rig.assigner.state().buckets.is_empty() && rig.assigner.take(rig.stream).is_none());
}

/// The expected usage of an Envoy is taken from the counter between its reports, so HTTP callers get only what is left.
#[tokio::test(start_paused = true)]
async fn counters_are_charged_as_time_goes_by() {
    let rig = Rig::new(POLICY);
    rig.report("k", 1, 0).await;
    rig.wait(5);
    rig.report("k", 500, 500).await;
    let digest = tollgate::CredentialDigest::of("k");
    let key = CheckRequest::new().with("api_key", digest.as_str()).unwrap();
    let mut passed = 0;
    for _ in 0..50 {
        rig.clock.advance(Duration::from_millis(100));
        tokio::time::sleep(ACQUIRE_EVERY).await; // The acquiring task wakes up, too.
        for _ in 0..20 {
            passed += u64::from(rig.service.engine.check(&key, rig.clock.now()).await.is_allowed());
        }
    }
    // The limit gives 500 units in this time, plus a burst of 100. Callers that ask for each request are served first,
    // so the Envoy owes most of its expected usage.
    assert!((400..=480).contains(&passed), "{passed}");
    let owed = rig.assigner.samples(rig.clock.now()).into_iter().find(|one| one.metric == &names::RLQS_OWED);
    assert!(owed.unwrap().value > 0);
}
