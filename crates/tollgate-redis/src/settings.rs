//! How to reach the store: parsed once, from a URL and a few options, into valid values. Secrets are never printed.

mod password;
mod url;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use password::Password;
use password::PasswordFile;
pub use url::{Host, Topology};

/// The default deadline of a decision.
const DEADLINE_DEFAULT: Duration = Duration::from_millis(5);
const DEADLINE_MIN: Duration = Duration::from_millis(1);
const DEADLINE_MAX: Duration = Duration::from_millis(50);
const DEADLINE_PATIENT: Duration = Duration::from_secs(1);
/// The default number of requests in flight per shard.
const IN_FLIGHT_DEFAULT: usize = 512;
const IN_FLIGHT_MAX: usize = 65_536;
/// Maximum size of a fleet.
const NODES_MAX: u32 = 10_000;
/// Size of a configured secret.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 1_024;

/// How a URL with another scheme begins.
fn beginning(scheme: &str) -> String {
    match scheme {
        "" => "has no `://`".to_owned(),
        scheme => format!("begins with `{scheme}`"),
    }
}

/// An invalid setting. The message names what would be accepted and never contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The URL has an unknown scheme.
    #[error(
        "a store's URL begins with redis://, rediss://, redis-cluster://, rediss-cluster://, redis-sentinel:// or \
         rediss-sentinel://; this one {}", beginning(.0)
    )]
    Scheme(String),
    /// The host is missing or malformed.
    #[error(
        "{0}: accepted: a name, an IPv4 address or an IPv6 address in brackets, each with an optional :port, as in redis://cache.internal:6379"
    )]
    Host(String),
    /// The URL names several hosts where one is expected.
    #[error(
        "{0} names one host; for several write redis-cluster://one,two,three or redis-sentinel://one,two,three/service"
    )]
    Hosts(&'static str),
    /// The part after the hosts does not fit the scheme.
    #[error("after the hosts {0}")]
    Path(&'static str),
    /// A user name or password that is not percent-encoded UTF-8.
    #[error(
        "the user name and password of a URL must be percent-encoded UTF-8: write %40 for @, %3A for :, %2F for /"
    )]
    Login,
    /// The URL has a part after `?` or `#`.
    #[error(
        "a store's URL has no `?` or `#` part; certificates, deadline and the rest are settings of their own"
    )]
    Query,
    /// TLS files for a URL without TLS.
    #[error("certificates are only used with rediss://, rediss-cluster:// and rediss-sentinel:// URLs")]
    TlsUnused,
    /// A client certificate without its key, or the other way round.
    #[error("a client certificate and its key go together: give both files or neither")]
    TlsHalf,
    /// The password file cannot be read, or does not hold one line.
    #[error("{0}")]
    PasswordFile(String),
    /// A sentinel login for a store without sentinels.
    #[error("a login for sentinels is only used with redis-sentinel:// and rediss-sentinel:// URLs")]
    SentinelUnused,
    /// A deadline out of bounds.
    #[error("the store's deadline is {0:?}; accepted: 1 ms to 50 ms")]
    Deadline(Duration),
    /// An in-flight limit out of bounds.
    #[error("{0} requests in flight; accepted: 1 to 65536 a shard")]
    InFlight(usize),
    /// A number of nodes out of bounds.
    #[error("{0} nodes; accepted: 1 to 10000")]
    Nodes(u32),
    /// A secret that is too short or too long.
    #[error("the fleet's secret has {0} bytes; accepted: 16 to 1024 random bytes")]
    Secret(usize),
    /// Called outside a tokio runtime.
    #[error(
        "the store needs a tokio runtime with its timer and network enabled, and was created outside of one"
    )]
    NoRuntime,
}

/// Settings are settings: the conversion that [`RedisStore::connect`](crate::RedisStore::connect) needs never fails.
impl From<Infallible> for SettingsError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Why there is no connection to a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store does not answer.
    #[error("{topology} does not answer; `RedisStore::start` makes a store that connects when it can")]
    Unreachable {
        /// Where the store is, without secrets.
        topology: String,
    },
}

/// A user name and a password. Has no `Debug`, because it must not be printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Password,
}

/// The files that TLS needs. They are read for each connection, so renewed certificates need no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// CA certificates that sign the store's; the system's by default.
    pub ca: Option<PathBuf>,
    /// This node's client certificate.
    pub certificate: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
}

/// How many nodes share the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// The nodes that sign themselves in the store.
    Counted,
    /// The number that the operator configured.
    Fixed(u32),
}

/// How to reach the store, and the limits of its use.
#[derive(Clone)]
pub struct Settings {
    pub(crate) topology: Topology,
    pub(crate) login: Option<Login>,
    pub(crate) sentinel_login: Option<Login>,
    pub(crate) database: i64,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) deadline: Duration,
    pub(crate) in_flight_max: usize,
    pub(crate) nodes: Nodes,
    pub(crate) secret: Option<Vec<u8>>,
    pub(crate) uses_injected_time: bool,
}

/// Parses a URL. Everything else has its default. The error is the first problem of the URL, with what would be accepted.
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::Settings;
/// let settings = "rediss://cache.internal:6379".parse::<Settings>()?.deadline(Duration::from_millis(10))?;
/// assert!(settings.is_encrypted());
/// # Ok::<(), tollgate_redis::SettingsError>(())
/// ```
impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let parsed = url::parse(text)?;
        Ok(Self {
            topology: parsed.topology,
            login: parsed.login,
            sentinel_login: None,
            database: parsed.database,
            tls: parsed.is_encrypted.then(TlsFiles::default),
            deadline: DEADLINE_DEFAULT,
            in_flight_max: IN_FLIGHT_DEFAULT,
            nodes: Nodes::Counted,
            secret: None,
            uses_injected_time: false,
        })
    }
}

