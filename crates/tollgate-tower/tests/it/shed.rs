//! Overload around a service: places, the line for them, and what those are told for whom there are none.

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
use tollgate::overload::{Controller, Ending, EntryDecision, Load, Pass, Plan, Priority};
use tollgate::{ManualClock, Ticks};
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

    /// A request that is served until it is told to end by dropping, unless its path says that it is quick.
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

/// Whom there is no place for gets a 503 that says so and when to come back, and never a 429.
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

/// A place is held until the body has ended, and free however a request ends.
#[tokio::test]
async fn places_come_back() {
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

/// Who finds no place waits for one, in the order of the line; who goes away leaves it, also in the moment in which it gets a place.
#[tokio::test]
async fn the_line_is_served() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 10}");
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    let mut waiting: Vec<Call> = (0..3).map(|_| busy.call("/")).collect();
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    assert_eq!(busy.in_flight(Controller::Queue), 3);
    drop(waiting.remove(1));
    assert_eq!(busy.in_flight(Controller::Queue), 2, "who goes away is in no line");
    drop(first);
    // The place is its own now, though it has not looked yet; and it goes away.
    assert_eq!((busy.in_flight(Controller::Queue), busy.in_flight(Controller::Concurrency)), (1, 1));
    drop(waiting.remove(0));
    assert_eq!((busy.in_flight(Controller::Queue), busy.in_flight(Controller::Concurrency)), (0, 1));
    let response = poll(&mut waiting[0]).expect("the last has the place");
    assert_eq!(response.status(), 200);
    drop(response);
    assert_eq!(busy.in_flight(Controller::Concurrency), 0);
}

/// Who has waited for too long is told so, though no place gets free; and a full line takes nobody in.
#[tokio::test]
async fn nobody_waits_for_long() {
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

/// The fleet's reserve is for critical traffic, by what the rules say.
#[tokio::test]
async fn a_reserve_for_what_matters() {
    let plan = "priorities: [{when: {path: /pay}, priority: critical}], fleet: {capacity: 10/s, reserve: 40%, scope: node}";
    let busy = Busy::new(plan);
    let service = ShedLayer::new(Arc::clone(&busy.shedder)).layer(service_fn(hello));
    let mut statuses = Vec::new();
    for path in ["/a", "/a", "/a", "/a", "/a", "/a", "/a", "/pay", "/pay", "/pay", "/pay", "/pay"] {
        statuses.push(ask(&service, from("203.0.113.7", path)).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 503, 200, 200, 200, 200, 503]);
}

/// Capacity of the fleet is for what is served: whom another controller refuses, who is refused in line and who goes away from it give
/// back what was charged for them, and nobody else does.
#[tokio::test]
async fn what_is_not_served_uses_no_capacity() {
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

    let line = "concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 2}";
    let busy = Busy::new(&format!("{fleet}, {line}"));
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
    assert_eq!(served, 7, "of nine, one was used by the first and one by who waited");
}

/// The kill switch lets everybody pass, at once, and ends by itself.
#[tokio::test]
async fn the_kill_switch() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}");
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    busy.shedder.kill(busy.time.now() + Ticks::from_secs(60));
    assert_eq!(poll(&mut busy.call("/")).unwrap().status(), 200);
    busy.time.advance(Duration::from_secs(60));
    assert_eq!(poll(&mut busy.call("/")).unwrap().status(), 503);
}

