//! What it takes to give units back that were lent, and to borrow more, when the request that borrowed them is long gone.

use redis::Value;
use tollgate::algorithm::Charged;
use tollgate::algorithm::fixed_window::Align;
use tollgate::charge::Charge;
use tollgate::lease::LeaseRequest;
use tollgate::{Quota, Timestamp};

use super::encode::{self, CalendarBounds, QuotaFields};
use super::reply::lent_of;
use super::request::{Lent, tag_of};
use super::{EncodedRequest, Operation, Tag, found};
use crate::key::Key;

/// A counter and its quota.
#[derive(Clone, Debug)]
pub struct Receipt {
    key: Key,
    tag: Tag,
    quota: Quota,
}

impl Receipt {
    /// Of units that a charge's counter lent. Not where windows follow a calendar: of those only the counter itself could tell one from
    /// the next.
    pub(crate) fn of(charge: &Charge<'_>) -> Option<Self> {
        let is_calendar = matches!(charge.quota(), Quota::FixedWindow(window) if matches!(window.align(), Align::Calendar(_)));
        if is_calendar {
            return None;
        }
        Some(Self { key: Key::of(charge), tag: tag_of(charge)?, quota: charge.quota().clone() })
    }

    pub(crate) const fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Asks for more units.
    pub(crate) fn lend_request(&self, want: &LeaseRequest, now: Timestamp) -> EncodedRequest {
        let fields = QuotaFields::of(&self.quota, now, CalendarBounds::One);
        let mut request = self.encode(Operation::Lend, encode::wanted_units(want), 0, &fields);
        encode::want_details(&mut request.body, want);
        request.keys.push(self.key.demand_key());
        request
    }

    /// Gives back units that were drawn at an instant of the counter's clock.
    pub(crate) fn refund_request(&self, units: u64, acquired_at: Timestamp, now: Timestamp) -> EncodedRequest {
        let fields = QuotaFields::of(&self.quota, now, CalendarBounds::One);
        let mut request = self.encode(Operation::Refund, 0, units, &fields);
        encode::charged(&mut request.body, Charged::At(acquired_at));
        request
    }

    fn encode(&self, operation: Operation, seconds: u32, cost: u64, fields: &QuotaFields) -> EncodedRequest {
        let mut body = Vec::with_capacity(80);
        encode::head(&mut body, operation, 1);
        encode::plain(&mut body, self.tag, seconds, cost, fields);
        EncodedRequest { keys: [self.key].into_iter().collect(), body }
    }

    /// Reads what was lent. Nothing where the counter is no longer counted under this quota.
    pub(crate) fn read_lent(&self, value: &Value) -> Option<Lent> {
        let Value::BulkString(bytes) = value else { return None };
        match bytes.split_first()? {
            (7, rest) => found::lent_by(rest, &self.quota),
            (6, rest) => lent_of(rest, [self.quota.capacity()].into_iter()),
            _ => None,
        }
    }

    /// Whether units went back.
    pub(crate) fn is_done(value: &Value) -> bool {
        matches!(value, Value::BulkString(bytes) if bytes.as_slice() == [0])
    }
}
