//! Overload control around a service: permits, their queue, and the answers to shed requests.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use tollgate::{ManualClock, Ticks};
use tollgate_overload::{Controller, Ending, EntryDecision, Load, Pass, Plan, Priority};
use tollgate_tower::shed::{ShedLayer, Shedder};
use tower::{Layer, Service as _, ServiceExt, service_fn};

use crate::limited::{ask, from, hello};

type Answered = Response<tollgate_tower::Body<Full<Bytes>>>;
type Call = Pin<Box<dyn Future<Output = Answered> + Send>>;

struct Busy {
    time: ManualClock,
    shedder: Arc<Shedder>,
}

impl Busy {
    fn new(plan: &str) -> Self {
        let time = ManualClock::new();
        let (plan, _) = Plan::compile("overload.yaml", format!("overload: {{{plan}}}").as_bytes()).unwrap();
        let shedder = Arc::new(Shedder::new(plan, time.clock()).unwrap());
        Self { time, shedder }
    }

    fn in_flight(&self, which: Controller) -> u32 {
        let reports = self.shedder.reports();
        reports.iter().find(|report| report.controller == which).unwrap().in_flight.unwrap()
    }

    /// A request that is served until it is dropped if its path is `/slow`, and immediately otherwise.
    fn call(&self, path: &str) -> Call {
        let upstream = service_fn(|request: Request<Full<Bytes>>| async move {
            if request.uri().path() == "/slow" {
                pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(Full::from("done")))
        });
        let service = ShedLayer::new(Arc::clone(&self.shedder)).layer(upstream);
        let request = from("203.0.113.7", path);
        Box::pin(async move { service.oneshot(request).await.unwrap() })
    }
}

fn poll(call: &mut Call) -> Option<Answered> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(response) => Some(response),
        Poll::Pending => None,
    }
}

/// A shed request gets a 503 that says why and when to retry, and never a 429.
#[tokio::test]
async fn no_capacity_is_a_503() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}");
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    let service = ShedLayer::new(Arc::clone(&busy.shedder)).layer(service_fn(hello));
    let refused = ask(&service, from("203.0.113.8", "/")).await;
    assert_eq!(refused.status, 503);
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=9).contains(&seconds), "{seconds}");
    let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert!(problem["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity"), "{problem}");
    assert_eq!(problem["reason"], "concurrency-limit");
    let mut call = from("203.0.113.8", "/pkg.Service/Method");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    assert_eq!(ask(&service, call).await.header("grpc-status"), Some("14"));
    drop(first);
    assert_eq!(ask(&service, from("203.0.113.8", "/")).await.status, 200);
    assert_eq!(busy.in_flight(Controller::Concurrency), 0);
}

/// A permit is held until the end of the body, and released at every end of a request.
#[tokio::test]
async fn permits_are_released_at_every_end() {
    let busy = Busy::new("concurrency: {min: 1, initial: 5, max: 5}");
    let response = poll(&mut busy.call("/")).unwrap();
    assert_eq!(busy.in_flight(Controller::Concurrency), 1, "the body is not over");
    drop(response);
    assert_eq!(busy.in_flight(Controller::Concurrency), 0);
    let mut calls: Vec<Call> = (0..5).map(|_| busy.call("/slow")).collect();
    assert!(calls.iter_mut().all(|call| poll(call).is_none()));
    assert_eq!(busy.in_flight(Controller::Concurrency), 5);
    drop(calls);
    assert_eq!(busy.in_flight(Controller::Concurrency), 0);
}

/// A request without a permit waits, and waiters are served in order. A waiter that disconnects leaves the queue, even at the
/// moment at which it gets a permit.
#[tokio::test]
async fn waiters_are_served_in_order() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 10}");
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    let mut waiting: Vec<Call> = (0..3).map(|_| busy.call("/")).collect();
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    assert_eq!(busy.in_flight(Controller::Queue), 3);
    drop(waiting.remove(1));
    assert_eq!(busy.in_flight(Controller::Queue), 2, "a disconnected waiter is not in the queue");
    drop(first);
    // It has the permit, but has not been polled yet, and disconnects.
    assert_eq!((busy.in_flight(Controller::Queue), busy.in_flight(Controller::Concurrency)), (1, 1));
    drop(waiting.remove(0));
    assert_eq!((busy.in_flight(Controller::Queue), busy.in_flight(Controller::Concurrency)), (0, 1));
    let response = poll(&mut waiting[0]).expect("the last has the place");
    assert_eq!(response.status(), 200);
    drop(response);
    assert_eq!(busy.in_flight(Controller::Concurrency), 0);
}

