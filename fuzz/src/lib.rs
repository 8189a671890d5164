//! The bodies of the fuzz targets, as plain functions, so that a test on stable runs them too.

use std::time::Duration;

use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::algorithm::sliding_log::SlidingLog;
use tollgate::algorithm::sliding_window::{Estimate, SlidingWindow};
use tollgate::headers::{Accepts, Caller, Dialect, Dialects, FIELD_BYTES_MAX, HEADERS_MAX};
use tollgate::policy::{Cost, Limit, LimitBuilder, Mode};
use tollgate::{
    Answer, Audience, CheckRequest, Engine, Gate, HeaderPolicy, ManualClock, MemoryStore, Policy, Quota,
    Rate, Secret, Snapshot, Ticks, Timestamp,
};

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// No bytes make the compiler panic. What compiles can be explained, matched and decided.
pub fn policy_file(bytes: &[u8]) {
    let policy = match Policy::compile("policy.yaml", bytes) {
        Ok(policy) => {
            let _ = policy.warnings().to_string();
            policy
        }
        Err(findings) => return assert!(!findings.to_string().is_empty(), "refused without a reason"),
    };
    assert_eq!(policy.sentences().len(), policy.limits().len());
    // Each limit's own attributes, so that some of them match.
    let names: Vec<String> =
        policy.limits().iter().flat_map(|limit| limit.by()).map(|by| by.name().to_owned()).take(8).collect();
    let mut requests = vec![CheckRequest::new()];
    for value in ["acme", "pro", ""] {
        let request = names.iter().fold(CheckRequest::new(), |request, name| with(request, name, value));
        let request = with(with(request, "path", "/v1/chat"), "method", "POST");
        requests.push(with_number(with_number(request, "prompt_tokens", i64::MAX), "max_tokens", 1));
    }
    for request in &requests {
        let _ = policy.matches(request);
    }
    let engine = small_engine(policy);
    for request in &requests {
        let decision = engine.try_check(request, NOW).unwrap();
        assert!(decision.fault().is_none() || !decision.is_allowed(), "a faulty request passed");
    }
}

/// An engine that is made in no time and decides alike every time.
fn small_engine(policy: Policy) -> Engine {
    Engine::builder()
        .policy(policy)
        .store(MemoryStore::new(256 << 10, NOW))
        .secret(Secret::repeatable(1))
        .build()
}

/// The request with one attribute more, if it may have it.
fn with<'a>(request: CheckRequest<'a>, name: &'a str, value: &'a str) -> CheckRequest<'a> {
    request.clone().with(name, value).unwrap_or(request)
}

fn with_number<'a>(request: CheckRequest<'a>, name: &'a str, value: i64) -> CheckRequest<'a> {
    request.clone().with(name, value).unwrap_or(request)
}

/// No text makes the reader of rates panic. What it reads, if it is a quota at all, never admits more than its capacity at
/// one instant, and is as if never used after it has rested.
pub fn rate_parser(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let rate: Rate = match text.parse() {
        Ok(rate) => rate,
        Err(problem) => return assert!(!problem.to_string().is_empty(), "refused without a reason"),
    };
    let quotas = [
        Quota::token_bucket(rate),
        Quota::gcra(rate),
        FixedWindow::new(rate, Align::Epoch).map(Quota::FixedWindow),
        SlidingWindow::new(rate, 10, Estimate::Strict).map(Quota::SlidingWindow),
        SlidingWindow::new(rate, 1, Estimate::Interpolate).map(Quota::SlidingWindow),
        SlidingLog::new(rate).map(Quota::SlidingLog),
        LeakyBucket::new(rate, 3).map(Quota::LeakyBucket),
    ];
    for quota in quotas.into_iter().flatten() {
        let time = ManualClock::starting_at(NOW);
        let capacity = quota.capacity();
        let rest = quota.memory();
        let gives_back = !matches!(quota, Quota::LeakyBucket(_));
        let gate = Gate::builder(quota).clock(time.clock()).build();
        assert!(gate.check_n(capacity).is_allowed(), "{text}: an unused counter has its capacity");
        assert!(!gate.check().is_allowed(), "{text}: more than the capacity passed at once");
        assert!(!gate.check_n(u64::MAX).is_allowed());
        gate.refund(1, Ticks::ZERO);
        assert!(
            gate.check().is_allowed() == gives_back && !gate.check().is_allowed(),
            "{text}: one was given back, and only one, unless departures stay whose they are"
        );
        time.advance(Duration::from(rest + Ticks::ONE));
        assert_eq!(gate.charge(0).remaining, capacity, "{text}: it has rested");
    }
}

