//! The layer: what a client of HTTP sees of waits, refusals, retries and deadlines.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::task::JoinHandle;
use tollgate::Ticks;
use tollgate_outbound::{
    Call, CallError, Freeze, OutboundBody, OutboundLayer, Refusal, RetrySettings, SendOnce, Settings,
    Signals, ThrottleKind,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::fixture::{Client, run_tasks, settings};

type Answer = Result<Response<OutboundBody<Full<Bytes>>>, CallError>;

/// An answer of the server, or the lack of one.
type Served = Result<Response<Full<Bytes>>, std::io::Error>;

const OPEN: &str = "limits: [{name: open, by: [host], rate: 10_000/s}]";

/// What the server received, and its answers to come. After the last of them it answers 200.
#[derive(Clone, Default)]
struct Server {
    answers: Arc<Mutex<VecDeque<Served>>>,
    received: Arc<Mutex<Vec<Request<Full<Bytes>>>>>,
}

impl Server {
    fn answers(self, status: u16, headers: &[(&str, &str)], body: &'static str) -> Self {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        self.answers.lock().unwrap().push_back(Ok(response.body(body.into()).unwrap()));
        self
    }

    fn fails(self, kind: std::io::ErrorKind) -> Self {
        self.answers.lock().unwrap().push_back(Err(kind.into()));
        self
    }

    fn attempts(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    fn service(
        &self,
    ) -> impl Service<
        Request<Full<Bytes>>,
        Response = Response<Full<Bytes>>,
        Error = std::io::Error,
        Future: Send,
    >
    + Clone
    + Send
    + 'static
    + use<> {
        let server = self.clone();
        service_fn(move |request| {
            server.received.lock().unwrap().push(request);
            let answer = server.answers.lock().unwrap().pop_front();
            async move { answer.unwrap_or_else(|| Ok(Response::new(Full::default()))) }
        })
    }

    fn send(&self, client: &Client, request: Request<Full<Bytes>>) -> JoinHandle<Answer> {
        let service = OutboundLayer::new(client.outbound.clone()).layer(self.service());
        tokio::spawn(service.oneshot(request))
    }
}

fn request(method: &str) -> http::request::Builder {
    Request::builder().method(method).uri("https://api.example.com/v1/payments/17")
}

fn body(text: &'static str) -> Full<Bytes> {
    Full::new(Bytes::from_static(text.as_bytes()))
}

/// Advances the clock until a call is answered; returns the answer and the whole seconds that it took.
async fn answered(client: &Client, call: JoinHandle<Answer>) -> (Answer, u64) {
    let start = client.time.now();
    for _ in 0..10_000 {
        run_tasks().await;
        if call.is_finished() {
            return (call.await.unwrap(), client.time.now().since(start).as_micros() / 1_000_000);
        }
        client.advance(Duration::from_millis(50)).await;
    }
    panic!("no answer");
}

/// A refused call waits as long as the server says and is sent again, with its body and its key. It may be a POST: the
/// server has not executed it.
#[tokio::test]
async fn a_refused_call_is_sent_again_after_the_time_of_the_server() {
    let client = Client::new(OPEN, settings());
    let server = Server::default().answers(429, &[("retry-after", "7")], "slow down");
    let call = request("POST").header("idempotency-key", "k-1").body(body("17 EUR")).unwrap();
    let (answer, seconds) = answered(&client, server.send(&client, call)).await;
    assert_eq!(answer.unwrap().status(), StatusCode::OK);
    assert!((7..9).contains(&seconds), "{seconds}");
    let received = std::mem::take(&mut *server.received.lock().unwrap());
    assert_eq!(received.len(), 2);
    for request in received {
        assert_eq!(request.headers()["idempotency-key"], "k-1");
        assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), "17 EUR");
    }
    assert_eq!(client.outbound.report().totals.retries, 1);
}

