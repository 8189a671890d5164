//! The refund of a request that is shed: it goes to the charged counter, or nowhere.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::{CheckRequest, Policy};
use tollgate_overload::{Ending, EntryDecision, Pass, Plan, Priority};
use tollgate_tower::shed::{ShedLayer, Shedder};
use tower::{Layer as _, ServiceExt, service_fn};

use crate::limited::{Layer, World, from, hello};

type Call = Pin<Box<dyn Future<Output = u16> + Send>>;

/// Limits in front of a shedder with one permit and a queue.
struct Short {
    world: World,
    shedder: Arc<Shedder>,
    layer: Layer,
}

impl Short {
    fn new(limits: &str, layer: impl FnOnce(Layer) -> Layer) -> Self {
        let world = World::new(limits);
        let plan = b"overload: {concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 9, interval: 1s}}";
        let (plan, _) = Plan::compile("overload.yaml", plan).unwrap();
        let shedder = Arc::new(Shedder::new(plan, world.time.clock()).unwrap());
        let layer = layer(world.layer());
        Self { world, shedder, layer }
    }

    /// Takes the only permit.
    fn busy(&self) -> Pass {
        match self.shedder.controllers().enter(Priority::Critical, 0, self.world.time.now()) {
            Ok(EntryDecision::Pass(pass)) => pass,
            other => panic!("{other:?}"),
        }
    }

    fn free(&self, pass: Pass) {
        self.shedder.controllers().leave(pass, self.world.time.now(), Ending::Ignored);
    }

    fn call(&self) -> Call {
        let service = ShedLayer::new(Arc::clone(&self.shedder)).layer(service_fn(hello));
        let service = self.layer.clone().layer(service);
        let request: Request<Full<Bytes>> = from("203.0.113.7", "/");
        Box::pin(async move {
            let response: Response<_> = service.oneshot(request).await.unwrap();
            response.status().as_u16()
        })
    }

    /// Charges units of the quota directly, without a permit.
    fn spend(&self, units: usize) {
        let mut request = CheckRequest::new();
        request.push("ip", "203.0.113.7").unwrap();
        for _ in 0..units {
            assert!(self.world.engine.try_check(&request, self.world.time.now()).unwrap().is_allowed());
        }
    }

    /// How many of a number of requests pass now.
    fn pass(&self, asked: usize) -> usize {
        (0..asked).filter(|_| poll(&mut self.call()) == Some(200)).count()
    }

    /// Advances the clock to some milliseconds before the end of the ten-second window.
    fn go_before_edge(&self, millis: u64) {
        let period = 10_000_000;
        let now = self.world.time.now().unix_micros();
        let at = (now / period + 2) * period - millis * 1_000;
        self.world.time.advance(Duration::from_micros(at - now));
    }

    fn swap(&self, limits: &str) {
        let policy = Policy::compile("policy.yaml", format!("limits: [{limits}]").as_bytes()).unwrap();
        self.world.engine.swap(policy, self.world.time.now()).unwrap();
    }
}

fn poll(call: &mut Call) -> Option<u16> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(status) => Some(status),
        Poll::Pending => None,
    }
}

const WINDOW: &str = "- {name: window, by: [ip], rate: 6 per 10s, algorithm: fixed-window}";

/// The story: four requests were charged to one window and shed in the next, which was refunded although it had not been
/// charged. Ten requests passed with a limit of six.
#[tokio::test]
async fn another_window_is_not_refunded() {
    let short = Short::new(WINDOW, Layer::refund_unserved);
    short.go_before_edge(240);
    let place = short.busy();
    let mut waiting: Vec<Call> = (0..4).map(|_| short.call()).collect();
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    short.world.time.advance(Duration::from_millis(500));
    short.spend(6);
    short.world.time.advance(Duration::from_millis(510));
    assert!(waiting.iter_mut().all(|call| poll(call) == Some(503)));
    short.free(place);
    assert_eq!(short.pass(20), 0);
}

/// The charged window is refunded exactly once, with and without a response that settles the cost.
#[tokio::test]
async fn the_charged_window_is_refunded_once() {
    let ways: [fn(Layer) -> Layer; 4] = [
        Layer::refund_unserved,
        |layer| layer.refund_unserved().count_failures(),
        |layer| layer.refund_unserved().refund_server_errors(),
        |layer| layer.refund_unserved().cost_from("x-cost").unwrap(),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let short = Short::new(WINDOW, way);
        short.go_before_edge(9_000);
        let left = || short.world.remaining(&[("ip", "203.0.113.7")]);
        // This request stays charged.
        short.spend(1);
        let _place = short.busy();
        let mut waiting: Vec<Call> = (0..4).map(|_| short.call()).collect();
        assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
        assert_eq!(left(), 1, "{number}");
        short.world.time.advance(Duration::from_millis(1_010));
        assert!(waiting.iter_mut().all(|call| poll(call) == Some(503)), "{number}");
        assert_eq!(left(), 5, "{number}");
    }
}

/// A limit that is added while a request waits has not charged it, so it is not refunded.
#[tokio::test]
async fn a_new_limit_is_not_refunded() {
    let short = Short::new(WINDOW, Layer::refund_unserved);
    short.go_before_edge(9_000);
    let place = short.busy();
    let mut waiting: Vec<Call> = (0..4).map(|_| short.call()).collect();
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    short.swap("{name: other, by: [ip], rate: 6 per 10s, algorithm: fixed-window}");
    short.spend(6);
    short.world.time.advance(Duration::from_millis(1_010));
    assert!(waiting.iter_mut().all(|call| poll(call) == Some(503)));
    short.free(place);
    assert_eq!(short.pass(20), 0);
}
