//! Receipts of lent units: how to return them or borrow more after the request that borrowed them has ended.

use redis::Value;
use tollgate::algorithm::Charged;
use tollgate::algorithm::fixed_window::Align;
use tollgate::lease::LeaseRequest;
use tollgate::store::Charge;
use tollgate::{Quota, Timestamp};

use super::encode::{self, CalendarBounds, QuotaFields};
use super::reply::lent_of;
use super::request::{Lent, tag_of};
use super::{EncodedRequest, Operation, Tag, found};
use crate::key::Key;

/// Identifies the counter that lent, with its quota.
#[derive(Clone, Debug)]
pub struct Receipt {
    key: Key,
    tag: Tag,
    quota: Quota,
}

impl Receipt {
    /// The receipt of a charge's counter. None for calendar windows, because only the counter itself can tell one
    /// window from the next.
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

    /// A request to borrow more units.
    pub(crate) fn lend_request(&self, want: &LeaseRequest, now: Timestamp) -> EncodedRequest {
        let fields = QuotaFields::of(&self.quota, now, CalendarBounds::One);
        let mut request = self.encode(Operation::Lend, encode::wanted_units(want), 0, &fields);
        encode::want_details(&mut request.body, want);
        request.keys.push(self.key.demand_key());
        request
    }

    /// A request to return units, with the instant of the loan by the counter's clock.
    pub(crate) fn refund_request(
        &self,
        units: u64,
        acquired_at: Timestamp,
        now: Timestamp,
    ) -> EncodedRequest {
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

    /// Reads a loan. None if the counter has another quota now.
    pub(crate) fn read_lent(&self, value: &Value) -> Option<Lent> {
        let Value::BulkString(bytes) = value else { return None };
        match bytes.split_first()? {
            (7, rest) => found::lent_by(rest, &self.quota),
            (6, rest) => lent_of(rest, [self.quota.capacity()].into_iter()),
            _ => None,
        }
    }

    /// Whether the units were returned.
    pub(crate) fn is_done(value: &Value) -> bool {
        matches!(value, Value::BulkString(bytes) if bytes.as_slice() == [0])
    }
}
