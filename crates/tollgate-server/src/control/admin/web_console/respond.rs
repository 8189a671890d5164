//! Answers requests to the console. Nothing is loaded from elsewhere, nothing is cached, and scripts run only from this
//! server's own file.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER, SET_COOKIE};
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};
use tollgate::CredentialDigest;

use super::super::act::{Act, AdminAnswer};
use super::super::fleet;
use super::super::form::{TailChoice, ViewScope, past};
use super::super::reply::{AdminBody, AdminClient};
use super::super::route::Verb;
use super::super::tail::{EventBody, TailFilter};
use super::super::token::Role;
use super::act;
use super::events;
use super::form::FormFields;
use super::others;
use super::overview;
use super::page;
use super::panel::Tone;
use super::panels;
use super::recorder;
use super::route::ConsoleRoute;
use super::sentence::Sentences;
use super::session::{ConsoleSession, Transport};
use super::what_if;
use crate::control::ControlPlane;
use crate::fleet::PeerRequest;
use crate::problem::{AdminProblem, Kind, Problem};
use crate::request_body::{self, BATCH_BYTES_MAX, BODY_BYTES_MAX};
use crate::telemetry::names::{OUTCOMES, VERDICTS};

/// The script and the style of the console.
pub(super) const SCRIPT: &str = include_str!("console.js");
pub(super) const STYLE: &str = include_str!("console.css");

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
/// How far the tail of denials looks back by default.
const PAST_SHOWN: &str = "1h";
/// The content security policy of the console's pages.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// How the client reads answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerForm {
    Page,
    Json,
}

impl AnswerForm {
    /// The script asks for JSON. Browsers ask for pages.
    fn of(headers: &HeaderMap) -> Self {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if accept.starts_with(JSON) { AnswerForm::Json } else { AnswerForm::Page }
    }
}

/// Answers one request of the console.
pub(crate) async fn respond(
    control: &ControlPlane,
    request: Request<Incoming>,
    asker: AdminClient,
) -> Response<AdminBody> {
    let form = AnswerForm::of(request.headers());
    let mut response = match console_answer(control, request, asker, form).await {
        Ok(response) => response,
        Err(problem) => refused(&problem, form),
    };
    guarded(response.headers_mut());
    response
}

async fn console_answer(
    control: &ControlPlane,
    request: Request<Incoming>,
    asker: AdminClient,
    form: AnswerForm,
) -> Result<Response<AdminBody>, Problem> {
    let route = ConsoleRoute::of(request.method(), request.uri().path())?;
    if route.is_public() {
        control.admin.admit_host(&request)?
    } else {
        control.admin.admit_page(&request)?
    }
    match route {
        ConsoleRoute::Script => return Ok(typed(SCRIPT, "text/javascript; charset=utf-8")),
        ConsoleRoute::StyleSheet => return Ok(typed(STYLE, "text/css; charset=utf-8")),
        ConsoleRoute::Login => return log_in(control, request, &asker).await,
        _ => {}
    }
    let Some(session) = control.web_console.sessions.of(request.headers(), control.service.now()) else {
        return match route {
            ConsoleRoute::Overview => Ok(typed(page::login(None), HTML)),
            _ => Err(Problem::of_admin(AdminProblem::NoToken, "log in at /console")),
        };
    };
    match route {
        ConsoleRoute::Events => Ok(streamed(events::events(control, session, asker)?, "text/event-stream")),
        ConsoleRoute::Tail => {
            let fields = FormFields::read(request.uri().query().unwrap_or_default().as_bytes())?;
            let shown = match fields.get("denied") {
                // It begins with the denials that are remembered.
                Some("true") => {
                    let since = past(fields.get("since").unwrap_or(PAST_SHOWN))?;
                    TailChoice { filter: TailFilter::Denied, since: Some(since) }
                }
                _ => TailChoice { filter: TailFilter::All, since: None },
            };
            console_tail(control, &session, shown, asker).await
        }
        ConsoleRoute::History => {
            let fields = FormFields::read(request.uri().query().unwrap_or_default().as_bytes())?;
            let history = others::fleet_history(control, fields.get("limit"), session.key()).await?;
            Ok(typed(history.to_string(), JSON))
        }
        ConsoleRoute::Subject => {
            let fields = FormFields::read(request.uri().query().unwrap_or_default().as_bytes())?;
            let about = act::about_subject(control, &session, &fields).await?;
            Ok(match form {
                AnswerForm::Json => typed(about.document().to_string(), JSON),
                AnswerForm::Page => {
                    typed(page::subject(&about.title, &about.sentences, &about.offers, &session), HTML)
                }
            })
        }
        ConsoleRoute::Logout | ConsoleRoute::Act | ConsoleRoute::WhatIf | ConsoleRoute::Digest => {
            posted(control, route, request, &session, form).await
        }
        _ => console_page(control, &session).await,
    }
}

