//! The layer: what a client of HTTP sees of waits, refusals, retries and deadlines.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::task::JoinHandle;
use tollgate::Ticks;
use tollgate_outbound::{
    Basis, Call, CallError, Freeze, Outbound, OutboundBody, OutboundLayer, OutboundMiddleware, Refusal,
    RetrySettings, SendOnce, Settings, Signals, ThrottleKind, Usage,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::fixture::{Client, run_tasks, settings};

type Answer = Result<Response<OutboundBody<Full<Bytes>>>, CallError>;

/// An answer of the server, or the lack of one.
type Served = Result<Response<Full<Bytes>>, std::io::Error>;

const OPEN: &str = "limits: [{name: open, by: [host], rate: 10_000/s}]";

/// The requests that the server received, and its answers to come. After the last of them it answers 200.
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

/// The server may forbid another attempt. It may ask for one after any failure, but what is not safe is not repeated: a
/// charge that succeeded, or one that may have been made before the failure.
#[tokio::test]
async fn the_server_decides_about_retries() {
    for (method, key, status, should, attempts) in [
        ("GET", false, 500, "false", 1),
        ("GET", false, 409, "true", 2),
        ("POST", true, 409, "true", 2),
        ("POST", false, 409, "true", 1),
        ("POST", false, 500, "true", 1),
        ("POST", true, 200, "true", 1),
        ("GET", false, 304, "true", 1),
        ("POST", false, 529, "true", 2),
    ] {
        let client = Client::new(OPEN, settings());
        let server = Server::default().answers(status, &[("x-should-retry", should)], "");
        let mut call = request(method);
        if key {
            call = call.header("idempotency-key", "k");
        }
        let call = server.send(&client, call.body(body("")).unwrap());
        answered(&client, call).await.0.unwrap();
        assert_eq!(server.attempts(), attempts, "{method} {key} {status} {should}");
    }
}

/// A call that may not leave again gets the answer of its last attempt, whole, and not a refusal in its place.
#[tokio::test]
async fn a_retry_that_may_not_leave_keeps_the_answer() {
    let hourly = "limits: [{name: hourly, by: [host], rate: 1/h, burst: 1}]";
    for status in [429, 500] {
        let client = Client::new(hourly, settings());
        let server = Server::default().answers(status, &[("retry-after", "1"), ("x-one", "1")], "slow down");
        let call = server.send(&client, request("GET").body(body("")).unwrap());
        let answer = answered(&client, call).await.0.unwrap();
        assert_eq!((answer.status().as_u16(), server.attempts()), (status, 1));
        assert_eq!(answer.headers()["x-one"], "1");
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "slow down");
    }
    let client = Client::new(hourly, settings());
    let server = Server::default().fails(std::io::ErrorKind::ConnectionReset);
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    let error = answered(&client, call).await.0.err().unwrap();
    assert!(matches!(error, CallError::Failed(_)), "{error}");
}

