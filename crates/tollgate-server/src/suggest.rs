//! `tollgate suggest`: limits out of a log. It computes the exact frontier of rates and bursts that would have denied
//! nothing, chooses a point of it, and prints a policy, unless the log cannot carry one.

use std::path::PathBuf;

use tollgate::{Policy, Rate};
use tollgate_sim::replay::Report;
use tollgate_sim::suggest::{Frontier, MadeFor, Suggestion, TrafficSummary, WantedShare};

use crate::cli::{SuggestArguments, SuggestPeriod};
use crate::console::Console;
use crate::replay::{self, PageTitle, SuggestedLimit};
use crate::{FAILURE, SUCCESS, USAGE};

mod wording;
mod policy;
mod unlike;
mod report;
mod reading;

use report::{Drawing, LogNotes};
use wording::{limit_text, names, rate_text, warning};

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
    if arguments.by.is_empty() {
        let problem = reading::by_is_missing(arguments).unwrap_or_else(|problem| problem);
        return fail(&problem, console);
    }
    if arguments.html.is_some() && !are_readable_twice(&arguments.logs) {
        return fail(
            "--html reads the log twice, which standard input and pipes cannot be; give a file",
            console,
        );
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

/// Whether all logs can be read again. The reader finds those that do not exist.
fn are_readable_twice(logs: &[PathBuf]) -> bool {
    let is_stream = |log: &PathBuf| log.metadata().is_ok_and(|metadata| !metadata.is_file());
    !logs.iter().any(|log| log.as_os_str() == STANDARD_INPUT || is_stream(log))
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
    let policy = match suggestion.as_ref().filter(|suggestion| is_suggested(suggestion, arguments)) {
        Some(suggestion) => Some(policy::text(frontier, suggestion, arguments)?),
        None => None,
    };
    if let (Some(path), Some(text)) = (&arguments.write, &policy) {
        replay::save(path, &format!("{text}\n"))?;
    }
    let shown = shown(frontier, (suggestion.as_ref(), policy.as_deref()), arguments)?;
    let replayed = match &shown {
        Some(shown) => shown.replayed(arguments, console)?,
        None => None,
    };
    let answer = Answer {
        suggestion: suggestion.as_ref(),
        policy: policy.as_deref(),
        shown: shown.as_ref(),
        replayed: replayed.as_ref(),
    };
    let is_page_written = answer.write_page(frontier, arguments)?;
    if arguments.json {
        let suggested = (answer.suggestion, answer.policy, answer.replayed);
        console.line(report::json_of(frontier, suggested, notes, arguments));
    } else {
        show(frontier, &answer, notes, arguments, console);
    }
    for problem in refusals(frontier, suggestion.as_ref(), arguments) {
        console.warning(problem);
    }
    let files = [(&arguments.html, is_page_written), (&arguments.write, policy.is_some())];
    for (path, is_written) in files {
        if let Some(path) = path.as_ref().filter(|_| !is_written) {
            console.warning(format_args!("{} is not written", path.display()));
        }
    }
    Ok(if policy.is_some() { SUCCESS } else { FAILURE })
}

/// Whether a limit is suggested, for all doubts about it.
fn is_suggested(suggestion: &Suggestion, arguments: &SuggestArguments) -> bool {
    suggestion.doubts.is_empty() || arguments.anyway
}

/// The limit through which the log is replayed.
struct ShownLimit {
    suggestion: Suggestion,
    /// Its policy.
    text: String,
    /// Its name in the line that announces the page.
    name: &'static str,
}

/// All that is known of the limit to set.
#[derive(Clone, Copy)]
struct Answer<'a> {
    suggestion: Option<&'a Suggestion>,
    policy: Option<&'a str>,
    shown: Option<&'a ShownLimit>,
    replayed: Option<&'a Report>,
}

/// The suggested limit. Where a few keys prevent a suggestion, it is the limit of the others.
fn shown(
    frontier: &Frontier,
    (suggestion, policy): (Option<&Suggestion>, Option<&str>),
    arguments: &SuggestArguments,
) -> Result<Option<ShownLimit>, String> {
    if let Some((suggestion, text)) = suggestion.zip(policy) {
        let (suggestion, text) = (suggestion.clone(), text.to_owned());
        return Ok(Some(ShownLimit { suggestion, text, name: "this policy" }));
    }
    let Some(suggestion) = unlike::of_others(frontier, suggestion, arguments) else { return Ok(None) };
    let text = policy::text(frontier, &suggestion, arguments)?;
    Ok(Some(ShownLimit { suggestion, text, name: "the limit of the other keys" }))
}

