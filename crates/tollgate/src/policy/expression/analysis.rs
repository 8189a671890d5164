//! The attributes that an expression mentions and requires, collected from its tree.

use std::collections::BTreeSet;

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{pattern, presence, reading};

use crate::policy::finding::{Problem, quoted};

/// Functions that an expression may call.
const FUNCTIONS: [&str; 13] = [
    "bool",
    "bytes",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "int",
    pattern::NAME,
    "size",
    "startsWith",
    "string",
    "type",
    "uint",
];

/// Operators of the language, and what its macros (`all`, `exists`, `exists_one`, `map`, `filter`) become.
const OPERATORS: [&str; 19] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::NOT_STRICTLY_FALSE,
    operators::IN,
];

/// Every attribute that an expression mentions.
///
/// # Errors
/// It calls an unknown function.
pub(super) fn attributes(expression: &IdedExpr) -> Result<BTreeSet<String>, Problem> {
    let mut analysis = NameCollector::default();
    analysis.walk(expression);
    match analysis.problem {
        Some(problem) => Err(problem),
        None => Ok(analysis.attributes),
    }
}

/// The deepest nesting of operators and calls.
pub(super) fn depth(expression: &IdedExpr) -> usize {
    1 + children(expression).into_iter().map(depth).max().unwrap_or(0)
}

/// The names that must be present for an expression to be true. Names that it binds itself may be among them.
pub(super) fn needed(expression: &IdedExpr) -> BTreeSet<String> {
    needs(expression).truth
}

/// Walks an expression for the attributes and functions that it mentions.
#[derive(Default)]
struct NameCollector {
    attributes: BTreeSet<String>,
    bound: Vec<String>,
    problem: Option<Problem>,
}

impl NameCollector {
    fn walk(&mut self, expression: &IdedExpr) {
        if let Some(name) = dotted(expression) {
            if !self.is_bound(&name) {
                self.attributes.insert(name);
            }
            return;
        }
        if let Some(name) = presence::asked(expression) {
            if self.is_bound(name) {
                let message = format!("has() asks for an attribute, and {} is none", quoted(name));
                self.problem
                    .get_or_insert(Problem::new(message, "the name of an attribute, as in has(plan)"));
            }
            self.attributes.insert(name.to_owned());
            return;
        }
        if let Expr::Call(call) = &expression.expr {
            self.function(&call.func_name);
        }
        let depth = self.bound.len();
        if let Expr::Comprehension(comprehension) = &expression.expr {
            self.bound.push(comprehension.iter_var.clone());
            self.bound.extend(comprehension.iter_var2.clone());
            self.bound.push(comprehension.accu_var.clone());
        }
        for child in children(expression) {
            self.walk(child);
        }
        self.bound.truncate(depth);
    }

    /// Whether an enclosing macro binds the name.
    fn is_bound(&self, name: &str) -> bool {
        let root = name.split('.').next().unwrap_or_default();
        self.bound.iter().any(|bound| bound == root)
    }

    fn function(&mut self, name: &str) {
        if name == presence::SPELLED {
            let message = "has() asks for one attribute";
            self.problem.get_or_insert(Problem::new(message, "the name of an attribute, as in has(plan)"));
            return;
        }
        if FUNCTIONS.contains(&name) || OPERATORS.contains(&name) {
            return;
        }
        let message = format!("the function {} does not exist", quoted(name));
        let accepted =
            format!("{}, has, and the macros all, exists, exists_one, map, filter", FUNCTIONS.join(", "));
        self.problem.get_or_insert(Problem::new(message, accepted));
    }
}

/// `a` or `a.b.c`: attributes have no fields, so a dotted name is the name of an attribute. Generated names are those of
/// macros, or have a prefix for how an attribute is read.
pub(super) fn dotted(expression: &IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) if name.starts_with('@') => {
            reading::of_variable(name).map(|(name, _)| name.to_owned())
        }
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", dotted(&select.operand)?, select.field))
        }
        _ => None,
    }
}

