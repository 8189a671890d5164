//! State that the nodes of a fleet exchange through the store: items that operators set, resets, and which nodes there
//! are. One script merges and reads, so that two nodes that write at once do not lose each other's items. The texts of
//! items and nodes mean nothing here.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use crate::client::Client;
use crate::key::slot_of;
use crate::reply::{Failure, ReplyClass};

const SCRIPT: &str = include_str!("shared_state.lua");
const NODES_KEY: &str = "tg:{fleet}nodes";
/// The fields of the items that are none: the version of all items, and the mark of the last reset.
const OWN_FIELDS: [&[u8]; 2] = [b"version", b"mark"];
/// Timeout of an exchange. No decision waits for it, but an operator does: a slow store is better than a change that
/// holds on one node only.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of items in one exchange, and of keys in one entry of the resets.
const ITEMS_SENT_MAX: usize = 64;
const RESET_KEYS_MAX: usize = 64;

/// The kind of exchanged items. The items of one topic are unknown to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedTopic {
    /// Operator state, resets, and the nodes.
    #[default]
    Fleet,
    /// Freezes of outbound calls.
    Outbound,
}

impl SharedTopic {
    /// The hash tag that puts the keys of a topic into one slot.
    const fn slot_tag(self) -> &'static str {
        match self {
            SharedTopic::Fleet => "fleet",
            SharedTopic::Outbound => "outbound",
        }
    }

    /// The keys of the items, the resets and the nodes.
    fn keys(self) -> [String; 3] {
        let tag = self.slot_tag();
        ["items", "resets", "nodes"].map(|name| format!("tg:{{{tag}}}{name}"))
    }
}

/// Something that holds for all nodes until it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedItem {
    /// The subject of the item. A later item with the same id replaces it.
    pub id: String,
    /// When it was written, in microseconds since 1970. Of two items the later one wins. 0 in an item to write means
    /// now, by the store's clock.
    pub written: u64,
    /// When it ends, in microseconds since 1970.
    pub until: u64,
    /// The item, in one line; empty for an item that was removed.
    pub text: String,
}

/// The result of writing an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The store has it, written at this instant.
    At(u64),
    /// The store has a later item with the same id.
    Older,
    /// The store has too many items.
    Full,
}

/// A node that has sent a heartbeat within the last hour, and has not left in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetNode {
    /// Its id, which is random and new with each start.
    pub id: String,
    /// Its last heartbeat by the store's clock, in microseconds since 1970.
    pub seen: u64,
    /// The node's description of itself.
    pub text: String,
}

/// The items that a node writes, and the versions that it already has.
#[derive(Clone, Debug, Default)]
pub struct FleetExchange {
    /// The kind of items that are exchanged.
    pub topic: SharedTopic,
    /// The node's description of itself. Empty for none.
    pub heartbeat: String,
    /// The version of the items that this node knows. Empty at first.
    pub version: String,
    /// The last reset that this node knows. Empty at first: then earlier resets are left out.
    pub mark: String,
    /// Whether to list the nodes.
    pub lists_nodes: bool,
    /// The items to write, at most [`FleetExchange::ITEMS_MAX`] of them.
    pub items: Vec<SharedItem>,
    /// The keys of counters that were reset.
    pub resets: Vec<u128>,
}

impl FleetExchange {
    /// Maximum number of items to write at once.
    pub const ITEMS_MAX: usize = ITEMS_SENT_MAX;
}

/// The answer of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetNews {
    /// The time of the store, in microseconds since 1970.
    pub now: u64,
    /// The version of its items.
    pub version: String,
    /// The mark of its last reset.
    pub mark: String,
    /// The result for each item of the exchange.
    pub written: Vec<Written>,
    /// Whether too many counters were reset in the last minute, so that the other nodes do not learn of all.
    pub is_reset_unheard: bool,
    /// All items, if their version is not the known one.
    pub items: Option<Vec<SharedItem>>,
    /// The keys of counters that nodes have reset since the known mark.
    pub resets: Vec<u128>,
    /// The nodes, if they were asked for.
    pub nodes: Vec<FleetNode>,
}

/// Performs an exchange.
pub(crate) async fn exchange(
    client: &Client,
    node: &str,
    exchange: &FleetExchange,
) -> Result<FleetNews, Failure> {
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(3).arg(&exchange.topic.keys());
    command.arg(node).arg(&exchange.heartbeat).arg(&exchange.version).arg(&exchange.mark);
    command.arg(u8::from(exchange.lists_nodes));
    let items = exchange.items.get(..ITEMS_SENT_MAX).unwrap_or(&exchange.items);
    command.arg(items.len());
    for item in items {
        command.arg(&item.id).arg(item.written).arg(item.until).arg(&item.text);
    }
    for keys in exchange.resets.chunks(RESET_KEYS_MAX) {
        let keys: Vec<String> = keys.iter().map(|key| format!("{key:032x}")).collect();
        command.arg(keys.join(" "));
    }
    let reply = client
        .command(Some(slot_of(exchange.topic.slot_tag().as_bytes())), &command, Instant::now() + TIMEOUT)
        .await?;
    read(&reply, &exchange.version).ok_or_else(|| ReplyClass::Malformed.into())
}

