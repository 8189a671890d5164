//! The body of a refusal: problem details (RFC 9457), the same in plain text, or Discord's object.

use std::borrow::Cow;

use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::decision::{Block, Decision, Reason};
use crate::outcome::Source;
use crate::policy::Fault;
use crate::quota::Quota;

use super::dialect::{Dialect, Dialects};
use super::jitter::Retry;
use super::list::push;
use super::policy::{Accepts, DenialStatus, Exposure, Unit};
use super::reading::LimitReading;
use super::sheet::Sheet;
use super::vendor::{discord_scope, push_decimal};

/// Longest explanation in a body, in characters. It may quote the request.
const DETAIL_CHARS_MAX: usize = 1_024;
/// The constant body of an exhausted quota for callers that may not see quotas. It equals what would be written.
const STRANGER_DENIED: &str = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"retryable":true}"#;
/// Initial capacity for a usual problem.
const PROBLEM_BYTES: usize = 512;

/// The body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// The body itself.
    pub text: Cow<'static, str>,
}

/// Why a request is refused, as its status and its problem type show it.
#[derive(Debug)]
pub(super) enum RefusalKind<'a> {
    /// Quotas are exhausted; waiting cures it.
    Quota,
    /// The limit could not be counted; waiting may cure it.
    Unavailable,
    /// The cost is more than a limit ever admits.
    TooCostly {
        /// The name of the limit, if it belongs to the caller.
        limit: Option<&'a str>,
        /// The unit that it counts.
        unit: Unit,
        /// The most that it admits.
        capacity: u64,
    },
    /// The request itself is at fault.
    Fault(&'a Fault),
    /// Limits block its sender for a while, because they denied it too often; waiting cures it.
    Penalty,
    /// The policy denies it; waiting does not cure it.
    Forbidden {
        /// The limit that denies it.
        limit: &'a str,
    },
    /// An operator blocks it for a while; waiting cures it.
    Blocked(&'a Block),
}

impl RefusalKind<'_> {
    /// The status to answer with.
    pub(super) fn status(&self, denial: DenialStatus) -> u16 {
        match self {
            RefusalKind::Quota | RefusalKind::Blocked(_) | RefusalKind::Penalty => denial.code(),
            RefusalKind::Forbidden { .. } => 403,
            RefusalKind::Unavailable => 503,
            RefusalKind::TooCostly { unit: Unit::Bytes, .. } => 413,
            RefusalKind::TooCostly { .. } | RefusalKind::Fault(_) => 400,
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            RefusalKind::Quota => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            RefusalKind::Unavailable => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            RefusalKind::Forbidden { .. } => "urn:tollgate:problem:denied-by-policy",
            RefusalKind::Blocked(_) | RefusalKind::Penalty => {
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
            }
            RefusalKind::TooCostly { .. } => "urn:tollgate:problem:cost-exceeds-capacity",
            RefusalKind::Fault(Fault::Cost { .. }) => "urn:tollgate:problem:cost-not-computable",
            RefusalKind::Fault(Fault::TooManyLimits) => "urn:tollgate:problem:too-many-limits",
            RefusalKind::Fault(Fault::TooManyDescriptors) => "urn:tollgate:problem:too-many-descriptors",
        }
    }

    const fn title(&self) -> &'static str {
        match self {
            RefusalKind::Quota => "Request cannot be satisfied as assigned quota has been exceeded",
            RefusalKind::Unavailable => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
            RefusalKind::Forbidden { .. } => "Request is denied by policy",
            RefusalKind::Blocked(_) | RefusalKind::Penalty => {
                "Request cannot be satisfied as its sender is blocked for a while"
            }
            RefusalKind::TooCostly { .. } => "Request costs more than can ever be admitted at once",
            RefusalKind::Fault(Fault::Cost { .. }) => "Request does not say what it costs",
            RefusalKind::Fault(Fault::TooManyLimits) => "Request matches too many limits",
            RefusalKind::Fault(Fault::TooManyDescriptors) => "Request has too many descriptors",
        }
    }

    /// Whether the caller sees more than that it is refused and when to retry: where quotas may be disclosed, and the
    /// cause is one of its own limits, an operator or the request itself.
    fn is_disclosed(&self, sheet: &Sheet<'_>) -> bool {
        let is_callers = match self {
            RefusalKind::Quota | RefusalKind::Unavailable | RefusalKind::Penalty => {
                sheet.violated().next().is_some()
            }
            RefusalKind::TooCostly { limit, .. } => limit.is_some(),
            // A limit that says `deny` counts nothing, so its name discloses nothing about other callers.
            RefusalKind::Forbidden { .. } | RefusalKind::Fault(_) | RefusalKind::Blocked(_) => true,
        };
        sheet.disclosed && is_callers
    }

    /// The name of the refusing limit, as far as callers may know it.
    fn cause<'s>(&'s self, sheet: &'s Sheet<'_>) -> Option<&'s str> {
        match self {
            RefusalKind::Quota | RefusalKind::Unavailable | RefusalKind::Penalty => {
                sheet.violated().next().map(|reading| &*reading.name)
            }
            RefusalKind::TooCostly { limit, .. } => *limit,
            RefusalKind::Forbidden { limit } => Some(limit),
            // The limit is not named: it may be one in shadow.
            RefusalKind::Fault(_) => Some(Decision::REQUEST),
            RefusalKind::Blocked(_) => Some(Block::NAME),
        }
    }

    /// Why the request was refused, as far as callers may know it: in the words of every other protocol.
    fn reason(&self, sheet: &Sheet<'_>) -> Option<Cow<'static, str>> {
        let word = match self {
            // The type says as much to every caller.
            RefusalKind::Unavailable => return Reason::Unavailable.word().map(Cow::Borrowed),
            RefusalKind::Forbidden { .. } => return Reason::Forbidden.word().map(Cow::Borrowed),
            _ if !self.is_disclosed(sheet) => return None,
            RefusalKind::Blocked(_) => Reason::Blocked.word(),
            RefusalKind::Penalty => Reason::Penalty.word(),
            RefusalKind::Fault(_) => return Some(Cow::Owned(self.detail(sheet))),
            RefusalKind::Quota | RefusalKind::TooCostly { .. } => None,
        };
        let is_cause = |reading: &&LimitReading<'_>| self.cause(sheet) == Some(&*reading.name);
        let admits = || sheet.violated().find(is_cause).map(|reading| Cow::Owned(reading.status.admits()));
        word.map(Cow::Borrowed).or_else(admits)
    }

    fn detail(&self, sheet: &Sheet<'_>) -> String {
        let mut detail = String::new();
        match self {
            RefusalKind::Quota => {
                for reading in sheet.violated() {
                    if !detail.is_empty() {
                        detail.push_str("; ");
                    }
                    push_quota(&mut detail, reading);
                }
            }
            RefusalKind::Unavailable => {
                for reading in sheet.violated() {
                    if !detail.is_empty() {
                        detail.push_str("; ");
                    }
                    push(&mut detail, format_args!("{}: cannot be counted now", reading.name));
                }
            }
            RefusalKind::Penalty => {
                for reading in sheet.violated() {
                    push_penalty(&mut detail, reading);
                }
            }
            RefusalKind::Forbidden { limit } => push(&mut detail, format_args!("{limit}: deny")),
            RefusalKind::Blocked(block) => push(&mut detail, format_args!("{block}")),
            RefusalKind::TooCostly { limit: Some(limit), capacity, .. } => {
                push(&mut detail, format_args!("{limit}: at most {capacity} at once"));
            }
            RefusalKind::TooCostly { limit: None, .. } => {}
            // Again without the limit's name.
            RefusalKind::Fault(Fault::Cost { reason, .. }) => detail.push_str(reason),
            RefusalKind::Fault(fault @ (Fault::TooManyLimits | Fault::TooManyDescriptors)) => {
                push(&mut detail, format_args!("{fault}"));
            }
        }
        if detail.len() > DETAIL_CHARS_MAX
            && let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX)
        {
            detail.truncate(end);
        }
        detail
    }
}

