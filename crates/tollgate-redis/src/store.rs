//! [`RedisStore`]: turns charges into script requests, and answers within the deadline.

mod cross_slot;
mod corrections;
mod lender;
#[cfg(test)]
#[cfg(feature = "server-tests")]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tollgate::store::{Answers, Charge, Family, Hold, Store, StoreFailure};
use tollgate::{Quota, Secret, Ticks, Timestamp};

use crate::client::Client;
use crate::fleet::{Fleet, learn_secret, maintain_secret, secret_of};
use crate::key::Key;
use crate::metrics::Report;
use crate::registry::Registry;
use crate::reply::{Failure, ReplyClass};
use crate::script::{InjectedTime, Operation, Problem, SOURCE, ScriptRequest, ScriptResponse, Tag, tag_of};
use crate::settings::{ConnectError, Nodes, Settings, SettingsError};
use crate::shared_state::{self, FleetExchange, FleetNews};
use crate::task::supervise;
use corrections::Corrections;

/// Minimum timeout of refunds and resets. No decision waits for them.
const CORRECTION: Duration = Duration::from_millis(50);
/// How long [`RedisStore::connect`] waits for a store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Background tasks, aborted with the store.
#[derive(Default)]
struct Tasks(Mutex<Vec<AbortHandle>>);

impl Tasks {
    fn add(&self, task: AbortHandle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.end();
    }
}

/// Counters in Redis or Valkey, shared by a fleet.
///
/// [`RedisStore::connect`] waits for the store, and is all that most programs need. A program that must start while its
/// store is away uses [`RedisStore::start`] and [`RedisStore::join`]: until the fleet's secret is known, every charge
/// fails as unreachable, because keys hashed with another secret would be shared with no node.
pub struct RedisStore {
    client: Client,
    deadline: Duration,
    secret: Option<Vec<u8>>,
    has_joined: AtomicBool,
    fleet: Arc<Fleet>,
    tasks: Tasks,
    runtime: Handle,
    corrections: Corrections,
    registry: Arc<Registry>,
    uses_injected_time: bool,
    created: Instant,
}

impl RedisStore {
    /// Connects to the store of a URL, or of [`Settings`], and learns the fleet's secret, so that an engine can be built
    /// on it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::{CheckRequest, Engine};
    /// use tollgate_redis::RedisStore;
    ///
    /// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
    /// let engine = Engine::builder().open("policy.yaml")?.store(store).build();
    /// let request = CheckRequest::new().with("api_key", "k-42")?;
    /// let decision = engine.check(&request, engine.now()).await;
    /// # let _ = decision;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A setting is invalid, there is no tokio runtime, or the store does not answer within five seconds.
    pub async fn connect<T>(settings: T) -> Result<Self, ConnectError>
    where
        T: TryInto<Settings, Error: Into<SettingsError>>,
    {
        let settings: Settings = settings.try_into().map_err(Into::into)?;
        let topology = settings.topology().to_string();
        let mut store = Self::start(settings)?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        if store.secret.is_none() {
            let learnt = tokio::time::timeout_at(deadline, learn_secret(&store.client)).await;
            let bytes = learnt.map_err(|_| ConnectError::Unreachable { topology: topology.clone() })?;
            store.start_claiming_tags();
            store.start_keeping(bytes.clone());
            store.secret = Some(bytes);
            store.has_joined = AtomicBool::new(true);
        }
        match store.client.warm(deadline).await {
            true => Ok(store),
            false => Err(ConnectError::Unreachable { topology }),
        }
    }

    /// Starts to connect in the background, so that a process can start without its store; see [`RedisStore::join`].
    ///
    /// # Errors
    /// There is no tokio runtime.
    pub fn start(settings: Settings) -> Result<Self, SettingsError> {
        let runtime = Handle::try_current().map_err(|_| SettingsError::NoRuntime)?;
        let client = Client::new(&settings, SOURCE, runtime.clone());
        let fleet = Arc::new(Fleet::new(settings.nodes));
        let tasks = Tasks::default();
        if settings.nodes == Nodes::Counted {
            let (fleet, client) = (Arc::clone(&fleet), client.clone());
            tasks.add(supervise(&runtime, "heartbeat", move || {
                Arc::clone(&fleet).run_heartbeat(client.clone())
            }));
        }
        let store = Self {
            corrections: Corrections::new(client.clone(), runtime.clone(), settings.deadline),
            deadline: settings.deadline,
            has_joined: AtomicBool::new(settings.secret.is_some()),
            secret: settings.secret,
            registry: Arc::default(),
            client,
            fleet,
            tasks,
            runtime,
            uses_injected_time: settings.uses_injected_time,
            created: Instant::now(),
        };
        if store.has_joined() {
            store.start_claiming_tags();
        }
        Ok(store)
    }

