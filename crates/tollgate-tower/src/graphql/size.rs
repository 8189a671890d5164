//! How many entries a field asks for: the sizes among its arguments, at any depth of input objects and lists, written out or in
//! variables. What a server could read as a size in another way than this is refused.

use std::collections::HashMap;

use apollo_parser::SyntaxKind;
use apollo_parser::cst::{self, CstNode, Value};
use serde_json::{Map, Value as Json};

/// Where a value stands that has the name of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// It is an argument of the field: only a number will do.
    Argument,
    /// It is inside of an argument, where the name may also be that of a person.
    Inside,
}

/// The name of a size whose value is no number of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoNumber(pub(super) String);

/// The largest size that was found, if there is one.
type Found = Result<Option<u64>, NoNumber>;

/// The name of a size that a value has, and where it stands; none for any other value.
type Named<'n> = Option<(&'n str, Place)>;

/// What a variable has where the request gives nothing.
#[derive(Clone)]
enum Default {
    One(Value),
    /// Which of several a server takes is its own affair.
    Several,
}

/// The sizes of one operation.
pub(super) struct Sizes<'p> {
    names: &'p [String],
    variables: &'p Map<String, Json>,
    defaults: HashMap<String, Default>,
    /// What was found in variables, so that each is looked through once however many fields have it.
    known: HashMap<(String, Option<Place>), Found>,
}

impl<'p> Sizes<'p> {
    pub(super) fn new(
        names: &'p [String],
        variables: &'p Map<String, Json>,
        operation: &cst::OperationDefinition,
    ) -> Self {
        Self { names, variables, defaults: defaults(operation), known: HashMap::new() }
    }

    /// The largest size among the arguments of a field.
    pub(super) fn of(&mut self, field: &cst::Field) -> Found {
        let mut largest = None;
        for argument in field.arguments().into_iter().flat_map(|all| all.arguments()) {
            let (Some(name), Some(value)) = (argument.name(), argument.value()) else { continue };
            let found = self.member(name.text().as_str(), &value, Place::Argument)?;
            largest = largest.max(found);
        }
        Ok(largest)
    }

    fn member(&mut self, name: &str, value: &Value, place: Place) -> Found {
        let named = self.is_size(name).then_some((name, place));
        self.literal(value, named)
    }

    fn is_size(&self, name: &str) -> bool {
        self.names.iter().any(|size| size == name)
    }

    /// The largest size in a value that is written out. The entries of a list may each be answered, so theirs are added.
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
                    largest = largest.max(self.member(name.text().as_str(), &value, Place::Inside)?);
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

    /// The same of a variable.
    fn variable(&mut self, name: String, named: Named<'_>) -> Found {
        let key = (name, named.map(|(_, place)| place));
        let wrong = || NoNumber(named.map_or_else(|| key.0.clone(), |(size, _)| size.to_owned()));
        if let Some(known) = self.known.get(&key) {
            return known.clone().map_err(|_| wrong());
        }
        // A default that names its own variable has no value.
        self.known.insert(key.clone(), Err(wrong()));
        let found = match (self.variables.get(&key.0), self.defaults.get(&key.0).cloned()) {
            (Some(given), _) => self.given(given, named),
            (None, None) => Ok(None),
            (None, Some(Default::Several)) => Err(wrong()),
            (None, Some(Default::One(value))) => self.literal(&value, named),
        };
        self.known.insert(key, found.clone());
        found
    }

    /// The same of what the request gives for a variable.
    fn given(&self, value: &Json, named: Named<'_>) -> Found {
        match value {
            Json::Null => Ok(None),
            Json::Number(value) => number(named, || value.as_u64()),
            Json::String(text) => text_of(named, text),
            Json::Object(object) if !is_argument(named) => {
                let mut largest = None;
                for (name, value) in object {
                    let named = self.is_size(name).then_some((name.as_str(), Place::Inside));
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
    matches!(named, Some((_, Place::Argument)))
}

fn added(sum: Option<u64>, next: Option<u64>) -> Option<u64> {
    match (sum, next) {
        (Some(sum), Some(next)) => Some(sum.saturating_add(next)),
        (one, other) => one.or(other),
    }
}

/// A number: a size if it has the name of one, and a number of entries.
fn number(named: Named<'_>, read: impl FnOnce() -> Option<u64>) -> Found {
    let Some((name, _)) = named else { return Ok(None) };
    read().map(Some).ok_or_else(|| NoNumber(name.to_owned()))
}

/// A text is no size, but one that some language reads as a number may be one to a server: with digits of any script, behind invisible
/// spaces, of another base, with a unit behind it, or without an end.
fn text_of(named: Named<'_>, text: &str) -> Found {
    let word = text.trim_matches(|c: char| !c.is_alphabetic());
    let is_endless = ["inf", "infinity"].iter().any(|name| word.eq_ignore_ascii_case(name));
    let is_number = text.contains(char::is_numeric) || text.contains('\u{221e}') || is_endless;
    match named {
        Some((name, _)) if is_number => Err(NoNumber(name.to_owned())),
        _ => other(named),
    }
}

/// What is neither a number nor anything with values inside.
fn other(named: Named<'_>) -> Found {
    match named {
        Some((name, Place::Argument)) => Err(NoNumber(name.to_owned())),
        Some((_, Place::Inside)) | None => Ok(None),
    }
}

/// What variables have where the request gives nothing.
fn defaults(operation: &cst::OperationDefinition) -> HashMap<String, Default> {
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
            None => Default::One(default),
            Some(Default::One(known)) if text(&known).trim() == text(&default).trim() => Default::One(known),
            Some(_) => Default::Several,
        };
        defaults.insert(name, default);
    }
    defaults
}

/// A number that is written out.
fn whole(value: &cst::IntValue) -> Option<u64> {
    let token = value.syntax().first_token()?;
    (token.kind() == SyntaxKind::INT).then(|| token.text().parse().ok())?
}
