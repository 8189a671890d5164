//! Parses JSON into requests with serde_json. This module defines what is accepted, and refuses the rest with the name
//! of the wrong field. It never enters anything nested deeper than a request's attributes, so it needs no depth limit.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Expected, MapAccess, SeqAccess, Visitor};
use tollgate::policy::Ended;
use tollgate::policy::source::{explained, nearest};
use tollgate::request::{ATTRIBUTES_MAX, COST_MAX};
use tollgate::{CheckRequest, RequestError, Ticks, Value};

use crate::identity::{AttributeOrigin, Identified, Identity};
use crate::json_error;
use crate::problem::Problem;

mod number;

pub(crate) use number::whole;

use number::{AttributeValue, Given, NumberRange};

/// Maximum number of requests in a batch.
pub(crate) const BATCH_MAX: usize = 1_000;
/// Minimum, default and maximum lifetime of a reservation.
pub(crate) const LIFETIME_MS: (u64, u64, u64) = (1, 60_000, 3_600_000);
/// Maximum length of the caller's text that a message echoes, in characters.
const QUOTED_MAX: usize = 60;

/// A caller's request as it was written. Text without escapes is borrowed from the body.
#[derive(Debug, Default)]
pub(crate) struct JsonRequest<'b> {
    attributes: Named<'b>,
    cost: Option<u64>,
    lifetime_ms: Option<u64>,
    /// For a report: the status that the request ended with, or whether it failed.
    status: Option<u16>,
    failed: Option<bool>,
}

/// Which fields a body may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Check,
    Reservation,
    Settlement,
    Report,
}

impl<'b> JsonRequest<'b> {
    /// Reads the body of a check.
    ///
    /// # Errors
    /// When it does not have exactly this form.
    pub(crate) fn check(body: &'b [u8]) -> Result<Self, Problem> {
        parse(body, Form::Check)
    }

    /// Reads the body of a reservation.
    ///
    /// # Errors
    /// When it does not have exactly this form.
    pub(crate) fn reservation(body: &'b [u8]) -> Result<Self, Problem> {
        parse(body, Form::Reservation)
    }

    /// Reads the body of a batch.
    ///
    /// # Errors
    /// When one of its requests is invalid. Then none is answered.
    pub(crate) fn batch(body: &'b [u8]) -> Result<Vec<Self>, Problem> {
        parse(body, Batch)
    }

    /// The request as it was sent, for rules of other programs.
    ///
    /// # Errors
    /// When a bound is exceeded.
    pub(crate) fn request(&self) -> Result<CheckRequest<'_>, RequestError> {
        let mut request = CheckRequest::new();
        self.attributes.pairs().try_for_each(|(name, value)| request.push(name, value))?;
        self.priced(request)
    }

    /// Identifies the caller.
    pub(crate) fn known(&self, identity: &Identity) -> Identified {
        self.attributes.known(identity)
    }

    /// Its attributes as they were sent.
    pub(crate) fn given(&self) -> Vec<(&str, Value<'_>)> {
        self.attributes.given()
    }

    /// The request for the engine, with the identity applied.
    ///
    /// # Errors
    /// When a bound is exceeded.
    pub(crate) fn request_of<'r>(&'r self, known: &'r Identified) -> Result<CheckRequest<'r>, RequestError> {
        self.priced(self.attributes.request_of(known)?)
    }

    /// The request with its cost.
    ///
    /// # Errors
    /// When a bound is exceeded.
    pub(crate) fn priced<'r>(&self, request: CheckRequest<'r>) -> Result<CheckRequest<'r>, RequestError> {
        match self.cost {
            Some(cost) => request.cost(cost),
            None => Ok(request),
        }
    }

    /// The lifetime of a reservation.
    pub(crate) fn lifetime(&self) -> Ticks {
        Ticks::from_millis(self.lifetime_ms.unwrap_or(LIFETIME_MS.1))
    }
}

/// Attributes, each at most once.
#[derive(Debug, Default)]
pub(crate) struct Named<'b>(Vec<(Cow<'b, str>, Given<'b>)>);

