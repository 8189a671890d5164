//! One policy in virtual time: the real engine on memory, permits and failures that end when the log says so, and what
//! clients do after a denial.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate::policy::Ended;
use tollgate::{
    CheckRequest, Decision, Engine, ExpiringOverride, LimitOverride, MemoryStore, Permit, Policy,
    Reservation, Scope, Secret, Ticks, Timestamp,
};

use super::describe::Describe;
use super::stored::StoredRecord;
use crate::log::Record;

/// The bound on memory for the counters of one policy. They take what their keys need.
const MEMORY_BYTES: u64 = 64 << 30;
/// The seed of the key hash, so that a report is the same each time.
const SEED: u64 = 17;
/// How long a request may take until its failure is counted: longer than any log.
const LIFETIME: Ticks = Ticks::from_secs(366 * 86_400);
/// Maximum number of denied requests that wait to come back.
const WAITING_MAX: usize = 1 << 20;

/// The reaction of clients to a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// The request is lost, and the next one comes when the log says so.
    #[default]
    Gone,
    /// The request comes back once, at its `Retry-After`.
    Retry,
    /// The client waits as `Retry-After` says, and sends nothing meanwhile, until the request passes.
    Obey,
}

impl Clients {
    /// Its name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Clients::Gone => "gone",
            Clients::Retry => "retry",
            Clients::Obey => "obey",
        }
    }

    /// Its meaning, as a part of a sentence.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Clients::Gone => "a denied request does not come back",
            Clients::Retry => "a denied request comes back once, at its Retry-After",
            Clients::Obey => "a denied client waits as Retry-After says, until its request passes",
        }
    }
}

/// Whether a request is decided for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    First,
    Again,
}

/// A decision, and what it was about.
pub(super) struct Decided<'d, 'r> {
    pub(super) attempt: Attempt,
    pub(super) decision: &'d Decision,
    pub(super) request: &'d CheckRequest<'r>,
    pub(super) record: &'d Record<'d>,
    pub(super) client: u64,
    pub(super) now: Timestamp,
}

/// Permits and units that are returned when a request ends.
struct End {
    permit: Option<Permit>,
    awaiting: Option<(Reservation, Ended)>,
}

/// A policy that decides.
pub(super) struct PolicyRun {
    engine: Engine,
    clients: Clients,
    /// By instant, and in the order of the decisions.
    ends: BTreeMap<(Timestamp, u64), End>,
    /// The clients that retry, with their instants. A client that obeys has its requests in `queues`.
    returns: BTreeMap<(Timestamp, u64), (u64, Option<StoredRecord>)>,
    queues: HashMap<u64, VecDeque<(Attempt, StoredRecord)>>,
    waiting: usize,
    number: u64,
    lost: u64,
}

impl PolicyRun {
    /// A policy without some of its limits, whose counters are new at `start`.
    pub(super) fn new(policy: Policy, without: &[String], clients: Clients, start: Timestamp) -> Self {
        let store = MemoryStore::new(MEMORY_BYTES, start);
        let engine = Engine::builder().policy(policy).store(store).secret(Secret::repeatable(SEED)).build();
        for name in without {
            let off = ExpiringOverride { kind: LimitOverride::Off, until: Timestamp::MAX };
            // A limit that is off already needs no override.
            let _ = engine.operator().set_override(Scope::Limit(name), off, start);
        }
        Self::of(engine, clients)
    }

    /// Another policy, or the same, without the same limits, whose counters are new at `start`. Its keys have the same
    /// hashes.
    pub(super) fn beside(&self, policy: Arc<Policy>, start: Timestamp) -> Self {
        Self::of(self.engine.maintenance().siblings().candidate(policy, MEMORY_BYTES, start), self.clients)
    }

    pub(super) fn policy(&self) -> Arc<Policy> {
        self.engine.policy()
    }

    fn of(engine: Engine, clients: Clients) -> Self {
        Self {
            engine,
            clients,
            ends: BTreeMap::new(),
            returns: BTreeMap::new(),
            queues: HashMap::new(),
            waiting: 0,
            number: 0,
            lost: 0,
        }
    }

