//! Which node has which slot: the map of a cluster, learnt from its nodes and corrected by their redirections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::find::Finder;
use super::luck::luck;
use super::maker::Maker;
use super::shard::Shard;
use super::wire::Wire;
use crate::breaker::{BreakerState, fraction};
use crate::key::{Key, SLOTS};
use crate::settings::Host;

/// The map is learnt anew this often without a reason.
const REFRESH: Duration = Duration::from_secs(30);
/// And this often while a shard is away: another node may have taken over.
const REFRESH_AWAY: Duration = Duration::from_millis(500);
/// But never more often than this, whatever the reason.
const REFRESH_GAP: Duration = Duration::from_millis(250);
const ANSWER: Duration = Duration::from_millis(250);
/// A node that is not in the map is kept for so long after somebody was last sent there, as to one that receives a slot.
const NAMED: Duration = Duration::from_secs(10);
/// Primaries that a cluster may have.
const SHARDS_MAX: usize = 1_024;

/// The owner of each slot, by its place among the shards.
struct Map {
    owners: Vec<Option<Arc<Shard>>>,
}

pub(super) struct Cluster {
    maker: Maker,
    seeds: Vec<Host>,
    map: ArcSwap<Map>,
    shards: Mutex<HashMap<Host, Arc<Shard>>>,
    pub(super) stale: Arc<Notify>,
    has_map: AtomicBool,
    /// Whose turn it is to be asked for the map.
    turn: AtomicUsize,
}

impl Cluster {
    pub(super) fn new(maker: Maker, seeds: Vec<Host>) -> Self {
        let map = ArcSwap::from_pointee(Map { owners: vec![None; usize::from(SLOTS)] });
        let stale = Arc::clone(&maker.stale);
        let (shards, has_map) = (Mutex::default(), AtomicBool::new(false));
        // Nodes of a fleet that start together do not all ask the same one.
        let turn = AtomicUsize::new(usize::try_from(luck() % 1_024).unwrap_or(0));
        let cluster = Self { maker, seeds, map, shards, stale, has_map, turn };
        cluster.seeds.iter().for_each(|seed| drop(cluster.known(seed)));
        cluster
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Shard>> {
        self.map.load().owners.get(usize::from(slot)).cloned().flatten()
    }

    /// Whether the map was ever learnt.
    pub(super) fn has_map(&self) -> bool {
        self.has_map.load(Ordering::Relaxed)
    }

    /// Any node, at best one that is there: it will say where else to go.
    pub(super) fn any(&self) -> Option<Arc<Shard>> {
        let shards = self.lock();
        shards.values().find(|shard| shard.is_connected()).or_else(|| shards.values().next()).cloned()
    }

    /// The node that another one names.
    pub(super) fn at(&self, host: &Host) -> Arc<Shard> {
        let shard = self.known(host);
        shard.name(Instant::now());
        shard
    }

    /// The node at this address, from now on one that we know.
    fn known(&self, host: &Host) -> Arc<Shard> {
        let mut shards = self.lock();
        if let Some(shard) = shards.get(host) {
            return Arc::clone(shard);
        }
        let shard = self.maker.shard(host.clone());
        let finder = Finder::Fixed { host: host.clone(), manners: self.maker.manners.clone() };
        self.maker.keep(&shard, finder);
        shards.insert(host.clone(), Arc::clone(&shard));
        shard
    }

    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        let mut shards: Vec<_> = self.lock().values().cloned().collect();
        shards.sort_by(|one, other| one.host.cmp(&other.host));
        shards
    }

    /// Keeps the map true for ever.
    pub(super) async fn keep_map(self: Arc<Self>) {
        loop {
            let learnt = self.refresh().await;
            sleep(REFRESH_GAP + fraction(REFRESH_GAP / 2, luck())).await;
            let is_well = |shard: &Arc<Shard>| shard.breaker.state() == BreakerState::Closed;
            let shards = self.shards();
            let patience = match learnt && shards.iter().all(is_well) {
                true if shards.iter().any(|shard| shard.is_named()) => NAMED,
                true => REFRESH - fraction(REFRESH / 3, luck()),
                false => REFRESH_AWAY - REFRESH_GAP,
            };
            let _ = timeout(patience, self.stale.notified()).await;
        }
    }

