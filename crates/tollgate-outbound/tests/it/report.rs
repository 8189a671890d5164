//! The view of an operator: metrics in the text of Prometheus.

use tollgate_outbound::{Call, metrics};

use crate::fixture::{Client, HOST, call, run_tasks, settings};

/// The text has every metric once, with its help, and bounded labels: servers and limits, never credentials.
#[tokio::test]
async fn metrics_name_servers_and_limits() {
    let client = Client::new("limits: [{name: payments, by: [host], rate: 2/s, burst: 2}]", settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    client.answer(refused, 429, &[("retry-after", "5")]).await;
    let waits = client.start(call().with("api_key", "s3cret").unwrap());
    run_tasks().await;
    for other in 0..2 * metrics::SERIES_MAX {
        client.outbound.acquire(&Call::to(&format!("h{other}"))).await.unwrap().finish(None).await;
    }
    let frozen = client.start(call());
    run_tasks().await;
    let text = metrics::text(&client.outbound.report());
    for metric in metrics::METRICS {
        let line =
            format!("# HELP {} {}\n# TYPE {} {}\n", metric.name, metric.help, metric.name, metric.kind);
        assert_eq!(text.matches(&line).count(), 1, "{line}");
    }
    assert!(text.contains("tollgate_outbound_throttled_total 1\n"), "{text}");
    assert!(
        text.contains(&format!("tollgate_outbound_frozen{{bucket=\"{HOST}\",basis=\"server\"}} 1\n")),
        "{text}"
    );
    assert!(text.contains("bucket=\"other\"") && text.lines().count() < 4 * metrics::SERIES_MAX, "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    drop((waits, frozen));
}

/// A call in a bucket that the server names is in flight once, and calls of several credentials add up.
#[tokio::test]
async fn each_call_in_flight_is_counted_once() {
    let client = Client::new("limits: [{name: open, rate: 1000/s}]", settings());
    let to = |key: &str| call().with("api_key", key).unwrap().with("route", "GET /a").unwrap();
    let first = client.outbound.acquire(&to("a")).await.unwrap();
    client.answer(first, 200, &[("x-ratelimit-bucket", "abcd"), ("x-ratelimit-remaining", "9")]).await;
    let calls = (client.outbound.acquire(&to("a")).await, client.outbound.acquire(&to("b")).await);
    let text = metrics::text(&client.outbound.report());
    let line = format!("tollgate_outbound_in_flight{{bucket=\"{HOST}\",basis=\"server\"}} 2\n");
    assert!(text.contains(&line), "{text}");
    drop(calls);
}
