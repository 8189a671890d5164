//! Sends queued requests: a flush groups them into script calls, sends the calls in batches, and handles each reply.
//! Only a call that provably was not executed is resent.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::breaker::{BreakerState, Severity};
use crate::connection::Connection;
use crate::metrics::Metrics;
use crate::random::random;
use crate::reply::redirect::redirect_target;
use crate::reply::{Failure, ReplyClass};
use crate::routing::Routing;
use crate::script::InjectedTime;
use crate::settings::Host;
use crate::shard::Shard;
use crate::shard::queue::QueuedRequest;

/// A request whose deadline is nearer than this is not sent.
const SENDING_MIN: Duration = Duration::from_micros(500);
/// Maximum number of times a call is sent: the first, two redirections, and one with the script's source.
const SENDS_MAX: usize = 4;
/// How often one call follows a redirection, and how often it carries the script's source.
const REDIRECTIONS_MAX: u8 = 2;
const SCRIPT_LOADS_MAX: u8 = 2;
/// Pause before a call is resent to a slot that is migrating.
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(1);

/// Sends the requests of all shards.
pub(crate) struct Dispatcher {
    pub(crate) runtime: Handle,
    /// The script, and the hash that `EVALSHA` names it by.
    pub(crate) source: &'static str,
    pub(crate) sha: String,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) routing: Routing,
}

/// One script call: the requests of a slot or, without a cluster, all requests of a flush.
struct Call {
    slot: u16,
    time: InjectedTime,
    requests: Vec<QueuedRequest>,
    redirections: u8,
    script_loads: u8,
    has_waited: bool,
    has_reconnected: bool,
    /// Set after a call was split into single requests.
    is_single: bool,
}

/// How a call is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SendMode {
    /// After `ASKING`, to a node that is importing the slot.
    asking: bool,
    /// With the script's source, to a node that does not have the script.
    with_source: bool,
}

/// The node that a call is sent to, and how.
#[derive(Clone)]
struct Target {
    shard: Arc<Shard>,
    mode: SendMode,
}

/// Calls to one node in one message.
struct Batch {
    target: Target,
    calls: Vec<Call>,
}

/// A call to send again.
struct Resend {
    target: Target,
    call: Call,
}

/// Whether the calls of a batch may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Resendable,
    Last,
}

impl Call {
    fn new(slot: u16, request: QueuedRequest) -> Self {
        let (time, requests) = (request.time, vec![request]);
        let (has_waited, has_reconnected, is_single) = (false, false, false);
        Self {
            slot,
            time,
            requests,
            redirections: 0,
            script_loads: 0,
            has_waited,
            has_reconnected,
            is_single,
        }
    }

    fn answer(self, answers: Vec<Value>) {
        self.requests.into_iter().zip(answers).for_each(|(request, answer)| request.answer(Ok(answer)));
    }

    fn fail(self, class: ReplyClass) {
        let failure = Failure::from(class);
        self.requests.into_iter().for_each(|request| request.answer(Err(failure)));
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        crate::script::command(name, script, self.requests.iter().map(|queued| &queued.request), self.time)
    }
}

impl Target {
    fn is_same(&self, other: &Target) -> bool {
        self.mode == other.mode && Arc::ptr_eq(&self.shard, &other.shard)
    }
}

impl Dispatcher {
    /// Enqueues requests contiguously. Starts a flush if none in flight will pick them up.
    pub(crate) fn enqueue(
        self: Arc<Self>,
        shard: Arc<Shard>,
        queued: impl IntoIterator<Item = QueuedRequest>,
    ) {
        if shard.queue.push(queued) {
            self.runtime.clone().spawn(self.run_flushes(shard));
        }
    }

    /// Flushes a shard's queue until it is empty.
    async fn run_flushes(self: Arc<Self>, shard: Arc<Shard>) {
        let mut permit = shard.queue.flush_permit();
        while let Some((requests, next)) = shard.queue.next(permit) {
            permit = next;
            self.flush(&shard, requests).await;
        }
    }

    async fn flush(&self, shard: &Arc<Shard>, requests: Vec<QueuedRequest>) {
        let latest = requests.iter().map(|request| request.deadline).max();
        // Requests are claimed only once there is a connection. A caller that gives up earlier knows that its request
        // was not sent.
        let is_connected = match latest {
            Some(latest) => shard.connection(latest).await.is_some(),
            None => return,
        };
        let calls = self.calls(requests);
        if !is_connected {
            calls.into_iter().for_each(|call| self.fail_call(call, ReplyClass::NoConnection));
            return;
        }
        let target = Target { shard: Arc::clone(shard), mode: SendMode::default() };
        let mut batches = vec![Batch { target, calls }];
        for send in 1..=SENDS_MAX {
            let attempt = if send < SENDS_MAX { Attempt::Resendable } else { Attempt::Last };
            let mut resends = Vec::new();
            for batch in batches {
                self.send_batch(batch, attempt, &mut resends).await;
            }
            if resends.is_empty() {
                return;
            }
            batches = group_into_batches(resends);
        }
    }