/// While a call waits for its next attempt, the money runs out: it learns that, and not that it was too fast.
#[tokio::test]
async fn a_retry_learns_that_the_money_is_used_up() {
    let client = Client::new(OPEN, settings());
    let other = client.outbound.acquire(&Call::to("api.example.com")).await.unwrap();
    let server = Server::default().answers(429, &[("retry-after", "10")], "");
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    run_tasks().await;
    let headers = http::HeaderMap::new();
    let mut response = client.response(429, &headers);
    response.body = Some(br#"{"error":{"code":"insufficient_quota"}}"#);
    other.settle(&response, None).await.unwrap_err();
    let error = answered(&client, call).await.0.err().unwrap();
    let Some(Refusal::Exhausted { kind, .. }) = error.refusal() else { panic!("{error}") };
    assert_eq!((*kind, server.attempts()), (ThrottleKind::Money, 1));
}

/// An attempt that is over holds no permit while the call waits for the next one.
#[tokio::test]
async fn the_next_attempt_does_not_wait_for_the_permit_of_the_last() {
    for status in [429, 500] {
        let client = Client::new(
            "limits: [{name: flight, by: [host], concurrency: 1, permit_ttl: 10min}]",
            settings(),
        );
        let server = Server::default().answers(status, &[], "busy");
        let call = server.send(&client, request("GET").body(body("")).unwrap());
        let answer = answered(&client, call).await.0.unwrap();
        assert_eq!((answer.status().as_u16(), server.attempts()), (200, 2));
    }
}

/// GraphQL refuses calls with 200: the layer reads its bodies, learns the points, and sends the call again.
#[tokio::test]
async fn a_refusal_of_graphql_is_found_in_the_body() {
    const THROTTLED: &str = r#"{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],"extensions":
        {"cost":{"requestedQueryCost":202,"throttleStatus":
        {"maximumAvailable":1000.0,"currentlyAvailable":2,"restoreRate":50.0}}}}"#;
    const RATE_LIMITED: &str = r#"{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}"#;
    const SECONDARY: &str = r#"{"errors":[{"message":"You have exceeded a secondary rate limit."}]}"#;
    let json = ("content-type", "application/json; charset=utf-8");
    let github = [
        json,
        ("x-github-request-id", "1"),
        ("x-ratelimit-resource", "graphql"),
        ("x-ratelimit-limit", "5000"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "30"),
    ];
    for (path, headers, refusal, wait) in [
        ("/admin/api/2026-10/graphql.json", &[json][..], THROTTLED, 4),
        ("/graphql", &github[..], RATE_LIMITED, 30),
        ("/graphql", &[json, ("x-github-request-id", "1")][..], SECONDARY, 60),
    ] {
        let mut settings = settings();
        settings.max_wait = Duration::from_secs(120);
        let client = Client::new(OPEN, settings);
        let server = Server::default().answers(200, headers, refusal).answers(200, headers, r#"{"data":{}}"#);
        let call = Request::post(format!("https://api.example.com{path}")).body(body("{}")).unwrap();
        let (answer, seconds) = answered(&client, server.send(&client, call)).await;
        let text = answer.unwrap().into_body().collect().await.unwrap().to_bytes();
        assert_eq!((text.as_ref(), server.attempts()), (&br#"{"data":{}}"#[..], 2), "{refusal}");
        assert!((wait..=wait + wait / 10 + 1).contains(&seconds), "{seconds} {refusal}");
    }
}

/// A mutation of which a part was executed freezes its bucket, and is not sent again.
#[tokio::test]
async fn graphql_that_was_executed_in_part_is_not_sent_again() {
    const PARTIAL: &str = r#"{"data":{"charge":{"id":1}},"errors":[{"extensions":{"code":"THROTTLED"}}]}"#;
    let client = Client::new(OPEN, settings());
    let server = Server::default().answers(200, &[("content-type", "application/json")], PARTIAL);
    let call = Request::post("https://api.example.com/graphql").body(body("{}")).unwrap();
    let answer = answered(&client, server.send(&client, call)).await.0.unwrap();
    assert_eq!(server.attempts(), 1);
    assert!(answer.extensions().get::<Freeze>().is_some());
}

/// Anthropic answers 400 when the money is used up.
#[tokio::test]
async fn money_may_be_a_bad_request() {
    const CREDIT: &str = r#"{"type":"error","error":{"type":"invalid_request_error",
        "message":"Your credit balance is too low to access the Anthropic API."}}"#;
    let client = Client::new(OPEN, settings());
    let server = Server::default().answers(400, &[("content-type", "application/json")], CREDIT);
    for has_response in [true, false] {
        let call = server.send(&client, request("POST").body(body("")).unwrap());
        let error = answered(&client, call).await.0.err().unwrap();
        let is_money = matches!(error.refusal(), Some(Refusal::Exhausted { kind: ThrottleKind::Money, .. }));
        assert!(is_money, "{error}");
        assert_eq!(error.response().map(|response| response.status().as_u16()), has_response.then_some(400));
    }
}

/// A body that never comes.
struct Silence;

impl http_body::Body for Silence {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        std::task::Poll::Pending
    }
}

