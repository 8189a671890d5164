//! CEL over the descriptors of a request, as in Limitador: `descriptors` is a list of tables of text, and `limit` is a table
//! with the `name` and `id` of the limit. The bounds and the handling of panics are those of Tollgate's own expressions.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::{Context, Env, ExecutionError, Program, Value};

use super::pattern::{self, Patterns};
use super::{EXPRESSION_BYTES_MAX, analysis, parse_here, roomy};
use crate::policy::finding::Problem;

const ACCEPTED: &str = "a CEL expression over descriptors, such as descriptors[0]['method'] == 'POST'";

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    let declared = pattern::declare(&mut environment);
    debug_assert!(declared.is_ok(), "the standard library has no such name");
    Arc::new(environment)
});

/// An expression over descriptors.
pub struct Cel {
    source: String,
    program: Program,
    patterns: Patterns,
    unknown: Option<String>,
}

impl fmt::Debug for Cel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cel").field(&self.source).finish()
    }
}

/// The result of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluated {
    /// Yes or no.
    Truth(bool),
    /// A number, a text or nothing, as text.
    Text(String),
    /// It refers to a value that the request does not have.
    Absent,
    /// It has no value, or one that cannot be used; the reason.
    Failed(String),
}

/// The variables of one request.
pub struct DescriptorValues<'v> {
    context: Context<'v, 'v>,
}

impl DescriptorValues<'_> {
    /// The descriptors of a request. Where a descriptor has a key twice, the last one counts.
    #[must_use]
    pub fn new<'d>(descriptors: impl Iterator<Item = &'d [(String, String)]>) -> Self {
        let table = |entries: &[(String, String)]| {
            let text = |text: &str| Value::String(Arc::new(text.to_owned()));
            let table: HashMap<String, Value> =
                entries.iter().map(|(key, value)| (key.clone(), text(value))).collect();
            Value::Map(table.into())
        };
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context
            .add_variable_from_value("descriptors", Value::List(Arc::new(descriptors.map(table).collect())));
        Self { context }
    }

    /// Sets the name and the id of `limit`.
    pub fn enter(&mut self, name: Option<&str>, id: Option<&str>) {
        let text =
            |text: Option<&str>| text.map_or(Value::Null, |text| Value::String(Arc::new(text.to_owned())));
        let table: HashMap<String, Value> =
            HashMap::from([("name".to_owned(), text(name)), ("id".to_owned(), text(id))]);
        self.context.add_variable_from_value("limit", Value::Map(table.into()));
    }
}

impl Cel {
    /// Compiles an expression.
    ///
    /// # Errors
    /// It does not parse, calls an unknown function, or is too long or too deep.
    pub fn new(source: &str) -> Result<Self, Problem> {
        if source.len() > EXPRESSION_BYTES_MAX {
            let message = format!("an expression of {} bytes", source.len());
            return Err(Problem::new(message, format!("at most {EXPRESSION_BYTES_MAX}")));
        }
        let program = roomy(|| parse_here(&ENVIRONMENT, source, ACCEPTED), ACCEPTED)?;
        let names = analysis::attributes(program.expression())?;
        let is_known =
            |name: &&String| ["descriptors", "limit"].contains(&name.split('.').next().unwrap_or_default());
        let unknown = names.iter().find(|name| !is_known(name)).cloned();
        let patterns = Patterns::of(program.expression())?;
        Ok(Self { source: source.to_owned(), program, patterns, unknown })
    }

    /// A name in it that no request can have, if there is one. An evaluation that reaches it has no value.
    #[must_use]
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// The expression as written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Evaluates it. Never panics, for any request.
    #[must_use]
    pub fn evaluate(&self, descriptor_values: &DescriptorValues<'_>) -> Evaluated {
        let execute = || catch_unwind(AssertUnwindSafe(|| self.program.execute(&descriptor_values.context)));
        let value = match self.patterns.during(execute) {
            Ok(Ok(value)) => value,
            Ok(Err(ExecutionError::UndeclaredReference(_) | ExecutionError::NoSuchKey(_))) => {
                return Evaluated::Absent;
            }
            Ok(Err(error)) => return Evaluated::Failed(error.to_string()),
            Err(_) => return Evaluated::Failed("the expression cannot be evaluated".to_owned()),
        };
        match value {
            Value::Bool(held) => Evaluated::Truth(held),
            Value::String(text) => Evaluated::Text(text.as_ref().clone()),
            Value::Int(number) => Evaluated::Text(number.to_string()),
            Value::UInt(number) => Evaluated::Text(number.to_string()),
            Value::Float(number) => Evaluated::Text(number.to_string()),
            Value::Null => Evaluated::Text("null".to_owned()),
            _ => Evaluated::Failed("its value is neither a text, a number nor a truth value".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(source: &str) -> Evaluated {
        let descriptors = [vec![("m".to_owned(), "GET".to_owned()), ("n".to_owned(), "7".to_owned())]];
        let mut descriptor_values = DescriptorValues::new(descriptors.iter().map(Vec::as_slice));
        descriptor_values.enter(Some("basic"), None);
        Cel::new(source).unwrap().evaluate(&descriptor_values)
    }

    /// A missing value and an error are different results.
    #[test]
    fn values_absences_and_failures() {
        assert_eq!(value("descriptors[0]['m'] == 'GET'"), Evaluated::Truth(true));
        assert_eq!(value("descriptors[0].m"), Evaluated::Text("GET".to_owned()));
        assert_eq!(value("int(descriptors[0].n) + 1"), Evaluated::Text("8".to_owned()));
        assert_eq!(value("limit.name"), Evaluated::Text("basic".to_owned()));
        assert_eq!(value("limit.id"), Evaluated::Text("null".to_owned()));
        assert_eq!(value("descriptors[0].absent == 'x'"), Evaluated::Absent);
        assert!(matches!(value("descriptors[4].m == 'x'"), Evaluated::Failed(_)));
        assert!(matches!(value("descriptors[0]"), Evaluated::Failed(_)));
        assert!(matches!(value("int(descriptors[0].m) > 1"), Evaluated::Failed(_)));
    }

    /// An invalid expression is refused when the file is read, and an unknown name is reported.
    #[test]
    fn impossible_expressions_are_refused() {
        let deep = format!("{}1{}", "[".repeat(60), "]".repeat(60));
        let deeper = format!("{}1{}", "(".repeat(1500), ")".repeat(1500));
        for wrong in ["", "((", "nosuch(descriptors)", "descriptors[0].a ==", &deep, &deeper] {
            assert!(Cel::new(wrong).is_err(), "{wrong}");
        }
        let legacy = Cel::new("req.method == 'POST'").unwrap();
        assert_eq!(legacy.unknown(), Some("req.method"));
        assert_eq!(Cel::new("limit.name == descriptors[0].x").unwrap().unknown(), None);
    }
}
