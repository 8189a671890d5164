//! Forecasts: when the last of several calls could leave.

use std::time::Duration;

use tollgate::Ticks;
use tollgate_outbound::{Basis, Forecast, Refusal};

use crate::fixture::{Client, call, run_tasks, settings};

/// A forecast is the instant at which the last call leaves, with the calls that wait already before it.
#[tokio::test]
async fn a_forecast_is_when_the_last_call_leaves() {
    let client = Client::new("limits: [{name: payments, by: [host], rate: 2/s, burst: 2}]", settings());
    let now = client.outbound.forecast(&call(), 2).await.unwrap();
    assert_eq!((now.wait, now.bucket), (Ticks::ZERO, None));
    let later = client.outbound.forecast(&call(), 7).await.unwrap();
    assert_eq!(later.wait, Ticks::from_millis(2_500));
    assert_eq!(later.bucket, Some(("payments".to_owned(), Basis::Policy)));
    for _ in 0..2 {
        client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    }
    let waits = client.start(call());
    run_tasks().await;
    let behind = client.outbound.forecast(&call(), 1).await.unwrap();
    assert_eq!(behind.wait, Ticks::from_secs(1), "one call waits already");
    drop(waits);
}

/// The numbers of the server count too, and a cost that can never pass is refused.
#[tokio::test]
async fn the_servers_numbers_are_in_the_forecast() {
    let client = Client::new("limits: [{name: open, by: [host], rate: 1000/s}]", settings());
    let first = client.outbound.acquire(&call()).await.unwrap();
    let headers = [("ratelimit-policy", r#""default";q=10;w=60"#), ("ratelimit", r#""default";r=5;t=30"#)];
    client.answer(first, 200, &headers).await;
    assert_eq!(client.outbound.forecast(&call(), 5).await.unwrap().wait, Ticks::ZERO);
    let later = client.outbound.forecast(&call(), 16).await.unwrap();
    assert_eq!(later.wait, Ticks::from_secs(90), "5 now, 10 after 30 s, 1 after another minute");
    assert_eq!(later.bucket.unwrap().1, Basis::Server);
    let never = client.outbound.forecast(&call().cost(1_001).unwrap(), 1).await;
    assert!(matches!(never, Err(Refusal::Never { capacity: 1000, .. })), "{never:?}");
}

/// Calls that wait for the server already leave before the forecast ones.
#[tokio::test]
async fn calls_that_wait_for_the_server_are_in_the_forecast() {
    let mut settings = settings();
    settings.max_wait = Duration::from_secs(600);
    let client = Client::new("limits: [{name: open, by: [host], rate: 1000/s}]", settings);
    let first = client.outbound.acquire(&call()).await.unwrap();
    let headers = [("ratelimit-policy", r#""default";q=10;w=60"#), ("ratelimit", r#""default";r=0;t=30"#)];
    client.answer(first, 200, &headers).await;
    let waiting: Vec<_> = (0..15).map(|_| client.start(call())).collect();
    run_tasks().await;
    let wait = |forecast: Result<Forecast, Refusal>| forecast.unwrap().wait;
    assert_eq!(
        wait(client.outbound.forecast(&call(), 5).await),
        Ticks::from_secs(90),
        "15 and 5 in two windows"
    );
    assert_eq!(wait(client.outbound.forecast(&call(), 6).await), Ticks::from_secs(150));
    drop(waiting);
}

/// A call is forecast at what it costs in each limit: a limit that counts requests does not count its units.
#[tokio::test]
async fn a_forecast_counts_a_call_as_the_limit_does() {
    let client =
        Client::new("limits: [{name: requests, by: [host], rate: 1/s, burst: 60, cost: 1}]", settings());
    let large = call().cost(1_000).unwrap();
    assert_eq!(client.outbound.forecast(&large, 60).await.unwrap().wait, Ticks::ZERO);
    assert_eq!(client.outbound.forecast(&large, 62).await.unwrap().wait, Ticks::from_secs(2));
}

/// Calls that a leaky bucket admits to its queue leave one by one.
#[tokio::test]
async fn a_forecast_counts_the_wait_in_a_leaky_bucket() {
    let policy = "limits: [{name: shape, by: [host], algorithm: leaky-bucket, rate: 1/s, queue: 10}]";
    let client = Client::new(policy, settings());
    assert_eq!(client.outbound.forecast(&call(), 5).await.unwrap().wait, Ticks::from_secs(4));
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
    assert_eq!(client.outbound.forecast(&call(), 5).await.unwrap().wait, Ticks::from_secs(5));
}