impl Named<'_> {
    /// Identifies the caller that they name.
    pub(crate) fn known(&self, identity: &Identity) -> Identified {
        identity.identify(self.pairs(), AttributeOrigin::Trusted)
    }

    /// The attributes as they were sent.
    pub(crate) fn given(&self) -> Vec<(&str, Value<'_>)> {
        self.pairs().collect()
    }

    /// A request with the identity applied.
    ///
    /// # Errors
    /// When a bound is exceeded.
    pub(crate) fn request_of<'r>(&'r self, known: &'r Identified) -> Result<CheckRequest<'r>, RequestError> {
        known.request(self.pairs())
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.0.iter().map(|(name, given)| match given {
            Given::Text(text) => (&**name, Value::Text(text)),
            Given::Number(number) => (&**name, Value::Number(*number)),
        })
    }
}

impl<'de: 'b, 'b> serde::Deserialize<'de> for Named<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Attributes.deserialize(deserializer).map(Self)
    }
}

/// Reads the body of a commit: the real cost of the request.
///
/// # Errors
/// When it does not have exactly this form.
pub(crate) fn settlement(body: &[u8]) -> Result<u64, Problem> {
    let question = parse(body, Form::Settlement)?;
    question.cost.ok_or_else(|| {
        Problem::invalid(format!("cost: missing; accepted: a whole number from 0 to {COST_MAX}"))
    })
}

/// Reads the body of a report: how a request ended.
///
/// # Errors
/// When it does not have exactly this form.
pub(crate) fn ended(body: &[u8]) -> Result<Ended, Problem> {
    let report = parse(body, Form::Report)?;
    match (report.status, report.failed) {
        (Some(status), None) => Ok(Ended::Status(status)),
        (None, Some(true)) => Ok(Ended::Failed),
        (None, Some(false)) => Ok(Ended::Succeeded),
        _ => Err(Problem::invalid("accepted: either status, from 100 to 599, or failed, true or false")),
    }
}

fn parse<'b, T>(body: &'b [u8], seed: T) -> Result<<T as DeserializeSeed<'b>>::Value, Problem>
where
    T: DeserializeSeed<'b> + Visitor<'b> + Copy,
{
    let text = std::str::from_utf8(body).map_err(|error| {
        Problem::invalid(format!("the body is not UTF-8 at byte {}", error.valid_up_to()))
    })?;
    let mut parser = serde_json::Deserializer::from_str(text);
    let read = seed.deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    read.map_err(|error| {
        let accepted: &dyn Expected = &seed;
        Problem::invalid(json_error::explained(&error, &accepted))
    })
}

impl Form {
    /// The fields of an object of this form.
    const fn field_names(self) -> &'static [&'static str] {
        match self {
            Form::Check => &["attributes", "cost"],
            Form::Reservation => &["attributes", "cost", "ttl_ms"],
            Form::Settlement => &["cost"],
            Form::Report => &["status", "failed"],
        }
    }

    const fn fields(self) -> &'static str {
        match self {
            Form::Check => "attributes and cost",
            Form::Reservation => "attributes, cost and ttl_ms",
            Form::Settlement => "cost",
            Form::Report => "status or failed",
        }
    }
}

