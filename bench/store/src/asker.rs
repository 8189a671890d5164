//! The contenders, and how each is asked about a key.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Script, Value};
use tollgate::{CheckRequest, Clock, Engine, Policy, Secret, Source};
use tollgate_redis::{RedisStore, Settings};

use tollgate_bench_store::Failure;

/// The bucket of two fields, as people write it: refill by the time that has passed, take one, expire when full.
const HASH_BUCKET: &str = "local t=redis.call('TIME') local now=t[1]+t[2]/1000000 \
local h=redis.call('HMGET',KEYS[1],'tokens','ts') \
local tokens=tonumber(h[1]) or tonumber(ARGV[2]) local ts=tonumber(h[2]) or now \
tokens=math.min(tonumber(ARGV[2]),tokens+(now-ts)*tonumber(ARGV[1])) \
local allowed=0 if tokens>=1 then tokens=tokens-1 allowed=1 end \
redis.call('HSET',KEYS[1],'tokens',tokens,'ts',now) redis.call('PEXPIRE',KEYS[1],ARGV[3]) return allowed";
/// The generic cell rate algorithm in one string.
const STRING_GCRA: &str = "local t=redis.call('TIME') local now=t[1]*1000000+t[2] \
local tat=tonumber(redis.call('GET',KEYS[1]) or now) if tat<now then tat=now end \
local new=tat+tonumber(ARGV[1]) local allow=new-tonumber(ARGV[2]) \
if now<allow then return 0 end \
redis.call('SET',KEYS[1],string.format('%.0f',new),'PX',math.ceil((new-now)/1000)) return 1";

/// Slots of a cluster.
const SLOTS: usize = 16_384;
/// How long a decision waits for the store.
const DEADLINE: Duration = Duration::from_millis(50);

/// One way to be asked.
pub(crate) enum Asker {
    /// Nothing but the way there and back.
    Ping(MultiplexedConnection),
    /// A script for each decision, with its arguments, at the node that has the key's slot.
    Script(Vec<MultiplexedConnection>, Script, &'static str, [u64; 3]),
    /// Tollgate, by a policy.
    Tollgate(Box<Engine<RedisStore>>, Clock),
}

/// Everybody, by name. All of Tollgate's limits are 100 a second, or as near to that as the algorithm has it.
pub(crate) const LIMITS: [(&str, &str); 8] = [
    ("token-bucket", "[{name: a, by: [key], rate: 100/s, burst: 200}]"),
    ("gcra", "[{name: a, by: [key], rate: 100/s, burst: 200, algorithm: gcra}]"),
    ("leaky-bucket", "[{name: a, by: [key], rate: 100/s, algorithm: leaky-bucket, queue: 100}]"),
    ("fixed-window", "[{name: a, by: [key], rate: 6000/min, algorithm: fixed-window}]"),
    ("sliding-window", "[{name: a, by: [key], rate: 6000/min, algorithm: sliding-window}]"),
    ("sliding-log", "[{name: a, by: [key], rate: 100/s, algorithm: sliding-log}]"),
    ("concurrency", "[{name: a, by: [key], concurrency: 1000, permit_ttl: 1s}]"),
    (
        "five limits",
        "[{name: a, by: [key], rate: 100/s, burst: 200}, {name: b, by: [key], rate: 6000/min, algorithm: fixed-window}, \
         {name: c, by: [key], rate: 90/s, algorithm: gcra}, {name: d, by: [key], rate: 6000/min, algorithm: sliding-window}, \
         {name: e, by: [key], rate: 80/s, burst: 300}]",
    ),
];

impl Asker {
    /// The way there and back.
    pub(crate) async fn ping(client: &redis::Client) -> Result<Self, Failure> {
        Ok(Self::Ping(client.get_multiplexed_async_connection().await?))
    }

