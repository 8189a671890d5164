//! Locates a shard's primary: at a fixed address, or where sentinels say it is.

use std::time::Duration;

use redis::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::{ConnectFailure, ConnectOptions, Connection};
use crate::random::random;
use crate::reply::ReplyClass;
use crate::settings::{Host, Password};

/// How often sentinels are queried for the current primary.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a sentinel may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

pub(crate) enum PrimaryLocator {
    Fixed { host: Host, options: ConnectOptions },
    Sentinels(Box<Sentinels>),
}

pub(crate) struct Sentinels {
    pub(crate) hosts: Vec<Host>,
    pub(crate) service: String,
    pub(crate) options: ConnectOptions,
    /// Login and TLS of the sentinels themselves.
    pub(crate) sentinel_options: ConnectOptions,
    pub(crate) cache: Mutex<SentinelCache>,
}

/// The last answer of a sentinel.
#[derive(Default)]
pub(crate) struct SentinelCache {
    connection: Option<Connection>,
    primary: Option<Host>,
    checked_at: Option<Instant>,
}

impl PrimaryLocator {
    /// Connects to the primary.
    pub(crate) async fn connect(&self) -> Result<Connection, ConnectFailure> {
        match self {
            PrimaryLocator::Fixed { host, options } => Connection::connect(host, options).await,
            PrimaryLocator::Sentinels(sentinels) => sentinels.connect().await,
        }
    }

    /// The password that new connections log in with.
    pub(crate) fn password(&self) -> Option<&Password> {
        let options = match self {
            PrimaryLocator::Fixed { options, .. } => options,
            PrimaryLocator::Sentinels(sentinels) => &sentinels.options,
        };
        options.login.as_ref().map(|login| &login.password)
    }

    /// Whether another node is the primary now.
    pub(crate) async fn has_moved(&self) -> bool {
        match self {
            PrimaryLocator::Fixed { .. } => false,
            PrimaryLocator::Sentinels(sentinels) => sentinels.has_moved().await,
        }
    }
}

impl Sentinels {
    async fn connect(&self) -> Result<Connection, ConnectFailure> {
        let mut cache = self.cache.lock().await;
        let primary = self.query(&mut cache).await?;
        let connection = Connection::connect(&primary, &self.options).await?;
        verify_primary(&connection).await?;
        cache.primary = Some(primary);
        Ok(connection)
    }

    async fn has_moved(&self) -> bool {
        let mut cache = self.cache.lock().await;
        let now = Instant::now();
        if cache.checked_at.is_some_and(|checked_at| now < checked_at + CHECK_EVERY) {
            return false;
        }
        cache.checked_at = Some(now);
        match self.query(&mut cache).await {
            Ok(primary) => cache.primary.as_ref().is_some_and(|last| *last != primary),
            Err(_) => false, // Without sentinels the primary is still the primary.
        }
    }

    /// Queries sentinels until one names the primary.
    async fn query(&self, cache: &mut SentinelCache) -> Result<Host, ConnectFailure> {
        cache.checked_at = Some(Instant::now());
        if let Some(connection) = cache.connection.take_if(|connection| connection.is_open())
            && let Ok(primary) = self.query_one(&connection).await
        {
            cache.connection = Some(connection);
            return Ok(primary);
        }
        let first = usize::try_from(random() % self.hosts.len().max(1) as u64).unwrap_or(0);
        let mut reason = String::new();
        for host in self.hosts.iter().cycle().skip(first).take(self.hosts.len()) {
            let found = match Connection::connect(host, &self.sentinel_options).await {
                Ok(connection) => self.query_one(&connection).await.map(|primary| (connection, primary)),
                Err(failure) => Err(failure.reason),
            };
            match found {
                Ok((connection, primary)) => {
                    cache.connection = Some(connection);
                    return Ok(primary);
                }
                Err(why) => reason = format!("sentinel {host}: {why}"),
            }
        }
        Err(ConnectFailure { class: ReplyClass::NoConnection, reason })
    }

    async fn query_one(&self, connection: &Connection) -> Result<Host, String> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let reply = timeout(ANSWER_TIMEOUT, connection.multiplexed().send_packed_command(&command)).await;
        match reply.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())? {
            Value::ServerError(error) => Err(error.to_string()),
            Value::Nil => Err(format!("it watches no service `{}`", self.service)),
            value => redis::from_redis_value::<(String, u16)>(value)
                .map(|(name, port)| Host { name, port })
                .map_err(|error| error.to_string()),
        }
    }
}

/// Sentinels may name a node before it has become the primary.
async fn verify_primary(connection: &Connection) -> Result<(), ConnectFailure> {
    let failure = |class, reason: &str| Err(ConnectFailure { class, reason: reason.to_owned() });
    match timeout(ANSWER_TIMEOUT, connection.multiplexed().send_packed_command(&redis::cmd("ROLE"))).await {
        Ok(Ok(Value::Array(role))) => match role.first() {
            Some(Value::BulkString(name)) if name == b"master" => Ok(()),
            _ => failure(ReplyClass::ReadOnly, "the node that sentinels name is not yet the primary"),
        },
        // A user without permission for ROLE learns of a replica from the first write.
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => failure(ReplyClass::NoConnection, "no answer to ROLE"),
    }
}