    /// Lets the policy decide about a request at `now`, after everything that happens before. Instants never go back.
    pub(super) fn arrive<D: Describe>(
        &mut self,
        (stored, record, client): (&StoredRecord, &Record<'_>, u64),
        request: &CheckRequest<'_>,
        now: Timestamp,
        (describe, observe): (&D, &mut impl FnMut(&Decided<'_, '_>)),
    ) {
        self.catch_up(now, describe, observe);
        if let Some(queue) = self.queues.get_mut(&client) {
            if self.waiting < WAITING_MAX {
                queue.push_back((Attempt::First, stored.clone()));
                self.waiting += 1;
            } else {
                self.lost += 1;
            }
            return;
        }
        let Some(decision) = self.ask(request, record, now) else { return };
        observe(&Decided { attempt: Attempt::First, decision: &decision, request, record, client, now });
        let Some(back) = self.back_at(&decision, now) else { return };
        if self.waiting >= WAITING_MAX {
            self.lost += 1;
            return;
        }
        self.waiting += 1;
        let place = self.place(back);
        if self.clients == Clients::Obey {
            self.queues.insert(client, VecDeque::from([(Attempt::Again, stored.clone())]));
            self.returns.insert(place, (client, None));
        } else {
            self.returns.insert(place, (client, Some(stored.clone())));
        }
    }

    /// Decides about all requests that came back by the end of the log.
    pub(super) fn finish<D: Describe>(
        &mut self,
        end: Timestamp,
        describe: &D,
        observe: &mut impl FnMut(&Decided<'_, '_>),
    ) {
        let end = if self.clients == Clients::Obey { end } else { Timestamp::MAX };
        self.catch_up(end, describe, observe);
    }

    /// Bytes that its counters take.
    pub(super) fn counter_bytes(&self, now: Timestamp) -> u64 {
        self.engine.store().usage(now).bytes
    }

    /// Requests that still wait.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Denied requests that did not come back, because too many waited.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// When a denied request comes back, if it does.
    fn back_at(&self, decision: &Decision, now: Timestamp) -> Option<Timestamp> {
        if self.clients == Clients::Gone || decision.is_allowed() {
            return None;
        }
        let advice = decision.retry_advice()?;
        Some(now + Ticks::from_secs(advice.ceil_seconds().max(1)))
    }

    const fn place(&mut self, at: Timestamp) -> (Timestamp, u64) {
        self.number += 1;
        (at, self.number)
    }

    /// Decides about the requests that come back until `now`.
    fn catch_up<D: Describe>(
        &mut self,
        now: Timestamp,
        describe: &D,
        observe: &mut impl FnMut(&Decided<'_, '_>),
    ) {
        while let Some(first) = self.returns.first_entry() {
            let at = first.key().0;
            if at > now {
                break;
            }
            let (client, stored) = first.remove();
            if let Some(stored) = stored {
                self.waiting -= 1;
                self.again((Attempt::Again, client, &stored), at, describe, observe);
                continue;
            }
            let Some(mut queue) = self.queues.remove(&client) else { continue };
            let mut back = None;
            while let Some((attempt, stored)) = queue.pop_front() {
                back = self.again((attempt, client, &stored), at, describe, observe);
                if back.is_some() {
                    queue.push_front((Attempt::Again, stored));
                    break;
                }
                self.waiting -= 1;
            }
            if let Some(back) = back {
                let place = self.place(back);
                self.returns.insert(place, (client, None));
                self.queues.insert(client, queue);
            }
        }
    }

    /// Decides about a stored request. Returns when it comes back, if a client that obeys is denied.
    fn again<D: Describe>(
        &mut self,
        (attempt, client, stored): (Attempt, u64, &StoredRecord),
        now: Timestamp,
        describe: &D,
        observe: &mut impl FnMut(&Decided<'_, '_>),
    ) -> Option<Timestamp> {
        let record = stored.record();
        let decided = describe.describe(&record, |request| {
            let decision = self.ask(request, &record, now)?;
            observe(&Decided { attempt, decision: &decision, request, record: &record, client, now });
            self.back_at(&decision, now)
        });
        decided.ok().flatten()
    }

    /// The decision of the engine. It never waits on memory.
    fn ask(&mut self, request: &CheckRequest<'_>, record: &Record<'_>, now: Timestamp) -> Option<Decision> {
        self.end_until(now);
        let mut decision = match self.engine.try_check(request, now) {
            Ok(decision) => decision,
            Err(prepared) => finished(prepared.check(&self.engine, request, now))?,
        };
        let permit = decision.take_permit();
        let reservations = self.engine.reservations();
        let awaiting = record.status.and_then(|status| {
            Some((reservations.awaiting(&decision, LIFETIME, now)?, Ended::Status(status)))
        });
        if permit.is_some() || awaiting.is_some() {
            let place = self.place(now + record.duration.unwrap_or_default());
            self.ends.insert(place, End { permit, awaiting });
        }
        Some(decision)
    }

    /// Ends the requests whose time is over.
    fn end_until(&mut self, now: Timestamp) {
        while let Some(first) = self.ends.first_entry() {
            let at = first.key().0;
            if at > now {
                break;
            }
            let End { permit, awaiting } = first.remove();
            let reservations = self.engine.reservations();
            // Memory answers at once, and nothing has expired.
            if let Some(permit) = permit {
                let _ = finished(reservations.release(&permit, at));
            }
            if let Some((mut awaiting, ended)) = awaiting {
                let _ = finished(reservations.report(&mut awaiting, ended, at));
            }
        }
    }
}

/// The result of a future that never waits.
fn finished<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