/// The words that a list of parts is hashed as can be read back. So no two lists give the same words.
pub fn key_encoding(bytes: &[u8]) {
    let parts = parts(bytes);
    let borrowed: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let words = tollgate::fuzzing::key_words(&borrowed);
    assert_eq!(read_back(&words).as_ref(), Some(&parts), "the encoding loses something");
    // The same bytes cut elsewhere are another list.
    if let Some((first, rest)) = parts.split_first()
        && let Some((moved, shorter)) = first.split_last()
    {
        let mut next = vec![*moved];
        next.extend_from_slice(rest.first().map_or(&[], Vec::as_slice));
        let mut other: Vec<&[u8]> = vec![shorter, &next];
        other.extend(rest.iter().skip(1).map(Vec::as_slice));
        assert_ne!(tollgate::fuzzing::key_words(&other), words, "a byte moved to the next part unnoticed");
    }
}

/// Parts from bytes: a length and that many bytes, or, behind 255, one byte many times.
fn parts(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut parts, mut long) = (Vec::new(), 0);
    while let Some((&length, rest)) = bytes.split_first() {
        if parts.len() == 64 {
            break;
        }
        if let (255, [byte, low, high, rest @ ..]) = (length, rest)
            && long < 3
        {
            long += 1;
            let times = 65_400 + usize::from(u16::from_le_bytes([*low, *high]));
            parts.push(vec![*byte; times]);
            bytes = rest;
        } else {
            let (part, rest) = rest.split_at(rest.len().min(usize::from(length)));
            parts.push(part.to_vec());
            bytes = rest;
        }
    }
    parts
}

/// The list of parts that an encoding stands for, read by its description alone: a first word of length and six bytes, a
/// second of eight, which for 8 to 14 bytes are the last ones, then pairs of eight; or 0xFFFE, the length, then pairs of eight.
fn read_back(mut words: &[u64]) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while let [first, second, rest @ ..] = words {
        let (length, mut bytes) = match first & 0xFFFF {
            0xFFFE => (usize::try_from(*second).ok()?, Vec::new()),
            short => {
                let length = usize::try_from(short).ok()?;
                let mut bytes = first.to_le_bytes()[2..].to_vec();
                if (8..=14).contains(&length) {
                    bytes.truncate(length - 8);
                }
                bytes.extend(second.to_le_bytes());
                (length, bytes)
            }
        };
        words = rest;
        while bytes.len() < length {
            let [first, second, rest @ ..] = words else {
                return None;
            };
            bytes.extend(first.to_le_bytes());
            bytes.extend(second.to_le_bytes());
            words = rest;
        }
        let padding = bytes.split_off(length);
        if padding.iter().any(|&byte| byte != 0) {
            return None;
        }
        parts.push(bytes);
    }
    words.is_empty().then_some(parts)
}

/// Whatever limits are called and requests say: every header can be sent, and every JSON body can be read.
pub fn header_list(bytes: &[u8]) {
    let mut input = Input(bytes);
    let limits: Vec<(String, u8, u64)> = (0..1 + input.byte() % 6)
        .map(|_| (input.text(), input.byte(), 1 + u64::from(input.byte())))
        .collect();
    let builders: Vec<LimitBuilder> =
        limits.iter().filter_map(|(name, kind, units)| hostile_limit(name, *kind, *units)).collect();
    // A hostile name is refused here, which is as good as an answer; the same limits with tame names then go on.
    let policy = Policy::new(builders).or_else(|findings| {
        assert!(!findings.to_string().is_empty(), "refused without a reason");
        let tame = limits
            .iter()
            .zip('a'..)
            .filter_map(|((_, kind, units), name)| hostile_limit(&name.to_string(), *kind, *units));
        Policy::new(tame.collect())
    });
    let Ok(policy) = policy else { return };
    let engine = small_engine(policy);
    let (key, tokens) = (input.text(), input.text());
    let mut now = NOW;
    for _ in 0..4 {
        let cost = u64::from(input.byte()).pow(u32::from(input.byte()) % 7);
        let request = with(with(CheckRequest::new(), "key", &key), "tokens", &tokens);
        let decision = engine.try_check(&request.clone().cost(cost).unwrap_or(request), now).unwrap();
        for dialects in SPOKEN {
            for accepts in [Accepts::Json, Accepts::Text] {
                let Ok(dialects) = Dialects::new(dialects.iter().copied()) else {
                    continue;
                };
                let policy = HeaderPolicy { dialects, ..HeaderPolicy::default() };
                let audience = Audience { caller: Caller::Authenticated, accepts, cost: Some(cost) };
                assert_sendable(&Answer::of(&decision, &policy, audience, now));
            }
        }
        now = now + Ticks::from_micros(u64::from(input.byte()) << (input.byte() % 48));
    }
}

/// Sets of dialects that together cover all of them.
const SPOKEN: [&[Dialect]; 4] = [
    &[Dialect::Ietf11, Dialect::XRateLimit, Dialect::Stripe],
    &[Dialect::IetfNext, Dialect::Discord, Dialect::OpenAi, Dialect::Anthropic],
    &[Dialect::Ietf07, Dialect::XRateLimitDelta],
    &[Dialect::Ietf06],
];

