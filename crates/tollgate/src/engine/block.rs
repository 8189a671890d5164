//! Blocks: an operator denies all requests with certain attributes for a while. Blocks are checked before any limit,
//! with one atomic load when there are none. A block ends by itself, at the instant that its denials advertised.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use crate::address::{Network, Prefixes};
use crate::decision::Block;
use crate::path::{loose_path, without_format};
use crate::policy::compared::{self, ComparedValue, PathForms};
use crate::policy::pattern::NO_ADDRESS;
use crate::policy::text::{Digits, as_text};
use crate::policy::{Policy, Problem};
use crate::request::{CheckRequest, Descriptor, PATH, Spelling, Value};
use crate::time::{Timestamp, WallOffset};

/// Maximum number of blocks. A change rebuilds the whole index.
pub const BLOCKS_MAX: usize = 1_000;
/// Maximum number of attributes of one block.
pub const BLOCK_ATTRIBUTES_MAX: usize = 8;

/// Why a block was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// No attribute, which would deny every request.
    #[error(
        "a block names no attribute and would deny everybody; accepted: 1 to {BLOCK_ATTRIBUTES_MAX} attributes, such as api_key=k1"
    )]
    Everybody,
    /// More attributes than [`BLOCK_ATTRIBUTES_MAX`].
    #[error("a block of {0} attributes; accepted: 1 to {BLOCK_ATTRIBUTES_MAX}")]
    TooManyAttributes(usize),
    /// The value of an address attribute that is not an address.
    #[error(
        "{name}={value} is not an address; accepted: addresses and networks, such as 10.0.0.1 or 10.0.0.0/8"
    )]
    NoAddress {
        /// The attribute.
        name: String,
        /// Its value.
        value: String,
    },
    /// A value that no request has: a pattern, or a spelling of a method, a host or a path that requests never have.
    #[error("{name}: {problem}")]
    Value {
        /// The attribute.
        name: String,
        /// The problem, with the accepted values.
        problem: Problem,
    },
    /// The maximum number of blocks exists.
    #[error(
        "there are {BLOCKS_MAX} blocks; take some of them back, or block an attribute that they have in common"
    )]
    TooMany,
}

/// Index of blocks.
#[derive(Debug, Default)]
struct Index {
    /// Each block under one of its attributes, by name and value.
    by_value: HashMap<String, HashMap<String, Vec<Arc<Block>>>>,
    /// Blocks of networks only, none of which is the network that counts as one client.
    wide: Vec<Arc<Block>>,
    /// Blocks that are found by an address only. A request with a network other than that of one client is compared
    /// with each.
    clients: Vec<Arc<Block>>,
    /// The attributes that are addresses in at least one block.
    addresses: HashSet<String>,
    /// Paths of blocks by their loose form, where the loose form differs.
    loose: HashMap<String, Vec<String>>,
    /// Maximum number of dots in the last segment of a loose path. A request with one more format suffix matches none
    /// of them.
    dots: usize,
}

/// Names and values of a request.
type Pairs<'r> = SmallVec<[(&'r str, &'r str); 16]>;

impl Index {
    fn know_paths(&mut self, block: &Block) {
        for (_, value) in &block.attributes {
            let loose = loose_path(value);
            self.dots = self.dots.max(without_format(&loose).count());
            if let Cow::Owned(loose) = loose {
                self.loose.entry(loose).or_default().push(value.clone());
            }
        }
    }

