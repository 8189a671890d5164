//! `tollgate suggest`: limits out of a log. It computes the exact frontier of rates and bursts that would have denied
//! nothing, chooses a point of it, and prints a policy, unless the log cannot carry one.

use std::path::Path;

use tollgate::{Policy, Rate};
use tollgate_sim::suggest::{Frontier, LooserSuggestion, Suggestion, TrafficSummary, WantedShare};

use crate::cli::{SuggestArguments, SuggestPeriod};
use crate::console::Console;
use crate::replay::{self, PageTitle, SuggestedLimit};
use crate::{FAILURE, SUCCESS, USAGE};

mod wording;
mod policy;
mod report;
mod reading;

use report::{Drawing, LogNotes};
use wording::{limit_text, names, rate_text, untouched, warning};

/// The name of the policy in messages and in its report.
const SUGGESTED: &str = "the suggested policy";
/// Stands between the values of a key. No attribute has it by accident.
const SEPARATOR: char = '\u{1f}';
/// Standard input, which can be read only once.
const STANDARD_INPUT: &str = "-";

/// The rates that are tried, in units of the period.
const UNITS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];

/// Suggests, and returns whether a policy was suggested.
pub(crate) fn run(arguments: &SuggestArguments, console: &mut Console) -> u8 {
    if arguments.html.is_some() && arguments.logs.iter().any(|log| log.as_os_str() == STANDARD_INPUT) {
        return fail("--html reads the log twice, which standard input cannot be; give a file", console);
    }
    let rates = UNITS.map(|units| Rate::per_ticks(units, arguments.period.length()));
    let wanted = arguments.untouched.map_or(WantedShare::Finest, WantedShare::Exactly);
    let mut summary = TrafficSummary::new(rates.to_vec(), wanted);
    let read = reading::read(arguments, &mut summary, console);
    console.end_progress();
    let answered = read.and_then(|notes| {
        let frontier = summary.finish();
        replay::in_order(frontier.late, frontier.requests, frontier.window.ceil_millis())?;
        answer(&frontier, &notes, arguments, console)
    });
    answered.unwrap_or_else(|problem| fail(&problem, console))
}

fn fail(problem: &str, console: &mut Console) -> u8 {
    console.error(problem);
    USAGE
}

fn answer(
    frontier: &Frontier,
    notes: &LogNotes,
    arguments: &SuggestArguments,
    console: &mut Console,
) -> Result<u8, String> {
    let suggestion = frontier.suggest(arguments.headroom);
    let is_suggested = |suggestion: &&Suggestion| suggestion.doubts.is_empty() || arguments.anyway;
    let policy = match suggestion.as_ref().filter(is_suggested) {
        Some(suggestion) => Some(policy::text(frontier, suggestion, arguments)?),
        None => None,
    };
    if let (Some(path), Some(text)) = (&arguments.write, &policy) {
        replay::save(path, &format!("{text}\n"))?;
    }
    let page = match &arguments.html {
        Some(path) => {
            write_page(path, frontier, (suggestion.as_ref(), policy.as_deref()), arguments, console)?
        }
        None => None,
    };
    if arguments.json {
        let suggestion = suggestion.as_ref().map(|suggestion| (suggestion, policy.as_deref()));
        console.line(report::json_of(frontier, suggestion, notes, arguments));
    } else {
        show(frontier, (suggestion.as_ref(), policy.as_deref(), page.as_deref()), notes, arguments, console);
    }
    for problem in refusals(frontier, suggestion.as_ref(), arguments) {
        console.warning(problem);
    }
    let files = [(&arguments.html, page.is_some()), (&arguments.write, policy.is_some())];
    for (path, is_written) in files {
        if let Some(path) = path.as_ref().filter(|_| !is_written) {
            console.warning(format_args!("{} is not written", path.display()));
        }
    }
    Ok(if policy.is_some() { SUCCESS } else { FAILURE })
}

