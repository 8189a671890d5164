//! `lease`: a table of the share that a node may hold, and of the time.

use crate::policy::fields::Fields;
use crate::policy::finding::{Problem, Report, quoted};
use crate::policy::limit::Consistency;
use crate::rate_text;
use crate::store::{Lease, SHARE_MAX, TTL_MAX, TTL_MIN};
use crate::time::Ticks;

const EXAMPLE: &str = "a table such as {max_share: 5%, ttl: 250ms}";

/// Reads the bounds of the leases of a limit, or their defaults.
pub(super) fn read(fields: Fields<'_>, consistency: Consistency, report: &mut Report) -> Lease {
    let default = Lease { is_auto: consistency == Consistency::Auto, ..Lease::default() };
    let Some(node) = fields.get("lease") else { return default };
    if consistency == Consistency::Exact {
        let problem =
            Problem::new("an exact limit has no leases", "no such field, or consistency: leased or auto");
        report.error(fields.key_position("lease"), "lease", problem);
    }
    let Some(fields) = Fields::of(node, "lease", EXAMPLE, report) else { return default };
    let fields = fields.within("lease");
    fields.only(&["max_share", "ttl"], report);
    Lease {
        share: share(fields, report).unwrap_or(default.share),
        ttl: ttl(fields, report).unwrap_or(default.ttl),
        ..default
    }
}

/// A percentage, in millionths, with at most two decimals.
fn share(fields: Fields<'_>, report: &mut Report) -> Option<u32> {
    let accepted = "a percentage such as 5% or 0.5%, from 0.01% to 50%";
    let written = fields.text("max_share", accepted, report)?;
    let share = percentage(written.trim()).filter(|share| (1..=SHARE_MAX).contains(share));
    if share.is_none() {
        let message = format!("{} is not a share of a limit", quoted(written));
        report.error(fields.place("max_share"), &fields.path("max_share"), Problem::new(message, accepted));
    }
    share
}

/// A percentage in millionths.
#[must_use]
pub fn percentage(text: &str) -> Option<u32> {
    let (whole, fraction) = {
        let number = text.strip_suffix('%')?.trim_end();
        number.split_once('.').unwrap_or((number, ""))
    };
    let is_plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_plain(whole) || !is_plain(fraction) || fraction.len() > 2 {
        return None;
    }
    let hundredths: u32 = format!("{fraction:0<2}").parse().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(hundredths * 100)
}

fn ttl(fields: Fields<'_>, report: &mut Report) -> Option<Ticks> {
    let accepted = "a time such as 250ms, from 10ms to 60s";
    let written = fields.text("ttl", accepted, report)?;
    let problem = match rate_text::period(written.trim()).map(rate_text::Period::ticks) {
        Ok(ticks) if (TTL_MIN..=TTL_MAX).contains(&ticks) => return Some(ticks),
        Ok(_) => Problem::new(format!("{} is not how long units may be held", quoted(written)), accepted),
        Err(problem) => problem,
    };
    report.error(fields.place("ttl"), &fields.path("ttl"), problem);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read() {
        let read = ["5%", "0.5%", "0.01 %", "50%", "12.25%"].map(percentage);
        assert_eq!(read, [50_000, 5_000, 100, 500_000, 122_500].map(Some));
        assert!(
            ["5", "%", ".5%", "-1%", "1.234%", "1e1%", "99999999999%", "5 per cent"]
                .iter()
                .all(|text| percentage(text).is_none())
        );
    }
}
