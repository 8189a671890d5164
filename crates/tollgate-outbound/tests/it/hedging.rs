//! Hedging: a second copy of a slow call, within all limits.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::task::JoinHandle;
use tollgate::{Clock, Engine, Ticks};
use tollgate_outbound::{
    CallError, CopyBody, Outbound, OutboundBody, OutboundLayer, OutboundMiddleware, SendOnce, Settings,
    metrics,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::fixture::{Client, call, left, run_tasks, settings};

type Answer = Result<Response<OutboundBody<Full<Bytes>>>, CallError>;

const OPEN: &str = "limits: [{name: open, by: [host], rate: 10_000/s}]";
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// How a request is answered: after how long, and with what status.
type Served = (Duration, u16);

/// A server that takes its time. It answers all requests after the listed ones with 200 at once.
#[derive(Clone, Default)]
struct SlowServer {
    answers: Arc<Mutex<VecDeque<Served>>>,
    received: Arc<AtomicUsize>,
    /// Requests that are neither answered nor cancelled.
    under_way: Arc<AtomicUsize>,
}

struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SlowServer {
    fn of(answers: &[Served]) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.iter().copied().collect())), ..Self::default() }
    }

    async fn serve(self, clock: Clock) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let _under_way = UnderWay::new(&self.under_way);
        let number = self.received.fetch_add(1, Ordering::Relaxed) + 1;
        let (time, status) = self.answers.lock().unwrap().pop_front().unwrap_or((Duration::ZERO, 200));
        clock.sleep_until(clock.now() + Ticks::ceil_from(time)).await;
        if status == 0 {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        Ok(Response::builder().status(status).header("number", number).body(Full::default()).unwrap())
    }

    fn send(&self, client: &Client, method: &str) -> JoinHandle<Answer> {
        self.send_copying(client, method, tollgate_outbound::CloneBody)
    }

    fn send_copying(
        &self,
        client: &Client,
        method: &str,
        copy: impl CopyBody<Full<Bytes>> + Clone,
    ) -> JoinHandle<Answer> {
        let (server, clock) = (self.clone(), client.outbound.clock().clone());
        let service = service_fn(move |_: Request<Full<Bytes>>| server.clone().serve(clock.clone()));
        let layer = OutboundLayer::builder(client.outbound.clone()).copy_body(copy).build();
        let request = Request::builder().method(method).uri("https://api.example.com/v1/charges/17");
        let request = request.body(Full::from("{}")).unwrap();
        tokio::spawn(layer.layer(service).oneshot(request))
    }

    fn requests(&self) -> (usize, usize) {
        (self.received.load(Ordering::Relaxed), self.under_way.load(Ordering::Relaxed))
    }
}

fn hedging(after: Duration) -> Settings {
    let mut settings = settings();
    settings.retry.hedge_after = Some(after);
    settings
}

/// Advances the clock until a call is answered. Returns the number of the request that was answered, and the
/// milliseconds that it took.
async fn answered(client: &Client, call: JoinHandle<Answer>) -> (String, u64) {
    let start = client.time.now();
    for _ in 0..10_000 {
        run_tasks().await;
        if call.is_finished() {
            let response = call.await.unwrap().unwrap();
            assert_eq!(response.status(), 200);
            let number = response.headers()["number"].to_str().unwrap().to_owned();
            return (number, client.time.now().since(start).as_micros() / 1_000);
        }
        client.advance(10 * MILLI).await;
    }
    panic!("no answer");
}

/// After the delay a second copy is sent. Its response comes first, the slow one is cancelled, and both permits are free.
#[tokio::test]
async fn the_first_good_response_wins() {
    let policy = "limits: [{name: flight, by: [host], concurrency: 2, permit_ttl: 10min}]";
    let client = Client::new(policy, hedging(200 * MILLI));
    let server = SlowServer::of(&[(60 * SECOND, 200), (100 * MILLI, 200)]);
    let slow = server.send(&client, "GET");
    assert_eq!(answered(&client, slow).await, ("2".to_owned(), 300));
    run_tasks().await;
    assert_eq!(server.requests(), (2, 0), "the slow request is cancelled");
    let report = client.outbound.report();
    assert_eq!((report.totals.calls, report.totals.hedges, report.totals.retries), (2, 1, 0));
    assert!(metrics::text(&report).contains("tollgate_outbound_hedges_total 1\n"));
    let free = [client.start(call()), client.start(call())];
    run_tasks().await;
    for call in free {
        left(call).await.finish(None).await;
    }
    // A first copy that is fast enough after all wins as well.
    let server = SlowServer::of(&[(300 * MILLI, 200), (60 * SECOND, 200)]);
    let slow = server.send(&client, "GET");
    assert_eq!(answered(&client, slow).await, ("1".to_owned(), 300));
    run_tasks().await;
    assert_eq!(server.requests(), (2, 0));
}

