//! The suggested policy as a file.

use tollgate::Policy;
use tollgate_sim::suggest::{Frontier, Suggestion};

use super::SUGGESTED;
use super::wording::{day, headroom, rate_text, warning};
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
            "{} of them needed at most {} at once at {}; head-room {}.",
            suggestion.share,
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
