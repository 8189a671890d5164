//! The Lua script that decides in Redis: how requests are encoded and replies are read. One call decides one or more
//! requests; the head of the script documents the format. The client sends it.

use smallvec::SmallVec;

use tollgate::Timestamp;

use crate::key::Key;

mod command;
mod encode;
mod found;
mod receipt;
mod reply;
mod request;
#[cfg(test)]
#[cfg(feature = "server-tests")]
mod tests;

pub(crate) use command::command;
pub(crate) use receipt::Receipt;
pub(crate) use request::{Problem, ScriptRequest, ScriptResponse, tag_of};

/// The script's source.
pub(crate) const SOURCE: &str = concat!(
    include_str!("script/head.lua"),
    include_str!("script/fast_path.lua"),
    include_str!("script/common.lua"),
    include_str!("script/reservoir.lua"),
    include_str!("script/fixed_window.lua"),
    include_str!("script/sliding_window.lua"),
    include_str!("script/sliding_log.lua"),
    include_str!("script/permits.lua"),
    include_str!("script/main.lua")
);

/// The time that a test injects; none in service, where the store's clock decides.
pub(crate) type InjectedTime = Option<Timestamp>;

/// One request to the script, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedRequest {
    /// Keys that the request reads and writes, in the order of its charges.
    pub(crate) keys: SmallVec<[Key; 6]>,
    /// The operation and its charges, encoded for the script.
    pub(crate) body: Vec<u8>,
}

impl EncodedRequest {
    /// The slot of its keys, which all share one.
    pub(crate) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| key.slot())
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    /// Charges all or none. A cost of 0 is a peek.
    Charge = 1,
    /// Refunds units, or releases a permit.
    Refund = 2,
    /// Resets the counters.
    Reset = 3,
    /// Charges up to the cost without a decision, down to an empty bucket or a full window.
    Debit = 4,
    /// Charges all or none. If all are admitted, lends up to the wanted units of each.
    Lend = 5,
    /// Renews permits.
    Renew = 6,
}

/// The three digits that name a state's quota, unique within its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tag(u16);

impl Tag {
    /// The range of tags. A larger tag would make a state exceed 63 bits.
    pub(crate) const RANGE: std::ops::RangeInclusive<u16> = 100..=921;

    /// The smallest tag.
    pub(crate) const FIRST: Tag = Tag(100);

    /// A tag, if the number is in range.
    pub(crate) fn new(number: u32) -> Option<Self> {
        let number = u16::try_from(number).ok()?;
        Self::RANGE.contains(&number).then_some(Self(number))
    }

    /// Its number.
    pub(crate) const fn get(self) -> u16 {
        self.0
    }

    /// Its three digits.
    pub(crate) fn digits(self) -> [u8; 3] {
        [100, 10, 1].map(|place| b'0' + u8::try_from(self.0 / place % 10).unwrap_or(0))
    }

    /// Parses three digits.
    pub(crate) fn parse(digits: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(digits).ok().filter(|text| text.len() == 3)?;
        Self::new(text.parse().ok()?)
    }
}