/// Writes the page of the suggested limit. Where a few keys prevent a suggestion, it is the page of the limit that leaves
/// them out. Returns what the page shows; `None` if there is no limit to show.
fn write_page(
    path: &Path,
    frontier: &Frontier,
    (suggestion, policy): (Option<&Suggestion>, Option<&str>),
    arguments: &SuggestArguments,
    console: &mut Console,
) -> Result<Option<String>, String> {
    let looser = frontier.suggest_looser(arguments.headroom).map(|looser| looser.suggestion);
    let (shown, text, what) = match (suggestion, policy, &looser) {
        (Some(suggestion), Some(text), _) => (suggestion, text.to_owned(), "this policy".to_owned()),
        (_, _, Some(looser)) => {
            let text = policy::text(frontier, looser, arguments)?;
            (looser, text, format!("the limit of {}", untouched(looser.share)))
        }
        _ => return Ok(None),
    };
    let compiled = Policy::compile(SUGGESTED, text.as_bytes()).map_err(|findings| findings.to_string())?;
    let mut remarks = refusals(frontier, suggestion, arguments);
    remarks.extend(report::looser(frontier, arguments));
    let suggested =
        SuggestedLimit { limit: limit_text(shown, arguments.period), policy: &text, remarks: &remarks };
    let title = PageTitle { policy: SUGGESTED, against: None, suggested: Some(suggested) };
    let (config, columns) = (arguments.config.as_deref(), &arguments.columns);
    let page = replay::page_of((compiled, &title), &arguments.logs, config, columns, console)?;
    replay::save(path, &page)?;
    Ok(Some(what))
}

/// Prints the report, and the policy unless it was written to a file. The report stands in comments of the policy.
fn show(
    frontier: &Frontier,
    (suggestion, policy, page): (Option<&Suggestion>, Option<&str>, Option<&str>),
    notes: &LogNotes,
    arguments: &SuggestArguments,
    console: &mut Console,
) {
    let drawing = if console.has_unicode() { Drawing::Blocks } else { Drawing::Ascii };
    let before = if arguments.write.is_some() { "" } else { "# " };
    for line in report::lines(frontier, suggestion, (notes, drawing), arguments) {
        console.line(format!("{before}{line}").trim_end());
    }
    match (&arguments.write, policy) {
        (Some(path), Some(_)) => console.line(format_args!("{} written", path.display())),
        (None, Some(policy)) => console.line(format_args!("\n{policy}")),
        (_, None) => {}
    }
    if let (Some(path), Some(page)) = (&arguments.html, page) {
        console
            .line(format_args!("{before}the log through {page}, and who would notice: {}", path.display()));
    }
}

/// Why nothing is suggested, or why the suggestion should not be trusted.
fn refusals(
    frontier: &Frontier,
    suggestion: Option<&Suggestion>,
    arguments: &SuggestArguments,
) -> Vec<String> {
    let begin = if arguments.anyway { "do not trust this" } else { "nothing is suggested" };
    // A few keys may be the cause of the doubts, if the share that leaves them out has none.
    let looser =
        frontier.suggest_looser(arguments.headroom).filter(|looser| looser.suggestion.doubts.is_empty());
    match (suggestion, looser) {
        (Some(Suggestion { doubts, .. }), _) if doubts.is_empty() => Vec::new(),
        (_, Some(LooserSuggestion { suggestion, outliers })) => vec![format!(
            "{begin}: {} of {} keys need far more than the others, and decide the limit ({}); {} leaves them out: {}",
            outliers.keys,
            frontier.keys,
            names(&outliers),
            untouched(suggestion.share),
            limit_text(&suggestion, arguments.period)
        )],
        (Some(Suggestion { doubts, .. }), None) => {
            let end = if arguments.anyway { "" } else { "; --anyway suggests a limit all the same" };
            doubts.iter().map(|doubt| format!("{begin}: {}{end}", warning(*doubt))).collect()
        }
        (None, None) => vec![no_rate(frontier, arguments.period)],
    }
}

/// Nothing is suggested, because no rate is large enough.
fn no_rate(frontier: &Frontier, period: SuggestPeriod) -> String {
    let most = frontier.points.last().map(|point| rate_text(point.rate, period)).unwrap_or_default();
    let cure = match period {
        SuggestPeriod::Second => "is one key not one client?",
        SuggestPeriod::Minute => "try --period s, or --period h for slow clients",
        SuggestPeriod::Hour => "try --period min, or --period day for slow clients",
        SuggestPeriod::Day => "try --period h",
    };
    format!("nothing is suggested: no rate up to {most} returns its burst within one period; {cure}")
}
