//! A shaping limit makes requests wait in a queue.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};

use crate::limited::{World, ask, from, hello};

type Call = Pin<Box<dyn Future<Output = u16> + Send>>;

/// Records that it was woken.
struct Woken(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

fn poll(call: &mut Call) -> Option<u16> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(status) => Some(status),
        Poll::Pending => None,
    }
}

/// A request waits to the exact tick, and its response states the wait.
#[tokio::test]
async fn a_request_waits_for_its_slot() {
    let world = World::new("  - {name: shaped, algorithm: leaky-bucket, rate: 10/s, queue: 5}");
    let service = world.layer().layer(service_fn(hello));
    assert_eq!(service.clone().oneshot(from("203.0.113.7", "/")).await.unwrap().status(), 200);
    let mut waiting = Box::pin(service.oneshot(from("203.0.113.7", "/")));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    world.time.advance(Duration::from_micros(99_999));
    assert!(waiting.as_mut().poll(&mut context).is_pending(), "a tick early");
    world.time.advance(Duration::from_micros(1));
    let Poll::Ready(Ok(response)) = waiting.as_mut().poll(&mut context) else { panic!("its slot has come") };
    assert_eq!(response.headers()["tollgate-waited-ms"], "100");
    assert_eq!(response.headers()["tollgate-queue-depth"], "2", "one in service, and itself");
}

/// Ten thousand requests leave in the order of their arrival. Those that disconnect leave the queue, and each slot wakes one
/// waiter.
#[tokio::test]
async fn ten_thousand_wait_in_order() {
    const WAITERS: usize = 10_000;
    let world = World::new("  - {name: shaped, algorithm: leaky-bucket, rate: 1000/s, queue: 20000}");
    let served = Arc::new(Mutex::new(Vec::new()));
    let upstream = {
        let served = Arc::clone(&served);
        service_fn(move |request: Request<Full<Bytes>>| {
            let number: usize = request.uri().path()[1..].parse().unwrap();
            served.lock().unwrap().push(number);
            async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
        })
    };
    let service = world.layer().wait_at_most(Duration::from_secs(60)).layer(upstream);
    let woken = Arc::new(Mutex::new(Vec::new()));
    let mut calls: Vec<Option<Call>> = Vec::new();
    for number in 0..WAITERS {
        let service = service.clone();
        let mut call: Call = Box::pin(async move {
            service.oneshot(from("203.0.113.7", &format!("/{number}"))).await.unwrap().status().as_u16()
        });
        let waker = Waker::from(Arc::new(Woken(number, Arc::clone(&woken))));
        let _ = call.as_mut().poll(&mut Context::from_waker(&waker));
        calls.push(Some(call));
    }
    // Every tenth request disconnects while it waits.
    let is_gone = |number: usize| number % 10 == 7;
    for number in (0..WAITERS).filter(|number| is_gone(*number)) {
        calls[number] = None;
    }
    for _ in 0..WAITERS / 10 {
        world.time.advance(Duration::from_millis(10));
        let slots = std::mem::take(&mut *woken.lock().unwrap());
        assert!(slots.len() <= 10, "ten waiters have a slot, and no other is woken: {}", slots.len());
        for number in slots {
            if let Some(mut call) = calls[number].take() {
                assert_eq!(poll(&mut call), Some(200), "a woken waiter passes");
            }
        }
    }
    let expected: Vec<usize> = (0..WAITERS).filter(|number| !is_gone(*number)).collect();
    assert_eq!(*served.lock().unwrap(), expected);
}

/// Half of ten thousand waiters leave. That wakes no waiter, and the rest is served in half of the time, one for each slot.
#[tokio::test]
async fn half_of_ten_thousand_waiters_leave() {
    const WAITERS: usize = 10_000;
    let world = World::new("  - {name: shaped, algorithm: leaky-bucket, rate: 1000/s, queue: 10000}");
    let service = world.layer().layer(service_fn(hello));
    assert_eq!(service.clone().oneshot(from("203.0.113.7", "/")).await.unwrap().status(), 200);
    let woken = Arc::new(Mutex::new(Vec::new()));
    let mut calls: Vec<Option<Call>> = Vec::new();
    for number in 0..WAITERS {
        let service = service.clone();
        let mut call: Call =
            Box::pin(
                async move { service.oneshot(from("203.0.113.7", "/")).await.unwrap().status().as_u16() },
            );
        let waker = Waker::from(Arc::new(Woken(number, Arc::clone(&woken))));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        calls.push(Some(call));
    }
    for number in (0..WAITERS).step_by(2) {
        calls[number] = None;
    }
    assert!(woken.lock().unwrap().is_empty(), "leaving wakes no waiter");
    let mut through = Vec::new();
    for _ in 0..WAITERS / 2 {
        world.time.advance(Duration::from_millis(1));
        let slots = std::mem::take(&mut *woken.lock().unwrap());
        assert_eq!(slots.len(), 1, "each slot wakes one waiter");
        let mut call = calls[slots[0]].take().unwrap();
        assert_eq!(poll(&mut call), Some(200));
        through.extend(slots);
    }
    assert_eq!(through, (1..WAITERS).step_by(2).collect::<Vec<_>>());
}

