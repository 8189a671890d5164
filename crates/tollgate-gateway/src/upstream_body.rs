//! The body of an upstream's answer. The client's task reads an HTTP/1 body itself, and the connection is returned for
//! reuse when the body ends. If the request is still being sent, a separate task does both, so that neither waits for
//! the other.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tollgate_tower::HeldPermits;

use crate::cause::BodyError;
use crate::http1::reply::ResponseDecoder;
use crate::http1_client::Http1Connection;
use crate::http2_client::StreamShare;
use crate::leaving::leave;
use crate::pool::ConnectionPool;
use crate::shares::{ShareOwner, Slot};

/// Maximum time for the rest of a request whose answer is complete.
const AFTER_THE_ANSWER: Duration = Duration::from_secs(5);

type BodyPart = Result<Frame<Bytes>, BodyError>;

/// The body of an answer.
pub(crate) enum UpstreamBody {
    /// Of HTTP/1, read directly by the task that polls the body.
    Direct(BodyReader),
    /// Of HTTP/1, read by a task of its own.
    TaskBody(TaskBody),
    /// Of HTTP/2, or of an answer to a request for a protocol upgrade.
    Incoming(Incoming),
}

/// The pool that a connection returns to after its response.
pub(crate) struct ReturnPath {
    pub(crate) pool: Arc<ConnectionPool>,
    /// The client of the request.
    pub(crate) client: ShareOwner,
    /// How long the connection may stay idle in the pool; `None` if it may not be reused.
    pub(crate) rest: Option<Duration>,
    /// Concurrency permits of the request. They are released when both the request and its answer are over.
    pub(crate) held: Option<HeldPermits>,
    /// How long the upstream may take to stop when its client has gone.
    pub(crate) timeout: Duration,
}

/// A slot at the upstream, and one of the client's share of all connections, where those are counted. Boxed because
/// that is rare.
pub(crate) type Slots = (Slot, Option<Box<Slot>>);

/// The slots of a request, and its stream on a shared connection.
pub(crate) struct RequestSlots {
    pub(crate) _slots: Slots,
    pub(crate) _stream: Option<StreamShare>,
}

/// A body, and the connection that it is read from, until it is over.
pub(crate) struct BodyReader {
    connection: Option<Box<Http1Connection>>,
    body: ResponseDecoder,
    return_path: ReturnPath,
}

/// The parts that a task has read.
pub(crate) struct TaskBody {
    /// Parts of the body, and then `None` at its end.
    parts: mpsc::Receiver<Option<BodyPart>>,
    left: Option<u64>,
    task: AbortOnDrop,
}

/// Aborts a task when its reader is dropped. A task that has sent the whole body goes on with the rest of the request.
struct AbortOnDrop(Option<AbortHandle>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl TaskBody {
    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<BodyPart>> {
        if self.task.0.is_none() {
            return Poll::Ready(None);
        }
        let received = ready!(self.parts.poll_recv(context));
        let part = received.unwrap_or_else(|| Some(Err("the upstream's answer is cut off".into())));
        if let (Some(Ok(part)), Some(left)) = (&part, &mut self.left) {
            let bytes = part.data_ref().map_or(0, Bytes::len);
            *left = left.saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
        if part.is_none() || self.left == Some(0) {
            self.task.0 = None;
        }
        Poll::Ready(part)
    }
}

impl UpstreamBody {
    /// Makes the body that follows a head.
    pub(crate) fn new(
        connection: Box<Http1Connection>,
        body: ResponseDecoder,
        return_path: ReturnPath,
    ) -> Self {
        let mut reading = BodyReader { connection: Some(connection), body, return_path };
        if reading.connection.as_ref().is_some_and(|connection| !connection.is_sent()) {
            let (send, parts) = mpsc::channel(1);
            let left = reading.body.left();
            let has_more = !reading.body.is_over();
            let task = tokio::spawn(pump(reading, send)).abort_handle();
            let task = AbortOnDrop(Some(task).filter(|_| has_more));
            return UpstreamBody::TaskBody(TaskBody { parts, left, task });
        }
        if reading.body.is_over() {
            reading.over();
        }
        UpstreamBody::Direct(reading)
    }
}

impl BodyReader {
    /// The body has ended: its connection is free for another request.
    fn over(&mut self) {
        self.return_path.held = None;
        if let (Some(connection), Some(rest)) = (self.connection.take(), self.return_path.rest) {
            self.return_path.pool.keep(connection, rest);
        }
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<BodyPart>> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
        let part = ready!(connection.poll_frame(context, &mut self.body));
        if self.body.is_over() && connection.is_sent() {
            self.over();
        }
        Poll::Ready(part.map(|part| part.map_err(Into::into)))
    }

    /// Sends as much of the request as the upstream takes.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, String> {
        self.connection.as_mut().map_or(Ok(Poll::Ready(())), |connection| connection.poll_send(context))
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| !self.body.is_over()) {
            leave(connection, self.return_path.held.take(), self.return_path.timeout);
        }
    }
}

/// Sends the rest of a request while its answer is read, and after it.
async fn pump(mut reading: BodyReader, parts: mpsc::Sender<Option<BodyPart>>) {
    let mut place = Box::pin(parts.reserve_owned());
    let mut free = None::<OwnedPermit<Option<BodyPart>>>;
    std::future::poll_fn(|context| {
        loop {
            let fault = reading.poll_send(context).err();
            if free.is_none() {
                match ready!(place.as_mut().poll(context)) {
                    Ok(permit) => free = Some(permit),
                    Err(_) => return Poll::Ready(()), // The reader is gone.
                }
            }
            let part = match fault {
                Some(fault) => Some(Err(fault.into())),
                None => ready!(reading.poll_part(context)),
            };
            let is_last = !matches!(part, Some(Ok(_)));
            match free.take() {
                Some(free) if !is_last => place.set(free.send(part).reserve_owned()),
                Some(free) => drop(free.send(part)),
                None => {}
            }
            if is_last {
                return Poll::Ready(());
            }
        }
    })
    .await;
    if !reading.body.is_over() {
        return;
    }
    // The upstream answered before it read the whole request. Send the rest for a while, and only if a slot is free
    // without a wait. The answer has released its own slot.
    let Some(_slot) = reading.return_path.pool.free_slot(reading.return_path.client) else { return };
    let sent = std::future::poll_fn(|context| match reading.poll_send(context) {
        Ok(Poll::Pending) => Poll::Pending,
        sent => Poll::Ready(sent),
    });
    let is_sent = matches!(timeout(AFTER_THE_ANSWER, sent).await, Ok(Ok(_)));
    if is_sent && reading.connection.as_ref().is_some_and(|connection| connection.is_sent()) {
        reading.over();
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<BodyPart>> {
        match self.get_mut() {
            UpstreamBody::Direct(reading) => reading.poll_part(context),
            UpstreamBody::TaskBody(task_body) => task_body.poll_part(context),
            UpstreamBody::Incoming(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            UpstreamBody::Direct(reading) => reading.body.is_over(),
            UpstreamBody::TaskBody(task_body) => task_body.left == Some(0),
            UpstreamBody::Incoming(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let left = match self {
            UpstreamBody::Direct(reading) => reading.body.left(),
            UpstreamBody::TaskBody(task_body) => task_body.left,
            UpstreamBody::Incoming(body) => return body.size_hint(),
        };
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
