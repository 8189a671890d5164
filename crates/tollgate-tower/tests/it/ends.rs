//! At every end of a request, its permit is released and its cost is settled.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{CheckRequest, Engine, ManualClock, MemoryStore, Policy, Timestamp};
use tollgate_tower::RateLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::limited::{World, ask, from, hello};

const IN_FLIGHT: &str = "  - {name: in-flight, concurrency: 3, permit_ttl: 60s}";

/// A body of two frames, with the cost of the request in its trailers.
struct TwoFrames(u8, Option<&'static str>);

impl Body for TwoFrames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0 += 1;
        Poll::Ready(match self.0 {
            1 | 2 => Some(Ok(Frame::data(Bytes::from_static(b"part ")))),
            3 => self.1.map(|cost| {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-cost", cost.parse().unwrap());
                Ok(Frame::trailers(trailers))
            }),
            _ => None,
        })
    }
}

/// A permit is held until the last byte of the body, and no longer.
#[tokio::test]
async fn a_permit_is_released_at_the_end_of_the_body() {
    let world = World::new(IN_FLIGHT);
    let upstream = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(TwoFrames(0, None)))
    });
    let service = world.layer().layer(upstream);
    let mut response = service.clone().oneshot(from("203.0.113.7", "/")).await.unwrap();
    assert_eq!(world.remaining(&[]), 2);
    response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(world.remaining(&[]), 2, "the body is not over");
    while response.body_mut().frame().await.is_some() {}
    assert_eq!(world.remaining(&[]), 3, "the end of the body releases the permit before the drop");
    drop(response);
    assert_eq!(world.remaining(&[]), 3);
}

/// The permit is released before the response and in the middle of its body.
#[tokio::test]
async fn a_disconnected_caller_releases_its_permit() {
    let world = World::new(IN_FLIGHT);
    let upstream = service_fn(|request: Request<Full<Bytes>>| async move {
        if request.uri().path() == "/never" {
            pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(TwoFrames(0, None)))
    });
    let service = world.layer().layer(upstream);
    {
        let mut call = pin!(service.clone().oneshot(from("203.0.113.7", "/never")));
        poll_fn(|context| {
            assert!(call.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!(world.remaining(&[]), 2);
    }
    assert_eq!(world.remaining(&[]), 3, "dropped before the response");
    let mut response = service.clone().oneshot(from("203.0.113.7", "/")).await.unwrap();
    response.body_mut().frame().await.unwrap().unwrap();
    drop(response);
    assert_eq!(world.remaining(&[]), 3, "dropped in the middle of the body");
}

#[tokio::test]
async fn a_panic_releases_the_permit() {
    async fn broken(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
        panic!("the handler is broken, as this test wants it");
    }
    let world = World::new(IN_FLIGHT);
    let service = world.layer().layer(service_fn(broken));
    let mut call = Box::pin(service.oneshot(from("203.0.113.7", "/")));
    let mut context = Context::from_waker(Waker::noop());
    let polled = std::panic::catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut context).is_ready()));
    assert!(polled.is_err());
    drop(call);
    assert_eq!(world.remaining(&[]), 3);
}

#[tokio::test]
async fn drops_at_every_step_release_the_permit() {
    let world = World::new("  - {name: in-flight, concurrency: 50, permit_ttl: 60s}");
    let upstream = service_fn(|_: Request<Full<Bytes>>| async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        Ok::<_, Infallible>(Response::new(TwoFrames(0, None)))
    });
    for settles in [false, true] {
        let layer = if settles { world.layer().refund_server_errors() } else { world.layer() };
        let service = layer.layer(upstream);
        for steps in 0..12 {
            let mut call = Box::pin(async {
                let response = service.clone().oneshot(from("203.0.113.7", "/")).await.unwrap();
                let mut body = response.into_body();
                while body.frame().await.is_some() {
                    tokio::task::yield_now().await;
                }
            });
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..steps {
                if call.as_mut().poll(&mut context).is_ready() {
                    break;
                }
            }
            drop(call);
            assert_eq!(world.remaining(&[]), 50, "settles: {settles}, {steps} steps");
        }
    }
}

/// A store whose futures yield twice: before they act, and after.
struct Slow(MemoryStore);

impl Store for Slow {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        tokio::task::yield_now().await;
        let answers = self.0.charge(charges, now).await;
        tokio::task::yield_now().await;
        answers
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        tokio::task::yield_now().await;
        let refunded = self.0.refund(charges, now).await;
        tokio::task::yield_now().await;
        refunded
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.0.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.0.hold(hold);
    }
}

