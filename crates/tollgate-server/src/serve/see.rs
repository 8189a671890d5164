//! Connects what is counted with what a running server knows about itself, and with a collector of traces.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate::Clock;

use crate::cli::SeeArguments;
use crate::service::Service;
use crate::telemetry::process;
use crate::telemetry::trace::{Fate, Tracer, export};
use crate::telemetry::usage::Counted;

/// How long the last spans may take on their way once everything else has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Spans on their way to a collector.
pub(super) struct Spans {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

/// Registers the numbers of this process, and starts to send traces if a collector is named.
///
/// # Errors
/// When the collector's address cannot be one.
pub(super) fn start(
    service: &Arc<Service>,
    arguments: &SeeArguments,
    clock: &Clock,
) -> Result<Option<Spans>, String> {
    let meter = &service.meter;
    let started = clock.now();
    meter.probe(move |_| process::samples(started));
    let (watched, counted) = (Arc::downgrade(service), Counted::default());
    meter.probe(move |now| match watched.upgrade() {
        Some(service) => counted.samples(now, || service.engine.usage(now)).to_vec(),
        None => Vec::new(),
    });
    let Some(endpoint) = &arguments.otlp else {
        return Ok(None);
    };
    let exporter = export::exporter(endpoint)?;
    let fate = Arc::new(Fate::default());
    let (tracer, spans) = Tracer::new(arguments.otlp_sample, clock.clone(), Arc::clone(&fate));
    meter.trace(tracer);
    let told = Arc::clone(&fate);
    meter.probe(move |_| told.samples());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(export::run(exporter, spans, fate, clock.clone(), stopped));
    Ok(Some(Spans { task, stop }))
}

/// Lets the last spans go on their way, once the last decision is made.
pub(super) async fn finish(spans: Option<Spans>) {
    let Some(Spans { task, stop }) = spans else {
        return;
    };
    // It fails when the task has ended, which is what was to be said.
    let _ = stop.send(true);
    if tokio::time::timeout(FLUSH_TIMEOUT, task).await.is_err() {
        tracing::warn!("the last spans were not sent: the collector did not answer in time");
    }
}