pub(super) fn children(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Call(call) => call.target.iter().map(|target| &**target).chain(&call.args).collect(),
        Expr::Comprehension(inner) => {
            vec![&inner.iter_range, &inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entries(&entry.expr)).collect(),
        Expr::Struct(inner) => inner.entries.iter().flat_map(|entry| entries(&entry.expr)).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

/// The parts of an expression, mutable.
pub(super) fn children_mut(expression: &mut IdedExpr) -> Vec<&mut IdedExpr> {
    match &mut expression.expr {
        Expr::Call(call) => {
            call.target.iter_mut().map(|target| &mut **target).chain(&mut call.args).collect()
        }
        Expr::Comprehension(inner) => vec![
            &mut inner.iter_range,
            &mut inner.accu_init,
            &mut inner.loop_cond,
            &mut inner.loop_step,
            &mut inner.result,
        ],
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => map.entries.iter_mut().flat_map(|entry| entries_mut(&mut entry.expr)).collect(),
        Expr::Struct(inner) => {
            inner.entries.iter_mut().flat_map(|entry| entries_mut(&mut entry.expr)).collect()
        }
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn entries_mut(entry: &mut EntryExpr) -> Vec<&mut IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}

fn entries(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// The attributes that must be present for an expression to be true, and to be false. They differ because `&&` and `||` may
/// evaluate one side only.
struct Needs {
    truth: BTreeSet<String>,
    falsity: BTreeSet<String>,
}

fn needs(expression: &IdedExpr) -> Needs {
    if let Some(name) = dotted(expression) {
        let one = BTreeSet::from([name]);
        return Needs { truth: one.clone(), falsity: one };
    }
    if let Some(name) = presence::asked(expression) {
        return Needs { truth: BTreeSet::from([name.to_owned()]), falsity: BTreeSet::new() };
    }
    let call = match &expression.expr {
        Expr::Call(call) => (call.func_name.as_str(), call.args.as_slice()),
        _ => ("", [].as_slice()),
    };
    match call {
        (operators::LOGICAL_AND, [left, right]) => {
            let (left, right) = (needs(left), needs(right));
            Needs { truth: &left.truth | &right.truth, falsity: &left.falsity & &right.falsity }
        }
        (operators::LOGICAL_OR, [left, right]) => {
            let (left, right) = (needs(left), needs(right));
            Needs { truth: &left.truth & &right.truth, falsity: &left.falsity | &right.falsity }
        }
        (operators::LOGICAL_NOT, [inner]) => {
            let inner = needs(inner);
            Needs { truth: inner.falsity, falsity: inner.truth }
        }
        (operators::CONDITIONAL, [condition, yes, no]) => {
            let (condition, yes, no) = (any(condition), needs(yes), needs(no));
            Needs {
                truth: &condition | &(&yes.truth & &no.truth),
                falsity: &condition | &(&yes.falsity & &no.falsity),
            }
        }
        _ => {
            // Any other expression evaluates all of its parts, except a comprehension, whose body may never run.
            let parts = match &expression.expr {
                Expr::Comprehension(inner) => vec![&inner.iter_range],
                _ => children(expression),
            };
            let all: BTreeSet<String> = parts.into_iter().flat_map(any).collect();
            Needs { truth: all.clone(), falsity: all }
        }
    }
}

/// The attributes that must be present for an expression to have a value.
fn any(expression: &IdedExpr) -> BTreeSet<String> {
    let needs = needs(expression);
    &needs.truth & &needs.falsity
}

/// The attributes whose values an expression only excludes, without requiring them and without a check for their presence.
/// A request without them silently does not match.
pub(super) fn unguarded(expression: &IdedExpr) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    negated(expression, Polarity::Plain, &mut found);
    found.retain(|name| !asks_for(expression, name));
    &found - &required(expression, Polarity::Plain)
}

/// Whether an expression has no `&&`, `||` or condition.
pub(super) fn is_comparison(expression: &IdedExpr) -> bool {
    match part(expression) {
        Part::Not(inner) => is_comparison(inner),
        Part::Says(_) => true,
        Part::And(..) | Part::Or(..) | Part::Choice(..) => false,
    }
}

/// Whether an odd number of negations encloses an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polarity {
    Plain,
    Negated,
}

impl Polarity {
    const fn turned(self) -> Self {
        match self {
            Polarity::Plain => Polarity::Negated,
            Polarity::Negated => Polarity::Plain,
        }
    }
}

/// Parts of an expression that matter for negations.
enum Part<'e> {
    And(&'e IdedExpr, &'e IdedExpr),
    Or(&'e IdedExpr, &'e IdedExpr),
    Not(&'e IdedExpr),
    Choice(&'e IdedExpr, &'e IdedExpr, &'e IdedExpr),
    /// A comparison, with the polarity in which it states a value.
    Says(Polarity),
}

fn part(expression: &IdedExpr) -> Part<'_> {
    let Expr::Call(call) = &expression.expr else { return Part::Says(Polarity::Plain) };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::LOGICAL_AND, [left, right]) => Part::And(left, right),
        (operators::LOGICAL_OR, [left, right]) => Part::Or(left, right),
        (operators::LOGICAL_NOT, [inner]) => Part::Not(inner),
        (operators::CONDITIONAL, [condition, yes, no]) => match (truth(yes), truth(no)) {
            (Some(false), Some(true)) => Part::Not(condition),
            _ => Part::Choice(condition, yes, no),
        },
        (operators::NOT_EQUALS, _) => Part::Says(Polarity::Negated),
        _ => Part::Says(Polarity::Plain),
    }
}

