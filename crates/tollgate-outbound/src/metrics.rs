//! The metrics of outbound calls: their names and meanings in one place, and the text that Prometheus reads. Labels are
//! limits of the policy and servers that were called, at most [`SERIES_MAX`] of them.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::queues::BucketReport;
use crate::refusal::Basis;
use crate::report::Report;

/// Maximum number of buckets with series of their own. The others count together as `other`.
pub const SERIES_MAX: usize = 100;

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its meaning.
    pub help: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: "counter" }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: "gauge" }
}

const CALLS: Metric = counter("tollgate_outbound_calls_total", "Attempts that left.");
const WAITED: Metric = counter(
    "tollgate_outbound_waited_total",
    "Attempts that waited before they left: each is a refusal that the server did not have to send.",
);
const WAIT: Metric = counter("tollgate_outbound_wait_seconds_total", "How long attempts waited together.");
const REFUSED: Metric =
    counter("tollgate_outbound_refused_total", "Attempts that were refused here and did not leave.");
const THROTTLED: Metric =
    counter("tollgate_outbound_throttled_total", "Attempts that the server refused for a limit.");
const FAILED: Metric = counter(
    "tollgate_outbound_failed_total",
    "Attempts without a response, or with one that reports a fault.",
);
const RETRIES: Metric = counter("tollgate_outbound_retries_total", "Attempts after the first of a call.");
const HEDGES: Metric = counter(
    "tollgate_outbound_hedges_total",
    "Copies of calls that were sent beside an attempt without a response.",
);
const WAITING: Metric = gauge("tollgate_outbound_waiting", "Calls that wait now, by bucket.");
const IN_FLIGHT: Metric = gauge("tollgate_outbound_in_flight", "Calls in flight, by server.");
const FROZEN: Metric = gauge("tollgate_outbound_frozen", "Buckets that are frozen now, by server.");

/// All metrics, in the order of [`text`].
pub const METRICS: [Metric; 11] =
    [CALLS, WAITED, WAIT, REFUSED, THROTTLED, FAILED, RETRIES, HEDGES, WAITING, IN_FLIGHT, FROZEN];

/// A report in Prometheus's text format.
#[must_use]
pub fn text(report: &Report) -> String {
    let totals = &report.totals;
    let micros = totals.waited_for.as_micros();
    let waited = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let mut text = String::new();
    for (metric, number) in [
        (CALLS, totals.calls.to_string()),
        (WAITED, totals.waited.to_string()),
        (WAIT, waited),
        (REFUSED, totals.refused.to_string()),
        (THROTTLED, totals.throttled.to_string()),
        (FAILED, totals.failed.to_string()),
        (RETRIES, totals.retries.to_string()),
        (HEDGES, totals.hedges.to_string()),
    ] {
        begin(&mut text, &metric);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {number}", metric.name);
    }
    let waiting = |bucket: &BucketReport| Some(bucket.waiting as u64);
    let of_server = |bucket: &BucketReport, number: u64| (bucket.basis == Basis::Server).then_some(number);
    by_bucket(&mut text, &WAITING, report, waiting);
    by_bucket(&mut text, &IN_FLIGHT, report, |bucket| bucket.counts_all_calls.then_some(bucket.in_flight));
    by_bucket(&mut text, &FROZEN, report, |bucket| of_server(bucket, u64::from(bucket.frozen.is_some())));
    text
}

fn begin(text: &mut String, metric: &Metric) {
    let Metric { name, help, kind } = metric;
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// The sum of a number over the buckets of each server and of each limit.
fn by_bucket(
    text: &mut String,
    metric: &Metric,
    report: &Report,
    number: impl Fn(&BucketReport) -> Option<u64>,
) {
    begin(text, metric);
    let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for bucket in &report.buckets {
        let Some(number) = number(bucket) else { continue };
        let basis = if bucket.basis == Basis::Server { "server" } else { "policy" };
        let owner = (bucket.owner.as_str(), basis);
        let is_full = sums.len() >= SERIES_MAX && !sums.contains_key(&owner);
        *sums.entry(if is_full { ("other", basis) } else { owner }).or_default() += number;
    }
    for ((owner, basis), sum) in sums {
        let owner = owner.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let _ = writeln!(text, "{}{{bucket=\"{owner}\",basis=\"{basis}\"}} {sum}", metric.name);
    }
}