/// Removes a node from the list.
pub(crate) async fn leave(client: &Client, node: &str) -> Result<(), Failure> {
    let mut command = redis::cmd("HDEL");
    command.arg(NODES_KEY).arg(node);
    let slot = slot_of(SharedTopic::Fleet.slot_tag().as_bytes());
    client.command(Some(slot), &command, Instant::now() + TIMEOUT).await.map(drop)
}

fn read(reply: &Value, known: &str) -> Option<FleetNews> {
    let [now, version, mark, written, unheard, items, resets, nodes] = list(reply)? else { return None };
    let version = text(version)?;
    let items = list(items)?;
    Some(FleetNews {
        now: text(now)?.parse().ok()?,
        items: (version != known)
            .then(|| pairs(items).filter_map(|(id, item)| read_item(id, item)).collect()),
        version,
        mark: text(mark)?,
        written: list(written)?.iter().map(read_written).collect::<Option<_>>()?,
        is_reset_unheard: *unheard != Value::Int(0),
        resets: list(resets)?.iter().filter_map(text).flat_map(|entry| read_keys(&entry)).collect(),
        nodes: pairs(list(nodes)?).filter_map(|(id, node)| read_node(id, node)).collect(),
    })
}

/// Fields of a hash with their values.
fn pairs(fields: &[Value]) -> impl Iterator<Item = (&Value, &Value)> {
    fields.chunks_exact(2).filter_map(|pair| match pair {
        [field, value] => Some((field, value)),
        _ => None,
    })
}

/// An item that a node of another version wrote, and that cannot be read, is left out.
fn read_item(id: &Value, item: &Value) -> Option<SharedItem> {
    if matches!(id, Value::BulkString(id) if OWN_FIELDS.contains(&id.as_slice())) {
        return None;
    }
    let item = text(item)?;
    let mut words = item.splitn(3, ' ');
    let (written, until) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(SharedItem { id: text(id)?, written, until, text: words.next()?.to_owned() })
}

fn read_written(written: &Value) -> Option<Written> {
    Some(match text(written)?.as_str() {
        "full" => Written::Full,
        "older" => Written::Older,
        at => Written::At(at.parse().ok()?),
    })
}

/// The keys of an entry of the resets, behind its number.
fn read_keys(entry: &str) -> Vec<u128> {
    entry.split(' ').skip(1).filter_map(|key| u128::from_str_radix(key, 16).ok()).collect()
}

fn read_node(id: &Value, node: &Value) -> Option<FleetNode> {
    let node = text(node)?;
    let (seen, about) = node.split_once(' ')?;
    Some(FleetNode { id: text(id)?, seen: seen.parse().ok()?, text: about.to_owned() })
}

fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// A reply is read field by field. Fields that are no items, and items that make no sense, are left out.
    #[test]
    fn replies_are_read() {
        let items =
            ["version", "5-a", "mark", "7", "limit:a", "3 9 \"off\"", "odd", "x", "gone", "4 9 "].map(bulk);
        let reply = Value::Array(vec![
            bulk("100"),
            bulk("5-a"),
            bulk("7"),
            Value::Array(["3", "older", "full"].map(bulk).to_vec()),
            Value::Int(0),
            Value::Array(items.to_vec()),
            Value::Array(vec![bulk("7-8 0000000000000000000000000000000a 0000000000000000000000000000000b")]),
            Value::Array(["n", "99 {\"name\":\"x y\"}"].map(bulk).to_vec()),
        ]);
        let news = read(&reply, "").unwrap();
        let item = |id: &str, written, text: &str| SharedItem {
            id: id.to_owned(),
            written,
            until: 9,
            text: text.to_owned(),
        };
        assert_eq!(news.items, Some(vec![item("limit:a", 3, "\"off\""), item("gone", 4, "")]));
        assert_eq!(news.written, [Written::At(3), Written::Older, Written::Full]);
        assert_eq!((news.resets, news.now, news.mark.as_str()), (vec![10, 11], 100, "7"));
        assert_eq!(
            news.nodes,
            [FleetNode { id: "n".to_owned(), seen: 99, text: "{\"name\":\"x y\"}".to_owned() }]
        );
        assert_eq!(read(&reply, "5-a").unwrap().items, None, "the version is known");
        assert_eq!(read(&Value::Nil, ""), None);
    }
}
