//! Reads what a response says about the limits of its server, whatever dialect it speaks. Pure functions: a field that
//! is malformed counts as absent, an absurd value is capped, and nothing that a server sends makes them panic.
//!
//! | dialect | how it is recognised | module |
//! |---|---|---|
//! | IETF `RateLimit`, drafts 08 to 11 and later | a list of strings with `r` and `t`, or `a` and `w` | `ietf` |
//! | IETF draft 07 | a dictionary with `limit`, `remaining`, `reset` | `ietf` |
//! | IETF drafts 03 to 06, `X-RateLimit-*`, `X-Rate-Limit-*`, OpenAI, Anthropic, GitHub, Discord, Kong | names that end with `limit`, `remaining` and `reset` | `names` |
//! | Riot Games, Shopify | fields of their own | `vendor` |
//! | Discord, GitHub, Google, OpenAI, Anthropic, Shopify, Slack | JSON bodies | `body` |
//! | gRPC | `grpc-status`, `grpc-status-details-bin`, `grpc-retry-pushback-ms` | `grpc` |
//!
//! The first dialect that describes a counter wins: a server that speaks two describes the same counter twice.

mod body;
mod fields;
mod grpc;
mod ietf;
mod names;
mod throttle;
mod value;
mod vendor;

use http::{HeaderMap, StatusCode};
use tollgate::{Ticks, Timestamp};

use crate::signal::{Signals, Window};
use body::Body;
use fields::Fields;

/// Longer waits, whether for a reset or after a refusal, count as this long: 31 days, the longest calendar month.
pub const WAIT_MAX: Ticks = Ticks::from_secs(31 * 86_400);
/// Larger counts count as this much: the largest integer of a structured field.
pub const COUNT_MAX: u64 = 999_999_999_999_999;
/// Further windows of one response are ignored.
pub const WINDOWS_MAX: usize = 16;
/// Longer names of windows and buckets are ignored.
pub const NAME_BYTES_MAX: usize = 128;
/// Larger bodies are not read.
pub const BODY_BYTES_MAX: usize = 64 * 1_024;

/// A response, as far as it may say something about limits.
#[derive(Clone, Copy, Debug)]
pub struct ResponseView<'a> {
    /// Its status.
    pub status: StatusCode,
    /// Its headers. For gRPC, its headers and trailers.
    pub headers: &'a HeaderMap,
    /// Its body, if that is known. It matters for refusals, and for GraphQL.
    pub body: Option<&'a [u8]>,
    /// When it arrived.
    pub received: Timestamp,
}

impl ResponseView<'_> {
    /// The status of the call. `UNAVAILABLE` of gRPC is a 503, whatever the status of HTTP.
    pub(crate) fn outcome(&self) -> StatusCode {
        if grpc::is_unavailable(&Fields::of(self)) { StatusCode::SERVICE_UNAVAILABLE } else { self.status }
    }
}

/// Reads what a response says.
#[must_use]
pub fn read(response: &ResponseView<'_>) -> Signals {
    let fields = Fields::of(response);
    let body = Body::of(response);
    // A cache repeats numbers that are over.
    let mut windows = if fields.is_cached() { Vec::new() } else { windows(&fields, body.as_ref()) };
    let throttle = throttle::read(&fields, body.as_ref(), &windows);
    for window in windows.iter_mut().filter(|window| window.remaining == Some(0)) {
        // It begins again within a period, whenever it began, and no later than the server takes calls.
        let retry_after = throttle.and_then(|throttle| throttle.retry_after);
        let within = |period: Ticks| retry_after.map_or(period, |wait| wait.min(period));
        window.resets_in = window.resets_in.or(window.period.map(within));
    }
    let should_retry = throttle::should_retry(&fields, body.as_ref());
    Signals { throttle, should_retry, bucket: bucket(&fields), windows }
}

/// The windows, by the first dialect that has any.
fn windows(fields: &Fields<'_>, body: Option<&Body>) -> Vec<Window> {
    let mut windows = vendor::windows(fields);
    if windows.is_empty() {
        windows = ietf::windows(fields);
    }
    if windows.is_empty() {
        windows = names::windows(fields);
    }
    if let Some(points) = body.and_then(Body::points) {
        windows.push(points);
    }
    let mut named: Vec<Window> = Vec::new();
    for window in windows.into_iter().take(WINDOWS_MAX).filter_map(credible) {
        // The partitions of one policy have one name. The one with less left counts.
        match named.iter_mut().find(|known| known.name == window.name) {
            Some(known) if known.remaining > window.remaining => *known = window,
            Some(_) => {}
            None => named.push(window),
        }
    }
    named
}

/// A window whose numbers can be true.
fn credible(mut window: Window) -> Option<Window> {
    // Azure sends 0 and -1 for what it does not know.
    if window.limit == Some(0) || window.name.is_empty() || window.name.len() > NAME_BYTES_MAX {
        return None;
    }
    if window.limit.is_none() && window.remaining.is_none() {
        return None;
    }
    if let (Some(limit), Some(remaining)) = (window.limit, window.remaining) {
        window.remaining = Some(remaining.min(limit));
    }
    Some(window)
}

/// The server's name of the bucket.
fn bucket(fields: &Fields<'_>) -> Option<String> {
    let named = fields.text("x-ratelimit-bucket").or_else(|| fields.text("x-ratelimit-resource"));
    let named = named.map(str::to_owned).or_else(|| ietf::partition(fields));
    named.filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX)
}