/// The number of polls before a future is dropped; `None` polls it to its end.
type Steps = Option<u32>;

/// Polls a future a number of times, then drops it. Time passes between the polls.
async fn drop_after(steps: Steps, time: &ManualClock, call: impl Future<Output = ()>) {
    let mut call = Box::pin(call);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..steps.unwrap_or(0) {
        if call.as_mut().poll(&mut context).is_ready() {
            break;
        }
        time.advance(Duration::from_millis(150));
        tokio::task::yield_now().await;
    }
    drop(call);
    // Tasks await the pending calls of a slow store.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// The story: if a decision gave a permit and a wait that was too long, the request was refused and its permit stayed held
/// until it expired. With a concurrency limit, a queue and a settled cost, every drop and every refusal releases the
/// permit.
#[tokio::test]
async fn drops_and_refusals_in_a_queue_release_the_permit() {
    const LIMITS: &str = "limits:
  - {name: in-flight, by: [ip], concurrency: 5, permit_ttl: 600s}
  - {name: shaped, by: [ip], algorithm: leaky-bucket, rate: 2/s, queue: 4}
  - {name: quota, by: [ip], rate: 1000/s}";
    for (is_slow, settles, wait_max) in [false, true].into_iter().flat_map(|is_slow| {
        [false, true].into_iter().flat_map(move |settles| {
            [0, 600, 60_000].into_iter().map(move |wait_max| (is_slow, settles, wait_max))
        })
    }) {
        let time = ManualClock::new();
        let policy = Policy::compile("policy.yaml", LIMITS.as_bytes()).unwrap();
        let memory = MemoryStore::new(1 << 20, time.now());
        if is_slow {
            let engine =
                Arc::new(Engine::builder().policy(policy).store(Slow(memory)).clock(time.clock()).build());
            leave_nothing(&engine, &time, settles, wait_max).await;
        } else {
            let engine = Arc::new(Engine::builder().policy(policy).store(memory).clock(time.clock()).build());
            leave_nothing(&engine, &time, settles, wait_max).await;
        }
    }
}

async fn leave_nothing<S: Store + Send + Sync + 'static>(
    engine: &Arc<Engine<S>>,
    time: &ManualClock,
    settles: bool,
    wait_max: u64,
) {
    let upstream = service_fn(|request: Request<Full<Bytes>>| async move {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        assert!(request.uri().path() != "/panics", "the handler is broken, as this test wants it");
        let status = if request.uri().path() == "/broken" { 500 } else { 200 };
        Ok::<_, Infallible>(Response::builder().status(status).body(TwoFrames(0, Some("3"))).unwrap())
    });
    let layer = RateLimitLayer::new(Arc::clone(engine));
    let layer = layer.wait_at_most(Duration::from_millis(wait_max));
    let layer = if settles { layer.refund_server_errors().cost_from("x-cost").unwrap() } else { layer };
    let service = layer.layer(upstream);
    let mut refused = 0;
    for (round, path) in (0..4).flat_map(|round| ["/", "/broken", "/panics"].map(|path| (round, path))) {
        for steps in std::iter::once(None).chain((1..16).map(Some)) {
            // Other requests fill the queue, so that this one waits or is refused.
            let mut queue = Vec::new();
            for _ in 0..round {
                let mut call = Box::pin(service.clone().oneshot(from("203.0.113.7", "/")));
                let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                queue.push(call);
            }
            let mut called = service.clone();
            let answered = called.call(from("203.0.113.7", path));
            let status = Arc::new(Mutex::new(0));
            let seen = Arc::clone(&status);
            let mut whole = Box::pin(async move {
                let response = answered.await.unwrap();
                *seen.lock().unwrap() = response.status().as_u16();
                let mut body = response.into_body();
                while body.frame().await.is_some() {
                    tokio::task::yield_now().await;
                }
            });
            let caught = poll_fn(move |context| {
                let polled = std::panic::catch_unwind(AssertUnwindSafe(|| whole.as_mut().poll(context)));
                polled.unwrap_or(Poll::Ready(()))
            });
            drop_after(steps, time, caught).await;
            refused += u32::from(*status.lock().unwrap() == 429);
            drop(queue);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let look = CheckRequest::new().with("ip", "203.0.113.7").unwrap().looking();
            let left = engine.check(&look, time.now()).await.limits().next().unwrap().outcome.remaining;
            assert_eq!(
                left, 5,
                "settles: {settles}, wait_max: {wait_max}, {round} in the queue, {path}, {steps:?}"
            );
        }
        time.advance(Duration::from_secs(10));
    }
    assert!(refused > 0 || wait_max == 60_000, "some requests were refused because they could not wait");
}

