//! The list of open counters. A counter's name is hashed when it is counted, so counters can be listed only if their
//! names are recorded. This module records each once per window, when the first hit begins it.

use std::collections::HashMap;
use std::sync::Mutex;

use tollgate::store::Store;
use tollgate::{Ticks, Timestamp};

use super::LimitadorLimit;
use super::matching::{Counted, MatchedLimit, parts};
use crate::counters::Counters;

/// Maximum listed counters. Others are counted all the same.
const LISTED_MAX: usize = 10_000;
/// Maximum bytes of a listed counter's values, which clients choose. Counters with longer values are counted all the
/// same; all listed ones together take about 10 MB.
const VALUES_BYTES_MAX: usize = 512;
/// Minimum time between two sweeps of expired counters from a full list.
const SWEEP_EVERY: Ticks = Ticks::from_secs(1);

/// The open counters, as far as they are listed.
#[derive(Default)]
pub(crate) struct CounterLedger {
    active: Mutex<ActiveCounters>,
}

/// The counters, each with the end of its window.
#[derive(Default)]
struct ActiveCounters {
    counters: HashMap<CounterIdentity, Timestamp>,
    /// The time of the last sweep.
    swept_at: Timestamp,
}

/// A limit and the values of its variables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CounterIdentity {
    namespace: String,
    seconds: u64,
    conditions: Vec<String>,
    pub(super) values: Vec<(String, Option<String>)>,
}

impl CounterIdentity {
    fn of(met: &MatchedLimit<'_>) -> Self {
        let limit = met.limit;
        let value = |value: &Counted| match value {
            Counted::By(text) => Some(text.clone()),
            Counted::Together => None,
        };
        let values = limit.variables.iter().zip(&met.values);
        Self {
            namespace: limit.namespace.clone(),
            seconds: limit.seconds,
            conditions: limit.conditions.iter().map(|condition| condition.source().to_owned()).collect(),
            values: values
                .map(|(variable, counted)| (variable.source().to_owned(), value(counted)))
                .collect(),
        }
    }

    /// Whether it is a counter of this limit.
    fn is_of(&self, limit: &LimitadorLimit) -> bool {
        self.namespace == limit.namespace
            && self.seconds == limit.seconds
            && self.conditions.iter().eq(limit.conditions.iter().map(|condition| condition.source()))
            && self
                .values
                .iter()
                .map(|(name, _)| name.as_str())
                .eq(limit.variables.iter().map(|name| name.source()))
    }
}

impl CounterLedger {
    /// Records a window that has begun. If another thread holds the lock, or the list is full, the counter is not
    /// listed, because a list is not worth a wait.
    pub(super) fn begin(&self, met: &MatchedLimit<'_>, now: Timestamp) {
        let size = |value: &Counted| if let Counted::By(text) = value { text.len() } else { 0 };
        if met.values.iter().map(size).sum::<usize>() > VALUES_BYTES_MAX {
            return;
        }
        let Ok(mut active) = self.active.try_lock() else { return };
        // Rarely, so that a flood of new keys does not pay for a sweep with each of them.
        if active.counters.len() >= LISTED_MAX && now.since(active.swept_at) >= SWEEP_EVERY {
            active.counters.retain(|_, until| *until > now);
            active.swept_at = now;
        }
        if active.counters.len() < LISTED_MAX {
            active.counters.insert(CounterIdentity::of(met), now + Ticks::from_secs(met.limit.seconds));
        }
    }

    /// The values of a limit's open counters.
    pub(super) fn values(
        &self,
        limit: &LimitadorLimit,
        now: Timestamp,
    ) -> Vec<Vec<(String, Option<String>)>> {
        let active = self.active.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut values: Vec<_> = active
            .counters
            .iter()
            .filter(|(identity, until)| **until > now && identity.is_of(limit))
            .map(|(identity, _)| identity.values.clone())
            .collect();
        values.sort();
        values
    }
}

/// An open counter.
pub struct Listed {
    /// The variables and their values; `None` for a value that is not usable as a key.
    pub values: Vec<(String, Option<String>)>,
    /// Requests that are left in its window.
    pub remaining: u64,
    /// When its window ends.
    pub expires_after: Ticks,
}

/// The open counters of a limit, with their current counts.
pub(crate) async fn listed<S: Store>(
    limit: &LimitadorLimit,
    counters: &Counters<'_, S>,
    ledger: &CounterLedger,
    now: Timestamp,
) -> Vec<Listed> {
    let mut all = Vec::new();
    let known = if limit.variables.is_empty() { vec![Vec::new()] } else { ledger.values(limit, now) };
    for values in known {
        let by = |(_, value): &(String, Option<String>)| value.clone().map_or(Counted::Together, Counted::By);
        let counted_by: Vec<Counted> = values.iter().map(by).collect();
        let counted = counters.add_from_first(limit.seconds, &parts(limit, &counted_by), 0, now).await;
        if counted.total > 0 {
            let remaining = limit.max_value.saturating_sub(counted.total);
            all.push(Listed { values, remaining, expires_after: counted.ends_after });
        }
    }
    all
}
