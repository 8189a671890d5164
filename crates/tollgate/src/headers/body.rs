//! What a refusal says in its body: problem details (RFC 9457), the same in plain text, or Discord's object.

use serde::Serialize;

use crate::decision::Fault;
use crate::engine::Block;
use crate::overload;

use super::dialect::{Dialect, Dialects};
use super::jitter::Retry;
use super::list::push;
use super::policy::{Accepts, DenialStatus, Unit};
use super::reading::Reading;
use super::sheet::Sheet;
use super::vendor::{discord_scope, push_decimal};

/// Longest explanation in a body, in characters. It may quote what the request said.
const DETAIL_CHARS_MAX: usize = 1_024;

/// The body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// The body itself.
    pub text: String,
}

/// Why a request is refused, as its status and its problem type tell.
#[derive(Debug)]
pub(super) enum Refusal<'a> {
    /// Quotas are used up; waiting cures it.
    Quota,
    /// Nobody could count; waiting may cure it.
    Unavailable,
    /// The cost is more than a limit ever admits.
    TooCostly {
        /// Which limit.
        limit: &'a str,
        /// What it counts.
        unit: Unit,
        /// The most that it admits.
        capacity: u64,
    },
    /// The request itself is at fault.
    Fault(&'a Fault),
    /// An operator lets it not pass for a while; waiting cures it.
    Blocked(&'a Block),
}

impl Refusal<'_> {
    /// The status to answer with.
    pub(super) fn status(&self, denial: DenialStatus) -> u16 {
        match self {
            Refusal::Quota | Refusal::Blocked(_) => denial.code(),
            Refusal::Unavailable => 503,
            Refusal::TooCostly { unit: Unit::Bytes, .. } => 413,
            Refusal::TooCostly { .. } | Refusal::Fault(_) => 400,
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Refusal::Quota => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Refusal::Unavailable => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Refusal::Blocked(_) => "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
            Refusal::TooCostly { .. } => "urn:tollgate:problem:cost-exceeds-capacity",
            Refusal::Fault(Fault::Cost { .. }) => "urn:tollgate:problem:cost-not-computable",
            Refusal::Fault(Fault::TooManyLimits) => "urn:tollgate:problem:too-many-limits",
            Refusal::Fault(Fault::TooManyViews) => "urn:tollgate:problem:too-many-views",
        }
    }

    const fn title(&self) -> &'static str {
        match self {
            Refusal::Quota => "Request cannot be satisfied as assigned quota has been exceeded",
            Refusal::Unavailable => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
            Refusal::Blocked(_) => "Request cannot be satisfied as its sender is blocked for a while",
            Refusal::TooCostly { .. } => "Request costs more than can ever be admitted at once",
            Refusal::Fault(Fault::Cost { .. }) => "Request does not tell what it costs",
            Refusal::Fault(Fault::TooManyLimits) => "Request matches too many limits",
            Refusal::Fault(Fault::TooManyViews) => "Request has too many views",
        }
    }

    fn detail(&self, sheet: &Sheet<'_>) -> String {
        let mut detail = String::new();
        match self {
            Refusal::Quota => {
                for reading in sheet.violated() {
                    if !detail.is_empty() {
                        detail.push_str("; ");
                    }
                    push_quota(&mut detail, reading);
                }
            }
            Refusal::Unavailable => {
                for reading in sheet.violated() {
                    if !detail.is_empty() {
                        detail.push_str("; ");
                    }
                    push(&mut detail, format_args!("{}: cannot be counted now", reading.name));
                }
            }
            Refusal::Blocked(block) => push(&mut detail, format_args!("{block}")),
            Refusal::TooCostly { limit, capacity, .. } => {
                push(&mut detail, format_args!("{limit}: at most {capacity} at once"));
            }
            // The limit is not named: it may be one in shadow.
            Refusal::Fault(Fault::Cost { reason, .. }) => detail.push_str(reason),
            Refusal::Fault(fault @ (Fault::TooManyLimits | Fault::TooManyViews)) => {
                push(&mut detail, format_args!("{fault}"));
            }
        }
        if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX) {
            detail.truncate(end);
        }
        detail
    }
}

