//! The entry point: from a decision to the answer that is sent.

use crate::decision::{Decision, Reason};
use crate::outcome::Verdict;
use crate::time::Timestamp;

use super::body::{self, Body, Overload, RefusalKind};
use super::dialect::Dialect;
use super::jitter::Retry;
use super::list::HeaderList;
use super::policy::{Audience, Caller, Disclosure, Exposure, HeaderPolicy};
use super::sheet::Sheet;
use super::{ietf, vendor};

/// The answer to send. An allowed request keeps the status and body of its own response; only the headers are added to
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 when the request passes. Otherwise 429 or the operator's choice instead, 503 where limits could not be
    /// counted, 403 where the policy denies the request, and 400 or 413 where its cost can never pass.
    pub status: u16,
    /// Headers to add. The content type of a body is part of the body.
    pub headers: HeaderList,
    /// The body to send instead of the response that the caller did not get.
    pub body: Option<Body>,
}

impl Answer {
    /// The answer to a decision, for one caller, at a wall time.
    #[must_use]
    pub fn of(decision: &Decision, policy: &HeaderPolicy, audience: Audience, now: Timestamp) -> Self {
        let sheet = Sheet::of(decision, policy, audience, now);
        let headers = headers(&sheet, policy);
        let Some(refusal) = refusal(decision, &sheet) else {
            return Self { status: 200, headers, body: None };
        };
        let status = refusal.status(policy.denial);
        Self {
            status,
            headers,
            body: Some(body::write(&refusal, status, &sheet, policy.dialects, audience.accepts)),
        }
    }

    /// The answer to a request that is shed for lack of capacity: a 503, never a 429, whatever status the operator
    /// chose for denials, because the caller did nothing wrong. `identity` is a hash of the caller: the same caller
    /// gets the same second for a while, and other callers get others.
    #[must_use]
    pub fn of_overload(
        refusal: &Overload,
        policy: &HeaderPolicy,
        audience: Audience,
        identity: u64,
        now: Timestamp,
    ) -> Self {
        // Controllers belong to the platform, like limits without `by`: not every caller may see their names.
        let exposure = match (audience.caller, policy.disclosure) {
            (Caller::Anonymous, _) | (_, Disclosure::Never) => Exposure::RetryAfter,
            (Caller::Authenticated, _) => Exposure::Full,
        };
        let retry = Retry::after_overload(identity, refusal.pressure, now);
        let mut headers = HeaderList::default();
        headers.text("Cache-Control", "no-store");
        headers.number("Retry-After", retry.seconds);
        Self {
            status: 503,
            headers,
            body: Some(body::overload(refusal, 503, retry, exposure, audience.accepts)),
        }
    }

    /// The headers of that answer alone, for a protocol that has a body of its own.
    #[must_use]
    pub fn headers_of(
        decision: &Decision,
        policy: &HeaderPolicy,
        audience: Audience,
        now: Timestamp,
    ) -> HeaderList {
        headers(&Sheet::of(decision, policy, audience, now), policy)
    }
}

/// Why the request is denied, if it is.
fn refusal<'a>(decision: &'a Decision, sheet: &'a Sheet<'_>) -> Option<RefusalKind<'a>> {
    let reason = decision.reason()?;
    if let Some(fault) = decision.fault() {
        return Some(RefusalKind::Fault(fault));
    }
    if let Some(block) = decision.block() {
        return Some(RefusalKind::Blocked(block));
    }
    if reason == Reason::Forbidden {
        let limit = decision.cause().map_or("", |status| status.limit.name());
        return Some(RefusalKind::Forbidden { limit });
    }
    if reason == Reason::Penalty {
        return Some(RefusalKind::Penalty);
    }
    if reason == Reason::Unavailable {
        return Some(RefusalKind::Unavailable);
    }
    // Among several limits that can never admit it, the smallest decides what would pass.
    let too_small = sheet
        .refusing()
        .filter(|reading| reading.status.outcome.verdict == Verdict::Never)
        .min_by_key(|reading| reading.quota);
    Some(too_small.map_or(RefusalKind::Quota, |reading| RefusalKind::TooCostly {
        limit: reading.is_owned().then_some(&*reading.name),
        unit: reading.unit,
        capacity: reading.quota,
    }))
}

fn headers(sheet: &Sheet<'_>, policy: &HeaderPolicy) -> HeaderList {
    let mut headers = HeaderList::default();
    if !sheet.allowed {
        headers.text("Cache-Control", "no-store");
    }
    if let Some(retry) = sheet.retry {
        headers.number("Retry-After", retry.seconds);
    }
    if sheet.disclosed {
        for dialect in policy.dialects.iter() {
            speak(dialect, &mut headers, sheet);
        }
    }
    headers
}

fn speak(dialect: Dialect, headers: &mut HeaderList, sheet: &Sheet<'_>) {
    match dialect {
        Dialect::Ietf11 => ietf::write_11(headers, sheet),
        Dialect::IetfNext => ietf::write_next(headers, sheet),
        Dialect::Ietf07 => ietf::write_07(headers, sheet),
        Dialect::Ietf06 => ietf::write_06(headers, sheet),
        Dialect::XRateLimit => vendor::write_x_ratelimit(headers, sheet),
        Dialect::XRateLimitDelta => vendor::write_x_ratelimit_delta(headers, sheet),
        Dialect::Discord => vendor::write_discord(headers, sheet),
        Dialect::Stripe => vendor::write_stripe(headers, sheet),
        Dialect::OpenAi => vendor::write_openai(headers, sheet),
        Dialect::Anthropic => vendor::write_anthropic(headers, sheet),
        Dialect::Silent => {}
    }
}