    /// Asks nodes, healthy ones first, until one answers. Each time another begins: one that is cut off from the rest does not know what
    /// has become of the cluster, and must not be asked twice in a row.
    async fn refresh(&self) -> bool {
        let mut sources = self.shards();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn % sources.len().max(1);
        sources.rotate_left(start);
        sources.sort_by_key(|shard| shard.breaker.state() != BreakerState::Closed);
        for shard in sources {
            if let Some(wire) = shard.open_wire()
                && let Some(ranges) = slots(&wire, &shard.host).await
            {
                self.learn(&ranges);
                return true;
            }
        }
        // Nobody we know is there. Those that we were told of at the start may be.
        for seed in &self.seeds {
            if let Ok(wire) = Wire::connect(seed, &self.maker.manners).await
                && let Some(ranges) = slots(&wire, seed).await
            {
                self.learn(&ranges);
                return true;
            }
        }
        false
    }

    fn learn(&self, ranges: &[Range]) {
        let mut owners = vec![None; usize::from(SLOTS)];
        let mut primaries: HashMap<Host, Arc<Shard>> = HashMap::new();
        for range in ranges.iter().take(usize::from(SLOTS)) {
            if primaries.len() >= SHARDS_MAX && !primaries.contains_key(&range.host) {
                continue;
            }
            let shard = primaries.entry(range.host.clone()).or_insert_with(|| self.known(&range.host));
            if let Some(slots) = owners.get_mut(usize::from(range.first)..=usize::from(range.last)) {
                slots.fill(Some(Arc::clone(shard)));
            }
        }
        if primaries.is_empty() {
            return; // A node that knows of nobody is alone; whatever we know is better.
        }
        for shard in primaries.values() {
            shard.group.store(group_of(&owners, shard), Ordering::Relaxed);
            shard.unname(); // It is known by the map.
        }
        self.map.store(Arc::new(Map { owners }));
        self.has_map.store(true, Ordering::Relaxed);
        let now = Instant::now();
        self.lock().retain(|host, shard| {
            let is_of_use =
                || shard.was_named_within(NAMED, now) && shard.breaker.state() == BreakerState::Closed;
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

/// A group of keys that lies in a slot of this shard; out of the range of groups if there is none.
fn group_of(owners: &[Option<Arc<Shard>>], shard: &Arc<Shard>) -> u32 {
    let is_here = |group: &u16| {
        let slot = usize::from(Key::new(0, Some(*group)).slot());
        owners.get(slot).and_then(Option::as_ref).is_some_and(|owner| Arc::ptr_eq(owner, shard))
    };
    (0..=u16::MAX).find(is_here).map_or(u32::MAX, u32::from)
}

/// Neighbouring slots of one node.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    host: Host,
}

async fn slots(wire: &Wire, asked: &Host) -> Option<Vec<Range>> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let reply = timeout(ANSWER, wire.connection().send_packed_command(&command)).await.ok()?.ok()?;
    wire.heard(Instant::now());
    match reply {
        Value::Array(ranges) => Some(ranges.iter().filter_map(|range| parse(range, asked)).collect()),
        other => {
            if let Value::ServerError(error) = other {
                tracing::warn!(store = %asked, %error, "a node does not tell which slots it has");
            }
            None
        }
    }
}

/// `[first, last, [host, port, …], replicas…]`.
fn parse(range: &Value, asked: &Host) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(node), ..] = parts.as_slice() else { return None };
    let [name, Value::Int(port), ..] = node.as_slice() else { return None };
    let name = match name {
        Value::BulkString(name) => String::from_utf8(name.clone()).ok()?,
        Value::SimpleString(name) => name.clone(),
        _ => String::new(),
    };
    // A node that does not know its own name is where we asked.
    let name = if name.is_empty() || name == "?" { asked.name.clone() } else { name };
    let slot = |number: i64| u16::try_from(number).ok().filter(|&slot| slot < SLOTS);
    let port = u16::try_from(*port).ok().filter(|&port| port > 0)?;
    let (first, last) = (slot(*first)?, slot(*last)?);
    (first <= last).then_some(Range { first, last, host: Host { name, port } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: Value, port: i64) -> Value {
        Value::Array(vec![name, Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    /// Names, addresses, missing names, and nonsense.
    #[test]
    fn ranges_are_read() {
        let asked = Host { name: "seed".to_owned(), port: 1 };
        let range =
            |first, last, node| parse(&Value::Array(vec![Value::Int(first), Value::Int(last), node]), &asked);
        let host =
            |found: Option<Range>| found.map(|range| (range.first, range.last, range.host.to_string()));
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
