//! Keeps one shard's connection: makes it, listens to its heart, makes it anew, and probes when the breaker asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, interval, sleep, timeout};

use super::class::Class;
use super::find::Finder;
use super::luck::luck;
use super::shard::{Shard, Standing};
use super::tally::Tally;
use super::wire::{ConnectFailure, Wire};
use crate::breaker::{BreakerState, Severity, fraction};
use crate::key::Key;

/// Pauses between attempts to connect: they double, and chance shortens them.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_millis(750);
/// The longest pause where somebody answers, but not as a primary that is ready.
const PAUSE_UNREADY: Duration = Duration::from_millis(200);
/// The pause after a refusal that only an operator can cure.
const PAUSE_REFUSED: Duration = Duration::from_secs(10);
/// How often it is looked in the meantime whether the password's file has another password.
const PASSWORD_EVERY: Duration = Duration::from_millis(500);
/// A connection that lasted so long was a good one.
const GOOD: Duration = Duration::from_secs(1);
/// How often the connection is looked after.
const TICK: Duration = Duration::from_millis(20);
/// A connection that was silent for so long is asked whether it lives, whether requests are under way or not.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// How long it may take to answer, at least.
const PULSE: Duration = Duration::from_millis(75);
/// Answers missed in a row that open the breaker. With the silence before and the looks between it is known within 300 ms; one alone may
/// be missed because this process stood still.
const MISSES: u32 = 2;
/// How long what a probe writes stays.
const PROBE_MILLIS: u32 = 5_000;
/// It writes from a script, as decisions do: a ping would not notice a store that refuses that.
const PROBE: &str = "return redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])";

/// What a keeper needs besides its shard.
pub(super) struct Keeper {
    pub(super) shard: Arc<Shard>,
    pub(super) finder: Finder,
    pub(super) tally: Arc<Tally>,
    /// Told when the cluster may have changed.
    pub(super) stale: Arc<Notify>,
    pub(super) deadline: Duration,
}

impl Keeper {
    pub(super) async fn keep(self: Arc<Self>) {
        let shard = &self.shard;
        let mut pause = Duration::ZERO;
        loop {
            shard.standing.send_replace(Standing::Connecting);
            let waits = match self.finder.connect().await {
                Ok(wire) => {
                    let made = Instant::now();
                    self.serve(Arc::new(wire), made).await;
                    self.stale.notify_one();
                    // A connection that ends is made anew at once; one that ends again soon is not.
                    if made.elapsed() >= GOOD {
                        pause = Duration::ZERO;
                    }
                    pause.min(PAUSE_UNREADY)
                }
                Err(failure) => {
                    self.stale.notify_one();
                    self.not_connected(&failure);
                    match failure.class {
                        Class::Refused => PAUSE_REFUSED,
                        Class::NotReady | Class::ReadOnly => pause.clamp(PAUSE_FIRST, PAUSE_UNREADY),
                        _ => pause.max(PAUSE_FIRST),
                    }
                }
            };
            let jittered = fraction(waits, luck()).max(waits / 10);
            let rests = if waits == PAUSE_REFUSED { waits } else { jittered };
            // Nobody waits for a connection that is not even tried for longer than they could.
            if rests > self.deadline {
                shard.standing.send_replace(Standing::Away);
            }
            if waits == PAUSE_REFUSED {
                self.rest_refused().await
            } else {
                sleep(rests).await
            }
            pause = (pause * 2).clamp(PAUSE_FIRST, PAUSE_MOST);
        }
    }

    /// Rests after a refusal, until an operator may have cured it: at once where the password's file has another password.
    async fn rest_refused(&self) {
        let Some(password) = self.finder.password() else { return sleep(PAUSE_REFUSED).await };
        let (until, refused) = (Instant::now() + PAUSE_REFUSED, password.known());
        while Instant::now() < until && password.now().await == refused {
            sleep(PASSWORD_EVERY).await;
        }
    }

    fn not_connected(&self, failure: &ConnectFailure) {
        let shard = &self.shard;
        self.tally.not_connected();
        self.tally.failed(failure.class);
        // Whatever the reason, nothing can be sent.
        let severity = if failure.class == Class::Refused { Severity::Fatal } else { Severity::Trips };
        shard.breaker.failed(severity, Instant::now(), luck());
        shard.standing.send_replace(Standing::Away);
        shard.complain(failure.reason.clone());
    }

