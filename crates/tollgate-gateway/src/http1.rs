//! HTTP/1.1 on both sides of the gateway: what it accepts, what it refuses, and why it is not hyper.
//!
//! | module | owns |
//! |---|---|
//! | [`framing`] | requests: where a head ends, what it says, which bytes are its body. Pure |
//! | [`reply`] | answers of an upstream: the same for them. Pure |
//! | [`outbox`] | bytes to write: fields, lengths, chunks |
//! | [`pipeline`] | the bytes of a client's connection: heads, and the body of the current request |
//! | `http1_server` | a client's connection: request after request, and the idle time between them |
//! | `http1_client` | a connection to an upstream: one request after the other |
//!
//! # Accepted
//!
//! - HTTP/1.1 and HTTP/1.0, any method that is a token, and keep-alive by the rules of each version.
//! - One `Content-Length` in digits, or `Transfer-Encoding: chunked` alone, with trailers.
//! - Empty lines before a request, and `Expect: 100-continue`.
//! - From an upstream also: a body that ends with its connection; a length that is repeated with the same value; lines
//!   that end with a bare LF; informational answers, which are skipped. Chunks beside a length count, but that
//!   connection is not used again.
//!
//! # Refused
//!
//! A request that two servers could read differently is refused, not repaired, and its connection is closed: otherwise
//! a client could smuggle a request past the limits.
//!
//! - A length beside chunks, a length twice (also an equal one), a coding other than `chunked`, a length with a sign,
//!   chunks in HTTP/1.0.
//! - A line that ends with a bare LF, a field that continues on the next line, a space before a colon.
//! - A chunk whose size has more than 15 digits or whose line has more than 256 bytes.
//! - A head of more than 100 fields or 64 KiB, and trailers above 16 KiB. `arrival` refuses fields above 16 KiB in all.
//! - From an upstream: lengths that differ, a coding other than `chunked`, chunks in HTTP/1.0, a head of more than 256
//!   fields or 64 KiB.
//!
//! `framing/tests.rs` and `reply/tests.rs` have a case for each, the fuzz target `gateway_framing` searches for more,
//! and `tests/it/gateway_framing.rs` sends them to a running gateway.
//!
//! # Why not hyper
//!
//! - hyper's client needs a task for each connection, and so a hand-over between threads for each request. Here the
//!   caller drives the connection to the upstream, and the client's task drives both: 0.58 → 0.75 of nginx's throughput.
//! - hyper keeps buffers and a parser for an idle connection. Here it is a stream and a timer: 21 → 3 KiB a connection.
//! - hyper accepts several of the messages above, because it serves all kinds of programs. A gateway must not.
//!
//! hyper still speaks HTTP/2 on both sides, and HTTP/1.1 to an upstream that is asked to switch protocols. To replace
//! this module by hyper: `http1_server::serve` becomes a connection builder around the `Gateway`'s answer, and
//! `http1_client::Http1Connection` a `SendRequest` in `dialer`. The tests named above decide whether the replacement is
//! as strict, and `bench/gateway` whether it is as fast.

pub(crate) mod framing;
pub(crate) mod reply;
pub(crate) mod outbox;
pub(crate) mod pipeline;

pub(crate) use pipeline::IncomingBody;

/// Feeds bytes in parts, for the fuzz targets. Returns how many of them were read as requests, and whether more may
/// follow.
#[cfg(feature = "fuzzing")]
#[must_use]
pub fn framed(parts: &[&[u8]]) -> (usize, bool) {
    let mut reader = framing::Reader::new();
    parts.iter().for_each(|part| reader.feed(part));
    (reader.taken, !reader.is_broken && !reader.has_asked)
}
