//! Words and numbers of a suggestion.

use tollgate::time::WallOffset;
use tollgate::{Rate, Timestamp};
use tollgate_sim::suggest::{
    DAYS_FACTOR_MAX, Doubt, Frontier, HEADROOM_WHOLE, KEYS_MIN, KeyShare, MadeFor, PERIODS_MIN, Suggestion,
    UnlikeKeys, WantedShare,
};

use super::SEPARATOR;
use crate::cli::SuggestPeriod;
use crate::replay::many;
use crate::text::plain;
use crate::time_text::{people, rfc3339};

/// A rate as a policy writes it.
pub(super) fn rate_text(rate: Rate, period: SuggestPeriod) -> String {
    format!("{}/{}", rate.units(), period.name())
}

/// A suggested limit: `8/min, burst 5`.
pub(super) fn limit_text(suggestion: &Suggestion, period: SuggestPeriod) -> String {
    format!("{}, burst {}", rate_text(suggestion.rate, period), suggestion.burst)
}

/// The flag that asks for this share.
pub(super) fn untouched(share: KeyShare) -> String {
    format!("--untouched {}", share.to_string().replace(' ', ""))
}

/// The keys that a limit is made for.
pub(super) fn made_for(frontier: &Frontier, made_for: MadeFor) -> String {
    let others = frontier.others();
    match made_for {
        MadeFor::Share(share) => format!("{share} of the keys"),
        MadeFor::Others if KeyShare::USUAL.of(others) < others => {
            format!("{} of the other {others} keys", KeyShare::USUAL)
        }
        MadeFor::Others => format!("the other {others} keys"),
        MadeFor::All => "all keys".to_owned(),
    }
}

/// The names of the keys that are unlike the others, as many as are known.
pub(super) fn names(unlike: &UnlikeKeys) -> String {
    let more = if unlike.keys > unlike.names.len() as u64 { ", ..." } else { "" };
    let shown = |name: &String| plain(&values(name)).to_string();
    format!("{}{more}", unlike.names.iter().map(shown).collect::<Vec<String>>().join(", "))
}

/// The values of a key.
pub(super) fn values(name: &str) -> String {
    name.strip_suffix(SEPARATOR).unwrap_or(name).replace(SEPARATOR, " ")
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
        Doubt::FewKeys { keys, .. } if keys < KEYS_MIN => {
            let verb = if keys == 1 { "is" } else { "are" };
            format!("{} {verb} too few; at least {KEYS_MIN} are needed", many(keys, "key"))
        }
        Doubt::FewKeys { keys, share, needed } => format!(
            "{keys} keys are too few for {share} of them, which is all of them: at least {needed} are needed, or {}, \
             the finest share of which so many keys leave one out",
            untouched(WantedShare::Finest.of(keys))
        ),
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
