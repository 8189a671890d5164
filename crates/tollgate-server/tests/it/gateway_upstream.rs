//! What stands behind a gateway in tests: a real server of HTTP/1.1 and HTTP/2 that remembers what it was asked, and a Tollgate in front of it.

use std::convert::Infallible;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::program::{Server, tollgate};
use crate::raw_http::Response as Read1;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
}

impl Seen {
    /// All values of a field, joined.
    pub(crate) fn header(&self, name: &str) -> String {
        let values = self.headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned());
        values.collect::<Vec<_>>().join(" | ")
    }
}

/// The server. It ends with the test.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Whether checks of its health fail.
    is_sick: Arc<AtomicBool>,
    runtime: Runtime,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// The same inside TLS.
    pub(crate) fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (shared, is_sick) = (Arc::clone(&seen), Arc::new(AtomicBool::new(false)));
        let sick = Arc::clone(&is_sick);
        runtime.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (seen, sick, tls) = (Arc::clone(&shared), Arc::clone(&sick), tls.clone());
                tokio::spawn(async move {
                    let service =
                        service_fn(move |request| answer(request, Arc::clone(&seen), Arc::clone(&sick)));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    match tls {
                        None => {
                            drop(builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await)
                        }
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            drop(builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await);
                        }
                    }
                });
            }
        });
        Self { address, seen, is_sick, runtime }
    }

    /// Lets checks of its health fail, or not.
    pub(crate) fn sicken(&self, is_sick: bool) {
        self.is_sick.store(is_sick, Ordering::SeqCst);
    }

    /// How many requests came since the last look.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Runs something beside it.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.unwrap() })
    }

    /// What came since the last look.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// The one request that came since the last look.
    pub(crate) fn only(&self) -> Seen {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

async fn answer(
    mut request: Request<Incoming>,
    seen: Arc<Mutex<Vec<Seen>>>,
    sick: Arc<AtomicBool>,
) -> Result<Response<Body>, Infallible> {
    let target = request.uri().path_and_query().map_or("*".to_owned(), ToString::to_string);
    let line = Seen {
        line: format!("{} {target}", request.method()),
        version: request.version(),
        headers: request.headers().clone(),
    };
    // A request is told when it begins, but for one path when all of it is there.
    let is_whole = target != "/whole" || request.body_mut().collect().await.is_ok();
    if is_whole {
        seen.lock().unwrap().push(line);
    }
    let path = request.uri().path().to_owned();
    Ok(match path.split('/').nth(1).unwrap_or_default() {
        // Each part of a body goes back as it comes.
        "echo" => {
            let (send, mut parts) = mpsc::channel(1);
            tokio::spawn(async move {
                let mut body = request.into_body();
                while let Some(Ok(frame)) = body.frame().await {
                    if send.send(Ok(frame)).await.is_err() {
                        return;
                    }
                }
            });
            Response::new(Parts(move |context: &mut Context<'_>| parts.poll_recv(context)).boxed_unsync())
        }
        "trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let mut parts = vec![Frame::trailers(trailers), Frame::data(Bytes::from("hello"))];
            let mut response = Response::new(
                Parts(move |_: &mut Context<'_>| Poll::Ready(parts.pop().map(Ok))).boxed_unsync(),
            );
            response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            response.headers_mut().insert("trailer", "grpc-status".parse().unwrap());
            response
        }
        // So many MiB, as fast as they are taken; how many were is told in the log of requests.
        "big" => {
            let mut left: usize = path.rsplit('/').next().unwrap().parse().unwrap();
            let part = Bytes::from(vec![b'x'; 1 << 20]);
            let parts = Parts(move |_: &mut Context<'_>| {
                left = match left.checked_sub(1) {
                    None => return Poll::Ready(None),
                    Some(left) => left,
                };
                let headers = HeaderMap::new();
                seen.lock().unwrap().push(Seen {
                    line: "part".to_owned(),
                    version: Version::HTTP_11,
                    headers,
                });
                Poll::Ready(Some(Ok(Frame::data(part.clone()))))
            });
            Response::new(parts.boxed_unsync())
        }
        "hop" => {
            let mut response = Response::new(full("hop"));
            for (name, value) in
                [("connection", "x-mine"), ("x-mine", "1"), ("keep-alive", "timeout=9"), ("x-kept", "1")]
            {
                response.headers_mut().append(name, value.parse().unwrap());
            }
            response
        }
        "status" => {
            let status: u16 = path.rsplit('/').next().unwrap().parse().unwrap();
            Response::builder().status(status).body(full("")).unwrap()
        }
        // The body, and the trailers that followed it.
        "trail" => {
            let collected = request.into_body().collect().await;
            let text = collected.map_or("cut off".to_owned(), |collected| {
                let trailers = collected.trailers().cloned().unwrap_or_default();
                let trailers =
                    trailers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap()));
                let trailers = trailers.collect::<Vec<_>>().join(";");
                format!("{}|{trailers}", String::from_utf8_lossy(&collected.to_bytes()))
            });
            Response::new(full(text))
        }
        // So much it cost, says the answer.
        "cost" => {
            let cost = path.rsplit('/').next().unwrap().to_owned();
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            Response::builder().header("x-graphql-cost", cost).body(full(body)).unwrap()
        }
        // Answered at once, and read all the same.
        "early" => {
            tokio::spawn(request.into_body().collect());
            Response::new(full("early"))
        }
        "health" if sick.load(Ordering::SeqCst) => Response::builder().status(503).body(full("")).unwrap(),
        "hang" => std::future::pending().await,
        "upgrade" => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(upgraded) = upgrade.await else { return };
                let mut stream = TokioIo::new(upgraded);
                let (mut read, mut write) = tokio::io::split(&mut stream);
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = tokio::io::AsyncWriteExt::write_all(&mut write, b"bye").await;
                let _ = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
            });
            let response =
                Response::builder().status(101).header("connection", "upgrade").header("upgrade", "echo");
            response.header("sec-websocket-accept", "x").body(full("")).unwrap()
        }
        _ => Response::new(full("hello")),
    })
}