    /// Adds the block paths that a loose path matches, with or without a format suffix.
    fn add_loose<'p>(&'p self, name: &'p str, path: &'p str, pairs: &mut Pairs<'p>) {
        for form in iter::once(path).chain(without_format(path).take(self.dots.saturating_add(1))) {
            pairs.push((name, form));
            let written = self.loose.get(form).into_iter().flatten();
            pairs.extend(written.map(|path| (name, path.as_str())));
        }
    }

    /// The block that lasts longest among those that match these names and values.
    fn find(&self, given: &[(&str, &str)], now: Timestamp) -> Option<Arc<Block>> {
        let is_address = |(name, _): &&(&str, &str)| self.addresses.contains(*name);
        let addresses: Vec<(&str, String, Network)> =
            given.iter().filter(is_address).filter_map(|&(name, value)| counted(name, value)).collect();
        // Some callers spell a path or a host differently than operators do.
        let formed: Vec<(&str, ComparedValue)> =
            given.iter().filter_map(|&(name, value)| Some((name, compared::by_name(name, value)?))).collect();
        // Sorted and without duplicates, so that a request with many descriptors takes no longer than their number.
        let mut pairs = Pairs::from_slice(given);
        pairs.extend(addresses.iter().map(|(name, key, _)| (*name, key.as_str())));
        for (name, formed) in &formed {
            pairs.extend(formed.value().map(|value| (*name, value)));
            pairs.extend(formed.other().map(|other| (*name, other)));
        }
        pairs.sort_unstable();
        pairs.dedup();
        let under = pairs.iter().filter_map(|(name, value)| self.by_value.get(*name)?.get(*value)).flatten();
        let is_given = |((name, value), network): (&(String, String), &Option<Network>)| {
            // As in a condition of a policy: a network matches if some of its addresses do.
            let is_met = |network: &Network| {
                addresses.iter().any(|(other, _, given)| other == name && network.overlaps(given))
            };
            network.as_ref().is_some_and(is_met)
                || pairs.binary_search(&(name.as_str(), value.as_str())).is_ok()
        };
        let covers = |block: &&Arc<Block>| {
            now < block.until && block.attributes.iter().zip(&block.networks).all(is_given)
        };
        let is_wanted = addresses.iter().any(|(_, _, given)| !given.is_one_client());
        let clients = self.clients.iter().filter(|_| is_wanted);
        under.chain(&self.wide).chain(clients).filter(covers).max_by_key(|block| block.until).cloned()
    }
}

/// The blocks of an engine.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Whether there are any blocks. A decision that races with a change is decided either way, as if made a moment
    /// earlier or later.
    any: AtomicBool,
    index: ArcSwap<Index>,
    /// Every block, in order of creation; the index is built from it.
    all: Mutex<Vec<Arc<Block>>>,
}

impl Blocks {
    /// The block that lasts longest among those that deny the request. A block denies if each of its attributes is in
    /// some descriptor.
    #[inline]
    pub(super) fn of(&self, request: &CheckRequest<'_>, now: Timestamp) -> Option<Arc<Block>> {
        // Acquire: a thread that sees the flag also sees the blocks.
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.find(request, now)
    }

    fn find(&self, request: &CheckRequest<'_>, now: Timestamp) -> Option<Arc<Block>> {
        let index = self.index.load();
        let given = || request.descriptors().flat_map(Descriptor::attributes);
        let mut rooms: SmallVec<[Digits; 16]> = given().map(|_| Digits::new()).collect();
        let unspelled: SmallVec<[(&str, PathForms); 1]> = paths(request).collect();
        let texts = given().zip(&mut rooms).map(|(given, room)| (given.name, as_text(given.value, room)));
        let mut pairs: Pairs<'_> = texts.collect();
        // A block applies to every spelling, as conditions do.
        for (text, forms) in &unspelled {
            forms.forms(text).for_each(|form| index.add_loose(PATH, form, &mut pairs));
        }
        for (name, spelling) in request.descriptors().flat_map(Descriptor::spelled) {
            pairs.push((name, spelling.text()));
            if let Spelling::LoosePath(path) = spelling {
                index.add_loose(name, path, &mut pairs);
            }
        }
        index.find(&pairs, now)
    }

    /// The block that lasts longest among those that match these names and values.
    pub(super) fn of_pairs(&self, pairs: &[(&str, &str)], now: Timestamp) -> Option<Arc<Block>> {
        // Acquire: as above.
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.index.load().find(pairs, now)
    }

    /// Adds a block. It replaces a block with the same attributes.
    pub(super) fn add(
        &self,
        request: &CheckRequest<'_>,
        policy: &Policy,
        until: (Timestamp, WallOffset),
        now: Timestamp,
    ) -> Result<Arc<Block>, BlockError> {
        let (until, wall) = until;
        let (attributes, networks) = keys(request, policy)?;
        match attributes.len() {
            0 => return Err(BlockError::Everybody),
            1..=BLOCK_ATTRIBUTES_MAX => {}
            more => return Err(BlockError::TooManyAttributes(more)),
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|block| now < block.until && block.attributes != attributes);
        if all.len() >= BLOCKS_MAX {
            return Err(BlockError::TooMany);
        }
        let block = Arc::new(Block { attributes, networks, until, wall });
        all.push(Arc::clone(&block));
        self.publish(&all);
        Ok(block)
    }

