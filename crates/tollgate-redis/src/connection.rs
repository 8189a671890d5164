//! One connection to one node: how it is made, and whether it is still open. It neither waits nor retries by itself.

pub(crate) mod primary;
mod tls;

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

use crate::reply::ReplyClass;
use crate::settings::{Host, Login, TlsFiles};
use tollgate::policy::source::plain_cause;

/// Maximum time to connect, with name resolution, TLS and login.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// A peer that does not acknowledge data for this long is considered gone.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(1);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_TIMES: u32 = 3;
/// Messages that may wait to be written; more than a shard ever has in flight.
const WRITE_QUEUE: usize = 4_096;

/// How to log in, and whether to use TLS.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    pub(crate) login: Option<Login>,
    pub(crate) database: i64,
    pub(crate) tls: Option<TlsFiles>,
}

impl ConnectOptions {
    /// Why the password file could not be read.
    fn password_error(&self) -> Option<String> {
        self.login.as_ref().and_then(|login| login.password.read_error())
    }
}

/// Why no connection was made.
#[derive(Debug)]
pub(crate) struct ConnectFailure {
    pub(crate) class: ReplyClass,
    pub(crate) reason: String,
}

/// An open connection. It closes when the last owner drops it.
pub(crate) struct Connection {
    multiplexed: MultiplexedConnection,
    health: Arc<Health>,
    driver: AbortHandle,
}

struct Health {
    is_open: AtomicBool,
    closed: Notify,
    /// Time of the last reply, in microseconds since the connection was made.
    last_reply: AtomicU64,
    made: Instant,
}

impl Connection {
    /// Connects within the timeout.
    pub(crate) async fn connect(host: &Host, options: &ConnectOptions) -> Result<Self, ConnectFailure> {
        match timeout(CONNECT_TIMEOUT, Self::connect_untimed(host, options)).await {
            Ok(result) => result,
            Err(_) => Err(ConnectFailure {
                class: ReplyClass::NoConnection,
                reason: format!("no connection within {} ms", CONNECT_TIMEOUT.as_millis()),
            }),
        }
    }

    async fn connect_untimed(host: &Host, options: &ConnectOptions) -> Result<Self, ConnectFailure> {
        let stream = open_tcp(host).await.map_err(|error| tcp_failure(&error))?;
        match &options.tls {
            Some(files) => {
                let stream =
                    tls::connect(stream, &host.name, files).await.map_err(|error| tls_failure(&error))?;
                Self::log_in(stream, options).await
            }
            None => Self::log_in(stream, options).await,
        }
    }

    async fn log_in<S>(stream: S, options: &ConnectOptions) -> Result<Self, ConnectFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut login_settings = RedisConnectionInfo::default()
            .set_db(options.database)
            .set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
        if let Some(login) = &options.login {
            login_settings = login_settings.set_password(login.password.read().await);
            if let Some(user) = &login.user {
                login_settings = login_settings.set_username(user);
            }
        }
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE);
        let made = MultiplexedConnection::new_with_config(&login_settings, stream, config).await;
        let (multiplexed, driver) = made.map_err(|error| {
            let class = match ReplyClass::of_error(&error) {
                ReplyClass::Refused => ReplyClass::Refused,
                class @ ReplyClass::NotReady => class,
                _ => ReplyClass::NoConnection,
            };
            // The server's message may be logged: it never contains the password.
            let reason = match options.password_error().filter(|_| class == ReplyClass::Refused) {
                None => plain_cause(&error),
                Some(trouble) => format!("{error}; and the password file cannot be read: {trouble}"),
            };
            ConnectFailure { class, reason }
        })?;
        let (is_open, closed, last_reply) = (AtomicBool::new(true), Notify::new(), AtomicU64::new(0));
        let health = Arc::new(Health { is_open, closed, last_reply, made: Instant::now() });
        let watched = Arc::clone(&health);
        let driver = tokio::spawn(async move {
            driver.await;
            watched.close();
        });
        Ok(Self { multiplexed, health, driver: driver.abort_handle() })
    }

    pub(crate) fn multiplexed(&self) -> MultiplexedConnection {
        self.multiplexed.clone()
    }

    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: a caller that reads a stale value fails as if the connection had closed a moment later.
        self.health.is_open.load(Ordering::Relaxed)
    }

    /// Waits until the connection closes.
    pub(crate) async fn closed(&self) {
        let closed = self.health.closed.notified();
        if self.is_open() {
            closed.await;
        }
    }

    /// Closes the connection. Calls that wait for a reply on it fail.
    pub(crate) fn close(&self) {
        self.driver.abort();
        self.health.close();
    }

    /// Records that the node replied.
    pub(crate) fn mark_alive(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.health.made).as_micros();
        self.health.last_reply.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long the node has not replied.
    pub(crate) fn silent_for(&self, now: Instant) -> Duration {
        let last_reply = Duration::from_micros(self.health.last_reply.load(Ordering::Relaxed));
        now.saturating_duration_since(self.health.made + last_reply)
    }
}

impl Drop for Connection {
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

async fn open_tcp(host: &Host) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_TIMES);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(stream)
}

fn tcp_failure(error: &io::Error) -> ConnectFailure {
    ConnectFailure { class: ReplyClass::NoConnection, reason: plain_cause(error) }
}

/// A handshake that fails because the connection ended says nothing about certificates.
fn tls_failure(error: &io::Error) -> ConnectFailure {
    let ended = [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof, io::ErrorKind::BrokenPipe];
    let class = if ended.contains(&error.kind()) { ReplyClass::NoConnection } else { ReplyClass::Refused };
    ConnectFailure { class, reason: format!("TLS: {}", plain_cause(error)) }
}
