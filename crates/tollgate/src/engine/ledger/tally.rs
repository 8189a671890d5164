//! Tallies: counting without a limit, for rules of other programs. The counters are in the engine's store with all
//! others, under its memory budget; the caller decides what a count means. A program that counts differently keeps its
//! own table, by keys of the engine.

use std::slice;
use std::sync::Arc;

use crate::active::ActivePolicy;
use crate::algorithm::Charged;
use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::fallback::Windows;
use crate::key::KeyFamily;
use crate::outcome::Source;
use crate::quota::Quota;
use crate::rate::QuotaError;
use crate::store::{Charge, Family, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

use super::Ledger;

/// Windows of one length to count in.
#[derive(Clone, Debug)]
pub struct Tally(Arc<Windows>);

/// A count, after units were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The units of the window so far. Where there was no room to count, the largest number. From [`Source::Local`],
    /// the units that there would be if every node that shares the store had counted as much as this one.
    pub total: u64,
    /// Time until the window ends; zero for a window in which nothing was counted.
    pub ends_after: Ticks,
    /// Where the count comes from.
    pub source: Source,
    /// When the units were counted, by the clock of their counter: for [`Ledger::take_back`].
    pub charged_at: Timestamp,
}

impl<S: Store> Ledger<'_, S> {
    /// Keys that a program counts in a table of its own, hashed with this engine's secret. So they are the same after a
    /// snapshot, into which [`Snapshots::write_with`](crate::engine::Snapshots::write_with) can write the table.
    #[must_use]
    pub fn key_family(self, name: &str) -> KeyFamily {
        KeyFamily::new(name, self.engine.active.load().secret.copy())
    }

    /// Windows to count in. All callers that give the same name, length and alignment get the same windows.
    ///
    /// # Errors
    /// When the length is out of range; see [`QuotaError`].
    pub fn tally(self, name: &str, period: Ticks, align: Align) -> Result<Tally, QuotaError> {
        let alignment: &[u8] = match &align {
            Align::Epoch => b"epoch",
            Align::FirstHit => b"first-hit",
            Align::Calendar(_) => b"calendar",
        };
        let quota = Quota::FixedWindow(FixedWindow::counting(period, align)?);
        let identity = [&b"tally"[..], name.as_bytes(), alignment, &period.as_micros().to_le_bytes()];
        let family = Family::single(&self.engine.active.load().secret, &identity, quota.clone());
        self.engine.store.prepare(std::iter::once(&family));
        Ok(Tally(Arc::new(Windows { family, quota })))
    }

    /// Adds units to the counter that these parts name; 0 only looks. Units are always added, whatever the count. Only
    /// a counter that can grow no more stays as it is, and returns the largest number.
    ///
    /// The call always answers, as [`Engine::check`](crate::Engine::check) does: while the store is unreachable this node counts, and it
    /// reports to the store when that is back.
    pub async fn add(self, tally: &Tally, parts: &[&[u8]], units: u64, now: Timestamp) -> Counted {
        let (now, active) = (now.decidable(), self.engine.active.load_full());
        let charge = entry(&active, tally, parts, units);
        let charges = slice::from_ref(&charge);
        let answered = match self.engine.reconcile_first(&active, charges, now).await {
            Ok(()) => self.engine.store.charge(charges, now).await,
            Err(failure) => Err(failure),
        };
        let answered = answered.and_then(|answers| answers.first().copied().ok_or(StoreFailure::Unreachable));
        let (answer, nodes) = match answered {
            Ok(answer) => {
                if !self.engine.store.never_waits() {
                    self.engine.fallback_or_new(&active, now).follow_counted(&charge);
                }
                (answer, 1)
            }
            Err(failure) => match self.engine.fallback_or_new(&active, now).count(&tally.0, &charge, failure)
            {
                Some(counted) => counted,
                None => return Counted::full(),
            },
        };
        let outcome = &answer.outcome;
        let total = if outcome.is_allowed() {
            outcome.limit.saturating_sub(outcome.remaining).saturating_mul(nodes)
        } else {
            u64::MAX
        };
        let charged_at = answer.counted_at(&tally.0.quota);
        Counted { total, ends_after: outcome.reset_after, source: answer.source, charged_at }
    }

    /// Subtracts units that were added `within` this time, down to zero; nothing if they may be of an earlier window.
    /// If the store is unreachable, the subtraction is reported when it is back. If an answer is lost, it is not
    /// reported twice.
    pub async fn subtract(self, tally: &Tally, parts: &[&[u8]], units: u64, within: Ticks, now: Timestamp) {
        let (now, active) = (now.decidable(), self.engine.active.load_full());
        let charge = entry(&active, tally, parts, units).of(Charged::Within(within));
        self.uncount(&active, tally, &charge, &charge, now).await;
    }

    /// Takes back units that were [added](crate::engine::Ledger::add) at this very `now`, from the window that they were counted in.
    /// It is for callers that count first and then find that the request does not pass.
    pub async fn take_back(
        self,
        tally: &Tally,
        parts: &[&[u8]],
        units: u64,
        counted: &Counted,
        now: Timestamp,
    ) {
        let (now, active) = (now.decidable(), self.engine.active.load_full());
        let charge = entry(&active, tally, parts, units);
        let (there, here) = (charge.of_instant(counted.charged_at), charge.of_instant(now));
        match counted.source {
            Source::Local => {
                if let Some(fallback) = self.engine.fallback_if_any(&active, now) {
                    fallback.uncount(&here);
                }
            }
            _ => self.uncount(&active, tally, &there, &here, now).await,
        }
    }

    /// Subtracts in the store, and in the local count that follows it: each has a clock of its own.
    async fn uncount(
        self,
        active: &ActivePolicy,
        tally: &Tally,
        there: &Charge<'_>,
        here: &Charge<'_>,
        now: Timestamp,
    ) {
        match self.engine.store.refund(slice::from_ref(there), now).await {
            Ok(()) => {
                if let Some(fallback) = self.engine.fallback_if_any(active, now) {
                    fallback.follow_discounted(here);
                }
            }
            Err(StoreFailure::Unanswered) => {}
            Err(_) => self.engine.fallback_or_new(active, now).discount(&tally.0, here),
        }
    }
}

