//! Debits: charges afterwards for requests that others have admitted in this engine's name.

use std::slice;

use smallvec::SmallVec;

use super::Ledger;
use crate::decision::{Decision, LimitStatus};
use crate::engine::ATTEMPTS;
use crate::engine::check::ChargeSet;
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::store::{Store, StoreFailure};
use crate::time::Timestamp;

impl<S: Store> Ledger<'_, S> {
    /// Takes from the counters of a request what was consumed without a check, each down to zero. `units` computes how
    /// many units to take from the limit's status before the debit and the cost of one such request there. Permits are
    /// not taken.
    ///
    /// The decision shows the counters as they were before. Units that a counter did not have are not remembered.
    /// Neither are units that were sent to a store which did not answer, or that were debited at the very moment of a
    /// policy change.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Engine};
    /// let policy = "limits: [{name: all, rate: 5/h}]".parse()?;
    /// let request = CheckRequest::new();
    /// let engine = Engine::builder().policy(policy).build();
    /// # pollster::block_on(async {
    /// let before = engine.ledger().debit(&request, |_, cost| 3 * cost, engine.now()).await;
    /// assert_eq!(before.limits().next().unwrap().outcome.remaining, 5);
    /// assert_eq!(engine.operator().peek(&request, engine.now()).await.limits().next().unwrap().outcome.remaining, 2);
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn debit(
        self,
        request: &CheckRequest<'_>,
        mut units: impl FnMut(&LimitStatus<'_>, u64) -> u64,
        now: Timestamp,
    ) -> Decision {
        let now = now.decidable();
        for attempt in 0.. {
            let active = self.engine.active.load_full();
            let (mut set, engine) = (ChargeSet::default(), self.engine);
            if let Some(decision) = engine.match_request(&active, request, &mut set, now) {
                return decision;
            }
            let costs: SmallVec<[u64; 6]> = set.charges.iter().map(|charge| charge.cost).collect();
            set.charges.iter_mut().for_each(|charge| charge.cost = 0);
            let inspected = engine.charge_store(&active, &mut set, now).await;
            if attempt < ATTEMPTS && inspected == Err(StoreFailure::Superseded) {
                continue;
            }
            let failure = inspected.as_ref().err().copied();
            let answers = engine.answers_or_fallback(&active, &set, inspected, now).await;
            let mut decision = engine.conclude(&active, &set, &answers, failure);
            if active.has_penalties() {
                let blocks = engine.blocks_of(&active, request, &set, now).await;
                blocks.iter().for_each(|blocked| decision.penalise(blocked.limit, blocked.rest));
                if !blocks.is_empty() {
                    return decision;
                }
            }
            let counted = decision.limits().filter(|status| status.quota.is_some());
            for ((charge, status), cost) in set.charges.iter_mut().zip(counted).zip(costs) {
                let is_permit = matches!(charge.quota, Quota::Concurrency(_));
                let asked = if is_permit { 0 } else { units(&status, cost) };
                charge.cost = asked.min(status.outcome.remaining);
            }
            match failure {
                // Charged locally, and reported to the store when it is back.
                Some(failure) => drop(engine.answers_or_fallback(&active, &set, Err(failure), now).await),
                None => {
                    for charge in set.charges.iter().filter(|charge| charge.cost > 0) {
                        // It may have been done, so it is not repeated.
                        let _ = engine.store.debit(slice::from_ref(charge), now).await;
                    }
                    drop(engine.answers_or_fallback(&active, &set, Ok(answers), now).await);
                }
            }
            return decision;
        }
        unreachable!("the last attempt concludes")
    }
}

#[cfg(test)]
mod tests {
    use pollster::block_on;

    use super::*;
    use crate::Engine;
    use crate::policy::Policy;
    use crate::store::Enforcement;
    use crate::time::Ticks;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    fn left(engine: &Engine, request: &CheckRequest<'_>, now: Timestamp) -> Vec<u64> {
        engine
            .try_check(&request.clone().looking(), now)
            .unwrap()
            .limits()
            .map(|one| one.outcome.remaining)
            .collect()
    }

    /// Each counter pays what it has, by its own cost, whatever the others have. Limits in shadow are counted, and
    /// permits are not taken.
    #[test]
    fn each_counter_pays_what_it_has() {
        let policy = b"
limits:
  - {name: small, rate: 4/h}
  - {name: dear, rate: 100/h, cost: 3}
  - {name: quiet, rate: 9/h, mode: shadow}
  - {name: flight, concurrency: 2}
";
        let engine = Engine::builder()
            .policy(Policy::compile("policy.yaml", policy).unwrap())
            .clock(crate::ManualClock::starting_at(NOW).clock())
            .build();
        let request = CheckRequest::new();
        let mut asked = Vec::new();
        let take = |status: &LimitStatus<'_>, cost: u64| {
            asked.push((status.limit.name().to_owned(), status.enforcement, cost));
            7 * cost
        };
        let before = block_on(engine.ledger().debit(&request, take, NOW));
        assert_eq!(before.limits().map(|one| one.outcome.remaining).collect::<Vec<_>>(), [4, 100, 9, 2]);
        assert_eq!(left(&engine, &request, NOW), [0, 79, 2, 2]);
        let expected = [
            ("small", Enforcement::Enforced, 1),
            ("dear", Enforcement::Enforced, 3),
            ("quiet", Enforcement::Shadow, 1),
        ];
        assert_eq!(asked, expected.map(|(name, enforcement, cost)| (name.to_owned(), enforcement, cost)));
    }

    /// A blocked request pays nothing, and its decision names the block.
    #[test]
    fn a_block_denies_the_debit() {
        let engine = Engine::builder()
            .policy(Policy::compile("p", b"limits: [{name: all, rate: 4/h}]").unwrap())
            .clock(crate::ManualClock::starting_at(NOW).clock())
            .build();
        let request = CheckRequest::new().with("api_key", "k").unwrap();
        engine.operator().block(&request, NOW + Ticks::from_secs(9), NOW).unwrap();
        assert!(block_on(engine.ledger().debit(&request, |_, _| 1, NOW)).block().is_some());
        assert_eq!(left(&engine, &CheckRequest::new(), NOW), [4]);
    }
}