    /// Groups requests into calls: one for each slot of a cluster, otherwise one for all.
    fn calls(&self, requests: Vec<QueuedRequest>) -> Vec<Call> {
        let earliest = Instant::now() + SENDING_MIN;
        let is_cluster = self.routing.is_cluster();
        let mut calls: Vec<Call> = Vec::new();
        for request in requests.into_iter().filter_map(QueuedRequest::claim) {
            if request.deadline < earliest {
                self.metrics.record_failure(ReplyClass::Late);
                request.answer(Err(ReplyClass::Late.into()));
                continue;
            }
            let slot = request.request.slot();
            let fits = |call: &&mut Call| call.time == request.time && (!is_cluster || call.slot == slot);
            match calls.iter_mut().find(fits) {
                Some(call) => call.requests.push(request),
                None => calls.push(Call::new(slot, request)),
            }
        }
        calls
    }

    async fn send_batch(&self, batch: Batch, attempt: Attempt, resends: &mut Vec<Resend>) {
        let Batch { target, mut calls } = batch;
        let shard = &target.shard;
        let Some(deadline) = calls.iter().flat_map(|call| &call.requests).map(|one| one.deadline).max()
        else {
            return;
        };
        let Some(connection) = shard.connection(deadline).await else {
            calls.into_iter().for_each(|call| self.fail_call(call, ReplyClass::NoConnection));
            return;
        };
        let began = Instant::now();
        let replies = self.send(&connection, target.mode, &calls, deadline).await;
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        match replies {
            Ok(replies) => {
                connection.mark_alive(now);
                self.metrics.record_latency(took, calls.len());
                let mut worst = Severity::None;
                for (call, reply) in calls.drain(..).zip(replies) {
                    let severity = self.handle_reply(&target, call, reply, attempt, resends).await;
                    worst = worst_of(worst, severity);
                }
                match worst {
                    Severity::None => shard.breaker.succeeded(took, now, random()),
                    severity => shard.breaker.failed(severity, now, random()),
                }
            }
            Err(class) => {
                shard.breaker.failed(class.severity(), now, random());
                // A single slow answer does not cost the connection. Any other failure does, and so does a timeout
                // that opened the breaker.
                if class != ReplyClass::Timeout || shard.breaker.state() == BreakerState::Open {
                    shard.disconnect();
                    self.routing.request_refresh();
                }
                calls.into_iter().for_each(|call| self.fail_call(call, class));
            }
        }
    }

    /// Sends all calls in one message. An error fails all of them.
    async fn send(
        &self,
        connection: &Connection,
        mode: SendMode,
        calls: &[Call],
        deadline: Instant,
    ) -> Result<Vec<Value>, ReplyClass> {
        calls.iter().for_each(|call| self.metrics.record_call(call.requests.len()));
        let mut multiplexed = connection.multiplexed();
        let replies = match calls {
            // A single command needs no pipeline.
            [call] if mode == SendMode::default() => {
                let command = call.command("EVALSHA", &self.sha);
                let reply = timeout_at(deadline, multiplexed.send_packed_command(&command)).await;
                reply.map(|reply| reply.map(|one| vec![one]))
            }
            _ => {
                let message = self.message(mode, calls);
                timeout_at(deadline, multiplexed.send_packed_commands(&message, 0, message.len())).await
            }
        };
        let replies =
            replies.map_err(|_| ReplyClass::Timeout)?.map_err(|error| ReplyClass::of_error(&error))?;
        let each = if mode.asking { 2 } else { 1 }; // The first of two replies answers ASKING.
        if replies.len() != calls.len() * each {
            return Err(ReplyClass::Malformed);
        }
        Ok(replies.into_iter().skip(each - 1).step_by(each).collect())
    }

    fn message(&self, mode: SendMode, calls: &[Call]) -> Pipeline {
        let mut message = Pipeline::with_capacity(calls.len() * 2);
        for (position, call) in calls.iter().enumerate() {
            if mode.asking {
                message.cmd("ASKING");
            }
            // The first call loads the script for those that follow.
            message.add_command(match mode.with_source && position == 0 {
                true => call.command("EVAL", self.source),
                false => call.command("EVALSHA", &self.sha),
            });
        }
        message
    }

