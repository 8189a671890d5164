//! Maintains one shard's connection: connects, sends heartbeats, reconnects, and probes for the breaker.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, interval, sleep, timeout};

use super::{ConnectionState, Shard};
use crate::breaker::{BreakerState, Severity, fraction};
use crate::connection::primary::PrimaryLocator;
use crate::connection::{ConnectFailure, Connection};
use crate::key::Key;
use crate::metrics::Metrics;
use crate::random::random;
use crate::reply::ReplyClass;

/// Pauses between attempts to connect. They double, with jitter.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(750);
/// Maximum pause when a node answers but is not a ready primary.
const PAUSE_UNREADY: Duration = Duration::from_millis(200);
/// The pause after a refusal that only an operator can fix.
const PAUSE_REFUSED: Duration = Duration::from_secs(10);
/// How often the password file is checked for a new password during that pause.
const PASSWORD_CHECK_EVERY: Duration = Duration::from_millis(500);
/// A connection that lasted this long was stable.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// How often the connection is maintained.
const TICK: Duration = Duration::from_millis(20);
/// A connection without replies for this long gets a heartbeat, with or without requests in flight.
const HEARTBEAT_AFTER: Duration = Duration::from_millis(100);
/// Minimum time allowed for the answer to a heartbeat.
const HEARTBEAT_TIMEOUT_MIN: Duration = Duration::from_millis(75);
/// Consecutive missed heartbeats that open the breaker. A silent connection is detected within 300 ms. One heartbeat
/// may be missed because this process was suspended.
const HEARTBEAT_MISSES_MAX: u32 = 2;
/// How long the key of a probe lives.
const PROBE_MILLIS: u32 = 5_000;
/// The probe writes from a script, as decisions do. A PING would succeed on a store that refuses writes.
const PROBE: &str = "return redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])";

/// Maintains the connection of one shard.
pub(crate) struct ConnectionSupervisor {
    pub(crate) shard: Arc<Shard>,
    pub(crate) locator: PrimaryLocator,
    pub(crate) metrics: Arc<Metrics>,
    /// Notified when the slot map may be stale.
    pub(crate) stale: Arc<Notify>,
    pub(crate) deadline: Duration,
}

