//! An upstream for tests of the gateway: a real server of HTTP/1.1 and HTTP/2 that records its requests, and a Tollgate in front of it.

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

use crate::http::Response as Read1;
use crate::program::{Server, tollgate};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub line: String,
    pub version: Version,
    pub headers: HeaderMap,
}

impl Seen {
    /// All values of a field, joined.
    pub fn header(&self, name: &str) -> String {
        let values = self.headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned());
        values.collect::<Vec<_>>().join(" | ")
    }
}

/// The server. It ends with the test.
pub struct Upstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Whether checks of its health fail.
    is_sick: Arc<AtomicBool>,
    runtime: Runtime,
}

impl Upstream {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// The same inside TLS.
    pub fn start_with(tls: Option<TlsAcceptor>) -> Self {
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

    /// Lets checks of its health fail.
    pub fn sicken(&self) {
        self.is_sick.store(true, Ordering::SeqCst);
    }

    /// Lets checks of its health pass again.
    pub fn recover(&self) {
        self.is_sick.store(false, Ordering::SeqCst);
    }

    /// How many requests came since the last look.
    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Runs something beside it.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.unwrap() })
    }

    /// The requests since the last look.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// The one request that came since the last look.
    pub fn only(&self) -> Seen {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

type Requests = Arc<Mutex<Vec<Seen>>>;

async fn answer(
    mut request: Request<Incoming>,
    seen: Requests,
    sick: Arc<AtomicBool>,
) -> Result<Response<Body>, Infallible> {
    let target = request.uri().path_and_query().map_or("*".to_owned(), ToString::to_string);
    let line = Seen {
        line: format!("{} {target}", request.method()),
        version: request.version(),
        headers: request.headers().clone(),
    };
    // A request is recorded when it begins, except on one path, where all of it must be there.
    let is_whole = target != "/whole" || request.body_mut().collect().await.is_ok();
    if is_whole {
        seen.lock().unwrap().push(line);
    }
    let path = request.uri().path().to_owned();
    let last = path.rsplit('/').next().unwrap_or_default();
    Ok(match path.split('/').nth(1).unwrap_or_default() {
        "echo" => echo(request),
        "trailers" => with_trailers(),
        "big" => big(last.parse().unwrap(), seen),
        "hop" => {
            let mut response = Response::new(full("hop"));
            for (name, value) in
                [("connection", "x-mine"), ("x-mine", "1"), ("keep-alive", "timeout=9"), ("x-kept", "1")]
            {
                response.headers_mut().append(name, value.parse().unwrap());
            }
            response
        }
        "status" => Response::builder().status(last.parse::<u16>().unwrap()).body(full("")).unwrap(),
        "trail" => body_and_trailers(request).await,
        // So much it cost, says the answer.
        "cost" => {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            Response::builder().header("x-graphql-cost", last).body(full(body)).unwrap()
        }
        "give" => given(&request),
        // Answered before the body is read; it is read all the same.
        "early" => {
            tokio::spawn(request.into_body().collect());
            Response::new(full("early"))
        }
        "health" if sick.load(Ordering::SeqCst) => Response::builder().status(503).body(full("")).unwrap(),
        "hang" => std::future::pending().await,
        "upgrade" => upgraded(request),
        _ => Response::new(full("hello")),
    })
}

/// The answer that the request asks for: its status is in the path, its fields are those of the request after `give-`, and
/// `give-body` has its body, with line breaks as `\\n`.
fn given(request: &Request<Incoming>) -> Response<Body> {
    let status: u16 = request.uri().path().split('/').nth(2).unwrap().parse().unwrap();
    let mut response = Response::builder().status(status);
    let mut body = String::new();
    for (name, value) in request.headers() {
        match name.as_str().strip_prefix("give-") {
            Some("body") => body = value.to_str().unwrap().replace("\\n", "\n"),
            Some(field) => response = response.header(field, value),
            None => {}
        }
    }
    response.body(full(body)).unwrap()
}

/// Each part of the body goes back as it comes.
fn echo(request: Request<Incoming>) -> Response<Body> {
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

fn with_trailers() -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let mut parts = vec![Frame::trailers(trailers), Frame::data(Bytes::from("hello"))];
    let mut response =
        Response::new(Parts(move |_: &mut Context<'_>| Poll::Ready(parts.pop().map(Ok))).boxed_unsync());
    response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    response.headers_mut().insert("trailer", "grpc-status".parse().unwrap());
    response
}

/// So many MiB, as fast as they are read; each is recorded among the requests.
fn big(mut left: usize, seen: Requests) -> Response<Body> {
    let part = Bytes::from(vec![b'x'; 1 << 20]);
    let parts = Parts(move |_: &mut Context<'_>| {
        left = match left.checked_sub(1) {
            None => return Poll::Ready(None),
            Some(left) => left,
        };
        let headers = HeaderMap::new();
        seen.lock().unwrap().push(Seen { line: "part".to_owned(), version: Version::HTTP_11, headers });
        Poll::Ready(Some(Ok(Frame::data(part.clone()))))
    });
    Response::new(parts.boxed_unsync())
}

/// The body, and the trailers that followed it.
async fn body_and_trailers(request: Request<Incoming>) -> Response<Body> {
    let collected = request.into_body().collect().await;
    let text = collected.map_or("cut off".to_owned(), |collected| {
        let trailers = collected.trailers().cloned().unwrap_or_default();
        let trailers = trailers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap()));
        let trailers = trailers.collect::<Vec<_>>().join(";");
        format!("{}|{trailers}", String::from_utf8_lossy(&collected.to_bytes()))
    });
    Response::new(full(text))
}