    /// Starts the task that claims quota tags.
    fn start_claiming_tags(&self) {
        let (registry, client) = (Arc::clone(&self.registry), self.client.clone());
        let task = supervise(&self.runtime, "tags", move || Arc::clone(&registry).run(client.clone()));
        self.tasks.add(task);
    }

    /// Starts the task that keeps the fleet's secret in the store.
    fn start_keeping(&self, bytes: Vec<u8>) {
        let (fleet, client) = (Arc::clone(&self.fleet), self.client.clone());
        let task = supervise(&self.runtime, "secret", move || {
            maintain_secret(Arc::clone(&fleet), client.clone(), bytes.clone())
        });
        self.tasks.add(task);
    }

    /// Reads the fleet's secret from the store, waiting as long as it takes, and passes it to `rekey`. From then on
    /// charges go to the store. Only a store of [`RedisStore::start`] needs it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tollgate::Engine;
    /// # use tollgate_redis::RedisStore;
    /// let store = RedisStore::start("redis://127.0.0.1:6379".parse()?)?;
    /// let engine = Engine::builder().open("policy.yaml")?.store(store).build();
    /// engine.store().join(|secret| engine.maintenance().siblings().rekey(secret)).await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn join(&self, rekey: impl FnOnce(Secret)) {
        match self.secret() {
            Some(secret) => rekey(secret),
            None => {
                let bytes = learn_secret(&self.client).await;
                self.registry.clear_queue(); // The queued families were hashed with a local secret.
                rekey(secret_of(&bytes));
                self.start_claiming_tags();
                self.start_keeping(bytes);
            }
        }
        // Release: a thread that reads true also sees what `rekey` wrote.
        self.has_joined.store(true, Ordering::Release);
    }

    /// Whether the fleet's secret is known, so that charges go to the store.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    /// Whether the fleet has agreed on the tags of all policies activated so far.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.has_joined() && self.registry.is_prepared()
    }

    /// Prepares every shard for the first decision: connects it and loads the script, so that an initial burst misses
    /// no deadline. Returns whether all shards are ready, after `timeout` at the latest.
    pub async fn warm(&self, timeout: Duration) -> bool {
        self.client.warm(Instant::now() + timeout).await
    }

    /// Removes this node's signature. Call it when the process shuts down.
    pub async fn leave(&self) {
        self.tasks.end();
        self.fleet.leave(&self.client).await;
        if shared_state::leave(&self.client, self.fleet.name()).await.is_err() {
            tracing::debug!("this node could not be taken off the list of nodes; it will expire");
        }
    }

    /// The id of this node, which is random and new with each start.
    #[must_use]
    pub fn node_id(&self) -> &str {
        self.fleet.name()
    }

    /// Writes items for the other nodes, and reads theirs. It waits a quarter of a second at most.
    ///
    /// # Errors
    /// When the store does not answer. What was to be written was perhaps written.
    pub async fn exchange(&self, exchange: &FleetExchange) -> Result<FleetNews, ReplyClass> {
        let answered = shared_state::exchange(&self.client, self.fleet.name(), exchange).await;
        answered.map_err(|failure| failure.class)
    }

    /// The state and the counters of the store.
    #[must_use]
    pub fn report(&self) -> Report {
        let has_other_secret = self.fleet.has_other_secret();
        Report { has_other_secret, ..self.client.report(self.fleet.count(), self.corrections.waiting()) }
    }

    /// The number of nodes that share the store, counted or configured; 0 while it is unknown.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.fleet.count()
    }

    /// Runs an operation on charges whose keys share a slot.
    async fn run(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Answers, StoreFailure> {
        let mut request = ScriptRequest::new(operation, charges, now);
        match self.send_until_answered(&mut request, charges, now, deadline).await? {
            ScriptResponse::Answers(answers) => Ok(answers),
            _ => Ok(Answers::new()),
        }
    }

    /// Sends a request until it is answered.
    async fn send_until_answered(
        &self,
        request: &mut ScriptRequest<'_>,
        charges: &[Charge<'_>],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<ScriptResponse, StoreFailure> {
        loop {
            let encoded = match request.encode() {
                Err(Problem::Untagged) => {
                    self.tag(charges, deadline).await?;
                    request.encode()
                }
                encoded => encoded,
            };
            let encoded = encoded.map_err(|problem| failed(&problem))?;
            let pending = self.client.submit(encoded, self.time(now), deadline).map_err(unanswered)?;
            let value = pending.answer().await.map_err(unanswered)?;
            match request.interpret(&value) {
                response @ (ScriptResponse::Answers(_) | ScriptResponse::Lent(_) | ScriptResponse::Done) => {
                    return Ok(response);
                }
                ScriptResponse::Resend => {}
                ScriptResponse::LookUpTag(index, tag) => {
                    let quota = self.look_up(&charges[index], tag, deadline).await?;
                    request.provide_quota(index, tag, quota.as_ref());
                }
                ScriptResponse::Problem(problem) => return Err(failed(&problem)),
            }
        }
    }

    /// Waits for missing quota tags.
    async fn tag(&self, charges: &[Charge<'_>], deadline: Instant) -> Result<(), StoreFailure> {
        let untagged = charges.iter().filter(|charge| tag_of(charge).is_none()).map(Charge::family);
        self.registry.tag(&self.client, untagged, deadline).await.map_err(unreachable)
    }

    /// Reads the quota of a tag that this node does not have.
    async fn look_up(
        &self,
        charge: &Charge<'_>,
        tag: Tag,
        deadline: Instant,
    ) -> Result<Option<Quota>, StoreFailure> {
        self.registry.look_up(&self.client, charge.family(), tag, deadline).await.map_err(unreachable)
    }

    const fn time(&self, now: Timestamp) -> InjectedTime {
        if self.uses_injected_time { Some(now) } else { None }
    }

    fn is_ready(&self, charges: &[Charge<'_>]) -> Result<bool, StoreFailure> {
        if !self.has_joined() {
            return Err(StoreFailure::Unreachable);
        }
        Ok(!charges.is_empty())
    }

    /// Runs an operation on every counter, one call per slot.
    async fn correct(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        if !self.is_ready(charges)? {
            return Ok(());
        }
        // A deferred charge precedes a decision on the same key, which waits for it.
        let timeout =
            if operation == Operation::Debit { self.deadline } else { CORRECTION.max(self.deadline) };
        let deadline = Instant::now() + timeout;
        if !self.client.is_cluster() {
            return self.run(operation, charges, now, deadline).await.map(drop);
        }
        self.correct_across_slots(operation, charges, now, deadline).await
    }
}

impl Store for RedisStore {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        if !self.is_ready(charges)? {
            return Ok(Answers::new());
        }
        let deadline = Instant::now() + self.deadline;
        if !self.client.is_cluster() || share_a_slot(charges) {
            return self.run(Operation::Charge, charges, now, deadline).await;
        }
        self.charge_across_slots(charges, now, deadline).await
    }

    /// The secret that was configured, or that [`RedisStore::connect`] learnt.
    fn secret(&self) -> Option<Secret> {
        self.secret.as_deref().map(secret_of)
    }

    fn is_grouped(&self) -> bool {
        self.client.is_cluster()
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        if self.uses_injected_time {
            return self.correct(Operation::Refund, charges, now).await;
        }
        // The server counts an age back from when it gets the refund.
        let way = Ticks::ceil_from(CORRECTION.max(self.deadline));
        let charges: SmallVec<[Charge<'_>; 6]> = charges.iter().map(|charge| charge.later(way)).collect();
        self.correct(Operation::Refund, &charges, now).await
    }

    async fn renew(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.correct(Operation::Renew, charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.correct(Operation::Reset, charges, now).await
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.correct(Operation::Debit, charges, now).await
    }

    /// Does nothing: the state's own quota sets its expiry in Redis.
    fn hold(&self, _hold: &Hold) {}

    fn gather<R>(&self, ask: impl FnOnce() -> R) -> R {
        Client::gather(ask)
    }

    fn prepare<'f>(&self, families: impl Iterator<Item = &'f Family>) {
        self.registry.prepare(families);
    }

    fn nodes(&self) -> u32 {
        self.fleet.count()
    }

    fn away_for(&self, charge: &Charge<'_>, _now: Timestamp) -> Option<Ticks> {
        let now = Instant::now();
        let away = match self.has_joined() {
            true => self.client.away_for(Key::of(charge).slot(), now).unwrap_or_default(),
            false => now.saturating_duration_since(self.created),
        };
        Some(Ticks::ceil_from(away))
    }

    fn is_away(&self, charge: &Charge<'_>) -> bool {
        !self.has_joined() || self.client.is_away(Key::of(charge).slot())
    }
}

fn share_a_slot(charges: &[Charge<'_>]) -> bool {
    let mut slots = charges.iter().map(|charge| Key::of(charge).slot());
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}

/// The caller must know whether the charge may have been executed.
fn unanswered(failure: Failure) -> StoreFailure {
    if failure.may_have_run { StoreFailure::Unanswered } else { StoreFailure::Unreachable }
}

/// A lookup before the charge failed, so nothing was charged.
fn unreachable(_failure: Failure) -> StoreFailure {
    StoreFailure::Unreachable
}

fn failed(problem: &Problem) -> StoreFailure {
    tracing::warn!(%problem, "the store did not decide a request");
    match problem {
        Problem::Malformed(_) => StoreFailure::WrongKind,
        _ => StoreFailure::Unreachable,
    }
}
