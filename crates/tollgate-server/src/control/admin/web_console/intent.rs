//! An operator's command about a key or a limit: read from a form, offered as a form, sent to the admin API, and
//! written as the command that does the same.

use serde_json::{Map, Value, json};

use super::super::route::Verb;
use super::super::token::Role;
use super::form::{FormFields, encoded};
use crate::problem::Problem;

/// The attributes of a key.
pub(super) type KeyAttributes = Map<String, Value>;

/// Its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Requests with these attributes, and the limit that counts them, if one is meant.
    Key {
        attributes: KeyAttributes,
        limit: Option<String>,
    },
    Limit(String),
    AllLimits,
    /// A controller of overload.
    Controller(String),
}

impl Subject {
    /// A key that is known by its attributes as text.
    pub(super) fn key(attributes: &[(String, String)], limit: Option<&str>) -> Self {
        let attributes = attributes.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        Subject::Key { attributes: attributes.collect(), limit: limit.map(str::to_owned) }
    }

    /// Reads it from a form or a query. A person types attributes as `key`, and forms have them as `attributes`.
    ///
    /// # Errors
    /// When it names nothing.
    pub(super) fn read(fields: &FormFields) -> Result<Self, Problem> {
        let limit = fields.get("limit").map(str::to_owned);
        let attributes = match (fields.get("attributes"), fields.get("key")) {
            (Some(json), _) => Some(serde_json::from_str(json).map_err(|_| {
                Problem::invalid("attributes: accepted is a JSON object of names with text or whole numbers")
            })?),
            (None, Some(typed)) => Some(typed_attributes(typed)?),
            (None, None) => None,
        };
        match (attributes, limit, fields.get("overload"), fields.get("all")) {
            (Some(attributes), limit, ..) => Ok(Subject::Key { attributes, limit }),
            (None, Some(limit), ..) => Ok(Subject::Limit(limit)),
            (None, None, Some(controller), _) => Ok(Subject::Controller(controller.to_owned())),
            (None, None, None, Some("true")) => Ok(Subject::AllLimits),
            _ => Err(Problem::invalid("name a key, such as api_key=k1, or a limit")),
        }
    }

    /// Its fields in a form.
    fn fields(&self) -> Vec<(&'static str, String)> {
        match self {
            Subject::Key { attributes, limit } => {
                let attributes = ("attributes", Value::Object(attributes.clone()).to_string());
                [attributes].into_iter().chain(limit.clone().map(|limit| ("limit", limit))).collect()
            }
            Subject::Limit(name) => vec![("limit", name.clone())],
            Subject::AllLimits => vec![("all", "true".to_owned())],
            Subject::Controller(name) => vec![("overload", name.clone())],
        }
    }

    /// The query of `/console/subject` about it.
    pub(super) fn query(&self) -> String {
        let fields = self.fields();
        encoded(&fields.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
    }

    /// Its name, as the title of a page.
    pub(super) fn title(&self) -> String {
        match self {
            Subject::Key { attributes, .. } => words(attributes).join(" "),
            Subject::Limit(name) => format!("limit {name}"),
            Subject::AllLimits => "all limits".to_owned(),
            Subject::Controller(name) => format!("overload controller {name}"),
        }
    }

    /// The commands that a role may give about it. `blocked` is there if an operator blocks the key.
    pub(super) fn offers(&self, role: Role, blocked: Option<&str>) -> Vec<Offer> {
        let offer = |label: &str, verb, lasting: Option<&str>| Offer {
            label: label.to_owned(),
            intent: Intent {
                verb,
                subject: self.clone(),
                lasting: lasting.map(str::to_owned),
                percent: (verb == Verb::Percent).then_some(50),
            },
        };
        let overrides = [
            offer("Shadow for 10 min", Verb::Shadow, Some("10m")),
            offer("Turn off for 10 min", Verb::Kill, Some("10m")),
            offer("Turn off for 1 h", Verb::Kill, Some("1h")),
        ];
        let restore = offer("Restore", Verb::Restore, None);
        let offers = match self {
            Subject::Key { limit, .. } => {
                let mut offers = vec![
                    offer("Block for 10 min", Verb::Block, Some("10m")),
                    offer("Reset its counters", Verb::Reset, None),
                ];
                offers.extend(blocked.map(|_| offer("Unblock", Verb::Unblock, None)));
                if let Some(name) = limit {
                    for offer in Subject::Limit(name.clone()).offers(role, None).into_iter().take(2) {
                        offers.push(Offer { label: format!("{}: limit {name}", offer.label), ..offer });
                    }
                }
                offers
            }
            Subject::Limit(_) => {
                let half = offer("Enforce for 50 % of keys for 1 h", Verb::Percent, Some("1h"));
                overrides.into_iter().chain([half, restore]).collect()
            }
            Subject::AllLimits if role < Role::Admin => Vec::new(),
            Subject::AllLimits | Subject::Controller(_) => overrides.into_iter().chain([restore]).collect(),
        };
        offers.into_iter().filter(|offer| role >= offer.intent.verb.role()).collect()
    }
}

/// Something that may be done.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) label: String,
    pub(super) intent: Intent,
}