/// Streams the decisions of all nodes.
async fn console_tail(
    control: &ControlPlane,
    session: &ConsoleSession,
    shown: TailChoice,
    asker: AdminClient,
) -> Result<Response<AdminBody>, Problem> {
    let act = Act::begin(control, &session.who, Verb::Tail)?;
    let nodes = fleet::meant(&control.fleet, &ViewScope::Auto).await?;
    let since = shown.since.map_or_else(String::new, |since| format!("&since={}s", since.ceil_seconds()));
    let path = format!("/admin/v1/tail?denied={}{since}", shown.filter == TailFilter::Denied);
    let request = PeerRequest { method: "GET", path, body: Bytes::new(), key: session.key().clone() };
    match fleet::tail(&act, shown, nodes, request, asker).await? {
        AdminAnswer::Lines(lines) => Ok(streamed(lines, "application/x-ndjson")),
        AdminAnswer::Json(document) => Ok(typed(document, JSON)),
    }
}

/// The console as a page.
async fn console_page(
    control: &ControlPlane,
    session: &ConsoleSession,
) -> Result<Response<AdminBody>, Problem> {
    recorder::look_around(control).await;
    others::ask_others_if_old(control).await;
    let overview = overview::overview(control).ok_or_else(|| {
        Problem::new(Kind::StoreUnavailable, "the console measures each second; ask again in a moment")
    })?;
    let audit = (session.who.role >= Role::Admin).then(|| panels::audit_panel(control));
    Ok(typed(page::console(&overview, audit.as_ref(), session), HTML))
}

/// Begins a session for the holder of a token. A wrong one gets the form again, and counts as on every other path.
async fn log_in(
    control: &ControlPlane,
    request: Request<Incoming>,
    asker: &AdminClient,
) -> Result<Response<AdminBody>, Problem> {
    let body = request_body::read_any(request, BODY_BYTES_MAX).await?;
    let fields = FormFields::read(&body)?;
    let token = fields.get("token").unwrap_or_default();
    let known = match control.admin.identify(token, asker.peer) {
        Ok(known) => known,
        Err(problem) => {
            let mut response = typed(page::login(Some(&problem.detail)), HTML);
            set_status(&mut response, &problem);
            return Ok(response);
        }
    };
    let cookie = control.web_console.sessions.begin(known, transport(control), control.service.now());
    let cookie = cookie.ok_or_else(|| {
        Problem::of_admin(AdminProblem::Conflict, "the system has no random numbers for a session")
    })?;
    Ok(redirect(&cookie))
}

/// A form of the console. It must have the token of its session, which only the console's own pages contain.
async fn posted(
    control: &ControlPlane,
    route: ConsoleRoute,
    request: Request<Incoming>,
    session: &Arc<ConsoleSession>,
    form: AnswerForm,
) -> Result<Response<AdminBody>, Problem> {
    let bytes_max = if route == ConsoleRoute::WhatIf { BATCH_BYTES_MAX } else { BODY_BYTES_MAX };
    let body = request_body::read_any(request, bytes_max).await?;
    let fields = FormFields::read(&body)?;
    if !session.owns_form(fields.get("form_token")) {
        let detail = "the form is not of this session; load the console again and repeat it";
        return Err(Problem::of_admin(AdminProblem::CrossSite, detail));
    }
    if route == ConsoleRoute::Logout {
        return Ok(redirect(&control.web_console.sessions.end(session, transport(control))));
    }
    if route == ConsoleRoute::Digest {
        return Ok(typed(digests(fields.get("text").unwrap_or_default()).to_string(), JSON));
    }
    let acted = match route {
        ConsoleRoute::WhatIf => what_if::what_if(control, session, &fields).await?,
        _ => match act::act(control, session, &fields).await {
            // The script shows that a question is none. A browser would log the status as an error of the page.
            Err(problem) if form == AnswerForm::Json && is_question(&fields, &problem) => {
                return Ok(typed(problem_document(&problem), JSON));
            }
            acted => acted?,
        },
    };
    Ok(match form {
        AnswerForm::Json => typed(acted.document().to_string(), JSON),
        AnswerForm::Page => typed(page::acted(&acted), HTML),
    })
}