fn hostile_limit(name: &str, kind: u8, units: u64) -> Option<LimitBuilder> {
    let rate = Rate::per_ticks(units, Ticks::from_micros(1 + (u64::from(kind) << (kind % 40))));
    let quota = match kind % 6 {
        0 => Quota::token_bucket(rate.burst(units)),
        1 => Quota::gcra(rate),
        2 => FixedWindow::new(rate, Align::FirstHit).map(Quota::FixedWindow),
        3 => SlidingWindow::new(rate, 1, Estimate::Interpolate).map(Quota::SlidingWindow),
        4 => SlidingLog::new(rate).map(Quota::SlidingLog),
        _ => LeakyBucket::new(rate, units).map(Quota::LeakyBucket),
    };
    let limit = Limit::new(name, quota.ok()?).by(["key"]);
    Some(match kind % 5 {
        0 => limit.cost(Cost::Attribute("tokens".to_owned())),
        1 => limit.mode(Mode::Shadow),
        _ => limit,
    })
}

fn assert_sendable(answer: &Answer) {
    assert!(answer.headers.len() <= HEADERS_MAX);
    for (name, value) in answer.headers.iter() {
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{name:?}");
        assert!(!value.is_empty() && value.len() <= FIELD_BYTES_MAX, "{name}: {} bytes", value.len());
        assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{name}: {value:?}");
    }
    assert_eq!(answer.body.is_none(), answer.status == 200);
    if let Some(body) = &answer.body
        && body.content_type.contains("json")
    {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(&body.text);
        assert!(parsed.is_ok(), "{:?}", body.text);
    }
}

/// No bytes make the reader of snapshots panic, be their checksums wrong or right. What it restores counts, and can be written
/// and restored again.
pub fn snapshot(bytes: &[u8]) {
    for bytes in [bytes, &tollgate::fuzzing::sealed(bytes)] {
        let snapshot = match Snapshot::read(256 << 10, NOW, &mut &*bytes) {
            Ok(snapshot) => snapshot,
            Err(refused) => {
                assert!(!refused.to_string().is_empty(), "refused without a reason");
                continue;
            }
        };
        let Ok((engine, _)) = snapshot.restore(snapshot_policy(), |memory| memory, NOW) else { continue };
        for (step, key) in ["a", "b", "new"].into_iter().cycle().take(9).enumerate() {
            let cost = [0, 1, 40][step / 3];
            let request = with(CheckRequest::new(), "key", key);
            let _ = engine.try_check(&request.clone().cost(cost).unwrap_or(request), NOW).unwrap();
        }
        let mut again = Vec::new();
        assert!(engine.maintenance().snapshots().write(NOW, &mut again).is_ok());
        let again = Snapshot::read(256 << 10, NOW, &mut &*again);
        assert!(again.is_ok_and(|again| again.report().dropped == 0), "it is not read again");
    }
}

/// Every kind of counter; the seeds of the corpus were taken under it.
fn snapshot_policy() -> Policy {
    let policy = b"limits:
      - {name: bucket, by: [key], rate: 50/h}
      - {name: wide, by: [key], rate: 9999991/s burst 50}
      - {name: gcra, by: [key], rate: 50/h, algorithm: gcra}
      - {name: fixed, by: [key], rate: 50/month, algorithm: fixed-window, align: calendar, timezone: Europe/Rome}
      - {name: window, by: [key], rate: 50/h, algorithm: sliding-window, precision: 1, estimate: interpolate}
      - {name: log, by: [key], rate: 50/h, algorithm: sliding-log}
      - {name: leaky, by: [key], rate: 50/h, algorithm: leaky-bucket, queue: 40}
      - {name: permits, by: [key], concurrency: 50, permit_ttl: 1h}
      - {name: tiers, by: [key], tier_by: plan, tiers: {a: 10/h, b: 20/d}, overrides: {x: 30/h}}";
    match Policy::compile("snapshot", policy) {
        Ok(policy) => policy,
        Err(findings) => panic!("{findings}"),
    }
}

/// A snapshot to start from: a few keys, some of them after a policy with other numbers.
pub fn snapshot_seed(changed: bool) -> Vec<u8> {
    let engine = small_engine(snapshot_policy());
    for key in ["a", "b"] {
        let request = with(CheckRequest::new(), "key", key);
        let _ = engine.try_check(&request.clone().cost(3).unwrap_or(request), NOW).unwrap();
    }
    if changed {
        let slower = Quota::token_bucket(Rate::per_day(40));
        let limits = slower.map(|quota| Policy::new(vec![Limit::new("bucket", quota).by(["key"])]));
        if let Ok(Ok(policy)) = limits {
            let _ = engine.swap(policy, NOW);
        }
    }
    let mut bytes = Vec::new();
    assert!(
        engine
            .maintenance()
            .snapshots()
            .write_with(|store| Some(store), NOW, ["what is counted beside"], &mut bytes)
            .is_ok()
    );
    bytes
}

/// Bytes taken from the front; zeros when there are no more.
struct Input<'b>(&'b [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    /// A length and that many bytes as text, whatever they are.
    fn text(&mut self) -> String {
        let length = usize::from(self.byte()).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}
