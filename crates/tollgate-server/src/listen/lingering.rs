//! How a connection of hyper's HTTP/1 server ends when the server stops.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1::Connection;
use hyper::service::Service;

use super::Phase;
use crate::shutdown::{Stop, stopped};

/// How long a connection waits after the stop signal for a request that its client has sent already: even an idle
/// connection may have one on its way. The request is answered, and the answer announces that the connection closes.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a connection until either side ends it. After the stop signal, requests that were sent by then are answered.
///
/// # Errors
/// When the connection breaks.
pub(crate) async fn serve_lingering<I, S, B>(
    connection: Connection<I, S>,
    phase: &Phase,
    mut stop: Stop,
) -> hyper::Result<()>
where
    I: Read + Write + Unpin,
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => match tokio::time::timeout(LINGER, connection.as_mut()).await {
            Ok(ended) => ended,
            // A connection opened ahead of need; no client waits for an answer.
            Err(_) if !phase.is_touched() => Ok(()),
            Err(_) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        },
    }
}
