//! The fleet's agreement on quota tags: which three digits stand for which quota in the states of a family. Each family
//! has a hash in the store, from tag to quota, in which the first node to need a tag claims it. The node remembers
//! claimed tags, because each policy has its own families.
//!
//! Decisions do not claim. A family is queued when a policy becomes active, or when a decision meets a family without
//! tags. One background task claims the tags of many families in one message, and retries while the store is
//! unreachable. A decision waits for its tags until its own deadline; the claim continues without it.
//!
//! A quota that becomes active again after another one gets a new tag, so that a state shows which period it belongs
//! to.

mod claim;
mod text;
#[cfg(test)]
mod text_tests;
#[cfg(test)]
#[cfg(feature = "server-tests")]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Value, cmd};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate::Quota;
use tollgate::store::Family;

use crate::client::Client;
use crate::key::slot_of;
use crate::random::random;
use crate::reply::{Failure, ReplyClass};
use crate::script::Tag;
use claim::{FamilyClaim, TagClaims, claim_tags};

/// The hash tag that puts all of these hashes into one slot.
const SLOT_TAG: &str = "quotas";
/// Maximum number of families remembered and queued, and of quotas of other nodes remembered. Beyond it they are read
/// again.
const REMEMBERED_MAX: usize = 131_072;
/// Maximum number of families, and of their quotas, claimed in one batch: it must not block decisions for long.
const BATCH_FAMILIES_MAX: usize = 64;
const BATCH_QUOTAS_MAX: usize = 128;
/// Pauses after a failed claim, half of them jitter.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The quota tags that this node knows.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Mutex<RegistryState>,
    /// Notified when a family is queued.
    enqueued: Notify,
    /// Notified after each attempt to claim.
    attempted: Notify,
    /// Quotas that only other nodes have, by family and tag.
    other_quotas: Mutex<HashMap<(u64, Tag), Quota>>,
}

/// Claimed tags, and families waiting for theirs.
#[derive(Debug, Default)]
struct RegistryState {
    claimed: HashMap<u64, TagClaims>,
    /// Families to claim, each once.
    queued: HashMap<u64, QueuedFamily>,
    /// The order of the queued families. An urgent family is listed a second time, at the front.
    queue: VecDeque<u64>,
    /// Families that the task is claiming now.
    in_flight: HashMap<u64, Quotas>,
}

/// The quotas of a family, by number.
type Quotas = Vec<(u32, Quota)>;

#[derive(Debug)]
struct QueuedFamily {
    quotas: Quotas,
    urgency: Urgency,
}

/// Whether a decision waits for a family's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Background,
    Urgent,
}

impl RegistryState {
    /// Sets a family's tags if all of them are claimed.
    fn tag(&self, family: &Family) -> bool {
        let Some(claims) = self.claimed.get(&family.id()) else { return false };
        let is_known = |number, quota: &Quota| claims.get(&number).is_some_and(|claim| claim.quota == *quota);
        if !family.quotas().all(|(number, quota)| is_known(number, quota)) {
            return false;
        }
        for (number, _) in family.quotas() {
            if let (Some(mark), Some(claim)) = (family.mark(number), claims.get(&number)) {
                // Relaxed: the tag is the whole message.
                mark.store(u32::from(claim.tag.get()), Ordering::Relaxed);
            }
        }
        true
    }

    /// Queues a family, unless it is queued or in flight with the same quotas.
    fn enqueue(&mut self, family: &Family, urgency: Urgency) {
        let id = family.id();
        let is_same =
            |quotas: &Quotas| quotas.iter().map(|(number, quota)| (*number, quota)).eq(family.quotas());
        if self.in_flight.get(&id).is_some_and(is_same) {
            return;
        }
        let has_room = self.queued.len() < REMEMBERED_MAX;
        match self.queued.get_mut(&id) {
            Some(queued) if is_same(&queued.quotas) => {}
            Some(queued) => queued.quotas = owned(family),
            None if has_room => {
                self.queued.insert(id, QueuedFamily { quotas: owned(family), urgency: Urgency::Background });
                self.queue.push_back(id);
            }
            None => return,
        }
        if let Some(queued) = self.queued.get_mut(&id)
            && urgency == Urgency::Urgent
            && queued.urgency == Urgency::Background
        {
            queued.urgency = Urgency::Urgent;
            self.queue.push_front(id);
        }
    }

    /// Takes the next families from the queue, with their earlier claims.
    fn take_batch(&mut self) -> Vec<FamilyClaim> {
        let (mut claims, mut quotas) = (Vec::new(), 0);
        while claims.len() < BATCH_FAMILIES_MAX && quotas < BATCH_QUOTAS_MAX {
            let Some(id) = self.queue.pop_front() else { break };
            let Some(queued) = self.queued.remove(&id) else { continue };
            quotas += queued.quotas.len();
            let claimed = self.claimed.get(&id).cloned().unwrap_or_default();
            self.in_flight.insert(id, queued.quotas.clone());
            claims.push(FamilyClaim::new(id, queued.quotas, claimed));
        }
        claims
    }

    /// Stores the results of a batch. A family without all of its tags is queued again, unless it is queued with other
    /// quotas.
    fn finish(&mut self, attempted: Vec<FamilyClaim>) {
        for claims in attempted {
            self.in_flight.remove(&claims.id);
            if !claims.is_done() {
                self.queued.entry(claims.id).or_insert_with(|| {
                    self.queue.push_back(claims.id);
                    QueuedFamily { quotas: claims.quotas, urgency: Urgency::Background }
                });
            }
            if self.claimed.len() >= REMEMBERED_MAX && !self.claimed.contains_key(&claims.id) {
                self.claimed.clear();
            }
            self.claimed.insert(claims.id, claims.claimed);
        }
    }
}