/// Writes the body of a refusal in the form that the caller can read.
pub(super) fn write(
    refusal: &Refusal<'_>,
    status: u16,
    sheet: &Sheet<'_>,
    dialects: Dialects,
    accepts: Accepts,
) -> Body {
    match accepts {
        Accepts::Text => text(refusal, sheet),
        Accepts::Json if dialects.contains(Dialect::Discord) && matches!(refusal, Refusal::Quota) => {
            discord(sheet).unwrap_or_else(|| problem(refusal, status, sheet))
        }
        Accepts::Json => problem(refusal, status, sheet),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    retryable: bool,
}

/// Problem details. Where quotas may not be told, all refusals of one kind have the same body: names, numbers and exact
/// waits would tell strangers which tenants exist and how busy they are.
fn problem(refusal: &Refusal<'_>, status: u16, sheet: &Sheet<'_>) -> Body {
    let retry = sheet.retry.filter(|_| sheet.disclosed);
    let max_cost = match refusal {
        Refusal::TooCostly { capacity, .. } if sheet.disclosed => Some(*capacity),
        _ => None,
    };
    let problem = Problem {
        r#type: refusal.kind(),
        title: refusal.title(),
        status,
        detail: sheet.disclosed.then(|| refusal.detail(sheet)),
        violated_policies: sheet
            .violated()
            .filter(|_| sheet.disclosed)
            .map(|reading| &*reading.name)
            .collect(),
        max_cost,
        retry_after_ms: retry.map(|retry| retry.wait.ceil_millis()),
        reason: match refusal {
            Refusal::Unavailable => Some("limiter-unavailable"),
            Refusal::Blocked(_) if sheet.disclosed => Some(Block::NAME),
            _ => None,
        },
        retryable: matches!(refusal, Refusal::Quota | Refusal::Unavailable | Refusal::Blocked(_)),
    };
    Body {
        content_type: "application/problem+json",
        // Plain fields and strings always serialise; an empty body is still a valid answer.
        text: serde_json::to_string(&problem).unwrap_or_default(),
    }
}

/// The body of an answer to whom there is no capacity for. The cause is told to everybody, as a word of a closed list; the controller and
/// the priority only where quotas are.
pub(super) fn overload(
    refusal: &overload::Refusal,
    status: u16,
    retry: Retry,
    disclosed: bool,
    accepts: Accepts,
) -> Body {
    let (kind, title) = (Refusal::Unavailable.kind(), Refusal::Unavailable.title());
    let detail = disclosed.then(|| format!("{}: {}", refusal.controller(), refusal.priority));
    if accepts == Accepts::Text {
        let mut text = format!("{title}.\n");
        if let Some(detail) = detail {
            push(&mut text, format_args!("{detail}\n"));
        }
        push(&mut text, format_args!("Retry after {} s.\n", retry.seconds));
        return Body { content_type: "text/plain; charset=utf-8", text };
    }
    let problem = Problem {
        r#type: kind,
        title,
        status,
        detail,
        violated_policies: disclosed.then(|| refusal.controller().as_str()).into_iter().collect(),
        max_cost: None,
        retry_after_ms: disclosed.then_some(retry.millis),
        reason: Some(refusal.cause.as_str()),
        retryable: true,
    };
    Body {
        content_type: "application/problem+json",
        // Plain fields and strings always serialise; an empty body is still a valid answer.
        text: serde_json::to_string(&problem).unwrap_or_default(),
    }
}

fn text(refusal: &Refusal<'_>, sheet: &Sheet<'_>) -> Body {
    let mut text = format!("{}.\n", refusal.title());
    if sheet.disclosed {
        push(&mut text, format_args!("{}\n", refusal.detail(sheet)));
    }
    if let Some(retry) = sheet.retry {
        push(&mut text, format_args!("Retry after {} s.\n", retry.seconds));
    }
    Body { content_type: "text/plain; charset=utf-8", text }
}

/// Discord's object, which has no form for anything but a wait.
fn discord(sheet: &Sheet<'_>) -> Option<Body> {
    let retry = sheet.retry?;
    let global =
        sheet.disclosed && sheet.tightest().is_some_and(|reading| discord_scope(reading) == "global");
    let mut text = String::from(r#"{"message":"You are being rate limited.","retry_after":"#);
    push_decimal(&mut text, retry.millis);
    push(&mut text, format_args!(r#","global":{global}}}"#));
    Some(Body { content_type: "application/json", text })
}

fn push_quota(detail: &mut String, reading: &Reading<'_>) {
    push(detail, format_args!("{}: {}", reading.name, reading.quota));
    detail.push_str(match reading.unit {
        Unit::Requests => "",
        Unit::Bytes => " bytes",
        Unit::Tokens => " tokens",
    });
    match reading.window {
        Some(seconds) => push(detail, format_args!(" per {seconds} s")),
        None => detail.push_str(" at once"),
    }
}