impl<'de> DeserializeSeed<'de> for Form {
    type Value = JsonRequest<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Form {
    type Value = JsonRequest<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with {}", self.fields())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut question = JsonRequest::default();
        let mut attributes = None;
        while let Some(field) = map.next_key_seed(Name)? {
            match (field.as_ref(), self) {
                ("attributes", Form::Check | Form::Reservation) => {
                    let given = map.next_value_seed(Attributes)?;
                    once("attributes", attributes.replace(given))?;
                }
                ("cost", Form::Check | Form::Reservation | Form::Settlement) => {
                    let whole = NumberRange { least: 0, most: COST_MAX };
                    let cost = map.next_value_seed(whole).map_err(|error| inside("cost: ", &error))?;
                    once("cost", question.cost.replace(cost))?;
                }
                ("status", Form::Report) => {
                    let whole = NumberRange { least: 100, most: 599 };
                    let status = map.next_value_seed(whole).map_err(|error| inside("status: ", &error))?;
                    once("status", question.status.replace(u16::try_from(status).unwrap_or(u16::MAX)))?;
                }
                ("failed", Form::Report) => {
                    let failed = map.next_value().map_err(|error: A::Error| inside("failed: ", &error))?;
                    once("failed", question.failed.replace(failed))?;
                }
                ("ttl_ms", Form::Reservation) => {
                    let whole = NumberRange { least: LIFETIME_MS.0, most: LIFETIME_MS.2 };
                    let lifetime = map.next_value_seed(whole).map_err(|error| inside("ttl_ms: ", &error))?;
                    once("ttl_ms", question.lifetime_ms.replace(lifetime))?;
                }
                (unknown, _) => {
                    let meant = nearest(unknown, self.field_names().iter().copied());
                    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
                    let problem = format!("unknown field {}{meant}", shortened(unknown));
                    return Err(A::Error::custom(explained(&problem, self.fields())));
                }
            }
        }
        match attributes {
            Some(attributes) => question.attributes = Named(attributes),
            None if matches!(self, Form::Settlement | Form::Report) => {}
            None => {
                return Err(A::Error::custom("attributes: missing; accepted: an object, which may be empty"));
            }
        }
        Ok(question)
    }
}

/// Refuses a duplicate field.
fn once<T, E: Error>(field: &str, before: Option<T>) -> Result<(), E> {
    match before {
        None => Ok(()),
        Some(_) => Err(E::custom(format_args!("{field}: given twice; give each field once"))),
    }
}

/// An error with the path to its position. The position at the end of serde_json's message is kept.
fn inside<E: Error>(path: &str, error: &E) -> E {
    E::custom(format_args!("{path}{error}"))
}

/// The caller's text for a message: shortened, and quoted so that its ends are visible.
fn shortened(text: &str) -> String {
    if text.chars().nth(QUOTED_MAX).is_some() {
        let start: String = text.chars().take(QUOTED_MAX).collect();
        return format!("{start:?}…");
    }
    format!("{text:?}")
}

/// A batch of checks.
#[derive(Clone, Copy)]
struct Batch;

impl<'de> DeserializeSeed<'de> for Batch {
    type Value = Vec<JsonRequest<'de>>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Batch {
    type Value = Vec<JsonRequest<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of at most {BATCH_MAX} objects with {}", Form::Check.fields())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut questions = Vec::new();
        while let Some(question) = items
            .next_element_seed(Form::Check)
            .map_err(|error| inside(&format!("[{}]: ", questions.len()), &error))?
        {
            if questions.len() == BATCH_MAX {
                return Err(A::Error::custom(format_args!(
                    "more than {BATCH_MAX} items; send several batches"
                )));
            }
            questions.push(question);
        }
        Ok(questions)
    }
}

/// The attributes of a request.
struct Attributes;

impl<'de> DeserializeSeed<'de> for Attributes {
    type Value = Vec<(Cow<'de, str>, Given<'de>)>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Attributes {
    type Value = Vec<(Cow<'de, str>, Given<'de>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`attributes` as an object of names with text or whole numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut attributes: Self::Value = Vec::new();
        while let Some(name) = map.next_key_seed(Name)? {
            // Both are checked again when the request is built. Here they bound the work of this loop.
            if attributes.len() == ATTRIBUTES_MAX {
                return Err(A::Error::custom(format_args!(
                    "attributes: more than {ATTRIBUTES_MAX} were given; send only those that the policy mentions"
                )));
            }
            if attributes.iter().any(|(known, _)| *known == name) {
                let name = shortened(&name);
                return Err(A::Error::custom(format_args!(
                    "attributes.{name}: given twice; give each attribute once"
                )));
            }
            let given = map
                .next_value_seed(AttributeValue)
                .map_err(|error| inside(&format!("attributes.{}: ", shortened(&name)), &error))?;
            attributes.push((name, given));
        }
        Ok(attributes)
    }
}

/// The name of a field or an attribute.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests;
