//! The short way of a decision by a policy of one plain limit, which is most of those that programs have who limit by themselves. Every step
//! is one that the whole way takes, or is proven to be the same; what is out of the ordinary is left to the whole way, before anything
//! was charged.

use std::slice;
use std::sync::Arc;

use crate::algorithm::concurrency::PermitId;
use crate::charge::Answers;
use crate::decision::Decision;
use crate::outcome::Verdict;
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::Timestamp;

use super::live::{Live, Plain};
use super::ruling::InForce;
use super::{Engine, combine};

impl<S: Store> Engine<S> {
    /// Whether a request passes, and is charged for, where that is all anybody wants to know. `false` says nothing: nothing was charged,
    /// and [`Engine::check_at_once`] or [`Engine::check`] answers. It is the same decision with the fewest steps, without what the limit
    /// has left.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Clock, Engine, Policy};
    /// let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: per-key, by: [api_key], rate: 2/s}]")?;
    /// let clock = Clock::precise();
    /// let engine = Engine::new(policy, clock.now());
    /// let request = CheckRequest::new().with("api_key", "k-42")?;
    /// let passes = engine.admits(&request, clock.now()) || engine.check_now(&request, clock.now()).is_allowed();
    /// assert!(passes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "a request that is not admitted here has not been decided about"]
    pub fn admits(&self, request: &CheckRequest<'_>, now: Timestamp) -> bool {
        let Some(memory) = self.store.bare_memory() else { return false };
        let live = self.live.load();
        let Some(Plain { word, number }) = live.plain() else { return false };
        if self.blocks.is_any() || self.bench.is_any() {
            return false;
        }
        let Some((text, 1)) = live.policy.sole_text(request) else { return false };
        let key = live.secret.text_key(live.counters[0].enforced.prefix(), text.as_bytes());
        memory.admit(key, word, *number, now.decidable()) == Some(Verdict::Allow)
    }

    /// Decides about a request of one view by a policy of one plain limit; tells whether it did.
    #[inline]
    pub(super) fn decide_sole(
        &self,
        live: &Live,
        views: &[CheckRequest<'_>],
        rulings: &InForce,
        now: Timestamp,
        decided: &mut Option<Decision>,
    ) -> bool {
        let [request] = views else { return false };
        if rulings.is_any() || !self.store.answers_at_once() {
            return false;
        }
        let Some(matched) = live.policy.sole_match(request) else { return false };
        if live.takes_permit(&matched) {
            return false;
        }
        let charge = live.charge(views, &matched, rulings, PermitId(0));
        let mut answers = Answers::new();
        // A counter that fails is asked again by the whole way, which knows what stands in for it.
        let answered = self.store.charge_at_once(slice::from_ref(&charge), now, &mut answers);
        let is_answered = answered == Some(Ok(()));
        if is_answered {
            let decision = decided.insert(Decision::open(Arc::clone(&live.policy)));
            combine(slice::from_ref(&matched), slice::from_ref(&charge), &answers, decision);
        }
        is_answered
    }
}
