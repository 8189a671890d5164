//! One connection: its HTTP/2 resource limits, its idle timeout, and its shutdown.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::call::Calls;
use super::quota_stream::METHOD;
use crate::shutdown::{Stop, stopped};

/// Maximum number of concurrent calls on one connection. It equals the default of Envoy's own limit on calls in flight.
const STREAMS_MAX: u32 = 1_024;
/// Bytes that a call, and all calls of a connection, may send ahead of what was read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Maximum size of the headers of a call.
const HEAD_BYTES_MAX: u32 = 16 << 10;
/// How often to ping the peer, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may wait for its first call, and how long it may be idle between calls before it is closed
/// gracefully.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(30);
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a graceful close may take if no call is in flight.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers the calls of one connection until either side ends it.
pub(crate) async fn connection<I>(stream: I, calls: Arc<Calls>, mut stop: Stop)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _open = calls.opened();
    let (traffic, stopping) = (Arc::new(Traffic::default()), stop.clone());
    let answers = service_fn(|request| {
        let (calls, begun) = (Arc::clone(&calls), traffic.begin());
        // A streaming call ends itself when the server stops.
        let stream = (request.uri().path() == METHOD).then(|| stopping.clone());
        async move {
            Ok::<_, Infallible>(match stream {
                Some(stop) => calls.stream(request, stop, begun).await,
                None => {
                    let response = calls.answer(request).await;
                    drop(begun);
                    response
                }
            })
        }
    });
    let mut connection = pin!(builder().serve_connection(TokioIo::new(stream), answers));
    let mut timeout = FIRST_CALL_TIMEOUT;
    let ended = loop {
        let before = traffic.begun();
        tokio::select! {
            ended = connection.as_mut() => break Some(ended),
            () = stopped(&mut stop) => {
                calls.retire().await;
                connection.as_mut().graceful_shutdown();
                break if traffic.begun() == 0 {
                    // A connection opened ahead of need: no caller waits for an answer, and the peer may be gone
                    // already.
                    tokio::time::timeout(CLOSE_TIMEOUT, connection).await.ok()
                } else {
                    Some(connection.await)
                };
            }
            () = tokio::time::sleep(timeout) => {
                if traffic.begun() != before || traffic.is_busy() {
                    timeout = IDLE_TIMEOUT;
                    continue;
                }
                connection.as_mut().graceful_shutdown();
                break tokio::time::timeout(CLOSE_TIMEOUT, connection).await.ok();
            }
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// The calls of a connection. Relaxed everywhere: the numbers only show whether there was any, and guard no other
/// memory.
#[derive(Debug, Default)]
struct Traffic {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Traffic {
    fn begin(self: &Arc<Self>) -> CallInProgress {
        self.begun.fetch_add(1, Ordering::Relaxed);
        CallInProgress(Arc::clone(self))
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.ended.load(Ordering::Relaxed) != self.begun()
    }
}

/// While it exists, a call is in progress.
pub(crate) struct CallInProgress(Arc<Traffic>);

impl Drop for CallInProgress {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::watch;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;
    use tollgate::{Clock, Engine, MemoryStore, Policy};

    use super::*;
    use crate::service::Service;
    use crate::store::Stores;

    /// An in-memory connection, its other end, and the sender that stops it.
    async fn connected() -> (JoinHandle<()>, DuplexStream, watch::Sender<bool>) {
        let policy = Policy::compile("policy.yaml", b"limits: [{name: all, rate: 1/s}]").unwrap();
        let clock = Clock::precise();
        let engine = Engine::builder()
            .policy(policy)
            .store(Stores::Memory(MemoryStore::new(1 << 20, clock.now())))
            .build();
        let service = Service::new(engine, clock);
        let calls = Arc::new(Calls::new(Arc::new(service)).await);
        let (ours, theirs) = duplex(64 << 10);
        let (stop, stopped) = watch::channel(false);
        (tokio::spawn(connection(ours, calls, stopped)), theirs, stop)
    }

    /// A client that connects and sends nothing, or sends only the HTTP/2 preface, is disconnected.
    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_ends() {
        let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        for sent in [&b""[..], &hello[..9], hello] {
            let begun = Instant::now();
            let (connection, mut theirs, _stop) = connected().await;
            theirs.write_all(sent).await.unwrap();
            connection.await.unwrap();
            let lasted = begun.elapsed();
            assert!(lasted <= FIRST_CALL_TIMEOUT + CLOSE_TIMEOUT, "{lasted:?}");
            theirs.read_to_end(&mut Vec::new()).await.unwrap();
        }
    }

    /// A stopping server does not wait for connections that were never used.
    #[tokio::test(start_paused = true)]
    async fn an_unused_connection_does_not_delay_the_end() {
        let (connection, _theirs, stop) = connected().await;
        let begun = Instant::now();
        stop.send(true).unwrap();
        connection.await.unwrap();
        assert!(begun.elapsed() <= CLOSE_TIMEOUT);
    }
}
