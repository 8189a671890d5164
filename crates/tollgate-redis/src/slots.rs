//! The slot map of a cluster: which node owns which slot, read from the nodes and corrected by their redirections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::breaker::{BreakerState, fraction};
use crate::connection::Connection;
use crate::connection::primary::PrimaryLocator;
use crate::key::{Key, SLOTS};
use crate::random::random;
use crate::settings::Host;
use crate::shard::Shard;
use crate::shard::factory::ShardFactory;

/// How often the map is refreshed without a reason.
const REFRESH: Duration = Duration::from_secs(30);
/// How often while a shard fails, because another node may have taken over.
const REFRESH_AWAY: Duration = Duration::from_millis(500);
/// The minimum time between two refreshes.
const REFRESH_GAP: Duration = Duration::from_millis(250);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// How long a node outside the map is kept after the last redirection to it, for example while it imports a slot.
const REDIRECT_TARGET_FOR: Duration = Duration::from_secs(10);
/// Maximum number of primaries in a cluster.
const SHARDS_MAX: usize = 1_024;

/// The shard that owns each slot.
struct SlotMap {
    owners: Vec<Option<Arc<Shard>>>,
}

pub(crate) struct Cluster {
    factory: ShardFactory,
    seeds: Vec<Host>,
    map: ArcSwap<SlotMap>,
    shards: Mutex<HashMap<Host, Arc<Shard>>>,
    pub(crate) stale: Arc<Notify>,
    has_map: AtomicBool,
    /// Rotates the node that is queried first.
    next_source: AtomicUsize,
}

