//! One server under check: a separate connection, and its report about itself.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, FromRedisValue, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, TlsCertificates, Value,
};
use tollgate_redis::Host;

use super::report::{CheckFinding, Mark};
use crate::disk::plain_cause;
use crate::telemetry::Stopwatch;

/// Timeout for connecting to a server, and for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The credentials and settings for a connection.
pub(super) struct Entrance<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) password: Option<&'a str>,
    pub(super) database: i64,
    pub(super) is_secure: bool,
    pub(super) certificates: &'a TlsCertificates,
}

impl Entrance<'_> {
    /// The user, as the server names it.
    pub(super) fn user(&self) -> &str {
        self.user.unwrap_or("default")
    }

    fn client(&self, host: &Host) -> Result<Client, RedisError> {
        let (name, port) = (host.name.clone(), host.port);
        let address = match self.is_secure {
            false => ConnectionAddr::Tcp(name, port),
            true => ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None },
        };
        let mut settings = RedisConnectionInfo::default().set_db(self.database).set_skip_set_lib_name();
        settings = self.user.map_or(settings.clone(), |user| settings.set_username(user));
        settings = self.password.map_or(settings.clone(), |password| settings.set_password(password));
        let connection = address.into_connection_info()?.set_redis_settings(settings);
        match self.is_secure {
            false => Client::open(connection),
            true => Client::build_with_tls(connection, self.certificates.clone()),
        }
    }
}

/// A server that was reached.
pub(super) struct Node {
    pub(super) host: Host,
    connection: MultiplexedConnection,
    /// Its report about itself. Empty if this user may not read it.
    pub(super) about: HashMap<String, String>,
    pub(super) took: Duration,
}

impl Node {
    /// Connects.
    ///
    /// # Errors
    /// When the server is unreachable or rejects the login. The line says why, and what to do.
    pub(super) async fn reach(host: &Host, entrance: &Entrance<'_>) -> Result<Self, CheckFinding> {
        let refused = |error: &RedisError| unreachable(host, entrance, error);
        let client = entrance.client(host).map_err(|error| refused(&error))?;
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let watch = Stopwatch::start();
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&settings)
            .await
            .map_err(|error| refused(&error))?;
        // A server that requires a password accepts a connection, but answers no command.
        let greeted: Result<Value, _> = redis::cmd("PING").query_async(&mut connection).await;
        if let Err(error) = greeted
            && error.code() != Some("NOPERM")
        {
            return Err(refused(&error));
        }
        let took = watch.elapsed();
        let mut node = Self { host: host.clone(), connection, about: HashMap::new(), took };
        if let Ok(text) = node.ask::<String>(&redis::cmd("INFO")).await {
            node.about = fields(&text);
        }
        Ok(node)
    }

    /// Sends a command.
    pub(super) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// Sends a command whose answer does not matter.
    pub(super) async fn does(&self, command: &Cmd) -> Result<(), RedisError> {
        self.ask::<Value>(command).await.map(drop)
    }

    /// A setting, if this user may read it.
    pub(super) async fn setting(&self, name: &str) -> Option<String> {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg(name);
        let pair: Vec<String> = self.ask(&command).await.ok()?;
        pair.into_iter().nth(1)
    }

    /// A field of its report about itself.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.about.get(name).map(String::as_str)
    }
}

/// Parses lines such as `name:value`.
pub(super) fn fields(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The text of an error without possible secrets: the text of a server's own error, or the kind.
pub(super) fn error_text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => plain_cause(error),
    }
}

/// Why the login failed.
fn unreachable(host: &Host, entrance: &Entrance<'_>, error: &RedisError) -> CheckFinding {
    let text = error_text(error);
    let has = |part: &str| text.contains(part);
    let fail = |found: String| CheckFinding::new(Mark::Fail, "reach", found);
    let user = entrance.user();
    if error.is_connection_refusal() {
        return fail(format!("{host} refuses connections"))
            .cured_by("see whether it runs, and whether `bind` and `port` in its configuration are what the address says");
    }
    if error.is_timeout() {
        let scheme = if entrance.is_secure {
            "whether the port speaks TLS at all (if not, write redis://)"
        } else {
            "whether the port speaks TLS (then write rediss://)"
        };
        let cure =
            format!("see whether a firewall is in between, whether the process stands still, and {scheme}");
        return fail(format!("{host} does not answer within {} s", ANSWER_TIMEOUT.as_secs())).cured_by(cure);
    }
    if has("NOAUTH") {
        return fail(format!("{host} asks for a password"))
            .cured_by("name --store-user and --store-password-file, or set TOLLGATE_STORE_PASSWORD");
    }
    if has("WRONGPASS") || has("invalid username-password") || error.kind() == ErrorKind::AuthenticationFailed
    {
        let cure = format!(
            "see whether user {user} exists and is `on` (ACL LIST), and whether the password is right"
        );
        return fail(format!("{host} does not let {user} in: wrong password, or no such user"))
            .cured_by(cure);
    }
    if has("DENIED") {
        return fail(format!("{host} is in protected mode and lets only its own machine in"))
            .cured_by("give it users with passwords (ACL SETUSER), then set protected-mode no");
    }
    if has("DB index is out of range") || has("SELECT is not allowed") {
        let database = entrance.database;
        let cure = format!(
            "name a database that it has, such as {host}/0 (CONFIG GET databases tells how many; a cluster has only 0), or raise `databases` \
             in its configuration"
        );
        return fail(format!("{host} has no database {database}")).cured_by(cure);
    }
    if has("max number of clients") {
        return fail(format!("{host} has all the clients it takes")).cured_by("raise maxclients");
    }
    if entrance.is_secure {
        return fail(format!("{host}: no TLS: {text}")).cured_by(
            "see whether the port speaks TLS, whether --store-ca has the authority of its certificate, whether the certificate names this host and is \
             in date, and whether it wants a certificate of ours (--store-cert, --store-key)",
        );
    }
    fail(format!("{host}: {text}")).cured_by("see whether the host's name can be looked up, and whether the port speaks TLS (then write rediss://)")
}
