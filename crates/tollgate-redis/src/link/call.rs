//! A round of requests: put into calls, sent, and each reply judged. Only what provably was not executed is sent again.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::class::{Class, Failure};
use super::queue::Waiting;
use super::redirect::redirected;
use super::shard::Shard;
use super::wire::Wire;
use super::{Hub, Time};
use crate::breaker::{BreakerState, Severity};

/// A request whose deadline is nearer than this is not sent.
const SENDING_MIN: Duration = Duration::from_micros(500);
/// How often a call may be sent in all: a redirection, a second one, and a lesson for the node that it leads to.
const SENDINGS_MAX: usize = 4;
/// How long to wait for a slot that is on its way.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// Requests that share a slot, or all of a round where there are no slots: one script call.
pub(super) struct Call {
    slot: u16,
    time: Time,
    requests: Vec<Waiting>,
    redirections: u8,
    lessons: u8,
    has_waited: bool,
    has_reconnected: bool,
    is_alone: bool,
}

/// How a call is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Way {
    /// After `ASKING`, to a node that only receives the slot.
    asking: bool,
    /// With the script's source, to a node that does not know it.
    teaching: bool,
}

/// Calls to one node, in one message.
struct Parcel {
    shard: Arc<Shard>,
    way: Way,
    calls: Vec<Call>,
}

/// A call that is to be sent again, where and how.
type Again = (Arc<Shard>, Way, Call);

impl Call {
    fn new(slot: u16, request: Waiting) -> Self {
        let (time, requests) = (request.time, vec![request]);
        let (has_waited, has_reconnected, is_alone) = (false, false, false);
        Self { slot, time, requests, redirections: 0, lessons: 0, has_waited, has_reconnected, is_alone }
    }

    fn fail(self, class: Class) {
        let failure = Failure::from(class);
        self.requests.into_iter().for_each(|request| request.answer(Err(failure)));
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        crate::script::command(name, script, self.requests.iter().map(|request| &request.asked), self.time)
    }
}

impl Hub {
    /// Sends what waits for a shard, round after round, until nothing does.
    pub(super) async fn run_rounds(self: Arc<Self>, shard: Arc<Shard>) {
        let mut turn = shard.queue.turn();
        while let Some((requests, next)) = shard.queue.next(turn) {
            turn = next;
            self.round(&shard, requests).await;
        }
    }

    async fn round(&self, shard: &Arc<Shard>, requests: Vec<Waiting>) {
        let latest = requests.iter().map(|request| request.deadline).max();
        // Only what has a connection is taken from its asker, so that one who gives up before knows that nothing was sent.
        let is_reached = match latest {
            Some(latest) => shard.wire(latest).await.is_some(),
            None => return,
        };
        let calls = self.calls(requests);
        if !is_reached {
            calls.into_iter().for_each(|call| self.give_up(call, Class::NoConnection));
            return;
        }
        let mut parcels = vec![Parcel { shard: Arc::clone(shard), way: Way::default(), calls }];
        for sending in 1..=SENDINGS_MAX {
            let mut again = Vec::new();
            for parcel in parcels {
                self.deliver(parcel, sending < SENDINGS_MAX, &mut again).await;
            }
            if again.is_empty() {
                return;
            }
            parcels = parcelled(again);
        }
    }

    /// The calls of a round: one for each slot of a cluster, else one for all.
    fn calls(&self, requests: Vec<Waiting>) -> Vec<Call> {
        let earliest = Instant::now() + SENDING_MIN;
        let mut calls: Vec<Call> = Vec::new();
        for request in requests.into_iter().filter_map(Waiting::claim) {
            if request.deadline < earliest {
                self.tally.failed(Class::Late);
                request.answer(Err(Class::Late.into()));
                continue;
            }
            let slot = request.asked.keys.first().map_or(0, |key| key.slot());
            let fits =
                |call: &&mut Call| call.time == request.time && (!self.is_cluster() || call.slot == slot);
            let call = calls.iter_mut().find(fits);
            match call {
                Some(call) => call.requests.push(request),
                None => calls.push(Call::new(slot, request)),
            }
        }
        calls
    }

    async fn deliver(&self, parcel: Parcel, may_repeat: bool, again: &mut Vec<Again>) {
        let Parcel { shard, way, mut calls } = parcel;
        let Some(deadline) = calls.iter().flat_map(|call| &call.requests).map(|one| one.deadline).max()
        else {
            return;
        };
        let Some(wire) = shard.wire(deadline).await else {
            calls.into_iter().for_each(|call| self.give_up(call, Class::NoConnection));
            return;
        };
        let began = Instant::now();
        let replies = self.send(&wire, way, &calls, deadline).await;
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        match replies {
            Ok(replies) => {
                wire.heard(now);
                self.tally.took(took, calls.len());
                let mut worst = Severity::None;
                for (call, reply) in calls.drain(..).zip(replies) {
                    let class = self.judge(&shard, way, call, reply, may_repeat, again).await;
                    worst = worse(worst, class.map_or(Severity::None, Class::severity));
                }
                match worst {
                    Severity::None => shard.breaker.succeeded(took, now, self.luck()),
                    severity => shard.breaker.failed(severity, now, self.luck()),
                }
            }
            Err(class) => {
                shard.breaker.failed(class.severity(), now, self.luck());
                // What hangs or babbles will not get better; a mere slow answer does not cost the connection.
                if class != Class::Timeout || shard.breaker.state() == BreakerState::Open {
                    shard.disconnect();
                    self.routing.doubt();
                }
                calls.into_iter().for_each(|call| self.give_up(call, class));
            }
        }
    }

