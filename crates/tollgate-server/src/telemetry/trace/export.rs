//! Sends spans to a collector over OTLP (gRPC), in the background. An unreachable collector costs spans, never
//! decisions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Uri;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::mpsc;
use tollgate::{Clock, Timestamp};

use super::{Span, SpanCounts};
use crate::log_throttle::LogThrottle;
use crate::shutdown::{Stop, stopped};

/// Maximum number of spans in a batch.
const BATCH_MAX: usize = 512;
/// How long spans are collected before they are sent.
const GATHER: Duration = Duration::from_millis(500);
/// Timeout for sending one batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the address of a collector.
///
/// # Errors
/// When it is no URL of HTTP.
pub(crate) fn collector(endpoint: &str) -> Result<String, String> {
    let accepted = "accepted: http://HOST:4317 or https://HOST:4317, where an OTLP collector takes gRPC";
    let uri: Uri = endpoint.parse().map_err(|_| format!("not a URL; {accepted}"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(_)) => Ok(endpoint.to_owned()),
        _ => Err(format!("not a URL; {accepted}")),
    }
}

/// Creates an exporter to a collector. Nothing is sent yet, so the collector need not be reachable.
///
/// # Errors
/// When the address is invalid.
pub(crate) fn exporter(endpoint: &str) -> Result<SpanExporter, String> {
    let accepted = "accepted: http://HOST:4317 or https://HOST:4317, where an OTLP collector takes gRPC";
    if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        return Err(format!("--otlp {endpoint:?} is not a URL; {accepted}"));
    }
    let mut builder =
        SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_TIMEOUT);
    if endpoint.starts_with("https://") {
        builder = builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
    }
    let mut exporter =
        builder.build().map_err(|error| format!("--otlp {endpoint:?}: {error}; {accepted}"))?;
    let resource = Resource::builder()
        .with_service_name("tollgate")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

/// Sends spans until the server stops, then sends those that are left.
pub(crate) async fn run(
    exporter: SpanExporter,
    mut spans: mpsc::Receiver<Span>,
    span_counts: Arc<SpanCounts>,
    clock: Clock,
    mut stop: Stop,
) {
    let unsent = LogThrottle::default();
    loop {
        let mut batch = Vec::new();
        let is_stopping = tokio::select! {
            received = spans.recv_many(&mut batch, BATCH_MAX) => received == 0,
            () = stopped(&mut stop) => true,
        };
        if !is_stopping && batch.len() < BATCH_MAX {
            // A batch costs a round trip, so more spans may join it.
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                () = stopped(&mut stop) => {}
            }
        }
        while batch.len() < BATCH_MAX
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        if batch.is_empty() && is_stopping {
            return;
        }
        let count = batch.len() as u64;
        let sent = exporter.export(batch.into_iter().map(exported).collect());
        match tokio::time::timeout(EXPORT_TIMEOUT, sent).await {
            Ok(Ok(())) => span_counts.exported.fetch_add(count, Ordering::Relaxed),
            failed => {
                let error = failed.map_or_else(|_| "no answer".to_owned(), |sent| format!("{sent:?}"));
                if let Some(skipped) = unsent.due(clock.now()) {
                    tracing::warn!(error, count, skipped, "spans could not be sent to the collector");
                }
                span_counts.failed.fetch_add(count, Ordering::Relaxed)
            }
        };
    }
}

/// Converts a span for the collector.
fn exported(span: Span) -> SpanData {
    let mut attributes =
        vec![KeyValue::new("tollgate.wire", span.protocol), KeyValue::new("tollgate.verdict", span.verdict)];
    attributes.extend(span.limit.map(|limit| KeyValue::new("tollgate.limit", limit)));
    attributes.extend(span.source.map(|source| KeyValue::new("tollgate.source", source)));
    let retry = span.retry_after_ms.and_then(|millis| i64::try_from(millis).ok());
    attributes.extend(retry.map(|millis| KeyValue::new("tollgate.retry_after_ms", millis)));
    SpanData {
        span_context: SpanContext::new(
            TraceId::from(span.trace),
            SpanId::from(span.id),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: span.parent.is_some(),
        span_kind: SpanKind::Server,
        name: "tollgate.check".into(),
        start_time: instant(span.start),
        end_time: instant(span.end),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        // A denial is an answer, not an error.
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("tollgate").build(),
    }
}

fn instant(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(at.unix_micros())
}