/// A request that waited too long is refused although no permit is released, and a full queue accepts no request.
#[tokio::test]
async fn long_waits_are_refused() {
    let busy = Busy::new(
        "concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 2, target: 5ms, interval: 100ms}",
    );
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    let mut waiting = [busy.call("/"), busy.call("/")];
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    assert_eq!(poll(&mut busy.call("/")).unwrap().status(), 503);
    busy.time.advance(Duration::from_millis(99));
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    busy.time.advance(Duration::from_millis(2));
    assert!(waiting.iter_mut().all(|call| poll(call).is_some_and(|response| response.status() == 503)));
    assert_eq!((busy.in_flight(Controller::Queue), busy.in_flight(Controller::Concurrency)), (0, 1));
}

/// Only requests that the rules call critical may use the reserve of the fleet.
#[tokio::test]
async fn the_reserve_is_for_critical_requests() {
    let plan = "priorities: [{when: {path: /pay}, priority: critical}], fleet: {capacity: 10/s, reserve: 40%, scope: node}";
    let busy = Busy::new(plan);
    let service = ShedLayer::new(Arc::clone(&busy.shedder)).layer(service_fn(hello));
    let mut statuses = Vec::new();
    for path in ["/a", "/a", "/a", "/a", "/a", "/a", "/a", "/pay", "/pay", "/pay", "/pay", "/pay"] {
        statuses.push(ask(&service, from("203.0.113.7", path)).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 503, 200, 200, 200, 200, 503]);
}

/// Requests that another controller refuses, that are refused in the queue, or that leave it are refunded to the fleet's
/// counters. Served ones are not.
#[tokio::test]
async fn unserved_requests_use_no_capacity() {
    let fleet = "fleet: {capacity: 10/h, reserve: 10%, scope: node}";
    let busy = Busy::new(&format!("{fleet}, concurrency: {{min: 1, initial: 1, max: 1}}"));
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    for _ in 0..50 {
        let response = poll(&mut busy.call("/")).unwrap();
        assert_eq!(response.status(), 503);
    }
    assert_eq!(busy.shedder.refused(Controller::Fleet, Priority::Read), 0, "a charge was kept");
    drop(first);
    let served = (0..12).filter(|_| poll(&mut busy.call("/")).unwrap().status() == 200).count();
    assert_eq!(served, 8, "nine are not reserved, and the first used one of them");

    let queue = "concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 2}";
    let busy = Busy::new(&format!("{fleet}, {queue}"));
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    for _ in 0..20 {
        let mut waiting = [busy.call("/"), busy.call("/"), busy.call("/")];
        let answered = waiting.iter_mut().filter_map(poll).filter(|response| response.status() == 503);
        assert!(answered.count() <= 1, "two may wait");
    }
    assert_eq!(busy.shedder.refused(Controller::Fleet, Priority::Read), 0, "a charge was kept");
    let mut waiting = busy.call("/");
    assert!(poll(&mut waiting).is_none());
    drop(first);
    assert_eq!(poll(&mut waiting).unwrap().status(), 200);
    let served = (0..12).filter(|_| poll(&mut busy.call("/")).unwrap().status() == 200).count();
    assert_eq!(served, 7, "of nine, the first request used one and the waiter one");
}

/// The kill switch takes effect immediately and expires by itself.
#[tokio::test]
async fn the_kill_switch_lets_every_request_pass() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}");
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    busy.shedder.kill(busy.time.now() + Ticks::from_secs(60));
    assert_eq!(poll(&mut busy.call("/")).unwrap().status(), 200);
    busy.time.advance(Duration::from_secs(60));
    assert_eq!(poll(&mut busy.call("/")).unwrap().status(), 503);
}

