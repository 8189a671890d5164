//! The frontier for people, as a table with a small picture, and as JSON.

use serde_json::{Value, json};
use tollgate::time::WallOffset;
use tollgate_sim::replay::Report;
use tollgate_sim::suggest::{
    BurstRange, Frontier, FrontierDay, FrontierPoint, MadeFor, Suggestion, WantedShare,
};

use super::unlike;
use super::wording::{day, headroom, made_for, rate_text, warning};
use crate::cli::SuggestArguments;
use crate::replay::many;
use crate::text::plain;
use crate::time_text::rfc3339;

/// The width of the longest bar.
const BAR: u64 = 40;
/// The most days that are listed. Of more, only the extremes are.
const DAYS_SHOWN: usize = 14;

/// Notes on keys left out of the frontier, and on its uncertainty.
#[derive(Clone, Debug, Default)]
pub(super) struct LogNotes {
    /// Where the requests came from, such as `access.log: nginx combined`.
    pub(super) sources: Vec<String>,
    /// Files that ended early, each with the reason.
    pub(super) damage: Vec<String>,
    /// Requests without the attribute that is counted by.
    pub(super) without_key: u64,
    /// Lines that no server takes for a request, and why it does not take the first.
    pub(super) undecidable: u64,
    pub(super) undecidable_example: Option<String>,
    /// Requests that the live system refused.
    pub(super) refused: u64,
}

/// How bars are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drawing {
    /// For a terminal.
    Blocks,
    /// For a file or a pipe.
    Ascii,
}

/// The report, line by line.
pub(super) fn lines(
    frontier: &Frontier,
    (suggestion, replayed): (Option<&Suggestion>, Option<&Report>),
    (notes, drawing): (&LogNotes, Drawing),
    arguments: &SuggestArguments,
) -> Vec<String> {
    let mut lines = notes.sources.clone();
    lines.extend(notes.damage.iter().map(|damage| format!("damaged: {damage}")));
    lines.push(format!(
        "{} of {} ({}), {} to {}",
        many(frontier.requests, "request"),
        many(frontier.keys, "key"),
        arguments.by.join(", "),
        rfc3339(frontier.span.0, WallOffset::NONE),
        rfc3339(frontier.span.1, WallOffset::NONE)
    ));
    if notes.without_key > 0 {
        lines.push(format!(
            "{} more have no {}, and are left out",
            notes.without_key,
            arguments.by.join(" or no ")
        ));
    }
    if notes.undecidable > 0 {
        let example = notes
            .undecidable_example
            .as_deref()
            .map_or_else(String::new, |example| format!(", such as {}", plain(example)));
        lines.push(format!(
            "{} more are no requests that a server accepts, and are left out{example}",
            notes.undecidable
        ));
    }
    if frontier.late > 0 {
        lines.push(format!("{} are later in the log than they came, and are counted late", frontier.late));
    }
    if notes.refused > 0 {
        lines.push(format!(
            "{} were refused by a limit that was there already: without it, their clients may have sent more",
            notes.refused
        ));
    }
    lines.push(String::new());
    let unlike = unlike::sentences(frontier, suggestion, arguments);
    if !unlike.is_empty() {
        lines.extend(unlike);
        lines.push(String::new());
    }
    lines.push(format!(
        "The smallest burst with which a rate denies no request of {}, and of all keys:",
        made_for(frontier, frontier.made_for())
    ));
    lines.extend(table(frontier, suggestion, drawing, arguments));
    lines.extend(default_share(frontier));
    if !frontier.width_max.is_zero() {
        lines.push(
            "The log stamps whole seconds. The first burst is for requests as far apart as their stamps allow, the \
             second for requests as close together; the second is used."
                .to_owned(),
        );
    }
    lines.push(String::new());
    lines.extend(suggestion.into_iter().flat_map(|suggestion| chosen(frontier, suggestion, arguments)));
    lines.extend(unlike::choices(frontier, (suggestion, replayed), arguments));
    lines
}

/// Which share was chosen, if the usual one is too fine for so few keys.
fn default_share(frontier: &Frontier) -> Option<String> {
    let usual = WantedShare::Finest.of(u64::MAX);
    let is_looser = frontier.wanted == WantedShare::Finest && frontier.share < usual;
    let is_looser = is_looser && frontier.unlike.keys == 0;
    (is_looser && frontier.share.of(frontier.keys) < frontier.keys).then(|| {
        format!(
            "{} is the finest share that {} carry: it leaves {} out. {usual} takes {} keys.",
            frontier.share,
            many(frontier.keys, "key"),
            frontier.keys - frontier.share.of(frontier.keys),
            usual.keys_for_one_more().unwrap_or_default()
        )
    })
}

fn table(
    frontier: &Frontier,
    suggestion: Option<&Suggestion>,
    drawing: Drawing,
    arguments: &SuggestArguments,
) -> Vec<String> {
    let mut lines = vec![format!("  {:>10} {:>15} {:>10}", "rate", "burst", "all keys")];
    let burst = |point: &FrontierPoint| match frontier.made_for() {
        MadeFor::Others => point.burst_of_others,
        MadeFor::Share(_) | MadeFor::All => point.burst,
    };
    let widest = frontier.points.iter().map(|point| magnitude(burst(point).most)).max().unwrap_or(1);
    for (index, point) in frontier.points.iter().enumerate() {
        let mark = if suggestion.is_some_and(|chosen| chosen.index == index) { "*" } else { " " };
        lines.push(format!(
            "{mark} {:>10} {:>15} {:>10}  {}",
            rate_text(point.rate, arguments.period),
            range(burst(point)),
            point.burst_of_all,
            bar(magnitude(burst(point).most), widest, drawing)
        ));
    }
    lines
}

