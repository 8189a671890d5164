//! A fault that takes the store away for a while, and its usual measurements.

use super::assessment::FaultSpans;
use super::report::{Measure, Unit};
use crate::fleet::Running;
use crate::record::{Mode, RecordedDecision};

/// Microseconds for a decision when the store is known to be away.
const FAST: u64 = 100;

/// Starts an outage.
pub(super) struct Outage<'a> {
    running: &'a Running,
    pub(super) began: u64,
    first: usize,
}

impl<'a> Outage<'a> {
    pub(super) fn begin(running: &'a Running) -> Self {
        Self { running, began: running.recorder.now(), first: running.recorder.len() }
    }

    /// Milliseconds since it began.
    pub(super) fn lasted(&self) -> u64 {
        (self.running.recorder.now() - self.began) / 1_000
    }

    /// Decisions that the store did not make.
    fn without(&self) -> u64 {
        let seen = self.running.recorder.since(self.first);
        seen.iter().filter(|seen| seen.mode != Mode::Exact).count() as u64
    }

    /// The 99th percentile of decisions without the store, once a while has passed.
    pub(super) fn fast_path(&self, after_micros: u64) -> Measure {
        let seen = self.running.recorder.since(self.first);
        let from = self.began + after_micros;
        let away = seen.iter().filter(|seen| seen.mode != Mode::Exact && seen.sent >= from);
        let mut took: Vec<u64> = away.map(RecordedDecision::took).collect();
        took.sort_unstable();
        let value = took.get(took.len() * 99 / 100).copied().unwrap_or(u64::MAX);
        Measure { what: "p99 in process meanwhile", unit: Unit::Micros, value, most: FAST }
    }

    /// The store is healthy from now on, and has lost nothing.
    pub(super) fn over(self, evidence: &[(&str, u64)]) -> FaultSpans {
        let healthy = self.running.recorder.now();
        let mut spans = FaultSpans { outages: vec![self.began], healthy, ..FaultSpans::default() };
        spans.evidence = evidence.iter().map(|&(what, count)| (what.to_owned(), count)).collect();
        spans.evidence.push(("decision without the store".to_owned(), self.without()));
        spans
    }

    /// The store is healthy from now on, but has lost its keys.
    pub(super) fn over_empty(self, evidence: &[(&str, u64)]) -> FaultSpans {
        let began = self.began;
        let spans = self.over(evidence);
        FaultSpans { losses: vec![(began, spans.healthy)], ..spans }
    }
}
