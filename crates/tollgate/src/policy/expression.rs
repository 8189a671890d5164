//! CEL expressions over attributes. An expression that exists parses and calls only functions that exist.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, operators};
use cel::common::types::{CelInt, CelString};
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, Program};

use crate::policy::finding::{Problem, quoted};
use crate::request::{COST_MAX, CheckRequest, Value};

/// Longest expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 4096;

/// Functions that an expression may call.
const FUNCTIONS: [&str; 12] = [
    "bool",
    "bytes",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "int",
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

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A compiled CEL expression.
pub struct Expression {
    source: String,
    program: Program,
    attributes: BTreeSet<String>,
    needed: BTreeSet<String>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// When it does not parse, calls a function that does not exist, or is too long.
    pub fn new(source: &str) -> Result<Self, Problem> {
        if source.len() > EXPRESSION_BYTES_MAX {
            let message = format!("an expression of {} bytes", source.len());
            return Err(Problem::new(message, format!("at most {EXPRESSION_BYTES_MAX}")));
        }
        let program = parse(source)?;
        let mut survey = Survey::default();
        survey.walk(program.expression());
        if let Some(problem) = survey.problem {
            return Err(problem);
        }
        let needed = needs(program.expression()).truth;
        let needed = needed
            .into_iter()
            .filter(|name| survey.attributes.contains(name))
            .collect();
        Ok(Self {
            source: source.trim().to_owned(),
            attributes: survey.attributes,
            needed,
            program,
        })
    }

    /// Every attribute that it mentions.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(String::as_str)
    }

    /// The attributes without which it cannot be true.
    pub fn needed(&self) -> impl Iterator<Item = &str> {
        self.needed.iter().map(String::as_str)
    }

    /// Whether it holds for a request. An absent attribute makes it false. Any other error counts as true, the stricter
    /// reading: nothing a client sends may open a limit.
    #[must_use]
    pub fn holds(&self, request: &CheckRequest<'_>) -> bool {
        match self.evaluate(request, Reading::AsTold) {
            Ok(cel::Value::Bool(held)) => held,
            Ok(_) => true,
            Err(Failure::Absent(_)) => false,
            Err(Failure::Other(_)) => true,
        }
    }

    /// The cost that it computes. Texts that are decimal numbers read as numbers, because some wires carry only text.
    ///
    /// # Errors
    /// When there is no whole number from 0 to [`COST_MAX`]; says why.
    pub fn cost(&self, request: &CheckRequest<'_>) -> Result<u64, String> {
        let value = match self.evaluate(request, Reading::Numbers) {
            Ok(cel::Value::Int(number)) => u64::try_from(number).ok(),
            Ok(cel::Value::UInt(number)) => Some(number),
            Ok(other) => return Err(format!("{} is not a whole number", quoted(&format!("{other:?}")))),
            Err(Failure::Absent(name)) => return Err(format!("the attribute {name} is missing")),
            Err(Failure::Other(error)) => return Err(quoted(&error)),
        };
        match value {
            Some(cost) if cost <= COST_MAX => Ok(cost),
            _ => Err(format!("it is out of range; accepted are 0 to {COST_MAX}")),
        }
    }

    /// The value of an expression that mentions no attribute.
    pub(crate) fn constant(&self) -> Option<bool> {
        if !self.attributes.is_empty() {
            return None;
        }
        match self.evaluate(&CheckRequest::new(), Reading::AsTold) {
            Ok(cel::Value::Bool(held)) => Some(held),
            _ => None,
        }
    }

    /// Pairs of attribute and text that must be equal for it to be true.
    pub(crate) fn equalities(&self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        equalities(self.program.expression(), &mut pairs);
        pairs
    }

    /// A name that stands alone, when the expression is nothing else.
    pub(crate) fn as_name(&self) -> Option<String> {
        dotted(self.program.expression())
    }

    fn evaluate(&self, request: &CheckRequest<'_>, reading: Reading) -> Result<cel::Value, Failure> {
        let attributes = Attributes { request, reading };
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.set_variable_resolver(&attributes);
        // The interpreter has code paths that panic; a request must not reach the caller as one.
        match catch_unwind(AssertUnwindSafe(|| self.program.execute(&context))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(ExecutionError::UndeclaredReference(name))) => Err(Failure::Absent(name.to_string())),
            Ok(Err(error)) => Err(Failure::Other(error.to_string())),
            Err(_) => Err(Failure::Other("the expression cannot be evaluated".to_owned())),
        }
    }
}

/// Why an expression has no value.
enum Failure {
    Absent(String),
    Other(String),
}

/// How texts are read.
#[derive(Clone, Copy)]
enum Reading {
    AsTold,
    Numbers,
}

/// The attributes of a request, as CEL asks for them.
struct Attributes<'r, 'a> {
    request: &'r CheckRequest<'a>,
    reading: Reading,
}

impl VariableResolver for Attributes<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let attribute = self
            .request
            .attributes()
            .iter()
            .find(|known| known.name == variable)?;
        Some(match (attribute.value, self.reading) {
            (Value::Number(number), _) => CowVal::owned(CelInt::from(number)),
            (Value::Text(text), Reading::AsTold) => CowVal::owned(CelString::from(text)),
            (Value::Text(text), Reading::Numbers) => match text.parse::<i64>() {
                Ok(number) => CowVal::owned(CelInt::from(number)),
                Err(_) => CowVal::owned(CelString::from(text)),
            },
        })
    }
}

