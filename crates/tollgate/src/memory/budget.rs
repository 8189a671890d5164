//! The memory budget of a store, in bytes: each part has its own share, and all parts share the rest.

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering};

/// The share of a part divided by this is reserved for known keys.
const RESERVE_PARTS: u64 = 2;

/// The bytes that one part of a store may take: first its own share, then the common bytes. Tables never
/// return lines, so a flood of one kind of keys takes the common bytes for good, but the other kinds keep
/// their shares.
pub(crate) struct Budget {
    own: AtomicU64,
    own_total: u64,
    common: Arc<AtomicU64>,
    common_total: u64,
}

impl Budget {
    /// A budget without common bytes.
    #[cfg(test)]
    pub(crate) fn new(total: u64) -> Self {
        let (own, common) = (AtomicU64::new(total), Arc::new(AtomicU64::new(0)));
        Self { own, own_total: total, common, common_total: 0 }
    }

    /// Budgets of three parts: an eighth for each, the rest in common.
    pub(crate) fn shares(total: u64) -> [Arc<Budget>; 3] {
        let own_total = total / 8;
        let common_total = total - 3 * own_total;
        let common = Arc::new(AtomicU64::new(common_total));
        std::array::from_fn(|_| {
            let own = AtomicU64::new(own_total);
            Arc::new(Self { own, own_total, common: Arc::clone(&common), common_total })
        })
    }

    /// The maximum bytes of this part.
    pub(crate) const fn total(&self) -> u64 {
        self.own_total + self.common_total
    }

    /// Bytes left of this part's share.
    pub(crate) fn own_left(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// Common bytes left.
    pub(crate) fn common_left(&self) -> u64 {
        self.common.load(Ordering::Relaxed)
    }

    /// Whether less than a quarter is left.
    pub(crate) fn is_short(&self) -> bool {
        self.own_left() + self.common_left() < self.total() / 4
    }

    /// Bytes of this part's share that [`Budget::take_unreserved`] leaves.
    const fn reserve(&self) -> u64 {
        self.own_total / RESERVE_PARTS
    }

    /// Takes bytes for a new key, and leaves a reserve for known keys.
    pub(crate) fn take_unreserved(&self, bytes: u64) -> bool {
        let least = bytes.saturating_add(self.reserve());
        let take = |left: u64| left.checked_sub(least).map(|rest| rest + self.reserve());
        // Relaxed, as below.
        self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() || self.take_common(bytes)
    }

    /// Takes bytes for a known key, from the reserve only when nothing else is left.
    pub(crate) fn take_reserve(&self, bytes: u64) -> bool {
        self.take_unreserved(bytes) || self.take(bytes)
    }

    fn take_common(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes);
        self.common.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Takes bytes if that many are left. Relaxed: the numbers guard no other memory.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let take = |from: &AtomicU64| {
            from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
        };
        take(&self.own) || take(&self.common)
    }

    /// Whether [`Budget::take`] would succeed.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.own_left() >= bytes || self.common_left() >= bytes
    }

    /// Whether [`Budget::take_unreserved`] would succeed.
    pub(crate) fn fits_unreserved(&self, bytes: u64) -> bool {
        self.own_left() >= bytes.saturating_add(self.reserve()) || self.common_left() >= bytes
    }

    /// Returns bytes, first to this part's share.
    pub(crate) fn give(&self, bytes: u64) {
        let refill = |own: u64| Some(own.saturating_add(bytes).min(self.own_total));
        let own =
            self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refill).unwrap_or(self.own_total);
        let beyond = own.saturating_add(bytes).saturating_sub(self.own_total);
        self.common.fetch_add(beyond, Ordering::Relaxed);
    }
}
