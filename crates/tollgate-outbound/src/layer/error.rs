//! The error of a call that has no response, or one that refuses it for longer than it may wait.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use crate::guard::Failure;
use crate::refusal::Refusal;

/// Any error of the service below.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It did not leave, or the server refused it, and it may not leave again: a quota of a day or of money is used up, or
    /// the server takes calls only after the longest wait of the call.
    #[error("{refusal}")]
    Refused {
        /// Which bucket refuses it, whose numbers say so, and until when.
        refusal: Refusal,
        /// The response with which the server refused it. `None` if it did not leave.
        response: Option<Box<Response<RefusedBody>>>,
    },
    /// It left, and its deadline passed without a response.
    #[error("no response before the deadline of the call")]
    DeadlineExceeded,
    /// The service below failed.
    #[error(transparent)]
    Failed(BoxError),
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> Self {
        CallError::Refused { refusal, response: None }
    }
}

impl CallError {
    /// The refusal, if the call may not leave, or not again.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            CallError::Refused { refusal, .. } => Some(refusal),
            CallError::DeadlineExceeded | CallError::Failed(_) => None,
        }
    }

    /// The response with which the server refused the call, whole: its status, its headers and its body.
    #[must_use]
    pub fn response(&self) -> Option<&Response<RefusedBody>> {
        match self {
            CallError::Refused { response, .. } => response.as_deref(),
            CallError::DeadlineExceeded | CallError::Failed(_) => None,
        }
    }

    /// As [`CallError::response`], to read its body.
    #[must_use]
    pub fn into_response(self) -> Option<Response<RefusedBody>> {
        match self {
            CallError::Refused { response, .. } => response.map(|response| *response),
            CallError::DeadlineExceeded | CallError::Failed(_) => None,
        }
    }
}

/// The body of a response that refused a call. Its frames are those of the server, unchanged. A short one was read before
/// the caller got the error, so that it needs no connection.
pub struct RefusedBody {
    /// Errors are `Sync`, and bodies often are not. It is locked only to look at its size.
    inner: Mutex<UnsyncBoxBody<Bytes, BoxError>>,
}

impl RefusedBody {
    pub(crate) fn new<R>(body: R) -> Self
    where
        R: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
    {
        Self { inner: Mutex::new(body.map_err(Into::into).boxed_unsync()) }
    }
}

impl Body for RefusedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}

impl fmt::Debug for RefusedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedBody").finish_non_exhaustive()
    }
}

/// How an attempt ended that has no response, by the error of the client: by default it may have been executed.
pub(crate) fn failure_of(error: &BoxError) -> Failure {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(error) = cause {
        if is_connect_error(error) {
            return Failure::Unreachable;
        }
        if error.downcast_ref().is_some_and(is_unprocessed) {
            return Failure::NotSent;
        }
        cause = error.source();
    }
    Failure::Unanswered
}

/// Whether no connection was made: the name has no address, or the address does not answer.
fn is_connect_error(error: &(dyn Error + 'static)) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
        return error.is_connect();
    }
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(AddrNotAvailable | ConnectionRefused | HostUnreachable | NetworkUnreachable))
}

/// Whether an HTTP/2 server says that it has not looked at the request: RFC 9113, section 8.7.
fn is_unprocessed(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    // A graceful shutdown ends only streams above the last one that the server takes.
    let is_shutdown = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (is_refused || is_shutdown)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// An HTTP/2 server that answers the first request with this frame. Returns the error of the client.
    async fn error_of(frame: &[u8]) -> BoxError {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        const HEADERS: u8 = 1;
        let (near, mut far) = tokio::io::duplex(4_096);
        let (mut client, connection) = h2::client::handshake(near).await.unwrap();
        let connection = tokio::spawn(connection);
        let (response, _) = client.send_request(http::Request::new(()), true).unwrap();
        far.write_all(&SETTINGS).await.unwrap();
        let mut preface = [0; 24];
        far.read_exact(&mut preface).await.unwrap();
        loop {
            let mut head = [0; 9];
            far.read_exact(&mut head).await.unwrap();
            let mut rest = vec![0; usize::from(head[2])];
            far.read_exact(&mut rest).await.unwrap();
            if head[3] == HEADERS {
                break;
            }
        }
        far.write_all(frame).await.unwrap();
        let error = response.await.unwrap_err();
        connection.abort();
        Box::new(error)
    }

    /// A frame of HTTP/2.
    fn frame(kind: u8, stream: u8, body: &[u32]) -> Vec<u8> {
        let mut frame = vec![0, 0, u8::try_from(body.len() * 4).unwrap(), kind, 0, 0, 0, 0, stream];
        body.iter().for_each(|word| frame.extend(word.to_be_bytes()));
        frame
    }

    /// `REFUSED_STREAM` and a graceful `GOAWAY` prove that the request was not processed. Another code does not.
    #[tokio::test]
    async fn an_http2_server_says_what_it_has_not_processed() {
        const RST_STREAM: u8 = 3;
        const GOAWAY: u8 = 7;
        const INTERNAL_ERROR: u32 = 2;
        let refused = u32::from(h2::Reason::REFUSED_STREAM);
        for (frame, expected) in [
            (frame(RST_STREAM, 1, &[refused]), Failure::NotSent),
            (frame(RST_STREAM, 1, &[INTERNAL_ERROR]), Failure::Unanswered),
            (frame(GOAWAY, 0, &[0, 0]), Failure::NotSent),
            (frame(GOAWAY, 0, &[0, INTERNAL_ERROR]), Failure::Unanswered),
        ] {
            let error = error_of(&frame).await;
            assert_eq!(failure_of(&error), expected, "{error:?}");
        }
    }

    /// A connection that breaks later may have carried the request.
    #[test]
    fn a_connection_that_breaks_proves_nothing() {
        for (kind, expected) in [
            (io::ErrorKind::ConnectionRefused, Failure::Unreachable),
            (io::ErrorKind::ConnectionReset, Failure::Unanswered),
            (io::ErrorKind::TimedOut, Failure::Unanswered),
        ] {
            assert_eq!(failure_of(&io::Error::from(kind).into()), expected, "{kind}");
        }
    }

    /// Resolves no name: at once with an error, or never.
    #[cfg(feature = "reqwest")]
    struct NoAddress {
        is_silent: bool,
    }

    #[cfg(feature = "reqwest")]
    impl ::reqwest::dns::Resolve for NoAddress {
        fn resolve(&self, _: ::reqwest::dns::Name) -> ::reqwest::dns::Resolving {
            let is_silent = self.is_silent;
            Box::pin(async move {
                if is_silent {
                    std::future::pending::<()>().await;
                }
                Err(io::Error::other("no such host").into())
            })
        }
    }

    /// A name without an address, and a connection that takes too long, prove that nothing was sent.
    #[cfg(feature = "reqwest")]
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_not_made_sent_nothing() {
        for is_silent in [false, true] {
            let client = ::reqwest::Client::builder()
                .dns_resolver(std::sync::Arc::new(NoAddress { is_silent }))
                .connect_timeout(std::time::Duration::from_secs(1))
                .no_proxy()
                .build()
                .unwrap();
            let error = client.post("http://api.example.com/").send().await.unwrap_err();
            assert_eq!(failure_of(&error.into()), Failure::Unreachable);
        }
    }
}
