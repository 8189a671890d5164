//! When the units that a node holds of one key were acquired. The oldest units are spent first, so the units
//! left over belong to the latest acquisitions and are returned to those instants.

use smallvec::SmallVec;

use crate::time::Timestamp;

/// The maximum number of acquisitions kept apart. Older ones are merged into the oldest, which returns less
/// and never more.
const ACQUISITIONS_MAX: usize = 8;

/// Units acquired at one instant of the counter's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acquisition {
    pub(super) at: Timestamp,
    pub(super) units: u64,
    /// When this node asked for them, by its own clock.
    pub(super) sent: Timestamp,
}

/// The acquisitions that held units may belong to, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Acquisitions {
    held: SmallVec<[Acquisition; 4]>,
    /// When the latest acquisition was asked for of which units have been spent.
    spent: Timestamp,
}

impl Acquisitions {
    /// Adds an acquisition, made while `held` units were held.
    pub(super) fn add(&mut self, acquisition: Acquisition, held: u64) {
        self.retain_newest(held);
        self.held.push(acquisition);
        if self.held.len() > ACQUISITIONS_MAX {
            let first = self.held.remove(0);
            if let Some(second) = self.held.first_mut() {
                let (at, sent) = (first.at.min(second.at), first.sent.min(second.sent));
                *second = Acquisition { at, units: first.units + second.units, sent };
            }
        }
    }

    /// Notes that units of this instant were put back, so that `held` units are held again.
    pub(super) fn put_back(&mut self, at: Timestamp, held: u64) {
        let known: u64 = self.held.iter().map(|acquisition| acquisition.units).sum();
        if held > known {
            let oldest = self.held.first().map_or(self.spent, |first| first.sent.min(self.spent));
            self.held.insert(0, Acquisition { at, units: held - known, sent: oldest });
        }
    }

    /// The instant of the oldest acquisition whose units may still be held.
    pub(super) fn oldest(&self) -> Timestamp {
        self.held.iter().map(|acquisition| acquisition.at).min().unwrap_or_default()
    }

    /// Since when the oldest of `held` units are held, by this node's clock; `None` if that is unknown.
    pub(super) fn held_since(&mut self, held: u64) -> Option<Timestamp> {
        self.retain_newest(held);
        self.held.iter().map(|acquisition| acquisition.sent).min()
    }

    /// Takes all acquisitions, of which `held` units are held.
    pub(super) fn take(&mut self, held: u64) -> SmallVec<[Acquisition; 4]> {
        self.retain_newest(held);
        std::mem::take(&mut self.held)
    }

    /// Drops the oldest units until `held` are left.
    fn retain_newest(&mut self, held: u64) {
        let mut spent =
            self.held.iter().map(|acquisition| acquisition.units).sum::<u64>().saturating_sub(held);
        let latest = &mut self.spent;
        self.held.retain(|acquisition| {
            let gone = spent.min(acquisition.units);
            spent -= gone;
            acquisition.units -= gone;
            if gone > 0 {
                *latest = acquisition.sent;
            }
            acquisition.units > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquisition(second: u64, units: u64) -> Acquisition {
        let at = Timestamp::from_unix_seconds(second);
        Acquisition { at, units, sent: at }
    }

    /// The oldest units are spent first, so unspent units belong to the latest acquisitions.
    #[test]
    fn unspent_units_belong_to_the_latest_acquisitions() {
        let mut acquisitions = Acquisitions::default();
        acquisitions.add(acquisition(1, 10), 0);
        acquisitions.add(acquisition(2, 10), 4);
        assert_eq!(acquisitions.oldest(), Timestamp::from_unix_seconds(1));
        assert_eq!(acquisitions.clone().take(12).as_slice(), [acquisition(1, 2), acquisition(2, 10)]);
        assert_eq!(acquisitions.take(7).as_slice(), [acquisition(2, 7)]);
        assert!(acquisitions.take(3).is_empty(), "their instants are unknown");
    }

    /// At most `ACQUISITIONS_MAX` acquisitions are kept apart, and none is moved to a later instant.
    #[test]
    fn old_acquisitions_are_merged() {
        let mut acquisitions = Acquisitions::default();
        for second in 1..=20 {
            acquisitions.add(acquisition(second, 1), second - 1);
        }
        assert_eq!(acquisitions.oldest(), Timestamp::from_unix_seconds(1));
        let taken = acquisitions.take(20);
        assert_eq!(taken.len(), ACQUISITIONS_MAX);
        assert_eq!(taken.iter().map(|acquisition| acquisition.units).sum::<u64>(), 20);
        assert_eq!(taken[0], acquisition(1, 13));
    }

    /// Units that are put back after their acquisition was dropped keep its instant.
    #[test]
    fn returned_units_keep_their_instant() {
        let mut acquisitions = Acquisitions::default();
        acquisitions.add(acquisition(1, 5), 0);
        acquisitions.add(acquisition(2, 5), 0);
        acquisitions.put_back(Timestamp::from_unix_seconds(1), 7);
        assert_eq!(acquisitions.take(7).as_slice(), [acquisition(1, 2), acquisition(2, 5)]);
    }
}
