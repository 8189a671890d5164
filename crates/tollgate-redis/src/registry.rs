//! The fleet's agreement on tags: which three digits stand for which quota in the states of a family. Each family has a hash in the
//! store, from tag to quota, in which the first to need a tag claims it. What was claimed is remembered here, since each policy has
//! families of its own.
//!
//! A quota that returns after another was in force gets another tag, so that a state tells whether it was last asked before or after.

mod text;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use redis::{Value, cmd};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tollgate::Quota;
use tollgate::charge::Family;

use crate::key::slot_of;
use crate::link::{Class, Failure, Link};
use crate::script::Tag;

/// What the slot of the hashes is made of.
const SLOT_TAG: &str = "quotas";
/// How long a family's hash is kept after its last claim: longer than any state.
const KEPT_SECONDS: u64 = 4 * 366 * 86_400;
/// Most families whose claims are remembered, and most quotas of other nodes. Beyond it they are asked for again.
const REMEMBERED_MAX: usize = 65_536;

/// What this node knows of the fleet's tags.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Locked while claims are under way: a family is claimed once, however many requests wait for it.
    claimed: Mutex<HashMap<u64, Vec<Claim>>>,
    /// The quotas of other nodes.
    foreign: std::sync::Mutex<HashMap<(u64, Tag), Quota>>,
}

/// The tag of one of a family's quotas.
#[derive(Clone, Debug)]
struct Claim {
    number: u32,
    quota: Quota,
    /// Which time in force of this quota it is, counted from 1.
    turn: u32,
    tag: Tag,
}

/// A quota as the fleet knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    quota: String,
    turn: u32,
}

impl Registry {
    /// Gives every quota of a family its tag.
    ///
    /// # Errors
    /// When the store does not answer in time.
    pub(crate) async fn claim(&self, link: &Link, family: &Family, deadline: Instant) -> Result<(), Failure> {
        let mut claimed =
            timeout_at(deadline, self.claimed.lock()).await.map_err(|_| Failure::from(Class::Late))?;
        if claimed.len() >= REMEMBERED_MAX && !claimed.contains_key(&family.id()) {
            claimed.clear();
        }
        let known = claimed.entry(family.id()).or_default();
        // A number of another quota than before has been forgotten and given anew.
        known.retain(|claim| {
            family.quotas().all(|(number, quota)| number != claim.number || *quota == claim.quota)
        });
        let mut entries = None;
        for (number, quota) in family.quotas() {
            if !known.iter().any(|claim| claim.number == number) {
                let entries = match &mut entries {
                    Some(entries) => entries,
                    none => none.insert(entries_of(link, family.id(), deadline).await?),
                };
                let claim = claim_one(link, family.id(), known, entries, (number, quota), deadline).await?;
                known.push(claim);
            }
        }
        if entries.is_some() {
            let mut expire = cmd("EXPIRE");
            expire.arg(name_of(family.id())).arg(KEPT_SECONDS);
            ask(link, &expire, deadline).await?;
        }
        for claim in known.iter() {
            if let Some(mark) = family.mark(claim.number) {
                // Relaxed: the number says all.
                mark.store(u32::from(claim.tag.get()), Ordering::Relaxed);
            }
        }
        Ok(())
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
        let Value::BulkString(text) = ask(link, &get, deadline).await? else { return Ok(None) };
        let found = Entry::parse(&text).and_then(|entry| text::parse(&entry.quota));
        if let Some(quota) = &found {
            let mut foreign = self.foreign();
            if foreign.len() >= REMEMBERED_MAX {
                foreign.clear();
            }
            foreign.insert(place, quota.clone());
        }
        Ok(found)
    }

    fn foreign(&self) -> std::sync::MutexGuard<'_, HashMap<(u64, Tag), Quota>> {
        // What a panic left behind is whole: each statement that changes it does so at once.
        self.foreign.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Entry {
    fn parse(text: &[u8]) -> Option<Self> {
        let (turn, quota) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(Self { quota: quota.to_owned(), turn: turn.parse().ok()? })
    }

    fn text(&self) -> String {
        format!("{} {}", self.turn, self.quota)
    }

    /// Where the search for a free tag begins: the same place on every node.
    fn first_tag(&self) -> u16 {
        let span = u32::from(Tag::RANGE.end() - Tag::RANGE.start()) + 1;
        let sum = self
            .text()
            .bytes()
            .fold(0x811c_9dc5u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        u16::try_from(sum % span).unwrap_or(0)
    }
}

/// The name of a family's hash.
fn name_of(family: u64) -> String {
    format!("tg:{{{SLOT_TAG}}}:{family:016x}")
}

async fn ask(link: &Link, command: &redis::Cmd, deadline: Instant) -> Result<Value, Failure> {
    link.command(Some(slot_of(SLOT_TAG.as_bytes())), command, deadline).await
}

/// What the fleet knows of a family.
async fn entries_of(link: &Link, family: u64, deadline: Instant) -> Result<HashMap<Tag, Entry>, Failure> {
    let mut all = cmd("HGETALL");
    all.arg(name_of(family));
    let pairs: HashMap<u32, Vec<u8>> =
        redis::from_redis_value(ask(link, &all, deadline).await?).unwrap_or_default();
    let known = pairs.iter().filter_map(|(&tag, text)| Some((Tag::new(tag)?, Entry::parse(text)?)));
    Ok(known.collect())
}

/// Finds or claims the tag of one quota.
async fn claim_one(
    link: &Link,
    family: u64,
    claimed: &[Claim],
    entries: &mut HashMap<Tag, Entry>,
    (number, quota): (u32, &Quota),
    deadline: Instant,
) -> Result<Claim, Failure> {
    let text = text::write(quota);
    let own = claimed.iter().filter(|claim| claim.quota == *quota).map(|claim| claim.turn + 1).max();
    let theirs = || entries.values().filter(|entry| entry.quota == text).map(|entry| entry.turn).max();
    let entry = Entry { turn: own.or_else(theirs).unwrap_or(1), quota: text };
    let made = |tag| Claim { number, quota: quota.clone(), turn: entry.turn, tag };
    if let Some((&tag, _)) = entries.iter().find(|(_, known)| **known == entry) {
        return Ok(made(tag));
    }
    let span = Tag::RANGE.end() - Tag::RANGE.start() + 1;
    let first = entry.first_tag();
    let all = (0..span).filter_map(|step| Tag::new(u32::from(Tag::RANGE.start() + (first + step) % span)));
    for tag in all.clone() {
        if entries.contains_key(&tag) {
            continue;
        }
        let mut set = cmd("HSETNX");
        set.arg(name_of(family)).arg(tag.get()).arg(entry.text());
        if ask(link, &set, deadline).await? == Value::Int(1) {
            entries.insert(tag, entry.clone());
            return Ok(made(tag));
        }
        // Somebody was faster; perhaps with the same.
        *entries = entries_of(link, family, deadline).await?;
        if let Some((&tag, _)) = entries.iter().find(|(_, known)| **known == entry) {
            return Ok(made(tag));
        }
    }
    // All are taken: after so many changes the states of an old one are gone.
    let tag = all.clone().next().unwrap_or(Tag::FIRST);
    let mut set = cmd("HSET");
    set.arg(name_of(family)).arg(tag.get()).arg(entry.text());
    ask(link, &set, deadline).await?;
    entries.insert(tag, entry.clone());
    Ok(made(tag))
}
