//! Requests of HTTP/1, read strictly: what two servers could read differently is none. A length beside chunks, a length told twice, or lines
//! that end without CR are read kindly by many, and differently. Pure: bytes go in, heads and frames come out; [`super::client`] has the stream.

mod body;
mod head;
#[cfg(any(test, feature = "fuzzing"))]
mod reader;

pub(super) use body::{Decoder, Next, part};
pub(super) use head::{FIELDS_MAX, Flaw, Head, end};
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use reader::Reader;

#[cfg(test)]
mod tests;