/// A failure is followed by another attempt only if the call may be executed twice, or was not sent.
#[tokio::test]
async fn only_safe_calls_are_sent_again_after_a_failure() {
    use std::io::ErrorKind::{ConnectionRefused, ConnectionReset};
    for (method, key, failure, attempts) in [
        ("GET", false, None, 2),
        ("POST", false, None, 1),
        ("POST", true, None, 2),
        ("GET", false, Some(ConnectionReset), 2),
        ("POST", false, Some(ConnectionReset), 1),
        ("POST", false, Some(ConnectionRefused), 2),
    ] {
        let client = Client::new(OPEN, settings());
        let server = match failure {
            None => Server::default().answers(502, &[], ""),
            Some(kind) => Server::default().fails(kind),
        };
        let mut call = request(method);
        if key {
            call = call.header("idempotency-key", "k");
        }
        let (answer, _) = answered(&client, server.send(&client, call.body(body("x")).unwrap())).await;
        assert_eq!(server.attempts(), attempts, "{method} {key} {failure:?}");
        assert_eq!(
            answer.is_ok_and(|answer| answer.status() == 200),
            attempts == 2,
            "{method} {key} {failure:?}"
        );
    }
}

/// The server's word about retries wins over the rules.
#[tokio::test]
async fn the_server_decides_about_retries() {
    for (method, should, attempts) in [("GET", "false", 1), ("POST", "true", 2)] {
        let client = Client::new(OPEN, settings());
        let server = Server::default().answers(500, &[("x-should-retry", should)], "");
        let call = server.send(&client, request(method).body(body("")).unwrap());
        answered(&client, call).await.0.unwrap();
        assert_eq!(server.attempts(), attempts, "{method} {should}");
    }
}

/// A call is attempted three times at most, and the last response comes back whole.
#[tokio::test]
async fn the_last_response_comes_back_unchanged() {
    let client = Client::new(OPEN, settings());
    let server = (0..5).fold(Server::default(), |server, _| server.answers(503, &[("x-one", "1")], "busy"));
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    let answer = answered(&client, call).await.0.unwrap();
    assert_eq!((answer.status().as_u16(), server.attempts()), (503, 3));
    assert_eq!(answer.headers()["x-one"], "1");
    assert!(answer.extensions().get::<Signals>().is_some());
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "busy");
}

/// A server that fails always gets retries for a tenth of the calls, once its reserve is used.
#[tokio::test]
async fn all_callers_of_a_server_share_a_retry_budget() {
    let mut settings = settings();
    settings.retry = {
        let mut retry = RetrySettings::default();
        retry.budget_reserve = 2;
        retry
    };
    let client = Client::new(OPEN, settings);
    let mut attempts = 0;
    for _ in 0..20 {
        // Four failures at most in a row: the circuit stays closed.
        let server = Server::default().answers(500, &[], "");
        let call = server.send(&client, request("GET").body(body("")).unwrap());
        let _ = answered(&client, call).await.0;
        attempts += server.attempts();
        let server = Server::default();
        let call = server.send(&client, request("GET").body(body("")).unwrap());
        answered(&client, call).await.0.unwrap();
        attempts += server.attempts();
    }
    // 40 calls, two retries at first, and one for every ten calls.
    assert!((44..=46).contains(&attempts), "{attempts}");
}

/// A used-up budget of money is no matter of waiting: its response comes back with the instant, and further calls are
/// refused at once with the same instant.
#[tokio::test]
async fn money_is_an_error_with_its_instant() {
    const QUOTA: &str = r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    let client = Client::new(OPEN, settings());
    let server = Server::default().answers(429, &[("content-type", "application/json")], QUOTA);
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    let (answer, seconds) = answered(&client, call).await;
    let answer = answer.unwrap();
    assert_eq!((answer.status().as_u16(), seconds, server.attempts()), (429, 0, 1));
    let freeze = *answer.extensions().get::<Freeze>().unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), QUOTA);
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    let error = answered(&client, call).await.0.err().unwrap();
    let Some(Refusal::Exhausted { kind, until, bucket, .. }) = error.refusal() else { panic!("{error}") };
    assert_eq!(
        (*kind, *until, bucket.as_str()),
        (ThrottleKind::Money, Some(freeze.until), "api.example.com")
    );
    assert_eq!(server.attempts(), 1);
}

/// A refusal that lasts longer than the call may wait comes back at once.
#[tokio::test]
async fn a_refusal_beyond_the_longest_wait_is_not_slept_through() {
    let client = Client::new(OPEN, settings());
    let server = Server::default().answers(429, &[("retry-after", "3600")], "");
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    let (answer, seconds) = answered(&client, call).await;
    assert_eq!((answer.unwrap().status().as_u16(), seconds, server.attempts()), (429, 0, 1));
}

