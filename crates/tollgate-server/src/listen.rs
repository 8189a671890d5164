//! Listening, the same for every wire: how an address is taken hold of, how many connections there may be, and how they end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tollgate::{Clock, Timestamp};

use crate::seldom::Seldom;
pub(crate) use door::Door;
use room::Place;
pub(crate) use room::{House, Links, Room, descriptors};
pub(crate) use stream::Stream;

mod door;
mod room;
mod stream;

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
    room: Room,
    door: Door,
    clock: Clock,
    mut stop: Stop,
    connection: F,
) -> usize
where
    F: Fn(Stream, Stop) -> C + Clone + Send + 'static,
    C: Future<Output = ()> + Send + 'static,
{
    let (refused, full) = (Seldom::default(), Seldom::default());
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room, || tell_full(&listener, &room, &full, clock.now())) => accepted,
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
    for stream in waiting(listener, room.most) {
        let Some(place) = room.place_now() else { break };
        tokio::spawn(served(stream, place, door.clone(), stop.clone(), connection.clone()));
    }
    // All places are free when the last connection has ended.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, room.places.acquire_many(room.most)).await;
    room.taken()
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

/// The connections that the system has made and nobody has accepted. Closes the door behind them.
fn waiting(listener: TcpListener, most: u32) -> Vec<TcpStream> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    // It does not block: when there is none left it says so, and ends the list.
    let accepted = listener.incoming().take(most as usize).map_while(Result::ok);
    let ready = accepted.filter_map(|stream| {
        stream.set_nonblocking(true).ok()?;
        TcpStream::from_std(stream).ok()
    });
    ready.collect()
}

/// The next connection, once there is room for it. Tells when there is none.
async fn accept(listener: &TcpListener, room: &Room, is_full: impl Fn()) -> io::Result<(TcpStream, Place)> {
    let place = match room.place_now() {
        Some(place) => place,
        None => {
            is_full();
            room.place().await.map_err(io::Error::other)?
        }
    };
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

fn tell_full(listener: &TcpListener, room: &Room, told: &Seldom, now: Timestamp) {
    let Some(skipped) = told.due(now) else { return };
    let address = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
    let open = room.taken();
    tracing::warn!(
        address,
        open,
        skipped,
        "no place is left for a connection, so the next one waits until another ends; with more file descriptors (ulimit -n) there \
         are up to {} places",
        room.most
    );
}