    /// Answers the requests of a call, resends it, or fails it. Returns what the reply says about the shard.
    async fn handle_reply(
        &self,
        target: &Target,
        mut call: Call,
        reply: Value,
        attempt: Attempt,
        resends: &mut Vec<Resend>,
    ) -> Severity {
        let (class, details) = match reply {
            Value::Array(answers) if answers.len() == call.requests.len() => {
                call.answer(answers);
                return Severity::None;
            }
            Value::ServerError(error) => {
                (ReplyClass::of_reply(&error), error.details().unwrap_or_default().to_owned())
            }
            _ => (ReplyClass::Malformed, String::new()),
        };
        if attempt == Attempt::Resendable {
            call = match self.resend(target, call, class, &details, resends).await {
                Ok(severity) => return severity,
                Err(call) => call,
            };
        }
        match class {
            ReplyClass::Moved | ReplyClass::CrossSlot => self.report_misconfiguration(&target.shard, class),
            _ if class.severity() != Severity::None => {
                self.routing.request_refresh();
                target.shard.report_problem(format!("{} {details}", class.name()));
            }
            _ => {}
        }
        let is_redirected = matches!(class, ReplyClass::Moved | ReplyClass::Ask | ReplyClass::TryAgain);
        if self.routing.is_cluster() && is_redirected {
            self.metrics.record_unserved(call.slot, class, Instant::now());
        }
        self.fail_call(call, class);
        class.severity()
    }

    /// Schedules a call to be resent if its error proves that it was not executed and a new attempt may succeed.
    /// Otherwise gives the call back.
    async fn resend(
        &self,
        target: &Target,
        mut call: Call,
        class: ReplyClass,
        details: &str,
        resends: &mut Vec<Resend>,
    ) -> Result<Severity, Call> {
        let Target { shard, mode } = target;
        let target = match class {
            ReplyClass::Moved | ReplyClass::Ask
                if call.redirections < REDIRECTIONS_MAX && self.routing.is_cluster() =>
            {
                let Some(host) = redirect_target(details, &shard.host) else { return Err(call) };
                call.redirections += 1;
                let asking = class == ReplyClass::Ask;
                if !asking {
                    shard.clear_redirect_target();
                    self.routing.request_refresh();
                }
                Target { shard: self.routing.node_at(&host), mode: SendMode { asking, with_source: false } }
            }
            ReplyClass::NoScript if call.script_loads < SCRIPT_LOADS_MAX => {
                call.script_loads += 1;
                Target { shard: Arc::clone(shard), mode: SendMode { with_source: true, ..*mode } }
            }
            ReplyClass::TryAgain if !call.has_waited => {
                call.has_waited = true;
                sleep(TRY_AGAIN_PAUSE).await;
                target.clone()
            }
            ReplyClass::ReadOnly if !call.has_reconnected => {
                call.has_reconnected = true;
                shard.disconnect();
                self.routing.request_refresh();
                let owner = self.routing.owner(call.slot).unwrap_or_else(|| Arc::clone(shard));
                Target { shard: owner, mode: SendMode::default() }
            }
            // A key of the wrong type must fail only its own request, so each request is resent by itself.
            ReplyClass::WrongType if call.requests.len() > 1 && !call.is_single => {
                resends.extend(call.requests.into_iter().map(|request| {
                    let single = Call { is_single: true, ..Call::new(call.slot, request) };
                    Resend { target: target.clone(), call: single }
                }));
                return Ok(Severity::None);
            }
            _ => return Err(call),
        };
        self.metrics.record_failure(class);
        resends.push(Resend { target, call });
        Ok(class.severity())
    }

    fn fail_call(&self, call: Call, class: ReplyClass) {
        self.metrics.record_failure(class);
        call.fail(class);
    }

    /// The error class and the target of a reply that redirects.
    pub(crate) fn redirect(&self, reply: &Value, from: &Shard) -> Option<(ReplyClass, Host)> {
        let Value::ServerError(error) = reply else { return None };
        let class = ReplyClass::of_reply(error);
        let redirects = self.routing.is_cluster() && matches!(class, ReplyClass::Moved | ReplyClass::Ask);
        let target =
            redirect_target(error.details().unwrap_or_default(), &from.host).filter(|_| redirects)?;
        Some((class, target))
    }

    /// Reports a URL that does not fit the server.
    fn report_misconfiguration(&self, shard: &Shard, class: ReplyClass) {
        let problem = match (class, self.routing.is_cluster()) {
            (ReplyClass::Moved | ReplyClass::CrossSlot, false) => {
                "this Redis is a node of a cluster: its URL must begin with redis-cluster:// or rediss-cluster://"
            }
            (ReplyClass::CrossSlot, true) => "a call had keys of several slots; this is a bug in Tollgate",
            _ => return,
        };
        shard.report_problem(problem.to_owned());
    }
}

/// Groups calls that go to the same node in the same mode into one batch.
fn group_into_batches(resends: Vec<Resend>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for Resend { target, call } in resends {
        match batches.iter_mut().find(|batch| batch.target.is_same(&target)) {
            Some(batch) => batch.calls.push(call),
            None => batches.push(Batch { target, calls: vec![call] }),
        }
    }
    batches
}

const fn worst_of(one: Severity, other: Severity) -> Severity {
    if (one as u8) < (other as u8) { other } else { one }
}
