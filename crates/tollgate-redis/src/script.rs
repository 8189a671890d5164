//! The one script that decides in Redis: what is asked of it, and what it answers. A call decides one or several requests; see
//! the head of the script for what each is. Sending it is left to the link.

use smallvec::SmallVec;

use crate::key::Key;

/// The script's source.
pub(crate) const SOURCE: &str = concat!(include_str!("script/head.lua"));
/// Most keys of one call: the script holds them all at once.
pub(crate) const KEYS_MAX: usize = 1_024;

/// One request to the script, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The keys that it reads and writes, in the order of its charges.
    pub(crate) keys: SmallVec<[Key; 6]>,
    /// The operation and its charges, as the script reads them.
    pub(crate) body: Vec<u8>,
}
