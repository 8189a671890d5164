//! Queues: order, priorities, deadlines, cancellation and bounds.

use std::time::Duration;

use tollgate::Ticks;
use tollgate_outbound::{Basis, Call, Failure, Priority, Refusal};

use crate::fixture::{Client, Departures, HOST, call, left, run_tasks, settings};

const ONE_A_SECOND: &str = "limits: [{name: payments, by: [host], rate: 1/s, burst: 1}]";
const SECOND: Duration = Duration::from_secs(1);

/// Calls leave in the order of their arrival, one for each unit of the limit.
#[tokio::test]
async fn calls_leave_in_order_at_the_pace_of_the_limit() {
    let client = Client::new(ONE_A_SECOND, settings());
    let departures = Departures::default();
    for number in 0..5 {
        let (outbound, departures, time) = (client.outbound.clone(), departures.clone(), client.time.clone());
        tokio::spawn(async move {
            let guard = outbound.acquire(&call()).await.unwrap();
            departures.note(number, time.now());
            guard.finish(None).await;
        });
        run_tasks().await;
    }
    for _ in 0..5 {
        client.advance(SECOND).await;
    }
    assert_eq!(departures.numbers(), [0, 1, 2, 3, 4]);
    let times = departures.times();
    for pair in times.windows(2) {
        assert_eq!(pair[1].since(pair[0]), Ticks::from_secs(1));
    }
}

/// An interactive call passes batch calls, but not one that has waited for longer than its head start.
#[tokio::test]
async fn urgent_calls_go_first_and_old_calls_are_not_passed_for_ever() {
    let policy = "limits: [{name: slow, by: [host], rate: 1/min, burst: 1}]";
    let mut settings = settings();
    settings.max_wait = Duration::from_secs(600);
    let client = Client::new(policy, settings);
    let departures = Departures::default();
    let start = |number: usize, priority: Priority| {
        let (outbound, departures, time) = (client.outbound.clone(), departures.clone(), client.time.clone());
        tokio::spawn(async move {
            let guard = outbound.acquire(&call().priority(priority)).await.unwrap();
            departures.note(number, time.now());
            guard.finish(None).await;
        });
    };
    start(0, Priority::Batch);
    run_tasks().await;
    start(1, Priority::Batch);
    run_tasks().await;
    client.advance(SECOND).await;
    start(2, Priority::Interactive);
    run_tasks().await;
    client.advance(Duration::from_secs(40)).await;
    // The batch call has waited for 41 s, longer than the head start of 30 s.
    start(3, Priority::Interactive);
    run_tasks().await;
    for _ in 0..4 {
        client.advance(Duration::from_secs(60)).await;
    }
    assert_eq!(departures.numbers(), [0, 2, 1, 3]);
}

/// A call that cannot leave in time is refused at once, also behind others, and the refusal names the bucket.
#[tokio::test]
async fn a_deadline_that_cannot_be_met_is_refused_at_once() {
    let client = Client::new(ONE_A_SECOND, settings());
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    let waiting: Vec<_> = (0..3).map(|_| client.start(call())).collect();
    run_tasks().await;
    let refused =
        client.outbound.acquire(&call().max_wait(Duration::from_millis(3_900))).await.err().unwrap();
    let Refusal::TooLate { bucket, basis, wait, .. } = &refused else { panic!("{refused}") };
    assert_eq!((bucket.as_str(), *basis, *wait), ("payments", Basis::Policy, Ticks::from_secs(4)));
    // One that can be met waits.
    let met = client.start(call().max_wait(Duration::from_secs(4)));
    for _ in 0..4 {
        client.advance(SECOND).await;
    }
    for call in waiting {
        left(call).await.finish(None).await;
    }
    left(met).await.finish(None).await;
}

/// A waiter that goes away leaves its slot to the next one, and costs nothing.
#[tokio::test]
async fn cancellation_frees_the_slot() {
    let client = Client::new(ONE_A_SECOND, settings());
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    let gone = client.start(call());
    run_tasks().await;
    let next = client.start(call());
    run_tasks().await;
    gone.abort();
    run_tasks().await;
    client.advance(SECOND).await;
    left(next).await.finish(None).await;
    assert_eq!(client.outbound.report().buckets.iter().map(|bucket| bucket.waiting).sum::<usize>(), 0);
}