/// The `Ending` in a response takes precedence over its status: an ignored one teaches nothing, and a loss lowers the limit.
/// The hook for a refused request runs before the answer.
#[tokio::test]
async fn the_ending_of_a_response_counts() {
    for (ending, is_less) in [(Ending::Ignored, false), (Ending::Success, false), (Ending::Dropped, true)] {
        let busy = Busy::new("concurrency: {min: 1, initial: 20, max: 20}");
        let upstream = service_fn(move |_: Request<Full<Bytes>>| async move {
            let mut response = Response::new(Full::<Bytes>::from("done"));
            response.extensions_mut().insert(ending);
            Ok::<_, Infallible>(response)
        });
        let service = ShedLayer::new(Arc::clone(&busy.shedder)).layer(upstream);
        for _ in 0..400 {
            assert_eq!(ask(&service, from("203.0.113.8", "/")).await.status, 200);
            busy.time.advance(Duration::from_millis(10));
        }
        let limit = busy.shedder.reports()[0].limit.unwrap();
        assert_eq!(limit < 20, is_less, "{ending:?}: {limit}");
    }
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}");
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    let ran = Arc::new(AtomicU32::new(0));
    let hook_ran = Arc::clone(&ran);
    let layer = ShedLayer::new(Arc::clone(&busy.shedder)).when_refused(move |parts| {
        let (hook_ran, path) = (Arc::clone(&hook_ran), parts.uri.path().to_owned());
        async move {
            assert_eq!(path, "/refused");
            hook_ran.fetch_add(1, Ordering::SeqCst);
        }
    });
    let service = layer.layer(service_fn(hello));
    assert_eq!(ask(&service, from("203.0.113.8", "/refused")).await.status, 503);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    drop(first);
    assert_eq!(ask(&service, from("203.0.113.8", "/")).await.status, 200);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

const CLASSES: &str =
    "priorities: [{when: {path: /pay}, priority: critical}, {when: {path: /try}, priority: test}]";

/// The waiter with the highest priority gets the next permit. A full queue evicts a waiter of lower priority. A permit whose
/// waiter disconnects goes to the next one.
#[tokio::test]
async fn the_queue_serves_by_priority() {
    let plan = format!("{CLASSES}, concurrency: {{min: 1, initial: 1, max: 1}}, queue: {{size: 3}}");
    let busy = Busy::new(&plan);
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    let mut waiting = ["/try", "/a", "/pay"].map(|path| busy.call(path));
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    let mut pays = busy.call("/pay");
    assert!(poll(&mut pays).is_none());
    let [mut tries, mut reads, paid] = waiting;
    let refused = poll(&mut tries).expect("it is evicted immediately");
    assert_eq!(refused.status(), 503);
    assert_eq!(busy.shedder.refused(Controller::Queue, Priority::Test), 1);
    assert_eq!(poll(&mut busy.call("/try")).expect("no waiter has a lower priority").status(), 503);
    drop(first);
    assert!(poll(&mut reads).is_none() && poll(&mut pays).is_none());
    // The first critical waiter gets the permit and disconnects before it is polled, so the second one gets it.
    drop(paid);
    assert!(poll(&mut reads).is_none());
    let response = poll(&mut pays).expect("critical requests are first");
    assert_eq!(response.status(), 200);
    // A permit that is released while others wait does not go to a new request of lower priority.
    assert!(poll(&mut busy.call("/try")).is_none());
    drop(response);
    assert_eq!(poll(&mut reads).unwrap().status(), 200);
    assert_eq!(busy.shedder.waited(Priority::Critical).0, 1);
    assert_eq!((busy.in_flight(Controller::Queue), busy.in_flight(Controller::Concurrency)), (0, 0));
}

/// Requests of all priorities arrive, are polled, answered and dropped in random order. All permits and queue slots are
/// released.
#[tokio::test]
async fn random_drops_release_every_permit() {
    let plan = format!("{CLASSES}, concurrency: {{min: 3, initial: 3, max: 3}}, queue: {{size: 5}}");
    let busy = Busy::new(&plan);
    let (mut calls, mut answers) = (Vec::new(), Vec::new());
    let mut state = 7_u64;
    let mut below = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % most
    };
    for _ in 0..20_000 {
        match below(6) {
            0 | 1 => calls.push(busy.call(["/pay", "/a", "/try", "/slow"][below(4)])),
            2 if !calls.is_empty() => drop(calls.swap_remove(below(calls.len()))),
            3 if !answers.is_empty() => drop(answers.swap_remove(below(answers.len()))),
            4 => busy.time.advance(Duration::from_millis(below(30) as u64)),
            _ if !calls.is_empty() => {
                let which = below(calls.len());
                if let Some(answer) = poll(&mut calls[which]) {
                    drop(calls.swap_remove(which));
                    answers.push(answer);
                }
            }
            _ => {}
        }
        assert!(busy.in_flight(Controller::Concurrency) <= 3 && busy.in_flight(Controller::Queue) <= 5);
    }
    let refused = |priority| busy.shedder.refused(Controller::Queue, priority);
    let classes = [Priority::Test, Priority::Read, Priority::Critical];
    assert!(classes.iter().all(|&priority| busy.shedder.waited(priority).0 > 0));
    assert!(refused(Priority::Test) > refused(Priority::Critical) && refused(Priority::Critical) > 0);
    drop((calls, answers));
    assert_eq!((busy.in_flight(Controller::Queue), busy.in_flight(Controller::Concurrency)), (0, 0));
    assert_eq!(poll(&mut busy.call("/try")).unwrap().status(), 200);
}

