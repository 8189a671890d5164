//! `tollgate suggest`: limits out of a log. It computes the exact frontier of rates and bursts that would have denied
//! nothing, chooses a point of it, and prints a policy, unless the log cannot carry one.

use tollgate::{Policy, Rate};
use tollgate_sim::suggest::{Frontier, Suggestion, TrafficSummary};

use crate::cli::{SuggestArguments, SuggestPeriod};
use crate::console::Console;
use crate::replay::{self, PageTitle};
use crate::{FAILURE, SUCCESS, USAGE};

mod wording;
mod policy;
mod report;
mod reading;

use report::{Drawing, LogNotes};
use wording::{rate_text, warning};

/// The name of the policy in messages and in its report.
const SUGGESTED: &str = "the suggested policy";
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
    let mut summary = TrafficSummary::new(rates.to_vec(), arguments.untouched);
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
        std::fs::write(path, format!("{text}\n"))
            .map_err(|error| format!("{}: {error}; name a file that can be written", path.display()))?;
    }
    if let (Some(path), Some(text)) = (&arguments.html, &policy) {
        let compiled =
            Policy::compile(SUGGESTED, text.as_bytes()).map_err(|findings| findings.to_string())?;
        let (config, columns) = (arguments.config.as_deref(), &arguments.columns);
        let remark = report::looser(frontier, suggestion.as_ref(), arguments);
        let title = PageTitle { policy: SUGGESTED, against: None, remark: remark.as_deref() };
        let page = replay::page_of((compiled, &title), &arguments.logs, config, columns, console)?;
        replay::save(path, &page)?;
    }
    if arguments.json {
        let suggestion = suggestion.as_ref().map(|suggestion| (suggestion, policy.as_deref()));
        console.line(report::json_of(frontier, suggestion, notes, arguments));
    } else {
        show(frontier, (suggestion.as_ref(), policy.as_deref()), notes, arguments, console);
    }
    for problem in refusals(frontier, suggestion.as_ref(), arguments) {
        console.warning(problem);
    }
    Ok(if policy.is_some() { SUCCESS } else { FAILURE })
}

/// Prints the report, and the policy unless it was written to a file. The report stands in comments of the policy.
fn show(
    frontier: &Frontier,
    (suggestion, policy): (Option<&Suggestion>, Option<&str>),
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
    if let (Some(path), Some(_)) = (&arguments.html, policy) {
        console.line(format_args!(
            "{before}the log through this policy, and who would notice: {}",
            path.display()
        ));
    }
}

/// Why nothing is suggested, or why the suggestion should not be trusted.
fn refusals(
    frontier: &Frontier,
    suggestion: Option<&Suggestion>,
    arguments: &SuggestArguments,
) -> Vec<String> {
    let Some(suggestion) = suggestion else {
        let most = frontier.points.last().map(|point| rate_text(point.rate, arguments.period));
        let cure = match arguments.period {
            SuggestPeriod::Second => "is one key not one client?".to_owned(),
            SuggestPeriod::Minute => "try --period s, or --period h for slow clients".to_owned(),
            SuggestPeriod::Hour => "try --period min, or --period day for slow clients".to_owned(),
            SuggestPeriod::Day => "try --period h".to_owned(),
        };
        let most = most.unwrap_or_default();
        return vec![format!(
            "nothing is suggested: no rate up to {most} returns its burst within one period; {cure}"
        )];
    };
    let end = if arguments.anyway { "" } else { "; --anyway suggests a limit all the same" };
    let begin = if arguments.anyway { "do not trust this" } else { "nothing is suggested" };
    suggestion.doubts.iter().map(|doubt| format!("{begin}: {}{end}", warning(*doubt))).collect()
}
