//! Reloading on request: what is on disk is put in force now, and on an admin's word even what looks like an accident.

use serde::Serialize;
use tollgate::SwapReport;
use tollgate::store::Store;

use super::answer::{Act, Told};
use super::form::ReloadForm;
use super::refusal::Refusal;
use super::token::Role;
use super::view::{self, FieldChangeView};
use crate::http::Problem;
use crate::reload::Done;
use crate::service::Service;

/// What a reload did.
#[derive(Serialize)]
struct ReloadView {
    /// Whether another policy is in force than before.
    reloaded: bool,
    /// The version in force; standard input has none.
    version: Option<String>,
    /// Fields of the whole policy that are not as they were.
    policy: Vec<FieldChangeView>,
    changed: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
    restarted: Vec<String>,
}

impl ReloadView {
    fn new(done: Done, version: Option<String>) -> Self {
        let (reloaded, report) = match done {
            Done::Nothing => (false, SwapReport::default()),
            Done::Reloaded(report) => (true, report),
        };
        let SwapReport { fields, changed, added, removed, restarted } = report;
        Self { reloaded, version, policy: view::fields(&fields), changed, added, removed, restarted }
    }

    /// In words for the audit log.
    fn outcome(&self) -> String {
        if !self.reloaded {
            return "what is on disk is in force already".to_owned();
        }
        let [changed, added, removed, restarted] =
            [&self.changed, &self.added, &self.removed, &self.restarted].map(Vec::len);
        let version = self.version.as_deref().unwrap_or_default();
        let fields: String =
            self.policy.iter().map(|change| format!("the policy {}, ", change.after)).collect();
        format!(
            "version {version} in force: {fields}{changed} changed, {added} added, {removed} removed, {restarted} restarted"
        )
    }
}

impl<S: Store> Service<S> {
    /// Puts in force what is on disk. What looks like an accident is an admin's affair.
    pub(super) async fn reload(&self, act: &Act<'_>, form: &ReloadForm) -> Result<Told, Problem> {
        let about = if form.force { "what the guard refuses" } else { "" };
        if form.force {
            act.allow(Role::Admin, about)?;
        }
        let Some(reloader) = &self.reloader else {
            return Err(Problem::of_admin(Refusal::Conflict, "this server watches no policy"));
        };
        let reloading = async { if form.force { reloader.force().await } else { reloader.now().await } };
        let done = tokio::select! {
            done = reloading => done,
            // A disk that does not answer must not keep a server that is to stop.
            () = self.readiness.stopped() => Err("the server is about to stop; nothing was reloaded".to_owned()),
        };
        let done = done.map_err(|why| {
            act.audit(about, &format!("refused: {why}"));
            Problem::of_admin(Refusal::Conflict, why)
        })?;
        let view = ReloadView::new(done, reloader.status().version.map(|version| version.short()));
        act.audit(about, &view.outcome());
        Told::json(&view)
    }
}
