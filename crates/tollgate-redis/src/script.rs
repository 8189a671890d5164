//! The one script that decides in Redis: what is asked of it, and what it answers. A call decides one or several requests; see
//! the head of the script for what each is. Sending it is left to the client.

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
    /// The keys that it reads and writes, in the order of its charges.
    pub(crate) keys: SmallVec<[Key; 6]>,
    /// The operation and its charges, as the script reads them.
    pub(crate) body: Vec<u8>,
}

impl EncodedRequest {
    /// The slot of its keys, which all share one.
    pub(crate) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| key.slot())
    }
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    /// Charges all or none. A cost of 0 looks.
    Charge = 1,
    /// Gives back units, or a permit.
    Refund = 2,
    /// Forgets the counters.
    Reset = 3,
    /// Takes up to so many units without asking, down to an empty bucket or a full window.
    Debit = 4,
    /// Charges all or none, and if all pass takes of each up to so many units more.
    Lend = 5,
    /// Lets permits live anew.
    Renew = 6,
}

/// What stands in a state for the quota that it was counted under: three digits, unique among the quotas of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tag(u16);

impl Tag {
    /// The least and the most. Above it a state would not fit 63 bits.
    pub(crate) const RANGE: std::ops::RangeInclusive<u16> = 100..=921;

    /// The least.
    pub(crate) const FIRST: Tag = Tag(100);

    /// A tag, if it is one.
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

    /// The tag of three digits.
    pub(crate) fn parse(digits: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(digits).ok().filter(|text| text.len() == 3)?;
        Self::new(text.parse().ok()?)
    }
}
