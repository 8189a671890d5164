//! The RateLimit fields of the IETF, in the shapes that its drafts gave them.

use super::list::{HeaderList, push, push_number};
use super::policy::Unit;
use super::reading::LimitReading;
use super::sheet::Sheet;
use super::structured::{is_key, push_list, push_parameter, push_string};
use crate::outcome::Verdict;

/// Drafts 08 to 11.
pub(super) fn write_11(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    write_policies(headers, sheet);
    headers.write("RateLimit", |out| {
        push_list(out, sheet.listed(), |out, reading| {
            push_string(out, &reading.name);
            push_parameter(out, ";r=", reading.remaining);
            if let Some(seconds) = reading.effective {
                push_parameter(out, ";t=", seconds);
            }
            push_vendor(out, reading);
        });
    });
}

/// The editors' branch: `r` is called `a`, `t` is called `w`, and the cost and the partition are included.
pub(super) fn write_next(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    write_policies(headers, sheet);
    headers.write("RateLimit", |out| {
        push_list(out, sheet.listed(), |out, reading| {
            push_string(out, &reading.name);
            push_parameter(out, ";a=", reading.remaining);
            if let Some(seconds) = reading.effective {
                push_parameter(out, ";w=", seconds);
            }
            if let Some(cost) = reading.cost(sheet.cost) {
                push_parameter(out, ";c=", cost);
            }
            push_vendor(out, reading);
        });
    });
    // Only the names of the dimensions, never a caller's values. If a name cannot be a parameter, the limit is left
    // out, because part of its dimensions would describe another partition.
    let partitioned = sheet.listed().filter(|reading| {
        let by = reading.status.limit.by();
        !by.is_empty() && by.iter().all(|dimension| is_key(dimension.name()))
    });
    headers.write("RateLimit-Partition", |out| {
        push_list(out, partitioned, |out, reading| {
            push_string(out, &reading.name);
            for dimension in reading.status.limit.by() {
                push(out, format_args!(";{}", dimension.name()));
            }
        });
    });
}

/// Draft 07: one dictionary for the tightest limit.
pub(super) fn write_07(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    write_unnamed_policies(headers, sheet);
    if let Some(reading) = sheet.tightest() {
        headers.write("RateLimit", |out| {
            out.push_str("limit=");
            push_number(out, reading.quota);
            out.push_str(", remaining=");
            push_number(out, reading.remaining);
            out.push_str(", reset=");
            push_number(out, reset(reading));
        });
    }
}

/// Draft 06: one field for each number of the tightest limit.
pub(super) fn write_06(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    if let Some(reading) = sheet.tightest() {
        headers.number("RateLimit-Limit", reading.quota);
        headers.number("RateLimit-Remaining", reading.remaining);
        headers.number("RateLimit-Reset", reset(reading));
    }
    write_unnamed_policies(headers, sheet);
}

/// The reset of the drafts that require one: the effective window; for an untouched limit the window over which to
/// spread it; for a concurrency limit, which has neither, the second after which to look again.
fn reset(reading: &LimitReading<'_>) -> u64 {
    reading.effective.or(reading.window).unwrap_or(1)
}

fn write_policies(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    headers.write("RateLimit-Policy", |out| {
        push_list(out, sheet.owned(), |out, reading| {
            push_string(out, &reading.name);
            push_parameter(out, ";q=", reading.quota);
            if let Some(unit) = quota_unit(reading) {
                out.push_str(";qu=");
                push_string(out, unit);
            }
            if let Some(seconds) = reading.window {
                push_parameter(out, ";w=", seconds);
            }
        });
    });
}

fn write_unnamed_policies(headers: &mut HeaderList, sheet: &Sheet<'_>) {
    headers.write("RateLimit-Policy", |out| {
        push_list(out, sheet.owned(), |out, reading| {
            push_number(out, reading.quota);
            if let Some(seconds) = reading.window {
                push_parameter(out, ";w=", seconds);
            }
        });
    });
}

/// The registered unit. Requests are the default and are omitted: the draft spells them in two ways.
fn quota_unit(reading: &LimitReading<'_>) -> Option<&'static str> {
    match reading.unit {
        _ if reading.is_concurrency() => Some("concurrent-requests"),
        Unit::Requests => None,
        Unit::Bytes => Some("content-bytes"),
        Unit::Tokens => Some("tollgate-tokens"),
    }
}

fn push_vendor(out: &mut String, reading: &LimitReading<'_>) {
    if let Verdict::Wait(wait) = reading.status.outcome.verdict {
        push_parameter(out, ";tollgate-wait=", wait.ceil_millis());
    }
    if reading.is_approximate() {
        out.push_str(";tollgate-approx");
    }
}
