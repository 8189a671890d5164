//! Requests whose client has gone while an upstream works on them. The gateway closes the connection, so the upstream
//! can notice. The request's concurrency permits are held until the upstream stops, so that a client cannot get more
//! concurrent work by disconnecting.

use std::time::Duration;

use tokio::runtime::Handle;
use tollgate_tower::HeldPermits;

use crate::http1::reply::ResponseHead;
use crate::http1_client::{Http1Connection, RequestFailure};
use crate::outgoing::Outgoing;

/// A connection with a request in flight. If it is dropped before the answer, the connection is closed in an orderly
/// way.
pub(crate) struct InFlightRequest<'o> {
    connection: Option<Box<Http1Connection>>,
    outgoing: &'o Outgoing,
    timeout: Duration,
}

impl<'o> InFlightRequest<'o> {
    /// A request on a connection, with a timeout for its answer.
    pub(crate) const fn new(
        connection: Box<Http1Connection>,
        outgoing: &'o Outgoing,
        timeout: Duration,
    ) -> Self {
        Self { connection: Some(connection), outgoing, timeout }
    }

    /// Sends the request, and waits for the head of its answer. Returns the connection with it.
    ///
    /// # Errors
    /// When no answer comes.
    pub(crate) async fn ask(
        mut self,
        authority: &str,
    ) -> Result<(ResponseHead, Box<Http1Connection>), RequestFailure> {
        let gone = || RequestFailure::Unsent("there is no connection".to_owned());
        let asked = match &mut self.connection {
            Some(connection) => connection.ask(self.outgoing, authority, self.timeout).await,
            None => Err(gone()),
        };
        if asked.is_err() && self.outgoing.upload.fault().is_none() {
            self.connection = None; // The upstream has stopped, or is given up. A client that breaks off its body has gone.
        }
        let head = asked?;
        Ok((head, self.connection.take().ok_or_else(gone)?))
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|connection| connection.has_asked()) {
            leave(connection, self.outgoing.held.clone(), self.timeout);
        }
    }
}

/// Closes a connection whose upstream may still work, and holds the permits until it stops, at most for `timeout`.
/// Without permits the connection is closed at once.
pub(crate) fn leave(connection: Box<Http1Connection>, held: Option<HeldPermits>, timeout: Duration) {
    if let (Some(held), Ok(runtime)) = (held, Handle::try_current()) {
        runtime.spawn(async move {
            let _ = tokio::time::timeout(timeout, connection.leave()).await;
            drop(held);
        });
    }
}

/// Runs `sending` to its end. Where permits are held, a task runs it, even if the client goes meanwhile, at most for
/// `timeout`. This is for connections that cannot be closed in an orderly way.
pub(crate) async fn to_its_end<T: Send + 'static>(
    sending: impl Future<Output = T> + Send + 'static,
    held: Option<HeldPermits>,
    timeout: Duration,
) -> Option<T> {
    let Some(held) = held else { return Some(sending.await) };
    let sent = tokio::spawn(async move {
        let sent = tokio::time::timeout(timeout, sending).await.ok();
        drop(held);
        sent
    });
    sent.await.ok().flatten()
}