/// A body that ends when the test says so, like that of a tunnel.
struct Open(tokio::sync::oneshot::Receiver<()>);

impl Body for Open {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.0).poll(context).map(|_| None)
    }
}

/// Lets all woken tasks run.
async fn settle_down() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// The story: a permit expired after `permit_ttl` although its body lasted longer, so a limit of one admitted another tunnel
/// every 61 seconds. Now it is renewed. The permit of a process that crashes expires after `permit_ttl`.
#[tokio::test]
async fn a_permit_lasts_as_long_as_its_body() {
    let world = World::new("  - {name: in-flight, concurrency: 2, permit_ttl: 60s}");
    let (end, ended) = tokio::sync::oneshot::channel();
    let bodies = Arc::new(Mutex::new(vec![Open(ended)]));
    let upstream = service_fn(move |_: Request<Full<Bytes>>| {
        let body = bodies.lock().unwrap().pop().unwrap();
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let service = world.layer().layer(upstream);
    let tunnel = service.clone().oneshot(from("203.0.113.7", "/")).await.unwrap();
    let crashed = world.engine.try_check(&CheckRequest::new(), world.time.now()).unwrap().take_permit();
    assert!(crashed.is_some());
    for second in (10..=600).step_by(10) {
        world.time.advance(Duration::from_secs(10));
        settle_down().await;
        let left = if second < 60 { 0 } else { 1 };
        assert_eq!(world.remaining(&[]), left, "after {second} s");
    }
    end.send(()).unwrap();
    tunnel.into_body().collect().await.unwrap();
    assert_eq!(world.remaining(&[]), 2, "the tunnel is over");
    for _ in 0..10 {
        world.time.advance(Duration::from_secs(10));
        settle_down().await;
    }
    assert_eq!(world.remaining(&[]), 2);
}

/// Permits of several limits are renewed as often as the shortest `permit_ttl` needs.
#[tokio::test]
async fn the_shortest_permit_ttl_sets_the_renewal_interval() {
    let world = World::new(
        "  - {name: quick, when: {path: /quick}, concurrency: 1, permit_ttl: 6s}
  - {name: slow, when: {path: /slow}, concurrency: 1, permit_ttl: 600s}",
    );
    let held = service_fn(|_: Request<Full<Bytes>>| async { Ok::<_, Infallible>(Response::new(Held)) });
    let service = world.layer().layer(held);
    let slow = service.clone().oneshot(from("203.0.113.7", "/slow")).await.unwrap();
    let quick = service.clone().oneshot(from("203.0.113.7", "/quick")).await.unwrap();
    for second in 1..=60 {
        world.time.advance(Duration::from_secs(1));
        settle_down().await;
        assert_eq!(world.remaining(&[("path", "/quick")]), 0, "after {second} s");
    }
    drop(quick);
    assert_eq!(world.remaining(&[("path", "/quick")]), 1);
    assert_eq!(world.remaining(&[("path", "/slow")]), 0);
    drop(slow);
    assert_eq!(world.remaining(&[("path", "/slow")]), 1);
}

/// After a reload with a shorter `permit_ttl`, held permits are renewed before they expire by it.
#[tokio::test]
async fn a_shorter_permit_ttl_applies_to_held_permits() {
    let world = World::new("  - {name: in-flight, concurrency: 1, permit_ttl: 600s}");
    let held = service_fn(|_: Request<Full<Bytes>>| async { Ok::<_, Infallible>(Response::new(Held)) });
    let service = world.layer().layer(held);
    let tunnel = service.clone().oneshot(from("203.0.113.7", "/")).await.unwrap();
    world.time.advance(Duration::from_secs(1));
    let shorter = b"limits: [{name: in-flight, concurrency: 1, permit_ttl: 2s}]";
    world.engine.swap(Policy::compile("policy.yaml", shorter).unwrap(), world.time.now()).unwrap();
    for step in 1..=100 {
        world.time.advance(Duration::from_millis(200));
        settle_down().await;
        let answer = service.clone().oneshot(from("203.0.113.7", "/")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS, "after {step} steps");
    }
    drop(tunnel);
    assert_eq!(world.remaining(&[]), 1);
}

/// A body that never ends.
struct Held;

impl Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// In real time and over a real connection, a response streams for several lifetimes of its permit.
#[tokio::test]
async fn a_permit_lasts_over_a_connection() {
    let policy =
        Policy::compile("policy.yaml", b"limits: [{name: in-flight, concurrency: 1, permit_ttl: 600ms}]")
            .unwrap();
    let engine = Arc::new(Engine::builder().policy(policy).build());
    let held =
        service_fn(|_: Request<hyper::body::Incoming>| async { Ok::<_, Infallible>(Response::new(Held)) });
    let service = RateLimitLayer::new(Arc::clone(&engine)).layer(held);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            let service = hyper::service::service_fn(move |request| service.clone().oneshot(request));
            let stream = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(stream, service));
        }
    });
    let ask = async || reqwest::get(format!("http://{address}/")).await.unwrap();
    let streaming = ask().await;
    assert_eq!(streaming.status(), 200);
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(ask().await.status(), 429, "the only place is taken");
    }
    drop(streaming);
    // The server notices that its client is gone.
    let mut free = 429;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        free = ask().await.status().as_u16();
        if free == 200 {
            break;
        }
    }
    assert_eq!(free, 200);
    server.abort();
}