impl ConnectionSupervisor {
    pub(crate) async fn run(self: Arc<Self>) {
        let shard = &self.shard;
        let mut pause = Duration::ZERO;
        loop {
            shard.state.send_replace(ConnectionState::Connecting);
            let base_pause = match self.locator.connect().await {
                Ok(connection) => {
                    let made = Instant::now();
                    self.serve(Arc::new(connection), made).await;
                    self.stale.notify_one();
                    // A stable connection that ends is replaced immediately; an unstable one is not.
                    if made.elapsed() >= STABLE_AFTER {
                        pause = Duration::ZERO;
                    }
                    pause.min(PAUSE_UNREADY)
                }
                Err(failure) => {
                    self.stale.notify_one();
                    self.record_connect_failure(&failure);
                    match failure.class {
                        ReplyClass::Refused => PAUSE_REFUSED,
                        ReplyClass::NotReady | ReplyClass::ReadOnly => {
                            pause.clamp(PAUSE_FIRST, PAUSE_UNREADY)
                        }
                        _ => pause.max(PAUSE_FIRST),
                    }
                }
            };
            let jittered = fraction(base_pause, random()).max(base_pause / 10);
            let actual_pause = if base_pause == PAUSE_REFUSED { base_pause } else { jittered };
            // Requests do not wait for a connection that is attempted only after their deadline.
            if actual_pause > self.deadline {
                shard.state.send_replace(ConnectionState::Unavailable);
            }
            if base_pause == PAUSE_REFUSED {
                self.pause_refused().await
            } else {
                sleep(actual_pause).await
            }
            pause = (pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
        }
    }

    /// Pauses after a refusal. A new password in the password file ends the pause early.
    async fn pause_refused(&self) {
        let Some(password) = self.locator.password() else { return sleep(PAUSE_REFUSED).await };
        let (until, refused) = (Instant::now() + PAUSE_REFUSED, password.last_read());
        while Instant::now() < until && password.read().await == refused {
            sleep(PASSWORD_CHECK_EVERY).await;
        }
    }

    fn record_connect_failure(&self, failure: &ConnectFailure) {
        let shard = &self.shard;
        self.metrics.record_connect_failure();
        self.metrics.record_failure(failure.class);
        // Nothing can be sent, whatever the reason.
        let severity = if failure.class == ReplyClass::Refused { Severity::Fatal } else { Severity::Trips };
        shard.breaker.failed(severity, Instant::now(), random());
        shard.state.send_replace(ConnectionState::Unavailable);
        shard.report_problem(failure.reason.clone());
    }

    /// Publishes a connection until it fails.
    async fn serve(&self, connection: Arc<Connection>, made: Instant) {
        let shard = &self.shard;
        self.metrics.record_connected();
        if shard.breaker.state() == BreakerState::Closed {
            shard.set_last_error(None);
        }
        tracing::debug!(store = %shard.host, "connected");
        shard.breaker.connected(made);
        shard.connection.store(Some(Arc::clone(&connection)));
        shard.state.send_replace(ConnectionState::Connected);
        let mut ticks = interval(TICK);
        let mut misses = 0;
        loop {
            tokio::select! {
                () = connection.closed() => break,
                () = shard.suspect.notified() => {
                    if !self.is_in_use(&connection) {
                        break;
                    }
                }
                _ = ticks.tick() => {
                    misses = self.maintain(&connection, misses).await;
                    if misses >= HEARTBEAT_MISSES_MAX || self.locator.has_moved().await {
                        break;
                    }
                }
            }
        }
        if self.is_in_use(&connection) {
            shard.state.send_replace(ConnectionState::Connecting);
            shard.connection.store(None);
        }
        connection.close();
    }

    fn is_in_use(&self, connection: &Arc<Connection>) -> bool {
        self.shard.connection.load().as_ref().is_some_and(|used| Arc::ptr_eq(used, connection))
    }

    /// Checks the connection once. Returns the number of consecutive missed heartbeats.
    async fn maintain(&self, connection: &Connection, misses: u32) -> u32 {
        let breaker = &self.shard.breaker;
        let now = Instant::now();
        let was_closed = breaker.state() == BreakerState::Closed;
        breaker.tick(now);
        if !was_closed && breaker.state() == BreakerState::Closed {
            self.shard.set_last_error(None);
            tracing::info!(store = %self.shard.host, "the store answers again");
        }
        if breaker.wants_probe(now) {
            return match self.probe(connection).await {
                Ok(()) => {
                    breaker.probed(Instant::now());
                    0
                }
                Err(class) => {
                    let severity =
                        if class.severity() == Severity::Fatal { Severity::Fatal } else { Severity::Counts };
                    breaker.failed(severity, Instant::now(), random());
                    self.metrics.record_failure(class);
                    self.stale.notify_one();
                    // A refused connection logs in again, perhaps with a new password.
                    let is_over =
                        class.may_have_run() || matches!(class, ReplyClass::ReadOnly | ReplyClass::Refused);
                    if is_over { HEARTBEAT_MISSES_MAX } else { 0 }
                }
            };
        }
        if breaker.state() == BreakerState::Open || connection.silent_for(now) < HEARTBEAT_AFTER {
            return 0;
        }
        // Heartbeats may take at least as long as decisions.
        match timeout(
            HEARTBEAT_TIMEOUT_MIN.max(self.deadline),
            connection.multiplexed().send_packed_command(&redis::cmd("PING")),
        )
        .await
        {
            // Any reply is a sign of life. Errors concern decisions, which will see them.
            Ok(Ok(_)) => {
                connection.mark_alive(Instant::now());
                0
            }
            Ok(Err(_)) => HEARTBEAT_MISSES_MAX,
            Err(_) => {
                if misses + 1 >= HEARTBEAT_MISSES_MAX {
                    breaker.failed(Severity::Trips, Instant::now(), random());
                    self.metrics.record_failure(ReplyClass::Timeout);
                }
                misses + 1
            }
        }
    }

    /// Runs a write like those of decisions, in a slot of this shard.
    async fn probe(&self, connection: &Connection) -> Result<(), ReplyClass> {
        let command = match u16::try_from(self.shard.group.load(Ordering::Relaxed)) {
            Ok(group) => probe(group),
            Err(_) => redis::cmd("PING"), // A node without slots has nothing to write.
        };
        let reply = timeout(self.deadline, connection.multiplexed().send_packed_command(&command)).await;
        match reply.map_err(|_| ReplyClass::Timeout)?.map_err(|error| ReplyClass::of_error(&error))? {
            Value::ServerError(error) => Err(ReplyClass::of_reply(&error)),
            _ => {
                connection.mark_alive(Instant::now());
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
