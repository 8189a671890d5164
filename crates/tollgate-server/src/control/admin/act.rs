//! An operator's request while it is executed: what it needs of the server, its instant, its audit and its answer.

use std::sync::Arc;

use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use serde::Serialize;
use serde_json::Value;
use tollgate::time::WallOffset;
use tollgate::{ExpiringOverride, Timestamp};

use super::route::Verb;
use super::tail::EventBody;
use super::token::{Role, TokenHolder};
use super::view::{ExpiringOverrideView, Instant};
use crate::control::ControlPlane;
use crate::problem::{AdminProblem, Kind, Problem};
use crate::readiness::PolicyReport;
use crate::request_body::{self, BODY_BYTES_MAX};
use crate::service::Service;

/// The answer to a request.
pub(super) enum AdminAnswer {
    /// A document.
    Json(Bytes),
    /// Lines, streamed as they come.
    Lines(EventBody),
}

impl AdminAnswer {
    pub(super) fn json(document: &impl Serialize) -> Result<Self, Problem> {
        // Text and numbers always have a form in JSON. If there is a mistake, it costs one answer and not the process.
        serde_json::to_vec(document)
            .map(|text| AdminAnswer::Json(text.into()))
            .map_err(|error| Problem::new(Kind::StoreUnavailable, format!("the answer has no form: {error}")))
    }

    /// Adds a text field to the document.
    pub(super) fn with(self, name: &str, text: &str) -> Result<Self, Problem> {
        let mut answer = self;
        if let AdminAnswer::Json(bytes) = &answer
            && let Ok(Value::Object(mut document)) = serde_json::from_slice(bytes)
        {
            let before = document.get(name).and_then(Value::as_str).map(|before| format!("{before}; "));
            document.insert(name.to_owned(), format!("{}{text}", before.unwrap_or_default()).into());
            answer = Self::json(&document)?;
        }
        Ok(answer)
    }
}

/// One request of an identified sender. The time is read here, once for each request.
pub(super) struct Act<'a> {
    pub(super) control: &'a ControlPlane,
    who: &'a TokenHolder,
    pub(super) verb: Verb,
    pub(super) now: Timestamp,
    pub(super) wall: WallOffset,
}

impl<'a> Act<'a> {
    /// Checks that the operator may do it, and that the active policy knows it.
    pub(super) fn begin(
        control: &'a ControlPlane,
        who: &'a TokenHolder,
        verb: Verb,
    ) -> Result<Self, Problem> {
        let service = &control.service;
        let (now, wall) = (service.now(), service.engine.maintenance().wall());
        let act = Act { control, who, verb, now, wall };
        act.allow(verb.role(), "")?;
        if !verb.applies_to_compat() {
            act.needs_policy()?;
        }
        Ok(act)
    }

    /// The service that the request is about.
    pub(super) const fn service(&self) -> &'a Arc<Service> {
        &self.control.service
    }

    /// The operator, as the audit log names them.
    pub(super) fn operator(&self) -> String {
        format!("{} ({})", self.who.name, self.who.role.name())
    }

    pub(super) fn audit(&self, about: &str, outcome: &str) {
        self.control.admin.audit.write(self.who, self.verb.name(), about, outcome, self.shown(self.now));
    }

    /// An instant of the decision clock, for output.
    pub(super) const fn shown(&self, at: Timestamp) -> Instant {
        Instant::new(at, self.wall)
    }

    /// An override, for output.
    pub(super) const fn expiring(&self, expiring: ExpiringOverride) -> ExpiringOverrideView {
        ExpiringOverrideView::new(expiring, self.wall)
    }

    /// Refuses the request if the sender's role is below `least`.
    pub(super) fn allow(&self, least: Role, about: &str) -> Result<(), Problem> {
        if self.who.role >= least {
            return Ok(());
        }
        self.audit(about, "refused: the role may not do this");
        let (verb, has, needs) = (self.verb.name(), self.who.role.name(), least.name());
        let about = if about.is_empty() { String::new() } else { format!(" about {about}") };
        let detail = format!(
            "{verb}{about} needs the role {needs}, and the token of {} has the role {has}",
            self.who.name
        );
        Err(Problem::of_admin(AdminProblem::NotAllowed, detail))
    }

    /// Refuses a verb about Tollgate limits while the rules of another program are active.
    pub(super) fn needs_policy(&self) -> Result<(), Problem> {
        let Some(compat) = self.service().compat() else { return Ok(()) };
        let (verb, format) = (self.verb.name(), compat.rules.format().name());
        let detail = format!(
            "{verb} is about limits of a Tollgate policy, and the active policy is {format}; accepted: block, unblock, \
             kill, shadow and restore of all limits, limits, top, tail and audit"
        );
        Err(Problem::of_admin(AdminProblem::Conflict, detail))
    }

    /// The active policy, and why the file on disk is another one, while that is so.
    pub(super) fn policy_report(&self) -> PolicyReport {
        PolicyReport::of(&self.control.reloader.status(), self.wall)
    }
}

pub(super) async fn body(request: Request<Incoming>) -> Result<Bytes, Problem> {
    request_body::read(request, BODY_BYTES_MAX).await
}
