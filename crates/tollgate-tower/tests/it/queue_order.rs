//! The promise of a queue: the first to arrive is the first to leave, and departures keep to the rate. The story: the units
//! of requests that left went back to the end of the queue, where others waited.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use tollgate::{Ticks, Timestamp};
use tower::{Layer, ServiceExt, service_fn};

use crate::limited::{World, from};

type Call = Pin<Box<dyn Future<Output = u16> + Send>>;

fn is_over(call: &mut Call) -> bool {
    matches!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

/// An event of a queue.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request arrives. Its response fails or not, and it may have a timeout in milliseconds.
    Arrives { fails: bool, timeout: Option<u16> },
    /// A waiter leaves.
    Leaves(usize),
    /// The last waiter leaves.
    Last,
    /// All waiters but the last leave, and the last stays until it is served.
    AllButLast,
    /// A caller refunds a request.
    Refunds,
    /// Time passes, in milliseconds.
    Passes(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let timeout = prop_oneof![3 => Just(None), 1 => (0_u16..3_000).prop_map(Some)];
    prop_oneof![
        6 => (any::<bool>(), timeout).prop_map(|(fails, timeout)| Event::Arrives { fails, timeout }),
        3 => (0_usize..64).prop_map(Event::Leaves),
        2 => Just(Event::Last),
        1 => Just(Event::AllButLast),
        1 => Just(Event::Refunds),
        5 => (0_u16..1_500).prop_map(Event::Passes),
    ]
}

/// Runs the events. Returns the departures.
fn departures(limit: &str, settles: bool, events: &[Event]) -> Vec<(usize, Timestamp)> {
    let world = World::new(limit);
    let left = Arc::new(Mutex::new(Vec::new()));
    let (seen, clock) = (Arc::clone(&left), world.time.clock());
    let upstream = service_fn(move |request: Request<Full<Bytes>>| {
        let (number, fate) = request.uri().path()[1..].split_once('/').unwrap();
        seen.lock().unwrap().push((number.parse().unwrap(), clock.now()));
        let status = if fate == "fails" { 500 } else { 200 };
        async move {
            Ok::<_, Infallible>(Response::builder().status(status).body(Full::<Bytes>::default()).unwrap())
        }
    });
    let layer = if settles { world.layer().refund_server_errors() } else { world.layer() };
    let service = layer.layer(upstream);
    let mut waiting: VecDeque<Call> = VecDeque::new();
    // These arrived before all in `waiting`.
    let mut staying: Vec<Call> = Vec::new();
    let pass = |staying: &mut Vec<Call>, waiting: &mut VecDeque<Call>, millis: u16| {
        // In steps, so that each request leaves at its own instant.
        for _ in 0..millis / 50 {
            world.time.advance(Duration::from_millis(50));
            staying.retain_mut(|call| !is_over(call));
            waiting.retain_mut(|call| !is_over(call));
        }
    };
    for (number, &event) in events.iter().enumerate() {
        match event {
            Event::Arrives { fails, timeout } => {
                let fate = if fails { "fails" } else { "works" };
                let mut request = from("203.0.113.7", &format!("/{number}/{fate}"));
                if let Some(millis) = timeout {
                    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
                    request.headers_mut().insert("grpc-timeout", format!("{millis}m").parse().unwrap());
                }
                let service = service.clone();
                let mut call: Call = Box::pin(async move {
                    let response = service.oneshot(request).await.unwrap();
                    let status = response.status().as_u16();
                    let _ = response.into_body().collect().await;
                    status
                });
                if !is_over(&mut call) {
                    waiting.push_back(call);
                }
            }
            Event::Leaves(index) if !waiting.is_empty() => drop(waiting.remove(index % waiting.len())),
            Event::Last => drop(waiting.pop_back()),
            Event::AllButLast => {
                staying.extend(waiting.pop_back());
                waiting.clear();
            }
            Event::Leaves(_) => {}
            Event::Refunds => {
                let request = tollgate::CheckRequest::new().with("ip", "203.0.113.7").unwrap();
                let mut refund = Box::pin(world.engine.ledger().refund(
                    &request,
                    &[],
                    tollgate::Ticks::ZERO,
                    world.time.now(),
                ));
                assert!(refund.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
            }
            Event::Passes(millis) => pass(&mut staying, &mut waiting, millis),
        }
    }
    pass(&mut staying, &mut waiting, 20_000);
    assert!(waiting.is_empty() && staying.is_empty(), "every request is served");
    drop(service);
    Arc::into_inner(left).map(|left| left.into_inner().unwrap()).unwrap_or_default()
}

/// Requests leave in the order of their arrival, within the rate: of any `burst + n` consecutive departures, the first and
/// the last are at least `n` intervals apart.
fn is_in_order(left: &[(usize, Timestamp)], interval: Ticks, burst: usize) -> Result<(), TestCaseError> {
    prop_assert!(left.windows(2).all(|pair| pair[0].0 < pair[1].0), "out of order: {:?}", left);
    for first in 0..left.len() {
        for last in first + burst..left.len() {
            let intervals = u64::try_from(last - first + 1 - burst).unwrap();
            let apart = left[last].1.since(left[first].1).as_micros();
            prop_assert!(apart >= intervals * interval.as_micros(), "{} to {} of {:?}", first, last, left);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A queue at two a second, with and without a burst of three.
    #[test]
    fn a_queue_keeps_its_order_and_its_rate(
        events in prop::collection::vec(event(), 1..60),
        settles in any::<bool>(),
        bursts in any::<bool>(),
    ) {
        let (limit, burst) = match bursts {
            false => ("  - {name: queue, by: [ip], algorithm: leaky-bucket, rate: 2/s, queue: 8}", 1),
            true => ("  - {name: queue, by: [ip], algorithm: leaky-bucket, rate: 2/s, burst: 3, queue: 6}", 3),
        };
        let left = departures(limit, settles, &events);
        is_in_order(&left, Ticks::from_micros(500_000), burst)?;
    }
}

/// The story: A, B, C and D queued at one a second, B and C left, and E and F arrived. E overtook D, a slot stayed empty, and
/// D left together with F. Now D moves up, and E and F follow it.
#[test]
fn a_waiter_that_leaves_the_middle_lets_none_overtake() {
    const ARRIVES: Event = Event::Arrives { fails: false, timeout: None };
    let events = [ARRIVES, ARRIVES, ARRIVES, ARRIVES, Event::Leaves(0), Event::Leaves(0), ARRIVES, ARRIVES];
    let left = departures("  - {name: queue, algorithm: leaky-bucket, rate: 1/s, queue: 10}", false, &events);
    let start = left[0].1;
    let left: Vec<_> =
        left.iter().map(|(number, at)| (*number, at.since(start).as_micros() / 1_000_000)).collect();
    assert_eq!(left, [(0, 0), (3, 1), (6, 2), (7, 3)]);
}

/// The story: a queue that was filled repeatedly, while all but the last waiter left, served 27 requests instead of 11.
#[test]
fn refilling_a_queue_does_not_exceed_the_rate() {
    let mut events = Vec::new();
    for _ in 0..55 {
        events.extend([Event::Arrives { fails: false, timeout: None }; 9]);
        events.push(Event::AllButLast);
        events.push(Event::Passes(100));
    }
    let left = departures("  - {name: queue, algorithm: leaky-bucket, rate: 2/s, queue: 8}", false, &events);
    is_in_order(&left, Ticks::from_micros(500_000), 1).unwrap();
}