/// Writes the body of a refusal in the form that the caller can read.
pub(super) fn write(
    refusal: &RefusalKind<'_>,
    status: u16,
    sheet: &Sheet<'_>,
    dialects: Dialects,
    accepts: Accepts,
) -> Body {
    match accepts {
        Accepts::Text => text(refusal, sheet),
        Accepts::Json if dialects.contains(Dialect::Discord) && matches!(refusal, RefusalKind::Quota) => {
            discord(sheet).unwrap_or_else(|| problem(refusal, status, sheet))
        }
        Accepts::Json => problem(refusal, status, sheet),
    }
}

/// Problem details. Where quotas may not be disclosed, all refusals of one kind have the same body: names, numbers and
/// exact waits would show strangers which tenants exist and how busy they are.
fn problem(refusal: &RefusalKind<'_>, status: u16, sheet: &Sheet<'_>) -> Body {
    let text = match refusal {
        RefusalKind::Quota if !refusal.is_disclosed(sheet) && status == 429 => Cow::Borrowed(STRANGER_DENIED),
        _ => Cow::Owned(written(refusal, status, sheet)),
    };
    Body { content_type: "application/problem+json", text }
}

fn written(refusal: &RefusalKind<'_>, status: u16, sheet: &Sheet<'_>) -> String {
    let mut out = String::with_capacity(PROBLEM_BYTES);
    for (key, constant) in [("{\"type\":\"", refusal.kind()), ("\",\"title\":\"", refusal.title())] {
        out.push_str(key);
        out.push_str(constant); // Nothing in it needs an escape.
    }
    out.push_str("\",\"status\":");
    push_integer(&mut out, status.into());
    if refusal.is_disclosed(sheet) {
        push_disclosed(&mut out, refusal, sheet);
    }
    if let Some(reason) = refusal.reason(sheet) {
        out.push_str(",\"reason\":");
        push_json(&mut out, &reason);
    }
    let is_retryable = matches!(
        refusal,
        RefusalKind::Quota | RefusalKind::Unavailable | RefusalKind::Blocked(_) | RefusalKind::Penalty
    );
    out.push_str(if is_retryable { ",\"retryable\":true}" } else { ",\"retryable\":false}" });
    out
}

