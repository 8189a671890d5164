//! Two stores in one: memory and the script. Whatever is asked is asked of both, and both must say the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;
use tollgate::charge::{Answers, Charge};
use tollgate::store::{Hold, Store, StoreFailure};
use tollgate::{MemoryStore, Timestamp};

use super::server::Server;
use crate::script::{Heard, Operation, Question, Tag};

/// Memory of a size in which no key is forgotten.
const BYTES: u64 = 64 << 20;

pub(crate) struct Twin {
    memory: MemoryStore,
    pub(crate) server: Arc<Server>,
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
        Self { memory, server: Arc::clone(server), steps: AtomicU64::new(0) }
    }

    /// Asks the script until it answers.
    pub(crate) async fn ask(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Option<Answers> {
        charges.iter().for_each(tag);
        let mut question = Question::new(operation, charges, now);
        loop {
            let asked = question.asked().unwrap();
            let time = now.unix_micros().to_string();
            let value = self.server.call(std::slice::from_ref(&asked), &time).await.unwrap();
            let Value::Array(values) = value else { panic!("{value:?} is no array") };
            match question.hear(&values[0]) {
                Heard::Answers(answers) => return Some(answers),
                Heard::Done => return None,
                Heard::Again => {}
                other => panic!("{other:?} to {charges:?}"),
            }
        }
    }
}

/// Gives every quota of a charge's family a tag, as the registry would.
pub(crate) fn tag(charge: &Charge<'_>) {
    let family = charge.family();
    let numbers = family.quotas().map(|(number, _)| number).chain([charge.number()]);
    for number in numbers {
        let tag = u32::from(*Tag::RANGE.start()) + number % 800;
        family.mark(number).unwrap().store(tag, Ordering::Relaxed);
    }
}

impl Store for Twin {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.steps.fetch_add(charges.len() as u64, Ordering::Relaxed);
        let expected = self.memory.charge_now(charges, now);
        let answers = self.ask(Operation::Charge, charges, now).await.unwrap();
        assert_eq!(Ok(&answers), expected.as_ref(), "at {now:?}: {charges:#?}");
        Ok(answers)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.steps.fetch_add(charges.len() as u64, Ordering::Relaxed);
        self.memory.refund(charges, now).await?;
        assert_eq!(self.ask(Operation::Refund, charges, now).await, None);
        Ok(())
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.reset(charges, now).await?;
        assert_eq!(self.ask(Operation::Reset, charges, now).await, None);
        Ok(())
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }
}
