//! The number of entries that a field requests: the sizes among its arguments, at any depth of input objects and lists, as
//! literals or in variables. A value that a server could read as another size is refused.

use std::collections::HashMap;

use apollo_parser::SyntaxKind;
use apollo_parser::cst::{self, CstNode, Value};
use serde_json::{Map, Value as Json};

/// The position of a value with the name of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SizePosition {
    /// An argument of the field: only a number is accepted.
    Argument,
    /// Inside of an argument, where the name may mean something else, such as the `first` name of a person.
    Inside,
}

/// The name of a size whose value is not a number of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoNumber(pub(super) String);

/// The largest size found, if any.
type Found = Result<Option<u64>, NoNumber>;

/// The name and the position of a size; `None` for any other value.
type Named<'n> = Option<(&'n str, SizePosition)>;

/// The default value of a variable.
#[derive(Clone)]
enum VariableDefault {
    One(Value),
    /// Several different ones. Servers differ in which one they take.
    Several,
}

/// The sizes of one operation.
pub(super) struct Sizes<'p> {
    names: &'p [String],
    variables: &'p Map<String, Json>,
    defaults: HashMap<String, VariableDefault>,
    /// The sizes in variables, so that each variable is searched once, however many fields use it.
    cache: HashMap<(String, Option<SizePosition>), Found>,
}

impl<'p> Sizes<'p> {
    pub(super) fn new(
        names: &'p [String],
        variables: &'p Map<String, Json>,
        operation: &cst::OperationDefinition,
    ) -> Self {
        Self { names, variables, defaults: defaults(operation), cache: HashMap::new() }
    }

    /// The largest size among the arguments of a field.
    pub(super) fn of(&mut self, field: &cst::Field) -> Found {
        let mut largest = None;
        for argument in field.arguments().into_iter().flat_map(|all| all.arguments()) {
            let (Some(name), Some(value)) = (argument.name(), argument.value()) else { continue };
            let found = self.member(name.text().as_str(), &value, SizePosition::Argument)?;
            largest = largest.max(found);
        }
        Ok(largest)
    }

    fn member(&mut self, name: &str, value: &Value, position: SizePosition) -> Found {
        let named = self.is_size(name).then_some((name, position));
        self.literal(value, named)
    }

    fn is_size(&self, name: &str) -> bool {
        self.names.iter().any(|size| size == name)
    }

    /// The largest size in a literal. A server may answer every entry of a list, so the sizes of a list are added.
    fn literal(&mut self, value: &Value, named: Named<'_>) -> Found {
        match value {
            Value::Variable(variable) => {
                let name = variable.name().map(|name| name.text().to_string()).unwrap_or_default();
                self.variable(name, named)
            }
            Value::NullValue(_) => Ok(None),
            Value::IntValue(value) => number(named, || whole(value)),
            Value::FloatValue(_) => number(named, || None),
            Value::StringValue(text) => text_of(named, &String::from(text)),
            Value::ObjectValue(object) if !is_argument(named) => {
                let mut largest = None;
                for field in object.object_fields() {
                    let (Some(name), Some(value)) = (field.name(), field.value()) else { continue };
                    largest = largest.max(self.member(name.text().as_str(), &value, SizePosition::Inside)?);
                }
                Ok(largest)
            }
            Value::ListValue(list) if !is_argument(named) => {
                let mut sum = None;
                for value in list.values() {
                    sum = added(sum, self.literal(&value, named)?);
                }
                Ok(sum)
            }
            _ => other(named),
        }
    }

    /// The largest size in a variable.
    fn variable(&mut self, name: String, named: Named<'_>) -> Found {
        let key = (name, named.map(|(_, position)| position));
        let wrong = || NoNumber(named.map_or_else(|| key.0.clone(), |(size, _)| size.to_owned()));
        if let Some(cached) = self.cache.get(&key) {
            return cached.clone().map_err(|_| wrong());
        }
        // A default that refers to its own variable has no value.
        self.cache.insert(key.clone(), Err(wrong()));
        let found = match (self.variables.get(&key.0), self.defaults.get(&key.0).cloned()) {
            (Some(given), _) => self.given(given, named),
            (None, None) => Ok(None),
            (None, Some(VariableDefault::Several)) => Err(wrong()),
            (None, Some(VariableDefault::One(value))) => self.literal(&value, named),
        };
        self.cache.insert(key, found.clone());
        found
    }

