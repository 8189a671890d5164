//! Resets of counters by an operator. A reset covers every counter that the given attributes may have been counted by:
//! a condition on an attribute that is not given may have held, and a tier that is not given may be any.

use std::collections::HashSet;
use std::slice;

use super::Operator;
use crate::active::ActivePolicy;
use crate::algorithm::concurrency::PermitId;
use crate::engine::ATTEMPTS;
use crate::key::Fingerprint;
use crate::outcome::Source;
use crate::overrides::ActiveOverrides;
use crate::policy::compared::Replaced;
use crate::policy::{Limit, MATCHED_MAX, Match, Mode, Policy};
use crate::request::CheckRequest;
use crate::store::{Charge, Charges, Enforcement, Store, StoreFailure};
use crate::time::Timestamp;

/// The counters that a reset found. A counter that has counted nothing, or nothing that still matters, is treated as if it did not
/// exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// The limits that had counted something, by name: one entry per counter, so a limit with tiers may have several.
    pub counters: Vec<String>,
    /// The limits that count these attributes and had counted nothing.
    pub untouched: Vec<String>,
    /// The limits that count these attributes in a counter that several keys share, because memory is full. It is not
    /// reset.
    pub shared: Vec<String>,
}

/// One counter that a reset covers.
struct ResetTarget<'l> {
    matched: Match,
    charge: Charge<'l>,
    /// Whether it is the limit's own counter, and not one of its companions that block keys.
    is_main: bool,
}

/// The counters that a look found, over all attempts: those that held something, and those that keys share.
#[derive(Default)]
struct ResetFindings {
    touched: HashSet<Fingerprint>,
    shared: HashSet<Fingerprint>,
}

impl<S: Store> Operator<'_, S> {
    /// Resets the counters of these attributes, whatever else the requests had, for every limit or only for those named
    /// in `limits`. Attributes that have several readings, such as a path that a gateway reads and a program states, are
    /// several descriptors. Returns which counters existed.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Engine};
    /// let limits = "limits: [{name: login, when: {path: /login}, by: [ip], rate: 1/h}]";
    /// let engine = Engine::builder().policy(limits.parse()?).build();
    /// let client = CheckRequest::new().with("ip", "192.0.2.1")?;
    /// assert!(engine.try_check(&client.clone().with("path", "/login")?, engine.now())?.is_allowed());
    /// let forgotten = pollster::block_on(engine.operator().reset(&client, &[], engine.now()))?;
    /// assert_eq!(forgotten.counters, ["login"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the store does not answer. Then nothing was reset, here or in the store. With [`StoreFailure::Unanswered`],
    /// part of it perhaps was, and the call may be repeated.
    pub async fn reset(
        self,
        request: &CheckRequest<'_>,
        limits: &[&str],
        now: Timestamp,
    ) -> Result<Forgotten, StoreFailure> {
        let now = now.decidable();
        let (mut found, mut attempts) = (ResetFindings::default(), 0);
        loop {
            let active = self.engine.active.load_full();
            let targets = active.targets(request, limits, &self.engine.overrides.at(now));
            match self.forget(&active, &targets, &mut found, now).await {
                Err(StoreFailure::Superseded) if attempts < ATTEMPTS => attempts += 1,
                Err(failure) => return Err(failure),
                Ok(()) => return Ok(found.report(&active.policy, &targets)),
            }
        }
    }

    /// The keys of all counters that [`Operator::reset`] resets for these attributes, for the other nodes of a
    /// fleet: see [`Maintenance::apply_remote_reset`](super::super::Maintenance::apply_remote_reset).
    #[must_use]
    pub fn reset_keys(self, request: &CheckRequest<'_>, limits: &[&str], now: Timestamp) -> Vec<u128> {
        let now = now.decidable();
        let active = self.engine.active.load_full();
        let targets = active.targets(request, limits, &self.engine.overrides.at(now));
        targets.iter().map(|target| target.charge.key()).collect()
    }

    /// Looks at all counters, then resets them. So a store that does not answer is noticed before anything is reset.
    /// The deferred charges of this node are reset only together with the store's count: otherwise more requests
    /// would pass.
    async fn forget(
        self,
        active: &ActivePolicy,
        targets: &[ResetTarget<'_>],
        found: &mut ResetFindings,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        for part in targets.chunks(MATCHED_MAX) {
            let looks: Charges<'_> = part.iter().map(|target| target.charge.costing(0)).collect();
            let inspected = self.engine.store.charge(&looks, now).await.map_err(|failure| match failure {
                // A look changes nothing, whether it was answered or not.
                StoreFailure::Unanswered => StoreFailure::Unreachable,
                _ => failure,
            })?;
            for (target, answer) in part.iter().zip(inspected) {
                let key = target.charge.key;
                match answer.source {
                    Source::Overflow | Source::Full => found.shared.extend([key]),
                    _ if answer.outcome.is_touched() => found.touched.extend([key]),
                    _ => {}
                }
            }
        }
        let mut has_begun = false;
        for part in targets.chunks(MATCHED_MAX) {
            let charges: Charges<'_> = part.iter().map(|target| target.charge).collect();
            self.engine.reset_times.record(charges.iter().map(|charge| charge.key), now);
            let answered = self.engine.store.reset(&charges, now).await;
            // Counters already reset stay so, and a repeated call resets the rest.
            answered.map_err(|failure| match failure {
                StoreFailure::Superseded => failure,
                _ if has_begun => StoreFailure::Unanswered,
                _ => failure,
            })?;
            for target in part.iter().filter(|target| target.is_main) {
                if let Some(fallback) = self.engine.fallback_if_any(active, now) {
                    fallback.reset(&target.matched, &target.charge);
                }
            }
            has_begun = true;
        }
        Ok(())
    }
}

