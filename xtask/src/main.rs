//! The tasks of a developer of Tollgate, run as `cargo xtask TASK`.
//!
//! `test` makes every check that CI makes, in [mod@test]. `house` checks the shape of the source: [`source`] reads the
//! repository, each rule counts its findings, [`ceilings`] holds the most that each may count, and [`report`] prints.

mod collect;
mod source;
mod graph;
mod rules;
mod ceilings;
mod report;
mod test;

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use ceilings::Ceilings;
use report::{Outcome, closest};
use rules::{RULES, Rule};
use source::Repository;

const USAGE: &str = "\
Usage: cargo xtask house [RULE] [--json] [--tighten]

Counts what the rules find in the source and fails if a count is above its ceiling in xtask/house.toml.

  RULE       list every finding of this rule
  --json     print JSON
  --tighten  lower each ceiling to today's count

Usage: cargo xtask test [--long] [STEP...]

Makes every check that CI makes; `cargo xtask test --help` lists the steps.

Usage: cargo xtask package

Packages every crate that is published, and installs the program from the packages. The table is in target/test-logs.

Usage: cargo xtask semver [--baseline REV]

Compares the public API of the libraries with that of the newest release.
";

/// The request that the arguments make.
#[derive(Default)]
struct Arguments {
    rule: Option<&'static Rule>,
    json: bool,
    tighten: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some((task, rest)) = arguments.split_first()
        && ["test", "package"].contains(&task.as_str())
    {
        // `package` is a step of the long test that is useful alone.
        let steps = if task == "test" { rest } else { &arguments[..1] };
        return finish(test::run(steps).map(|status| (String::new(), status)));
    }
    if let Some((task, rest)) = arguments.split_first()
        && task == "semver"
    {
        return finish(test::semver(rest));
    }
    let wants_help = arguments.iter().any(|argument| ["help", "--help", "-h"].contains(&argument.as_str()));
    let result = match arguments.split_first() {
        Some((task, rest)) if task == "house" && !wants_help => {
            parse(rest).and_then(|arguments| house(&arguments))
        }
        Some((task, _)) if !wants_help => Err(format!("there is no task {task}\n\n{USAGE}")),
        _ => Ok((USAGE.to_owned(), 0)),
    };
    finish(result)
}

/// Prints the result of a task.
fn finish(result: Result<(String, u8), String>) -> ExitCode {
    // Where nothing can be printed, the status still says how it went.
    let status = match result {
        Ok((text, status)) => {
            let _ = io::stdout().write_all(text.as_bytes());
            status
        }
        Err(message) => {
            let _ = writeln!(io::stderr(), "error: {message}");
            2
        }
    };
    ExitCode::from(status)
}

fn parse(arguments: &[String]) -> Result<Arguments, String> {
    let mut parsed = Arguments::default();
    for argument in arguments {
        match argument.as_str() {
            "--json" => parsed.json = true,
            "--tighten" => parsed.tighten = true,
            flag if flag.starts_with('-') => return Err(format!("there is no flag {flag}\n\n{USAGE}")),
            _ if parsed.rule.is_some() => return Err("name one rule, or none for all".to_owned()),
            name => parsed.rule = Some(find_rule(name)?),
        }
    }
    Ok(parsed)
}

fn find_rule(name: &str) -> Result<&'static Rule, String> {
    RULES.iter().find(|rule| rule.name == name).ok_or_else(|| {
        let names: Vec<_> = RULES.iter().map(|rule| rule.name).collect();
        let hint = closest(name, &names).map_or(String::new(), |close| format!(" Did you mean {close}?"));
        format!("there is no rule {name}.{hint} The rules are: {}", names.join(", "))
    })
}

/// Checks the rules. Returns what to print, and the status: 1 if a count is above its ceiling.
fn house(arguments: &Arguments) -> Result<(String, u8), String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = directory.parent().ok_or("xtask has no parent directory")?;
    let file = directory.join("house.toml");
    let failed = |error| format!("cannot use {}: {error}", file.display());
    let text = fs::read_to_string(&file).map_err(failed)?;
    let mut ceilings = Ceilings::parse(&text)?;
    let repository = Repository::read(root)?;
    let chosen = RULES.iter().filter(|rule| arguments.rule.is_none_or(|chosen| chosen.name == rule.name));
    let mut outcomes = Vec::new();
    for rule in chosen {
        let report = (rule.check)(&repository);
        if arguments.tighten {
            ceilings.lower(rule, report.count);
        }
        outcomes.push(Outcome { rule, ceiling: ceilings.of(rule)?, report });
    }
    if arguments.tighten && ceilings.text() != text {
        fs::write(&file, ceilings.text()).map_err(failed)?;
    }
    let printed = match arguments {
        Arguments { json: true, .. } => report::json(&outcomes),
        Arguments { rule: Some(_), .. } => outcomes.iter().map(report::listing).collect(),
        _ => report::table(&outcomes),
    };
    Ok((printed, u8::from(outcomes.iter().any(Outcome::is_over))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No count is above its ceiling.
    #[test]
    fn the_house_is_in_order() {
        let (table, status) = house(&Arguments::default()).unwrap();
        assert_eq!(status, 0, "run `cargo xtask house`:\n{table}");
    }

    /// The committed ceilings name every rule that has one, and no other.
    #[test]
    fn the_committed_ceilings_fit_the_rules() {
        let ceilings = Ceilings::parse(include_str!("../house.toml")).unwrap();
        for rule in RULES {
            ceilings.of(rule).unwrap();
        }
    }

    #[test]
    fn an_unknown_rule_is_an_error_with_the_closest_name() {
        let error = parse(&["cycle".to_owned()]).err().unwrap();
        assert!(
            error.starts_with("there is no rule cycle. Did you mean cycles? The rules are: cycles, "),
            "{error}"
        );
        assert!(parse(&["--jsn".to_owned()]).is_err());
        assert!(parse(&["cycles".to_owned(), "told".to_owned()]).is_err());
    }
}
