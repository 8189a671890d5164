//! Listening, the same for every wire: how an address is taken hold of, how many connections there may be, and how they end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tollgate::Clock;

use crate::seldom::Seldom;
pub(crate) use door::Door;
pub(crate) use stream::Stream;

mod door;
mod stream;

/// Most connections at once to one listener. Further ones wait in the system's queue until one ends.
const CONNECTIONS_MAX: u32 = 10_000;
/// How long requests in flight may take to end once the server was told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long to wait after the system refused a connection, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Turns true when the server is to stop; a connection then answers what is in flight, and ends.
pub(crate) type Stop = watch::Receiver<bool>;

/// Until the server is told to stop, which it also is when nobody is left to tell it.
pub(crate) async fn stopped(stop: &mut Stop) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Takes hold of an address. `flag` is the option by which the user chose it.
///
/// # Errors
/// When it cannot be had; the message says what to do.
pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "{address} is in use by another program; stop that one, or choose another port with {flag} {}:0 (0 picks a free one)",
            shown(address)
        ),
        io::ErrorKind::PermissionDenied => {
            format!("{address}: permission denied; ports below 1024 need privileges, so choose a higher one with {flag}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{address} is not an address of this machine; choose one that is, such as {flag} 127.0.0.1:8080")
        }
        _ => format!("cannot listen on {address}: {error}; choose another address with {flag}"),
    })
}

fn shown(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

/// Serves connections until `stop` turns true, then lets requests in flight end. Tells how many were cut off.
pub(crate) async fn serve<F, C>(
    listener: TcpListener,
    door: Door,
    clock: Clock,
    mut stop: Stop,
    connection: F,
) -> usize
where
    F: Fn(Stream, Stop) -> C + Clone + Send + 'static,
    C: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let refused = Seldom::default();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            () = stopped(&mut stop) => break,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(skipped) = refused.due(clock.now()) {
                    tracing::warn!(%error, skipped, "a connection could not be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Answers are small and awaited, so none of them waits to be joined by another. Where that cannot be set, it is only slower.
        let _ = stream.set_nodelay(true);
        let (door, connection, stop) = (door.clone(), connection.clone(), stop.clone());
        tokio::spawn(async move {
            if let Some(stream) = door.open(stream, stop.clone()).await {
                connection(stream, stop).await;
            }
            drop(place);
        });
    }
    drop(listener);
    // All places are free when the last connection has ended.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, room.acquire_many(CONNECTIONS_MAX)).await;
    (CONNECTIONS_MAX as usize).saturating_sub(room.available_permits())
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}