/// The deadline of a call ends its wait and its attempt, and no further attempt begins after it.
#[tokio::test]
async fn a_deadline_bounds_the_attempt() {
    let client = Client::new(OPEN, settings());
    let never = service_fn(|_: Request<Full<Bytes>>| std::future::pending::<Served>());
    let service = OutboundLayer::new(client.outbound.clone()).layer(never);
    let deadline = client.time.now() + Ticks::from_secs(2);
    let call = request("GET").extension(Call::new().deadline(deadline)).body(body("")).unwrap();
    let call = tokio::spawn(service.oneshot(call));
    run_tasks().await;
    assert!(!call.is_finished());
    client.advance(Duration::from_secs(2)).await;
    assert!(matches!(call.await.unwrap(), Err(CallError::DeadlineExceeded)));
    assert_eq!(client.outbound.report().buckets.iter().map(|bucket| bucket.in_flight).sum::<u64>(), 0);
}

/// A permit is held until the body of the response has ended, or is dropped.
#[tokio::test]
async fn a_permit_is_held_until_the_end_of_the_body() {
    let client =
        Client::new("limits: [{name: flight, by: [host], concurrency: 1, permit_ttl: 30s}]", settings());
    let server = Server::default().answers(200, &[], "first").answers(200, &[], "second");
    let get = || server.send(&client, request("GET").body(body("")).unwrap());
    let first = get();
    run_tasks().await;
    let first = first.await.unwrap().unwrap();
    let second = get();
    run_tasks().await;
    assert!(!second.is_finished());
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "first");
    run_tasks().await;
    let second = second.await.unwrap().unwrap();
    let third = get();
    run_tasks().await;
    assert!(!third.is_finished());
    drop(second);
    run_tasks().await;
    assert!(third.is_finished());
}

/// The actual cost is read out of the body as it passes, and the rest of the estimate is there for others.
#[tokio::test]
async fn a_call_is_settled_at_the_usage_in_its_body() {
    let client = Client::new("limits: [{name: tokens, by: [host], rate: 100/h}]", settings());
    let server = Server::default().answers(200, &[], "usage=40");
    let layer = OutboundLayer::builder(client.outbound.clone())
        .usage(|_, head| {
            assert_eq!(head.status, 200);
            let mut text = Vec::new();
            Some(Box::new(move |piece: &[u8]| {
                text.extend_from_slice(piece);
                std::str::from_utf8(&text).ok()?.strip_prefix("usage=")?.parse().ok()
            }))
        })
        .build();
    let call = request("GET").extension(Call::new().cost(100).unwrap()).body(body("")).unwrap();
    let response = layer.layer(server.service()).oneshot(call).await.unwrap();
    response.into_body().collect().await.unwrap();
    run_tasks().await;
    let rest = Call::to("api.example.com").cost(60).unwrap().max_wait(Duration::ZERO);
    client.outbound.acquire(&rest).await.unwrap().finish(None).await;
}

/// A body that cannot be copied is sent once.
#[tokio::test]
async fn a_body_without_a_copy_is_sent_once() {
    let client = Client::new(OPEN, settings());
    let server = Server::default().answers(429, &[("retry-after", "1")], "");
    let layer = OutboundLayer::builder(client.outbound.clone()).copy_body(SendOnce).build();
    let call = tokio::spawn(layer.layer(server.service()).oneshot(request("GET").body(body("")).unwrap()));
    let (answer, _) = answered(&client, call).await;
    assert_eq!((answer.unwrap().status().as_u16(), server.attempts()), (429, 1));
}

/// A future that is dropped in an attempt leaves nothing behind.
#[tokio::test]
async fn a_dropped_call_leaves_nothing() {
    let mut settings: Settings = settings();
    settings.max_wait = Duration::ZERO;
    let client = Client::new("limits: [{name: flight, by: [host], concurrency: 1}]", settings);
    let never = service_fn(|_: Request<Full<Bytes>>| std::future::pending::<Served>());
    let service = OutboundLayer::new(client.outbound.clone()).layer(never);
    let call = tokio::spawn(service.oneshot(request("GET").body(body("")).unwrap()));
    run_tasks().await;
    let server = Server::default();
    let refused = server.send(&client, request("GET").body(body("")).unwrap());
    assert!(answered(&client, refused).await.0.is_err(), "the permit is taken");
    call.abort();
    run_tasks().await;
    let next = server.send(&client, request("GET").body(body("")).unwrap());
    answered(&client, next).await.0.unwrap();
}
