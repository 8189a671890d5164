//! The fast path: one unit of a key that is known, fits one word, and was counted under the same quota. It does what
//! [`Table::update`] does, without everything that this case does not need.

use super::{
    LOCKED, Line, META, META_MASK, NUMBER_BITS, READY, REST_SHIFT, SEQUENCE_ONE, SPINS, Table, link_of,
    shift_of,
};
use crate::algorithm::reservoir::{Word, WordStep};
use crate::key::Fingerprint;
use crate::sync::{AtomicU64, Ordering, fence, spin_loop};

const SLOTS: usize = 3;

/// The answer of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitStep {
    /// Admitted and counted; the state after it.
    Admit(u64),
    /// Denied for so many ticks.
    Deny {
        /// How many.
        ticks: u64,
        /// The state, which stays as it is.
        word: u64,
    },
    /// Another thread holds the bucket: the caller tries again.
    Busy,
    /// The key is new, or out of range: the slow path must decide.
    Unusual,
}

impl Table<SLOTS, 1> {
    /// Asks for one unit.
    #[inline(always)]
    pub(crate) fn unit(&self, key: Fingerprint, quota: &Word, number: u32, now: u64) -> UnitStep {
        let first = self.region.line(self.shape(Ordering::Relaxed).bucket(key.tag));
        // Acquire: what a writer stored before it let go of the lock is seen below.
        let header = first[0].load(Ordering::Acquire);
        if header & (LOCKED | READY) != READY {
            return UnitStep::Busy;
        }
        let Some(state) = self.find_state(first, header, key, number) else {
            return UnitStep::Unusual;
        };
        let held = state.load(Ordering::Relaxed);
        let step = quota.unit(held, now);
        // Acquire: the loads above come before the look at the header that proves them.
        fence(Ordering::Acquire);
        match step {
            WordStep::Admit(word) => {
                // A key found in a bucket is nowhere else, so the unchanged header is proof enough.
                if first[0]
                    .compare_exchange(header, header | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                    .is_err()
                {
                    return UnitStep::Busy;
                }
                // Release: a reader that sees the store below also sees the header locked.
                fence(Ordering::Release);
                state.store(word, Ordering::Relaxed);
                first[0].store(header.wrapping_add(SEQUENCE_ONE), Ordering::Release);
                UnitStep::Admit(word)
            }
            WordStep::Deny(ticks) if first[0].load(Ordering::Relaxed) == header => {
                UnitStep::Deny { ticks, word: held }
            }
            WordStep::Deny(_) => UnitStep::Busy,
            WordStep::OutOfRange => UnitStep::Unusual,
        }
    }

    /// The same again and again while other threads are at the bucket.
    #[cold]
    #[inline(never)]
    pub(crate) fn unit_again(&self, key: Fingerprint, quota: &Word, number: u32, now: u64) -> UnitStep {
        for _ in 0..SPINS {
            spin_loop();
            match self.unit(key, quota, number, now) {
                UnitStep::Busy => {}
                answer => return answer,
            }
        }
        UnitStep::Unusual
    }

    /// The state of a key in a bucket's chain, as long as the header stays what it was.
    #[inline(always)]
    fn find_state<'a>(
        &'a self,
        first: &'a Line,
        header: u64,
        key: Fingerprint,
        number: u32,
    ) -> Option<&'a AtomicU64> {
        let (mut line, mut link) = (first, link_of(header));
        loop {
            if is_at::<0>(line, key, number) {
                return Some(&line[1 + SLOTS]);
            }
            if is_at::<1>(line, key, number) {
                return Some(&line[2 + SLOTS]);
            }
            if is_at::<2>(line, key, number) {
                return Some(&line[3 + SLOTS]);
            }
            if link == 0 || first[0].load(Ordering::Relaxed) != header {
                return None;
            }
            line = self.overflow_line(link);
            link = link_of(line[0].load(Ordering::Relaxed));
        }
    }
}

/// Whether a slot holds the key, counted under the quota of this number. With the slot known, the shifts are.
#[inline(always)]
fn is_at<const SLOT: usize>(line: &Line, key: Fingerprint, number: u32) -> bool {
    line[1 + SLOT].load(Ordering::Relaxed) == key.tag && {
        let wanted = ((key.rest >> REST_SHIFT) << NUMBER_BITS) | u64::from(number);
        (line[META].load(Ordering::Relaxed) >> shift_of(SLOT)) & META_MASK == wanted
    }
}
