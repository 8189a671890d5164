//! Claiming the tags of several families in a few messages: what the fleet knows of each is read, and what it does not know is claimed. Who
//! meets another on the way reads again.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use tokio::time::Instant;
use tollgate::Quota;

use super::{Quotas, name_of, slot, text};
use crate::link::{Class, Failure, Link};
use crate::script::Tag;

/// How long one message may take. No decision waits for longer than its own deadline.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long a family's hash is kept after its last claim: longer than any state.
const KEPT_SECONDS: u64 = 4 * 366 * 86_400;
/// How often families are read again because others were faster.
const READINGS_MAX: usize = 16;

/// The tags of a family's quotas, by number.
pub(super) type Claims = HashMap<u32, Claim>;

/// The tag of one of a family's quotas.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) quota: Quota,
    /// Which time in force of this quota it is, counted from 1.
    turn: u32,
    pub(super) tag: Tag,
}

/// A quota as the fleet knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) quota: String,
    pub(super) turn: u32,
}

/// A family that is being claimed.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: u64,
    pub(super) quotas: Quotas,
    pub(super) known: Claims,
}

/// What is to be done for one quota.
struct Step {
    number: u32,
    claim: Claim,
    /// None if the fleet has the tag already.
    command: Option<Cmd>,
    /// Whether it takes a tag that another quota has.
    is_overwriting: bool,
}

/// Claims every quota of every family.
///
/// # Errors
/// When the store did not answer, or not for all of them. What was claimed until then is theirs.
pub(super) async fn agree(link: &Link, families: &mut [Open]) -> Result<(), Failure> {
    for _ in 0..READINGS_MAX {
        let mut open: Vec<&mut Open> = families.iter_mut().filter(|family| !family.is_done()).collect();
        if open.is_empty() {
            return Ok(());
        }
        let reads: Vec<Cmd> = open.iter().map(|family| family.read()).collect();
        let read = ask(link, &reads).await?;
        let mut failed = None;
        let (mut plans, mut commands) = (Vec::new(), Vec::new());
        for (family, reply) in open.iter().zip(read) {
            let plan = match entries(reply) {
                Ok(entries) => family.plan(&entries),
                Err(failure) => {
                    failed = Some(failure);
                    Vec::new()
                }
            };
            commands.extend(plan.iter().filter_map(|step| step.command.clone()));
            if !plan.is_empty() {
                commands.push(family.keep());
            }
            plans.push(plan);
        }
        let mut replies = ask(link, &commands).await?.into_iter();
        for (family, plan) in open.iter_mut().zip(plans) {
            failed = family.accept(plan, &mut replies).err().or(failed);
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
    }
    Err(Class::Late.into())
}

async fn ask(link: &Link, commands: &[Cmd]) -> Result<Vec<Value>, Failure> {
    link.commands(Some(slot()), commands, Instant::now() + PATIENCE).await
}

/// What the fleet knows of a family.
fn entries(reply: Value) -> Result<HashMap<Tag, Entry>, Failure> {
    if let Value::ServerError(error) = &reply {
        return Err(Class::of_reply(error).into());
    }
    let pairs: HashMap<u32, Vec<u8>> = redis::from_redis_value(reply).unwrap_or_default();
    let known = pairs.iter().filter_map(|(&tag, text)| Some((Tag::new(tag)?, Entry::parse(text)?)));
    Ok(known.collect())
}

impl Open {
    pub(super) fn new(id: u64, quotas: Quotas, mut known: Claims) -> Self {
        // A number of another quota than before has been forgotten and given anew.
        for (number, quota) in &quotas {
            if known.get(number).is_some_and(|claim| claim.quota != *quota) {
                known.remove(number);
            }
        }
        Self { id, quotas, known }
    }

    pub(super) fn is_done(&self) -> bool {
        self.quotas.iter().all(|(number, _)| self.known.contains_key(number))
    }

    fn read(&self) -> Cmd {
        let mut all = cmd("HGETALL");
        all.arg(name_of(self.id));
        all
    }

    fn keep(&self) -> Cmd {
        let mut expire = cmd("EXPIRE");
        expire.arg(name_of(self.id)).arg(KEPT_SECONDS);
        expire
    }

    /// How each quota that has none gets its tag.
    fn plan(&self, entries: &HashMap<Tag, Entry>) -> Vec<Step> {
        let mut known = self.known.clone();
        let mut taken: HashMap<Entry, Tag> =
            entries.iter().map(|(tag, entry)| (entry.clone(), *tag)).collect();
        let mut tags: Vec<Tag> = entries.keys().copied().collect();
        let mut steps = Vec::new();
        for (number, quota) in self.quotas.iter().filter(|(number, _)| !self.known.contains_key(number)) {
            let text = text::write(quota);
            let own = known.values().filter(|claim| claim.quota == *quota).map(|claim| claim.turn + 1).max();
            let theirs = || taken.keys().filter(|entry| entry.quota == text).map(|entry| entry.turn).max();
            let entry = Entry { turn: own.or_else(theirs).unwrap_or(1), quota: text };
            let (tag, command, is_overwriting) = match taken.get(&entry) {
                Some(&tag) => (tag, None, false),
                None => {
                    let free = entry.tags().find(|tag| !tags.contains(tag));
                    // All are taken: after so many changes the states of an old one are gone.
                    let name = if free.is_some() { "HSETNX" } else { "HSET" };
                    let tag = free.or_else(|| entry.tags().next()).unwrap_or(Tag::FIRST);
                    let mut set = cmd(name);
                    set.arg(name_of(self.id)).arg(tag.get()).arg(entry.text());
                    tags.push(tag);
                    (tag, Some(set), free.is_none())
                }
            };
            let claim = Claim { quota: quota.clone(), turn: entry.turn, tag };
            taken.insert(entry, tag);
            known.insert(*number, claim.clone());
            steps.push(Step { number: *number, claim, command, is_overwriting });
        }
        steps
    }

    /// Takes down what was claimed. Somebody may have been faster, perhaps with the same: what comes after it is read again, too, since
    /// turns are counted in order.
    fn accept(&mut self, plan: Vec<Step>, replies: &mut impl Iterator<Item = Value>) -> Result<(), Failure> {
        if plan.is_empty() {
            return Ok(());
        }
        let (mut is_ours, mut failed) = (true, Ok(()));
        for Step { number, claim, command, is_overwriting } in plan {
            let reply = command.and_then(|_| replies.next()).unwrap_or(Value::Int(1));
            if let Value::ServerError(error) = &reply {
                failed = Err(Class::of_reply(error).into());
            }
            is_ours &= reply == Value::Int(1) || (is_overwriting && reply == Value::Int(0));
            if is_ours {
                self.known.insert(number, claim);
            }
        }
        replies.next(); // Of the expiry, which the next claim sets again.
        failed
    }
}

impl Entry {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (turn, quota) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(Self { quota: quota.to_owned(), turn: turn.parse().ok()? })
    }

    pub(super) fn text(&self) -> String {
        format!("{} {}", self.turn, self.quota)
    }

    /// All tags, in the order in which a free one is looked for: the same on every node.
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