impl Busy {
    /// A request that has been sent to the service, and whose future has not been polled.
    fn begun(&self, request: Request<Full<Bytes>>) -> Call {
        let mut service = ShedLayer::new(Arc::clone(&self.shedder)).layer(service_fn(hello));
        let served = service.call(request);
        Box::pin(async move { served.await.unwrap() })
    }

    /// Takes a permit without a request.
    fn take(&self) -> Pass {
        match self.shedder.controllers().enter(Priority::Critical, 0, self.time.now()) {
            Ok(EntryDecision::Pass(pass)) => pass,
            other => panic!("{other:?}"),
        }
    }

    /// Releases it without serving the queue, as a request does that only checked for a permit.
    fn put_back(&self, pass: Pass) {
        self.shedder.controllers().leave(pass, self.time.now(), Ending::Ignored);
    }
}

fn call_within(timeout: &'static str, path: &str) -> Request<Full<Bytes>> {
    let mut request = from("203.0.113.7", path);
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert("grpc-timeout", HeaderValue::from_static(timeout));
    request
}

/// A gRPC call is refused at its deadline, for any interval of the queue and any number of waiters before it. Another request
/// has no deadline, even with the header.
#[tokio::test]
async fn calls_are_refused_at_their_deadline() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 9, interval: 1s}");
    let _permit = busy.take();
    let mut unbounded = busy.begun(from("203.0.113.7", "/"));
    assert!(poll(&mut unbounded).is_none());
    let mut late = busy.begun(call_within("50m", "/"));
    assert!(poll(&mut late).is_none());
    let mut later = busy.begun(call_within("80m", "/"));
    assert!(poll(&mut later).is_none());
    let mut request = call_within("50m", "/");
    request.headers_mut().remove("content-type");
    let mut no_call = busy.begun(request);
    assert!(poll(&mut no_call).is_none());
    busy.time.advance(Duration::from_micros(49_999));
    assert!(poll(&mut late).is_none());
    busy.time.advance(Duration::from_micros(1));
    let refused = poll(&mut late).expect("its deadline is now");
    assert_eq!(refused.headers()["grpc-status"], "14");
    assert_eq!(busy.in_flight(Controller::Queue), 3);
    assert!(poll(&mut later).is_none() && poll(&mut no_call).is_none() && poll(&mut unbounded).is_none());
    busy.time.advance(Duration::from_millis(30));
    assert!(poll(&mut later).is_some());
    assert!(poll(&mut no_call).is_none() && poll(&mut unbounded).is_none());
    busy.time.advance(Duration::from_millis(920));
    assert!(poll(&mut no_call).is_some() && poll(&mut unbounded).is_some());
    assert_eq!(busy.in_flight(Controller::Queue), 0);
}

/// In a standing queue, a waiter is refused after twice the target, although no permit is released and no request arrives.
#[tokio::test]
async fn a_standing_queue_refuses_after_twice_the_target() {
    let busy = Busy::new(
        "concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 50, target: 5ms, interval: 100ms}",
    );
    let _permit = busy.take();
    let mut calls: Vec<Call> = Vec::new();
    let read = || busy.begun(from("203.0.113.7", "/"));
    // During more than an interval, a request has always waited for longer than the target.
    for _ in 0..25 {
        let mut call = read();
        assert!(poll(&mut call).is_none());
        calls.push(call);
        busy.time.advance(Duration::from_millis(10));
        calls.retain_mut(|call| poll(call).is_none());
    }
    assert_eq!(calls.len(), 0, "the queue is standing, and no request waits for ten milliseconds");
    let mut last = read();
    assert!(poll(&mut last).is_none());
    busy.time.advance(Duration::from_micros(9_999));
    assert!(poll(&mut last).is_none());
    busy.time.advance(Duration::from_micros(1));
    assert!(poll(&mut last).is_some());
}