/// What a service says of its own answers counts: one that tells nothing teaches nothing, one that is a loss takes places away, whatever the
/// status. And who is refused has its consequence before it is answered.
#[tokio::test]
async fn services_tell_how_it_ended() {
    for (ending, is_less) in [(Ending::Ignored, false), (Ending::Success, false), (Ending::Dropped, true)] {
        let busy = Busy::new("concurrency: {min: 1, initial: 20, max: 20}");
        let told = service_fn(move |_: Request<Full<Bytes>>| async move {
            let mut response = Response::new(Full::<Bytes>::from("done"));
            response.extensions_mut().insert(ending);
            Ok::<_, Infallible>(response)
        });
        let service = ShedLayer::new(Arc::clone(&busy.shedder)).layer(told);
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
    let heard = Arc::new(AtomicU32::new(0));
    let hears = Arc::clone(&heard);
    let layer = ShedLayer::new(Arc::clone(&busy.shedder)).when_refused(move |parts| {
        let (hears, path) = (Arc::clone(&hears), parts.uri.path().to_owned());
        async move {
            assert_eq!(path, "/refused");
            hears.fetch_add(1, Ordering::SeqCst);
        }
    });
    let service = layer.layer(service_fn(hello));
    assert_eq!(ask(&service, from("203.0.113.8", "/refused")).await.status, 503);
    assert_eq!(heard.load(Ordering::SeqCst), 1);
    drop(first);
    assert_eq!(ask(&service, from("203.0.113.8", "/")).await.status, 200);
    assert_eq!(heard.load(Ordering::SeqCst), 1);
}

const CLASSES: &str =
    "priorities: [{when: {path: /pay}, priority: critical}, {when: {path: /try}, priority: test}]";

/// Who matters most has the next place, whoever came first; of a full line the least is put out for it, and told so; and a place whose new
/// owner goes away before it looked is the next one's.
#[tokio::test]
async fn the_line_knows_what_matters() {
    let plan = format!("{CLASSES}, concurrency: {{min: 1, initial: 1, max: 1}}, queue: {{size: 3}}");
    let busy = Busy::new(&plan);
    let mut first = busy.call("/slow");
    assert!(poll(&mut first).is_none());
    let mut waiting = ["/try", "/a", "/pay"].map(|path| busy.call(path));
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    let mut pays = busy.call("/pay");
    assert!(poll(&mut pays).is_none());
    let [mut tries, mut reads, paid] = waiting;
    let refused = poll(&mut tries).expect("it is put out at once");
    assert_eq!(refused.status(), 503);
    assert_eq!(busy.shedder.refused(Controller::Queue, Priority::Test), 1);
    assert_eq!(poll(&mut busy.call("/try")).expect("there is nobody less important").status(), 503);
    drop(first);
    assert!(poll(&mut reads).is_none() && poll(&mut pays).is_none());
    // The place is the first payer's, which goes away without a look; so it is the second one's.
    drop(paid);
    assert!(poll(&mut reads).is_none());
    let response = poll(&mut pays).expect("critical requests are first");
    assert_eq!(response.status(), 200);
    // A place that gets free while somebody waits is not for who comes by and matters less.
    assert!(poll(&mut busy.call("/try")).is_none());
    drop(response);
    assert_eq!(poll(&mut reads).unwrap().status(), 200);
    assert_eq!(busy.shedder.waited(Priority::Critical).0, 1);
    assert_eq!((busy.in_flight(Controller::Queue), busy.in_flight(Controller::Concurrency)), (0, 0));
}

/// Requests of all priorities come, are looked at, are answered and go away in any order: none keeps a place, or a place in line.
#[tokio::test]
async fn whoever_goes_away_leaves_nothing() {
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
    /// A request that is on its way, and not yet looked at by whoever waits for it.
    fn begun(&self, request: Request<Full<Bytes>>) -> Call {
        let mut service = ShedLayer::new(Arc::clone(&self.shedder)).layer(service_fn(hello));
        let served = service.call(request);
        Box::pin(async move { served.await.unwrap() })
    }

    /// Takes a place without a request.
    fn take(&self) -> Pass {
        match self.shedder.controllers().enter(Priority::Critical, 0, self.time.now()) {
            Ok(EntryDecision::Pass(pass)) => pass,
            other => panic!("{other:?}"),
        }
    }

    /// Gives it back behind the line's back, as one does who has taken it to look whether anybody wants it.
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

/// Who has a deadline of its own hears at that instant that there is no place, whatever the line's interval is and whoever stands before it;
/// who is no call has none, whatever its headers say.
#[tokio::test]
async fn deadlines_are_told_in_time() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 9, interval: 1s}");
    let _place = busy.take();
    let mut patient = busy.begun(from("203.0.113.7", "/"));
    assert!(poll(&mut patient).is_none());
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
    let told = poll(&mut late).expect("its deadline is now");
    assert_eq!(told.headers()["grpc-status"], "14");
    assert_eq!(busy.in_flight(Controller::Queue), 3);
    assert!(poll(&mut later).is_none() && poll(&mut no_call).is_none() && poll(&mut patient).is_none());
    busy.time.advance(Duration::from_millis(30));
    assert!(poll(&mut later).is_some());
    assert!(poll(&mut no_call).is_none() && poll(&mut patient).is_none());
    busy.time.advance(Duration::from_millis(920));
    assert!(poll(&mut no_call).is_some() && poll(&mut patient).is_some());
    assert_eq!(busy.in_flight(Controller::Queue), 0);
}

