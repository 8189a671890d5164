//! Finding a shard's primary: at a fixed address, or where sentinels say it is.

use std::time::Duration;

use redis::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::class::Class;
use super::luck::luck;
use super::wire::{ConnectFailure, Manners, Wire};
use crate::settings::{Host, Password};

/// How often sentinels are asked whether the primary is still the same.
const LOOK: Duration = Duration::from_secs(1);
/// How long one may take to answer.
const ANSWER: Duration = Duration::from_millis(250);

pub(super) enum Finder {
    Fixed { host: Host, manners: Manners },
    Watched(Box<Sentinels>),
}

pub(super) struct Sentinels {
    pub(super) hosts: Vec<Host>,
    pub(super) service: String,
    pub(super) manners: Manners,
    /// How to speak to the sentinels themselves.
    pub(super) theirs: Manners,
    pub(super) known: Mutex<Known>,
}

/// What was learnt from a sentinel.
#[derive(Default)]
pub(super) struct Known {
    wire: Option<Wire>,
    primary: Option<Host>,
    asked: Option<Instant>,
}

impl Finder {
    /// A new connection to the primary.
    pub(super) async fn connect(&self) -> Result<Wire, ConnectFailure> {
        match self {
            Finder::Fixed { host, manners } => Wire::connect(host, manners).await,
            Finder::Watched(sentinels) => sentinels.connect().await,
        }
    }

    /// The password that new connections log in with.
    pub(super) fn password(&self) -> Option<&Password> {
        let manners = match self {
            Finder::Fixed { manners, .. } => manners,
            Finder::Watched(sentinels) => &sentinels.manners,
        };
        manners.login.as_ref().map(|login| &login.password)
    }

    /// Whether the primary is another by now.
    pub(super) async fn has_moved(&self) -> bool {
        match self {
            Finder::Fixed { .. } => false,
            Finder::Watched(sentinels) => sentinels.has_moved().await,
        }
    }
}

impl Sentinels {
    async fn connect(&self) -> Result<Wire, ConnectFailure> {
        let mut known = self.known.lock().await;
        let primary = self.ask(&mut known).await?;
        let wire = Wire::connect(&primary, &self.manners).await?;
        is_primary(&wire).await?;
        known.primary = Some(primary);
        Ok(wire)
    }

    async fn has_moved(&self) -> bool {
        let mut known = self.known.lock().await;
        let now = Instant::now();
        if known.asked.is_some_and(|asked| now < asked + LOOK) {
            return false;
        }
        known.asked = Some(now);
        match self.ask(&mut known).await {
            Ok(primary) => known.primary.as_ref().is_some_and(|last| *last != primary),
            Err(_) => false, // Without sentinels the primary is still the primary.
        }
    }

    /// Where the primary is, by the first sentinel that knows.
    async fn ask(&self, known: &mut Known) -> Result<Host, ConnectFailure> {
        known.asked = Some(Instant::now());
        if let Some(wire) = known.wire.take_if(|wire| wire.is_open())
            && let Ok(primary) = self.ask_one(&wire).await
        {
            known.wire = Some(wire);
            return Ok(primary);
        }
        let first = usize::try_from(luck() % self.hosts.len().max(1) as u64).unwrap_or(0);
        let mut reason = String::new();
        for host in self.hosts.iter().cycle().skip(first).take(self.hosts.len()) {
            let asked = match Wire::connect(host, &self.theirs).await {
                Ok(wire) => self.ask_one(&wire).await.map(|primary| (wire, primary)),
                Err(failure) => Err(failure.reason),
            };
            match asked {
                Ok((wire, primary)) => {
                    known.wire = Some(wire);
                    return Ok(primary);
                }
                Err(why) => reason = format!("sentinel {host}: {why}"),
            }
        }
        Err(ConnectFailure { class: Class::NoConnection, reason })
    }

    async fn ask_one(&self, wire: &Wire) -> Result<Host, String> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let reply = timeout(ANSWER, wire.connection().send_packed_command(&command)).await;
        match reply.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())? {
            Value::ServerError(error) => Err(error.to_string()),
            Value::Nil => Err(format!("it watches no service `{}`", self.service)),
            value => redis::from_redis_value::<(String, u16)>(value)
                .map(|(name, port)| Host { name, port })
                .map_err(|error| error.to_string()),
        }
    }
}

/// Sentinels may name a node before it knows that it is the primary.
async fn is_primary(wire: &Wire) -> Result<(), ConnectFailure> {
    let failure = |class, reason: &str| Err(ConnectFailure { class, reason: reason.to_owned() });
    match timeout(ANSWER, wire.connection().send_packed_command(&redis::cmd("ROLE"))).await {
        Ok(Ok(Value::Array(role))) => match role.first() {
            Some(Value::BulkString(name)) if name == b"master" => Ok(()),
            _ => failure(Class::ReadOnly, "the node that sentinels name is not yet the primary"),
        },
        // Who may not ask will learn it from the first write.
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => failure(Class::NoConnection, "no answer to ROLE"),
    }
}