/// With `count_failures` a request that succeeds is refunded.
#[tokio::test]
async fn only_failures_count() {
    let world = World::new("  - {name: login, by: [ip], rate: 3/h}");
    let upstream = service_fn(|request: Request<Full<Bytes>>| async move {
        let status = if request.uri().path() == "/right" { 200 } else { 401 };
        Ok::<_, Infallible>(Response::builder().status(status).body(Full::from("")).unwrap())
    });
    let service = world.layer().count_failures().layer(upstream);
    let mut statuses = Vec::new();
    for path in ["/right", "/right", "/right", "/right", "/wrong", "/wrong", "/right", "/wrong", "/right"] {
        statuses.push(ask(&service, from("203.0.113.7", path)).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 401, 401, 200, 401, 429]);
}

/// A limit of the policy counts only failures, next to one that counts all requests, and with every setting of the layer. A
/// missing response is a failure.
#[tokio::test]
async fn only_failures_count_by_policy() {
    async fn upstream(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, &'static str> {
        let status = match request.uri().path() {
            "/right" => 200,
            "/wrong" => 401,
            "/broken" => 500,
            _ => return Err("the connection was lost, as this test wants it"),
        };
        Ok(Response::builder().status(status).body(Full::from("")).unwrap())
    }
    let limits =
        "  - {name: login, by: [ip], rate: 9/h, count: failures}\n  - {name: all, by: [host], rate: 9/h}";
    for settles in [false, true] {
        let world = World::new(limits);
        let layer = world.layer();
        let layer = if settles { layer.refund_server_errors() } else { layer };
        let service = layer.layer(service_fn(upstream));
        let mut left = Vec::new();
        for path in ["/right", "/wrong", "/broken", "/lost", "/right"] {
            let _ = service.clone().oneshot(from("203.0.113.7", path)).await;
            left.push(world.remaining(&[("ip", "203.0.113.7")]));
        }
        assert_eq!(left, [9, 8, 7, 6, 6], "settles by itself: {settles}");
    }
}

/// A gRPC response with a status in its trailers or, without a body, in its head.
struct Call(Option<&'static str>);

impl Body for Call {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|status| {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            Ok(Frame::trailers(trailers))
        }))
    }
}

