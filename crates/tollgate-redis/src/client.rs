//! Submits requests to the store: routing, deadlines and plain commands. Sending is left to [`crate::batch`].
//!
//! The deadline is ours: the Redis library below neither waits nor retries. A call is resent only if a reply proves
//! that it was not executed.

mod gather;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Script, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use crate::batch::Dispatcher;
use crate::breaker::BreakerState;
use crate::connection::ConnectOptions;
use crate::metrics::{Metrics, Report};
use crate::reply::{Failure, ReplyClass};
use crate::routing::Routing;
use crate::script::{EncodedRequest, InjectedTime};
use crate::settings::Settings;
use crate::shard::factory::ShardFactory;
use crate::shard::queue::{QueuedRequest, SendClaim};
use crate::shard::{InFlightPermit, Shard};

/// How often [`Client::warm`] checks whether the slot map is known.
const WARM_CHECK_EVERY: Duration = Duration::from_millis(2);
/// How often a plain command is sent at most, redirections included.
const COMMAND_SENDS_MAX: usize = 3;

/// The client of a store. Clones share everything.
#[derive(Clone)]
pub(crate) struct Client(Arc<Dispatcher>);

/// Claims a request when its caller drops it, so that it is no longer sent.
struct AbandonOnDrop(SendClaim);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// A request that was submitted and not yet answered.
pub(crate) struct PendingReply {
    abandon: AbandonOnDrop,
    answer: oneshot::Receiver<Result<Value, Failure>>,
    deadline: Instant,
    metrics: Arc<Metrics>,
    _permit: InFlightPermit,
}

impl PendingReply {
    /// Waits for the answer until the deadline.
    pub(crate) async fn answer(self) -> Result<Value, Failure> {
        match timeout_at(self.deadline, self.answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ReplyClass::Disconnected.into()),
            // The claim was still free, so the request was not sent and never will be.
            Err(_) if self.abandon.0.take() => {
                self.metrics.record_failure(ReplyClass::Late);
                Err(ReplyClass::Late.into())
            }
            Err(_) => Err(ReplyClass::Timeout.into()),
        }
    }
}

impl Client {
    /// Starts to connect in the background.
    pub(crate) fn new(settings: &Settings, source: &'static str, runtime: Handle) -> Self {
        let options = ConnectOptions {
            login: settings.login.clone(),
            database: settings.database,
            tls: settings.tls.clone(),
        };
        let metrics = Arc::new(Metrics::default());
        let factory = ShardFactory {
            runtime: runtime.clone(),
            options,
            metrics: Arc::clone(&metrics),
            stale: Arc::new(Notify::new()),
            deadline: settings.deadline,
            in_flight_max: settings.in_flight_max,
        };
        let routing = Routing::new(settings, factory);
        let sha = Script::new(source).get_hash().to_owned();
        Self(Arc::new(Dispatcher { runtime, source, sha, metrics, routing }))
    }

    /// Submits a request and waits for its answer.
    #[cfg(test)]
    pub(crate) async fn call(&self, request: EncodedRequest, deadline: Instant) -> Result<Value, Failure> {
        self.submit(request, None, deadline)?.answer().await
    }

    /// Enqueues a request. The store's clock decides; only tests inject another time.
    pub(crate) fn submit(
        &self,
        request: EncodedRequest,
        time: InjectedTime,
        deadline: Instant,
    ) -> Result<PendingReply, Failure> {
        let shard = self.shard(&request)?;
        let (queued, pending) = self.prepare(&shard, request, time, deadline)?;
        self.enqueue(shard, [queued]);
        Ok(pending)
    }

    /// Enqueues two requests for the same slot. The store decides the first before the second.
    pub(crate) fn submit_pair(
        &self,
        [first, second]: [EncodedRequest; 2],
        time: InjectedTime,
        deadline: Instant,
    ) -> Result<[PendingReply; 2], Failure> {
        let shard = self.shard(&first)?;
        let (first, pending) = self.prepare(&shard, first, time, deadline)?;
        let (second, then) = self.prepare(&shard, second, time, deadline)?;
        self.enqueue(shard, [first, second]);
        Ok([pending, then])
    }

    fn shard(&self, request: &EncodedRequest) -> Result<Arc<Shard>, Failure> {
        let slot = request.slot();
        self.0.routing.for_slot(slot).ok_or_else(|| {
            self.0.metrics.record_unserved(slot, ReplyClass::NoConnection, Instant::now());
            ReplyClass::NoConnection.into()
        })
    }

    fn prepare(
        &self,
        shard: &Arc<Shard>,
        request: EncodedRequest,
        time: InjectedTime,
        deadline: Instant,
    ) -> Result<(QueuedRequest, PendingReply), Failure> {
        let permit = shard.acquire().inspect_err(|failure| self.0.metrics.record_failure(failure.class))?;
        let (queued, claim, answer) = QueuedRequest::new(request, time, deadline);
        let (abandon, metrics) = (AbandonOnDrop(claim), Arc::clone(&self.0.metrics));
        Ok((queued, PendingReply { abandon, answer, deadline, metrics, _permit: permit }))
    }

