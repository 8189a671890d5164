//! The way to the store: connections, routing, deadlines, batches, and what to do about each reply that is not an answer.
//!
//! The deadline is ours: the Redis library below neither waits nor tries again by itself. A call of which a byte may have been
//! written is never sent a second time, unless the reply proves that it was not executed.

mod call;
mod class;
mod find;
mod gather;
mod keep;
mod luck;
mod maker;
mod queue;
mod redirect;
mod shard;
mod slots;
mod tally;
mod task;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Script, Value};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate::Timestamp;

pub use class::Class;
pub(crate) use class::Failure;
use find::{Finder, Known, Sentinels};
pub(crate) use luck::luck;
use maker::Maker;
use queue::{Claim, Waiting};
use redirect::redirected;
use shard::Shard;
use slots::Cluster;
use tally::Tally;
pub use tally::{LATENCY_BOUNDS, Report, ShardReport, UnservedSlot};
pub(crate) use task::supervise;
use wire::Manners;

use crate::breaker::BreakerState;
use crate::script::Asked;
use crate::settings::{Host, Place, Settings};

/// How often a start looks whether the map of slots is known.
const WARM_EVERY: Duration = Duration::from_millis(2);
/// Where a plain command may lead before it is given up.
const COMMAND_SENDINGS: usize = 3;

/// The way to the store. Copies share everything.
#[derive(Clone)]
pub(crate) struct Link(Arc<Hub>);

struct Hub {
    runtime: Handle,
    source: &'static str,
    sha: String,
    tally: Arc<Tally>,
    routing: Routing,
}

/// Which shard has a slot.
enum Routing {
    /// There is only one.
    Single(Arc<Shard>),
    Cluster {
        cluster: Arc<Cluster>,
        keeper: AbortHandle,
    },
}

/// Gives a request up when its asker does.
struct Asker(Claim);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// The time that a test injects.
pub(crate) type Time = Option<Timestamp>;

/// A request that is lined up.
pub(crate) struct Pending {
    asker: Asker,
    answer: oneshot::Receiver<Result<Value, Failure>>,
    deadline: Instant,
    tally: Arc<Tally>,
    _place: shard::Place,
}

impl Pending {
    /// The answer, or that there is none in time.
    pub(crate) async fn answer(self) -> Result<Value, Failure> {
        match timeout_at(self.deadline, self.answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Class::Disconnected.into()),
            // Whoever is first has it: what was not sent until now never will be.
            Err(_) if self.asker.0.take() => {
                self.tally.failed(Class::Late);
                Err(Class::Late.into())
            }
            Err(_) => Err(Class::Timeout.into()),
        }
    }
}

impl Link {
    /// Starts to connect, and does not wait for it.
    pub(crate) fn new(settings: &Settings, source: &'static str, runtime: Handle) -> Self {
        let manners =
            Manners { login: settings.login.clone(), database: settings.database, tls: settings.tls.clone() };
        let tally = Arc::new(Tally::default());
        let maker = Maker {
            runtime: runtime.clone(),
            manners,
            tally: Arc::clone(&tally),
            stale: Arc::new(Notify::new()),
            deadline: settings.deadline,
            in_flight_max: settings.in_flight_max,
        };
        let routing = Routing::new(settings, maker);
        let sha = Script::new(source).get_hash().to_owned();
        Self(Arc::new(Hub { runtime, source, sha, tally, routing }))
    }

    /// Asks the script, together with whatever else is asked at the time. Answered or given up at the deadline.
    #[cfg(test)]
    pub(crate) async fn ask(&self, asked: Asked, deadline: Instant) -> Result<Value, Failure> {
        self.begin(asked, None, deadline)?.answer().await
    }

    /// Lines a request up at once. In service the store's own clock counts; only tests tell another time.
    pub(crate) fn begin(&self, asked: Asked, time: Time, deadline: Instant) -> Result<Pending, Failure> {
        let shard = self.shard(&asked)?;
        let (waiting, pending) = self.lined_up(&shard, asked, time, deadline)?;
        self.line_up(shard, [waiting]);
        Ok(pending)
    }

    /// Lines two requests for the same slot up, so that the first is decided before the second.
    pub(crate) fn begin_both(
        &self,
        [first, second]: [Asked; 2],
        time: Time,
        deadline: Instant,
    ) -> Result<[Pending; 2], Failure> {
        let shard = self.shard(&first)?;
        let (first, pending) = self.lined_up(&shard, first, time, deadline)?;
        let (second, then) = self.lined_up(&shard, second, time, deadline)?;
        self.line_up(shard, [first, second]);
        Ok([pending, then])
    }

