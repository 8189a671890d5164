//! The result of a run.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::details::Details;

/// The maximum latency that the histogram distinguishes, and its significant digits.
const LATENCY_MAX: Duration = Duration::from_secs(60);
const DIGITS: u8 = 3;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Decisions that were answered during the measurement.
    pub decisions: u64,
    /// How many of them allowed.
    pub allowed: u64,
    /// Requests that were answered with an error, or not at all.
    pub errors: u64,
    /// Why the others were denied.
    pub details: Details,
    /// The measured time.
    pub elapsed: Duration,
    /// Nanoseconds from when each request was due, or sent in a closed loop, until its answer was complete.
    latencies: Histogram<u64>,
}

impl Summary {
    /// An empty result.
    ///
    /// # Errors
    /// Never with these bounds; the histogram's constructor may refuse others.
    pub(crate) fn new() -> Result<Self, hdrhistogram::CreationError> {
        let most = u64::try_from(LATENCY_MAX.as_nanos()).unwrap_or(u64::MAX);
        let latencies = Histogram::new_with_bounds(1, most, DIGITS)?;
        let details = Details::default();
        Ok(Self { decisions: 0, allowed: 0, errors: 0, details, elapsed: Duration::ZERO, latencies })
    }

    pub(crate) fn latency(&mut self, latency: Duration) {
        self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the result of another connection.
    pub(crate) fn add(&mut self, other: &Summary) {
        self.decisions += other.decisions;
        self.allowed += other.allowed;
        self.errors += other.errors;
        self.details.add(&other.details);
        // Both have the same bounds.
        let _ = self.latencies.add(&other.latencies);
    }

    /// Decisions a second.
    #[must_use]
    pub fn per_second(&self) -> u64 {
        let nanos = self.elapsed.as_nanos().max(1);
        u64::try_from(u128::from(self.decisions) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
    }

    /// The latency that this many of 100,000 requests did not exceed: 50,000 is the median, 99,900 the 99.9th
    /// percentile.
    #[must_use]
    #[allow(
        clippy::float_arithmetic,
        reason = "the histogram asks for a share as a fraction; no decision depends on it"
    )]
    pub fn latency_of(&self, per_100_000: u32) -> Duration {
        Duration::from_nanos(self.latencies.value_at_quantile(f64::from(per_100_000.min(100_000)) / 1e5))
    }

    /// The longest latency.
    #[must_use]
    pub fn latency_max(&self) -> Duration {
        Duration::from_nanos(self.latencies.max())
    }
}