    /// Sends a plain command to the shard of a slot, or to any shard. Plain commands are not decisions, so their
    /// results do not count in the breaker.
    pub(crate) async fn command(
        &self,
        slot: Option<u16>,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let replies = self.commands(slot, std::slice::from_ref(command), deadline).await?;
        match replies.into_iter().next().ok_or(ReplyClass::Malformed)? {
            Value::ServerError(error) => Err(ReplyClass::of_reply(&error).into()),
            reply => Ok(reply),
        }
    }

    /// Sends several commands in one message. A single reply may be a server error.
    pub(crate) async fn commands(
        &self,
        slot: Option<u16>,
        commands: &[Cmd],
        deadline: Instant,
    ) -> Result<Vec<Value>, Failure> {
        let sent = timeout_at(deadline, self.send_commands(slot, commands, deadline)).await;
        sent.unwrap_or_else(|_| Err(ReplyClass::Timeout.into()))
    }

    async fn send_commands(
        &self,
        slot: Option<u16>,
        commands: &[Cmd],
        deadline: Instant,
    ) -> Result<Vec<Value>, Failure> {
        let routing = &self.0.routing;
        let mut shard = match slot {
            Some(slot) => routing.for_slot(slot),
            None => routing.any(),
        }
        .ok_or(ReplyClass::NoConnection)?;
        let mut asking = false;
        let mut replies: Vec<Value> = commands.iter().map(|_| Value::Nil).collect();
        let mut open: Vec<usize> = (0..commands.len()).collect();
        for _ in 0..COMMAND_SENDS_MAX {
            if open.is_empty() {
                return Ok(replies);
            }
            if shard.admits_only_probes() {
                return Err(ReplyClass::Open.into());
            }
            let connection = shard.connection(deadline).await.ok_or(ReplyClass::NoConnection)?;
            let mut message = redis::Pipeline::with_capacity(2 * open.len());
            for &index in &open {
                if asking {
                    message.cmd("ASKING");
                }
                message.add_command(commands[index].clone());
            }
            let sent = connection.multiplexed().send_packed_commands(&message, 0, message.len()).await;
            let received = sent.map_err(|error| ReplyClass::of_error(&error))?;
            connection.mark_alive(Instant::now());
            if received.len() != message.len() {
                return Err(ReplyClass::Malformed.into());
            }
            let (mut redirected, mut next_target) = (Vec::new(), None);
            let received = received.into_iter().skip(usize::from(asking)).step_by(1 + usize::from(asking));
            for (index, reply) in open.into_iter().zip(received) {
                // All redirected commands follow the first target; that node redirects the others again.
                match self.0.redirect(&reply, &shard) {
                    Some(target) => {
                        next_target.get_or_insert(target);
                        redirected.push(index);
                    }
                    None => replies[index] = reply,
                }
            }
            if let Some((class, target)) = next_target {
                asking = class == ReplyClass::Ask;
                shard = routing.node_at(&target);
            }
            open = redirected;
        }
        if open.is_empty() { Ok(replies) } else { Err(ReplyClass::Moved.into()) }
    }

    /// Prepares every primary for the first decision: waits until it is connected, and loads the script. Returns
    /// whether all primaries are ready at the deadline.
    pub(crate) async fn warm(&self, deadline: Instant) -> bool {
        let routing = &self.0.routing;
        while !routing.is_known() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(WARM_CHECK_EVERY).await;
        }
        // A script call without requests changes nothing and needs no permission that decisions do not need.
        let load_script = crate::script::command("EVAL", self.0.source, std::iter::empty(), None);
        let mut all = true;
        for shard in routing.shards() {
            let Some(connection) = shard.connection(deadline).await else {
                all = false;
                continue;
            };
            let loaded =
                timeout_at(deadline, connection.multiplexed().send_packed_command(&load_script)).await;
            connection.mark_alive(Instant::now());
            all &= matches!(loaded, Ok(Ok(reply)) if !matches!(reply, Value::ServerError(_)));
        }
        all
    }

    /// Whether a command for a slot would be refused without being sent: its shard is unknown, or its breaker admits
    /// only probes.
    pub(crate) fn refuses_commands(&self, slot: u16) -> bool {
        self.0.routing.for_slot(slot).is_none_or(|shard| shard.admits_only_probes())
    }

    /// How long the shard of a slot has been failing.
    pub(crate) fn away_for(&self, slot: u16, now: Instant) -> Option<Duration> {
        self.0.routing.for_slot(slot).and_then(|shard| shard.breaker.away_for(now))
    }

    /// Whether the shard of a slot is disconnected, or its breaker is not closed.
    pub(crate) fn is_away(&self, slot: u16) -> bool {
        let is_healthy =
            |shard: Arc<Shard>| shard.is_connected() && shard.breaker.state() == BreakerState::Closed;
        !self.0.routing.for_slot(slot).is_some_and(is_healthy)
    }

    /// Whether one call may hold keys of one slot only.
    pub(crate) fn is_cluster(&self) -> bool {
        self.0.routing.is_cluster()
    }

    pub(crate) fn report(&self, nodes: u32, corrections: u64) -> Report {
        let now = Instant::now();
        let shards = self.0.routing.shards().iter().map(|shard| shard.report(now)).collect();
        self.0.metrics.report(shards, nodes, corrections)
    }
}