/// The head of a stream does not wait for its body, and that of a slow body of GraphQL not for long.
#[tokio::test]
async fn streams_are_not_delayed() {
    for (path, kind, is_immediate) in [
        ("/v1/messages", "application/json", true),
        ("/graphql", "text/event-stream", true),
        ("/graphql", "multipart/mixed", true),
        ("/graphql", "application/json", false),
    ] {
        let client = Client::new(OPEN, settings());
        let service = service_fn(move |_: Request<Full<Bytes>>| async move {
            Ok::<_, std::io::Error>(Response::builder().header("content-type", kind).body(Silence).unwrap())
        });
        let service = OutboundLayer::new(client.outbound.clone()).layer(service);
        let call = Request::post(format!("https://api.example.com{path}")).body(body("")).unwrap();
        let call = tokio::spawn(service.oneshot(call));
        run_tasks().await;
        assert_eq!(call.is_finished(), is_immediate, "{path} {kind}");
        client.advance(Duration::from_secs(1)).await;
        assert!(call.is_finished(), "{path} {kind}");
    }
}

/// `UNAVAILABLE` of gRPC is a failure: a call that may be executed twice is sent again, and five in a row open the
/// circuit.
#[tokio::test]
async fn an_unavailable_grpc_service_is_a_failure() {
    let unavailable = [("content-type", "application/grpc"), ("grpc-status", "14")];
    for (call, attempts) in [(Call::new(), 1), (Call::new().repeatable(), 2)] {
        let client = Client::new(OPEN, settings());
        let server = Server::default().answers(200, &unavailable, "");
        let call = request("POST").extension(call).body(body("")).unwrap();
        answered(&client, server.send(&client, call)).await.0.unwrap();
        assert_eq!(server.attempts(), attempts);
    }
    let client = Client::new(OPEN, settings());
    let server = (0..6).fold(Server::default(), |server, _| server.answers(200, &unavailable, ""));
    for failures in 1..=6 {
        let call = server.send(&client, request("POST").body(body("")).unwrap());
        let refusal = answered(&client, call).await.0.err();
        assert_eq!(refusal.is_some(), failures > 5, "{failures}");
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

/// A used-up budget of money is no matter of waiting: the call that learns of it fails at once with the instant and the
/// response of the server, and further calls with the same instant.
#[tokio::test]
async fn money_is_an_error_with_its_instant() {
    const QUOTA: &str = r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    let client = Client::new(OPEN, settings());
    let server = Server::default().answers(429, &[("content-type", "application/json")], QUOTA);
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    let (answer, seconds) = answered(&client, call).await;
    let first = answer.err().unwrap();
    let refusal = first.refusal().unwrap().clone();
    let Refusal::Exhausted { kind, until, bucket, .. } = &refusal else { panic!("{first}") };
    let response = first.into_response().unwrap();
    assert_eq!((response.status().as_u16(), seconds, server.attempts()), (429, 0, 1));
    let freeze = *response.extensions().get::<Freeze>().unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), QUOTA);
    assert_eq!((*kind, *until, bucket.as_str()), (ThrottleKind::Money, freeze.until, "api.example.com"));
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    let error = answered(&client, call).await.0.err().unwrap();
    assert!(error.refusal() == Some(&refusal) && error.response().is_none(), "{error}");
    assert_eq!(server.attempts(), 1);
}

