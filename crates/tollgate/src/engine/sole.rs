//! Decisions by a policy of one plain limit: an early return of the general match.

use std::slice;
use std::sync::Arc;

use crate::algorithm::concurrency::PermitId;
use crate::decision::Decision;
use crate::request::CheckRequest;
use crate::store::{Answers, Store};
use crate::time::Timestamp;

use super::live::Live;
use super::ruling::InForce;
use super::{Engine, combine};

impl<S: Store> Engine<S> {
    /// Decides about a request with one descriptor by a policy of one plain limit. Returns whether it did.
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
        let Some(matched) = live.policy.single_match(request) else { return false };
        if live.takes_permit(&matched) {
            return false;
        }
        let charge = live.charge(views, &matched, rulings, PermitId(0));
        let mut answers = Answers::new();
        // A counter that fails is asked again on the slow path, which has the fallback.
        let answered = self.store.charge_at_once(slice::from_ref(&charge), now, &mut answers);
        let is_answered = answered == Some(Ok(()));
        if is_answered {
            let decision = decided.insert(Decision::open(Arc::clone(&live.policy)));
            combine(slice::from_ref(&matched), slice::from_ref(&charge), &answers, decision);
        }
        is_answered
    }
}