/// In a row that stands, who has waited for twice the target hears so then, though no place gets free and nobody comes.
#[tokio::test]
async fn a_row_that_stands_is_told_in_time() {
    let busy = Busy::new(
        "concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 50, target: 5ms, interval: 100ms}",
    );
    let _place = busy.take();
    let mut calls: Vec<Call> = Vec::new();
    let read = || busy.begun(from("203.0.113.7", "/"));
    // Somebody has waited for longer than the target, at any time of more than an interval.
    for _ in 0..25 {
        let mut call = read();
        assert!(poll(&mut call).is_none());
        calls.push(call);
        busy.time.advance(Duration::from_millis(10));
        calls.retain_mut(|call| poll(call).is_none());
    }
    assert_eq!(calls.len(), 0, "the row stands, and nobody waits for ten milliseconds");
    let mut last = read();
    assert!(poll(&mut last).is_none());
    busy.time.advance(Duration::from_micros(9_999));
    assert!(poll(&mut last).is_none());
    busy.time.advance(Duration::from_micros(1));
    assert!(poll(&mut last).is_some());
}

/// A place is free and somebody waits, in the moment in which another one has looked for it. Whoever that was, a place that it leaves is the
/// line's, also when it goes away at once, or finds the line full.
#[tokio::test]
async fn no_place_is_free_while_somebody_waits() {
    let busy = Busy::new("concurrency: {min: 1, initial: 1, max: 1}, queue: {size: 1}");
    let place = busy.take();
    let mut waits = busy.begun(from("203.0.113.7", "/"));
    assert!(poll(&mut waits).is_none());
    busy.put_back(place);
    // It takes the place, sees that others wait, leaves it to them and goes away before it stands in line.
    drop(busy.begun(from("203.0.113.7", "/")));
    assert_eq!(poll(&mut waits).expect("there is a place for it").status(), 200);
    drop(waits);

    let place = busy.take();
    let mut waits = busy.begun(from("203.0.113.7", "/"));
    assert!(poll(&mut waits).is_none());
    let mut comes = busy.begun(from("203.0.113.7", "/"));
    busy.put_back(place);
    assert_eq!(poll(&mut comes).expect("the line is full").status(), 503);
    assert_eq!(poll(&mut waits).expect("there is a place for it").status(), 200);
}

/// A worker that gets busier until this is so.
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
    panic!("the worker is never as busy as that");
}

/// Who is shed stays shed whatever key it sends, unless somebody has said that keys are not the caller's to choose.
#[tokio::test]
async fn callers_do_not_choose_who_they_are() {
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
                Poll::Pending => panic!("nobody waits"),
            }
        };
        (0..64).filter(is_refused).count()
    };
    let addresses = |number: u8| (format!("key-{number}"), number);
    busier(&busy, || (20..44).contains(&refused(&plain, &addresses)));
    let one = |number: u8| (format!("key-{number}"), 7);
    let same = refused(&plain, &one);
    assert!(same == 0 || same == 64, "{same} of 64 requests of one address are refused");
    let known = plain.clone().known_by("api_key");
    assert!(
        (1..64).contains(&refused(&known, &one)),
        "whoever vouches for keys may tell callers apart by them"
    );
}

/// What cannot be read in one way only matters least: a spelling that no rule reads takes nobody out of its class.
#[tokio::test]
async fn what_is_unreadable_matters_least() {
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
        // Each layer has its own way to choose who is shed.
        for _ in 0..64 {
            assert!(poll(&mut busy.begun(request())).is_some());
        }
        let refused = busy.shedder.refused(Controller::Worker, Priority::Test);
        assert!(refused > before, "{refused}");
        before = refused;
    }
}