/// The command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) verb: Verb,
    pub(super) subject: Subject,
    pub(super) lasting: Option<String>,
    pub(super) percent: Option<u8>,
}

/// The verbs of the console.
const VERBS: [Verb; 8] = [
    Verb::Explain,
    Verb::Reset,
    Verb::Block,
    Verb::Unblock,
    Verb::Kill,
    Verb::Shadow,
    Verb::Percent,
    Verb::Restore,
];

impl Intent {
    /// Reads a form.
    ///
    /// # Errors
    /// When it has no verb of the console, or names nothing.
    pub(super) fn read(fields: &FormFields) -> Result<Self, Problem> {
        let named = fields.get("verb").unwrap_or_default();
        let verb = VERBS.into_iter().find(|verb| verb.name() == named).ok_or_else(|| {
            let names: Vec<&str> = VERBS.iter().map(|verb| verb.name()).collect();
            Problem::invalid(format!("verb: accepted are {}", names.join(", ")))
        })?;
        let percent = fields.get("percent").map(|text| {
            let percent = text.parse().ok().filter(|percent| *percent <= 100);
            percent.ok_or_else(|| Problem::invalid("percent: accepted are 0 to 100"))
        });
        Ok(Self {
            verb,
            subject: Subject::read(fields)?,
            lasting: fields.get("for").map(str::to_owned),
            percent: percent.transpose()?,
        })
    }

    /// Its fields in a form.
    pub(super) fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("verb", self.verb.name().to_owned())];
        fields.extend(self.subject.fields());
        fields.extend(self.lasting.clone().map(|lasting| ("for", lasting)));
        fields.extend(self.percent.map(|percent| ("percent", percent.to_string())));
        fields
    }

    /// The body of the request to the admin API.
    pub(super) fn body(&self) -> Value {
        let mut body = match &self.subject {
            Subject::Key { attributes, .. } => json!({ "attributes": attributes }),
            Subject::Limit(name) => json!({ "limit": name }),
            Subject::AllLimits => json!({ "all": true }),
            Subject::Controller(name) => json!({ "overload": name }),
        };
        if let Some(lasting) = &self.lasting {
            body["for"] = json!(lasting);
        }
        if let Some(percent) = self.percent {
            body["percent"] = json!(percent);
        }
        body
    }

    /// The command that does the same.
    pub(super) fn command(&self) -> String {
        let mut command = vec!["tollgate".to_owned(), self.verb.name().to_owned()];
        command.extend(match &self.subject {
            Subject::Key { attributes, .. } => words(attributes).iter().map(|word| quoted(word)).collect(),
            Subject::Limit(name) => vec![quoted(name)],
            Subject::AllLimits => vec!["--all".to_owned()],
            Subject::Controller(name) => vec!["--overload".to_owned(), quoted(name)],
        });
        command.extend(self.percent.map(|percent| percent.to_string()));
        command.extend(self.lasting.iter().flat_map(|lasting| ["--for".to_owned(), quoted(lasting)]));
        command.join(" ")
    }
}