impl Counted {
    /// The largest count, for units that could not be counted.
    const fn full() -> Self {
        let charged_at = Timestamp::from_unix_seconds(0);
        Self { total: u64::MAX, ends_after: Ticks::ZERO, source: Source::Full, charged_at }
    }
}

fn entry<'t>(active: &ActivePolicy, tally: &'t Tally, parts: &[&[u8]], units: u64) -> Charge<'t> {
    let mut prefix = *tally.0.family.prefix();
    for part in parts {
        prefix.part(&active.secret, part);
    }
    tally.0.charge(prefix.finish(&active.secret), units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::policy::Policy;
    use crate::rate::EXACT_MAX;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_040);

    fn engine() -> Engine {
        Engine::builder()
            .policy(Policy::new(Vec::new()).unwrap())
            .clock(crate::ManualClock::starting_at(T0).clock())
            .build()
    }

    /// A count continues above every limit, starts anew with its window, and is the same for all callers of the same
    /// windows.
    #[test]
    fn counts_go_on_and_start_anew() {
        pollster::block_on(async {
            let engine = engine();
            let minute = engine.ledger().tally("t", Ticks::from_secs(60), Align::Epoch).unwrap();
            let again = engine.ledger().tally("t", Ticks::from_secs(60), Align::Epoch).unwrap();
            let hour = engine.ledger().tally("t", Ticks::from_secs(3600), Align::Epoch).unwrap();
            let parts: [&[u8]; 2] = [b"a", b"b"];
            assert_eq!(engine.ledger().add(&minute, &parts, 7, T0).await.total, 7);
            assert_eq!(engine.ledger().add(&again, &parts, 5_000_000_000, T0).await.total, 5_000_000_007);
            assert_eq!(engine.ledger().add(&hour, &parts, 1, T0).await.total, 1);
            assert_eq!(engine.ledger().add(&minute, &[b"ab", b""], 1, T0).await.total, 1);
            engine.ledger().subtract(&minute, &parts, 8, Ticks::ZERO, T0).await;
            let counted = engine.ledger().add(&minute, &parts, 0, T0).await;
            assert_eq!((counted.total, counted.ends_after), (4_999_999_999, Ticks::from_secs(60)));
            let later = T0 + Ticks::from_secs(60);
            assert_eq!(engine.ledger().add(&minute, &parts, 0, later).await.total, 0);
        });
    }

    /// A restart with a snapshot keeps the counts.
    #[test]
    fn counts_are_in_a_snapshot() {
        pollster::block_on(async {
            let (engine, mut written) = (engine(), Vec::new());
            let day =
                |engine: &Engine| engine.ledger().tally("t", Ticks::from_secs(86_400), Align::Epoch).unwrap();
            engine.ledger().add(&day(&engine), &[b"k"], 7, T0).await;
            engine.maintenance().snapshots().write(T0, &mut written).unwrap();
            let snapshot = crate::Snapshot::read(4 << 20, T0, &mut written.as_slice()).unwrap();
            let (next, _) = snapshot.restore(Policy::new(Vec::new()).unwrap(), |memory| memory, T0).unwrap();
            assert_eq!(next.ledger().add(&day(&next), &[b"k"], 1, T0).await.total, 8);
        });
    }

    /// Counters of a policy that are held, because a slower one followed it, do not hold the tallies of the
    /// configuration that takes over: their windows make room for the next ones.
    #[test]
    fn tallies_are_not_held() {
        const WINDOWS: u64 = 200;
        const KEYS: u64 = 500;
        let policy = |rate: &str| {
            let text = format!("limits: [{{name: l, by: [key], rate: {rate}}}]");
            Policy::compile("test", text.as_bytes()).unwrap()
        };
        pollster::block_on(async {
            let store = crate::MemoryStore::new(1 << 20, T0);
            let engine = Engine::builder().policy(policy("10/m")).store(store).build();
            // Each swap holds the numbers of the policy before it.
            for (index, rate) in (1u64..).zip(["10/d", "10/30d"]) {
                engine.swap(policy(rate), T0 + Ticks::from_secs(index)).unwrap();
            }
            engine.swap(Policy::new(Vec::new()).unwrap(), T0 + Ticks::from_secs(3)).unwrap();
            let second = engine.ledger().tally("t", Ticks::from_secs(1), Align::Epoch).unwrap();
            for window in 0..WINDOWS {
                let now = T0 + Ticks::from_secs(10 + 2 * window);
                for key in 0..KEYS {
                    let parts = [&window.to_le_bytes()[..], &key.to_le_bytes()[..]];
                    assert_eq!(engine.ledger().add(&second, &parts, 1, now).await.total, 1, "{window} {key}");
                }
                let usage = engine.store().usage(now);
                assert_eq!((usage.keys, usage.overflow_keys), (KEYS, 0), "in window {window}");
            }
        });
    }

    /// A tally that an older version wrote under another number continues: it is neither lost nor rejected.
    #[test]
    fn a_tally_under_another_number_goes_on() {
        pollster::block_on(async {
            let engine = engine();
            let day = engine.ledger().tally("t", Ticks::from_secs(86_400), Align::Epoch).unwrap();
            let older = Charge { number: 1, ..entry(&engine.active.load(), &day, &[b"k"], 7) };
            engine.store.charge(&[older], T0).await.unwrap();
            assert_eq!(engine.ledger().add(&day, &[b"k"], 1, T0).await.total, 8);
            engine.ledger().subtract(&day, &[b"k"], 2, Ticks::ZERO, T0).await;
            assert_eq!(engine.ledger().add(&day, &[b"k"], 0, T0).await.total, 6);
        });
    }

    /// A counter that can grow no more returns the largest count, which is above every limit.
    #[test]
    fn a_full_counter_is_above_every_limit() {
        pollster::block_on(async {
            let engine = engine();
            let second = engine.ledger().tally("t", Ticks::from_secs(1), Align::FirstHit).unwrap();
            assert_eq!(engine.ledger().add(&second, &[b"k"], EXACT_MAX, T0).await.total, EXACT_MAX);
            assert_eq!(engine.ledger().add(&second, &[b"k"], 1, T0).await.total, u64::MAX);
            assert_eq!(engine.ledger().add(&second, &[b"other"], u64::MAX, T0).await.total, u64::MAX);
        });
    }
}