/// A tunnel that sends back what it reads, and then a farewell.
fn upgraded(mut request: Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut stream = TokioIo::new(upgraded);
        let (mut read, mut write) = tokio::io::split(&mut stream);
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = tokio::io::AsyncWriteExt::write_all(&mut write, b"bye").await;
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
    });
    let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "echo");
    response.header("sec-websocket-accept", "x").body(full("")).unwrap()
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
pub const OPEN: &str = "limits: []";

/// A Tollgate with a gateway.
pub struct Gateway {
    pub server: Server,
    pub address: SocketAddr,
}

impl Gateway {
    /// In front of one upstream.
    pub fn before(upstream: &Upstream) -> Self {
        Self::with(&["--upstream", &format!("http://{}", upstream.address)], OPEN)
    }

    pub fn with(arguments: &[&str], policy: &str) -> Self {
        let always = ["serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--policy", "-"];
        Self::of(Server::spawn(tollgate(&[&always, arguments].concat()), policy))
    }

    /// The gateway of a server.
    pub fn of(server: Server) -> Self {
        let shown = server.banner.lines().find_map(|line| line.trim().strip_prefix("gateway "));
        let (_, address) =
            shown.unwrap_or_else(|| panic!("no gateway in {}", server.banner)).split_once("://").unwrap();
        Self { address: address.parse().unwrap(), server }
    }

    /// The sum of a metric's numbers, of those lines that have a value among their labels.
    pub fn metric(&self, name: &str, value: &str) -> u64 {
        let page = String::from_utf8(self.server.send("GET", "/metrics", "").body).unwrap();
        let lines =
            page.lines().filter(|line| line.starts_with(name) && line.contains(&format!("=\"{value}\"")));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// How many upstreams of the first unnamed route pass their checks.
    pub fn up(&self) -> u64 {
        self.metric("tollgate_gateway_upstream_up", "route-0")
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes on a connection of their own, and reads one response with a length.
    pub fn exchange(&self, bytes: &str) -> Read1 {
        let mut stream = self.connect();
        stream.write_all(bytes.as_bytes()).unwrap();
        Read1::read(&mut BufReader::new(&stream))
    }

    /// A request without a body.
    pub fn get(&self, target: &str, fields: &str) -> Read1 {
        self.exchange(&format!("GET {target} HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n"))
    }

    /// Sends bytes, ends its side, and reads whatever comes until the other side ends.
    pub fn all(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }
}

/// Waits until something is so, for most of a minute.
pub fn until(mut look: impl FnMut() -> bool) {
    for _ in 0..2_500 {
        if look() {
            return;
        }
        crate::rest(Duration::from_millis(20));
    }
    panic!("it never happened");
}
