//! Frequent keys that have used most of a limit, and when they will have used all of it. The counters are looked at, as
//! `explain` does, and nothing is charged.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tollgate::{Outcome, Ticks, Timestamp, Value};

use crate::identity::AttributeOrigin;
use crate::service::Service;
use crate::telemetry::TopKey;

/// Maximum number of keys that are looked at: the most frequent ones.
const KEYS_MAX: usize = 20;
/// A key is near its limit when at most one in so many units is left.
const NEAR_PART: u64 = 5;

/// A look that is longer ago says nothing about the pace now: without a viewer there are no looks.
const PACE_AGE_MAX: Ticks = Ticks::from_secs(15);

/// When nothing will be left of a counter, at the pace since the last look.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Exhaustion {
    /// This is the first look.
    #[default]
    Unknown,
    /// It does not become less, or all of it comes back before.
    Never,
    /// After so many milliseconds.
    After(u64),
}

/// A key near its limit.
#[derive(Clone, Debug)]
pub(super) struct NearKey {
    pub(super) key: TopKey,
    pub(super) remaining: u64,
    pub(super) limit: u64,
    pub(super) exhausted: Exhaustion,
}

/// The keys near their limits at the last look.
#[derive(Clone, Default)]
pub(super) struct NearKeys {
    pub(super) keys: Vec<NearKey>,
    /// The remaining units of each key that was read.
    remaining: HashMap<(String, String), u64>,
    pub(super) at: Timestamp,
}

/// Looks at the most frequent keys.
pub(super) async fn near_keys(service: &Service, before: &NearKeys) -> NearKeys {
    let now = service.now();
    let mut next = NearKeys { at: now, ..NearKeys::default() };
    if service.compat().is_some() {
        return next;
    }
    let passed = now.since(before.at);
    let is_recent = passed <= PACE_AGE_MAX;
    for key in service.meter.top(KEYS_MAX, now).into_iter().filter(|key| !key.attributes.is_empty()) {
        let Some(left) = left_of(service, &key, now).await else { continue };
        let Outcome { remaining, limit, .. } = left;
        let name = (key.limit.clone(), key.key.clone());
        if remaining.saturating_mul(NEAR_PART) <= limit {
            let was = before.remaining.get(&name).filter(|_| is_recent);
            let exhausted = was.map_or(Exhaustion::Unknown, |was| exhaustion(*was, &left, passed));
            next.keys.push(NearKey { key, remaining, limit, exhausted });
        }
        next.remaining.insert(name, remaining);
    }
    next.keys.sort_by_key(|near| near.remaining.saturating_mul(1_000) / near.limit.max(1));
    next
}

/// The state of a key's counter.
async fn left_of(service: &Service, key: &TopKey, now: Timestamp) -> Option<Outcome> {
    let pairs = || key.attributes.iter().map(|(name, value)| (name.as_str(), Value::Text(value)));
    let known = service.identity.identify(pairs(), AttributeOrigin::Trusted);
    let request = known.request(pairs()).ok()?;
    let explanation = service.engine.operator().explain(&request, now).await;
    let limit = explanation.limits.into_iter().find(|limit| limit.name == key.limit)?;
    // The key of a limit with conditions lacks the attributes that they are about.
    let state = limit.state.or(limit.counter).filter(|state| state.source.has_numbers())?;
    Some(state.outcome)
}

/// When nothing will be left if as much is used as in the time that passed.
fn exhaustion(was: u64, is: &Outcome, passed: Ticks) -> Exhaustion {
    let Some(used) = was.checked_sub(is.remaining).filter(|used| *used > 0) else { return Exhaustion::Never };
    let micros = u128::from(is.remaining) * u128::from(passed.as_micros()) / u128::from(used);
    let after = Ticks::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
    // All units of a window come back at its end.
    let is_window = is.next_unit_after == is.reset_after;
    if is_window && is.reset_after <= after {
        return Exhaustion::Never;
    }
    Exhaustion::After(after.ceil_millis())
}

#[cfg(test)]
mod tests {
    use tollgate::Verdict;

    use super::*;

    fn left(remaining: u64, next_unit_after: u64, reset_after: u64) -> Outcome {
        let [next_unit_after, reset_after] = [next_unit_after, reset_after].map(Ticks::from_secs);
        Outcome { remaining, limit: 100, next_unit_after, reset_after, ..Outcome::uncounted(Verdict::Allow) }
    }

    /// The pace since the last look says when nothing is left. A counter that refills never gets there.
    #[test]
    fn the_pace_says_when_nothing_is_left() {
        let five = Ticks::from_secs(5);
        assert_eq!(exhaustion(20, &left(10, 1, 90), five), Exhaustion::After(5_000));
        assert_eq!(exhaustion(11, &left(10, 1, 90), five), Exhaustion::After(50_000));
        assert_eq!(exhaustion(10, &left(0, 1, 100), five), Exhaustion::After(0));
        assert_eq!(exhaustion(10, &left(10, 1, 90), five), Exhaustion::Never);
        assert_eq!(exhaustion(9, &left(10, 1, 90), five), Exhaustion::Never);
    }

    /// A window that ends before its units are used is never exhausted at this pace.
    #[test]
    fn a_window_ends_first() {
        let five = Ticks::from_secs(5);
        assert_eq!(exhaustion(20, &left(10, 4, 4), five), Exhaustion::Never);
        assert_eq!(exhaustion(20, &left(10, 6, 6), five), Exhaustion::After(5_000));
    }
}
