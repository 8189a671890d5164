//! Requests that wait for a leaky bucket of this store. The order in which they depart is left to
//! [`crate::departure`].

use super::MemoryStore;
use super::table::SlotEntry;
use crate::algorithm::gcra;
use crate::clock::Clock;
use crate::departure::{Bucket, BucketPace, DepartureRequest, DepartureSlot, FreedCredits, LeaveOutcome};
use crate::key::Fingerprint;
use crate::time::Timestamp;

impl MemoryStore {
    /// Joins the queue with the slot of a charge. `None` if the request must keep its departure time.
    pub(crate) fn queue_departure(
        &self,
        request: &DepartureRequest<'_>,
        now: Timestamp,
        clock: &Clock,
    ) -> Option<DepartureSlot> {
        self.departures.join(request, &self.bucket((request.key, request.number), now), now, clock)
    }

    /// Leaves a queue of this store. A waiter that is due gives nothing back.
    pub(crate) fn leave_departures(&self, slot: &DepartureSlot, now: Timestamp) -> LeaveOutcome {
        slot.leave(&self.bucket(slot.bucket(), now), now)
    }

    fn bucket(
        &self,
        at: (Fingerprint, u32),
        now: Timestamp,
    ) -> Bucket<impl Fn(BucketPace) -> Option<u128>, impl Fn(BucketPace, FreedCredits) -> bool> {
        Bucket {
            level: move |pace| self.level(at, pace, now),
            give_back: move |pace, free| self.give_back(at, pace, free, now),
        }
    }

    /// The instant at which a bucket becomes empty, in credits; `None` if it is no longer counted under this
    /// number.
    fn level(&self, (key, number): (Fingerprint, u32), pace: BucketPace, now: Timestamp) -> Option<u128> {
        let now = self.origin.clamp(now);
        let held = self.main.words.update(key, self.origin.word(now), |held| (None, held)).ok()??;
        (held.number == number).then(|| self.credits(held, pace))
    }

    fn credits(&self, held: SlotEntry<1>, pace: BucketPace) -> u128 {
        let (tick, fraction) = self.origin.unpack(held.state).parts();
        pace.credits(tick) + u128::from(fraction)
    }

    /// Gives freed credits back to the bucket, if no charge follows them.
    fn give_back(
        &self,
        (key, number): (Fingerprint, u32),
        pace: BucketPace,
        free: FreedCredits,
        now: Timestamp,
    ) -> bool {
        let now = self.origin.clamp(now);
        let taken = self.main.words.update(key, self.origin.word(now), |held| {
            let Some(held) = held.filter(|held| held.number == number) else { return (None, false) };
            let level = self.credits(held, pace);
            if !pace.is_same(level, free.top) {
                return (None, false);
            }
            let (tick, fraction) = pace.parts(level.saturating_sub(free.by));
            let state = self.origin.pack(gcra::State::new(tick, fraction));
            (Some(SlotEntry { state, number }), true)
        });
        taken.unwrap_or(false)
    }
}
