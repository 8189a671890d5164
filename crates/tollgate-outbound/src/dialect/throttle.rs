//! Whether a response refuses its call because of a limit, which calls that concerns, and until when.

use http::StatusCode;
use tollgate::Ticks;

use super::body::{Body, Cause};
use super::fields::Fields;
use super::{body, grpc, value};
use crate::signal::{Throttle, ThrottleKind, ThrottleScope, Window};

/// How long GitHub wants to be left alone after a secondary limit that does not say so.
const GITHUB_SECONDARY: Ticks = Ticks::from_secs(60);
/// A shorter wait is not that of a day's quota, so that waiting helps.
const DAY_WAIT_MIN: Ticks = Ticks::from_secs(60);
/// What Anthropic sends when it is overloaded.
const SITE_OVERLOADED: u16 = 529;

/// The refusal, if the response is one.
pub(super) fn read(fields: &Fields<'_>, body: Option<&Body>, windows: &[Window]) -> Option<Throttle> {
    if fields.status.is_redirection() {
        return None;
    }
    if fields.has("grpc-status") {
        return grpc::throttle(fields);
    }
    let cause = body.and_then(|body| body.cause(fields.status));
    if cause == Some(Cause::Lock) {
        return None; // Stripe: two calls change one object. It is no limit.
    }
    let mut throttle = Throttle { retry_after: announced(fields), ..refused(fields, body, cause, windows)? };
    let is_day = throttle.kind == ThrottleKind::Day;
    if is_day && throttle.retry_after.is_some_and(|wait| wait < DAY_WAIT_MIN) {
        throttle.kind = ThrottleKind::Rate;
    }
    // Google sends the delay of the minute's quota also for the day's.
    let in_body = body.and_then(Body::retry_after).filter(|wait| !is_day || *wait >= DAY_WAIT_MIN);
    throttle.retry_after = throttle.retry_after.or(in_body);
    if fields.is_github() && throttle.scope == ThrottleScope::Everything {
        throttle.retry_after = throttle.retry_after.or(Some(GITHUB_SECONDARY));
    }
    Some(throttle)
}

/// Whether the server asks for another attempt or forbids it.
pub(super) fn should_retry(fields: &Fields<'_>, body: Option<&Body>) -> Option<bool> {
    let of_fields = fields.flag("x-should-retry").or_else(|| fields.flag("stripe-should-retry"));
    of_fields.or_else(|| grpc::should_retry(fields)).or_else(|| body?.is_retryable())
}

/// `Retry-After` and its relatives, which take precedence over all windows.
fn announced(fields: &Fields<'_>) -> Option<Ticks> {
    let precise = fields.text("retry-after-ms").or_else(|| fields.text("x-ms-retry-after-ms"));
    let plain = || {
        let text = fields.text("retry-after")?;
        value::seconds(text).or_else(|| value::date(text).map(|date| value::until(date, fields.server_now)))
    };
    let subscription = || value::reset(fields.text("anthropic-ratelimit-unified-reset")?, fields.server_now);
    let wait = precise.and_then(value::millis).or_else(plain).or_else(subscription)?;
    let left = Ticks::from_micros(wait.as_micros().saturating_sub(fields.age().as_micros()));
    (!left.is_zero()).then_some(left) // The server refuses calls now: zero does not say how long.
}

/// The kind and the scope of a refusal.
fn refused(
    fields: &Fields<'_>,
    body: Option<&Body>,
    cause: Option<Cause>,
    windows: &[Window],
) -> Option<Throttle> {
    let throttle = |kind, scope| Some(Throttle { retry_after: None, scope, kind });
    let of_cause = match cause {
        Some(Cause::Limit(kind, scope)) => throttle(kind, scope),
        _ => None,
    };
    let rate = |scope| of_cause.or_else(|| throttle(ThrottleKind::Rate, scope));
    let is_used_up = windows.iter().any(|window| window.remaining == Some(0));
    let announces = || fields.has("retry-after");
    match fields.status {
        StatusCode::TOO_MANY_REQUESTS => match of_code(fields, body) {
            Some((kind, scope)) => throttle(kind, scope),
            None if fields.is_github() && (announces() || !is_used_up) => rate(ThrottleScope::Everything),
            None => rate(ThrottleScope::Bucket),
        },
        StatusCode::FORBIDDEN if fields.is_github() => {
            if is_used_up && !announces() {
                return rate(ThrottleScope::Bucket);
            }
            let is_secondary = announces() || of_cause.is_some();
            if is_secondary { rate(ThrottleScope::Everything) } else { None }
        }
        StatusCode::FORBIDDEN if announces() || is_used_up => rate(ThrottleScope::Bucket),
        StatusCode::SERVICE_UNAVAILABLE if announces() || fields.has("retry-after-ms") => {
            throttle(ThrottleKind::Overload, ThrottleScope::Everything)
        }
        status if status.as_u16() == SITE_OVERLOADED => {
            throttle(ThrottleKind::Overload, ThrottleScope::Everything)
        }
        _ => {
            let aws = fields.text("x-amzn-errortype").is_some_and(body::is_aws_throttling);
            of_cause.or_else(|| if aws { throttle(ThrottleKind::Rate, ThrottleScope::Bucket) } else { None })
        }
    }
}

/// The scope of a 429 by Stripe's reason, Discord's scope or Riot's type.
fn of_code(fields: &Fields<'_>, body: Option<&Body>) -> Option<(ThrottleKind, ThrottleScope)> {
    if let Some(reason) = fields.text("stripe-rate-limited-reason") {
        return Some(match reason {
            "global-concurrency" => (ThrottleKind::Concurrency, ThrottleScope::Everything),
            "endpoint-concurrency" => (ThrottleKind::Concurrency, ThrottleScope::Route),
            "endpoint-rate" => (ThrottleKind::Rate, ThrottleScope::Route),
            // The limit of one object, which says nothing about the others.
            "resource-specific" => (ThrottleKind::Rate, ThrottleScope::Shared),
            _ => (ThrottleKind::Rate, ThrottleScope::Everything),
        });
    }
    let is_global = fields.flag("x-ratelimit-global") == Some(true) || body.is_some_and(Body::is_global);
    if is_global {
        return Some((ThrottleKind::Rate, ThrottleScope::Everything));
    }
    match (fields.text("x-ratelimit-scope"), fields.text("x-rate-limit-type")) {
        (Some("global"), _) | (_, Some("application")) => {
            Some((ThrottleKind::Rate, ThrottleScope::Everything))
        }
        (Some("user"), _) | (_, Some("method")) => Some((ThrottleKind::Rate, ThrottleScope::Route)),
        (Some("shared"), _) | (_, Some("service")) => Some((ThrottleKind::Rate, ThrottleScope::Shared)),
        _ => None,
    }
}
