//! Parses HTTP/1 requests strictly, and rejects what two servers could read differently. Many servers accept a length
//! beside chunks, a repeated length, or lines that end without CR, and they read them differently. The module is pure:
//! bytes go in, heads and frames come out. `http1_server` has the stream.

mod body;
mod head;
#[cfg(any(test, feature = "fuzzing"))]
mod reader;

pub(crate) use body::{RequestDecoder, RequestElement, part};
pub(crate) use head::{FIELDS_MAX, Flaw, RequestHead, end};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use reader::Reader;

#[cfg(test)]
mod tests;
