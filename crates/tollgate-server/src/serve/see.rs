//! Connects what is counted with what a running server knows about itself, and with a collector of traces.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate::Clock;

use crate::cli::SeeArguments;
use crate::listen::Stop;
use crate::service::Service;
use crate::telemetry::process;
use crate::telemetry::trace::{Fate, Tracer, export};
use crate::telemetry::usage::Counted;

/// How long the last spans may take on their way once everything else has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Registers the numbers of this process, and starts to send traces if a collector is named.
///
/// # Errors
/// When the collector's address cannot be one.
pub(super) fn start(
    service: &Arc<Service>,
    arguments: &SeeArguments,
    clock: &Clock,
    stop: &Stop,
) -> Result<Option<JoinHandle<()>>, String> {
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
    Ok(Some(tokio::spawn(export::run(exporter, spans, fate, clock.clone(), stop.clone()))))
}

/// Lets the last spans go on their way.
pub(super) async fn finish(spans: Option<JoinHandle<()>>) {
    if let Some(spans) = spans
        && tokio::time::timeout(FLUSH_TIMEOUT, spans).await.is_err()
    {
        tracing::warn!("the last spans were not sent: the collector did not answer in time");
    }
}