/// The quota of a day is an error at once, also if its `Retry-After` is within the longest wait.
#[tokio::test]
async fn a_day_is_an_error_also_for_a_patient_call() {
    const DAY: &str = r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[
        {"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"RequestsPerDayPerProject"}]}]}}"#;
    let client = Client::new(OPEN, settings());
    let server = Server::default().answers(429, &[("retry-after", "7200")], DAY);
    let patient = Call::new().max_wait(Duration::from_secs(86_400));
    let call = server.send(&client, request("GET").extension(patient).body(body("")).unwrap());
    let (answer, seconds) = answered(&client, call).await;
    let error = answer.err().unwrap();
    let Some(Refusal::Exhausted { kind, wait, .. }) = error.refusal() else { panic!("{error}") };
    assert_eq!((*kind, seconds, server.attempts()), (ThrottleKind::Day, 0, 1));
    assert!(*wait >= Ticks::from_secs(7_200), "{wait:?}");
}

/// A call that the server refuses for longer than it may wait fails at once, with the response of the server. The next one
/// gets the same refusal, without a response.
#[tokio::test]
async fn a_refusal_beyond_the_longest_wait_is_an_error_at_once() {
    for (method, status, fields) in [
        ("POST", 429, &[("retry-after", "3600")][..]),
        // The server forbids another attempt, and says until when.
        ("GET", 429, &[("retry-after", "3600"), ("x-should-retry", "false")]),
        ("GET", 503, &[("retry-after", "3600")]),
    ] {
        let client = Client::new(OPEN, settings());
        let server = Server::default().answers(status, fields, "for an hour");
        let call = server.send(&client, request(method).body(body("")).unwrap());
        let (answer, seconds) = answered(&client, call).await;
        let first = answer.err().unwrap();
        let Some(Refusal::TooLate { bucket, basis, until, .. }) = first.refusal() else { panic!("{first}") };
        assert_eq!((bucket.as_str(), *basis, seconds), ("api.example.com", Basis::Server, 0));
        assert!(until.since(client.time.now()) >= Ticks::from_secs(3_600), "{first}");
        let next = server.send(&client, request(method).body(body("")).unwrap());
        let next = answered(&client, next).await.0.err().unwrap();
        assert_eq!((next.refusal(), server.attempts()), (first.refusal(), 1));
        assert!(next.response().is_none(), "{next}");
        let response = first.into_response().unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (status, &"3600".parse().unwrap())
        );
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "for an hour");
    }
}

/// An overloaded server may have begun a call that is not safe to repeat, and GraphQL may have executed a part: these keep
/// their response, however long the server wants to be left alone.
#[tokio::test]
async fn a_call_that_may_be_executed_keeps_its_response() {
    const PARTIAL: &str = r#"{"data":{"charge":{"id":1}},"errors":[{"type":"RATE_LIMITED"}]}"#;
    let json = ("content-type", "application/json");
    for (path, status, body_text) in [("/v1/charges", 503, "busy"), ("/graphql", 200, PARTIAL)] {
        let client = Client::new(OPEN, settings());
        let server = Server::default().answers(status, &[json, ("retry-after", "3600")], body_text);
        let call = Request::post(format!("https://api.example.com{path}")).body(body("{}")).unwrap();
        let answer = answered(&client, server.send(&client, call)).await.0.unwrap();
        assert_eq!((answer.status().as_u16(), server.attempts()), (status, 1));
        let freeze = answer.extensions().get::<Freeze>().unwrap();
        assert!(freeze.until.since(client.time.now()) >= Ticks::from_secs(3_600), "{path}");
    }
}

/// A long body in an error arrives whole, and its call holds no permit.
#[tokio::test]
async fn a_long_body_in_an_error_is_whole() {
    let long = "x".repeat(200_000).leak();
    let client = Client::new("limits: [{name: flight, by: [host], concurrency: 1}]", settings());
    let server = Server::default().answers(429, &[("retry-after", "3600")], long);
    let call = server.send(&client, request("GET").body(body("")).unwrap());
    let error = answered(&client, call).await.0.err().unwrap();
    run_tasks().await;
    assert_eq!(client.outbound.report().buckets.iter().map(|bucket| bucket.in_flight).sum::<u64>(), 0);
    let response = error.into_response().unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), long.len());
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