    /// The two scripts that people write. The nodes are in the order of their slots.
    pub(crate) async fn scripts(nodes: &[redis::Client]) -> Result<[(&'static str, Self); 2], Failure> {
        let mut connections = Vec::new();
        for node in nodes {
            connections.push(node.get_multiplexed_async_connection().await?);
        }
        let hash = Script::new(HASH_BUCKET);
        let hash = Self::Script(connections.clone(), hash, "hash", [100, 200, 2_000]);
        let string = Self::Script(connections, Script::new(STRING_GCRA), "text", [10_000, 2_000_000, 0]);
        Ok([("EVALSHA, hash of two fields", hash), ("EVALSHA, string TAT", string)])
    }

    /// Tollgate with these limits.
    pub(crate) async fn tollgate(url: &str, limits: &str) -> Result<Self, Failure> {
        let policy = Policy::compile("bench", format!("limits: {limits}").as_bytes())
            .map_err(|report| format!("the policy is wrong: {report}"))?;
        // The longest deadline that there is: here the store's speed is measured, not what happens when it is too slow.
        let settings = url.parse::<Settings>()?.secret(b"a secret of the benchmark")?.deadline(DEADLINE)?;
        let store = RedisStore::start(settings)?;
        let clock = Clock::precise();
        let asker = Self::Tollgate(
            Box::new(Engine::builder().policy(policy).store(store).secret(Secret::repeatable(7)).build()),
            clock,
        );
        // The store connects in the background; the measurement begins when it counts.
        for _ in 0..200 {
            if asker.ask(0).await? {
                return Ok(asker);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err("Tollgate's store does not answer".into())
    }

    /// The same, with keys that last until they are counted.
    pub(crate) fn lasting(&self) -> Option<Self> {
        match self {
            Asker::Script(connections, script, kind, [interval, burst, life]) => {
                let arguments = [interval * 1_000, burst * 1_000, *life];
                Some(Self::Script(connections.clone(), script.clone(), kind, arguments))
            }
            _ => None,
        }
    }

    /// Calls to the store so far, where several questions may share one.
    pub(crate) fn calls(&self) -> Option<u64> {
        match self {
            Asker::Tollgate(engine, _) => Some(engine.store().report().calls),
            _ => None,
        }
    }

    /// Asks about a key. Returns whether the store itself decided.
    pub(crate) async fn ask(&self, key: u64) -> Result<bool, Failure> {
        match self {
            Asker::Ping(connection) => {
                let _: Value = redis::cmd("PING").query_async(&mut connection.clone()).await?;
                Ok(true)
            }
            Asker::Script(connections, script, kind, arguments) => {
                let name = format!("rl:{kind}:{key}");
                let connection = &connections[owner(slot(name.as_bytes()), connections.len())];
                let mut call = script.key(name);
                arguments.iter().for_each(|argument| {
                    call.arg(*argument);
                });
                let _: i64 = call.invoke_async(&mut connection.clone()).await?;
                Ok(true)
            }
            Asker::Tollgate(engine, clock) => {
                let mut text = [0u8; 20];
                let request = CheckRequest::new().with("key", digits(key, &mut text))?;
                let decision = engine.check(&request, clock.now()).await;
                Ok(decision.limits().all(|status| status.source == Source::Exact))
            }
        }
    }
}

/// The slot of a key without braces: CRC-16 as XMODEM has it.
fn slot(key: &[u8]) -> usize {
    let step = |sum: u16, _| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
    let sum = key.iter().fold(0u16, |sum, &byte| (0..8).fold(sum ^ u16::from(byte) << 8, step));
    usize::from(sum) % SLOTS
}

/// The node that has a slot: as many each as there are, and where each begins rounded to the nearest.
fn owner(slot: usize, nodes: usize) -> usize {
    (1..nodes).filter(|node| slot >= (2 * node * SLOTS + nodes) / (2 * nodes)).count()
}

/// A number as text, without memory of its own.
fn digits(mut number: u64, text: &mut [u8; 20]) -> &str {
    let mut start = text.len();
    while start == text.len() || number > 0 {
        start -= 1;
        text[start] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    std::str::from_utf8(&text[start..]).unwrap_or("0")
}
