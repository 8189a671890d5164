//! The suggested policy as a file.

use tollgate::Policy;
use tollgate_sim::suggest::{Frontier, MadeFor, Suggestion};

use super::SUGGESTED;
use super::wording::{day, headroom, made_for, rate_text, warning};
use crate::cli::SuggestArguments;
use crate::replay::many;

/// The text of the policy.
///
/// # Errors
/// When it does not compile, because an attribute has a name that no policy accepts.
pub(super) fn text(
    frontier: &Frontier,
    suggestion: &Suggestion,
    arguments: &SuggestArguments,
) -> Result<String, String> {
    let by = arguments.by.join(", ");
    let point = frontier.points.get(suggestion.index);
    let needed = point.map_or_else(String::new, |point| {
        format!(
            "{} needed at most {} at once at {}; head-room {}.",
            needed_by(frontier, suggestion.made_for),
            suggestion.needed,
            rate_text(point.rate, arguments.period),
            headroom(arguments.headroom)
        )
    });
    let mut lines = vec![
        "# Suggested by `tollgate suggest`. Try it first: add `mode: shadow`, which counts and never denies."
            .to_owned(),
        format!(
            "# From {} of {}, {} to {}.",
            many(frontier.requests, "request"),
            many(frontier.keys, "key"),
            day(frontier.span.0),
            day(frontier.span.1)
        ),
        format!("# {needed}"),
    ];
    let all = frontier.suggest_for(MadeFor::All, arguments.headroom);
    if let Some(all) = all.filter(|_| suggestion.made_for == MadeFor::Others) {
        let rate = rate_text(all.rate, arguments.period);
        lines.push(format!("# To leave these alone, too: rate: {rate}, burst: {}.", all.burst));
    }
    lines.extend(suggestion.doubts.iter().map(|doubt| format!("# WARNING: {}.", warning(*doubt))));
    lines.extend([
        "limits:".to_owned(),
        format!("  - name: per-{}", arguments.by.join("-").replace('_', "-")),
        format!("    by: [{by}]"),
        format!("    rate: {}", rate_text(suggestion.rate, arguments.period)),
        format!("    burst: {}", suggestion.burst),
    ]);
    let text = lines.join("\n");
    match Policy::compile(SUGGESTED, text.as_bytes()) {
        Ok(_) => Ok(text),
        Err(findings) => Err(findings.to_string()),
    }
}

/// The keys that the limit is made for, with those that are left out.
fn needed_by(frontier: &Frontier, keys: MadeFor) -> String {
    match keys {
        MadeFor::Share(share) => format!("{share} of them"),
        MadeFor::All => "All of them".to_owned(),
        MadeFor::Others => {
            let unlike = frontier.unlike.keys;
            let verb = if unlike == 1 { "is" } else { "are" };
            format!("{unlike} {verb} left out as unlike the others; {}", made_for(frontier, keys))
        }
    }
}