/// A queue has an end, and says so.
#[tokio::test]
async fn a_full_queue_refuses() {
    let mut settings = settings();
    settings.queue_max = 2;
    let client = Client::new(ONE_A_SECOND, settings);
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    let waiting: Vec<_> = (0..2).map(|_| client.start(call())).collect();
    run_tasks().await;
    let refused = client.outbound.acquire(&call()).await.err().unwrap();
    assert_eq!(refused, Refusal::QueueFull { bucket: "payments".to_owned(), waiting: 2 });
    drop(waiting);
}

/// Calls in flight are bounded, and the end of one lets the next leave without a clock.
#[tokio::test]
async fn a_permit_that_is_freed_lets_the_next_call_leave() {
    let client =
        Client::new("limits: [{name: flight, by: [host], concurrency: 1, permit_ttl: 30s}]", settings());
    let first = client.outbound.acquire(&call()).await.unwrap();
    let second = client.start(call());
    let third = client.start(call());
    run_tasks().await;
    assert!(!second.is_finished());
    drop(first);
    run_tasks().await;
    left(second).await.fail(Failure::NotSent).await;
    run_tasks().await;
    left(third).await.finish(None).await;
}

/// Two limits at once: none passes a call that waits for a bucket that both need, and other buckets go on.
#[tokio::test]
async fn a_bucket_that_waits_does_not_stop_another() {
    let policy =
        "limits: [{name: host, by: [host], rate: 100/s}, {name: route, by: [route], rate: 1/s, burst: 1}]";
    let client = Client::new(policy, settings());
    let to = |route: &str| Call::to(HOST).with("route", route).unwrap();
    client.outbound.acquire(&to("a")).await.unwrap().finish(None).await;
    let waits = client.start(to("a"));
    run_tasks().await;
    client.outbound.acquire(&to("b")).await.unwrap().finish(None).await;
    assert!(!waits.is_finished());
    client.advance(SECOND).await;
    left(waits).await.finish(None).await;
}

/// A call that costs more than the limit ever admits is refused with the largest cost.
#[tokio::test]
async fn a_cost_above_the_capacity_can_never_leave() {
    let client = Client::new("limits: [{name: tokens, by: [host], rate: 100/min}]", settings());
    let refused = client.outbound.acquire(&call().cost(101).unwrap()).await.err().unwrap();
    assert_eq!(refused, Refusal::Never { bucket: "tokens".to_owned(), capacity: 100 });
    let guard = client.outbound.acquire(&call().cost(100).unwrap()).await.unwrap();
    // The actual cost is smaller: the rest is there for others.
    guard.finish(Some(40)).await;
    client.outbound.acquire(&call().cost(60).unwrap()).await.unwrap().finish(None).await;
}

/// A limit may count calls at a cost of its own. Where the server's window says so, a call of this cost waits for the
/// server.
#[tokio::test]
async fn the_cost_of_the_limit_counts_in_the_servers_window() {
    let mut settings = settings();
    settings.learning = tollgate_outbound::Learning::Off;
    let client =
        Client::new("limits: [{name: my-tokens, by: [host], rate: 100_000/min, cost: 500}]", settings);
    let first = client.outbound.acquire(&call()).await.unwrap();
    let headers = [
        ("x-ratelimit-limit-tokens", "1000"),
        ("x-ratelimit-remaining-tokens", "100"),
        ("x-ratelimit-reset-tokens", "30s"),
    ];
    client.answer(first, 200, &headers).await;
    let waits = client.start(call());
    run_tasks().await;
    assert!(!waits.is_finished());
    client.advance(Duration::from_secs(30)).await;
    left(waits).await.finish(None).await;
}

/// The units before a waiter are those of the limit for which it waits, whatever other limits count the calls at.
#[tokio::test]
async fn a_call_behind_large_calls_of_another_limit_is_not_refused() {
    let client = Client::new(
        "limits: [{name: requests, by: [host], rate: 1/s, burst: 1, cost: 1}, {name: tokens, rate: 1_000_000/s}]",
        settings(),
    );
    let large = || call().cost(1_000).unwrap();
    client.outbound.acquire(&large()).await.unwrap().finish(None).await;
    let waiting: Vec<_> = (0..3).map(|_| client.start(large())).collect();
    run_tasks().await;
    let met = client.start(large().max_wait(Duration::from_secs(4)));
    run_tasks().await;
    for _ in 0..4 {
        client.advance(SECOND).await;
    }
    for call in waiting {
        left(call).await.finish(None).await;
    }
    left(met).await.finish(None).await;
}

