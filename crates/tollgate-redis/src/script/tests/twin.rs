//! Two stores in one: memory and the script. Whatever is asked is asked of both, and both must say the same.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use redis::Value;
use tollgate::charge::{Answers, Charge};
use tollgate::store::{Hold, Store, StoreFailure};
use tollgate::{MemoryStore, Quota, Timestamp};

use super::server::Server;
use crate::script::{Operation, ScriptRequest, ScriptResponse, Tag};

/// Memory of a size in which no key is forgotten.
const BYTES: u64 = 64 << 20;

pub(crate) struct Twin {
    memory: MemoryStore,
    pub(crate) server: Arc<Server>,
    /// Every quota that a family ever had, with its number, in the order of their tags: what the registry would know.
    quotas: Mutex<HashMap<u64, Vec<(u32, Quota)>>>,
    /// What was asked, for whoever wonders how it came to a difference.
    history: Mutex<Vec<String>>,
    /// Whether memory gave the number of a forgotten quota to another: it may take an idle state for one of that, and is no
    /// model any more.
    pub(crate) is_over: AtomicBool,
    /// Charges that both decided.
    pub(crate) steps: AtomicU64,
}

impl Twin {
    pub(crate) fn new(server: &Arc<Server>, origin: Timestamp) -> Self {
        let memory = MemoryStore::new(BYTES, origin);
        // Memory drops what is idle when it needs room, and a clock that steps back would tell. Here it keeps all.
        memory.hold(&Hold {
            numbers: (0..1_024).collect(),
            since: Timestamp::default(),
            until: Timestamp::LAST,
        });
        Self {
            memory,
            server: Arc::clone(server),
            quotas: Mutex::default(),
            history: Mutex::default(),
            is_over: AtomicBool::new(false),
            steps: AtomicU64::new(0),
        }
    }

    /// Asks the script until it answers.
    pub(crate) async fn ask(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Option<Answers> {
        charges.iter().for_each(|charge| self.tag(charge));
        self.note(operation, charges, now);
        let mut request = ScriptRequest::new(operation, charges, now);
        loop {
            let asked = request.encode().unwrap();
            let time = now.unix_micros().to_string();
            let value = self.server.call(std::slice::from_ref(&asked), &time).await.unwrap();
            let Value::Array(values) = value else { panic!("{value:?} is no array") };
            match request.interpret(&values[0]) {
                ScriptResponse::Answers(answers) => return Some(answers),
                ScriptResponse::Done => return None,
                ScriptResponse::Resend => {}
                ScriptResponse::LookUpTag(place, tag) => {
                    let quotas = self.quotas.lock().unwrap();
                    let known = &quotas[&charges[place].family().id()][usize::from(tag.get() - 100)];
                    // Memory gives nothing back to a counter clock_source quota it has forgotten: it was idle.
                    request.provide_quota(
                        place,
                        tag,
                        Some(&known.1).filter(|_| operation != Operation::Refund),
                    );
                }
                other => panic!("{other:?} to {charges:?}"),
            }
        }
    }

    fn note(&self, operation: Operation, charges: &[Charge<'_>], now: Timestamp) {
        let mut history = self.history.lock().unwrap();
        for charge in charges {
            let key = charge.key() >> 112;
            let (number, quota) = (charge.number(), charge.quota());
            let (cost, stance) = (charge.cost(), charge.stance());
            history
                .push(format!("{now:?} {operation:?} {key:x} {cost} {stance:?} under {number}: {quota:?}"));
        }
    }

    /// Gives every quota of a charge's family a tag, as the registry would.
    fn tag(&self, charge: &Charge<'_>) {
        let family = charge.family();
        let mut quotas = self.quotas.lock().unwrap();
        let known = quotas.entry(family.id()).or_default();
        for (number, quota) in family.quotas() {
            let entry = (number, quota.clone());
            let index = known.iter().position(|each| *each == entry).unwrap_or_else(|| {
                if known.iter().any(|each| each.0 == number) {
                    self.is_over.store(true, Ordering::Relaxed);
                }
                known.push(entry);
                known.len() - 1
            });
            let tag = u32::from(*Tag::RANGE.start()) + u32::try_from(index).unwrap();
            family.mark(number).unwrap().store(tag, Ordering::Relaxed);
        }
    }
}

/// Gives a charge's quota some tag.
pub(crate) fn mark(charge: &Charge<'_>) {
    let tag = u32::from(Tag::FIRST.get()) + charge.number();
    charge.family().mark(charge.number()).unwrap().store(tag, Ordering::Relaxed);
}

impl Store for Twin {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.steps.fetch_add(charges.len() as u64, Ordering::Relaxed);
        let expected = self.memory.charge_now(charges, now);
        if charges.is_empty() || expected.is_err() {
            return expected;
        }
        let answers = self.ask(Operation::Charge, charges, now).await.unwrap();
        if self.is_over.load(Ordering::Relaxed) {
            return Ok(answers);
        }
        assert_eq!(Ok(&answers), expected.as_ref(), "after {:#?}", self.history.lock().unwrap());
        Ok(answers)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.steps.fetch_add(charges.len() as u64, Ordering::Relaxed);
        // One by one, since memory stops at the first that a newer policy has taken over.
        for charge in charges {
            let one = std::slice::from_ref(charge);
            self.memory.refund(one, now).await?;
            assert_eq!(self.ask(Operation::Refund, one, now).await, None);
        }
        Ok(())
    }

    async fn renew(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.steps.fetch_add(charges.len() as u64, Ordering::Relaxed);
        self.memory.renew(charges, now).await?;
        assert_eq!(self.ask(Operation::Renew, charges, now).await, None);
        Ok(())
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.reset(charges, now).await?;
        if charges.is_empty() {
            return Ok(());
        }
        assert_eq!(self.ask(Operation::Reset, charges, now).await, None);
        Ok(())
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }
}