impl ResetFindings {
    fn report(&self, policy: &Policy, targets: &[ResetTarget<'_>]) -> Forgotten {
        let mut forgotten = Forgotten::default();
        for of_limit in targets.chunk_by(|one, other| one.matched.limit == other.matched.limit) {
            let Some(limit) =
                of_limit.first().and_then(|one| policy.limits().get(one.matched.limit as usize))
            else {
                continue;
            };
            let is_touched = |target: &&ResetTarget<'_>| self.touched.contains(&target.charge.key);
            let name = || limit.name().to_owned();
            let main = of_limit.iter().filter(|target| target.is_main).filter(is_touched).count();
            // A block that outlasts the counter which led to it counts as the limit's.
            let counters = main.max(usize::from(of_limit.iter().any(|target| is_touched(&target))));
            let is_shared = of_limit.iter().any(|target| self.shared.contains(&target.charge.key));
            match counters {
                0 if is_shared => forgotten.shared.push(name()),
                0 => forgotten.untouched.push(name()),
                _ => forgotten.counters.extend((0..counters).map(|_| name())),
            }
        }
        forgotten
    }
}

impl ActivePolicy {
    /// Every counter that requests with these attributes, and perhaps others, may have been counted by; limit by limit.
    fn targets<'l>(
        &'l self,
        request: &CheckRequest<'_>,
        limits: &[&str],
        overrides: &ActiveOverrides,
    ) -> Vec<ResetTarget<'l>> {
        let (mut targets, mut known) = (Vec::new(), HashSet::new());
        let is_meant = |limit: &Limit| limits.is_empty() || limits.contains(&limit.name());
        let mut digests: Vec<Replaced> = request.descriptors().map(|_| Replaced::new()).collect();
        let compared: Vec<_> = request
            .descriptors()
            .zip(&mut digests)
            .map(|(given, digests)| {
                self.policy.compared(given, digests).unwrap_or_else(|| given.replaced(std::iter::empty()))
            })
            .collect();
        for (number, limit) in (0u32..).zip(self.policy.limits()) {
            if limit.mode() == Mode::Off || !is_meant(limit) {
                continue;
            }
            for (descriptor, given) in (0u8..).zip(&compared) {
                let Some(by) = limit.may_count(given) else { continue };
                for quota in limit.possible_quotas(given) {
                    let matched = Match { limit: number, quota, cost: 0, descriptor, by };
                    let of = |is_main| move |charge| ResetTarget { matched, charge, is_main };
                    targets.extend(self.ever_charged(request, &matched, overrides).into_iter().map(of(true)));
                    let companions = self.companions(request, slice::from_ref(&matched));
                    targets.extend(companions.into_iter().map(of(false)));
                }
            }
        }
        targets.retain(|target| known.insert(target.charge.key));
        targets
    }

    /// The counter that a decision would charge now, and the one that it charges when no override applies.
    fn ever_charged<'l>(
        &'l self,
        request: &CheckRequest<'_>,
        matched: &Match,
        overrides: &ActiveOverrides,
    ) -> Charges<'l> {
        let mut charges = Charges::new();
        let charge = self.charge(request, matched, overrides, PermitId(0));
        let (limit, counters) =
            (&self.policy.limits()[matched.limit as usize], &self.counters[matched.limit as usize]);
        if charge.enforcement == Enforcement::Shadow && limit.mode() == Mode::Enforce {
            let descriptor = request.descriptor(matched.descriptor);
            let key = counters.key(&counters.enforced, &self.secret, descriptor, matched);
            charges.push(Charge {
                key,
                family: &counters.enforced,
                enforcement: Enforcement::Enforced,
                ..charge
            });
        }
        charges.push(charge);
        charges
    }
}