const fn transport(control: &ControlPlane) -> Transport {
    if control.readiness.tls.is_some() { Transport::Tls } else { Transport::Plain }
}

/// Counts by second and by minute, of all decisions or of one limit. Counters that are always zero are left out.
pub(in super::super) fn history(control: &ControlPlane, limit: Option<&str>) -> Result<Value, Problem> {
    let recorder = control.web_console.recorder();
    let history = recorder.as_ref().map(|recorder| &recorder.history);
    let (mut seconds, mut minutes) = (serde_json::Map::new(), serde_json::Map::new());
    let mut add = |name: &str, by_second: Vec<u32>, by_minute: Vec<u32>| {
        if by_second.iter().chain(&by_minute).any(|count| *count > 0) {
            seconds.insert(name.to_owned(), by_second.into());
            minutes.insert(name.to_owned(), by_minute.into());
        }
    };
    match (limit, history) {
        (None, Some(history)) => {
            for (index, name) in VERDICTS.into_iter().enumerate() {
                add(name, history.all.seconds(index), history.all.minutes(index));
            }
        }
        (Some(limit), Some(history)) => {
            let track = history.limit(limit).ok_or_else(|| {
                Problem::of_admin(
                    AdminProblem::Unknown,
                    "this limit has no history: it had no decisions yet, or too many others did before it",
                )
            })?;
            for (index, name) in OUTCOMES.into_iter().enumerate() {
                add(name, track.seconds(index), track.minutes(index));
            }
        }
        (_, None) => {}
    }
    Ok(json!({ "seconds": seconds, "minutes": minutes }))
}

/// How decisions show a credential that was typed: its digest, alone or after the name of its attribute. A credential may
/// itself have an equals sign.
fn digests(text: &str) -> Value {
    let digest = |value: &str| CredentialDigest::of_value(value).to_string();
    let named = text.split_once('=').map(|(name, value)| format!("{name}={}", digest(value)));
    named.into_iter().chain([digest(text)]).collect()
}

fn typed(body: impl Into<Bytes>, content_type: &'static str) -> Response<AdminBody> {
    let mut response = Response::new(Either::Left(Full::new(body.into())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn streamed(body: EventBody, content_type: &'static str) -> Response<AdminBody> {
    let mut response = Response::new(Either::Right(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Leads to the console, and sets or removes its cookie.
fn redirect(cookie: &str) -> Response<AdminBody> {
    let mut response = typed("", HTML);
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(super::PATH));
    // It is made of letters, digits and punctuation.
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

/// Whether the problem is that a question cannot be read. It changes nothing.
fn is_question(fields: &FormFields, problem: &Problem) -> bool {
    fields.get("verb") == Some(Verb::Explain.name())
        && problem.kind.problem_type().status == StatusCode::BAD_REQUEST.as_u16()
}

/// A problem for the script.
fn problem_document(problem: &Problem) -> String {
    let document = json!({
        "title": problem.kind.problem_type().title, "sentence": problem.detail, "tone": Tone::Bad, "more": [],
    });
    document.to_string()
}

fn refused(problem: &Problem, form: AnswerForm) -> Response<AdminBody> {
    let mut response = match form {
        AnswerForm::Json => typed(problem_document(problem), JSON),
        AnswerForm::Page => {
            let sentences = Sentences { first: problem.detail.clone(), tone: Tone::Bad, more: Vec::new() };
            typed(page::message(problem.kind.problem_type().title, &sentences, ""), HTML)
        }
    };
    set_status(&mut response, problem);
    response
}

fn set_status(response: &mut Response<AdminBody>, problem: &Problem) {
    *response.status_mut() =
        StatusCode::from_u16(problem.kind.problem_type().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Kind::Admin(AdminProblem::TooManyLogins { seconds }) = problem.kind {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
}

fn guarded(headers: &mut HeaderMap) {
    for (name, value) in [
        ("content-security-policy", CONTENT_SECURITY_POLICY),
        ("x-content-type-options", "nosniff"),
        // With `no-referrer`, browsers would send forms of this page with the origin `null`.
        ("referrer-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}
