//! This node as a member of a fleet: it shares its operator state and resets through the store, and shows itself to the
//! other nodes with heartbeats. On memory it is the only member. Decisions do not wait for any of it.

mod signature;
mod roster;
mod peer;
mod fan_out;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::task::JoinSet;
use tollgate::Timestamp;
use tollgate_redis::{FleetNews, ReplyClass};

pub(crate) use fan_out::{ASKED_MAX, AskedNode, NodeAnswer, ask_each};
pub(crate) use peer::{AnswerLimits, NODE_HEADER, PeerClient, PeerRequest, PeerStream, PeerTrust};
pub(crate) use roster::{NodeAbout, NodeState, NodeView, Roster, TokenOrigin};
pub(crate) use signature::{
    AskedFor, NodeKey, NodeSignature, OtherVersion, PROOF_HEADER, SeenNonces, StreamProofs,
};

use crate::operator_state::{OperatorStateFile, SharedState};
use crate::reload::Reloader;
use crate::service::Service;
use crate::store::Fleet;
use fan_out::FAN_OUTS_MAX;
use roster::{NodeChange, SeenNodes};

/// How often a node asks the store what is new. A change reaches every node within this time and that of two calls.
const POLL_EVERY: Duration = Duration::from_millis(400);
/// Every so many polls the list of nodes is read, so that it is known when the store goes away.
const LIST_EVERY: u32 = 10;
/// How long a start waits for the operator state of the fleet.
const START_TIMEOUT: Duration = Duration::from_millis(500);

/// The nodes for which an operator's change holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// This node is the only one.
    OnlyNode,
    /// All nodes, within a second.
    Fleet,
    /// This node until the store takes the change.
    ThisNode {
        /// Why.
        problem: String,
    },
}

/// Whether an exchange reads the list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    Skip,
    Read,
}

/// This node, and what it knows of the others.
pub(crate) struct FleetMember {
    about: NodeAbout,
    reloader: Reloader,
    service: Arc<Service>,
    /// The operator state that the fleet shares. `None` on memory.
    shared: Option<Arc<SharedState>>,
    file: Option<Arc<OperatorStateFile>>,
    peers: PeerClient,
    /// For views of which other nodes have a part.
    fan_outs: Semaphore,
    /// The questions of other nodes that were answered.
    pub(crate) questions: SeenNonces,
    /// Held during an exchange, so that each builds on the one before.
    exchanging: AsyncMutex<()>,
    /// Whether this node has left the fleet. Relaxed: the lock of the exchanges orders it.
    has_left: AtomicBool,
    token_warning: Once,
    seen: Mutex<SeenNodes>,
}

/// The parts of a member.
pub(crate) struct MemberParts {
    pub(crate) about: NodeAbout,
    pub(crate) reloader: Reloader,
    pub(crate) service: Arc<Service>,
    pub(crate) shared: Option<Arc<SharedState>>,
    pub(crate) file: Option<Arc<OperatorStateFile>>,
    pub(crate) peers: PeerClient,
}

impl FleetMember {
    pub(crate) fn new(parts: MemberParts) -> Arc<Self> {
        let MemberParts { about, reloader, service, shared, file, peers } = parts;
        Arc::new(Self {
            about,
            reloader,
            service,
            shared,
            file,
            peers,
            fan_outs: Semaphore::new(FAN_OUTS_MAX),
            questions: SeenNonces::default(),
            exchanging: AsyncMutex::default(),
            has_left: AtomicBool::new(false),
            token_warning: Once::new(),
            seen: Mutex::default(),
        })
    }

    fn seen(&self) -> MutexGuard<'_, SeenNodes> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id of this node. A server on memory has none.
    pub(crate) fn id(&self) -> Option<&str> {
        self.store().map(|fleet| fleet.redis().node_id())
    }

    fn store(&self) -> Option<&Arc<Fleet>> {
        self.service.engine.store().fleet()
    }

