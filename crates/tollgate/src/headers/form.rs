//! Answers of a policy of one limit, written ahead. A form is made of one answer; the next ones of its kind differ from that in a few numbers
//! only, and the form writes these as [`Answer::of`] does.

use std::sync::Arc;

use crate::decision::{Decision, LimitStatus, Source, Stance};
use crate::outcome::Verdict;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

use super::answer::Answer;
use super::dialect::Dialect;
use super::jitter;
use super::list::NUMBER_MAX;
use super::policy::{Disclosure, HeaderPolicy, Pacing};
use super::reading::effective;
use super::structured::{NAME_SHOWN_MAX, push_string, shown_name};

/// What stands before the only number of a body.
const BODY_NUMBER: &str = "\"retry-after-ms\":";
/// Room for the longest value that is written: a name in quotes with all of its letters escaped, and two numbers of 15 digits.
const LINE_BYTES: usize = 192;
const _: () = assert!(2 + 2 * NAME_SHOWN_MAX + 2 * (3 + 15) <= LINE_BYTES, "no value is ever cut");

/// The answers of one kind, admissions or denials, to whom quotas are told.
#[derive(Debug)]
pub struct Form {
    policy: Arc<Policy>,
    is_allowed: bool,
    pacing: Pacing,
    /// The start of `RateLimit`, the limit's name in quotes.
    line: Line,
    /// What each header is.
    fields: Vec<Field>,
    /// The body before its number and behind it; none of an answer without a body.
    body: Option<(String, String)>,
}

/// A value that differs from answer to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, of at most 15 digits.
    Number(u64),
    /// What [`Form::rate_limit`] writes.
    RateLimit,
}

/// What differs from answer to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// What is left.
    pub remaining: u64,
    /// The seconds beside it in `RateLimit`.
    pub effective: Option<u64>,
    quota: u64,
    retry_seconds: u64,
    retry_millis: u64,
    reset_after: Ticks,
    now: Timestamp,
}

/// A header, by what is written into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// The same in every answer.
    Constant,
    RetryAfter,
    RateLimit,
    Remaining,
    ResetAt,
    ResetAfter,
    Used,
}

impl Field {
    /// The header of this name, in dialects that [`is_plain`] says.
    fn of(name: &str, policy: &HeaderPolicy) -> Option<Self> {
        Some(match name {
            "Cache-Control" | "RateLimit-Policy" | "X-RateLimit-Limit" | "X-RateLimit-Resource" => {
                Field::Constant
            }
            "Retry-After" => Field::RetryAfter,
            "RateLimit" => Field::RateLimit,
            "X-RateLimit-Remaining" => Field::Remaining,
            "X-RateLimit-Reset" if policy.dialects.contains(Dialect::XRateLimit) => Field::ResetAt,
            "X-RateLimit-Reset" => Field::ResetAfter,
            "X-RateLimit-Used" => Field::Used,
            _ => return None,
        })
    }
}

/// Whether all answers of a kind have the same headers, and only such as are written here.
fn is_plain(policy: &HeaderPolicy) -> bool {
    let is_known = |dialect: Dialect| {
        matches!(dialect, Dialect::Ietf11 | Dialect::XRateLimit | Dialect::XRateLimitDelta)
    };
    policy.disclosure == Disclosure::Always && policy.dialects.iter().all(is_known)
}

/// Whether a limit counted, and admits or denies.
fn is_usual(status: &LimitStatus<'_>) -> bool {
    status.source == Source::Exact
        && status.stance == Stance::Enforced
        && matches!(status.outcome.verdict, Verdict::Allow | Verdict::Deny { .. })
}

impl Form {
    /// The form of an answer, which was the one to this decision at this time; none where its like may differ in more than numbers.
    #[must_use]
    pub fn of(decision: &Decision, answer: &Answer, policy: &HeaderPolicy, now: Timestamp) -> Option<Self> {
        let mut statuses = decision.limits();
        let (status, None) = (statuses.next()?, statuses.next()) else { return None };
        status.quota?.rate().filter(|_| is_plain(policy) && is_usual(&status))?;
        let names = answer.headers.iter().map(|(name, _)| name);
        let body = match &answer.body {
            None => None,
            Some(body) => Some(around_number(&body.text)?),
        };
        let (mut name, mut line) = (String::new(), Line::default());
        push_string(&mut name, &shown_name(status.limit.name()));
        line.push(name.as_bytes());
        line.push(b";r=");
        let form = Self {
            policy: Arc::clone(decision.policy()),
            is_allowed: status.outcome.is_allowed(),
            pacing: policy.pacing,
            line,
            fields: names.map(|name| Field::of(name, policy)).collect::<Option<_>>()?,
            body,
        };
        form.is_written(&status, answer, now).then_some(form)
    }