    /// Offers a connection until it is no good any more.
    async fn serve(&self, wire: Arc<Wire>, made: Instant) {
        let shard = &self.shard;
        self.tally.connected();
        if shard.breaker.state() == BreakerState::Closed {
            shard.note(None);
        }
        tracing::debug!(store = %shard.host, "connected");
        shard.breaker.connected(made);
        shard.wire.store(Some(Arc::clone(&wire)));
        shard.standing.send_replace(Standing::Connected);
        let mut ticks = interval(TICK);
        let mut misses = 0;
        loop {
            tokio::select! {
                () = wire.closed() => break,
                () = shard.doubted.notified() => {
                    if !self.is_in_use(&wire) {
                        break;
                    }
                }
                _ = ticks.tick() => {
                    misses = self.look_after(&wire, misses).await;
                    if misses >= MISSES || self.finder.has_moved().await {
                        break;
                    }
                }
            }
        }
        if self.is_in_use(&wire) {
            shard.standing.send_replace(Standing::Connecting);
            shard.wire.store(None);
        }
        wire.close();
    }

    fn is_in_use(&self, wire: &Arc<Wire>) -> bool {
        self.shard.wire.load().as_ref().is_some_and(|used| Arc::ptr_eq(used, wire))
    }

    /// One look at the connection. How many heartbeats it has missed in a row.
    async fn look_after(&self, wire: &Wire, misses: u32) -> u32 {
        let breaker = &self.shard.breaker;
        let now = Instant::now();
        let was_closed = breaker.state() == BreakerState::Closed;
        breaker.tick(now);
        if !was_closed && breaker.state() == BreakerState::Closed {
            self.shard.note(None);
            tracing::info!(store = %self.shard.host, "the store answers again");
        }
        if breaker.wants_probe(now) {
            return match self.probe(wire).await {
                Ok(()) => {
                    breaker.probed(Instant::now());
                    0
                }
                Err(class) => {
                    let severity =
                        if class.severity() == Severity::Fatal { Severity::Fatal } else { Severity::Counts };
                    breaker.failed(severity, Instant::now(), luck());
                    self.tally.failed(class);
                    self.stale.notify_one();
                    // One that was refused logs in anew, perhaps with another password.
                    let is_over = class.may_have_run() || matches!(class, Class::ReadOnly | Class::Refused);
                    if is_over { MISSES } else { 0 }
                }
            };
        }
        if breaker.state() == BreakerState::Open || wire.silent_for(now) < HEARTBEAT {
            return 0;
        }
        // Where decisions may take longer, so may this.
        match timeout(PULSE.max(self.deadline), wire.connection().send_packed_command(&redis::cmd("PING")))
            .await
        {
            // Any reply is a sign of life: what it says about decisions, they will find out.
            Ok(Ok(_)) => {
                wire.heard(Instant::now());
                0
            }
            Ok(Err(_)) => MISSES,
            Err(_) => {
                if misses + 1 >= MISSES {
                    breaker.failed(Severity::Trips, Instant::now(), luck());
                    self.tally.failed(Class::Timeout);
                }
                misses + 1
            }
        }
    }

    /// Writes what decisions would write, in a slot of this shard.
    async fn probe(&self, wire: &Wire) -> Result<(), Class> {
        let command = match u16::try_from(self.shard.group.load(Ordering::Relaxed)) {
            Ok(group) => probe(group),
            Err(_) => redis::cmd("PING"), // A node without slots has nothing to write.
        };
        let reply = timeout(self.deadline, wire.connection().send_packed_command(&command)).await;
        match reply.map_err(|_| Class::Timeout)?.map_err(|error| Class::of_error(&error))? {
            Value::ServerError(error) => Err(Class::of_reply(&error)),
            _ => {
                wire.heard(Instant::now());
                Ok(())
            }
        }
    }
}

fn probe(group: u16) -> Cmd {
    let key = Key::new(0, Some(group));
    let mut name = key.as_bytes()[..9].to_vec();
    name.extend_from_slice(b"probe");
    let mut command = redis::cmd("EVAL");
    command.arg(PROBE).arg(1).arg(name).arg(PROBE_MILLIS);
    command
}