    /// Exchanges news with the other nodes, while it is polled.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut polls: u32 = 0;
        loop {
            let listing = if polls.is_multiple_of(LIST_EVERY) { Listing::Read } else { Listing::Skip };
            polls = polls.wrapping_add(1);
            let this = Arc::clone(&self);
            // In a separate task, so that a panic does not end the loop. The task ends with the loop.
            let mut one = JoinSet::new();
            one.spawn(async move { this.exchange(listing, Vec::new()).await.is_ok() });
            if let Some(Err(_)) = one.join_next().await {
                tracing::error!("news of the fleet were not read because of a fault in Tollgate");
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Reads the operator state of the fleet before the first decision, if the store answers in time.
    pub(crate) async fn catch_up(&self) {
        let _ = tokio::time::timeout(START_TIMEOUT, self.exchange(Listing::Read, Vec::new())).await;
    }

    /// Sends the store what is new here, and applies what is new there.
    async fn exchange(&self, listing: Listing, resets: Vec<u128>) -> Result<FleetNews, String> {
        let (Some(fleet), Some(shared)) = (self.store(), &self.shared) else {
            return Err("the counters of this server are in memory".to_owned());
        };
        let _one_at_a_time = self.exchanging.lock().await;
        let mut asked = shared.exchange();
        if !self.has_left.load(Ordering::Relaxed) {
            asked.heartbeat = self.about.heartbeat(&self.reloader, self.seen().clock_ms());
        }
        asked.lists_nodes = listing == Listing::Read;
        asked.resets = resets;
        let answered = fleet.redis().exchange(&asked).await;
        self.note_health(answered.as_ref().err().copied());
        let news = answered.map_err(problem_text)?;
        shared.hear(&self.service, &asked.items, &news);
        if !news.resets.is_empty() {
            fleet.store.discard(&news.resets);
            self.service.engine.maintenance().apply_remote_reset(&news.resets, self.service.now());
        }
        if let (Some(file), true) = (&self.file, news.items.is_some()) {
            // An error is shown by `/readyz`.
            file.request();
        }
        if listing == Listing::Read {
            let now = self.wall_now();
            let changes = self.seen().list(&news, now);
            changes.into_iter().for_each(log_change);
            self.warn_of_token();
        }
        Ok(news)
    }

    /// Takes this node off the list and out of the shares, and sends no heartbeat any more.
    pub(crate) async fn leave(&self) {
        let Some(fleet) = self.store() else { return };
        // No exchange under way may list it again: a node that left would be missed for an hour.
        let _one_at_a_time = self.exchanging.lock().await;
        self.has_left.store(true, Ordering::Relaxed);
        fleet.redis().leave().await;
    }

    /// Logs once that no other node knows the token of this one, as soon as there is another.
    fn warn_of_token(&self) {
        if self.about.token == TokenOrigin::Made && self.seen().count() > 1 {
            self.token_warning.call_once(|| {
                tracing::warn!(
                    "other servers share the store, and this one made its admin token itself: views cannot show them \
                     together; give all of them the same TOLLGATE_ADMIN_TOKEN or --admin-tokens"
                );
            });
        }
    }

    /// Logs when the fleet is lost and found.
    fn note_health(&self, problem: Option<ReplyClass>) {
        let before = std::mem::replace(&mut self.seen().problem, problem);
        match (before, problem) {
            (None, Some(class)) => {
                self.seen().interrupted();
                tracing::warn!(
                    class = class.name(),
                    "no news of the other nodes: the operator state is this node's own"
                );
            }
            (Some(_), None) => tracing::info!("the operator state is shared with the other nodes again"),
            _ => {}
        }
    }

    /// Makes a change of an operator. Returns the ids of the items that it changed.
    pub(crate) fn change<T>(&self, change: impl FnOnce() -> T) -> (T, Vec<String>) {
        match &self.shared {
            Some(shared) => shared.change(&self.service, change),
            None => (change(), Vec::new()),
        }
    }

    /// Shares changed items with the other nodes. Returns for which nodes they hold.
    pub(crate) async fn share(&self, ids: &[String]) -> Reached {
        let Some(shared) = &self.shared else { return Reached::OnlyNode };
        let exchanged = if shared.has_shared(ids) {
            Ok(())
        } else {
            self.exchange(Listing::Skip, Vec::new()).await.map(drop)
        };
        match exchanged {
            _ if shared.has_shared(ids) => Reached::Fleet,
            Ok(()) => Reached::ThisNode { problem: "the store has too many blocks and overrides".to_owned() },
            Err(problem) => Reached::ThisNode { problem },
        }
    }

    /// Announces to the other nodes that counters were reset.
    ///
    /// # Errors
    /// Why the announcement does not reach them.
    pub(crate) async fn announce_reset(&self, keys: Vec<u128>) -> Result<(), String> {
        if self.shared.is_none() || keys.is_empty() {
            return Ok(());
        }
        match self.exchange(Listing::Skip, keys).await {
            Ok(news) if news.is_reset_unheard => {
                Err("too many counters were reset within a minute".to_owned())
            }
            Ok(_) => Ok(()),
            Err(problem) => Err(problem),
        }
    }

    /// Asks another node, and reads its answer.
    ///
    /// # Errors
    /// Why there is no answer, in a few words.
    pub(crate) async fn ask(
        &self,
        node: &NodeView,
        question: &PeerRequest,
        limits: AnswerLimits,
    ) -> Result<Value, String> {
        node.not_lost()?;
        self.peers.ask(node, question, self.wall_now(), limits).await
    }

    /// Opens a streamed answer of another node.
    ///
    /// # Errors
    /// As [`FleetMember::ask`].
    pub(crate) async fn open(&self, node: &NodeView, question: &PeerRequest) -> Result<PeerStream, String> {
        node.not_lost()?;
        self.peers.open(node, question, self.wall_now()).await
    }

    /// The content that a node signs when it asks this one. `None` if other nodes cannot ask it.
    pub(crate) fn asked_for<'a>(&'a self, method: &'a str, path: &'a str) -> Option<AskedFor<'a>> {
        Some(AskedFor { node: self.id()?, admin: self.about.admin.as_deref()?, method, path })
    }

