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