/// The first waiter's units are there when it leaves: the next waits for its own units only.
#[tokio::test]
async fn a_small_call_behind_a_large_one_is_not_refused() {
    let client = Client::new("limits: [{name: tokens, by: [host], rate: 10/s, burst: 100}]", settings());
    let large = || call().cost(100).unwrap();
    client.outbound.acquire(&large()).await.unwrap().finish(None).await;
    let waits = client.start(large());
    run_tasks().await;
    let met = client.start(call().max_wait(Duration::from_millis(10_100)));
    run_tasks().await;
    client.advance(10 * SECOND).await;
    left(waits).await.finish(None).await;
    client.advance(Duration::from_millis(100)).await;
    left(met).await.finish(None).await;
}

/// In the queue of a server, calls leave by priority, too. A deadline behind calls that use up the next window is
/// refused at once.
#[tokio::test]
async fn the_queue_of_a_server_has_priorities_and_deadlines() {
    let mut settings = settings();
    settings.max_wait = Duration::from_secs(600);
    let client = Client::new("limits: [{name: open, by: [host], rate: 10_000/s}]", settings);
    let first = client.outbound.acquire(&call()).await.unwrap();
    let none_left = [("ratelimit-policy", r#""default";q=2;w=60"#), ("ratelimit", r#""default";r=0;t=30"#)];
    client.answer(first, 200, &none_left).await;
    let batch: Vec<_> = (0..3).map(|_| client.start(call().priority(Priority::Batch))).collect();
    run_tasks().await;
    client.advance(SECOND).await;
    // Two of the three leave in 29 s, and the next window begins in 89 s.
    let late = || call().priority(Priority::Batch);
    let refused = client.outbound.acquire(&late().max_wait(Duration::from_secs(88))).await.err().unwrap();
    let Refusal::TooLate { bucket, basis, wait, .. } = &refused else { panic!("{refused}") };
    assert_eq!((bucket.as_str(), *basis, *wait), (HOST, Basis::Server, Ticks::from_secs(89)));
    let met = client.start(late().max_wait(Duration::from_secs(89)));
    let urgent = client.start(call().priority(Priority::Interactive));
    run_tasks().await;
    client.advance(Duration::from_secs(29)).await;
    let urgent = left(urgent).await;
    assert!(batch.iter().all(|call| !call.is_finished()), "the interactive call goes first");
    let one_left = [("ratelimit-policy", r#""default";q=2;w=60"#), ("ratelimit", r#""default";r=1;t=60"#)];
    client.answer(urgent, 200, &one_left).await;
    assert_eq!(batch.iter().map(|call| call.is_finished()).collect::<Vec<_>>(), [true, false, false]);
    drop((batch, met));
}

/// A call that waits for one bucket is refused at once if another makes it wait longer than it may.
#[tokio::test]
async fn the_bucket_that_holds_a_call_back_longest_decides_about_its_deadline() {
    let client = Client::new("limits: [{name: open, by: [host], rate: 10_000/s}]", settings());
    let to = || call().with("route", "GET /a").unwrap();
    let first = client.outbound.acquire(&to()).await.unwrap();
    let second = client.outbound.acquire(&to()).await.unwrap();
    let used_up = [
        ("x-ratelimit-resource", "core"),
        ("x-ratelimit-limit", "5000"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset-after", "3600"),
    ];
    client.answer(first, 200, &used_up).await;
    client.answer(second, 503, &[("retry-after", "1")]).await;
    let refused = client.outbound.acquire(&to()).await.err().unwrap();
    let Refusal::TooLate { bucket, wait, .. } = &refused else { panic!("{refused}") };
    assert_eq!((bucket.as_str(), *wait), ("api.example.com (core)", Ticks::from_secs(3_600)));
}

/// A leaky bucket spaces calls, and a call that goes away while it waits gives its slot back.
#[tokio::test]
async fn a_leaky_bucket_spaces_calls() {
    let policy = "limits: [{name: shape, by: [host], algorithm: leaky-bucket, rate: 1/s, queue: 10}]";
    let client = Client::new(policy, settings());
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    let second = client.start(call());
    run_tasks().await;
    let gone = client.start(call());
    run_tasks().await;
    gone.abort();
    run_tasks().await;
    client.advance(SECOND).await;
    left(second).await.finish(None).await;
    let third = client.start(call());
    run_tasks().await;
    client.advance(SECOND).await;
    left(third).await.finish(None).await;
}

const LEAKY: &str = "limits: [{name: shape, by: [host], algorithm: leaky-bucket, rate: 1/s, queue: 10}]";

/// A cost that a leaky bucket never admits is refused at once.
#[tokio::test]
async fn a_cost_above_a_leaky_bucket_can_never_leave() {
    let client = Client::new(LEAKY, settings());
    for _ in 0..2 {
        let refused = client.outbound.acquire(&call().cost(12).unwrap()).await.err().unwrap();
        assert_eq!(refused, Refusal::Never { bucket: "shape".to_owned(), capacity: 11 });
        client.outbound.acquire(&call()).await.unwrap().finish(None).await;
        client.advance(SECOND).await;
    }
}

/// Calls that wait for a leaky bucket leave by priority.
#[tokio::test]
async fn an_urgent_call_passes_others_that_wait_for_a_leaky_bucket() {
    let client = Client::new(LEAKY, settings());
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    let batch: Vec<_> = (0..2).map(|_| client.start(call().priority(Priority::Batch))).collect();
    run_tasks().await;
    let urgent = client.start(call().priority(Priority::Interactive));
    run_tasks().await;
    client.advance(SECOND).await;
    left(urgent).await.finish(None).await;
    for call in batch {
        assert!(!call.is_finished());
        client.advance(SECOND).await;
        left(call).await.finish(None).await;
    }
}

/// A call that goes away in the middle of the queue leaves its slot to the calls behind it.
#[tokio::test]
async fn a_slot_of_a_leaky_bucket_is_freed_in_the_middle_of_the_queue() {
    let client = Client::new(LEAKY, settings());
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(client.start(call()));
        run_tasks().await;
    }
    waiting.remove(1).abort();
    run_tasks().await;
    for call in waiting {
        assert!(!call.is_finished());
        client.advance(SECOND).await;
        left(call).await.finish(None).await;
    }
}

/// The queue of a leaky bucket is bounded, shows how many calls wait, and refuses deadlines that it cannot meet.
#[tokio::test]
async fn the_queue_of_a_leaky_bucket_is_a_queue_like_others() {
    let mut settings = settings();
    settings.queue_max = 3;
    let client = Client::new(LEAKY, settings);
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    let waiting: Vec<_> = (0..2).map(|_| client.start(call())).collect();
    run_tasks().await;
    let refused =
        client.outbound.acquire(&call().max_wait(Duration::from_millis(2_900))).await.err().unwrap();
    let Refusal::TooLate { bucket, basis, wait, .. } = &refused else { panic!("{refused}") };
    assert_eq!((bucket.as_str(), *basis, *wait), ("shape", Basis::Policy, Ticks::from_secs(3)));
    let third = client.start(call().max_wait(Duration::from_secs(3)));
    run_tasks().await;
    let refused = client.outbound.acquire(&call()).await.err().unwrap();
    assert_eq!(refused, Refusal::QueueFull { bucket: "shape".to_owned(), waiting: 3 });
    let waits = client.outbound.report().buckets.into_iter().find(|bucket| bucket.name == "shape").unwrap();
    assert_eq!(waits.waiting, 3);
    drop((waiting, third));
}

/// Calls that arrive at the same instant on several threads take one slot each.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn simultaneous_calls_waste_no_slot_of_a_leaky_bucket() {
    let client = Client::new(LEAKY, settings());
    let calls: Vec<_> = (0..8).map(|_| client.start(call())).collect();
    let waiting = || client.outbound.report().buckets.iter().map(|bucket| bucket.waiting).sum::<usize>();
    while waiting() < 7 {
        tokio::task::yield_now().await;
    }
    let forecast = client.outbound.forecast(&call(), 1).await.unwrap();
    assert_eq!(forecast.wait, Ticks::from_secs(8), "seven wait before it");
    drop(calls);
}

/// A call that waits for a slot of a leaky bucket does not hold up calls behind the same freeze that need no slot.
#[tokio::test]
async fn a_call_that_waits_for_a_slot_leaves_the_queue_of_the_server() {
    let policy = "limits: [{name: shape, by: [route], algorithm: leaky-bucket, rate: 1/h, queue: 10}]";
    let mut settings = settings();
    settings.max_wait = Duration::from_secs(7_200);
    let client = Client::new(policy, settings);
    let to = |route: &str| call().with("route", route).unwrap();
    let refused = client.outbound.acquire(&to("a")).await.unwrap();
    client.answer(refused, 503, &[("retry-after", "1")]).await;
    let mut waiting = Vec::new();
    for route in ["b", "a", "c"] {
        waiting.push(client.start(to(route)));
        run_tasks().await;
    }
    client.advance(2 * SECOND).await;
    let (probe, slow, other) = (waiting.remove(0), waiting.remove(0), waiting.remove(0));
    client.answer(left(probe).await, 200, &[]).await;
    run_tasks().await;
    assert!(!slow.is_finished());
    left(other).await.finish(None).await;
}
