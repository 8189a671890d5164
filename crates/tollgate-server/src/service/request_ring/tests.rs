use tollgate::request::Spelling;
use tollgate::time::WallOffset;
use tollgate::{CheckRequest, Policy, Ticks, Timestamp};

use super::*;

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_040);
const HOUR: Ticks = Ticks::from_secs(3_600);

fn policy(text: &str) -> Policy {
    Policy::compile("policy.yaml", text.as_bytes()).unwrap()
}

fn ring(text: &str) -> RequestRing {
    let ring = RequestRing::default();
    ring.follow(&policy(text));
    ring
}

const PER_KEY: &str =
    "limits: [{name: per-key, by: [api_key], rate: 10/s}, {name: paths, by: [api_key, path], rate: 10/s}]";

fn past(ring: &RequestRing, since: Timestamp) -> PastRequests {
    PastRequests::merged(ring.since(since, WallOffset::NONE), since, WallOffset::NONE, usize::MAX)
}

/// A kept request is decided as the request itself: instant, descriptors, costs, numbers, and other spellings. What the
/// policy does not read is not kept.
#[test]
fn a_request_is_kept_as_the_policy_reads_it() {
    let ring =
        ring("limits: [{name: a, by: [tenant], when: {path: /a, method: GET}, rate: 10/s, cost: tokens}]");
    let mut request = CheckRequest::new().with("tenant", "k\"1").unwrap().with("tokens", 7).unwrap();
    request = request.with("secret", "not read").unwrap().with("method", "HEAD").unwrap().cost(3).unwrap();
    request.push_spelled("path", "/A/", Spelling::LoosePath("/a")).unwrap();
    let request = request.and(CheckRequest::new().with("tenant", "k2").unwrap());
    let at = T0 + Ticks::from_micros(123_456);
    ring.keep(&request, at);
    let past = past(&ring, T0);
    let (kept_at, kept) = past.each().next().unwrap();
    assert_eq!(kept_at, at);
    let of = |request: &CheckRequest<'_>| -> Vec<String> {
        let read = |name: &str| name != "secret";
        let each = request.descriptors().map(|descriptor| {
            let attributes: Vec<_> = descriptor.attributes().iter().filter(|one| read(one.name)).collect();
            let spelled: Vec<_> = descriptor.spelled().filter(|(name, _)| read(name)).collect();
            format!("{} {attributes:?} {spelled:?}", descriptor.units())
        });
        each.collect()
    };
    assert_eq!(of(&kept), of(&request));
    assert!(!of(&kept).concat().contains("not read"));
}

/// Whatever comes, the memory stays within its bound, and the clients that are kept are kept with every request.
#[test]
fn clients_are_kept_whole_or_not_at_all() {
    let ring = ring(PER_KEY);
    let keys: Vec<String> = (0..4_000).map(|number| format!("key-{number}")).collect();
    let (mut at, step) = (T0, Ticks::from_millis(2));
    let rounds = 300;
    for round in 0..rounds {
        for key in &keys {
            let path = if round % 2 == 0 { "/even" } else { "/odd" };
            ring.keep(&CheckRequest::new().with("api_key", key).unwrap().with("path", path).unwrap(), at);
            at = at + Ticks::from_micros(step.as_micros() / 4);
        }
        assert!(ring.bytes.load(Ordering::Relaxed) <= BYTES_MAX + (64 << 10));
    }
    assert!(at.since(T0) < HOUR);
    let past = past(&ring, T0);
    assert!(past.kept.one_client_in > 1, "{:?}", past.kept);
    assert_eq!((past.kept.client.as_deref(), past.kept.cut_minutes), (Some("api_key"), 0));
    let mut counts: HashMap<String, u64> = HashMap::new();
    for (_, request) in past.each() {
        *counts.entry(format!("{:?}", request.attributes()[0].value)).or_default() += 1;
    }
    let expected = keys.len() as u64 / past.kept.one_client_in;
    let clients = counts.len() as u64;
    assert!(clients > expected / 2 && clients < expected * 2, "{clients} clients, about {expected} expected");
    assert!(counts.values().all(|count| *count == rounds), "each kept client has all its requests");
}

/// With few clients none is left out: the rest of a minute is, and then the oldest minute.
#[test]
fn few_clients_are_cut_by_time() {
    let ring = ring(PER_KEY);
    let mut at = T0;
    for number in 0..20 * 70_000_u64 {
        let key = ["a", "b", "c"][(number % 3) as usize];
        ring.keep(&CheckRequest::new().with("api_key", key).unwrap(), at);
        at = at + Ticks::from_micros(857);
    }
    assert!(ring.bytes.load(Ordering::Relaxed) <= BYTES_MAX + (64 << 10));
    let past = past(&ring, T0);
    assert_eq!(past.kept.one_client_in, 1);
    assert!(past.kept.cut_minutes >= 10, "{:?}", past.kept);
    let (first, last) = past.ends().unwrap();
    assert!(last.since(first) > Ticks::from_secs(600) && first > T0, "the oldest minutes are gone");
}

/// Requests older than an hour are forgotten, and when it is quiet again all clients are kept.
#[test]
fn an_hour_is_kept() {
    let ring = ring(PER_KEY);
    ring.level.store(3, Ordering::Relaxed);
    for minute in 0..90 {
        let at = T0 + Ticks::from_secs(60 * minute);
        ring.keep(&CheckRequest::new().with("api_key", "k").unwrap(), at);
    }
    assert_eq!(ring.level.load(Ordering::Relaxed), 0);
    let stripe = ring.stripe(stripe());
    let minutes: Vec<u64> = stripe.segments.iter().map(|segment| segment.minute).collect();
    assert!(minutes.len() <= 61 && minutes.len() >= 50, "{minutes:?}");
}

/// Minutes of two nodes are merged in the order of time, at the coarser of their levels.
#[test]
fn nodes_are_merged() {
    let (one, two) = (ring(PER_KEY), ring(PER_KEY));
    two.turn(T0.unix_micros() / MICROS_PER_MINUTE);
    two.level.store(2, Ordering::Relaxed);
    let keys: Vec<String> = (0..64).map(|number| format!("key-{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let at = T0 + Ticks::from_millis(number as u64);
        let request = CheckRequest::new().with("api_key", key).unwrap();
        one.keep(&request, at);
        two.keep(&request, at);
    }
    let minutes: Vec<KeptMinute> =
        one.since(T0, WallOffset::NONE).into_iter().chain(two.since(T0, WallOffset::NONE)).collect();
    let text = serde_json::to_string(&minutes).unwrap();
    let minutes: Vec<KeptMinute> = serde_json::from_str(&text).unwrap();
    let past = PastRequests::merged(minutes.clone(), T0, WallOffset::NONE, usize::MAX);
    assert_eq!(past.kept.one_client_in, 4);
    let instants: Vec<Timestamp> = past.each().map(|(at, _)| at).collect();
    assert!(
        instants.is_sorted() && instants.len() > 4 && instants.len().is_multiple_of(2),
        "{}",
        instants.len()
    );
    assert!(instants.chunks(2).all(|pair| pair[0] == pair[1]), "both nodes kept the same clients");
    let few = PastRequests::merged(minutes, T0, WallOffset::NONE, 6);
    assert!(few.each().count() <= 6 && few.kept.one_client_in > 4);
}