    /// The largest size in the value of a variable.
    fn given(&self, value: &Json, named: Named<'_>) -> Found {
        match value {
            Json::Null => Ok(None),
            Json::Number(value) => number(named, || value.as_u64()),
            Json::String(text) => text_of(named, text),
            Json::Object(object) if !is_argument(named) => {
                let mut largest = None;
                for (name, value) in object {
                    let named = self.is_size(name).then_some((name.as_str(), SizePosition::Inside));
                    largest = largest.max(self.given(value, named)?);
                }
                Ok(largest)
            }
            Json::Array(list) if !is_argument(named) => {
                let mut sum = None;
                for value in list {
                    sum = added(sum, self.given(value, named)?);
                }
                Ok(sum)
            }
            _ => other(named),
        }
    }
}

const fn is_argument(named: Named<'_>) -> bool {
    matches!(named, Some((_, SizePosition::Argument)))
}

fn added(sum: Option<u64>, next: Option<u64>) -> Option<u64> {
    match (sum, next) {
        (Some(sum), Some(next)) => Some(sum.saturating_add(next)),
        (one, other) => one.or(other),
    }
}

/// A number: a size if it has the name of one. A size must be a number of entries.
fn number(named: Named<'_>, read: impl FnOnce() -> Option<u64>) -> Found {
    let Some((name, _)) = named else { return Ok(None) };
    read().map(Some).ok_or_else(|| NoNumber(name.to_owned()))
}

/// A text. A server may read it as a size if some language parses it as a number: with digits of any script, after
/// invisible spaces, with another base, with a unit, or as infinity.
fn text_of(named: Named<'_>, text: &str) -> Found {
    let word = text.trim_matches(|c: char| !c.is_alphabetic());
    let is_endless = ["inf", "infinity"].iter().any(|name| word.eq_ignore_ascii_case(name));
    let is_number = text.contains(char::is_numeric) || text.contains('\u{221e}') || is_endless;
    match named {
        Some((name, _)) if is_number => Err(NoNumber(name.to_owned())),
        _ => other(named),
    }
}

/// A value that is neither a number nor a container.
fn other(named: Named<'_>) -> Found {
    match named {
        Some((name, SizePosition::Argument)) => Err(NoNumber(name.to_owned())),
        Some((_, SizePosition::Inside)) | None => Ok(None),
    }
}

/// The default values of the variables of an operation.
fn defaults(operation: &cst::OperationDefinition) -> HashMap<String, VariableDefault> {
    let definitions = operation.variable_definitions().into_iter().flat_map(|all| all.variable_definitions());
    let mut defaults = HashMap::new();
    for definition in definitions {
        let Some(name) = definition.variable().and_then(|variable| variable.name()) else { continue };
        let name = name.text().to_string();
        let default = match definition.default_value().and_then(|default| default.value()) {
            None | Some(Value::NullValue(_)) => continue,
            Some(value) => value,
        };
        let text = |value: &Value| value.syntax().text().to_string();
        let default = match defaults.remove(&name) {
            None => VariableDefault::One(default),
            Some(VariableDefault::One(known)) if text(&known).trim() == text(&default).trim() => {
                VariableDefault::One(known)
            }
            Some(_) => VariableDefault::Several,
        };
        defaults.insert(name, default);
    }
    defaults
}

/// The value of an integer literal.
fn whole(value: &cst::IntValue) -> Option<u64> {
    let token = value.syntax().first_token()?;
    (token.kind() == SyntaxKind::INT).then(|| token.text().parse().ok())?
}
