//! The properties of the gRPC fuzz target as a plain function, so that a test on stable runs them too.

use prost::Message;
use tollgate::fuzzing::poll_once;
use tollgate::{Clock, Engine, MemoryStore, Policy, Secret, Timestamp};

use super::codec::{DecodedRequest, read};
use crate::envoy_api::RateLimitResponse;
use crate::rls::Code;
use crate::service::Service;
use crate::service::rls;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Limits of several kinds, with names that occur in the seeds.
const POLICY: &[u8] = b"
limits:
  - {name: per-key, by: [api_key], rate: 3/h}
  - {name: path, when: {path: /v1*}, by: [api_key, path], rate: 5/s, algorithm: sliding-window}
  - {name: tokens, by: [tenant], rate: 100/min, cost: tokens}
  - {name: cel, when: \"size(path) > 3\", rate: 9/day, algorithm: sliding-log, mode: shadow}
  - {name: flight, by: [tenant], concurrency: 2}
  - {name: all, rate: 1000/h, algorithm: leaky-bucket, queue: 5}
";

/// Checks that no input makes the gRPC protocol panic, and that a valid request gets an answer with a status for each
/// descriptor, none of which contradicts the overall code.
///
/// # Panics
/// When one of these properties is violated.
#[allow(clippy::expect_used, reason = "a broken invariant panics")]
pub fn rls_message(bytes: &[u8]) {
    let DecodedRequest::Readable(rls_request) = read(bytes) else { return };
    let policy = Policy::compile("policy.yaml", POLICY).expect("the policy is good");
    let engine = Engine::builder()
        .policy(policy)
        .store(MemoryStore::new(256 << 10, NOW))
        .secret(Secret::repeatable(1))
        .build();
    let service = Service::new(engine, Clock::precise());
    for _ in 0..3 {
        let Ok(answer) = poll_once(rls::answer(&service, &rls_request, NOW)) else {
            assert!(rls_request.domain.is_empty() || rls_request.descriptors.is_empty());
            return;
        };
        assert_eq!(answer.statuses.len(), rls_request.descriptors.len());
        let denied = answer.statuses.iter().any(|status| status.code == Code::OverLimit);
        assert!(!denied || answer.overall == Code::OverLimit, "a denied descriptor passed: {answer:?}");
        let response = RateLimitResponse::from(answer);
        let sent = response.encode_to_vec();
        assert_eq!(RateLimitResponse::decode(sent.as_slice()), Ok(response));
    }
}
