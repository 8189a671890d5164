//! One connection to one node: how it is made, and whether it still stands. Neither waits nor tries again by itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::class::Class;
use super::tls;
use crate::settings::{Host, Login, TlsFiles};

/// How long a connection may take to be made, name, TLS and login included.
const CONNECT: Duration = Duration::from_millis(250);
/// A peer that does not acknowledge what was sent for so long is gone.
const UNACKNOWLEDGED: Duration = Duration::from_secs(1);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_TIMES: u32 = 3;
/// Messages that wait to be written; more than a shard ever has under way.
const WRITE_QUEUE: usize = 4_096;

/// How to log in, and how to speak.
#[derive(Clone)]
pub(crate) struct Manners {
    pub(crate) login: Option<Login>,
    pub(crate) database: i64,
    pub(crate) tls: Option<TlsFiles>,
}

impl Manners {
    /// Why the password's file could not be read.
    fn password_trouble(&self) -> Option<String> {
        self.login.as_ref().and_then(|login| login.password.trouble())
    }
}

/// Why no connection was made.
#[derive(Debug)]
pub(crate) struct ConnectFailure {
    pub(crate) class: Class,
    pub(crate) reason: String,
}

/// A connection. When the last holder lets it go, it closes.
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    health: Arc<Health>,
    driver: AbortHandle,
}

struct Health {
    is_open: AtomicBool,
    closed: Notify,
    /// When it last answered, in microseconds since it was made.
    heard: AtomicU64,
    made: Instant,
}

impl Wire {
    /// Connects, at once or not at all.
    pub(crate) async fn connect(host: &Host, manners: &Manners) -> Result<Self, ConnectFailure> {
        match timeout(CONNECT, Self::connect_slowly(host, manners)).await {
            Ok(result) => result,
            Err(_) => Err(ConnectFailure {
                class: Class::NoConnection,
                reason: format!("no connection within {} ms", CONNECT.as_millis()),
            }),
        }
    }

    async fn connect_slowly(host: &Host, manners: &Manners) -> Result<Self, ConnectFailure> {
        let stream = reach(host).await.map_err(|error| unreached(&error))?;
        match &manners.tls {
            Some(files) => {
                let stream = tls::wrap(stream, &host.name, files).await.map_err(|error| untrusted(&error))?;
                Self::greet(stream, manners).await
            }
            None => Self::greet(stream, manners).await,
        }
    }

    async fn greet<S>(stream: S, manners: &Manners) -> Result<Self, ConnectFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut information = RedisConnectionInfo::default()
            .set_db(manners.database)
            .set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
        if let Some(login) = &manners.login {
            information = information.set_password(login.password.now().await);
            if let Some(user) = &login.user {
                information = information.set_username(user);
            }
        }
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE);
        let made = MultiplexedConnection::new_with_config(&information, stream, config).await;
        let (connection, driver) = made.map_err(|error| {
            let class = match Class::of_error(&error) {
                Class::Refused => Class::Refused,
                class @ Class::NotReady => class,
                _ => Class::NoConnection,
            };
            // A server's own words may be shown; they never repeat a password.
            let reason = match manners.password_trouble().filter(|_| class == Class::Refused) {
                None => error.to_string(),
                Some(trouble) => format!("{error}; and the password file cannot be read: {trouble}"),
            };
            ConnectFailure { class, reason }
        })?;
        let (is_open, closed, heard) = (AtomicBool::new(true), Notify::new(), AtomicU64::new(0));
        let health = Arc::new(Health { is_open, closed, heard, made: Instant::now() });
        let watched = Arc::clone(&health);
        let driver = tokio::spawn(async move {
            driver.await;
            watched.close();
        });
        Ok(Self { connection, health, driver: driver.abort_handle() })
    }

    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: whoever learns it too late fails as if it had closed a moment later.
        self.health.is_open.load(Ordering::Relaxed)
    }

    /// Ends when the connection does.
    pub(crate) async fn closed(&self) {
        let closed = self.health.closed.notified();
        if self.is_open() {
            closed.await;
        }
    }

    /// Ends it now: whoever waits for an answer on it has none.
    pub(crate) fn close(&self) {
        self.driver.abort();
        self.health.close();
    }

    /// It has answered.
    pub(crate) fn heard(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.health.made).as_micros();
        self.health.heard.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// For how long it has not answered.
    pub(crate) fn silent_for(&self, now: Instant) -> Duration {
        let heard = Duration::from_micros(self.health.heard.load(Ordering::Relaxed));
        now.saturating_duration_since(self.health.made + heard)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}

impl Health {
    fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.closed.notify_waiters();
    }
}

async fn reach(host: &Host) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_TIMES);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(stream)
}

fn unreached(error: &io::Error) -> ConnectFailure {
    ConnectFailure { class: Class::NoConnection, reason: error.to_string() }
}

/// A handshake that fails because the connection ended is no matter of certificates.
fn untrusted(error: &io::Error) -> ConnectFailure {
    let ended = [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof, io::ErrorKind::BrokenPipe];
    let class = if ended.contains(&error.kind()) { Class::NoConnection } else { Class::Refused };
    ConnectFailure { class, reason: format!("TLS: {error}") }
}
