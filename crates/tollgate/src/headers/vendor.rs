//! The header families that vendors made common. All of them show the tightest limit only.

use crate::time::Ticks;

use super::list::{HeaderList, push};
use super::policy::Unit;
use super::reading::LimitReading;
use super::sheet::Sheet;
use super::structured::name_hash;

/// GitHub's `X-RateLimit-*`: the reset is the epoch second at which the counter is as if never used.
pub(super) fn write_x_ratelimit(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    if let Some(reading) = sheet.tightest() {
        let reset = sheet.now + reading.reset_after();
        write_x(headers, reading, reset.ceil_unix_seconds());
    }
}

/// Kong's `X-RateLimit-*`: the reset is a delay in seconds.
pub(super) fn write_x_ratelimit_delta(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    if let Some(reading) = sheet.tightest() {
        write_x(headers, reading, reading.reset_after().ceil_seconds());
    }
}

fn write_x(headers: &mut HeaderList, reading: &LimitReading<'_>, reset: u64) {
    headers.number("X-RateLimit-Limit", reading.quota);
    headers.number("X-RateLimit-Remaining", reading.remaining);
    headers.number("X-RateLimit-Reset", reset);
    headers.number("X-RateLimit-Used", reading.used());
    headers.text("X-RateLimit-Resource", &reading.name);
}

/// Discord's headers: seconds with three decimals, a name for the bucket, and on denials its scope.
pub(super) fn write_discord(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    if let Some(reading) = sheet.tightest() {
        write_discord_bucket(headers, sheet, reading);
    }
    // The scope of a limit discloses nothing else of it, so it is sent for the platform's limits, too.
    let refusing = sheet.most_urgent().filter(|reading| reading.is_known());
    if let (Some(reading), Some(_)) = (refusing, sheet.retry) {
        let scope = discord_scope(reading);
        headers.text("X-RateLimit-Scope", scope);
        if scope == "global" {
            headers.text("X-RateLimit-Global", "true");
        }
    }
}

fn write_discord_bucket(headers: &mut HeaderList, sheet: &Sheet<'_>, reading: &LimitReading<'_>) {
    headers.number("X-RateLimit-Limit", reading.quota);
    headers.number("X-RateLimit-Remaining", reading.remaining);
    let reset_at = (sheet.now + reading.reset_after()).unix_micros();
    headers.write("X-RateLimit-Reset", |out| {
        push_decimal(out, reset_at.div_ceil(1_000));
    });
    headers.write("X-RateLimit-Reset-After", |out| {
        push_decimal(out, reading.reset_after().ceil_millis());
    });
    headers.write("X-RateLimit-Bucket", |out| {
        push(out, format_args!("{:016x}", name_hash(&reading.name)));
    });
}

/// The scope of a limit in Discord's words: shared by all callers, the caller's for all requests, or the caller's for
/// some.
pub(super) fn discord_scope(reading: &LimitReading<'_>) -> &'static str {
    if reading.status.limit.by().is_empty() {
        "shared"
    } else if reading.status.limit.when.is_empty() {
        "global"
    } else {
        "user"
    }
}

/// Stripe's headers, which only refusals have.
pub(super) fn write_stripe(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    if sheet.allowed {
        return;
    }
    let refusing = sheet.most_urgent().filter(|reading| reading.is_known());
    if let (Some(reading), Some(_)) = (refusing, sheet.retry) {
        let everywhere = reading.status.limit.when.is_empty();
        let reason = match (everywhere, reading.is_concurrency()) {
            (true, false) => "global-rate",
            (true, true) => "global-concurrency",
            (false, false) => "endpoint-rate",
            (false, true) => "endpoint-concurrency",
        };
        headers.text("Stripe-Rate-Limited-Reason", reason);
    }
    headers.text("Stripe-Should-Retry", should_retry(sheet));
}

fn should_retry(sheet: &Sheet<'_>) -> &'static str {
    if sheet.retry.is_some() { "true" } else { "false" }
}

/// The three header names of one unit: limit, remaining, reset.
struct UnitNames(&'static str, &'static str, &'static str);

const OPENAI: [(Unit, UnitNames); 2] = [
    (
        Unit::Requests,
        UnitNames(
            "x-ratelimit-limit-requests",
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-requests",
        ),
    ),
    (
        Unit::Tokens,
        UnitNames("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ),
];

const ANTHROPIC: [(Unit, UnitNames); 2] = [
    (
        Unit::Requests,
        UnitNames(
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ),
    ),
    (
        Unit::Tokens,
        UnitNames(
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ),
    ),
];

/// OpenAI's headers: each unit apart, resets as Go writes durations.
pub(super) fn write_openai(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    for (unit, UnitNames(limit, remaining, reset)) in OPENAI {
        if let Some(reading) = sheet.tightest_of(unit) {
            headers.number(limit, reading.quota);
            headers.number(remaining, reading.remaining);
            headers.write(reset, |out| push_go_duration(out, reading.reset_after()));
        }
    }
    if let Some(retry) = sheet.retry {
        headers.number("retry-after-ms", retry.millis);
    }
    if !sheet.allowed {
        headers.text("x-should-retry", should_retry(sheet));
    }
}

/// Anthropic's headers: each unit apart, resets as instants.
pub(super) fn write_anthropic(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    for (unit, UnitNames(limit, remaining, reset)) in ANTHROPIC {
        if let Some(reading) = sheet.tightest_of(unit) {
            headers.number(limit, reading.quota);
            headers.number(remaining, reading.remaining);
            let reset_at = sheet.now + reading.reset_after();
            headers.write(reset, |out| push(out, format_args!("{}", reset_at.rfc3339())));
        }
    }
}

/// Appends milliseconds as seconds with three decimals.
pub(super) fn push_decimal(out: &mut String, millis: u64) {
    push(out, format_args!("{}.{:03}", millis / 1_000, millis % 1_000));
}

/// Appends a duration as Go prints it: `12ms`, `1.5s`, `6m0s`, `1h0m0s`.
fn push_go_duration(out: &mut String, duration: Ticks) {
    let millis = duration.ceil_millis();
    if millis > 0 && millis < 1_000 {
        return push(out, format_args!("{millis}ms"));
    }
    let (seconds, rest) = (millis / 1_000, millis % 1_000);
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    if hours > 0 {
        push(out, format_args!("{hours}h"));
    }
    if hours > 0 || minutes > 0 {
        push(out, format_args!("{minutes}m"));
    }
    push(out, format_args!("{}", seconds % 60));
    if rest > 0 {
        let decimals = format!("{rest:03}");
        push(out, format_args!(".{}", decimals.trim_end_matches('0')));
    }
    out.push('s');
}
