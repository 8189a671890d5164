//! Feeds arbitrary bytes to the quota service as reports. The fuzz target calls this, and a test on stable runs it too.

use std::time::Duration;

use prost::Message;
use tollgate::fuzzing::poll_once;
use tollgate::{Engine, ManualClock, MemoryStore, Policy, Secret, Timestamp};

use super::assigner::QuotaAssigner;
use super::bucket::Bucket;
use super::message::{Reports, Response};
use super::shares::Usage;
use crate::service::Service;
use crate::store::Stores;

/// Limits of several kinds, with names that occur in the seeds.
const POLICY: &[u8] = b"
limits:
  - {name: per-key, by: [api_key], rate: 3/h}
  - {name: path, when: {path: /v1*}, by: [api_key, path], rate: 5/s, algorithm: sliding-window}
  - {name: dear, by: [tenant], rate: 9000/s, cost: 1000}
  - {name: cel, when: \"size(path) > 3\", rate: 9/day, algorithm: sliding-log, mode: shadow}
  - {name: flight, by: [tenant], concurrency: 2}
  - {name: all, rate: 1000/s, algorithm: leaky-bucket, queue: 5}
";

/// Checks that no input makes the quota service panic, and that every valid bucket gets an answer in Envoy's encoding.
///
/// # Panics
/// When one of these properties is violated.
#[allow(clippy::expect_used, reason = "a broken invariant panics")]
pub fn rlqs_message(bytes: &[u8]) {
    let Ok(reports) = Reports::decode(bytes) else { return };
    let clock = ManualClock::starting_at(Timestamp::from_unix_seconds(1_700_000_000));
    let policy = Policy::compile("policy.yaml", POLICY).expect("the policy is good");
    let store = MemoryStore::new(256 << 10, clock.now());
    let engine =
        Engine::builder().policy(policy).store(Stores::Memory(store)).secret(Secret::repeatable(1)).build();
    let (service, assigner) = (Service::new(engine, clock.clock()), QuotaAssigner::new());
    let (stream, _) = assigner.admit().expect("it is the first");
    for _ in 0..3 {
        let usages = reports.usages.iter().filter_map(|usage| {
            let bucket = Bucket::new(usage.bucket_id.clone(), "api").ok()?;
            Some((bucket, Usage { allowed: usage.allowed, denied: usage.denied }))
        });
        let usages: Vec<(Bucket, Usage)> = usages.collect();
        let is_empty = usages.is_empty();
        poll_once(assigner.report(&service, stream, usages));
        let response = assigner.take(stream);
        assert_eq!(response.is_none(), is_empty, "every report is answered");
        if let Some(response) = response {
            let read = Response::decode(response.encode_to_vec().as_slice());
            assert!(read.is_ok_and(|read| read.actions.len() == response.actions.len()));
        }
        clock.advance(Duration::from_secs(5));
    }
    assigner.close(stream, clock.now());
}
