//! The requirements on attributes for an expression to be true, from the operands of its `&&`, and whether they can all hold.

use std::collections::BTreeMap;

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{analysis, presence};
use crate::policy::glob::Glob;

/// The requirements on an attribute; all of them must hold.
#[derive(Debug, Default)]
pub(crate) struct Demands {
    /// It is one of these texts or fits one of these patterns, for each list.
    one_of: Vec<(Vec<String>, Vec<Glob>)>,
    /// It is none of these.
    none_of: Vec<String>,
    starts: Vec<String>,
    ends: Vec<String>,
    contains: Vec<String>,
    /// Its smallest and its largest value, if it is a number.
    range: Option<(i64, i64)>,
    is_there: bool,
    is_missing: bool,
}

/// The demands of an expression, by attribute.
pub(super) fn of(expression: &IdedExpr) -> BTreeMap<String, Demands> {
    let mut demands = BTreeMap::new();
    collect(expression, &mut demands);
    for name in analysis::needed(expression) {
        demands.entry(name).or_default().is_there = true;
    }
    demands
}

impl Demands {
    /// The same with a list of texts of which it must be one, or patterns of which it must fit one.
    pub(crate) fn one_of(&mut self, texts: &[String], globs: &[Glob]) {
        self.one_of.push((texts.to_vec(), globs.to_vec()));
    }

    /// All that it must be, and all that it must be by others.
    pub(crate) fn join(&mut self, others: Self) {
        let Self { one_of, none_of, starts, ends, contains, range, is_there, is_missing } = others;
        self.one_of.extend(one_of);
        self.none_of.extend(none_of);
        self.starts.extend(starts);
        self.ends.extend(ends);
        self.contains.extend(contains);
        if let Some((least, most)) = range {
            self.within(least, most);
        }
        self.is_there |= is_there;
        self.is_missing |= is_missing;
    }

    /// Whether nothing can be all of it at once. Where texts are not compared as they stand, parts of them say nothing.
    pub(crate) fn contradict(&self, parts: Parts) -> bool {
        let is_empty = self.range.is_some_and(|(least, most)| least > most);
        let has_parts = |text: &String| {
            parts == Parts::Unknown
                || self.starts.iter().all(|part| text.starts_with(part.as_str()))
                    && self.ends.iter().all(|part| text.ends_with(part.as_str()))
                    && self.contains.iter().all(|part| text.contains(part.as_str()))
        };
        let is_one = |text: &String, (texts, globs): &(Vec<String>, Vec<Glob>)| {
            texts.contains(text) || globs.iter().any(|glob| glob.matches(text))
        };
        let may_be = |text: &String| {
            self.one_of.iter().all(|list| is_one(text, list))
                && !self.none_of.contains(text)
                && has_parts(text)
        };
        let mut plain = self.one_of.iter().filter(|(_, globs)| globs.is_empty());
        let is_no_text = plain.next().is_some_and(|(texts, _)| !texts.iter().any(may_be));
        let apart = self.starts.iter().any(|one| {
            self.starts
                .iter()
                .any(|other| !one.starts_with(other.as_str()) && !other.starts_with(one.as_str()))
        });
        is_empty || is_no_text || apart || self.is_there && self.is_missing
    }

    fn within(&mut self, least: i64, most: i64) {
        let (from, to) = self.range.unwrap_or((i64::MIN, i64::MAX));
        self.range = Some((from.max(least), to.min(most)));
    }
}

/// Whether parts of a text are those of the text that it is compared with as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    Known,
    Unknown,
}

fn collect(expression: &IdedExpr, demands: &mut BTreeMap<String, Demands>) {
    if let Some(name) = presence::asked(expression) {
        demands.entry(name.to_owned()).or_default().is_there = true;
    }
    let Expr::Call(call) = &expression.expr else { return };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::LOGICAL_AND, [left, right]) => {
            collect(left, demands);
            collect(right, demands);
        }
        (operators::LOGICAL_NOT, [inner]) => {
            if let Some(name) = presence::asked(inner) {
                demands.entry(name.to_owned()).or_default().is_missing = true;
            }
        }
        (operators::IN, [left, right]) => {
            if let (Some(name), Expr::List(list)) = (analysis::dotted(left), &right.expr)
                && let Some(texts) = list.elements.iter().map(analysis::literal).collect::<Option<Vec<_>>>()
                && !texts.is_empty()
            {
                demands.entry(name).or_default().one_of(&texts, &[]);
            }
        }
        (function, [left, right]) if call.target.is_none() => {
            let turned = match function {
                operators::LESS => operators::GREATER,
                operators::LESS_EQUALS => operators::GREATER_EQUALS,
                operators::GREATER => operators::LESS,
                operators::GREATER_EQUALS => operators::LESS_EQUALS,
                other => other,
            };
            compared(function, left, right, demands);
            compared(turned, right, left, demands);
        }
        _ => part(call, demands),
    }
}

/// An attribute that stands to the left of a text or a whole number.
fn compared(function: &str, left: &IdedExpr, right: &IdedExpr, demands: &mut BTreeMap<String, Demands>) {
    let Some(name) = analysis::dotted(left) else { return };
    let number = match &right.expr {
        Expr::Literal(LiteralValue::Int(number)) => Some(*number.inner()),
        _ => None,
    };
    match (function, analysis::literal(right), number) {
        (operators::EQUALS, Some(text), _) => demands.entry(name).or_default().one_of(&[text], &[]),
        (operators::NOT_EQUALS, Some(text), _) => demands.entry(name).or_default().none_of.push(text),
        (operators::EQUALS, _, Some(number)) => demands.entry(name).or_default().within(number, number),
        (operators::LESS, _, Some(number)) => {
            demands.entry(name).or_default().within(i64::MIN, number.saturating_sub(1));
        }
        (operators::LESS_EQUALS, _, Some(number)) => {
            demands.entry(name).or_default().within(i64::MIN, number)
        }
        (operators::GREATER, _, Some(number)) => {
            demands.entry(name).or_default().within(number.saturating_add(1), i64::MAX);
        }
        (operators::GREATER_EQUALS, _, Some(number)) => {
            demands.entry(name).or_default().within(number, i64::MAX)
        }
        _ => {}
    }
}

/// `path.startsWith('/v1')` and the like.
fn part(call: &CallExpr, demands: &mut BTreeMap<String, Demands>) {
    let (Some(target), [text]) = (&call.target, call.args.as_slice()) else { return };
    let (Some(name), Some(text)) = (analysis::dotted(target), analysis::literal(text)) else { return };
    let demands = demands.entry(name).or_default();
    match call.func_name.as_str() {
        "startsWith" => demands.starts.push(text),
        "endsWith" => demands.ends.push(text),
        "contains" => demands.contains.push(text),
        _ => {}
    }
}
