//! `path.matches('^/v[0-9]+/')`: regular expressions in CEL. A pattern is a literal of the policy, never a value of a request.
//! It is compiled once, with the policy. Time and memory to match a text are bounded.

use std::cell::RefCell;
use std::sync::Arc;

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use cel::common::types::{CelBool, CelString};
use cel::{DeclarationError, Env, ExecutionError};
use regex::{Regex, RegexBuilder};

use super::analysis::children;
use crate::policy::finding::{Problem, quoted};

/// The name of the function.
pub(super) const NAME: &str = "matches";
/// Most patterns of one expression.
pub(super) const PATTERNS_MAX: usize = 8;
/// Most bytes that a compiled pattern may take.
const PROGRAM_BYTES_MAX: usize = 128 << 10;
/// Most additional bytes while matching.
const MATCHING_BYTES_MAX: usize = 256 << 10;
const ACCEPTED: &str = "a regular expression in quotes, such as path.matches('^/v[0-9]+/')";

/// The patterns of an expression, with their compiled form.
#[derive(Clone, Debug)]
pub(super) struct Patterns(Arc<[(String, Regex)]>);

thread_local! {
    /// The patterns of the expression that this thread evaluates. The function gets the text of a pattern and finds it here.
    static CURRENT: RefCell<Option<Patterns>> = const { RefCell::new(None) };
}

impl Patterns {
    /// Compiles every pattern of an expression.
    ///
    /// # Errors
    /// A pattern is not a literal, not a regular expression or too large, or there are too many.
    pub(super) fn of(expression: &IdedExpr) -> Result<Self, Problem> {
        let mut texts = Vec::new();
        collect(expression, &mut texts)?;
        texts.sort_unstable();
        texts.dedup();
        if texts.len() > PATTERNS_MAX {
            let message = format!("{} patterns in one expression", texts.len());
            return Err(Problem::new(message, format!("at most {PATTERNS_MAX}")));
        }
        texts
            .into_iter()
            .map(|text| Ok((text.to_owned(), compile(text)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Evaluates an expression with these patterns. `work` must not panic.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.0.is_empty() {
            return work();
        }
        let before = CURRENT.replace(Some(self.clone()));
        let done = work();
        CURRENT.set(before);
        done
    }
}

/// Adds the function to an environment.
pub(super) fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(environment, fn matches: (CelString, CelString) -> Result<CelBool>, id = "matches")?;
    cel::add_member_overload!(environment, fn matches: (CelString, CelString) -> Result<CelBool>)
}

fn matches(text: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    let found = CURRENT.with_borrow(|current| {
        let patterns = current.as_ref().map_or(&[][..], |patterns| &patterns.0);
        let known = patterns.iter().find(|(known, _)| known == pattern.inner());
        known.map(|(_, regex)| regex.is_match(text.inner()))
    });
    found.map(CelBool::from).ok_or_else(|| ExecutionError::FunctionError {
        function: NAME.to_owned(),
        message: "the pattern was not compiled".to_owned(),
    })
}

fn collect<'e>(expression: &'e IdedExpr, texts: &mut Vec<&'e str>) -> Result<(), Problem> {
    if let Expr::Call(call) = &expression.expr
        && call.func_name == NAME
    {
        texts.push(pattern(call)?);
    }
    children(expression).into_iter().try_for_each(|child| collect(child, texts))
}

/// The pattern of a call, as a method or as a function.
fn pattern(call: &CallExpr) -> Result<&str, Problem> {
    let argument = match (&call.target, call.args.as_slice()) {
        (Some(_), [pattern]) | (None, [_, pattern]) => pattern,
        _ => return Err(Problem::new("matches() has a text and a pattern", ACCEPTED)),
    };
    match &argument.expr {
        Expr::Literal(LiteralValue::String(text)) => Ok(text.inner()),
        _ => Err(Problem::new("the pattern of matches() is computed", ACCEPTED)),
    }
}

fn compile(text: &str) -> Result<Regex, Problem> {
    let mut builder = RegexBuilder::new(text);
    let built = builder.size_limit(PROGRAM_BYTES_MAX).dfa_size_limit(MATCHING_BYTES_MAX).build();
    built.map_err(|error| {
        let why = match &error {
            regex::Error::CompiledTooBig(_) => {
                format!("is too large: compiled it would take more than {PROGRAM_BYTES_MAX} bytes")
            }
            // The last line names the problem; those before show its position.
            _ => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default();
                format!("is no regular expression: {}", last.trim_start_matches("error: "))
            }
        };
        Problem::new(format!("the pattern {} {why}", quoted(text)), ACCEPTED)
    })
}