/// As its `FromStr`.
impl TryFrom<&str> for Settings {
    type Error = SettingsError;

    fn try_from(text: &str) -> Result<Self, SettingsError> {
        text.parse()
    }
}

/// As its `FromStr`.
impl TryFrom<String> for Settings {
    type Error = SettingsError;

    fn try_from(text: String) -> Result<Self, SettingsError> {
        text.parse()
    }
}

impl Settings {
    /// Sets the deadline of a decision, 1 to 50 ms.
    ///
    /// # Errors
    /// Out of these bounds.
    pub fn deadline(mut self, deadline: Duration) -> Result<Self, SettingsError> {
        if !(DEADLINE_MIN..=DEADLINE_MAX).contains(&deadline) {
            return Err(SettingsError::Deadline(deadline));
        }
        self.deadline = deadline;
        Ok(self)
    }

    /// Sets the maximum number of requests in flight per shard.
    ///
    /// # Errors
    /// Out of 1 to 65,536.
    pub fn in_flight(mut self, most: usize) -> Result<Self, SettingsError> {
        if !(1..=IN_FLIGHT_MAX).contains(&most) {
            return Err(SettingsError::InFlight(most));
        }
        self.in_flight_max = most;
        Ok(self)
    }

    /// How many nodes share the store.
    ///
    /// # Errors
    /// Out of 1 to 10,000.
    pub fn nodes(mut self, nodes: Nodes) -> Result<Self, SettingsError> {
        if let Nodes::Fixed(count) = nodes
            && !(1..=NODES_MAX).contains(&count)
        {
            return Err(SettingsError::Nodes(count));
        }
        self.nodes = nodes;
        Ok(self)
    }

    /// Logs in as this user instead of the URL's. Unlike a URL, a file or a variable does not appear in process lists.
    #[must_use]
    pub fn login(mut self, user: Option<&str>, password: &str) -> Self {
        let password = Password::Plain(password.to_owned());
        self.login = Some(Login { user: user.map(str::to_owned), password });
        self
    }

    /// Logs in with the password in a file. The file is read now and for each new connection, so that a password is
    /// rotated without a restart.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold one line.
    pub fn login_from_file(mut self, user: Option<&str>, path: &Path) -> Result<Self, SettingsError> {
        let password = Password::File(Arc::new(PasswordFile::new(path)?));
        self.login = Some(Login { user: user.map(str::to_owned), password });
        Ok(self)
    }

    /// Logs in to the sentinels as this user.
    ///
    /// # Errors
    /// The store has no sentinels.
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Result<Self, SettingsError> {
        if !matches!(self.topology, Topology::Sentinel { .. }) {
            return Err(SettingsError::SentinelUnused);
        }
        let password = Password::Plain(password.to_owned());
        self.sentinel_login = Some(Login { user: user.map(str::to_owned), password });
        Ok(self)
    }

    /// Sets the certificates for TLS.
    ///
    /// # Errors
    /// The URL does not use TLS, or half of a pair is missing.
    pub fn tls(mut self, files: TlsFiles) -> Result<Self, SettingsError> {
        if self.tls.is_none() {
            return Err(SettingsError::TlsUnused);
        }
        if files.certificate.is_some() != files.key.is_some() {
            return Err(SettingsError::TlsHalf);
        }
        self.tls = Some(files);
        Ok(self)
    }

    /// Sets the secret that hashes keys, the same on all nodes. By default the store holds one.
    ///
    /// # Errors
    /// Fewer than 16 bytes, or more than 1024.
    pub fn secret(mut self, bytes: &[u8]) -> Result<Self, SettingsError> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err(SettingsError::Secret(bytes.len()));
        }
        self.secret = Some(bytes.to_owned());
        Ok(self)
    }

    /// Decides by the `now` of each call instead of the store's clock, for tests with a virtual clock.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn injected_time(mut self) -> Self {
        self.uses_injected_time = true;
        self
    }

    /// Gives the store a second to answer, for calls that would rather wait than be decided by the share of one process:
    /// calls to a server that refuses what is above its limit.
    #[must_use]
    pub const fn patient(mut self) -> Self {
        self.deadline = DEADLINE_PATIENT;
        self
    }

    /// Sets a deadline that is longer than allowed, for tests of what is decided on a busy machine.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn long_deadline(mut self) -> Self {
        self.deadline = Duration::from_secs(5);
        self
    }

    /// Where the store is, without secrets: for logs and status pages.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The user and the password, for a separate connection to the store. Do not print them.
    #[must_use]
    pub fn credentials(&self) -> (Option<&str>, Option<String>) {
        let login = self.login.as_ref();
        (login.and_then(|login| login.user.as_deref()), login.map(|login| login.password.last_read()))
    }

    /// The database number.
    #[must_use]
    pub const fn database(&self) -> i64 {
        self.database
    }

    /// The TLS files; none without TLS.
    #[must_use]
    pub const fn tls_files(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// The deadline of a decision.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.deadline
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the connection leaves this machine unencrypted, with the password.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.tls.is_none() && !self.topology.hosts().iter().all(Host::is_loopback)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("topology", &self.topology)
            .field("has_login", &self.login.is_some())
            .field("database", &self.database)
            .field("tls", &self.tls)
            .field("deadline", &self.deadline)
            .field("in_flight_max", &self.in_flight_max)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}
