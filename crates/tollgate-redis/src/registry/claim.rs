//! Claims the tags of several families in a few messages: reads each family's hash, then claims what is missing. After
//! a conflict with another node it reads again.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use tokio::time::Instant;
use tollgate::Quota;

use super::{Quotas, hash_key, slot, text};
use crate::client::Client;
use crate::reply::{Failure, ReplyClass};
use crate::script::Tag;

/// Timeout of one message. A decision waits no longer than its own deadline.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Expiry of a family's hash after its last claim: longer than any state lives.
const EXPIRY_SECONDS: u64 = 4 * 366 * 86_400;
/// How often families are read again because other nodes claimed first.
const READS_MAX: usize = 16;

/// The tags of a family's quotas, by number.
pub(super) type TagClaims = HashMap<u32, TagClaim>;

/// The tag of one quota of a family.
#[derive(Clone, Debug)]
pub(super) struct TagClaim {
    pub(super) quota: Quota,
    /// How often this quota has become active, counted from 1.
    generation: u32,
    pub(super) tag: Tag,
}

/// An entry of a family's hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TagEntry {
    pub(super) quota: String,
    pub(super) generation: u32,
}

/// A family whose tags are being claimed.
#[derive(Debug)]
pub(super) struct FamilyClaim {
    pub(super) id: u64,
    pub(super) quotas: Quotas,
    pub(super) claimed: TagClaims,
}

/// How one quota gets its tag.
struct ClaimStep {
    number: u32,
    claim: TagClaim,
    /// None if the fleet has already claimed the tag.
    command: Option<Cmd>,
    /// Whether the command replaces the tag of another quota.
    is_overwriting: bool,
}

