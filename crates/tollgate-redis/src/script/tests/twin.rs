//! Memory and the script as one store. Every operation runs on both, and both must answer the same.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use redis::Value;
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{MemoryStore, Quota, Timestamp};

use super::server::Server;
use crate::script::{Operation, ScriptRequest, ScriptResponse, Tag};

/// Enough memory that no key is evicted.
const BYTES: u64 = 64 << 20;

pub(crate) struct Twin {
    memory: MemoryStore,
    pub(crate) server: Arc<Server>,
    /// Every quota that a family ever had, with its number, in the order of tags: the registry's content.
    quotas: Mutex<HashMap<u64, Vec<(u32, Quota)>>>,
    /// The operations so far, printed when the answers differ.
    history: Mutex<Vec<String>>,
    /// Set when memory reuses the number of a forgotten quota. From then on it may misread an idle state and is no
    /// longer a reference.
    pub(crate) is_over: AtomicBool,
    /// Charges that both decided.
    pub(crate) steps: AtomicU64,
}

impl Twin {
    pub(crate) fn new(server: &Arc<Server>, origin: Timestamp) -> Self {
        let memory = MemoryStore::new(BYTES, origin);
        // Memory evicts idle states when it is full, which a clock that steps back would reveal. Here it holds all of
        // them.
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

    /// Sends a request to the script until it is answered.
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
                    // Memory refunds nothing to a counter whose quota it has forgotten, because it was idle.
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
            let (cost, enforcement) = (charge.cost(), charge.enforcement());
            history.push(format!(
                "{now:?} {operation:?} {key:x} {cost} {enforcement:?} under {number}: {quota:?}"
            ));
        }
    }

    /// Sets a tag for every quota of a charge's family, as the registry would.
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

/// Sets some tag for a charge's quota.
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
        // One by one, because memory stops at the first that a newer policy has replaced.
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
