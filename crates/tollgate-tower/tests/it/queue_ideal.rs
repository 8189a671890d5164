//! A queue moves up when a waiter leaves. It matches the ideal queue to the tick, for all arrivals, costs, timeouts and
//! departures.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proptest::prelude::*;
use tollgate::Policy;
use tower::{Layer, ServiceExt, service_fn};

use crate::ideal::IdealQueue;
use crate::limited::{World, from};

type Call = Pin<Box<dyn Future<Output = u16> + Send>>;
type Left = Vec<(usize, u64)>;

/// The requests that wait at a layer, and the departures so far.
struct QueuedRequests {
    world: World,
    waiting: Vec<(usize, Call)>,
    left: Arc<Mutex<Left>>,
    make: Box<dyn Fn(Request<Full<Bytes>>) -> Call>,
}

fn is_over(call: &mut Call) -> bool {
    matches!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

impl QueuedRequests {
    fn new(limits: &str) -> Self {
        let world = World::new(limits);
        let left = Arc::new(Mutex::new(Left::new()));
        let (seen, clock) = (Arc::clone(&left), world.time.clock());
        let upstream = service_fn(move |request: Request<Full<Bytes>>| {
            let number = request.uri().path()[1..].parse().unwrap();
            seen.lock().unwrap().push((number, clock.now().unix_micros()));
            async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
        });
        let cost = |parts: &http::request::Parts| {
            parts.headers.get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
        };
        let service = world.layer().cost(cost).layer(upstream);
        let make = Box::new(move |request| -> Call {
            let service = service.clone();
            Box::pin(async move { service.oneshot(request).await.unwrap().status().as_u16() })
        });
        Self { world, waiting: Vec::new(), left, make }
    }

    fn now(&self) -> u64 {
        self.world.time.now().unix_micros()
    }

    fn arrive(&mut self, number: usize, cost: u64, timeout: Option<u64>) {
        let mut request = from("203.0.113.7", &format!("/{number}"));
        request.headers_mut().insert("x-cost", cost.into());
        if let Some(micros) = timeout {
            request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            request.headers_mut().insert("grpc-timeout", format!("{micros}u").parse().unwrap());
        }
        let mut call = (self.make)(request);
        if !is_over(&mut call) {
            self.waiting.push((number, call));
        }
    }

    fn poll_all(&mut self) {
        self.waiting.retain_mut(|(_, call)| !is_over(call));
    }

    fn pass(&mut self, micros: u64) {
        self.world.time.advance(Duration::from_micros(micros));
        self.poll_all();
    }

    /// The departures: the number of each request, and the seconds after the start.
    fn seconds(&self, began: u64) -> Vec<(usize, u64)> {
        self.left.lock().unwrap().iter().map(|(number, at)| (*number, (at - began) / 1_000_000)).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives { cost: u64, timeout: Option<u64> },
    Leaves(usize),
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let timeout = prop_oneof![3 => Just(None), 1 => (0_u64..5_000_000).prop_map(Some)];
    prop_oneof![
        6 => (1_u64..4, timeout).prop_map(|(cost, timeout)| Event::Arrives { cost, timeout }),
        4 => (0_usize..64).prop_map(Event::Leaves),
        4 => (0_u64..1_500_000).prop_map(Event::Passes),
    ]
}

/// Runs the events at a layer and in an ideal queue with the same numbers. Returns the departures of both.
fn departures(rate: u64, burst: u64, capacity: u64, events: &[Event]) -> [Left; 2] {
    let limit = format!(
        "  - {{name: queue, algorithm: leaky-bucket, rate: {rate}/s, burst: {burst}, queue: {capacity}}}"
    );
    let (mut queue, mut ideal) = (QueuedRequests::new(&limit), IdealQueue::new(rate, burst, capacity));
    let pass = |queue: &mut QueuedRequests, ideal: &mut IdealQueue, until: u64| {
        // From departure to departure, so that each request leaves at its own instant.
        while queue.now() < until {
            let next = ideal.next_at().filter(|at| *at < until).unwrap_or(until).max(queue.now() + 1);
            queue.pass(next - queue.now());
            ideal.depart_due(next);
        }
    };
    for (number, &event) in events.iter().enumerate() {
        match event {
            Event::Arrives { cost, timeout } => {
                queue.arrive(number, cost, timeout);
                ideal.arrive(number, cost, timeout, queue.now());
            }
            Event::Leaves(index) if !queue.waiting.is_empty() => {
                let (number, call) = queue.waiting.remove(index % queue.waiting.len());
                drop(call);
                ideal.leave(number, queue.now());
            }
            Event::Leaves(_) => {}
            Event::Passes(micros) => {
                let until = queue.now() + micros;
                pass(&mut queue, &mut ideal, until);
            }
        }
        queue.poll_all();
    }
    let end = queue.now() + 60_000_000;
    pass(&mut queue, &mut ideal, end);
    assert!(queue.waiting.is_empty(), "every request has left the queue");
    let left = queue.left.lock().unwrap().clone();
    [left, ideal.departures]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every request leaves at the instant of the ideal queue: the current queue decides about deadlines, a full queue refuses,
    /// and waiters use the units of those that left.
    #[test]
    fn a_queue_matches_the_ideal_queue(
        rate in 1_u64..12,
        burst in 1_u64..4,
        capacity in 3_u64..12,
        events in prop::collection::vec(event(), 1..80),
    ) {
        let [left, ideal] = departures(rate, burst, capacity, &events);
        prop_assert_eq!(left, ideal);
    }
}

/// The story: a client that joined and left repeatedly filled a queue with empty slots, and others were refused.
#[test]
fn joining_and_leaving_does_not_fill_a_queue() {
    let mut queue = QueuedRequests::new("  - {name: queue, algorithm: leaky-bucket, rate: 1/s, queue: 4}");
    let began = queue.now();
    queue.arrive(0, 1, None);
    queue.arrive(1, 1, None);
    for number in 2..1_000 {
        queue.arrive(number, 1, None);
        queue.arrive(number + 1_000, 1, None);
        // The first goes, and the other stays until the next two have come.
        drop(queue.waiting.remove(1));
        if number > 2 {
            drop(queue.waiting.remove(1));
        }
    }
    assert_eq!(queue.waiting.len(), 2, "no request was refused");
    queue.arrive(5_000, 1, None);
    (0..4).for_each(|_| queue.pass(1_000_000));
    assert_eq!(queue.seconds(began), [(0, 0), (1, 1), (1_999, 2), (5_000, 3)]);
}

/// After a reload with another rate or without the limit, waiters are still served and still move up.
#[test]
fn a_reload_serves_all_waiters() {
    for policy in [
        "limits: [{name: queue, algorithm: leaky-bucket, rate: 2/s, queue: 9}]",
        "limits: [{name: other, rate: 5/s}]",
    ] {
        let mut queue =
            QueuedRequests::new("  - {name: queue, algorithm: leaky-bucket, rate: 1/s, queue: 9}");
        let began = queue.now();
        (0..5).for_each(|number| queue.arrive(number, 1, None));
        let policy = Policy::compile("policy.yaml", policy.as_bytes()).unwrap();
        queue.world.engine.swap(policy, queue.world.time.now()).unwrap();
        drop(queue.waiting.remove(1)); // The request numbered 2.
        (0..4).for_each(|_| queue.pass(1_000_000));
        assert_eq!(queue.seconds(began), [(0, 0), (1, 1), (3, 2), (4, 3)]);
        assert!(queue.waiting.is_empty());
    }
}

/// A request that waits in two queues keeps its instants, and so do those after it. If it moved up in one queue, it would
/// leave that queue late, together with the next request.
#[test]
fn a_waiter_in_two_queues_keeps_its_instants() {
    let mut queue = QueuedRequests::new(
        "  - {name: one, algorithm: leaky-bucket, rate: 1/s, queue: 9}\n  - {name: two, algorithm: leaky-bucket, rate: 1/s, queue: 9}",
    );
    let began = queue.now();
    (0..4).for_each(|number| queue.arrive(number, 1, None));
    drop(queue.waiting.remove(0));
    (0..4).for_each(|_| queue.pass(1_000_000));
    assert_eq!(queue.seconds(began), [(0, 0), (2, 2), (3, 3)]);
}
