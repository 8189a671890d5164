//! Words and numbers of a suggestion.

use tollgate::time::WallOffset;
use tollgate::{Rate, Timestamp};
use tollgate_sim::suggest::{DAYS_FACTOR_MAX, Doubt, HEADROOM_WHOLE, KEYS_MIN, PERIODS_MIN};

use crate::cli::SuggestPeriod;
use crate::time_text::{people, rfc3339};

/// A rate as a policy writes it.
pub(super) fn rate_text(rate: Rate, period: SuggestPeriod) -> String {
    format!("{}/{}", rate.units(), period.name())
}

/// A head-room as it was typed.
pub(super) fn headroom(hundredths: u64) -> String {
    let (whole, part) = (hundredths / HEADROOM_WHOLE, hundredths % HEADROOM_WHOLE);
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:02}").trim_end_matches('0').to_owned() }
}

/// The day of an instant, in UTC.
pub(super) fn day(at: Timestamp) -> String {
    rfc3339(at, WallOffset::NONE).chars().take(10).collect()
}

/// Why a suggestion should not be trusted.
pub(super) fn warning(doubt: Doubt) -> String {
    match doubt {
        Doubt::FewKeys { keys } => format!("{keys} keys are too few; at least {KEYS_MIN} are needed"),
        Doubt::ShortLog { covered, period } => format!(
            "the log covers {}, which is less than {PERIODS_MIN} periods of {}: give a longer log, or a shorter --period",
            people(covered.ceil_millis()),
            people(period.ceil_millis())
        ),
        Doubt::DaysDiffer { least, most } => format!(
            "days differ by more than {DAYS_FACTOR_MAX} times: {} needed a burst of {}, {} one of {}",
            day(least.0),
            least.1,
            day(most.0),
            most.1
        ),
    }
}
