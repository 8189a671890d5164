//! Listening, the same for every wire: how an address is taken hold of, how many connections there may be, and how they end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};
use tollgate::Clock;

use crate::seldom::Seldom;
pub(crate) use door::Door;
pub(crate) use stream::Stream;

mod door;
mod stream;

/// Most connections at once to one listener. Further ones wait in the system's queue until one ends.
const CONNECTIONS_MAX: u32 = 10_000;
/// File descriptors that are left to files, and the share of the others that connections may take, in per cent.
const FILES_RESERVED: usize = 64;
const FILES_SHARE: usize = 80;
/// The least that connections may take however few descriptors there are.
const CONNECTIONS_MIN: usize = 8;
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
    let room = Room::new();
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
        tokio::spawn(served(stream, place, door.clone(), stop.clone(), connection.clone()));
    }
    // Whoever was connected before the door closed is served, even if nobody had taken notice yet.
    for stream in waiting(listener) {
        let Some(place) = room.place_now() else { break };
        tokio::spawn(served(stream, place, door.clone(), stop.clone(), connection.clone()));
    }
    // All places are free when the last connection has ended.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, room.places.acquire_many(CONNECTIONS_MAX)).await;
    (CONNECTIONS_MAX as usize).saturating_sub(room.places.available_permits())
}

/// One connection, from the door on.
async fn served<F, C>(stream: TcpStream, place: Place, door: Door, stop: Stop, connection: F)
where
    F: Fn(Stream, Stop) -> C,
    C: Future<Output = ()>,
{
    // Answers are small and awaited, so none of them waits to be joined by another. Where that cannot be set, it is only slower.
    let _ = stream.set_nodelay(true);
    if let Some(stream) = door.open(stream, stop.clone()).await {
        connection(stream, stop).await;
    }
    drop(place);
}

/// Places for the connections of one listener, which share the process's descriptors with those of all others.
struct Room {
    places: Arc<Semaphore>,
    files: Arc<Semaphore>,
}

/// A place taken.
type Place = [OwnedSemaphorePermit; 2];

impl Room {
    fn new() -> Self {
        static FILES: OnceLock<Arc<Semaphore>> = OnceLock::new();
        let files = FILES.get_or_init(|| {
            Arc::new(Semaphore::new(descriptors().map_or(usize::MAX, share).min(Semaphore::MAX_PERMITS)))
        });
        Self { places: Arc::new(Semaphore::new(CONNECTIONS_MAX as usize)), files: Arc::clone(files) }
    }

    /// A place, once there is one.
    async fn place(&self) -> Result<Place, AcquireError> {
        let place = Arc::clone(&self.places).acquire_owned().await?;
        Ok([place, Arc::clone(&self.files).acquire_owned().await?])
    }

    /// A place, if there is one.
    fn place_now(&self) -> Option<Place> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some([place, Arc::clone(&self.files).try_acquire_owned().ok()?])
    }
}

/// How many of so many descriptors connections may take: a snapshot or a policy must still find one to be opened with.
fn share(descriptors: usize) -> usize {
    (descriptors / 100 * FILES_SHARE + descriptors % 100 * FILES_SHARE / 100)
        .saturating_sub(FILES_RESERVED)
        .max(CONNECTIONS_MIN)
}

/// How many descriptors the system gives this process, where it says so; elsewhere the pause after a refusal has to do.
fn descriptors() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The connections that the system has made and nobody has accepted. Closes the door behind them.
fn waiting(listener: TcpListener) -> Vec<TcpStream> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    // It does not block: when there is none left it says so, and ends the list.
    let accepted = listener.incoming().take(CONNECTIONS_MAX as usize).map_while(Result::ok);
    let ready = accepted.filter_map(|stream| {
        stream.set_nonblocking(true).ok()?;
        TcpStream::from_std(stream).ok()
    });
    ready.collect()
}

/// The next connection, once there is room for it.
async fn accept(listener: &TcpListener, room: &Room) -> io::Result<(TcpStream, Place)> {
    let place = room.place().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections never take the last descriptors.
    #[test]
    fn descriptors_are_left_for_files() {
        assert_eq!(share(1_024), 755);
        assert_eq!(share(128), 38);
        assert_eq!((share(64), share(0)), (8, 8));
        assert_eq!(share(usize::MAX), usize::MAX / 100 * 80 + 12 - 64);
        assert!(descriptors().is_none_or(|descriptors| descriptors > 0));
    }
}