    /// Whether the answer to what the limit of a policy said is one of this form.
    #[must_use]
    #[inline]
    pub fn fits(&self, policy: &Arc<Policy>, status: &LimitStatus<'_>) -> bool {
        Arc::ptr_eq(&self.policy, policy)
            && is_usual(status)
            && self.is_allowed == status.outcome.is_allowed()
    }

    /// The numbers of the answer to what the limit said.
    #[must_use]
    #[inline]
    pub fn numbers(&self, status: &LimitStatus<'_>, now: Timestamp) -> Numbers {
        let (quota, outcome) = (status.quota.map_or(0, Quota::capacity), &status.outcome);
        let remaining = outcome.remaining.min(quota);
        let (retry_seconds, retry_millis) = match outcome.verdict.retry_after() {
            Some(wait) => {
                let rate = status.quota.and_then(Quota::rate);
                let period = rate.map_or(Ticks::ZERO, |rate| rate.period());
                (jitter::seconds_after(wait, period, status.key_hash, now), wait.ceil_millis())
            }
            None => (0, 0),
        };
        Numbers {
            remaining,
            effective: status.quota.and_then(|rule| effective(outcome, rule, remaining, self.pacing)),
            quota,
            retry_seconds,
            retry_millis,
            reset_after: outcome.reset_after,
            now,
        }
    }

    /// Writes the values that differ from answer to answer, each where its header is in the list.
    #[inline]
    pub fn values<T>(
        &self,
        numbers: &Numbers,
        slots: impl Iterator<Item = T>,
        mut put: impl FnMut(T, Value),
    ) {
        for (slot, field) in slots.zip(&self.fields) {
            let number = match field {
                Field::Constant => continue,
                Field::RateLimit => {
                    put(slot, Value::RateLimit);
                    continue;
                }
                Field::RetryAfter => numbers.retry_seconds,
                Field::Remaining => numbers.remaining,
                Field::ResetAt => (numbers.now + numbers.reset_after).ceil_unix_seconds(),
                Field::ResetAfter => numbers.reset_after.ceil_seconds(),
                Field::Used => numbers.quota - numbers.remaining,
            };
            put(slot, Value::Number(number.min(NUMBER_MAX)));
        }
    }

    /// The value of `RateLimit`, which is printable ASCII. It depends on what is left and the seconds beside it only.
    #[must_use]
    pub fn rate_limit(&self, numbers: &Numbers) -> Line {
        let mut line = self.line;
        line.number(numbers.remaining);
        if let Some(seconds) = numbers.effective {
            line.push(b";t=");
            line.number(seconds);
        }
        line
    }

    /// The body, if there is one.
    #[must_use]
    pub fn body(&self, numbers: &Numbers) -> Option<String> {
        let (before, behind) = self.body.as_ref()?;
        let mut digits = itoa::Buffer::new();
        let number = digits.format(numbers.retry_millis);
        let mut text = String::with_capacity(before.len() + number.len() + behind.len());
        text.push_str(before);
        text.push_str(number);
        text.push_str(behind);
        Some(text)
    }

    /// Which headers have a value that differs from answer to answer, in the order of the list.
    pub fn differing(&self) -> impl Iterator<Item = bool> {
        self.fields.iter().map(|field| *field != Field::Constant)
    }

    /// Whether the form writes the answer that it was made of.
    fn is_written(&self, status: &LimitStatus<'_>, answer: &Answer, now: Timestamp) -> bool {
        let mut values: Vec<String> = answer.headers.iter().map(|(_, value)| value.to_owned()).collect();
        let numbers = self.numbers(status, now);
        self.values(&numbers, values.iter_mut(), |slot, value| {
            *slot = match value {
                Value::Number(number) => number.to_string(),
                Value::RateLimit => {
                    String::from_utf8_lossy(self.rate_limit(&numbers).as_bytes()).into_owned()
                }
            };
        });
        let is_same = answer.headers.iter().zip(&values).all(|((_, value), written)| value == written);
        is_same && answer.body.as_ref().map(|body| &*body.text) == self.body(&numbers).as_deref()
    }
}

/// A body before its number and behind it.
fn around_number(text: &str) -> Option<(String, String)> {
    let start = text.rfind(BODY_NUMBER)? + BODY_NUMBER.len();
    let (before, rest) = text.split_at(start);
    let end = rest.find(|letter: char| !letter.is_ascii_digit())?;
    Some((before.to_owned(), rest[end..].to_owned()))
}

/// A value as it is written.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; LINE_BYTES], length: 0 }
    }
}

impl Line {
    #[inline]
    fn push(&mut self, text: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.length..self.length + text.len()) {
            place.copy_from_slice(text);
            self.length += text.len();
        }
    }

    #[inline]
    fn number(&mut self, value: u64) {
        self.push(itoa::Buffer::new().format(value.min(NUMBER_MAX)).as_bytes());
    }

    /// What is written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