    fn shard(&self, asked: &Asked) -> Result<Arc<Shard>, Failure> {
        let slot = asked.keys.first().map_or(0, |key| key.slot());
        self.0.routing.for_slot(slot).ok_or_else(|| {
            self.0.tally.unserved(slot, Class::NoConnection, Instant::now());
            Class::NoConnection.into()
        })
    }

    fn lined_up(
        &self,
        shard: &Arc<Shard>,
        asked: Asked,
        time: Time,
        deadline: Instant,
    ) -> Result<(Waiting, Pending), Failure> {
        let place = shard.enter().inspect_err(|failure| self.0.tally.failed(failure.class))?;
        let (waiting, claim, answer) = Waiting::new(asked, time, deadline);
        let tally = Arc::clone(&self.0.tally);
        Ok((waiting, Pending { asker: Asker(claim), answer, deadline, tally, _place: place }))
    }

    /// Sends a plain command to the shard of a slot, or to any. For what is not a decision: it has no part in the breaker.
    pub(crate) async fn command(
        &self,
        slot: Option<u16>,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let replies = self.commands(slot, std::slice::from_ref(command), deadline).await?;
        match replies.into_iter().next().ok_or(Class::Malformed)? {
            Value::ServerError(error) => Err(Class::of_reply(&error).into()),
            reply => Ok(reply),
        }
    }

    /// The same with several commands in one message. An answer may be an error of its own.
    pub(crate) async fn commands(
        &self,
        slot: Option<u16>,
        commands: &[Cmd],
        deadline: Instant,
    ) -> Result<Vec<Value>, Failure> {
        let sent = timeout_at(deadline, self.send_commands(slot, commands, deadline)).await;
        sent.unwrap_or_else(|_| Err(Class::Timeout.into()))
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
        .ok_or(Class::NoConnection)?;
        let mut asking = false;
        let mut replies: Vec<Value> = commands.iter().map(|_| Value::Nil).collect();
        let mut open: Vec<usize> = (0..commands.len()).collect();
        for _ in 0..COMMAND_SENDINGS {
            if open.is_empty() {
                return Ok(replies);
            }
            if shard.is_closed() {
                return Err(Class::Open.into());
            }
            let wire = shard.wire(deadline).await.ok_or(Class::NoConnection)?;
            let mut message = redis::Pipeline::with_capacity(2 * open.len());
            for &place in &open {
                if asking {
                    message.cmd("ASKING");
                }
                message.add_command(commands[place].clone());
            }
            let told = wire.connection().send_packed_commands(&message, 0, message.len()).await;
            let told = told.map_err(|error| Class::of_error(&error))?;
            wire.heard(Instant::now());
            if told.len() != message.len() {
                return Err(Class::Malformed.into());
            }
            let (mut elsewhere, mut led) = (Vec::new(), None);
            let told = told.into_iter().skip(usize::from(asking)).step_by(1 + usize::from(asking));
            for (place, reply) in open.into_iter().zip(told) {
                let way = self.0.way(&reply, &shard);
                // What is led to different places at once is led by the first, and there again.
                match way {
                    Some(way) => {
                        led.get_or_insert(way);
                        elsewhere.push(place);
                    }
                    None => replies[place] = reply,
                }
            }
            if let Some((class, target)) = led {
                asking = class == Class::Ask;
                shard = routing.at(&target);
            }
            open = elsewhere;
        }
        if open.is_empty() { Ok(replies) } else { Err(Class::Moved.into()) }
    }

    /// Makes every primary ready for the first decision: waits until it is known and connected, and teaches it the script. Whether all
    /// of them are, at the deadline.
    pub(crate) async fn warm(&self, deadline: Instant) -> bool {
        let routing = &self.0.routing;
        while !routing.is_known() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(WARM_EVERY).await;
        }
        // A script without requests changes nothing, and needs no right that decisions do not need.
        let lesson = crate::script::command("EVAL", self.0.source, std::iter::empty(), None);
        let mut all = true;
        for shard in routing.shards() {
            let Some(wire) = shard.wire(deadline).await else {
                all = false;
                continue;
            };
            let taught = timeout_at(deadline, wire.connection().send_packed_command(&lesson)).await;
            wire.heard(Instant::now());
            all &= matches!(taught, Ok(Ok(reply)) if !matches!(reply, Value::ServerError(_)));
        }
        all
    }

    /// Whether plain commands for a slot are not sent at this moment.
    pub(crate) fn is_closed_to(&self, slot: u16) -> bool {
        self.0.routing.for_slot(slot).is_none_or(|shard| shard.is_closed())
    }

    /// How long the shard of a slot has been failing.
    pub(crate) fn away_for(&self, slot: u16, now: Instant) -> Option<Duration> {
        self.0.routing.for_slot(slot).and_then(|shard| shard.breaker.away_for(now))
    }

    /// Whether the shard of a slot is not asked at this moment, or not always.
    pub(crate) fn is_away(&self, slot: u16) -> bool {
        let well = |shard: Arc<Shard>| shard.is_connected() && shard.breaker.state() == BreakerState::Closed;
        !self.0.routing.for_slot(slot).is_some_and(well)
    }

    /// Whether keys of different slots must not be in one call.
    pub(crate) fn is_cluster(&self) -> bool {
        self.0.is_cluster()
    }

    pub(crate) fn report(&self, nodes: u32, corrections: u64) -> Report {
        let now = Instant::now();
        let shards = self.0.routing.shards().iter().map(|shard| shard.report(now)).collect();
        self.0.tally.report(shards, nodes, corrections)
    }
}

