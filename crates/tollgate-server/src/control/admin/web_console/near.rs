//! Frequent keys that have used most of a limit, and when they will have used all of it. The counters are looked at, as
//! `explain` does, and nothing is charged.

use std::collections::HashMap;

use tollgate::{Ticks, Timestamp, Value};

use crate::control::ControlPlane;
use crate::identity::AttributeOrigin;
use crate::telemetry::TopKey;

/// Maximum number of keys that are looked at: the most frequent ones.
const KEYS_MAX: usize = 20;
/// A key is near its limit when at most one in so many units is left.
const NEAR_PART: u64 = 5;

/// A key near its limit.
#[derive(Clone, Debug)]
pub(super) struct NearKey {
    pub(super) key: TopKey,
    pub(super) remaining: u64,
    pub(super) limit: u64,
    /// When nothing will be left, at the pace since the last look. `None` if it does not become less.
    pub(super) exhausted_in: Option<Ticks>,
}

/// The keys near their limits at the last look.
#[derive(Clone, Default)]
pub(super) struct NearKeys {
    pub(super) keys: Vec<NearKey>,
    /// The remaining units of each key that was read.
    remaining: HashMap<(String, String), u64>,
    pub(super) at: Timestamp,
}

impl ControlPlane {
    /// Looks at the most frequent keys.
    pub(super) async fn near_keys(&self, before: &NearKeys) -> NearKeys {
        let now = self.service.now();
        let mut next = NearKeys { at: now, ..NearKeys::default() };
        if self.service.compat().is_some() {
            return next;
        }
        for key in self.service.meter.top(KEYS_MAX).into_iter().filter(|key| !key.attributes.is_empty()) {
            let Some((remaining, limit)) = self.left_of(&key, now).await else { continue };
            let name = (key.limit.clone(), key.key.clone());
            if remaining.saturating_mul(NEAR_PART) <= limit {
                let was = before.remaining.get(&name).copied();
                let exhausted_in = was.and_then(|was| exhausted_in(was, remaining, now.since(before.at)));
                next.keys.push(NearKey { key, remaining, limit, exhausted_in });
            }
            next.remaining.insert(name, remaining);
        }
        next.keys.sort_by_key(|near| {
            (near.remaining.saturating_mul(1_000) / near.limit.max(1), near.exhausted_in)
        });
        next
    }

    /// The remaining units of a key, and its limit.
    async fn left_of(&self, key: &TopKey, now: Timestamp) -> Option<(u64, u64)> {
        let pairs = || key.attributes.iter().map(|(name, value)| (name.as_str(), Value::Text(value)));
        let known = self.service.identity.identify(pairs(), AttributeOrigin::Trusted);
        let request = known.request(pairs()).ok()?;
        let explanation = self.service.engine.operator().explain(&request, now).await;
        let limit = explanation.limits.into_iter().find(|limit| limit.name == key.limit)?;
        let state = limit.state.filter(|state| state.source.has_numbers())?;
        Some((state.outcome.remaining, state.outcome.limit))
    }
}

/// When nothing will be left if as much is used as in the time that passed.
fn exhausted_in(was: u64, is: u64, passed: Ticks) -> Option<Ticks> {
    let used = was.checked_sub(is).filter(|used| *used > 0)?;
    let micros = u128::from(is) * u128::from(passed.as_micros()) / u128::from(used);
    Some(Ticks::from_micros(u64::try_from(micros).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pace since the last look says when nothing is left. A counter that refills never gets there.
    #[test]
    fn the_pace_says_when_nothing_is_left() {
        let five = Ticks::from_secs(5);
        assert_eq!(exhausted_in(20, 10, five), Some(five));
        assert_eq!(exhausted_in(11, 10, five), Some(Ticks::from_secs(50)));
        assert_eq!(exhausted_in(10, 0, five), Some(Ticks::ZERO));
        assert_eq!((exhausted_in(10, 10, five), exhausted_in(9, 10, five)), (None, None));
    }
}
