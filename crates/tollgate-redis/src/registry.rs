//! The fleet's agreement on tags: which three digits stand for which quota in the states of a family. Each family has a hash in the
//! store, from tag to quota, in which the first to need a tag claims it. What was claimed is remembered here, since each policy has
//! families of its own.
//!
//! No decision claims: families line up when a policy is put in force, or at the latest when a decision meets one that has no tags, and
//! one task, beside all decisions, claims those of many families in one message, again and again while the store is away. A decision waits
//! for it until its own deadline, and the claim goes on without it.
//!
//! A quota that returns after another was in force gets another tag, so that a state tells whether it was last asked before or after.

mod claim;
mod text;
#[cfg(test)]
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
use tollgate::charge::Family;

use crate::key::slot_of;
use crate::link::{Class, Failure, Link, luck};
use crate::script::Tag;
use claim::{Claims, Open, agree};

/// What the slot of the hashes is made of.
const SLOT_TAG: &str = "quotas";
/// Most families whose claims are remembered, and that line up, and most quotas of other nodes. Beyond it they are asked for again.
const REMEMBERED_MAX: usize = 131_072;
/// Families that are claimed in one go, and quotas of theirs: the store must not be kept from decisions for long.
const FAMILIES_AT_ONCE: usize = 64;
const QUOTAS_AT_ONCE: usize = 128;
/// Pauses after a claim that failed, of which up to a half is left to chance.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MOST: Duration = Duration::from_millis(250);

/// What this node knows of the fleet's tags.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    book: Mutex<Book>,
    /// Told when a family lines up.
    lined_up: Notify,
    /// Told when some were claimed, or could not be.
    tried: Notify,
    /// The quotas of other nodes.
    foreign: Mutex<HashMap<(u64, Tag), Quota>>,
}

/// What was claimed, and what is to be.
#[derive(Debug, Default)]
struct Book {
    claimed: HashMap<u64, Claims>,
    /// Families that are to be claimed, each once.
    wanted: HashMap<u64, Wanted>,
    /// Their order. One that a decision waits for stands in it a second time, at the front.
    line: VecDeque<u64>,
    /// Those that the task has taken.
    under_way: HashMap<u64, Quotas>,
}

/// The quotas of a family, by number.
type Quotas = Vec<(u32, Quota)>;

#[derive(Debug)]
struct Wanted {
    quotas: Quotas,
    is_urgent: bool,
}

impl Book {
    /// Gives a family its tags, if all of them are known.
    fn tag(&self, family: &Family) -> bool {
        let Some(claims) = self.claimed.get(&family.id()) else { return false };
        let is_known = |number, quota: &Quota| claims.get(&number).is_some_and(|claim| claim.quota == *quota);
        if !family.quotas().all(|(number, quota)| is_known(number, quota)) {
            return false;
        }
        for (number, _) in family.quotas() {
            if let (Some(mark), Some(claim)) = (family.mark(number), claims.get(&number)) {
                // Relaxed: the number says all.
                mark.store(u32::from(claim.tag.get()), Ordering::Relaxed);
            }
        }
        true
    }

    /// Lines a family up, unless it is in line or under way as it is.
    fn want(&mut self, family: &Family, is_urgent: bool) {
        let id = family.id();
        let is_same =
            |quotas: &Quotas| quotas.iter().map(|(number, quota)| (*number, quota)).eq(family.quotas());
        if self.under_way.get(&id).is_some_and(is_same) {
            return;
        }
        let has_room = self.wanted.len() < REMEMBERED_MAX;
        match self.wanted.get_mut(&id) {
            Some(wanted) if is_same(&wanted.quotas) => {}
            Some(wanted) => wanted.quotas = owned(family),
            None if has_room => {
                self.wanted.insert(id, Wanted { quotas: owned(family), is_urgent: false });
                self.line.push_back(id);
            }
            None => return,
        }
        if let Some(wanted) = self.wanted.get_mut(&id).filter(|wanted| is_urgent && !wanted.is_urgent) {
            wanted.is_urgent = true;
            self.line.push_front(id);
        }
    }

    /// Takes the next families out of the line, with what was claimed for them before.
    fn next(&mut self) -> Vec<Open> {
        let (mut open, mut quotas) = (Vec::new(), 0);
        while open.len() < FAMILIES_AT_ONCE && quotas < QUOTAS_AT_ONCE {
            let Some(id) = self.line.pop_front() else { break };
            let Some(wanted) = self.wanted.remove(&id) else { continue };
            quotas += wanted.quotas.len();
            let known = self.claimed.get(&id).cloned().unwrap_or_default();
            self.under_way.insert(id, wanted.quotas.clone());
            open.push(Open::new(id, wanted.quotas, known));
        }
        open
    }

    /// Remembers what became of them. What has not all of its tags lines up again, unless it is there already with other quotas.
    fn close(&mut self, tried: Vec<Open>) {
        for open in tried {
            self.under_way.remove(&open.id);
            if !open.is_done() {
                self.wanted.entry(open.id).or_insert_with(|| {
                    self.line.push_back(open.id);
                    Wanted { quotas: open.quotas, is_urgent: false }
                });
            }
            if self.claimed.len() >= REMEMBERED_MAX && !self.claimed.contains_key(&open.id) {
                self.claimed.clear();
            }
            self.claimed.insert(open.id, open.known);
        }
    }
}