fn parse(source: &str) -> Result<Program, Problem> {
    let accepted = "a CEL expression over attributes, such as method == 'POST' && path.startsWith('/v1/')";
    let parsed = catch_unwind(AssertUnwindSafe(|| ENVIRONMENT.compile(source)));
    match parsed {
        Ok(Ok(program)) => Ok(program),
        Ok(Err(errors)) => {
            let why = errors.errors.first().map_or(String::new(), |error| {
                format!(" at character {}: {}", error.pos.1.max(1), quoted(&error.msg))
            });
            Err(Problem::new(format!("not CEL{why}"), accepted))
        }
        Err(_) => Err(Problem::new("not CEL", accepted)),
    }
}

/// Walks an expression for the attributes and functions that it mentions.
#[derive(Default)]
struct Survey {
    attributes: BTreeSet<String>,
    bound: Vec<String>,
    problem: Option<Problem>,
}

impl Survey {
    fn walk(&mut self, expression: &IdedExpr) {
        if let Some(name) = dotted(expression) {
            let root = name.split('.').next().unwrap_or_default();
            if !self.bound.iter().any(|bound| bound == root) && !root.starts_with('@') {
                self.attributes.insert(name);
            }
            return;
        }
        if let Expr::Call(call) = &expression.expr {
            self.function(&call.func_name);
        }
        if let Expr::Select(select) = &expression.expr
            && select.test
        {
            let message = "has() asks for a field of a map, and attributes are texts and numbers";
            let accepted =
                "nothing in its place: without an attribute that it mentions a limit does not apply";
            self.problem.get_or_insert(Problem::new(message, accepted));
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

    fn function(&mut self, name: &str) {
        if FUNCTIONS.contains(&name) || OPERATORS.contains(&name) {
            return;
        }
        let message = format!("the function {} does not exist", quoted(name));
        let accepted = format!(
            "{}, and the macros all, exists, exists_one, map, filter",
            FUNCTIONS.join(", ")
        );
        self.problem.get_or_insert(Problem::new(message, accepted));
    }
}

/// `a` or `a.b.c`: attributes have no fields, so a dotted name is the name of an attribute.
fn dotted(expression: &IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", dotted(&select.operand)?, select.field))
        }
        _ => None,
    }
}

fn children(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Call(call) => call
            .target
            .iter()
            .map(|target| &**target)
            .chain(&call.args)
            .collect(),
        Expr::Comprehension(inner) => vec![
            &inner.iter_range,
            &inner.accu_init,
            &inner.loop_cond,
            &inner.loop_step,
            &inner.result,
        ],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map
            .entries
            .iter()
            .flat_map(|entry| entries(&entry.expr))
            .collect(),
        Expr::Struct(inner) => inner
            .entries
            .iter()
            .flat_map(|entry| entries(&entry.expr))
            .collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn entries(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// The attributes that must be there for an expression to be true, and to be false. They differ because `&&` and `||` need
/// not look at both sides.
struct Needs {
    truth: BTreeSet<String>,
    falsity: BTreeSet<String>,
}

fn needs(expression: &IdedExpr) -> Needs {
    if let Some(name) = dotted(expression) {
        let one = BTreeSet::from([name]);
        return Needs {
            truth: one.clone(),
            falsity: one,
        };
    }
    let call = match &expression.expr {
        Expr::Call(call) => (call.func_name.as_str(), call.args.as_slice()),
        _ => ("", [].as_slice()),
    };
    match call {
        (operators::LOGICAL_AND, [left, right]) => {
            let (left, right) = (needs(left), needs(right));
            Needs {
                truth: &left.truth | &right.truth,
                falsity: &left.falsity & &right.falsity,
            }
        }
        (operators::LOGICAL_OR, [left, right]) => {
            let (left, right) = (needs(left), needs(right));
            Needs {
                truth: &left.truth & &right.truth,
                falsity: &left.falsity | &right.falsity,
            }
        }
        (operators::LOGICAL_NOT, [inner]) => {
            let inner = needs(inner);
            Needs {
                truth: inner.falsity,
                falsity: inner.truth,
            }
        }
        (operators::CONDITIONAL, [condition, yes, no]) => {
            let (condition, yes, no) = (any(condition), needs(yes), needs(no));
            Needs {
                truth: &condition | &(&yes.truth & &no.truth),
                falsity: &condition | &(&yes.falsity & &no.falsity),
            }
        }
        _ => {
            // Anything else looks at all of its parts, except a comprehension, whose body may never run.
            let parts = match &expression.expr {
                Expr::Comprehension(inner) => vec![&inner.iter_range],
                _ => children(expression),
            };
            let all: BTreeSet<String> = parts.into_iter().flat_map(any).collect();
            Needs {
                truth: all.clone(),
                falsity: all,
            }
        }
    }
}

/// The attributes that must be there for an expression to have a value.
fn any(expression: &IdedExpr) -> BTreeSet<String> {
    let needs = needs(expression);
    &needs.truth & &needs.falsity
}

fn equalities(expression: &IdedExpr, pairs: &mut Vec<(String, String)>) {
    let Expr::Call(call) = &expression.expr else {
        return;
    };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::LOGICAL_AND, [left, right]) => {
            equalities(left, pairs);
            equalities(right, pairs);
        }
        (operators::EQUALS, [left, right]) => {
            let pair = match (dotted(left), literal(right)) {
                (Some(name), Some(text)) => Some((name, text)),
                _ => dotted(right).zip(literal(left)),
            };
            pairs.extend(pair);
        }
        _ => {}
    }
}

fn literal(expression: &IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Literal(cel::common::ast::LiteralValue::String(text)) => Some(text.inner().to_owned()),
        _ => None,
    }
}
