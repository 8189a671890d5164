//! The first step of a transaction: a few one-word counters of known keys, which most transactions are. It is the
//! general transaction without what this case does not need: other kinds of states, new keys, the overflow partition.

use crate::memory::table::{SlotEntry, SlotPosition, Table};
use crate::memory::{MemoryStore, StateKind, decide};
use crate::outcome::{Outcome, Source, Verdict};
use crate::store::{Answers, Charge, ChargeAnswer, Enforcement};
use crate::time::Timestamp;

/// Maximum number of counters on the fast path.
const FEW: usize = 8;

/// Buckets locked in ascending order. Dropping it unlocks them.
struct Locked<'s> {
    table: &'s Table<3, 1>,
    buckets: [usize; FEW],
    held: usize,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        for &bucket in &self.buckets[..self.held] {
            self.table.unlock(bucket);
        }
    }
}

impl<'s> Locked<'s> {
    /// Locks each bucket once, in ascending order, like every transaction.
    #[inline]
    fn new(table: &'s Table<3, 1>, mut buckets: [usize; FEW], count: usize) -> Self {
        // An insertion sort, since there are few and they are often in order.
        for end in 1..count {
            let mut at = end;
            while at > 0 && buckets[at - 1] > buckets[at] {
                buckets.swap(at - 1, at);
                at -= 1;
            }
        }
        let mut locked = Self { table, buckets: [0; FEW], held: 0 };
        for &bucket in &buckets[..count] {
            if locked.held > 0 && locked.buckets[locked.held - 1] == bucket {
                continue;
            }
            table.lock(bucket);
            locked.buckets[locked.held] = bucket;
            locked.held += 1;
        }
        locked
    }
}

impl MemoryStore {
    /// Charges all or none, if all keys are known and have one-word states. `None`: nothing was changed, the
    /// slow path must decide, and the contents of `answers` are meaningless.
    #[inline]
    pub(super) fn charge_known(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<()> {
        let count = charges.len();
        if count > FEW || charges.iter().any(|charge| StateKind::of(charge) != StateKind::Word) {
            return None;
        }
        let table = &self.main.words;
        let horizon = self.origin.word(now);
        let mut buckets = [0; FEW];
        for (bucket, charge) in buckets.iter_mut().zip(charges) {
            *bucket = table.bucket(charge.key, horizon);
        }
        let _locked = Locked::new(table, buckets, count);
        let mut changes: [Option<(SlotPosition<'_>, SlotEntry<1>)>; FEW] = [const { None }; FEW];
        let mut allowed = true;
        for (index, charge) in charges.iter().enumerate() {
            if !table.owns(buckets[index], charge.key) {
                return None;
            }
            let (place, entry) = table.find(buckets[index], charge.key)?;
            let (keep, outcome) = decide::word(charge, Some(entry), now, self.origin).ok()?;
            changes[index] = keep.map(|entry| (place, entry));
            allowed &= charge.enforcement == Enforcement::Shadow || outcome.is_allowed();
            answers.push(ChargeAnswer::new(outcome, Source::Exact).charged(now));
        }
        if !allowed {
            self.refuse(charges, &buckets, answers, now)?;
        }
        for ((change, charge), answer) in changes.iter().zip(charges).zip(answers.iter()) {
            // If all are admitted, all are written. If not, only the clamped states of denied counters are.
            if let Some((place, entry)) = change
                && allowed == answer.outcome.is_allowed()
            {
                table.write(*place, charge.key, *entry);
            }
        }
        Some(())
    }

    /// Replaces the outcomes of counters that would have admitted with their states before the charge.
    #[cold]
    fn refuse(
        &self,
        charges: &[Charge<'_>],
        buckets: &[usize],
        answers: &mut [ChargeAnswer],
        now: Timestamp,
    ) -> Option<()> {
        for ((charge, &bucket), answer) in charges.iter().zip(buckets).zip(answers) {
            if answer.outcome.is_allowed() {
                let look = Charge { cost: 0, ..*charge };
                let held = self.main.words.get(bucket, charge.key);
                let (_, outcome) = decide::word(&look, held, now, self.origin).ok()?;
                answer.outcome = Outcome { verdict: Verdict::Allow, ..outcome };
            }
        }
        Some(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::algorithm::fixed_window::Align;
    use crate::key::Secret;
    use crate::quota::Quota;
    use crate::rate::Rate;
    use crate::store::{Family, Record};
    use crate::time::Ticks;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// Xorshift: seeded, so that a failure repeats.
    fn below(state: &mut u64, end: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % end
    }

    /// Whatever was charged before, the first step answers and leaves the counters as the general transaction does. It
    /// takes most requests, and hands all others over unchanged.
    #[test]
    fn the_first_step_charges_as_the_general_transaction() {
        let secret = Secret::repeatable(3);
        let quotas = [
            Quota::gcra(Rate::per_second(3).burst(5)),
            Quota::token_bucket(Rate::per_minute(7).burst(9)),
            Quota::leaky_bucket(Rate::per_second(2), 4),
            Quota::fixed_window(Rate::per_minute(30), Align::Epoch),
        ]
        .map(|quota| quota.expect("valid"));
        let families: Vec<Family> = (0u8..)
            .zip(&quotas)
            .map(|(at, quota)| Family::new(&secret, &[&[at]], vec![Some(Record::first(quota.clone()))]))
            .collect();
        let (fast, general) = (MemoryStore::new(1 << 20, T0), MemoryStore::new(1 << 20, T0));
        let (mut seed, mut now, mut taken) = (11, T0, 0);
        for _ in 0..20_000 {
            now = match below(&mut seed, 20) {
                0 => now - Ticks::from_micros(below(&mut seed, 3_000_000)),
                _ => now + Ticks::from_micros(below(&mut seed, 300_000)),
            };
            // Mostly buckets; a window needs the general transaction.
            let kinds = if below(&mut seed, 10) == 0 { 4 } else { 3 };
            let charges: Vec<Charge<'_>> = (0..2 + below(&mut seed, 4))
                .map(|at| {
                    let kind = usize::try_from(below(&mut seed, kinds)).unwrap();
                    let key = format!("{at}-{}", below(&mut seed, 3));
                    let family = &families[kind];
                    let key = secret.text_key(family.prefix(), key.as_bytes());
                    let charge = Charge::new(key, family, 0, &quotas[kind], below(&mut seed, 4));
                    let enforcement = match below(&mut seed, 4) {
                        0 => Enforcement::Shadow,
                        _ => Enforcement::Enforced,
                    };
                    Charge { enforcement, ..charge }
                })
                .collect();
            let mut answers = Answers::new();
            if fast.charge_known(&charges, now, &mut answers).is_some() {
                taken += 1;
            } else {
                answers = fast.charge_any(&charges, now).unwrap();
            }
            assert_eq!(answers, general.charge_any(&charges, now).unwrap(), "{charges:?}");
        }
        assert!(taken > 10_000, "{taken}");
    }
}