    /// The time of this node's wall clock.
    pub(crate) fn wall_now(&self) -> Timestamp {
        self.service.now().on_wall(self.service.engine.maintenance().wall())
    }

    /// How many blocks and overrides the store does not have yet. `None` on memory.
    pub(crate) fn unshared(&self) -> Option<usize> {
        self.shared.as_ref().map(|shared| shared.unshared())
    }

    /// The nodes of the fleet. If the store does not answer, those that it listed last.
    pub(crate) async fn roster(&self) -> Roster {
        let problem = match &self.shared {
            Some(_) => self.exchange(Listing::Read, Vec::new()).await.err(),
            None => None,
        };
        let (now, wall) = (self.service.now(), self.service.engine.maintenance().wall());
        let this = self.about.view(self.id(), &self.reloader, now, wall);
        self.seen().roster(this, problem, self.unshared().unwrap_or_default())
    }
}

/// Logs that a node is missed or back. Its name comes from the store, so it is quoted.
fn log_change(change: NodeChange) {
    match change {
        NodeChange::Missed { name, last_seen } => tracing::warn!(
            last_seen,
            "the node {name:?} sends no heartbeat any more: it hangs, was killed, or does not reach the store"
        ),
        NodeChange::Back { name } => tracing::info!("the node {name:?} is back"),
    }
}

/// Why there are no news, for an operator.
fn problem_text(class: ReplyClass) -> String {
    match class {
        ReplyClass::Refused => {
            "the store does not permit it: `tollgate store check` says which rights are missing".to_owned()
        }
        ReplyClass::OutOfMemory => "the store has no memory left: raise its maxmemory".to_owned(),
        ReplyClass::NotWritable | ReplyClass::ReadOnly => {
            format!("the store takes no writes ({})", class.name())
        }
        ReplyClass::Open => "the store does not answer (the breaker is open)".to_owned(),
        class => format!("the store does not answer ({})", class.name()),
    }
}
