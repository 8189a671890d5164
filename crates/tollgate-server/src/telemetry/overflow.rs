//! Whether memory is full, so that new keys share counters or are refused. The source of a decision shows it to the
//! caller. This module shows it to the operator, in the log and in `/readyz`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::{Decision, Source, Ticks, Timestamp};

use crate::failure::Failure;

/// How often the log repeats the warning.
const LOGGED_EVERY: Ticks = Ticks::from_secs(10);
/// How long after the last such decision `/readyz` shows the warning.
const SHOWN_FOR: Ticks = Ticks::from_secs(60);

/// Since when memory is full, and for which limit.
#[derive(Debug, Default)]
pub(crate) struct Overflow {
    /// Time of the last decision without its own counter, in microseconds since 1970. Zero if there was none.
    last: AtomicU64,
    /// Time of the last log entry.
    logged: AtomicU64,
    /// Decisions since then.
    unlogged: AtomicU64,
    /// The text of the last log entry.
    text: Mutex<String>,
}

impl Overflow {
    /// Records a decision if one of its limits had no room for a separate counter.
    #[inline]
    pub(super) fn note_decision(&self, decision: &Decision, now: Timestamp) {
        for status in decision.limits() {
            if is_crowded(status.source) {
                self.note(status.limit.name(), status.source, now);
            }
        }
    }

    /// Records a decision that used a shared counter, or was refused because there was no room even for that.
    #[cold]
    pub(crate) fn note(&self, limit: &str, source: Source, now: Timestamp) {
        let micros = now.unix_micros();
        // Relaxed: the numbers guard no other memory. Two threads that log at the same time do no harm.
        self.last.store(micros, Ordering::Relaxed);
        let unlogged = self.unlogged.fetch_add(1, Ordering::Relaxed) + 1;
        if micros.saturating_sub(self.logged.load(Ordering::Relaxed)) < LOGGED_EVERY.as_micros() {
            return;
        }
        self.logged.store(micros, Ordering::Relaxed);
        self.unlogged.fetch_sub(unlogged, Ordering::Relaxed);
        let text = match source {
            Source::Full => format!(
                "memory is full: new keys of limit {limit} are refused, because there is no room for a counter"
            ),
            _ => format!(
                "memory is full: new keys of limit {limit} share counters, and are denied for what others use"
            ),
        };
        tracing::warn!(limit, decisions = unlogged, "{text}; raise --memory, or count by something coarser");
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// The current warning for the operator, if there is one.
    pub(crate) fn status(&self, now: Timestamp) -> Option<Failure> {
        let last = Timestamp::from_unix_micros(self.last.load(Ordering::Relaxed));
        let is_recent = last != Timestamp::default() && now.since(last) < SHOWN_FOR;
        is_recent
            .then(|| Failure::new(self.text.lock().unwrap_or_else(PoisonError::into_inner).clone(), last))
    }
}

/// Whether an answer did not come from the key's own counter because memory is full.
pub(crate) const fn is_crowded(source: Source) -> bool {
    matches!(source, Source::Overflow | Source::Full)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// The warning is shown while memory is full and for a minute after, and names the cause.
    #[test]
    fn a_full_memory_is_reported_while_it_lasts() {
        let overflow = Overflow::default();
        assert!(overflow.status(NOW).is_none());
        for _ in 0..1_000 {
            overflow.note("per-key", Source::Overflow, NOW);
        }
        let warning = overflow.status(NOW + Ticks::from_secs(59)).unwrap();
        assert!(warning.text.contains("limit per-key share counters"), "{}", warning.text);
        assert!(overflow.status(NOW + Ticks::from_secs(60)).is_none());
        assert_eq!(overflow.unlogged.load(Ordering::Relaxed), 999, "the log says so once in ten seconds");
        overflow.note("per-key", Source::Full, NOW + LOGGED_EVERY);
        assert!(overflow.status(NOW + LOGGED_EVERY).unwrap().text.contains("refused"));
    }
}