/// Collects the attributes of comparisons that exclude a value.
fn negated(expression: &IdedExpr, sense: Polarity, found: &mut BTreeSet<String>) {
    match part(expression) {
        Part::And(left, right) | Part::Or(left, right) => {
            negated(left, sense, found);
            negated(right, sense, found);
        }
        Part::Not(inner) => negated(inner, sense.turned(), found),
        Part::Choice(condition, yes, no) => {
            negated(condition, Polarity::Plain, found);
            negated(yes, sense, found);
            negated(no, sense, found);
        }
        Part::Says(stated) if stated != sense => found.extend(attributes(expression).unwrap_or_default()),
        Part::Says(_) => {}
    }
}

/// The attributes that an expression requires by stating their value.
fn required(expression: &IdedExpr, sense: Polarity) -> BTreeSet<String> {
    match (part(expression), sense) {
        (Part::And(left, right), Polarity::Plain) | (Part::Or(left, right), Polarity::Negated) => {
            &required(left, sense) | &required(right, sense)
        }
        (Part::Or(left, right), Polarity::Plain) | (Part::And(left, right), Polarity::Negated) => {
            &required(left, sense) & &required(right, sense)
        }
        (Part::Not(inner), _) => required(inner, sense.turned()),
        (Part::Choice(condition, yes, no), _) => {
            &required(condition, Polarity::Plain) | &(&required(yes, sense) & &required(no, sense))
        }
        (Part::Says(stated), _) if stated == sense => needs(expression).truth,
        (Part::Says(_), _) => BTreeSet::new(),
    }
}

/// Whether an expression checks the presence of an attribute.
fn asks_for(expression: &IdedExpr, name: &str) -> bool {
    presence::asked(expression) == Some(name)
        || children(expression).into_iter().any(|child| asks_for(child, name))
}

/// `true` or `false`, as it is written.
fn truth(expression: &IdedExpr) -> Option<bool> {
    match &expression.expr {
        Expr::Literal(LiteralValue::Boolean(truth)) => Some(*truth.inner()),
        _ => None,
    }
}

/// A text, as it is written.
pub(super) fn literal(expression: &IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner().to_owned()),
        _ => None,
    }
}
