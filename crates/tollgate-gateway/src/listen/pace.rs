//! The minimum rate of a client: this many bytes over this time, on average. Only time in which the server waits for
//! the client counts, and its bytes earn that time back, up to a bound. So bursts and pauses pass, and a trickle fails,
//! however long it lasts.

use std::time::Duration;

/// A minimum rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes that earn the whole of `over`.
    pub bytes: u32,
    /// The longest wait that bytes can earn.
    pub over: Duration,
    /// How long the server waits for a client at first.
    pub first: Duration,
}

impl Pace {
    /// A client that may be silent for this long at any time.
    pub const fn idle(timeout: Duration) -> Self {
        Self { bytes: 1, over: timeout, first: timeout }
    }
}

/// How long the server still waits for a client.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    pace: Pace,
    left: Duration,
}

impl Allowance {
    /// A client of which nothing is known yet.
    #[must_use]
    pub const fn new(pace: Pace) -> Self {
        Self { left: pace.first, pace }
    }

    /// How long the server still waits.
    #[must_use]
    pub const fn left(&self) -> Duration {
        self.left
    }

    /// The server waited for the client.
    pub fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }

    /// This many bytes moved.
    pub fn earn(&mut self, bytes: usize) {
        let Pace { bytes: all, over, .. } = self.pace;
        if self.left >= over {
            return;
        }
        let bytes = u128::try_from(bytes).unwrap_or(u128::MAX);
        let nanos = over.as_nanos().saturating_mul(bytes) / u128::from(all.max(1));
        let earned = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.left = self.left.saturating_add(earned).min(over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const PACE: Pace = Pace { bytes: 30_000, over: Duration::from_secs(60), first: Duration::from_secs(20) };

    /// How many seconds a client lasts that repeatedly sends this many bytes and then keeps the server waiting for a
    /// second.
    fn lasts(bytes: usize) -> Option<u32> {
        let mut allowance = Allowance::new(PACE);
        (0..10_000).find(|_| {
            allowance.earn(bytes);
            allowance.spend(SECOND);
            allowance.left().is_zero()
        })
    }

    /// A client at the minimum rate lasts, and one below it does not, however small the difference.
    #[test]
    fn the_average_counts() {
        assert_eq!(lasts(500), None);
        assert_eq!(lasts(50_000), None);
        assert_eq!(lasts(0), Some(19));
        assert_eq!(lasts(1), Some(20));
        assert!(lasts(499).is_some_and(|seconds| seconds > 5_000));
    }

    /// A burst earns a pause of at most a minute: a gigabyte is no reason to wait for a client for a day.
    #[test]
    fn bursts_earn_pauses() {
        let mut allowance = Allowance::new(PACE);
        allowance.earn(10_000);
        assert_eq!(allowance.left(), 40 * SECOND);
        allowance.earn(1 << 30);
        assert_eq!(allowance.left(), 60 * SECOND);
        allowance.spend(59 * SECOND);
        allowance.earn(15_000);
        assert_eq!(allowance.left(), 31 * SECOND);
        allowance.earn(usize::MAX);
        assert_eq!(allowance.left(), 60 * SECOND);
    }

    /// A stream that is idle by nature may be silent for its timeout after each byte.
    #[test]
    fn idle_streams() {
        let mut allowance = Allowance::new(Pace::idle(300 * SECOND));
        for _ in 0..100 {
            allowance.spend(299 * SECOND);
            assert_eq!(allowance.left(), SECOND);
            allowance.earn(1);
            assert_eq!(allowance.left(), 300 * SECOND);
        }
    }
}
