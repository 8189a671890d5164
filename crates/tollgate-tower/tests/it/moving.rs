//! A line that somebody leaves moves up: it is the ideal line, to the tick, whoever comes, costs, gives up or goes away.

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

/// Those who wait at a layer, and who has left when.
struct Line {
    world: World,
    waiting: Vec<(usize, Call)>,
    left: Arc<Mutex<Left>>,
    make: Box<dyn Fn(Request<Full<Bytes>>) -> Call>,
}

fn is_over(call: &mut Call) -> bool {
    matches!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

impl Line {
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

    fn comes(&mut self, number: usize, cost: u64, patience: Option<u64>) {
        let mut request = from("203.0.113.7", &format!("/{number}"));
        request.headers_mut().insert("x-cost", cost.into());
        if let Some(micros) = patience {
            request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            request.headers_mut().insert("grpc-timeout", format!("{micros}u").parse().unwrap());
        }
        let mut call = (self.make)(request);
        if !is_over(&mut call) {
            self.waiting.push((number, call));
        }
    }

    fn look(&mut self) {
        self.waiting.retain_mut(|(_, call)| !is_over(call));
    }

    fn pass(&mut self, micros: u64) {
        self.world.time.advance(Duration::from_micros(micros));
        self.look();
    }

    /// Who left, after how many seconds.
    fn seconds(&self, began: u64) -> Vec<(usize, u64)> {
        self.left.lock().unwrap().iter().map(|(who, at)| (*who, (at - began) / 1_000_000)).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Comes { cost: u64, patience: Option<u64> },
    Goes(usize),
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let patience = prop_oneof![3 => Just(None), 1 => (0_u64..5_000_000).prop_map(Some)];
    prop_oneof![
        6 => (1_u64..4, patience).prop_map(|(cost, patience)| Event::Comes { cost, patience }),
        4 => (0_usize..64).prop_map(Event::Goes),
        4 => (0_u64..1_500_000).prop_map(Event::Passes),
    ]
}

/// Lets the events happen, at a layer and in an ideal line of the same numbers: who left when.
fn departures(rate: u64, burst: u64, queue: u64, events: &[Event]) -> [Left; 2] {
    let limit = format!(
        "  - {{name: line, algorithm: leaky-bucket, rate: {rate}/s, burst: {burst}, queue: {queue}}}"
    );
    let (mut line, mut ideal) = (Line::new(&limit), IdealQueue::new(rate, burst, queue));
    let pass = |line: &mut Line, ideal: &mut IdealQueue, until: u64| {
        // From instant to instant, so that each leaves at its own.
        while line.now() < until {
            let next = ideal.next_at().filter(|at| *at < until).unwrap_or(until).max(line.now() + 1);
            line.pass(next - line.now());
            ideal.depart_due(next);
        }
    };
    for (number, &event) in events.iter().enumerate() {
        match event {
            Event::Comes { cost, patience } => {
                line.comes(number, cost, patience);
                ideal.arrive(number, cost, patience, line.now());
            }
            Event::Goes(place) if !line.waiting.is_empty() => {
                let (who, call) = line.waiting.remove(place % line.waiting.len());
                drop(call);
                ideal.leave(who, line.now());
            }
            Event::Goes(_) => {}
            Event::Passes(micros) => {
                let until = line.now() + micros;
                pass(&mut line, &mut ideal, until);
            }
        }
        line.look();
    }
    let end = line.now() + 60_000_000;
    pass(&mut line, &mut ideal, end);
    assert!(line.waiting.is_empty(), "nobody is left behind");
    let left = line.left.lock().unwrap().clone();
    [left, ideal.departures]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Nobody leaves later than in the ideal line, or earlier, or in its place: deadlines are judged by the line as it stands, those whom it has
    /// no room for are refused, and each unit that was given back is used by those behind.
    #[test]
    fn a_line_is_the_ideal_line(
        rate in 1_u64..12,
        burst in 1_u64..4,
        queue in 3_u64..12,
        events in prop::collection::vec(event(), 1..80),
    ) {
        let [left, ideal] = departures(rate, burst, queue, &events);
        prop_assert_eq!(left, ideal);
    }
}

/// The story: somebody who joined and left again and again filled a line with empty places, and the others were refused.
#[test]
fn who_joins_and_leaves_fills_no_line() {
    let mut line = Line::new("  - {name: line, algorithm: leaky-bucket, rate: 1/s, queue: 4}");
    let began = line.now();
    line.comes(0, 1, None);
    line.comes(1, 1, None);
    for number in 2..1_000 {
        line.comes(number, 1, None);
        line.comes(number + 1_000, 1, None);
        // The first goes, and the other stays until the next two have come.
        drop(line.waiting.remove(1));
        if number > 2 {
            drop(line.waiting.remove(1));
        }
    }
    assert_eq!(line.waiting.len(), 2, "nobody was refused");
    line.comes(5_000, 1, None);
    (0..4).for_each(|_| line.pass(1_000_000));
    assert_eq!(line.seconds(began), [(0, 0), (1, 1), (1_999, 2), (5_000, 3)]);
}

/// A new policy, with another rate or without the limit, strands nobody: those who wait have their turns, and still move up.
#[test]
fn a_new_policy_strands_nobody() {
    for policy in [
        "limits: [{name: line, algorithm: leaky-bucket, rate: 2/s, queue: 9}]",
        "limits: [{name: other, rate: 5/s}]",
    ] {
        let mut line = Line::new("  - {name: line, algorithm: leaky-bucket, rate: 1/s, queue: 9}");
        let began = line.now();
        (0..5).for_each(|number| line.comes(number, 1, None));
        let (policy, _) = Policy::compile("policy.yaml", policy.as_bytes()).unwrap();
        line.world.engine.swap(policy, line.world.time.now()).unwrap();
        drop(line.waiting.remove(1)); // The request numbered 2.
        (0..4).for_each(|_| line.pass(1_000_000));
        assert_eq!(line.seconds(began), [(0, 0), (1, 1), (3, 2), (4, 3)]);
        assert!(line.waiting.is_empty());
    }
}

/// A request that waits in two lines keeps its instants, and so do those behind it: moved up in one, it would leave later than its place there, and
/// together with the next.
#[test]
fn who_waits_in_two_lines_keeps_its_instants() {
    let mut line = Line::new(
        "  - {name: one, algorithm: leaky-bucket, rate: 1/s, queue: 9}\n  - {name: two, algorithm: leaky-bucket, rate: 1/s, queue: 9}",
    );
    let began = line.now();
    (0..4).for_each(|number| line.comes(number, 1, None));
    drop(line.waiting.remove(0));
    (0..4).for_each(|_| line.pass(1_000_000));
    assert_eq!(line.seconds(began), [(0, 0), (2, 2), (3, 3)]);
}