#[cfg(test)]
mod tests {
    use super::super::Expression;
    use super::super::descriptor_values::{Cel, DescriptorValues, Evaluated};
    use crate::request::CheckRequest;

    fn holds(source: &str, path: &str) -> bool {
        let request = CheckRequest::new().with("path", path).unwrap();
        Expression::new(source).unwrap().holds(request.first())
    }

    /// A pattern without anchors matches anywhere in the text. An expression may have several patterns.
    #[test]
    fn patterns_match() {
        for (source, path, held) in [
            ("path.matches('^/v[0-9]+/')", "/v12/users", true),
            ("path.matches('^/v[0-9]+/')", "/api/v12/", false),
            ("path.matches('v[0-9]')", "/api/v12/", true),
            ("matches(path, r'\\.(png|jpe?g)$')", "/cat.jpg", true),
            ("path.matches('(?i)^/ADMIN')", "/admin", true),
            ("path.matches(r'^/\\w+$')", "/größe", true),
            ("path.matches('^/a') && !path.matches('z$')", "/abc", true),
            ("path.matches('^/a') && !path.matches('z$')", "/abz", false),
            ("['x', path].exists(p, p.matches('^/a'))", "/abc", true),
            ("path.matches('')", "", true),
        ] {
            assert_eq!(holds(source, path), held, "{source} of {path}");
        }
        let descriptors = [vec![("path".to_owned(), "/v1/x".to_owned())]];
        let descriptor_values = DescriptorValues::new(descriptors.iter().map(Vec::as_slice));
        let of = |source: &str| Cel::new(source).unwrap().evaluate(&descriptor_values);
        assert_eq!(of("descriptors[0].path.matches('^/v1/')"), Evaluated::Truth(true));
        assert_eq!(of("descriptors[0]['none'].matches('^/v1/')"), Evaluated::Absent);
    }

    /// A pattern that cannot be compiled within its bound is an error of the policy. A request never provides a pattern.
    #[test]
    fn wrong_patterns_are_refused() {
        let many = (0..9).map(|n| format!("path.matches('{n}')")).collect::<Vec<_>>().join(" || ");
        for (source, reason) in [
            ("path.matches('(a')", "the pattern (a is no regular expression: unclosed group"),
            ("path.matches('a{1000}{1000}')", "is too large"),
            (r"path.matches(r'\w{500}')", "is too large"),
            ("path.matches(other)", "the pattern of matches() is computed"),
            ("path.matches('a' + other)", "the pattern of matches() is computed"),
            ("path.matches()", "matches() has a text and a pattern"),
            ("matches(path)", "matches() has a text and a pattern"),
            (&many, "9 patterns in one expression"),
        ] {
            let problem = Expression::new(source).unwrap_err().to_string();
            assert!(problem.contains(reason), "{source}: {problem}");
            assert!(Cel::new(source).is_err(), "{source}");
        }
    }

    /// The longest value is matched quickly, also by patterns that take exponential time in other engines.
    #[test]
    fn matching_takes_bounded_time() {
        let expression = Expression::new("path.matches('^(a+)+$') || path.matches('(a|a?)+b')").unwrap();
        let path = "a".repeat(crate::request::VALUE_BYTES_MAX - 1) + "!";
        let request = CheckRequest::new().with("path", path.as_str()).unwrap();
        for _ in 0..20 {
            assert!(!expression.holds(request.first()));
        }
    }
}