/// The part that only callers see which may see quotas.
fn push_disclosed(out: &mut String, refusal: &RefusalKind<'_>, sheet: &Sheet<'_>) {
    out.push_str(",\"detail\":");
    push_json(out, &refusal.detail(sheet));
    if let Some(cause) = refusal.cause(sheet) {
        out.push_str(",\"cause\":");
        push_json(out, cause);
    }
    let mut separator = ",\"violated-policies\":[";
    let forbidding = match refusal {
        RefusalKind::Forbidden { limit } => Some(*limit),
        _ => None,
    };
    let violated = sheet.violated().map(|reading| &*reading.name);
    for name in forbidding.into_iter().chain(violated) {
        out.push_str(separator);
        push_json(out, name);
        separator = ",";
    }
    if separator == "," {
        out.push(']');
    }
    if let RefusalKind::TooCostly { capacity, .. } = refusal {
        out.push_str(",\"max-cost\":");
        push_integer(out, *capacity);
    }
    if let Some(retry) = sheet.retry {
        out.push_str(",\"retry-after-ms\":");
        push_integer(out, retry.wait.ceil_millis());
    }
}

/// Appends a whole number.
fn push_integer(out: &mut String, number: u64) {
    out.push_str(itoa::Buffer::new().format(number));
}

/// Appends text as JSON quotes it.
fn push_json(out: &mut String, text: &str) {
    out.push('"');
    let is_plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        out.push_str(text);
    } else {
        for character in text.chars() {
            match character {
                '"' | '\\' => out.extend(['\\', character]),
                '\u{8}' => out.push_str("\\b"),
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\u{c}' => out.push_str("\\f"),
                '\r' => out.push_str("\\r"),
                '\0'..' ' => push(out, format_args!("\\u{:04x}", u32::from(character))),
                _ => out.push(character),
            }
        }
    }
    out.push('"');
}

/// A refusal for lack of capacity, in words of closed lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    /// The controller that refused.
    pub controller: &'static str,
    /// The priority of the request.
    pub priority: &'static str,
    /// Why.
    pub cause: &'static str,
    /// The share of such requests that are refused now, in thousandths, if it is known; 0 if not. The higher it is, the
    /// longer is the `Retry-After`.
    pub pressure: u64,
}

/// The body for a request that is shed for lack of capacity. Every caller sees the cause, as a word of a closed list.
/// The controller and the priority are shown only where quotas are.
pub(super) fn overload(
    refusal: &Overload,
    status: u16,
    retry: Retry,
    exposure: Exposure,
    accepts: Accepts,
) -> Body {
    let (kind, title) = (RefusalKind::Unavailable.kind(), RefusalKind::Unavailable.title());
    let detail =
        (exposure == Exposure::Full).then(|| format!("{}: {}", refusal.controller, refusal.priority));
    if accepts == Accepts::Text {
        let mut text = format!("{title}.\n");
        if let Some(detail) = detail {
            push(&mut text, format_args!("{detail}\n"));
        }
        push(&mut text, format_args!("Retry after {} s.\n", retry.seconds));
        return Body { content_type: "text/plain; charset=utf-8", text: Cow::Owned(text) };
    }
    let mut out = String::with_capacity(PROBLEM_BYTES);
    push(&mut out, format_args!("{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{status}"));
    // Names of closed lists need no escapes.
    if let Some(detail) = detail {
        let (controller, millis) = (refusal.controller, retry.millis);
        push(
            &mut out,
            format_args!(
                ",\"detail\":\"{detail}\",\"violated-policies\":[\"{controller}\"],\"retry-after-ms\":{millis}"
            ),
        );
    }
    push(&mut out, format_args!(",\"reason\":\"{}\",\"retryable\":true}}", refusal.cause));
    Body { content_type: "application/problem+json", text: Cow::Owned(out) }
}

