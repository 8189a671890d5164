//! How fast a client has to be: so many bytes over so long a time, on average. A client is only charged for time in which it is awaited,
//! and its bytes earn that time back, up to a bound. So bursts and pauses pass, and a trickle does not, however long it lasts.

use std::time::Duration;

/// A minimum pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Bytes that earn all of `over`.
    pub(crate) bytes: u32,
    /// The longest wait that bytes can earn.
    pub(crate) over: Duration,
    /// How long a client may be awaited at first.
    pub(crate) first: Duration,
}

impl Pace {
    /// A client that may be silent for so long, whenever it likes.
    pub(crate) const fn idle(timeout: Duration) -> Self {
        Self { bytes: 1, over: timeout, first: timeout }
    }
}

/// How long a client may still be awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pace: Pace,
    left: Duration,
}

impl Allowance {
    pub(crate) const fn new(pace: Pace) -> Self {
        Self { left: pace.first, pace }
    }

    pub(crate) const fn left(&self) -> Duration {
        self.left
    }

    /// The client was awaited.
    pub(crate) fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }

    /// So many bytes moved.
    pub(crate) fn earn(&mut self, bytes: usize) {
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

    /// How many seconds a client lasts that sends so many bytes and then is awaited for a second, again and again.
    fn lasts(bytes: usize) -> Option<u32> {
        let mut allowance = Allowance::new(PACE);
        (0..10_000).find(|_| {
            allowance.earn(bytes);
            allowance.spend(SECOND);
            allowance.left().is_zero()
        })
    }

    /// Whoever keeps the pace lasts, and whoever is below it does not, however little.
    #[test]
    fn the_average_counts() {
        assert_eq!(lasts(500), None);
        assert_eq!(lasts(50_000), None);
        assert_eq!(lasts(0), Some(19));
        assert_eq!(lasts(1), Some(20));
        assert!(lasts(499).is_some_and(|seconds| seconds > 5_000));
    }

    /// A burst earns a pause, of a minute at most: a gigabyte is no reason to be awaited for a day.
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
