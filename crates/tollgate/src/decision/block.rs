//! An operator's block: the reason of a denial that no limit gave. Keeping and finding blocks is left to
//! [`crate::engine`].

use std::fmt;

use crate::address::Network;
use crate::time::{Timestamp, WallOffset};

/// Requests with all of these attributes are denied until an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Names and values as text, by name; numbers in decimal, and addresses as the networks that they count by.
    pub(crate) attributes: Vec<(String, String)>,
    /// The network of each attribute that is an address, beside it.
    pub(crate) networks: Vec<Option<Network>>,
    pub(crate) until: Timestamp,
    /// How far the wall clock is ahead of the clock that the block ends by.
    pub(crate) wall: WallOffset,
}

impl Block {
    /// The name of the cause of such a denial in answers and metrics, where other denials have the name of a limit.
    pub const NAME: &'static str = "operator-block";

    /// Names and values, as text.
    #[must_use]
    pub fn attributes(&self) -> &[(String, String)] {
        &self.attributes
    }

    /// The first instant at which it no longer applies.
    #[must_use]
    pub const fn until(&self) -> Timestamp {
        self.until
    }

    /// The same instant as the wall clock shows it, for display.
    #[must_use]
    pub const fn until_on_wall(&self) -> Timestamp {
        self.until.on_wall(self.wall)
    }
}

impl fmt::Display for Block {
    /// Why a request is denied, without further details about the block.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocked by an operator until {}", self.until_on_wall().rfc3339())
    }
}
