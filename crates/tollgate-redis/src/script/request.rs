//! One request to the script, sent until it is answered: usually once. The script may reply that it needs more, without
//! having charged anything; then the request is extended and sent again.

use std::sync::atomic::Ordering;

use redis::Value;
use smallvec::SmallVec;
use tollgate::lease::LeaseRequest;
use tollgate::store::{Answers, Charge, Succession};
use tollgate::{Quota, Timestamp};

use super::encode::{self, Ancestor, CalendarBounds, Origin, QuotaFields};
use super::reply::ScriptReply;
use super::{EncodedRequest, Operation, Tag};
use crate::key::Key;

/// Maximum number of charges in a request.
pub(crate) const CHARGES_MAX: usize = u8::MAX as usize;
/// Maximum number of times a request is sent. Each time it holds more, unless other nodes change the counters
/// meanwhile.
const SENDS_MAX: u32 = 8;

/// A request and what it has learned from replies.
#[derive(Debug)]
pub(crate) struct ScriptRequest<'c> {
    operation: Operation,
    charges: &'c [Charge<'c>],
    /// The node's clock, until the script replies with its own.
    now: Timestamp,
    bounds: CalendarBounds,
    origins: SmallVec<[Origin; 6]>,
    /// The units to lend for each charge, for [`Operation::Lend`].
    wants: &'c [LeaseRequest],
    sends: u32,
}

/// The answers of charges, the units that each counter lent, the fleet's demand for each, and the store's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    pub(crate) answers: Answers,
    pub(crate) units: SmallVec<[u64; 6]>,
    pub(crate) fleet_demands: SmallVec<[Option<u64>; 6]>,
    pub(crate) now: Timestamp,
}

/// The meaning of a reply for its request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly every answer is the large one, and it lives for a moment"
)]
pub(crate) enum ScriptResponse {
    /// The answers of a charge.
    Answers(Answers),
    /// The lent units.
    Lent(Lent),
    /// The operation succeeded without a result.
    Done,
    /// Nothing was charged. Send the request again.
    Resend,
    /// Nothing was charged. Look up this tag of this charge's family, call [`ScriptRequest::provide_quota`], and send
    /// again.
    LookUpTag(usize, Tag),
    /// Nothing was charged, and resending would not help.
    Problem(Problem),
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    /// A quota has no tag yet.
    #[error("a quota has no tag yet")]
    Untagged,
    /// The request has too many charges.
    #[error("a request of more than {CHARGES_MAX} charges")]
    TooMany,
    /// A counter holds a malformed state.
    #[error("the counter {0:?} holds a malformed state")]
    Malformed(Key),
    /// The script rejected the request.
    #[error("the script rejected the request: {0}")]
    Refused(String),
    /// The reply is malformed.
    #[error("the script's reply is malformed")]
    Unreadable,
    /// The request was sent too often.
    #[error("the counter changed its quota too often during the request")]
    TooManySends,
}