    /// Sends all calls in one message. An error here is one of all of them.
    async fn send(
        &self,
        wire: &Wire,
        way: Way,
        calls: &[Call],
        deadline: Instant,
    ) -> Result<Vec<Value>, Class> {
        calls.iter().for_each(|call| self.tally.sent(call.requests.len()));
        let mut connection = wire.connection();
        let replies = match calls {
            // One command by itself spares the collecting.
            [call] if way == Way::default() => {
                let command = call.command("EVALSHA", &self.sha);
                let reply = timeout_at(deadline, connection.send_packed_command(&command)).await;
                reply.map(|reply| reply.map(|one| vec![one]))
            }
            _ => {
                let message = self.message(way, calls);
                timeout_at(deadline, connection.send_packed_commands(&message, 0, message.len())).await
            }
        };
        let replies = replies.map_err(|_| Class::Timeout)?.map_err(|error| Class::of_error(&error))?;
        let each = if way.asking { 2 } else { 1 }; // The first of two is the answer to ASKING.
        if replies.len() != calls.len() * each {
            return Err(Class::Malformed);
        }
        Ok(replies.into_iter().skip(each - 1).step_by(each).collect())
    }

    fn message(&self, way: Way, calls: &[Call]) -> Pipeline {
        let mut message = Pipeline::with_capacity(calls.len() * 2);
        for (position, call) in calls.iter().enumerate() {
            if way.asking {
                message.cmd("ASKING");
            }
            // The first teaches the node for all that follow.
            message.add_command(match way.teaching && position == 0 {
                true => call.command("EVAL", self.source),
                false => call.command("EVALSHA", &self.sha),
            });
        }
        message
    }

    /// Hands the answers out, or decides what to do about an error. The error's class, if it was one.
    async fn judge(
        &self,
        shard: &Arc<Shard>,
        way: Way,
        mut call: Call,
        reply: Value,
        may_repeat: bool,
        again: &mut Vec<Again>,
    ) -> Option<Class> {
        let (class, details) = match reply {
            Value::Array(answers) if answers.len() == call.requests.len() => {
                call.requests
                    .into_iter()
                    .zip(answers)
                    .for_each(|(request, answer)| request.answer(Ok(answer)));
                return None;
            }
            Value::ServerError(error) => {
                (Class::of_reply(&error), error.details().unwrap_or_default().to_owned())
            }
            _ => (Class::Malformed, String::new()),
        };
        let here = || Arc::clone(shard);
        match class {
            Class::Moved | Class::Ask if may_repeat && call.redirections < 2 && self.is_cluster() => {
                if let Some(target) = redirected(&details, &shard.host) {
                    self.tally.failed(class);
                    call.redirections += 1;
                    let asking = class == Class::Ask;
                    if !asking {
                        shard.unname();
                        self.routing.doubt();
                    }
                    again.push((self.routing.at(&target), Way { asking, teaching: false }, call));
                    return None;
                }
            }
            Class::NoScript if may_repeat && call.lessons < 2 => {
                self.tally.failed(class);
                call.lessons += 1;
                again.push((here(), Way { teaching: true, ..way }, call));
                return None;
            }
            Class::TryAgain if may_repeat && !call.has_waited => {
                self.tally.failed(class);
                call.has_waited = true;
                sleep(TRY_AGAIN).await;
                again.push((here(), way, call));
                return None;
            }
            Class::ReadOnly if may_repeat && !call.has_reconnected => {
                self.tally.failed(class);
                call.has_reconnected = true;
                shard.disconnect();
                self.routing.doubt();
                again.push((self.routing.owner(call.slot).unwrap_or_else(here), Way::default(), call));
                return Some(class);
            }
            // One key that holds what it should not must not spoil the others: each is asked for by itself.
            Class::WrongType if may_repeat && call.requests.len() > 1 && !call.is_alone => {
                for request in call.requests {
                    let single = Call { is_alone: true, ..Call::new(call.slot, request) };
                    again.push((here(), way, single));
                }
                return None;
            }
            Class::Moved | Class::CrossSlot => self.explain(shard, class),
            _ if class.severity() != Severity::None => {
                self.routing.doubt();
                shard.complain(format!("{} {details}", class.name()));
            }
            _ => {}
        }
        if self.is_cluster() && matches!(class, Class::Moved | Class::Ask | Class::TryAgain) {
            self.tally.unserved(call.slot, class, Instant::now());
        }
        self.give_up(call, class);
        Some(class)
    }

    fn give_up(&self, call: Call, class: Class) {
        self.tally.failed(class);
        call.fail(class);
    }

    /// A setting that cannot work is worth a word, once.
    fn explain(&self, shard: &Shard, class: Class) {
        let words = match (class, self.is_cluster()) {
            (Class::Moved | Class::CrossSlot, false) => {
                "this Redis is a node of a cluster: its URL must begin with redis-cluster:// or rediss-cluster://"
            }
            (Class::CrossSlot, true) => "a call had keys of several slots; this is a fault of Tollgate",
            _ => return,
        };
        shard.complain(words.to_owned());
    }
}

/// Calls that go to the same node in the same way travel together.
fn parcelled(again: Vec<Again>) -> Vec<Parcel> {
    let mut parcels: Vec<Parcel> = Vec::new();
    for (shard, way, call) in again {
        let same = |parcel: &&mut Parcel| parcel.way == way && Arc::ptr_eq(&parcel.shard, &shard);
        match parcels.iter_mut().find(same) {
            Some(parcel) => parcel.calls.push(call),
            None => parcels.push(Parcel { shard, way, calls: vec![call] }),
        }
    }
    parcels
}

const fn worse(one: Severity, other: Severity) -> Severity {
    if (one as u8) < (other as u8) { other } else { one }
}