/// A copy that the server refuses waits as its call may, although it leaves at once or not at all.
#[tokio::test]
async fn a_copy_that_is_refused_waits_as_its_call() {
    let client = Client::new(OPEN, hedging(200 * MILLI));
    let server = SlowServer::of(&[(500 * MILLI, 503), (600 * MILLI, 429)]);
    let call = server.send(&client, "GET");
    let (number, millis) = answered(&client, call).await;
    assert!(number == "3" && millis >= 1_800, "{number} after {millis} ms");
}

/// By default no call is hedged. With the option, one is not that may be executed only once, whose body cannot be copied,
/// or that has no attempt left; nor is one that is answered before the delay.
#[tokio::test]
async fn only_slow_calls_that_are_safe_to_repeat_are_hedged() {
    let once = {
        let mut settings = hedging(200 * MILLI);
        settings.retry.attempts_max = 1;
        settings
    };
    for (settings, method, time, attempts) in [
        (settings(), "GET", SECOND, 1),
        (hedging(200 * MILLI), "POST", SECOND, 1),
        (hedging(200 * MILLI), "GET", 100 * MILLI, 1),
        (once, "GET", SECOND, 1),
        (hedging(200 * MILLI), "PUT", SECOND, 2),
    ] {
        let (client, server) = (Client::new(OPEN, settings), SlowServer::of(&[(time, 200)]));
        let call = server.send(&client, method);
        answered(&client, call).await;
        assert_eq!(server.requests().0, attempts, "{method} {time:?}");
    }
    let (client, server) = (Client::new(OPEN, hedging(200 * MILLI)), SlowServer::of(&[(SECOND, 200)]));
    let call = server.send_copying(&client, "GET", SendOnce);
    answered(&client, call).await;
    assert_eq!(server.requests().0, 1);
}

/// A copy leaves at once or not at all: it waits for no permit, not even one that is free a moment later.
#[tokio::test]
async fn a_copy_that_the_limits_hold_back_is_not_sent() {
    let policy = "limits: [{name: flight, by: [host], concurrency: 2, permit_ttl: 10min}]";
    let client = Client::new(policy, hedging(200 * MILLI));
    let server = SlowServer::of(&[(SECOND, 200)]);
    let other = client.outbound.acquire(&call()).await.unwrap();
    let slow = server.send(&client, "GET");
    run_tasks().await;
    client.advance(300 * MILLI).await;
    other.finish(None).await;
    assert_eq!(answered(&client, slow).await, ("1".to_owned(), 700));
    let totals = client.outbound.report().totals;
    assert_eq!((totals.calls, totals.hedges, totals.refused), (2, 0, 0));
}

/// Calls that wait for a limit leave as early as without hedging: a copy is behind all of them.
#[tokio::test]
async fn a_copy_takes_nothing_that_a_call_waits_for() {
    let client = Client::new("limits: [{name: slow, by: [host], rate: 1/s, burst: 2}]", hedging(2 * SECOND));
    let server = SlowServer::of(&[(60 * SECOND, 200)]);
    let slow = server.send(&client, "GET");
    run_tasks().await;
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    let waiting: Vec<_> = (0..4).map(|_| client.start(call())).collect();
    run_tasks().await;
    for (call, seconds) in waiting.into_iter().zip(1..) {
        client.advance(SECOND).await;
        assert!(call.is_finished(), "the call of second {seconds} still waits");
        call.await.unwrap().unwrap().finish(None).await;
    }
    assert_eq!(server.requests(), (1, 1));
    slow.abort();
}

