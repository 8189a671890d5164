//! The bodies of the fuzz targets that need the server, as plain functions, so that a test on stable runs them too.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use prost::Message;
use tollgate::{Clock, Engine, MemoryStore, Policy, Secret, Timestamp};

use super::codec::{Asked, read};
use crate::rls::{self, Code};
use crate::service::Service;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Limits of several kinds, with names that the seeds mention.
const POLICY: &[u8] = b"
limits:
  - {name: per-key, by: [api_key], rate: 3/h}
  - {name: path, when: {path: /v1*}, by: [api_key, path], rate: 5/s, algorithm: sliding-window}
  - {name: tokens, by: [tenant], rate: 100/min, cost: tokens}
  - {name: cel, when: \"size(path) > 3\", rate: 9/day, algorithm: sliding-log, mode: shadow}
  - {name: flight, by: [tenant], concurrency: 2}
  - {name: all, rate: 1000/h, algorithm: leaky-bucket, queue: 5}
";

/// No bytes make the gRPC wire panic. What is a question gets an answer with a status for each descriptor, of which none
/// contradicts the whole.
///
/// # Panics
/// When that is not so.
#[allow(clippy::expect_used, clippy::panic, reason = "a broken promise is told by a panic")]
pub fn rls_message(bytes: &[u8]) {
    let Asked::Readable(question) = read(bytes) else { return };
    let (policy, _) = Policy::compile("policy.yaml", POLICY).expect("the policy is good");
    let engine = Engine::with_store(policy, MemoryStore::new(256 << 10, NOW), Secret::repeatable(1));
    let service = Service::new(engine, Clock::precise());
    for _ in 0..3 {
        let answered = pin!(rls::answer(&service, &question, NOW));
        let Poll::Ready(answer) = answered.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("memory does not wait");
        };
        let Ok(answer) = answer else {
            assert!(question.domain.is_empty() || question.descriptors.is_empty());
            return;
        };
        assert_eq!(answer.statuses.len(), question.descriptors.len());
        let denied = answer.statuses.iter().any(|status| status.code == Code::OverLimit);
        assert!(!denied || answer.overall == Code::OverLimit, "a denied descriptor passed: {answer:?}");
        let response = RateLimitResponse::from(answer);
        let sent = response.encode_to_vec();
        assert_eq!(RateLimitResponse::decode(sent.as_slice()), Ok(response));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Every seed, and mutations of them: bytes changed, cut out, doubled, and taken from another seed. Seeded, so a failure
    /// repeats; `cargo fuzz` searches further.
    #[test]
    fn no_message_makes_the_wire_panic() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/rls_message");
        let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        let seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        let readable = seeds.iter().filter(|seed| matches!(read(seed.as_slice()), Asked::Readable(_)));
        assert!(readable.count() >= 8, "the seeds are questions");
        seeds.iter().for_each(|seed| rls_message(seed));

        let mut state = 0x7011_6A7E_u64;
        let mut below = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % most.max(1)
        };
        for number in 0..2_000 {
            let mut bytes = seeds[below(seeds.len())].clone();
            for _ in 0..=below(3) {
                let (from, to) = (below(bytes.len() + 1), below(bytes.len() + 1));
                let piece = from.min(to)..from.max(to);
                match below(5) {
                    0 => drop(bytes.drain(piece)),
                    1 => bytes.extend_from_within(piece),
                    2 => bytes.insert(from, u8::try_from(below(256)).unwrap()),
                    3 if from < bytes.len() => bytes[from] ^= 1 << below(8),
                    _ => bytes.extend_from_slice(&seeds[below(seeds.len())]),
                }
            }
            let told = bytes.escape_ascii().to_string();
            let outcome = std::panic::catch_unwind(|| rls_message(&bytes));
            assert!(outcome.is_ok(), "mutation {number}: b\"{told}\"");
        }
    }
}
