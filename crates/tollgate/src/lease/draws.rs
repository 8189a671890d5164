//! When the units were drawn that a node holds of one key. Those that were drawn first are spent first, so what is left over
//! is of the latest draws, and goes back to their instants.

use smallvec::SmallVec;

use crate::time::Timestamp;

/// Draws that are told apart. Older ones are taken to be as old as the oldest, which gives less back and never more.
const DRAWS_MAX: usize = 8;

/// Units that were drawn at one instant, by the counter's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) at: Timestamp,
    pub(super) units: u64,
}

/// The draws that held units may be of, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Draws(SmallVec<[Draw; 4]>);

impl Draws {
    /// Notes a draw, made while so many units were held.
    pub(super) fn drew(&mut self, draw: Draw, held: u64) {
        self.keep(held);
        self.0.push(draw);
        if self.0.len() > DRAWS_MAX {
            let first = self.0.remove(0);
            if let Some(second) = self.0.first_mut() {
                *second = Draw { at: first.at.min(second.at), units: first.units + second.units };
            }
        }
    }

    /// Notes that so many units are held again, some of which had been spent of a draw at this instant.
    pub(super) fn put_back(&mut self, at: Timestamp, held: u64) {
        let known: u64 = self.0.iter().map(|draw| draw.units).sum();
        if held > known {
            self.0.insert(0, Draw { at, units: held - known });
        }
    }

    /// When the oldest of the units was drawn that may still be held.
    pub(super) fn oldest(&self) -> Timestamp {
        self.0.iter().map(|draw| draw.at).min().unwrap_or_default()
    }

    /// Takes all out, of which so many units are held.
    pub(super) fn take(&mut self, held: u64) -> SmallVec<[Draw; 4]> {
        self.keep(held);
        std::mem::take(&mut self.0)
    }

    /// Forgets what was spent: the oldest, until so many units are left.
    fn keep(&mut self, held: u64) {
        let mut spent = self.0.iter().map(|draw| draw.units).sum::<u64>().saturating_sub(held);
        self.0.retain(|draw| {
            let gone = spent.min(draw.units);
            spent -= gone;
            draw.units -= gone;
            draw.units > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(second: u64, units: u64) -> Draw {
        Draw { at: Timestamp::from_unix_seconds(second), units }
    }

    /// What was drawn first is spent first, and what is left over is of the latest draws.
    #[test]
    fn leftovers_are_of_the_latest_draws() {
        let mut draws = Draws::default();
        draws.drew(draw(1, 10), 0);
        draws.drew(draw(2, 10), 4);
        assert_eq!(draws.oldest(), Timestamp::from_unix_seconds(1));
        assert_eq!(draws.clone().take(12).as_slice(), [draw(1, 2), draw(2, 10)]);
        assert_eq!(draws.take(7).as_slice(), [draw(2, 7)]);
        assert!(draws.take(3).is_empty(), "nobody knows when those were drawn");
    }

    /// However many draws there were, a few are told apart, and none is taken to be later than it was.
    #[test]
    fn old_draws_are_one() {
        let mut draws = Draws::default();
        for second in 1..=20 {
            draws.drew(draw(second, 1), second - 1);
        }
        assert_eq!(draws.oldest(), Timestamp::from_unix_seconds(1));
        let taken = draws.take(20);
        assert_eq!(taken.len(), DRAWS_MAX);
        assert_eq!(taken.iter().map(|draw| draw.units).sum::<u64>(), 20);
        assert_eq!(taken[0], draw(1, 13));
    }

    /// Units that come back after their draw was forgotten are remembered by it again.
    #[test]
    fn units_that_come_back_keep_their_instant() {
        let mut draws = Draws::default();
        draws.drew(draw(1, 5), 0);
        draws.drew(draw(2, 5), 0);
        draws.put_back(Timestamp::from_unix_seconds(1), 7);
        assert_eq!(draws.take(7).as_slice(), [draw(1, 2), draw(2, 5)]);
    }
}