/// A waiter that disconnects leaves its slot to later requests.
#[tokio::test]
async fn a_waiter_that_disconnects_frees_its_slot() {
    let world = World::new("  - {name: shaped, algorithm: leaky-bucket, rate: 1/s, queue: 2}");
    let service = world.layer().layer(service_fn(hello));
    let call = || -> Call {
        let service = service.clone();
        Box::pin(async move { service.oneshot(from("203.0.113.7", "/")).await.unwrap().status().as_u16() })
    };
    assert_eq!(poll(&mut call()), Some(200));
    let (mut first, mut second) = (call(), call());
    assert_eq!((poll(&mut first), poll(&mut second)), (None, None));
    assert_eq!(poll(&mut call()), Some(429), "the queue is full");
    drop(second);
    let mut third = call();
    assert_eq!(poll(&mut third), None, "there is a place again");
    world.time.advance(Duration::from_secs(1));
    assert_eq!(poll(&mut first), Some(200));
    world.time.advance(Duration::from_secs(1));
    assert_eq!(poll(&mut third), Some(200));
}

/// A request that would wait too long is refused immediately and is not charged. The refusal says when the wait is short
/// enough.
#[tokio::test]
async fn a_request_that_cannot_wait_is_refused_immediately() {
    let world = World::new("  - {name: shaped, algorithm: leaky-bucket, rate: 1/s, queue: 100}");
    let service = world.layer().wait_at_most(Duration::from_secs(2)).layer(service_fn(hello));
    let call = |timeout: Option<&str>| -> Call {
        let mut request = from("203.0.113.7", "/");
        if let Some(timeout) = timeout {
            request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
            request.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
        }
        let service = service.clone();
        Box::pin(async move { service.oneshot(request).await.unwrap().status().as_u16() })
    };
    assert_eq!(poll(&mut call(None)), Some(200));
    // A refused gRPC call is HTTP 200 with a gRPC status.
    assert_eq!(poll(&mut call(Some("500m"))), Some(200), "its deadline is before its slot");
    let mut waiting = [call(None), call(None)];
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    for _ in 0..5 {
        assert_eq!(poll(&mut call(None)), Some(429), "the third would wait for three seconds");
    }
    world.time.advance(Duration::from_secs(1));
    assert_eq!(poll(&mut waiting[0]), Some(200));
    assert_eq!(poll(&mut call(None)), None, "refusals take no queue slot");
}

/// `grpc-timeout` is the deadline of a gRPC call. In other requests it has no meaning.
#[tokio::test]
async fn only_grpc_calls_have_a_deadline() {
    let world = World::new("  - {name: shaped, algorithm: leaky-bucket, rate: 1/s, queue: 100}");
    let service = world.layer().layer(service_fn(hello));
    let call = |kind: &str| -> Call {
        let mut request = from("203.0.113.7", "/");
        request.headers_mut().insert("grpc-timeout", "500m".parse().unwrap());
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        let service = service.clone();
        Box::pin(async move { service.oneshot(request).await.unwrap().status().as_u16() })
    };
    assert_eq!(poll(&mut call("text/plain")), Some(200));
    assert_eq!(poll(&mut call("text/plain")), None, "it waits");
    assert_eq!(poll(&mut call("application/grpc")), Some(200), "it is refused, as calls are");
}

/// A refusal of a full queue states the rate and the capacity of the queue, and not their sum as a rate. The queue holds as
/// many requests as the policy says, however long their wait.
#[tokio::test]
async fn a_full_queue_states_its_rate_and_capacity() {
    let world = World::new("  - {name: shaped, by: [ip], algorithm: leaky-bucket, rate: 1/min, queue: 100}");
    let service = world.layer().layer(service_fn(hello));
    assert_eq!(ask(&service, from("203.0.113.7", "/")).await.status, 200);
    let call = || -> Call {
        let service = service.clone();
        Box::pin(async move { service.oneshot(from("203.0.113.7", "/")).await.unwrap().status().as_u16() })
    };
    let mut queue: Vec<Call> = (0..100).map(|_| call()).collect();
    assert!(
        queue.iter_mut().all(|call| poll(call).is_none()),
        "a hundred wait, the last for a hundred minutes"
    );
    let refused = ask(&service, from("203.0.113.7", "/")).await;
    assert_eq!(refused.status, 429);
    let detail = "shaped: 1 per 60 s, evenly spaced, at most 100 waiting";
    assert!(refused.body.contains(detail), "{}", refused.body);
    world.time.advance(Duration::from_secs(6_000));
    assert!(queue.iter_mut().all(|call| poll(call) == Some(200)));
}
