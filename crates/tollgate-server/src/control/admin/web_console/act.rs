//! Does what an operator wants, through the verbs of the admin API: the same roles, the same checks, the same audit log.

use serde::Serialize;
use serde_json::{Value, json};

use super::super::act::AdminAnswer;
use super::super::route::Verb;
use super::super::verbs::perform;
use super::form::FormFields;
use super::intent::{Intent, Offer, Subject};
use super::others;
use super::panel::{Panel, Tone};
use super::rate_limit_header;
use super::sentence::{Moment, Sentences, sentences};
use super::session::ConsoleSession;
use crate::control::ControlPlane;
use crate::problem::Problem;
use crate::service::Service;

/// The answer to a form.
pub(super) struct Acted {
    pub(super) title: String,
    pub(super) sentences: Sentences,
    /// The command that does the same, if there is one.
    pub(super) command: Option<String>,
    /// Tables that belong to the answer.
    pub(super) panels: Vec<Panel>,
}

/// A key or a limit, and what may be done about it.
pub(super) struct AboutSubject {
    pub(super) title: String,
    pub(super) sentences: Sentences,
    pub(super) command: Option<String>,
    pub(super) offers: Vec<Offer>,
}

/// An offer for the script.
#[derive(Serialize)]
struct OfferDocument<'a> {
    label: &'a str,
    command: String,
    fields: serde_json::Map<String, Value>,
}

impl Acted {
    pub(super) fn document(&self) -> Value {
        let mut document = document(&self.title, &self.sentences, self.command.as_deref());
        if !self.panels.is_empty() {
            document["panels"] = json!(self.panels);
        }
        document
    }
}

impl AboutSubject {
    pub(super) fn document(&self) -> Value {
        let mut document = document(&self.title, &self.sentences, self.command.as_deref());
        let offer = |offer: &Offer| {
            let fields =
                offer.intent.fields().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
            json!(OfferDocument {
                label: &offer.label,
                command: offer.intent.command(),
                fields: fields.collect(),
            })
        };
        document["offers"] = self.offers.iter().map(offer).collect();
        document
    }
}

fn document(title: &str, sentences: &Sentences, command: Option<&str>) -> Value {
    json!({
        "title": title, "sentence": sentences.first, "tone": sentences.tone, "more": sentences.more,
        "command": command,
    })
}

/// Does what a form says.
///
/// # Errors
/// When the operator may not do it, or it cannot be done.
pub(super) async fn act(
    control: &ControlPlane,
    session: &ConsoleSession,
    fields: &FormFields,
) -> Result<Acted, Problem> {
    if let Some(sentence) = fields.get("key").and_then(rate_limit_header::sentence) {
        let sentences = Sentences { first: sentence, tone: Tone::Plain, more: Vec::new() };
        let title = "RateLimit header".to_owned();
        return Ok(Acted { title, sentences, command: None, panels: Vec::new() });
    }
    let intent = Intent::read(fields)?;
    let (sentences, _) = carried_out(control, session, &intent).await?;
    let (title, command) = (intent.subject.title(), Some(intent.command()));
    Ok(Acted { title, sentences, command, panels: Vec::new() })
}

/// A key with its explanation, or a limit with its sentence; and what this operator may do about it.
///
/// # Errors
/// When there is no such limit, or the key cannot be explained.
pub(super) async fn about_subject(
    control: &ControlPlane,
    session: &ConsoleSession,
    fields: &FormFields,
) -> Result<AboutSubject, Problem> {
    let (subject, who) = (Subject::read(fields)?, &session.who);
    let is_key = matches!(subject, Subject::Key { .. }) && control.service.compat().is_none();
    if is_key {
        let intent = Intent { verb: Verb::Explain, subject, lasting: None, percent: None };
        let (sentences, answer) = carried_out(control, session, &intent).await?;
        let offers = intent.subject.offers(who.role, answer["blocked"].as_str());
        let (title, command) = (intent.subject.title(), Some(intent.command()));
        return Ok(AboutSubject { title, sentences, command, offers });
    }
    let first = match &subject {
        Subject::Limit(name) => limit_sentence(&control.service, name),
        _ => subject.title(),
    };
    let sentences = Sentences { first, tone: Tone::Plain, more: Vec::new() };
    let mut offers = subject.offers(who.role, Some("perhaps"));
    if control.service.compat().is_some() {
        offers.retain(|offer| {
            matches!(
                offer.intent.verb,
                Verb::Block | Verb::Unblock | Verb::Kill | Verb::Shadow | Verb::Restore
            )
        });
    }
    Ok(AboutSubject { title: subject.title(), sentences, command: None, offers })
}

async fn carried_out(
    control: &ControlPlane,
    session: &ConsoleSession,
    intent: &Intent,
) -> Result<(Sentences, Value), Problem> {
    let body = intent.body().to_string();
    let answer = match perform(control, &session.who, intent.verb, body.as_bytes()).await? {
        AdminAnswer::Json(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        AdminAnswer::Lines(_) => Value::Null,
    };
    let moment = Moment { now: control.service.now(), wall: control.service.engine.maintenance().wall() };
    let mut given = sentences(intent, &answer, moment);
    if intent.verb == Verb::Explain {
        // Nodes share the counters, but not their leases, nor what they remember of denials.
        for (node, other) in others::explained_elsewhere(control, body, session.key()).await {
            match other.map(|other| sentences(intent, &other, moment)) {
                Ok(other) if other.tone == given.tone => continue,
                Ok(other) => given.more.push(format!("{node} answers otherwise: {}", other.first)),
                Err(problem) => given.more.push(format!("{node} is missing: {problem}")),
            }
            // Good news is that of all nodes.
            if given.tone == Tone::Good {
                given.tone = Tone::Warn;
            }
        }
    }
    Ok((given, answer))
}

fn limit_sentence(service: &Service, name: &str) -> String {
    let policy = service.engine.policy();
    let limit = policy.limits().iter().find(|limit| limit.name() == name);
    limit.map_or_else(|| format!("the active policy has no limit {name}"), |limit| limit.sentence())
}