/// Attributes in the syntax of the command line.
fn words(attributes: &KeyAttributes) -> Vec<String> {
    let word = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name}={text}"),
        other => format!("{name}:={other}"),
    };
    attributes.iter().map(word).collect()
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Reads attributes as a person types them: `api_key=k1 path="/a b" level:=5`.
fn typed_attributes(typed: &str) -> Result<KeyAttributes, Problem> {
    let accepted =
        "accepted: attributes such as api_key=k1 path=\"/a b\", level:=5 for a number, or a RateLimit header";
    let mut attributes = KeyAttributes::new();
    for word in split(typed) {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| Problem::invalid(format!("key: no name=value; {accepted}")))?;
        let (name, value) = match name.strip_suffix(':') {
            Some(name) => {
                let number: i64 = value
                    .parse()
                    .map_err(|_| Problem::invalid(format!("key: {name} is no whole number; {accepted}")))?;
                (name, Value::from(number))
            }
            None => (name, Value::from(value)),
        };
        if attributes.insert(name.to_owned(), value).is_some() {
            return Err(Problem::invalid(format!("key: {name} is given twice; {accepted}")));
        }
    }
    Ok(attributes)
}

/// Splits a text at spaces outside of quotes, and removes the quotes.
fn split(typed: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for character in typed.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, _) if character.is_whitespace() => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
            }
            _ => word.push(character),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: &str) -> Result<Intent, Problem> {
        Intent::read(&FormFields::read(form.as_bytes()).unwrap())
    }

    /// A form becomes a body for the admin API and the command that does the same.
    #[test]
    fn a_form_is_a_command() {
        let block = read("verb=block&key=api_key%3Dk1+path%3D%22%2Fa+b%22&for=10m").unwrap();
        assert_eq!(block.body(), json!({"attributes": {"api_key": "k1", "path": "/a b"}, "for": "10m"}));
        assert_eq!(block.command(), "tollgate block api_key=k1 'path=/a b' --for 10m");
        let percent = read("verb=percent&limit=per-key&percent=25&for=1h").unwrap();
        assert_eq!(percent.body(), json!({"limit": "per-key", "percent": 25, "for": "1h"}));
        assert_eq!(percent.command(), "tollgate percent per-key 25 --for 1h");
        assert_eq!(read("verb=kill&all=true").unwrap().command(), "tollgate kill --all");
        assert_eq!(
            read("verb=restore&overload=queue").unwrap().command(),
            "tollgate restore --overload queue"
        );
        for wrong in ["", "verb=reload&limit=a", "verb=block", "verb=block&key=k1", "verb=block&key=a:%3Dx"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    /// A value that looks like other attributes, or like a command, stays one value.
    #[test]
    fn a_hostile_value_is_one_value() {
        let hostile = "k' ; rm -rf / ; tenant=other";
        let subject = Subject::key(&[("api_key".to_owned(), hostile.to_owned())], Some("per-key"));
        let read = Subject::read(&FormFields::read(subject.query().as_bytes()).unwrap()).unwrap();
        assert_eq!(read, subject);
        let intent = Intent { verb: Verb::Reset, subject, lasting: None, percent: None };
        assert_eq!(intent.body(), json!({"attributes": {"api_key": hostile}}));
        assert_eq!(intent.command(), r"tollgate reset 'api_key=k'\'' ; rm -rf / ; tenant=other'");
    }

    /// A viewer is offered nothing, and only an admin is offered all limits.
    #[test]
    fn offers_follow_the_role() {
        let key = Subject::key(&[("api_key".to_owned(), "k".to_owned())], Some("per-key"));
        assert!(key.offers(Role::Viewer, None).is_empty());
        let labels: Vec<String> =
            key.offers(Role::Operator, Some("x")).into_iter().map(|offer| offer.label).collect();
        assert_eq!(
            labels,
            [
                "Block for 10 min",
                "Reset its counters",
                "Unblock",
                "Shadow for 10 min: limit per-key",
                "Turn off for 10 min: limit per-key"
            ]
        );
        assert!(Subject::AllLimits.offers(Role::Operator, None).is_empty());
        assert_eq!(Subject::AllLimits.offers(Role::Admin, None).len(), 4);
    }
}