fn owned(family: &Family) -> Quotas {
    family.quotas().map(|(number, quota)| (number, quota.clone())).collect()
}

impl Registry {
    /// Lines families up that decisions will soon ask about.
    pub(crate) fn prepare<'f>(&self, families: impl Iterator<Item = &'f Family>) {
        let mut book = self.book();
        for family in families {
            if !book.tag(family) {
                book.want(family, false);
            }
        }
        drop(book);
        self.lined_up.notify_one();
    }

    /// Forgets who lined up, as when their keys are no longer what they were.
    pub(crate) fn forget_line(&self) {
        let mut book = self.book();
        book.wanted.clear();
        book.line.clear();
    }

    /// Whether nobody is in line.
    pub(crate) fn is_prepared(&self) -> bool {
        let book = self.book();
        book.wanted.is_empty() && book.under_way.is_empty()
    }

    /// Gives families their tags, as soon as they are claimed.
    ///
    /// # Errors
    /// When the store is away, or they are not claimed in time. They will be all the same.
    pub(crate) async fn tag<'f>(
        &self,
        link: &Link,
        families: impl Iterator<Item = &'f Family> + Clone,
        deadline: Instant,
    ) -> Result<(), Failure> {
        loop {
            let mut tried = pin!(self.tried.notified());
            tried.as_mut().enable(); // Before the look, so that nothing is missed between.
            if self.is_tagged(families.clone()) {
                return Ok(());
            }
            self.lined_up.notify_one();
            if link.is_closed_to(slot()) {
                return Err(Class::Open.into());
            }
            timeout_at(deadline, tried).await.map_err(|_| Failure::from(Class::Late))?;
        }
    }

    /// Gives tags to those that have been claimed; the others line up. Whether all have tags.
    fn is_tagged<'f>(&self, families: impl Iterator<Item = &'f Family>) -> bool {
        let mut book = self.book();
        let mut all = true;
        for family in families {
            if !book.tag(family) {
                book.want(family, true);
                all = false;
            }
        }
        all
    }

    /// Claims what lines up, as long as the process lives.
    pub(crate) async fn run(self: Arc<Self>, link: Link) {
        self.resume();
        let mut pause = PAUSE_FIRST;
        loop {
            let mut open = self.book().next();
            if open.is_empty() {
                self.lined_up.notified().await;
                continue;
            }
            let agreed = agree(&link, &mut open).await;
            self.book().close(open);
            self.tried.notify_waiters();
            match agreed {
                Ok(()) => pause = PAUSE_FIRST,
                Err(failure) => {
                    tracing::debug!(class = failure.class.name(), "tags of quotas are not claimed yet");
                    sleep(pause / 2 + jitter(pause / 2)).await;
                    pause = (pause * 2).min(PAUSE_MOST);
                }
            }
        }
    }

    /// Lines up again what a task that panicked had taken.
    fn resume(&self) {
        let mut book = self.book();
        let lost = std::mem::take(&mut book.under_way);
        let open = lost.into_iter().map(|(id, quotas)| {
            let known = book.claimed.get(&id).cloned().unwrap_or_default();
            Open::new(id, quotas, known)
        });
        let open = open.collect();
        book.close(open);
    }

    /// The quota of a tag that this node has not; none if nobody knows it.
    ///
    /// # Errors
    /// When the store does not answer in time.
    pub(crate) async fn look_up(
        &self,
        link: &Link,
        family: &Family,
        tag: Tag,
        deadline: Instant,
    ) -> Result<Option<Quota>, Failure> {
        let place = (family.id(), tag);
        if let Some(quota) = self.foreign().get(&place) {
            return Ok(Some(quota.clone()));
        }
        let mut get = cmd("HGET");
        get.arg(name_of(family.id())).arg(tag.get());
        let told = link.command(Some(slot()), &get, deadline).await?;
        let Value::BulkString(text) = told else { return Ok(None) };
        let found = claim::Entry::parse(&text).and_then(|entry| text::parse(&entry.quota));
        if let Some(quota) = &found {
            let mut foreign = self.foreign();
            if foreign.len() >= REMEMBERED_MAX {
                foreign.clear();
            }
            foreign.insert(place, quota.clone());
        }
        Ok(found)
    }

    fn foreign(&self) -> MutexGuard<'_, HashMap<(u64, Tag), Quota>> {
        // What a panic left behind is whole: each statement that changes it does so at once.
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held for a few steps in maps, never while anybody waits.
    fn book(&self) -> MutexGuard<'_, Book> {
        // A family that a panic left between two maps lines up again when it is next asked about.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of all the hashes.
fn slot() -> u16 {
    slot_of(SLOT_TAG.as_bytes())
}

/// The name of a family's hash.
fn name_of(family: u64) -> String {
    format!("tg:{{{SLOT_TAG}}}:{family:016x}")
}

/// A time up to this one, so that the nodes of a fleet do not all come at once.
fn jitter(most: Duration) -> Duration {
    Duration::from_micros(luck() % u64::try_from(most.as_micros()).unwrap_or(u64::MAX).max(1))
}
