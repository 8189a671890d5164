//! State that the nodes of a fleet share through the store: a count of nodes, and the secret that hashes keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::{Instant, sleep};
use tollgate::Secret;

use crate::client::Client;
use crate::key::slot_of;
use crate::random::random;
use crate::reply::{Failure, ReplyClass};
use crate::settings::Nodes;

/// How often a node signs itself, and how long a signature counts.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
const HEARTBEAT_TTL_MILLIS: u32 = 10_000;
/// Timeout of these commands. No decision waits for them.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Pauses between attempts to read the secret.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a node checks that the store still has the secret.
const SECRET_CHECK_EVERY: Duration = Duration::from_millis(500);

const NODES_KEY: &str = "tg:{nodes}";
const SECRET_KEY: &str = "tg:{secret}";
/// Random bytes in a new secret.
const SECRET_BYTES: usize = 32;
/// The secret expires a year after its last read, later than any counter hashed with it.
const SECRET_MILLIS: u64 = 366 * 86_400_000;

/// Signs a node and counts recent signatures, by the store's clock. Signatures from the future are removed, so that a
/// step back of that clock leaves no node behind.
const SIGN_SCRIPT: &str = "local time = redis.call('TIME') \
    local now = time[1] * 1000 + math.floor(time[2] / 1000) \
    redis.call('ZADD', KEYS[1], now, ARGV[1]) \
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2]) \
    redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[2], '+inf') \
    redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
    return redis.call('ZCARD', KEYS[1])";

/// The nodes that share the store.
pub(crate) struct Fleet {
    nodes: Nodes,
    name: String,
    /// The number of signatures; 0 until it is known. The last count stays while the store is unreachable.
    counted: AtomicU32,
    /// Whether the store has another secret than this node. Relaxed: it is only shown.
    has_other_secret: AtomicBool,
}

impl Fleet {
    pub(crate) fn new(nodes: Nodes) -> Self {
        // A random name is unique enough, and it is not secret.
        let name = format!("{:016x}{:016x}", random(), random());
        Self { nodes, name, counted: AtomicU32::new(0), has_other_secret: AtomicBool::new(false) }
    }

    /// The name of this node.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn count(&self) -> u32 {
        match self.nodes {
            Nodes::Fixed(count) => count,
            Nodes::Counted => self.counted.load(Ordering::Relaxed),
        }
    }

    /// Whether the store has another secret than this node.
    pub(crate) fn has_other_secret(&self) -> bool {
        self.has_other_secret.load(Ordering::Relaxed)
    }

    /// Signs this node for as long as the process lives.
    pub(crate) async fn run_heartbeat(self: Arc<Self>, client: Client) {
        loop {
            let signed =
                client.command(Some(slot_of(b"nodes")), &self.sign_command(), Instant::now() + TIMEOUT).await;
            let pause = match signed {
                Ok(Value::Int(count)) => {
                    self.counted.store(u32::try_from(count).unwrap_or(1).max(1), Ordering::Relaxed);
                    HEARTBEAT_EVERY
                }
                Ok(_) => HEARTBEAT_EVERY,
                Err(_) => HEARTBEAT_EVERY / 4,
            };
            sleep(pause).await;
        }
    }

    /// Removes this node's signature, so that the other nodes need not wait for it to expire.
    pub(crate) async fn leave(&self, client: &Client) {
        let mut command = redis::cmd("ZREM");
        command.arg(NODES_KEY).arg(&self.name);
        let left = client.command(Some(slot_of(b"nodes")), &command, Instant::now() + TIMEOUT).await;
        if left.is_err() {
            tracing::debug!("this node's signature could not be removed; it will expire");
        }
    }

    fn sign_command(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(SIGN_SCRIPT).arg(1).arg(NODES_KEY).arg(&self.name).arg(HEARTBEAT_TTL_MILLIS);
        command
    }
}

/// Reads the fleet's secret, or creates it if this node is the first. Retries until the store answers.
pub(crate) async fn learn_secret(client: &Client) -> Vec<u8> {
    let mut pause = PAUSE_FIRST;
    let mut has_logged = false;
    loop {
        let mut random = [0; SECRET_BYTES];
        let made = SystemRandom::new().fill(&mut random).is_ok();
        match read_or_create_secret(client, made.then_some(&random[..])).await {
            Ok(bytes) => return bytes,
            Err(failure) => {
                let (class, is_new) = (failure.class, !has_logged);
                has_logged |= class == ReplyClass::Malformed;
                if is_new && class == ReplyClass::Malformed {
                    tracing::error!(
                        "{SECRET_KEY} in the store is no secret of Tollgate's: delete it, or configure a secret"
                    );
                }
                tracing::debug!(class = class.name(), "the fleet's secret is not known yet");
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Restores the secret if the store lost it, after a flush or a failover to a replica that did not have it yet.
/// Otherwise the next node to start would create another secret and share no counters.
pub(crate) async fn maintain_secret(fleet: Arc<Fleet>, client: Client, bytes: Vec<u8>) {
    loop {
        sleep(SECRET_CHECK_EVERY).await;
        if let Ok(found) = read_or_create_secret(&client, Some(&bytes)).await {
            let had_other = fleet.has_other_secret.swap(found != bytes, Ordering::Relaxed);
            if found != bytes && !had_other {
                tracing::error!(
                    "the store has another secret than this node: it counts by itself until it is restarted"
                );
            }
        }
    }
}

/// Offers a secret, and returns the one in the store.
async fn read_or_create_secret(client: &Client, offered: Option<&[u8]>) -> Result<Vec<u8>, Failure> {
    let slot = Some(slot_of(b"secret"));
    if let Some(offered) = offered {
        let mut create = redis::cmd("SET");
        create.arg(SECRET_KEY).arg(offered).arg("NX").arg("PX").arg(SECRET_MILLIS);
        client.command(slot, &create, Instant::now() + TIMEOUT).await?;
    }
    // The creator reads it too: a failover in between may have kept another node's secret.
    let mut read = redis::cmd("GETEX");
    read.arg(SECRET_KEY).arg("PX").arg(SECRET_MILLIS);
    match client.command(slot, &read, Instant::now() + TIMEOUT).await? {
        Value::BulkString(bytes) if bytes.len() == SECRET_BYTES => Ok(bytes),
        _ => Err(ReplyClass::Malformed.into()),
    }
}

/// Derives a secret from bytes. Processes with the same bytes compute the same hashes.
pub(crate) fn secret_of(bytes: &[u8]) -> Secret {
    let key = hmac::Key::new(hmac::HMAC_SHA256, bytes);
    Secret::of_words(|number| {
        let tag = hmac::sign(&key, &number.to_le_bytes());
        let mut word = [0; 8];
        word.copy_from_slice(&tag.as_ref()[..8]);
        u64::from_le_bytes(word)
    })
}