fn range(burst: BurstRange) -> String {
    if burst.least == burst.most {
        burst.most.to_string()
    } else {
        format!("{} to {}", burst.least, burst.most)
    }
}

/// The logarithm of a burst, eight steps to a doubling.
fn magnitude(burst: u64) -> u64 {
    let Some(bits) = burst.checked_ilog2() else { return 0 };
    let above = u128::from(burst) - (1 << bits);
    u64::from(bits) * 8 + u64::try_from((above * 8) >> bits).unwrap_or_default() + 1
}

fn bar(length: u64, widest: u64, drawing: Drawing) -> String {
    let width = usize::try_from((length * BAR).div_ceil(widest.max(1))).unwrap_or_default();
    match drawing {
        Drawing::Blocks => "█",
        Drawing::Ascii => "#",
    }
    .repeat(width)
}

/// Which point was chosen, by which rule, and how far days differ.
fn chosen(frontier: &Frontier, suggestion: &Suggestion, arguments: &SuggestArguments) -> Vec<String> {
    let Some(point) = frontier.points.get(suggestion.index) else { return Vec::new() };
    vec![
        format!(
            "* {} is the smallest rate that returns its burst within one period. With head-room {}: {}, burst {}.",
            rate_text(point.rate, arguments.period),
            headroom(arguments.headroom),
            rate_text(suggestion.rate, arguments.period),
            suggestion.burst
        ),
        days(frontier, suggestion),
    ]
}

/// How far days differ. On a day, its keys count with their needs of that day. In the table each key of the log counts with
/// its highest need, so the numbers differ.
fn days(frontier: &Frontier, suggestion: &Suggestion) -> String {
    let days: Vec<(String, u64)> = frontier
        .bursts_of_days(suggestion.made_for, suggestion.index)
        .map(|(start, burst)| (day(start), burst))
        .collect();
    let shown = |(day, burst): &(String, u64)| format!("{burst} on {day}");
    let (Some(least), Some(most), 2..) =
        (days.iter().min_by_key(|(_, b)| b), days.iter().max_by_key(|(_, b)| b), days.len())
    else {
        return "One day cannot show how days differ: use a log of a week if you can.".to_owned();
    };
    let listed = if days.len() > DAYS_SHOWN {
        format!("of {} days from {} to {}", days.len(), shown(least), shown(most))
    } else {
        days.iter().map(shown).collect::<Vec<_>>().join(", ")
    };
    let whose = match suggestion.made_for {
        MadeFor::Others => format!("{} of the day's other keys", WantedShare::Finest.of(frontier.keys)),
        MadeFor::Share(_) | MadeFor::All => format!("{} of the day's keys", frontier.share),
    };
    let of_log = if most.1 == suggestion.needed {
        String::new()
    } else {
        format!(" In the whole log, where each key counts with its highest day, it is {}.", suggestion.needed)
    };
    format!("On each day, {whose} needed at most: {listed}.{of_log}")
}

/// The result as JSON.
pub(super) fn json_of(
    frontier: &Frontier,
    (suggestion, policy, replayed): (Option<&Suggestion>, Option<&str>, Option<&Report>),
    notes: &LogNotes,
    arguments: &SuggestArguments,
) -> Value {
    let point = |point: &FrontierPoint| {
        json!({
            "rate": rate_text(point.rate, arguments.period), "burst": point.burst.most,
            "burst_least": point.burst.least, "burst_of_all": point.burst_of_all,
            "burst_of_others": point.burst_of_others.most,
            "burst_of_others_least": point.burst_of_others.least,
        })
    };
    let of_day = |of_day: &FrontierDay| {
        json!({
            "day": day(of_day.start), "keys": of_day.keys, "is_compared": of_day.is_covered,
            "bursts": of_day.bursts, "bursts_of_others": of_day.bursts_of_others,
        })
    };
    json!({
        "by": arguments.by, "untouched": matches!(frontier.made_for(), MadeFor::Share(_)).then(|| frontier.share.to_string()),
        "untouched_is_default": frontier.wanted == WantedShare::Finest, "headroom": headroom(arguments.headroom),
        "requests": frontier.requests, "keys": frontier.keys, "requests_without_key": notes.without_key,
        "requests_undecidable": notes.undecidable, "requests_late": frontier.late,
        "requests_refused": notes.refused, "damage": notes.damage, "first": rfc3339(frontier.span.0, WallOffset::NONE),
        "last": rfc3339(frontier.span.1, WallOffset::NONE), "stamps_are_coarse": !frontier.width_max.is_zero(),
        "points": frontier.points.iter().map(point).collect::<Vec<Value>>(),
        "days": frontier.days.iter().map(of_day).collect::<Vec<Value>>(),
        "unlike": unlike::json_of(frontier, replayed, arguments),
        "suggestion": suggestion.map(|suggestion| json!({
            "rate": rate_text(suggestion.rate, arguments.period), "burst": suggestion.burst,
            "doubts": suggestion.doubts.iter().map(|doubt| warning(*doubt)).collect::<Vec<String>>(),
            "policy": policy,
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bars grow with the burst, and the longest has the full width.
    #[test]
    fn bars_grow() {
        let bursts = [0, 1, 2, 3, 7, 100, 5_000, u64::MAX];
        let magnitudes = bursts.map(magnitude);
        assert!(magnitudes.is_sorted_by(|one, other| one < other), "{magnitudes:?}");
        assert_eq!(bar(magnitude(5_000), magnitude(5_000), Drawing::Ascii), "#".repeat(40));
        assert_eq!(bar(0, 0, Drawing::Blocks), "");
    }
}
