//! Connections: how many there may be, how large a request's head may be, and how they end.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::patience::{IDLE_TIMEOUT, Patient, Phase};
use super::reply::reply;
use super::service::Service;
use crate::seldom::Seldom;

/// Most connections at once. Further ones wait in the system's queue until one ends.
const CONNECTIONS_MAX: u32 = 10_000;
/// Largest head of a request, and most fields in it.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEAD_FIELDS_MAX: usize = 100;
/// How long requests in flight may take to end once the server was told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long to wait after the system refused a connection, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Takes hold of an address.
///
/// # Errors
/// When it cannot be had; the message says what to do.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "{address} is in use by another program; stop that one, or choose another port with --http {}:0 (0 picks a free one)",
            shown(address)
        ),
        io::ErrorKind::PermissionDenied => {
            format!("{address}: permission denied; ports below 1024 need privileges, so choose a higher one with --http")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{address} is not an address of this machine; choose one that is, such as --http 127.0.0.1:8080")
        }
        _ => format!("cannot listen on {address}: {error}; choose another address with --http"),
    })
}

fn shown(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

/// Answers connections until `stop` turns true, then lets requests in flight end. Tells how many were cut off.
pub(crate) async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    mut stop: watch::Receiver<bool>,
) -> usize {
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
                if let Some(skipped) = refused.due(service.now()) {
                    tracing::warn!(%error, skipped, "a connection could not be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = connection(stream, Arc::clone(&service), stop.clone());
        tokio::spawn(async move {
            connection.await;
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

/// Until the server is told to stop, which it also is when nobody is left to tell it.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(stream: TcpStream, service: Arc<Service>, mut stop: watch::Receiver<bool>) {
    // Answers are small and awaited, so none of them waits to be joined by another. Where that cannot be set, it is only slower.
    let _ = stream.set_nodelay(true);
    let phase = Arc::new(Phase::default());
    let answers = service_fn(|request| {
        let (service, answering) = (Arc::clone(&service), phase.answering());
        async move {
            let response = reply(service.answer(request).await);
            drop(answering);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The shorter patience with a head that has begun is the stream's; this one only stands behind it.
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEAD_FIELDS_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream, Arc::clone(&phase))), answers);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            if !phase.is_touched() {
                return; // A connection opened ahead of need; nobody waits for an answer.
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