impl<'c> ScriptRequest<'c> {
    /// A request at an instant of the node's clock.
    pub(crate) fn new(operation: Operation, charges: &'c [Charge<'c>], now: Timestamp) -> Self {
        let origins = SmallVec::from_elem(Origin::Unspecified, charges.len());
        Self { operation, charges, now, bounds: CalendarBounds::One, origins, wants: &[], sends: 0 }
    }

    /// A request that charges and borrows the wanted units.
    pub(crate) fn lending(charges: &'c [Charge<'c>], wants: &'c [LeaseRequest], now: Timestamp) -> Self {
        Self { wants, ..Self::new(Operation::Lend, charges, now) }
    }

    /// Encodes the request.
    ///
    /// # Errors
    /// When a quota has no tag yet, or there are too many charges.
    pub(crate) fn encode(&self) -> Result<EncodedRequest, Problem> {
        let count = u8::try_from(self.charges.len()).map_err(|_| Problem::TooMany)?;
        let mut body = Vec::with_capacity(2 + self.charges.len() * 60);
        encode::head(&mut body, self.operation, count);
        let mut keys: SmallVec<[Key; 6]> = SmallVec::with_capacity(self.charges.len());
        for (index, (charge, origin)) in self.charges.iter().zip(&self.origins).enumerate() {
            keys.push(Key::of(charge));
            let tag = tag_of(charge).ok_or(Problem::Untagged)?;
            let fields = QuotaFields::of(charge.quota(), self.now, self.bounds);
            let wanted = self.wants.get(index).map_or(0, encode::wanted_units);
            encode::charge(&mut body, charge, tag, &fields, origin, wanted);
        }
        if self.operation == Operation::Refund {
            self.charges.iter().for_each(|charge| encode::charged(&mut body, charge.charged()));
        }
        if self.operation == Operation::Lend {
            for index in 0..self.charges.len() {
                encode::want_details(&mut body, &self.wants.get(index).copied().unwrap_or_default());
                keys.push(keys[index].demand_key());
            }
        }
        Ok(EncodedRequest { keys, body })
    }

    /// Interprets a reply.
    pub(crate) fn interpret(&mut self, value: &Value) -> ScriptResponse {
        self.sends += 1;
        match ScriptReply::read(value, self.charges) {
            ScriptReply::Answers(answers) => ScriptResponse::Answers(answers),
            ScriptReply::Lent(lent) => ScriptResponse::Lent(lent),
            ScriptReply::Done => ScriptResponse::Done,
            _ if self.sends >= SENDS_MAX => ScriptResponse::Problem(Problem::TooManySends),
            ScriptReply::Unknown(tags) => self.resolve_origins(&tags),
            ScriptReply::Bounds(now) => {
                (self.now, self.bounds) = (now, CalendarBounds::Two);
                ScriptResponse::Resend
            }
            ScriptReply::Malformed(index) => ScriptResponse::Problem(
                self.charges
                    .get(index)
                    .map_or(Problem::Unreadable, |charge| Problem::Malformed(Key::of(charge))),
            ),
            ScriptReply::Refused(what) => ScriptResponse::Problem(Problem::Refused(what)),
            ScriptReply::Unreadable => ScriptResponse::Problem(Problem::Unreadable),
        }
    }

    /// Resolves the origins of states from the quotas that this node knows.
    fn resolve_origins(&mut self, tags: &[(usize, Tag)]) -> ScriptResponse {
        for &(index, tag) in tags {
            let Some(charge) = self.charges.get(index) else {
                return ScriptResponse::Problem(Problem::Unreadable);
            };
            match lineage(charge, tag, self.now) {
                Some(origin) => self.origins[index] = origin,
                None => return ScriptResponse::LookUpTag(index, tag),
            }
        }
        ScriptResponse::Resend
    }

    /// Provides the quota of a tag that this node did not know; none if the fleet does not know it. Then send the
    /// request again.
    pub(crate) fn provide_quota(&mut self, index: usize, tag: Tag, quota: Option<&Quota>) {
        let (Some(charge), Some(origin)) = (self.charges.get(index), self.origins.get_mut(index)) else {
            return;
        };
        let step = quota.filter(|quota| quota.algorithm() == charge.quota().algorithm());
        *origin = step.map_or(Origin::Unknown, |from| {
            let step = Succession { from, to: charge.quota(), at: self.now };
            Origin::Lineage(tag, vec![Ancestor::of(&step, self.now)])
        });
    }
}

/// The tag of a charge's quota, if it has one yet.
pub(crate) fn tag_of(charge: &Charge<'_>) -> Option<Tag> {
    // Relaxed: the tag is the whole message.
    Tag::new(charge.family().mark(charge.number())?.load(Ordering::Relaxed))
}

/// The origin of states with a tag, if the charge's family has its quota.
fn lineage(charge: &Charge<'_>, tag: Tag, now: Timestamp) -> Option<Origin> {
    let family = charge.family();
    let has_tag = |number: u32| {
        family.mark(number).is_some_and(|mark| mark.load(Ordering::Relaxed) == u32::from(tag.get()))
    };
    let (from, _) = family.quotas().find(|&(number, _)| number != charge.number() && has_tag(number))?;
    let steps = family.successions(from, charge.number(), now)?;
    let ancestors: Vec<Ancestor> = steps.iter().map(|step| Ancestor::of(step, now)).collect();
    (!ancestors.is_empty() && ancestors.len() <= usize::from(u8::MAX))
        .then_some(Origin::Lineage(tag, ancestors))
}