/// Deadlines of the client say nothing about the server: they open no circuit.
#[tokio::test]
async fn deadlines_of_the_client_open_no_circuit() {
    let client = Client::new(OPEN, settings());
    let never = service_fn(|_: Request<Full<Bytes>>| std::future::pending::<Served>());
    let service = OutboundLayer::new(client.outbound.clone()).layer(never);
    for _ in 0..6 {
        let deadline = client.time.now() + Ticks::from_millis(10);
        let call = request("GET").extension(Call::new().deadline(deadline)).body(body("")).unwrap();
        let call = tokio::spawn(service.clone().oneshot(call));
        run_tasks().await;
        client.advance(Duration::from_millis(10)).await;
        let error = call.await.unwrap().err().unwrap();
        assert!(matches!(error, CallError::DeadlineExceeded), "{error}");
    }
    assert_eq!(client.outbound.report().totals.failed, 0);
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
                std::str::from_utf8(&text).ok()?.strip_prefix("usage=")?.parse().ok().map(Usage::of_cost)
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

/// Each limit is settled at what it counts of the usage. An estimate that a limit never admits waits as what it admits at
/// once, instead of being refused for ever; a number that is no estimate is refused.
#[tokio::test]
async fn estimates_are_settled_limit_by_limit() {
    let policy = "limits: [{name: input, by: [host], rate: 100/h, cost: input_tokens}, \
                  {name: output, by: [host], rate: 100/h, cost: max_tokens}]";
    let client = Client::new(policy, settings());
    let server = Server::default().answers(200, &[], "answer");
    let layer = OutboundLayer::builder(client.outbound.clone())
        .usage(|_, _| {
            Some(Box::new(|_: &[u8]| {
                Some(Usage::of_cost(60).with("input_tokens", 40).with("max_tokens", 20))
            }))
        })
        .build();
    let call = |input, output| {
        let call = Call::to("api.example.com").max_wait(Duration::ZERO);
        call.with_estimate("input_tokens", input).unwrap().with_estimate("max_tokens", output).unwrap()
    };
    let request = request("POST").extension(call(30, 500)).body(body("")).unwrap();
    let response = layer.layer(server.service()).oneshot(request).await.unwrap();
    assert!(client.outbound.acquire(&call(0, 1)).await.is_err(), "the output takes all that there is");
    response.into_body().collect().await.unwrap();
    run_tasks().await;
    client.outbound.acquire(&call(60, 80)).await.unwrap().finish(None).await;
    assert!(client.outbound.acquire(&call(1, 0)).await.is_err());
    let stated = Call::to("api.example.com").with_number("input_tokens", 1).unwrap();
    let stated = stated.with_number("max_tokens", 101).unwrap();
    assert!(matches!(client.outbound.acquire(&stated).await, Err(Refusal::Never { capacity: 100, .. })));
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

/// The middleware of reqwest returns the refusal as an error of its own, from which the response can be taken.
#[tokio::test]
async fn a_refusal_of_reqwest_has_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 1_024]).unwrap() > 0);
        stream
            .write_all(b"HTTP/1.1 429 Slow Down\r\nRetry-After: 3600\r\nContent-Length: 4\r\n\r\nlate")
            .unwrap();
    });
    let outbound = Outbound::of_policy("limits: []".parse().unwrap());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let client = reqwest_middleware::ClientBuilder::new(client)
        .with(OutboundMiddleware::from(OutboundLayer::new(outbound)))
        .build();
    let error = client.get(format!("http://{address}/")).send().await.unwrap_err();
    let reqwest_middleware::Error::Middleware(error) = error else { panic!("{error}") };
    let error = error.downcast::<CallError>().unwrap();
    assert!(matches!(error.refusal(), Some(Refusal::TooLate { basis: Basis::Server, .. })), "{error}");
    let response = error.into_response().unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(reqwest::Body::wrap(response.into_body()).collect().await.unwrap().to_bytes(), "late");
    server.join().unwrap();
}
