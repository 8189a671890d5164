//! Which counters live. A counter's name is hashed when it is counted, so whoever wants to list counters must have been told of
//! them: here, once for each window, when its first hit begins it.

use std::collections::HashMap;
use std::sync::Mutex;

use tollgate::store::Store;
use tollgate::{Ticks, Timestamp};

use super::LimitadorLimit;
use super::matching::{Counted, MatchedLimit, parts};
use crate::foreign::counters::Counters;

/// Most counters that are listed. Others are counted just the same.
const LISTED_MAX: usize = 10_000;
/// Most bytes of a listed counter's values, which clients choose. Longer ones are counted just the same; all that are listed take
/// about 10 MB.
const VALUES_BYTES_MAX: usize = 512;
/// How long a full list waits before the dead are taken out again.
const SWEEP_EVERY: Ticks = Ticks::from_secs(1);

/// The counters that live, as far as they are known.
#[derive(Default)]
pub(crate) struct CounterLedger {
    live: Mutex<Live>,
}

/// The counters, each with the end of its window.
#[derive(Default)]
struct Live {
    counters: HashMap<CounterIdentity, Timestamp>,
    /// When the dead were last taken out.
    swept_at: Timestamp,
}

/// A limit and the values that it counts by.
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
    /// A window has begun. Where somebody else writes just now, or there is no room, the counter is not listed: a list is not
    /// worth a wait.
    pub(super) fn begin(&self, met: &MatchedLimit<'_>, now: Timestamp) {
        let size = |value: &Counted| if let Counted::By(text) = value { text.len() } else { 0 };
        if met.values.iter().map(size).sum::<usize>() > VALUES_BYTES_MAX {
            return;
        }
        let Ok(mut live) = self.live.try_lock() else { return };
        // Seldom, so that a flood of new keys does not pay for it with each of them.
        if live.counters.len() >= LISTED_MAX && now.since(live.swept_at) >= SWEEP_EVERY {
            live.counters.retain(|_, until| *until > now);
            live.swept_at = now;
        }
        if live.counters.len() < LISTED_MAX {
            live.counters.insert(CounterIdentity::of(met), now + Ticks::from_secs(met.limit.seconds));
        }
    }

    /// The values of the counters of a limit that live.
    pub(super) fn values(
        &self,
        limit: &LimitadorLimit,
        now: Timestamp,
    ) -> Vec<Vec<(String, Option<String>)>> {
        let live = self.live.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut values: Vec<_> = live
            .counters
            .iter()
            .filter(|(identity, until)| **until > now && identity.is_of(limit))
            .map(|(identity, _)| identity.values.clone())
            .collect();
        values.sort();
        values
    }
}

/// A counter that lives.
pub(crate) struct Listed {
    /// The variables and their values; none for a value that cannot be counted by.
    pub(crate) values: Vec<(String, Option<String>)>,
    pub(crate) remaining: u64,
    pub(crate) expires_after: Ticks,
}

/// The counters of a limit that live, with what they count now.
pub(in crate::foreign) async fn listed<S: Store>(
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