/// A permit is free while a request waits, at the moment at which another one checks for it. The waiter gets the permit, also
/// if the other one disconnects or finds the queue full.
#[tokio::test]
async fn no_permit_is_free_while_a_request_waits() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 1}");
    let permit = busy.take();
    let mut waits = busy.begun(from("203.0.113.7", "/"));
    assert!(poll(&mut waits).is_none());
    busy.put_back(permit);
    // This request takes the permit, sees a waiter, releases the permit and is dropped before it is queued.
    drop(busy.begun(from("203.0.113.7", "/")));
    assert_eq!(poll(&mut waits).expect("it gets the permit").status(), 200);
    drop(waits);

    let permit = busy.take();
    let mut waits = busy.begun(from("203.0.113.7", "/"));
    assert!(poll(&mut waits).is_none());
    let mut arriving = busy.begun(from("203.0.113.7", "/"));
    busy.put_back(permit);
    assert_eq!(poll(&mut arriving).expect("the queue is full").status(), 503);
    assert_eq!(poll(&mut waits).expect("it gets the permit").status(), 200);
}

/// Makes the worker busier until a condition holds.
fn busier(busy: &Busy, mut is_enough: impl FnMut() -> bool) {
    let worker = busy.shedder.controllers().worker.as_ref().unwrap();
    let load = Load { in_flight: 40, limit: 10, queue_delay: Ticks::from_millis(200) };
    for _ in 0..400 {
        if is_enough() {
            return;
        }
        for _ in 0..10 {
            worker.observe(load, busy.time.now());
            busy.time.advance(Duration::from_millis(10));
        }
    }
    panic!("the worker never gets as busy");
}

/// A shed caller stays shed with any key it sends, unless keys identify callers by configuration.
#[tokio::test]
async fn callers_do_not_choose_their_identity() {
    let busy = Busy::new("worker: {}");
    let plain = ShedLayer::new(Arc::clone(&busy.shedder));
    let refused = |layer: &ShedLayer, ask: &dyn Fn(u8) -> (String, u8)| {
        let is_refused = |number: &u8| {
            let (key, last) = ask(*number);
            let mut request = from(&format!("203.0.113.{last}"), "/");
            request.headers_mut().insert("x-api-key", key.parse().unwrap());
            let mut served = Box::pin(layer.clone().layer(service_fn(hello)).oneshot(request));
            match served.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answered) => answered.unwrap().status() == 503,
                Poll::Pending => panic!("no request waits"),
            }
        };
        (0..64).filter(is_refused).count()
    };
    let addresses = |number: u8| (format!("key-{number}"), number);
    busier(&busy, || (20..44).contains(&refused(&plain, &addresses)));
    let one = |number: u8| (format!("key-{number}"), 7);
    let same = refused(&plain, &one);
    assert!(same == 0 || same == 64, "{same} of 64 requests of one address are refused");
    let known = plain.clone().identified_by("api_key");
    assert!((1..64).contains(&refused(&known, &one)), "keys may identify callers");
}

/// An ambiguous request has the lowest priority, so that no spelling gains a higher one.
#[tokio::test]
async fn ambiguous_requests_have_the_lowest_priority() {
    let busy = Busy::new(&format!("{CLASSES}, worker: {{}}"));
    busier(&busy, || busy.shedder.reports()[0].level.unwrap() >= 500);
    let twice = || {
        let mut request = from("203.0.113.7", "/try");
        request.headers_mut().append("x-api-key", HeaderValue::from_static("a"));
        request.headers_mut().append("x-api-key", HeaderValue::from_static("b"));
        request
    };
    let mut before = 0;
    let [plain, escaped] = ["/try", "/try%2fb"].map(|path| move || from("203.0.113.7", path));
    let requests: [&dyn Fn() -> Request<Full<Bytes>>; 3] = [&plain, &escaped, &twice];
    for request in requests {
        // Each layer hashes callers with its own seed.
        for _ in 0..64 {
            assert!(poll(&mut busy.begun(request())).is_some());
        }
        let refused = busy.shedder.refused(Controller::Worker, Priority::Test);
        assert!(refused > before, "{refused}");
        before = refused;
    }
}
