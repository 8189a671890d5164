//! Permits of concurrency limits: how long a call holds them.

use std::time::Duration;

use crate::fixture::{Client, call, left, run_tasks, settings};

const SECOND: Duration = Duration::from_secs(1);

/// The permit of a call that takes longer than `permit_ttl` is renewed until the call ends. It was not once: after that
/// time another call left, so that more calls than the limit admits were in flight.
#[tokio::test]
async fn a_permit_is_held_as_long_as_its_call() {
    let policy = "limits: [{name: flight, by: [host], concurrency: 1, permit_ttl: 3s}]";
    let client = Client::new(policy, settings());
    let long = client.outbound.acquire(&call()).await.unwrap();
    let next = client.start(call());
    run_tasks().await;
    for second in 1..=30 {
        client.advance(SECOND).await;
        assert!(!next.is_finished(), "a second call left after {second} seconds");
    }
    long.finish(None).await;
    run_tasks().await;
    // It may end without an answer, too.
    let next = left(next).await;
    for _ in 0..10 {
        client.advance(SECOND).await;
    }
    drop(next);
    run_tasks().await;
    let last = client.start(call());
    run_tasks().await;
    left(last).await.finish(None).await;
}

/// A permit outlives the time after which the cost of a call is final, and is free with the end of the call.
#[tokio::test]
async fn a_permit_is_free_after_a_call_longer_than_its_reservation() {
    let policy = "limits: [{name: flight, by: [host], concurrency: 1, permit_ttl: 3s}]";
    let mut settings = settings();
    settings.call_max = 5 * SECOND;
    let client = Client::new(policy, settings);
    let long = client.outbound.acquire(&call()).await.unwrap();
    for _ in 0..10 {
        client.advance(SECOND).await;
    }
    let next = client.start(call());
    run_tasks().await;
    assert!(!next.is_finished());
    long.finish(Some(7)).await;
    run_tasks().await;
    left(next).await.finish(None).await;
}