impl ShownLimit {
    /// Replays the log through it, if there is a page to write, or keys would notice it that have to be named.
    fn replayed(
        &self,
        arguments: &SuggestArguments,
        console: &mut Console,
    ) -> Result<Option<Report>, String> {
        let is_noticed = self.suggestion.made_for == MadeFor::Others && are_readable_twice(&arguments.logs);
        if arguments.html.is_none() && !is_noticed {
            return Ok(None);
        }
        let compiled = Policy::compile(SUGGESTED, self.text.as_bytes());
        let policy = compiled.map_err(|findings| findings.to_string())?;
        let (config, columns) = (arguments.config.as_deref(), &arguments.columns);
        replay::report_of(policy, &arguments.logs, config, columns, console).map(Some)
    }
}

impl Answer<'_> {
    /// Writes the page of the limit, if one is wanted and there is a limit to show.
    fn write_page(&self, frontier: &Frontier, arguments: &SuggestArguments) -> Result<bool, String> {
        let Some(((path, shown), report)) = arguments.html.as_ref().zip(self.shown).zip(self.replayed) else {
            return Ok(false);
        };
        let mut remarks = refusals(frontier, self.suggestion, arguments);
        remarks.extend(unlike::remark(frontier, self.suggestion, arguments));
        let sentences = unlike::sentences(frontier, self.suggestion, arguments);
        if !sentences.is_empty() {
            remarks.extend([sentences.join(" "), unlike::second_choice(frontier, arguments)]);
        }
        let limit = limit_text(&shown.suggestion, arguments.period);
        let suggested = SuggestedLimit { limit, policy: &shown.text, remarks: &remarks };
        let title = PageTitle { policy: SUGGESTED, against: None, suggested: Some(suggested) };
        replay::save(path, &replay::page(report, &title))?;
        Ok(true)
    }
}

/// Prints the report, and the policy unless it was written to a file. The report stands in comments of the policy.
fn show(
    frontier: &Frontier,
    answer: &Answer<'_>,
    notes: &LogNotes,
    arguments: &SuggestArguments,
    console: &mut Console,
) {
    let drawing = if console.has_unicode() { Drawing::Blocks } else { Drawing::Ascii };
    let before = if arguments.write.is_some() { "" } else { "# " };
    let suggested = (answer.suggestion, answer.replayed);
    for line in report::lines(frontier, suggested, (notes, drawing), arguments) {
        console.line(format!("{before}{line}").trim_end());
    }
    match (&arguments.write, answer.policy) {
        (Some(path), Some(_)) => console.line(format_args!("{} written", path.display())),
        (None, Some(policy)) => console.line(format_args!("\n{policy}")),
        (_, None) => {}
    }
    if let (Some(path), Some(shown)) = (&arguments.html, answer.shown) {
        let (name, path) = (shown.name, path.display());
        console.line(format_args!("{before}the log through {name}, and who would notice: {path}"));
    }
}

/// Why nothing is suggested, or why the suggestion should not be trusted.
fn refusals(
    frontier: &Frontier,
    suggestion: Option<&Suggestion>,
    arguments: &SuggestArguments,
) -> Vec<String> {
    let begin = if arguments.anyway { "do not trust this" } else { "nothing is suggested" };
    // A few keys may be the cause of the doubts, if there is none about the limit of the others.
    let others = unlike::of_others(frontier, suggestion, arguments);
    match (suggestion, others.filter(|others| others.doubts.is_empty())) {
        (Some(Suggestion { doubts, .. }), _) if doubts.is_empty() => Vec::new(),
        (_, Some(others)) => vec![format!(
            "{begin}: {} of {} keys need far more than the others, and decide the limit ({}); without --untouched it is the \
             limit of the others: {}",
            frontier.unlike.keys,
            frontier.keys,
            names(&frontier.unlike),
            limit_text(&others, arguments.period)
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