fn owned(family: &Family) -> Quotas {
    family.quotas().map(|(number, quota)| (number, quota.clone())).collect()
}

impl Registry {
    /// Queues families that decisions will soon need.
    pub(crate) fn prepare<'f>(&self, families: impl Iterator<Item = &'f Family>) {
        let mut state = self.state();
        for family in families {
            if !state.tag(family) {
                state.enqueue(family, Urgency::Background);
            }
        }
        drop(state);
        self.enqueued.notify_one();
    }

    /// Clears the queue, for example when the secret changed and with it the families.
    pub(crate) fn clear_queue(&self) {
        let mut state = self.state();
        state.queued.clear();
        state.queue.clear();
    }

    /// Whether every queued family is claimed.
    pub(crate) fn is_prepared(&self) -> bool {
        let state = self.state();
        state.queued.is_empty() && state.in_flight.is_empty()
    }

    /// Sets the tags of families, waiting until they are claimed.
    ///
    /// # Errors
    /// When the store is unreachable, or the tags are not claimed in time. The claim continues.
    pub(crate) async fn tag<'f>(
        &self,
        client: &Client,
        families: impl Iterator<Item = &'f Family> + Clone,
        deadline: Instant,
    ) -> Result<(), Failure> {
        loop {
            let mut attempted = pin!(self.attempted.notified());
            attempted.as_mut().enable(); // Enabled before the check, so that no notification is missed in between.
            if self.is_tagged(families.clone()) {
                return Ok(());
            }
            self.enqueued.notify_one();
            if client.refuses_commands(slot()) {
                return Err(ReplyClass::Open.into());
            }
            timeout_at(deadline, attempted).await.map_err(|_| Failure::from(ReplyClass::Late))?;
        }
    }

    /// Sets the tags of claimed families and queues the others. Returns whether all have tags.
    fn is_tagged<'f>(&self, families: impl Iterator<Item = &'f Family>) -> bool {
        let mut state = self.state();
        let mut all = true;
        for family in families {
            if !state.tag(family) {
                state.enqueue(family, Urgency::Urgent);
                all = false;
            }
        }
        all
    }

    /// Claims the tags of queued families for as long as the process lives.
    pub(crate) async fn run(self: Arc<Self>, client: Client) {
        self.resume();
        let mut pause = PAUSE_FIRST;
        loop {
            let mut claims = self.state().take_batch();
            if claims.is_empty() {
                self.enqueued.notified().await;
                continue;
            }
            let agreed = claim_tags(&client, &mut claims).await;
            self.state().finish(claims);
            self.attempted.notify_waiters();
            match agreed {
                Ok(()) => pause = PAUSE_FIRST,
                Err(failure) => {
                    tracing::debug!(class = failure.class.name(), "quota tags are not claimed yet");
                    sleep(pause / 2 + jitter(pause / 2)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Queues the families again that a panicked task had taken.
    fn resume(&self) {
        let mut state = self.state();
        let lost = std::mem::take(&mut state.in_flight);
        let claims = lost.into_iter().map(|(id, quotas)| {
            let claimed = state.claimed.get(&id).cloned().unwrap_or_default();
            FamilyClaim::new(id, quotas, claimed)
        });
        let claims = claims.collect();
        state.finish(claims);
    }

    /// Reads the quota of a tag that this node does not have. None if the fleet does not have it either.
    ///
    /// # Errors
    /// When the store does not answer in time.
    pub(crate) async fn look_up(
        &self,
        client: &Client,
        family: &Family,
        tag: Tag,
        deadline: Instant,
    ) -> Result<Option<Quota>, Failure> {
        let entry = (family.id(), tag);
        if let Some(quota) = self.other_quotas().get(&entry) {
            return Ok(Some(quota.clone()));
        }
        let mut get = cmd("HGET");
        get.arg(hash_key(family.id())).arg(tag.get());
        let reply = client.command(Some(slot()), &get, deadline).await?;
        let Value::BulkString(text) = reply else { return Ok(None) };
        let found = claim::TagEntry::parse(&text).and_then(|entry| text::parse(&entry.quota));
        if let Some(quota) = &found {
            let mut other_quotas = self.other_quotas();
            if other_quotas.len() >= REMEMBERED_MAX {
                other_quotas.clear();
            }
            other_quotas.insert(entry, quota.clone());
        }
        Ok(found)
    }

    fn other_quotas(&self) -> MutexGuard<'_, HashMap<(u64, Tag), Quota>> {
        // A poisoned lock is usable: each statement leaves the map consistent.
        self.other_quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held for a few map operations, never across an await.
    fn state(&self) -> MutexGuard<'_, RegistryState> {
        // A poisoned lock is usable: a family lost between two maps is queued again by the next decision.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of all hashes.
fn slot() -> u16 {
    slot_of(SLOT_TAG.as_bytes())
}

/// The key of a family's hash.
fn hash_key(family: u64) -> String {
    format!("tg:{{{SLOT_TAG}}}:{family:016x}")
}

/// A random duration up to this one, so that the nodes of a fleet do not act in step.
fn jitter(max: Duration) -> Duration {
    Duration::from_micros(random() % u64::try_from(max.as_micros()).unwrap_or(u64::MAX).max(1))
}