impl Hub {
    fn is_cluster(&self) -> bool {
        matches!(self.routing, Routing::Cluster { .. })
    }

    fn luck(&self) -> u64 {
        luck()
    }

    /// Where a reply leads, if it is no answer.
    fn way(&self, reply: &Value, from: &Shard) -> Option<(Class, Host)> {
        let Value::ServerError(error) = reply else { return None };
        let class = Class::of_reply(error);
        let leads = self.is_cluster() && matches!(class, Class::Moved | Class::Ask);
        let target = redirected(error.details().unwrap_or_default(), &from.host).filter(|_| leads)?;
        Some((class, target))
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Routing::Cluster { keeper, .. } = &self.routing {
            keeper.abort();
        }
        self.routing.shards().iter().for_each(|shard| shard.retire());
    }
}

impl Routing {
    fn new(settings: &Settings, maker: Maker) -> Self {
        match settings.place() {
            Place::Bare(host) => {
                let shard = maker.shard(host.clone());
                let manners = maker.manners.clone();
                maker.keep(&shard, Finder::Fixed { host: host.clone(), manners });
                Routing::Single(shard)
            }
            Place::Sentinel { sentinels, service } => {
                let theirs = Manners {
                    login: settings.sentinel_login.clone(),
                    database: 0,
                    tls: settings.tls.clone(),
                };
                let found = Sentinels {
                    hosts: sentinels.clone(),
                    service: service.clone(),
                    manners: maker.manners.clone(),
                    theirs,
                    known: Mutex::new(Known::default()),
                };
                let shard = maker.shard(Host { name: service.clone(), port: 0 });
                maker.keep(&shard, Finder::Watched(Box::new(found)));
                Routing::Single(shard)
            }
            Place::Cluster(seeds) => {
                let runtime = maker.runtime.clone();
                let cluster = Arc::new(Cluster::new(maker, seeds.clone()));
                let kept = Arc::clone(&cluster);
                let keeper = supervise(&runtime, "slots", move || Arc::clone(&kept).keep_map());
                Routing::Cluster { cluster, keeper }
            }
        }
    }

    fn owner(&self, slot: u16) -> Option<Arc<Shard>> {
        match self {
            Routing::Single(shard) => Some(Arc::clone(shard)),
            Routing::Cluster { cluster, .. } => cluster.owner(slot),
        }
    }

    fn any(&self) -> Option<Arc<Shard>> {
        match self {
            Routing::Single(shard) => Some(Arc::clone(shard)),
            Routing::Cluster { cluster, .. } => cluster.any(),
        }
    }

    /// The shard to ask about a slot. A slot that nobody has is nobody's fault: whoever was asked would seem to be failing.
    fn for_slot(&self, slot: u16) -> Option<Arc<Shard>> {
        match self {
            Routing::Single(shard) => Some(Arc::clone(shard)),
            Routing::Cluster { cluster, .. } => match cluster.owner(slot) {
                None if !cluster.has_map() => cluster.any(),
                owner => owner,
            },
        }
    }

    fn at(&self, host: &Host) -> Arc<Shard> {
        match self {
            Routing::Single(shard) => Arc::clone(shard),
            Routing::Cluster { cluster, .. } => cluster.at(host),
        }
    }

    /// Whether it is known who has which slot.
    fn is_known(&self) -> bool {
        match self {
            Routing::Single(_) => true,
            Routing::Cluster { cluster, .. } => cluster.has_map(),
        }
    }

    /// The map of slots may be out of date.
    fn doubt(&self) {
        if let Routing::Cluster { cluster, .. } = self {
            cluster.stale.notify_one();
        }
    }

    fn shards(&self) -> Vec<Arc<Shard>> {
        match self {
            Routing::Single(shard) => vec![Arc::clone(shard)],
            Routing::Cluster { cluster, .. } => cluster.shards(),
        }
    }
}
