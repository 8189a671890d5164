//! Connects the metrics with the state of a running server, and with a collector of traces.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Clock, ExpiringOverride, LimitOverride, Timestamp};

use super::settings::TraceSettings;
use crate::control::ControlPlane;
use crate::file_watch::Reloadable;
use crate::service::Service;
use crate::store::Fleet;
use crate::telemetry::names::{self, label};
use crate::telemetry::trace::{SpanCounts, Tracer, export};
use crate::telemetry::usage::CachedUsage;
use crate::telemetry::{LimitLeases, Sample, StoreMetrics, process};

/// Timeout for sending the last spans after everything else has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The task that sends spans to a collector.
pub(super) struct Spans {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

/// Registers the metrics of this process, and starts sending traces if a collector is configured.
///
/// # Errors
/// When the collector's address is invalid.
pub(super) fn start(
    control: &Arc<ControlPlane>,
    traces: Option<TraceSettings>,
    clock: &Clock,
) -> Result<Option<Spans>, String> {
    let service = &control.service;
    let meter = &service.meter;
    let started = clock.now();
    let following = clock.clone();
    meter.probe(move |now| process::samples(started.on_wall(following.wall_offset(now))));
    let (watched, counted) = (Arc::downgrade(control), CachedUsage::default());
    meter.probe(move |now| {
        // Weak, so that the metrics do not keep the control plane alive.
        let Some(control) = watched.upgrade() else { return Vec::new() };
        let service = &control.service;
        let memory = service.engine.store().memory();
        let mut samples =
            memory.map_or_else(Vec::new, |memory| counted.samples(now, || memory.usage(now)).to_vec());
        samples.extend(policy(&control));
        samples.extend(callers(&control));
        samples.extend(operated(service, now));
        samples
            .extend(control.fleet.unshared().map(|unshared| Sample::new(&names::UNSHARED, unshared as u64)));
        samples.extend(snapshots(&control));
        samples
    });
    if let Some(store) = control.readiness.store.clone() {
        let (watched, clock) = (Arc::downgrade(service), clock.clone());
        meter.show_store(move || {
            let service = watched.upgrade();
            let fleet = service.as_ref().and_then(|service| service.engine.store().fleet());
            fleet.map_or_else(StoreMetrics::default, |fleet| {
                let fallback = service
                    .as_ref()
                    .and_then(|service| service.engine.maintenance().fallback())
                    .unwrap_or_default();
                let mut numbers = store.numbers(&fleet.redis().report(), &fallback, clock.now());
                numbers.leases = fleet.store.report();
                numbers.limits = service.as_ref().map_or_else(Vec::new, |service| leased(service, fleet));
                numbers
            })
        });
    }
    let Some(TraceSettings { endpoint, sample }) = traces else {
        return Ok(None);
    };
    let exporter = export::exporter(&endpoint)?;
    let span_counts = Arc::new(SpanCounts::default());
    let (tracer, spans) = Tracer::new(sample, clock.clone(), Arc::clone(&span_counts));
    meter.trace(tracer);
    let shown = Arc::clone(&span_counts);
    meter.probe(move |_| shown.samples());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(export::run(exporter, spans, span_counts, clock.clone(), stopped));
    Ok(Some(Spans { task, stop }))
}

/// The leases of each limit that may be leased.
fn leased(service: &Service, fleet: &Fleet) -> Vec<LimitLeases> {
    let holdings = fleet.store.holdings();
    let each = service.engine.maintenance().leased_families().into_iter().map(|(limit, families)| {
        let held = families.iter().filter_map(|family| holdings.get(family));
        let (keys, units) = held.fold((0, 0), |(keys, units), held| (keys + held.keys, units + held.units));
        LimitLeases { limit, keys, units }
    });
    each.collect()
}

/// The active policy, and the results of reloads.
fn policy(control: &ControlPlane) -> Vec<Sample> {
    let service = &control.service;
    let limits =
        service.compat().map_or_else(|| service.engine.policy().limits().len(), |rules| rules.rules_total);
    let limits = Sample::new(&names::POLICY_LIMITS, limits as u64);
    let status = control.reloader.status();
    let reloads =
        |result, value| Sample { metric: &names::RELOADS, label: Some((label::RESULT, result)), value };
    vec![
        limits,
        Sample::new(
            &names::POLICY_SINCE,
            control.service.on_wall(status.loaded_at).unix_micros() / TICKS_PER_SECOND,
        ),
        reloads("ok", status.good),
        reloads("failed", status.bad),
        Sample::new(&names::RELOAD_OK, u64::from(status.trouble().is_none())),
    ]
}

/// The known callers, if there is a callers file.
fn callers(control: &ControlPlane) -> Vec<Sample> {
    let Some(callers) = &control.readiness.callers else { return Vec::new() };
    vec![
        Sample::new(&names::CALLERS, callers.known() as u64),
        Sample::new(&names::CALLERS_OK, u64::from(callers.files().status().trouble().is_none())),
    ]
}

/// How many limits an operator has switched off. An override of all limits counts as one.
fn operated(service: &Service, now: Timestamp) -> [Sample; 1] {
    let (all, single) = service.engine.operator().overrides(now).list();
    let is_off = |ruled: &ExpiringOverride| ruled.kind == LimitOverride::Off;
    let killed =
        all.iter().chain(single.iter().map(|(_, ruled)| ruled)).filter(|ruled| is_off(ruled)).count();
    [Sample::new(&names::KILL_SWITCHES, killed as u64)]
}

/// The results of snapshots, if they are taken.
fn snapshots(control: &ControlPlane) -> Vec<Sample> {
    let status = control.snapshots.status();
    let taken =
        |result, value| Sample { metric: &names::SNAPSHOTS, label: Some((label::RESULT, result)), value };
    let mut samples = vec![taken("ok", status.written), taken("failed", status.failures)];
    let since = status.last_good_at.map(|at| control.service.on_wall(at).unix_micros() / TICKS_PER_SECOND);
    samples.extend(since.map(|since| Sample::new(&names::SNAPSHOT_SINCE, since)));
    samples
}

/// Sends the last spans, after the last decision.
pub(super) async fn finish(spans: Option<Spans>) {
    let Some(Spans { task, stop }) = spans else {
        return;
    };
    // Sending fails only if the task has ended, which is the desired state.
    let _ = stop.send(true);
    if tokio::time::timeout(FLUSH_TIMEOUT, task).await.is_err() {
        tracing::warn!("the last spans were not sent: the collector did not answer in time");
    }
}
