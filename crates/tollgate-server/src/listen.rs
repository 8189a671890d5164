//! Listening, the same for every protocol: how an address is bound, how many connections are allowed, and how they end.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tollgate::{Clock, Timestamp};
pub(crate) use tollgate_gateway::listen::{Phase, Stream, TimedStream};
use tollgate_gateway::listen::{Registration, end_when_deaf, show_pace};

use crate::disk::plain_cause;
use crate::log_throttle::LogThrottle;
use crate::shutdown::{Stop, stopped};
use connection_limit::ConnectionPermit;
pub(crate) use connection_limit::{ConnectionLimit, FdBudget, GatewayListener};
pub(crate) use handshake::Handshake;
pub(crate) use lingering::serve_lingering;

mod handshake;
mod connection_limit;
mod lingering;

/// How long requests in flight may take to end after the stop signal.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long to wait after the system refused a connection, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Binds an address. `flag` is the option by which the user chose it.
///
/// # Errors
/// When the address cannot be bound. The message says what to do.
pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let without = match flag {
                "--grpc" | "--resp" => format!(", or turn it off with {flag} off"),
                _ => String::new(),
            };
            format!(
                "{address} is in use by another program; stop that one, or choose another port with {flag} {}:0 (0 picks a \
                 free one){without}",
                shown(address)
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("{address}: permission denied; ports below 1024 need privileges, so choose a higher one with {flag}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{address} is not an address of this machine; choose one that is, such as {flag} 127.0.0.1:8080")
        }
        _ => format!(
            "cannot listen on {address}: {}; choose another address with {flag}",
            plain_cause(&error)
        ),
    })?;
    if let Err(error) = end_when_deaf(SockRef::from(&listener)) {
        tracing::warn!(%error, "the system does not ask silent peers on {address}: one that is gone without a word is noticed late");
    }
    if let Err(error) = show_pace(SockRef::from(&listener)) {
        tracing::warn!(%error, "the system does not show how fast peers on {address} read: slow ones may lose their connection");
    }
    Ok(listener)
}

fn shown(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

/// Serves connections until `stop` turns true, then waits for requests in flight. Returns how many connections were cut
/// off.
pub(crate) async fn serve<F, C>(
    listener: TcpListener,
    limit: ConnectionLimit,
    handshake: Handshake,
    clock: Clock,
    mut stop: Stop,
    connection: F,
) -> usize
where
    F: Fn(Stream, Stop) -> C + Clone + Send + 'static,
    C: Future<Output = ()> + Send + 'static,
{
    let log = AcceptLog::default();
    let late = loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break None,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(skipped) = log.refused.due(clock.now()) {
                    tracing::warn!(%error, skipped, "a connection could not be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(registration) = register(&limit, peer.ip()) else {
            log.crowded(&limit, peer.ip(), clock.now());
            reset(stream);
            continue;
        };
        let permit = match limit.try_acquire() {
            Some(permit) => Ok(permit),
            None => {
                log.full(&listener, &limit, clock.now());
                tokio::select! {
                    permit = limit.acquire_evicting() => permit,
                    () = stopped(&mut stop) => break Some((stream, registration)),
                }
            }
        };
        let Ok(permit) = permit else { break None }; // The semaphores are never closed.
        spawn((stream, registration, permit), &handshake, &stop, &connection);
    };
    // Clients that connected before the listener closed are served, even if they were not accepted yet.
    let unnoticed = waiting(listener, limit.most).into_iter().filter_map(|stream| {
        let registration = register(&limit, stream.peer_addr().ok()?.ip())?;
        Some((stream, registration))
    });
    for (stream, registration) in late.into_iter().chain(unnoticed) {
        let Some(permit) = limit.try_acquire() else { break };
        spawn((stream, registration, permit), &handshake, &stop, &connection);
    }
    // All permits are free when the last connection has ended.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, limit.permits.acquire_many(limit.most)).await;
    limit.taken()
}

/// Registers a connection with the connection limit; `None` if the peer's address has its maximum.
fn register(limit: &ConnectionLimit, peer: IpAddr) -> Option<Registration> {
    match &limit.connection_table {
        Some(connection_table) => connection_table.register(peer),
        None => Some(Registration::uncounted()),
    }
}

/// Resets a connection at once, and leaves no state of it in the system.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger(); // Where that cannot be set, the system remembers it for a while.
    drop(stream);
}

