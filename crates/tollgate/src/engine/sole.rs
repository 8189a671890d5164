//! The short ways of a decision by a policy of one plain limit, which is most of those that programs have who limit by themselves. Every
//! step is one that the whole way takes, or is proven to be the same; what is out of the ordinary is left to the whole way, before
//! anything was charged.

use std::fmt;
use std::slice;
use std::sync::Arc;

use crate::address::Text;
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::charge::{Answer, Answers, Charge};
use crate::decision::{Decision, LimitStatus, Source, Stance, Status};
use crate::headers::jitter;
use crate::key::Fingerprint;
use crate::memory::MemoryStore;
use crate::outcome::Verdict;
use crate::policy::Policy;
use crate::request::{CheckRequest, VALUE_BYTES_MAX};
use crate::store::Store;
use crate::time::Timestamp;

use super::live::{Live, Plain};
use super::ruling::InForce;
use super::{Engine, combine};

/// A policy by which requests are decided about by one attribute and nothing else, for whoever asks one engine about millions of them. It
/// says nothing any more once [`Engine::changes`] has changed.
#[derive(Clone)]
pub struct Sole {
    live: Arc<Live>,
    changes: u64,
}

impl fmt::Debug for Sole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sole").field("changes", &self.changes).finish_non_exhaustive()
    }
}

