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