/// Serves a connection in a task of its own. The entry in the connection limit gets the task's handle, to abort it.
fn spawn<F, C>(
    (stream, registration, permit): (TcpStream, Registration, ConnectionPermit),
    handshake: &Handshake,
    stop: &Stop,
    connection: &F,
) where
    F: Fn(Stream, Stop) -> C + Clone + Send + 'static,
    C: Future<Output = ()> + Send + 'static,
{
    let activity = Arc::clone(&registration.activity);
    let served = served(stream, (registration, permit), handshake.clone(), stop.clone(), connection.clone());
    activity.is_served_by(tokio::spawn(served).abort_handle());
}

/// Serves one connection, beginning with its handshake.
async fn served<F, C>(
    stream: TcpStream,
    held: (Registration, ConnectionPermit),
    handshake: Handshake,
    stop: Stop,
    connection: F,
) where
    F: Fn(Stream, Stop) -> C,
    C: Future<Output = ()>,
{
    // Answers are small and awaited, so Nagle's algorithm is off. If that cannot be set, the connection is only slower.
    let _ = stream.set_nodelay(true);
    if let Some(stream) = handshake.accept(stream, Arc::clone(&held.0.activity), stop.clone()).await {
        connection(stream, stop).await;
    }
    drop(held);
}

/// Closes the listener. Returns the connections in its backlog, which were not accepted yet.
fn waiting(listener: TcpListener, most: u32) -> Vec<TcpStream> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    // The listener does not block: an error ends the list when the backlog is empty.
    let accepted = listener.incoming().take(most as usize).map_while(Result::ok);
    let ready = accepted.filter_map(|stream| {
        stream.set_nonblocking(true).ok()?;
        TcpStream::from_std(stream).ok()
    });
    ready.collect()
}

/// The listener's log messages, each at most once a second.
#[derive(Default)]
struct AcceptLog {
    refused: LogThrottle,
    full: LogThrottle,
    crowded: LogThrottle,
}

impl AcceptLog {
    fn full(&self, listener: &TcpListener, limit: &ConnectionLimit, now: Timestamp) {
        let Some(skipped) = self.full.due(now) else { return };
        let address = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
        let next = match limit.connection_table {
            Some(_) => "replaces an idle one, or waits until another ends",
            None => "waits until another ends",
        };
        tracing::warn!(
            address,
            open = limit.taken(),
            skipped,
            "the connection limit is reached, so the next connection {next}; with more file descriptors (ulimit -n) the limit is up to {}",
            limit.most
        );
    }

    fn crowded(&self, limit: &ConnectionLimit, peer: IpAddr, now: Timestamp) {
        let Some(skipped) = self.crowded.due(now) else { return };
        let most = limit.connection_table.as_ref().map_or(0, |connection_table| connection_table.most());
        tracing::warn!(
            %peer,
            skipped,
            "an address has {most} connections, and gets no more; if it is a proxy of yours, name it in trusted_proxies, or set \
             connections_per_address in the config"
        );
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A connection inherits from its listener the settings that end it when its peer is gone: within a minute, whether
    /// data was sent or not.
    #[tokio::test]
    async fn accepted_connections_ask() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), "--http").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (client, (accepted, _)) = (client.unwrap(), accepted.unwrap());
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().unwrap());
        let silent = socket.tcp_keepalive_time().unwrap();
        let asked = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert_eq!((silent + asked).as_secs(), 60);
        assert_eq!(socket.tcp_user_timeout().unwrap().unwrap().as_secs(), 60);
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), 64 << 10);
        assert!(!SockRef::from(&client).keepalive().unwrap(), "keepalive is off by default");
    }
}