/// What becomes of a request, where that is all anybody is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brief {
    /// It passes, and was charged for.
    Passes,
    /// It does not; nothing was charged.
    Refused {
        /// The value of `Retry-After`.
        retry_seconds: u64,
    },
}

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
        let Some(plain) = live.plain() else { return false };
        if self.is_ruled() {
            return false;
        }
        let Some((text, 1)) = live.policy.sole_text(request) else { return false };
        let key = live.plain_key(text.as_bytes());
        memory.admit(key, &plain.word, plain.number, now.decidable()) == Some(Verdict::Allow)
    }

    /// How requests are decided about that are counted by this one attribute, and depend on no other; none where there is more to it.
    #[must_use]
    pub fn sole(&self, attribute: &str) -> Option<Sole> {
        // Before the policy: one that is newer than the number is only taken to be older than it is.
        let changes = self.changes();
        let live = self.live.load_full();
        let is_counted = live.plain().is_some_and(|plain| plain.by.name() == attribute);
        (is_counted && self.store.bare_memory().is_some()).then_some(Sole { live, changes })
    }

    /// What becomes of a request of cost 1 that has this value of a sole attribute. `None` says nothing, as `false` does of
    /// [`Engine::admits`].
    ///
    /// ```
    /// use tollgate::{Brief, CheckRequest, Clock, Engine, Policy};
    /// let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: per-key, by: [api_key], rate: 1/h, burst: 2}]")?;
    /// let clock = Clock::precise();
    /// let engine = Engine::new(policy, clock.now());
    /// let first = engine.check_now(&CheckRequest::new().with("api_key", "k-42")?, clock.now());
    /// assert!(first.is_allowed());
    /// let sole = engine.sole("api_key").ok_or("there is more to it")?;
    /// assert_eq!(engine.brief(&sole, b"k-42", clock.now()), Some(Brief::Passes));
    /// assert!(matches!(engine.brief(&sole, b"k-42", clock.now()), Some(Brief::Refused { retry_seconds: 3600.. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "a request that nothing is said of here has not been decided about"]
    #[inline]
    pub fn brief(&self, sole: &Sole, value: &[u8], now: Timestamp) -> Option<Brief> {
        let (memory, plain) = self.plain_of(sole, value).filter(|(_, plain)| plain.units == 1)?;
        let key = sole.live.plain_key(value);
        match memory.admit(key, &plain.word, plain.number, now.decidable())? {
            Verdict::Allow => Some(Brief::Passes),
            Verdict::Deny { retry_after } => {
                let retry_seconds = jitter::seconds_after(retry_after, plain.period, key.digest(), now);
                Some(Brief::Refused { retry_seconds })
            }
            Verdict::Wait(_) | Verdict::Never | Verdict::Forbidden => None,
        }
    }

    /// The same for whoever wants to know what the limit said. `tell` gets that and the policy; if it makes nothing of it, the decision is
    /// made as usual, and written where it is wanted. Nothing in either place says nothing, as before.
    #[inline]
    pub fn said<T>(
        &self,
        sole: &Sole,
        value: &[u8],
        now: Timestamp,
        tell: impl FnOnce(&Arc<Policy>, &LimitStatus<'_>) -> Option<T>,
        decided: &mut Option<Decision>,
    ) -> Option<T> {
        let (memory, plain) = self.plain_of(sole, value)?;
        let live = &sole.live;
        let status = live.plain_status(plain, live.plain_key(value), memory, now.decidable())?;
        let told = tell(&live.policy, &status);
        if told.is_none() {
            let decision = decided.insert(Decision::open(Arc::clone(&live.policy)));
            decision.conclude(std::iter::once(Status {
                limit: 0,
                quota: plain.quota,
                view: 0,
                stance: status.stance,
                source: status.source,
                key_hash: status.key_hash,
                outcome: status.outcome,
                charged_at: status.charged_at,
            }));
        }
        told
    }

    /// Whether an operator says anything over the policy.
    #[inline]
    fn is_ruled(&self) -> bool {
        self.blocks.is_any() || self.bench.is_any()
    }

    /// The store and the limit, where nothing else decides about this value now.
    #[inline]
    fn plain_of<'l>(&'l self, sole: &'l Sole, value: &[u8]) -> Option<(&'l MemoryStore, &'l Plain)> {
        let is_true = sole.changes == self.changes() && !self.is_ruled() && value.len() <= VALUE_BYTES_MAX;
        let plain = sole.live.plain().filter(|_| is_true)?;
        Some((self.store.bare_memory()?, plain))
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

impl Live {
    /// The counter of a value by the only limit.
    #[inline]
    fn plain_key(&self, value: &[u8]) -> Fingerprint {
        let family = self.counters[0].enforced.prefix();
        // A text without these is no IPv6 address and no network, so it counts as it is.
        if !value.iter().any(|byte| matches!(byte, b':' | b'/')) {
            return self.secret.text_key(family, value);
        }
        let text = std::str::from_utf8(value).ok().zip(self.plain().and_then(|plain| plain.by.prefixes()));
        match text {
            Some((text, prefixes)) => {
                let mut room = Text::EMPTY;
                self.secret.text_key(family, prefixes.counted(text, &mut room).as_bytes())
            }
            None => self.secret.text_key(family, value),
        }
    }

    /// Charges the only limit, and tells what it said. None: nothing was charged.
    #[inline]
    fn plain_status(
        &self,
        plain: &Plain,
        key: Fingerprint,
        memory: &MemoryStore,
        now: Timestamp,
    ) -> Option<LimitStatus<'_>> {
        let limit = self.policy.limits().first()?;
        let quota = limit.quota(plain.quota)?;
        let known = || {
            let reservoir = quota.reservoir().filter(|_| plain.units == 1)?;
            let outcome = memory.admit_telling(key, (&plain.word, reservoir), plain.number, now)?;
            Some(Answer::new(outcome, Source::Exact).charged(now))
        };
        let answer = match known() {
            Some(answer) => answer,
            None => {
                let charge = Charge {
                    key,
                    family: &self.counters[0].enforced,
                    number: plain.number,
                    quota,
                    cost: plain.units,
                    stance: Stance::Enforced,
                    permit: PermitId(0),
                    group: None,
                    lease: None,
                    charged: Charged::UNKNOWN,
                };
                memory.charge_one(&charge, now).ok()?
            }
        };
        Some(LimitStatus {
            index: 0,
            limit,
            quota: Some(quota),
            view: 0,
            stance: Stance::Enforced,
            source: answer.source,
            key_hash: key.digest(),
            outcome: answer.outcome,
            charged_at: answer.charged_at,
        })
    }
}