/// Claims the tags of all quotas of all families.
///
/// # Errors
/// When the store did not answer for all of them. Tags claimed before the failure are kept.
pub(super) async fn claim_tags(client: &Client, families: &mut [FamilyClaim]) -> Result<(), Failure> {
    for _ in 0..READS_MAX {
        let mut unclaimed: Vec<&mut FamilyClaim> =
            families.iter_mut().filter(|family| !family.is_done()).collect();
        if unclaimed.is_empty() {
            return Ok(());
        }
        let reads: Vec<Cmd> = unclaimed.iter().map(|family| family.read()).collect();
        let read = send(client, &reads).await?;
        let mut failed = None;
        let (mut plans, mut commands) = (Vec::new(), Vec::new());
        for (family, reply) in unclaimed.iter().zip(read) {
            let plan = match entries(reply) {
                Ok(entries) => family.plan(&entries),
                Err(failure) => {
                    failed = Some(failure);
                    Vec::new()
                }
            };
            commands.extend(plan.iter().filter_map(|step| step.command.clone()));
            if !plan.is_empty() {
                commands.push(family.extend_expiry());
            }
            plans.push(plan);
        }
        let mut replies = send(client, &commands).await?.into_iter();
        for (family, plan) in unclaimed.iter_mut().zip(plans) {
            failed = family.accept(plan, &mut replies).err().or(failed);
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
    }
    Err(ReplyClass::Late.into())
}

async fn send(client: &Client, commands: &[Cmd]) -> Result<Vec<Value>, Failure> {
    client.commands(Some(slot()), commands, Instant::now() + TIMEOUT).await
}

/// The entries of a family's hash.
fn entries(reply: Value) -> Result<HashMap<Tag, TagEntry>, Failure> {
    if let Value::ServerError(error) = &reply {
        return Err(ReplyClass::of_reply(error).into());
    }
    let pairs: HashMap<u32, Vec<u8>> = redis::from_redis_value(reply).unwrap_or_default();
    let claimed = pairs.iter().filter_map(|(&tag, text)| Some((Tag::new(tag)?, TagEntry::parse(text)?)));
    Ok(claimed.collect())
}

impl FamilyClaim {
    pub(super) fn new(id: u64, quotas: Quotas, mut claimed: TagClaims) -> Self {
        // The policy reused a number for another quota.
        for (number, quota) in &quotas {
            if claimed.get(number).is_some_and(|claim| claim.quota != *quota) {
                claimed.remove(number);
            }
        }
        Self { id, quotas, claimed }
    }

    pub(super) fn is_done(&self) -> bool {
        self.quotas.iter().all(|(number, _)| self.claimed.contains_key(number))
    }

    fn read(&self) -> Cmd {
        let mut all = cmd("HGETALL");
        all.arg(hash_key(self.id));
        all
    }

    fn extend_expiry(&self) -> Cmd {
        let mut expire = cmd("EXPIRE");
        expire.arg(hash_key(self.id)).arg(EXPIRY_SECONDS);
        expire
    }

    /// Plans how each quota without a tag gets one.
    fn plan(&self, entries: &HashMap<Tag, TagEntry>) -> Vec<ClaimStep> {
        let mut claimed = self.claimed.clone();
        let mut taken: HashMap<TagEntry, Tag> =
            entries.iter().map(|(tag, entry)| (entry.clone(), *tag)).collect();
        let mut tags: Vec<Tag> = entries.keys().copied().collect();
        let mut steps = Vec::new();
        for (number, quota) in self.quotas.iter().filter(|(number, _)| !self.claimed.contains_key(number)) {
            let text = text::write(quota);
            let own = claimed
                .values()
                .filter(|claim| claim.quota == *quota)
                .map(|claim| claim.generation + 1)
                .max();
            let theirs =
                || taken.keys().filter(|entry| entry.quota == text).map(|entry| entry.generation).max();
            let entry = TagEntry { generation: own.or_else(theirs).unwrap_or(1), quota: text };
            let (tag, command, is_overwriting) = match taken.get(&entry) {
                Some(&tag) => (tag, None, false),
                None => {
                    let free = entry.tags().find(|tag| !tags.contains(tag));
                    // All tags are taken. After so many changes the states of the oldest quota have expired.
                    let name = if free.is_some() { "HSETNX" } else { "HSET" };
                    let tag = free.or_else(|| entry.tags().next()).unwrap_or(Tag::FIRST);
                    let mut set = cmd(name);
                    set.arg(hash_key(self.id)).arg(tag.get()).arg(entry.text());
                    tags.push(tag);
                    (tag, Some(set), free.is_none())
                }
            };
            let claim = TagClaim { quota: quota.clone(), generation: entry.generation, tag };
            taken.insert(entry, tag);
            claimed.insert(*number, claim.clone());
            steps.push(ClaimStep { number: *number, claim, command, is_overwriting });
        }
        steps
    }

    /// Records claimed tags. After the first conflict it records no more: the later ones are read again, because
    /// generations are counted in order.
    fn accept(
        &mut self,
        plan: Vec<ClaimStep>,
        replies: &mut impl Iterator<Item = Value>,
    ) -> Result<(), Failure> {
        if plan.is_empty() {
            return Ok(());
        }
        let (mut is_ours, mut failed) = (true, Ok(()));
        for ClaimStep { number, claim, command, is_overwriting } in plan {
            let reply = command.and_then(|_| replies.next()).unwrap_or(Value::Int(1));
            if let Value::ServerError(error) = &reply {
                failed = Err(ReplyClass::of_reply(error).into());
            }
            is_ours &= reply == Value::Int(1) || (is_overwriting && reply == Value::Int(0));
            if is_ours {
                self.claimed.insert(number, claim);
            }
        }
        replies.next(); // The reply to EXPIRE; the next claim sets the expiry again.
        failed
    }
}

impl TagEntry {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (generation, quota) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(Self { quota: quota.to_owned(), generation: generation.parse().ok()? })
    }

    pub(super) fn text(&self) -> String {
        format!("{} {}", self.generation, self.quota)
    }

    /// All tags in the order in which a free one is searched, the same on every node.
    fn tags(&self) -> impl Iterator<Item = Tag> {
        let span = u32::from(Tag::RANGE.end() - Tag::RANGE.start()) + 1;
        let sum = self
            .text()
            .bytes()
            .fold(0x811c_9dc5u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let first = sum % span;
        (0..span).filter_map(move |step| Tag::new(u32::from(*Tag::RANGE.start()) + (first + step) % span))
    }
}