fn text(refusal: &RefusalKind<'_>, sheet: &Sheet<'_>) -> Body {
    let mut text = format!("{}.\n", refusal.title());
    if refusal.is_disclosed(sheet) {
        push(&mut text, format_args!("{}\n", refusal.detail(sheet)));
    }
    if let Some(retry) = sheet.retry {
        push(&mut text, format_args!("Retry after {} s.\n", retry.seconds));
    }
    Body { content_type: "text/plain; charset=utf-8", text: text.into() }
}

/// Discord's object, which has no form for anything but a wait.
fn discord(sheet: &Sheet<'_>) -> Option<Body> {
    let retry = sheet.retry?;
    let global =
        sheet.disclosed && sheet.tightest().is_some_and(|reading| discord_scope(reading) == "global");
    let mut text = String::from(r#"{"message":"You are being rate limited.","retry_after":"#);
    push_decimal(&mut text, retry.millis);
    push(&mut text, format_args!(r#","global":{global}}}"#));
    Some(Body { content_type: "application/json", text: text.into() })
}

/// Why a limit blocks its sender for a while; its quota where it only denied the request.
fn push_penalty(detail: &mut String, reading: &LimitReading<'_>) {
    if !detail.is_empty() {
        detail.push_str("; ");
    }
    match reading.status.limit.block_for().filter(|_| reading.status.source == Source::Penalty) {
        Some(penalty) => push(
            detail,
            format_args!(
                "{}: blocked for {} s after {} denials in {} s",
                reading.name,
                penalty.lasts().ceil_seconds(),
                penalty.after(),
                penalty.within().ceil_seconds()
            ),
        ),
        None => push_quota(detail, reading),
    }
}

fn push_quota(detail: &mut String, reading: &LimitReading<'_>) {
    push_amount(detail, reading);
    if reading.status.source == Source::Overflow {
        detail.push_str(", counted together with other new keys");
    }
}

fn push_amount(detail: &mut String, reading: &LimitReading<'_>) {
    detail.push_str(&reading.name);
    detail.push_str(": ");
    let unit = match reading.unit {
        Unit::Requests => "",
        Unit::Bytes => " bytes",
        Unit::Tokens => " tokens",
    };
    if let Quota::LeakyBucket(bucket) = reading.rule {
        return push_line(detail, bucket, unit);
    }
    if let Some((rate, burst)) = reading.burst() {
        push(detail, format_args!("{}{unit} per ", rate.units()));
        match rate.period().ceil_seconds() {
            1 => detail.push_str("second"),
            seconds => push(detail, format_args!("{seconds} s")),
        }
        return push(detail, format_args!(", burst {burst}"));
    }
    push_integer(detail, reading.quota);
    detail.push_str(unit);
    match reading.window {
        Some(seconds) => {
            detail.push_str(" per ");
            push_integer(detail, seconds);
            detail.push_str(" s");
        }
        None => detail.push_str(" at once"),
    }
}

/// A queue is described by its rate and its length: its capacity is neither.
fn push_line(detail: &mut String, bucket: &LeakyBucket, unit: &str) {
    let (rate, queue) = (bucket.rate(), bucket.queue());
    push(
        detail,
        format_args!("{}{unit} per {} s, evenly spaced", rate.units(), rate.period().ceil_seconds()),
    );
    let burst = bucket.capacity() - queue;
    if burst > 1 {
        push(detail, format_args!(" after {burst} at once"));
    }
    push(detail, format_args!(", at most {queue} waiting"));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{RefusalKind, STRANGER_DENIED, push_json, written};
    use crate::headers::policy::{Audience, HeaderPolicy};
    use crate::headers::sheet::Sheet;
    use crate::headers::tests::fixture;
    use crate::time::Timestamp;

    /// The constant body for strangers equals what would be written.
    #[test]
    fn the_constant_body_equals_the_written_one() {
        let (decision, policy) = (fixture::decision(&[]), HeaderPolicy::default());
        let sheet = Sheet::of(&decision, &policy, Audience::default(), Timestamp::default());
        assert_eq!(written(&RefusalKind::Quota, 429, &sheet), STRANGER_DENIED);
    }

    proptest! {
        /// Text is quoted as JSON requires, whatever is in it.
        #[test]
        fn text_is_quoted_as_json(text in "[\\x00-\\x7f]{0,40}|\\PC{0,40}") {
            let mut quoted = String::new();
            push_json(&mut quoted, &text);
            prop_assert_eq!(quoted, serde_json::to_string(&text).unwrap());
        }
    }
}