/// Copies are paid from the retry budget of the server. One that is not sent costs nothing.
#[tokio::test]
async fn copies_are_paid_from_the_retry_budget() {
    let mut settings = hedging(200 * MILLI);
    (settings.retry.budget_reserve, settings.retry.budget_percent) = (1, 0);
    let policy = "limits: [{name: flight, by: [host], concurrency: 2, permit_ttl: 10min}]";
    let client = Client::new(policy, settings);
    let server = SlowServer::of(&[(SECOND, 200); 4]);
    let other = client.outbound.acquire(&call()).await.unwrap();
    let not_admitted = server.send(&client, "GET");
    answered(&client, not_admitted).await;
    assert_eq!(server.requests().0, 1);
    other.finish(None).await;
    for _ in 0..2 {
        let slow = server.send(&client, "GET");
        answered(&client, slow).await;
    }
    assert_eq!((server.requests().0, client.outbound.report().totals.hedges), (4, 1));
}

/// A copy that fails leaves the call to the other one, whichever that is. If both fail, the call is attempted again as
/// after any failure.
#[tokio::test]
async fn a_failed_copy_leaves_the_other_one() {
    for (answers, winner, attempts) in [
        ([(SECOND, 200), (100 * MILLI, 503)], "1", 2),
        ([(SECOND, 200), (100 * MILLI, 0)], "1", 2),
        ([(300 * MILLI, 503), (SECOND, 200)], "2", 2),
        ([(300 * MILLI, 0), (SECOND, 200)], "2", 2),
        ([(300 * MILLI, 503), (200 * MILLI, 503)], "3", 3),
    ] {
        let (client, server) = (Client::new(OPEN, hedging(200 * MILLI)), SlowServer::of(&answers));
        let call = server.send(&client, "GET");
        assert_eq!(answered(&client, call).await.0, winner, "{answers:?}");
        assert_eq!(server.requests(), (attempts, 0), "{answers:?}");
    }
}

/// The deadline of a call ends both copies, and holds nothing back.
#[tokio::test]
async fn a_deadline_ends_both_copies() {
    let client = Client::new(OPEN, hedging(200 * MILLI));
    let server = SlowServer::of(&[(60 * SECOND, 200), (60 * SECOND, 200)]);
    let (inner, clock) = (server.clone(), client.outbound.clock().clone());
    let service = service_fn(move |_: Request<Full<Bytes>>| inner.clone().serve(clock.clone()));
    let deadline = call().deadline(client.time.now() + Ticks::from_secs(1));
    let request = Request::get("https://api.example.com/").extension(deadline).body(Full::default()).unwrap();
    let answer = tokio::spawn(OutboundLayer::new(client.outbound.clone()).layer(service).oneshot(request));
    run_tasks().await;
    client.advance(500 * MILLI).await;
    assert_eq!(server.requests(), (2, 2));
    client.advance(SECOND).await;
    assert!(matches!(answer.await.unwrap(), Err(CallError::DeadlineExceeded)));
    assert_eq!(server.requests(), (2, 0));
    let in_flight = client.outbound.report().buckets.iter().map(|bucket| bucket.in_flight).sum::<u64>();
    assert_eq!(in_flight, 0);
}

/// The middleware of reqwest hedges, too: over TCP, before a server that never answers its first connection.
#[tokio::test]
async fn a_call_of_reqwest_is_hedged() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (silent, _) = listener.accept().unwrap();
        let (mut second, _) = listener.accept().unwrap();
        assert!(second.read(&mut [0; 1_024]).unwrap() > 0);
        second.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        silent
    });
    let engine = Engine::builder().policy("limits: []".parse().unwrap()).build();
    let outbound = Outbound::new(engine, hedging(50 * MILLI));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let client = reqwest_middleware::ClientBuilder::new(client)
        .with(OutboundMiddleware::from(OutboundLayer::new(outbound.clone())))
        .build();
    let response = client.get(format!("http://{address}/")).send().await.unwrap();
    assert_eq!(response.status(), 204);
    assert_eq!(outbound.report().totals.hedges, 1);
    drop(server.join().unwrap());
}