/// The story: a gRPC call has the HTTP status 200 even if it fails, so it counted as a success, and a limit on wrong
/// passwords had no effect over gRPC. Now the status of the call counts.
#[tokio::test]
async fn calls_fail_by_their_own_status() {
    // The path says where the status is and which one. The flags say whether each kind of settlement keeps the charge.
    for (kind, at, status, fails, is_server_error) in [
        ("application/grpc", "head", "16", true, false),
        ("application/grpc", "head", "0", false, false),
        ("application/grpc+proto", "trailers", "16", true, false),
        ("application/grpc", "trailers", "0", false, false),
        ("application/grpc", "trailers", "7", true, false),
        ("application/grpc", "trailers", "13", true, true),
        ("application/grpc; charset=x", "head", "14", true, true),
        ("application/grpc", "trailers", "nonsense", true, true),
        ("application/json", "trailers", "13", false, false),
        ("application/grpc-web", "trailers", "13", false, false),
    ] {
        for (counts_failures, by_policy) in [(false, false), (true, false), (true, true)] {
            let count = if by_policy { ", count: failures" } else { "" };
            let world = World::new(&format!("  - {{name: login, by: [ip], rate: 3/h{count}}}"));
            let upstream = service_fn(move |_: Request<Full<Bytes>>| async move {
                let response = Response::builder().header("content-type", kind);
                let response = match at {
                    "head" => response.header("grpc-status", status).body(Call(None)),
                    _ => response.body(Call(Some(status))),
                };
                Ok::<_, Infallible>(response.unwrap())
            });
            let layer = world.layer();
            let layer = match (counts_failures, by_policy) {
                (_, true) => layer,
                (true, false) => layer.count_failures(),
                (false, false) => layer.refund_server_errors(),
            };
            ask(&layer.layer(upstream), from("203.0.113.7", "/")).await;
            let is_kept = if counts_failures { fails } else { !is_server_error };
            let left = if is_kept { 2 } else { 3 };
            let case = format!(
                "{kind}, {status} in the {at}, counts failures: {counts_failures}, by policy: {by_policy}"
            );
            assert_eq!(world.remaining(&[("ip", "203.0.113.7")]), left, "{case}");
        }
    }
}

#[tokio::test]
async fn server_errors_are_refunded() {
    let world = World::new("  - {name: per-ip, by: [ip], rate: 3/h}");
    let upstream = service_fn(|request: Request<Full<Bytes>>| async move {
        let status = if request.uri().path() == "/broken" { 500 } else { 404 };
        Ok::<_, Infallible>(Response::builder().status(status).body(Full::from("")).unwrap())
    });
    let service = world.layer().refund_server_errors().layer(upstream);
    for (path, left) in [("/broken", 3), ("/a", 2), ("/broken", 2), ("/b", 1)] {
        ask(&service, from("203.0.113.7", path)).await;
        assert_eq!(world.remaining(&[("ip", "203.0.113.7")]), left, "{path}");
    }
}

/// The service states the cost in a header, or in a trailer.
#[tokio::test]
async fn the_cost_is_settled_at_what_the_service_states() {
    let world = World::new("  - {name: tokens, by: [ip], rate: 1000/h}");
    let upstream = service_fn(|request: Request<Full<Bytes>>| async move {
        let response = match request.uri().path() {
            "/header" => Response::builder().header("x-cost", "30").body(TwoFrames(0, None)),
            "/trailer" => Response::builder().body(TwoFrames(0, Some("7"))),
            "/nonsense" => Response::builder().body(TwoFrames(0, Some("-7"))),
            _ => Response::builder().body(TwoFrames(0, None)),
        };
        Ok::<_, Infallible>(response.unwrap())
    });
    let service = world.layer().cost(|_| 100).cost_from("x-cost").unwrap().layer(upstream);
    let left = || world.remaining(&[("ip", "203.0.113.7")]);
    for (path, cost) in [("/header", 30), ("/trailer", 7), ("/nonsense", 100), ("/none", 100)] {
        let before = left();
        assert_eq!(ask(&service, from("203.0.113.7", path)).await.status, 200);
        assert_eq!(before - left(), cost, "{path}");
    }
    // The estimate stays charged until the trailers arrive.
    let before = left();
    let response = service.clone().oneshot(from("203.0.113.7", "/trailer")).await.unwrap();
    assert_eq!(before - left(), 100);
    drop(response);
    assert_eq!(before - left(), 100, "a disconnected caller is charged the estimate");
}

/// An error of the service reaches the caller, and the permit is released.
#[tokio::test]
async fn errors_of_the_service_are_passed_on() {
    let world = World::new(IN_FLIGHT);
    let upstream = service_fn(|_: Request<Full<Bytes>>| async {
        Err::<Response<Full<Bytes>>, std::io::Error>(std::io::Error::other("broken"))
    });
    let error = world.layer().layer(upstream).oneshot(from("203.0.113.7", "/")).await;
    assert_eq!(error.err().unwrap().to_string(), "broken");
    assert_eq!(world.remaining(&[]), 3);
    assert_eq!(ask(&world.layer().layer(service_fn(hello)), from("203.0.113.7", "/")).await.status, 200);
}
