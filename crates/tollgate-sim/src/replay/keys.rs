//! The counts of each key of a limit. Memory is bounded by the number of keys.

use tollgate::{Ticks, Timestamp};

use super::bounds::{Denials, Extremes};
use super::scaled::Used;
use super::touched::Touched;

/// One key of one limit.
#[derive(Debug, Default)]
pub(super) struct Key {
    /// The index of its quota.
    pub(super) quota: u16,
    /// The other runs that denied it, one bit for each.
    pub(super) runs: u8,
    /// The sizes that denied it.
    pub(super) sizes: Denials,
    /// The sizes that denied it at both extremes that stamps of whole seconds leave open.
    pub(super) extremes: Extremes,
    /// The client of its first request.
    pub(super) client: u64,
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) used: Used,
    denied_since: Timestamp,
    denied_until: Timestamp,
    denied_for: Ticks,
    lease_units: u64,
    lease_ends_at: Timestamp,
    pub(super) touched: Option<Box<Touched>>,
}

impl Key {
    /// Notes that the key is denied until an instant.
    pub(super) fn deny(&mut self, now: Timestamp, retry_after: Ticks) {
        self.denied += 1;
        if now >= self.denied_until {
            self.close(now);
            self.denied_since = now;
        }
        self.denied_until = self.denied_until.max(now + retry_after);
    }

    /// Notes that the key is admitted, which ends the time in which it was denied.
    pub(super) fn admit(&mut self, now: Timestamp) {
        self.close(now);
    }

    /// Ends the time in which the key was denied: now, or when it would have been admitted.
    fn close(&mut self, now: Timestamp) {
        if self.denied_until > self.denied_since {
            self.denied_for = self.denied_for + self.denied_until.min(now).since(self.denied_since);
        }
        (self.denied_since, self.denied_until) = (Timestamp::default(), Timestamp::default());
    }

    /// Bytes that it points to.
    pub(super) fn pointed_bytes(&self) -> usize {
        self.used.pointed_bytes() + self.touched.as_ref().map_or(0, |touched| touched.bytes())
    }

    /// How long it was denied in all.
    pub(super) fn denied_for(&self) -> Ticks {
        self.denied_for + self.denied_until.since(self.denied_since)
    }

    /// Takes units from a lease of this size and life. Returns whether a new one was acquired.
    pub(super) fn take_leased(&mut self, cost: u64, (units, ttl): (u64, Ticks), now: Timestamp) -> bool {
        let is_new = now >= self.lease_ends_at || self.lease_units < cost;
        if is_new {
            (self.lease_units, self.lease_ends_at) = (units, now + ttl);
        }
        self.lease_units = self.lease_units.saturating_sub(cost);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key is denied from its first denial until it is admitted, or until it would have been.
    #[test]
    fn denied_time_ends_with_the_next_admission() {
        let at = Timestamp::from_unix_seconds;
        let mut key = Key::default();
        key.deny(at(100), Ticks::from_secs(10));
        key.deny(at(105), Ticks::from_secs(5));
        key.admit(at(500));
        assert_eq!(key.denied_for(), Ticks::from_secs(10));
        key.deny(at(600), Ticks::from_secs(30));
        key.admit(at(607));
        assert_eq!(key.denied_for(), Ticks::from_secs(17));
        key.deny(at(700), Ticks::from_secs(3));
        key.deny(at(800), Ticks::from_secs(4));
        assert_eq!((key.denied_for(), key.denied), (Ticks::from_secs(24), 5));
    }
}