/// A body of what a function gives.
struct Parts<F>(F);

impl<F> hyper::body::Body for Parts<F>
where
    F: FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> + Unpin,
{
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        (self.0)(context)
    }
}

/// A policy that limits nothing.
pub(crate) const OPEN: &str = "limits: []";

/// A Tollgate with a gateway.
pub(crate) struct Gateway {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
}

impl Gateway {
    /// In front of one upstream.
    pub(crate) fn before(upstream: &Upstream) -> Self {
        Self::with(&["--upstream", &format!("http://{}", upstream.address)], OPEN)
    }

    pub(crate) fn with(arguments: &[&str], policy: &str) -> Self {
        let always = ["serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--policy", "-"];
        Self::of(Server::spawn(tollgate(&[&always, arguments].concat()), policy))
    }

    /// The gateway of a server.
    pub(crate) fn of(server: Server) -> Self {
        let shown = server.banner.lines().find_map(|line| line.trim().strip_prefix("gateway "));
        let (_, address) =
            shown.unwrap_or_else(|| panic!("no gateway in {}", server.banner)).split_once("://").unwrap();
        Self { address: address.parse().unwrap(), server }
    }

    /// The sum of a metric's numbers, of those lines that have a value among their labels.
    pub(crate) fn metric(&self, name: &str, value: &str) -> u64 {
        let page = String::from_utf8(self.server.send("GET", "/metrics", "").body).unwrap();
        let lines =
            page.lines().filter(|line| line.starts_with(name) && line.contains(&format!("=\"{value}\"")));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// How many upstreams of the first unnamed route pass their checks.
    pub(crate) fn up(&self) -> u64 {
        self.metric("tollgate_gateway_upstream_up", "route-0")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes on a connection of their own, and reads one response with a length.
    pub(crate) fn exchange(&self, bytes: &str) -> Read1 {
        let mut stream = self.connect();
        stream.write_all(bytes.as_bytes()).unwrap();
        Read1::read(&mut BufReader::new(&stream))
    }

    /// A request without a body.
    pub(crate) fn get(&self, target: &str, fields: &str) -> Read1 {
        self.exchange(&format!("GET {target} HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n"))
    }

    /// Sends bytes, ends its side, and reads whatever comes until the other side ends.
    pub(crate) fn all(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }
}

/// Waits until something is so, for most of a minute.
pub(crate) fn until(mut look: impl FnMut() -> bool) {
    for _ in 0..2_500 {
        if look() {
            return;
        }
        tollgate_testkit::rest(Duration::from_millis(20));
    }
    panic!("it never happened");
}