impl Cluster {
    pub(crate) fn new(factory: ShardFactory, seeds: Vec<Host>) -> Self {
        let map = ArcSwap::from_pointee(SlotMap { owners: vec![None; usize::from(SLOTS)] });
        let stale = Arc::clone(&factory.stale);
        let (shards, has_map) = (Mutex::default(), AtomicBool::new(false));
        // A random start, so that nodes of a fleet that start together do not all query the same one.
        let next_source = AtomicUsize::new(usize::try_from(random() % 1_024).unwrap_or(0));
        let cluster = Self { factory, seeds, map, shards, stale, has_map, next_source };
        cluster.seeds.iter().for_each(|seed| drop(cluster.get_or_add(seed)));
        cluster
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Shard>> {
        self.map.load().owners.get(usize::from(slot)).cloned().flatten()
    }

    /// Whether a map was ever read.
    pub(crate) fn has_map(&self) -> bool {
        self.has_map.load(Ordering::Relaxed)
    }

    /// Any node, preferably a connected one. It redirects requests for other slots.
    pub(crate) fn any(&self) -> Option<Arc<Shard>> {
        let shards = self.lock();
        shards.values().find(|shard| shard.is_connected()).or_else(|| shards.values().next()).cloned()
    }

    /// The node that a redirection names.
    pub(crate) fn node_at(&self, host: &Host) -> Arc<Shard> {
        let shard = self.get_or_add(host);
        shard.mark_redirect_target(Instant::now());
        shard
    }

    /// The shard at this address, added if it is new.
    fn get_or_add(&self, host: &Host) -> Arc<Shard> {
        let mut shards = self.lock();
        if let Some(shard) = shards.get(host) {
            return Arc::clone(shard);
        }
        let shard = self.factory.shard(host.clone());
        let locator = PrimaryLocator::Fixed { host: host.clone(), options: self.factory.options.clone() };
        self.factory.supervise(&shard, locator);
        shards.insert(host.clone(), Arc::clone(&shard));
        shard
    }

    pub(crate) fn shards(&self) -> Vec<Arc<Shard>> {
        let mut shards: Vec<_> = self.lock().values().cloned().collect();
        shards.sort_by(|one, other| one.host.cmp(&other.host));
        shards
    }

    /// Refreshes the map forever.
    pub(crate) async fn maintain_map(self: Arc<Self>) {
        loop {
            let refreshed = self.refresh().await;
            sleep(REFRESH_GAP + fraction(REFRESH_GAP / 2, random())).await;
            let is_well = |shard: &Arc<Shard>| shard.breaker.state() == BreakerState::Closed;
            let shards = self.shards();
            let pause = match refreshed && shards.iter().all(is_well) {
                true if shards.iter().any(|shard| shard.is_redirect_target()) => REDIRECT_TARGET_FOR,
                true => REFRESH - fraction(REFRESH / 3, random()),
                false => REFRESH_AWAY - REFRESH_GAP,
            };
            let _ = timeout(pause, self.stale.notified()).await;
        }
    }

    /// Queries nodes until one answers, healthy ones first. Each refresh starts with another node: a partitioned node
    /// has a stale map and must not be queried twice in a row.
    async fn refresh(&self) -> bool {
        let mut sources = self.shards();
        let next_source = self.next_source.fetch_add(1, Ordering::Relaxed);
        let start = next_source % sources.len().max(1);
        sources.rotate_left(start);
        sources.sort_by_key(|shard| shard.breaker.state() != BreakerState::Closed);
        for shard in sources {
            if let Some(connection) = shard.open_connection()
                && let Some(ranges) = query_slots(&connection, &shard.host).await
            {
                self.apply(&ranges);
                return true;
            }
        }
        // No known node answers; try the seeds from the URL.
        for seed in &self.seeds {
            if let Ok(connection) = Connection::connect(seed, &self.factory.options).await
                && let Some(ranges) = query_slots(&connection, seed).await
            {
                self.apply(&ranges);
                return true;
            }
        }
        false
    }

    fn apply(&self, ranges: &[SlotRange]) {
        let mut owners = vec![None; usize::from(SLOTS)];
        let mut primaries: HashMap<Host, Arc<Shard>> = HashMap::new();
        for range in ranges.iter().take(usize::from(SLOTS)) {
            if primaries.len() >= SHARDS_MAX && !primaries.contains_key(&range.host) {
                continue;
            }
            let shard = primaries.entry(range.host.clone()).or_insert_with(|| self.get_or_add(&range.host));
            if let Some(slots) = owners.get_mut(usize::from(range.first)..=usize::from(range.last)) {
                slots.fill(Some(Arc::clone(shard)));
            }
        }
        if primaries.is_empty() {
            return; // A node without peers knows less than the current map.
        }
        for shard in primaries.values() {
            shard.group.store(group_of(&owners, shard), Ordering::Relaxed);
            shard.clear_redirect_target(); // The map lists it now.
        }
        self.map.store(Arc::new(SlotMap { owners }));
        self.has_map.store(true, Ordering::Relaxed);
        let now = Instant::now();
        self.lock().retain(|host, shard| {
            let is_of_use = || {
                shard.was_redirect_target_within(REDIRECT_TARGET_FOR, now)
                    && shard.breaker.state() == BreakerState::Closed
            };
            let stays = primaries.contains_key(host) || is_of_use();
            if !stays {
                shard.retire();
            }
            stays
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Host, Arc<Shard>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key group in a slot of this shard; above `u16::MAX` if there is none.
fn group_of(owners: &[Option<Arc<Shard>>], shard: &Arc<Shard>) -> u32 {
    let is_here = |group: &u16| {
        let slot = usize::from(Key::new(0, Some(*group)).slot());
        owners.get(slot).and_then(Option::as_ref).is_some_and(|owner| Arc::ptr_eq(owner, shard))
    };
    (0..=u16::MAX).find(is_here).map_or(u32::MAX, u32::from)
}

/// Consecutive slots of one node.
#[derive(Debug, PartialEq, Eq)]
struct SlotRange {
    first: u16,
    last: u16,
    host: Host,
}

async fn query_slots(connection: &Connection, source: &Host) -> Option<Vec<SlotRange>> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let reply =
        timeout(ANSWER_TIMEOUT, connection.multiplexed().send_packed_command(&command)).await.ok()?.ok()?;
    connection.mark_alive(Instant::now());
    match reply {
        Value::Array(ranges) => Some(ranges.iter().filter_map(|range| parse_range(range, source)).collect()),
        other => {
            if let Value::ServerError(error) = other {
                tracing::warn!(store = %source, %error, "a node refused CLUSTER SLOTS");
            }
            None
        }
    }
}

/// `[first, last, [host, port, …], replicas…]`.
fn parse_range(range: &Value, source: &Host) -> Option<SlotRange> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(node), ..] = parts.as_slice() else { return None };
    let [name, Value::Int(port), ..] = node.as_slice() else { return None };
    let name = match name {
        Value::BulkString(name) => String::from_utf8(name.clone()).ok()?,
        Value::SimpleString(name) => name.clone(),
        _ => String::new(),
    };
    // A node that does not know its own name is the one that was queried.
    let name = if name.is_empty() || name == "?" { source.name.clone() } else { name };
    let slot = |number: i64| u16::try_from(number).ok().filter(|&slot| slot < SLOTS);
    let port = u16::try_from(*port).ok().filter(|&port| port > 0)?;
    let (first, last) = (slot(*first)?, slot(*last)?);
    (first <= last).then_some(SlotRange { first, last, host: Host { name, port } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: Value, port: i64) -> Value {
        Value::Array(vec![name, Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    /// Ranges hold names, addresses or no name; malformed ranges are ignored.
    #[test]
    fn slot_ranges_are_parsed() {
        let source = Host { name: "seed".to_owned(), port: 1 };
        let range = |first, last, node| {
            parse_range(&Value::Array(vec![Value::Int(first), Value::Int(last), node]), &source)
        };
        let host =
            |found: Option<SlotRange>| found.map(|range| (range.first, range.last, range.host.to_string()));
        let named = node(Value::BulkString(b"10.0.0.7".to_vec()), 6381);
        assert_eq!(host(range(0, 5_460, named)), Some((0, 5_460, "10.0.0.7:6381".to_owned())));
        assert_eq!(host(range(7, 7, node(Value::Nil, 5))), Some((7, 7, "seed:5".to_owned())));
        assert_eq!(host(range(7, 6, node(Value::Nil, 5))), None);
        assert_eq!(host(range(7, 16_384, node(Value::Nil, 5))), None);
        assert_eq!(host(range(-1, 3, node(Value::Nil, 5))), None);
        assert_eq!(host(range(0, 3, node(Value::Nil, 0))), None);
        assert_eq!(host(range(0, 3, Value::Int(3))), None);
    }
}