    /// Updates the end times that blocks display after the wall clock was set.
    pub(super) fn follow_wall(&self, wall: WallOffset) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        for block in all.iter_mut() {
            *block = Arc::new(Block { wall, ..(**block).clone() });
        }
        self.publish(&all);
    }

    /// Removes the block with exactly these attributes. Returns whether there was one.
    pub(super) fn remove(&self, request: &CheckRequest<'_>, policy: &Policy, now: Timestamp) -> bool {
        let Ok((attributes, _)) = keys(request, policy) else { return false };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|block| now < block.until);
        let before = all.len();
        all.retain(|block| block.attributes != attributes);
        self.publish(&all);
        all.len() < before
    }

    /// Whether any block uses this attribute.
    pub(super) fn uses(&self, attribute: &str) -> bool {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|block| block.attributes.iter().any(|(name, _)| name == attribute))
    }

    pub(super) fn list(&self, now: Timestamp) -> Vec<Arc<Block>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|block| now < block.until).cloned().collect()
    }

    fn publish(&self, all: &[Arc<Block>]) {
        let mut index = Index::default();
        for block in all {
            index.know_paths(block);
            let each = || block.attributes.iter().zip(&block.networks);
            for ((name, _), _) in each().filter(|(_, network)| network.is_some()) {
                index.addresses.insert(name.clone());
            }
            let is_text = |(_, network): &(&(String, String), &Option<Network>)| network.is_none();
            let is_client = |(_, network): &(&(String, String), &Option<Network>)| {
                network.as_ref().is_some_and(Network::is_one_client)
            };
            match each().find(is_text).or_else(|| each().find(is_client)) {
                Some(((name, value), network)) => {
                    if network.is_some() {
                        index.clients.push(Arc::clone(block));
                    }
                    let values = index.by_value.entry(name.clone()).or_default();
                    values.entry(value.clone()).or_default().push(Arc::clone(block));
                }
                None => index.wide.push(Arc::clone(block)),
            }
        }
        self.index.store(Arc::new(index));
        self.any.store(!all.is_empty(), Ordering::Release);
    }
}

/// The paths of a request that no protocol has spelled, with their forms.
fn paths<'r>(request: &'r CheckRequest<'_>) -> impl Iterator<Item = (&'r str, PathForms)> {
    request.descriptors().filter_map(|descriptor| {
        let position = descriptor.attributes().iter().position(|given| given.name == PATH)?;
        let Value::Text(text) = descriptor.attributes()[position].value else { return None };
        let is_spelled = descriptor.spellings_of(position).next().is_some();
        Some((text, PathForms::of(text).filter(|_| !is_spelled)?))
    })
}

type Attributes = (Vec<(String, String)>, Vec<Option<Network>>);

/// The attributes of a block. An address is replaced by the network that it counts by, as in a key.
fn keys(request: &CheckRequest<'_>, policy: &Policy) -> Result<Attributes, BlockError> {
    let mut attributes: Vec<((String, String), Option<Network>)> = Vec::new();
    for given in request.attributes() {
        let (name, value) = (given.name.to_owned(), given.value.to_string());
        let network = policy.is_address(given.name).then(|| Prefixes::Default.network(&value)).flatten();
        attributes.push(match network {
            Some(network) => ((name, written(&network)), Some(network)),
            None if policy.is_address(given.name) && value != NO_ADDRESS => {
                return Err(BlockError::NoAddress { name, value });
            }
            None => match policy.value_problem(&name, &value) {
                Some(problem) => return Err(BlockError::Value { name, problem }),
                None => ((name, value), None),
            },
        });
    }
    attributes.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(attributes.into_iter().unzip())
}

/// A network as an operator would write it. A single IPv6 address is written with its prefix: without one it means its
/// network.
fn written(network: &Network) -> String {
    let is_bare = network.is_single() && network.first().is_ipv6();
    if is_bare { format!("{network}/{}", network.prefix()) } else { network.to_string() }
}

/// The key that an address counts by, and the address itself.
fn counted<'n>(name: &'n str, value: &str) -> Option<(&'n str, String, Network)> {
    let key = Prefixes::Default.network(value)?;
    Some((name, key.to_string(), Network::given(value)?))
}
