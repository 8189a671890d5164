//! Reloading on request: what is on disk is put in force now, and on an admin's word even what looks like an accident.

use serde::Serialize;
use tollgate::SwapReport;
use tollgate::policy::Change;

use super::answer::{Act, AdminAnswer};
use super::form::ReloadForm;
use super::token::Role;
use super::view::{self, ChangeView, FieldChangeView};
use crate::control::ControlPlane;
use crate::problem::Problem;
use crate::problem::Refusal;
use crate::reload::{Done, ReloadOutcome};

/// What a reload did.
#[derive(Serialize)]
struct ReloadView<'a> {
    /// Whether another policy is in force than before.
    reloaded: bool,
    /// The version in force; standard input has none.
    version: Option<String>,
    /// Fields of the whole policy that are not as they were.
    policy: Vec<FieldChangeView>,
    /// Every limit that is not as it was, as `policy diff` lists them.
    changes: Vec<ChangeView<'a>>,
    changed: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
    restarted: Vec<String>,
    resumed: Vec<String>,
    /// What else was read anew, in words: the callers file, the certificates.
    also: Vec<String>,
}

impl<'a> ReloadView<'a> {
    fn new(
        ReloadOutcome { policy, also }: ReloadOutcome,
        version: Option<String>,
        changes: &'a [Change],
    ) -> Self {
        let (reloaded, report) = match policy {
            Done::Nothing => (false, SwapReport::default()),
            Done::Reloaded(report) => (true, report),
        };
        let SwapReport { fields, changed, added, removed, restarted, resumed } = report;
        let changes = changes.iter().map(ChangeView::from).collect();
        let policy = view::fields(&fields);
        Self { reloaded, version, policy, changes, changed, added, removed, restarted, resumed, also }
    }

    /// In words for the audit log.
    fn outcome(&self) -> String {
        if !self.reloaded && self.also.is_empty() {
            return "what is on disk is in force already".to_owned();
        }
        let [changed, added, removed, restarted, resumed] =
            [&self.changed, &self.added, &self.removed, &self.restarted, &self.resumed].map(Vec::len);
        let version = self.version.as_deref().unwrap_or_default();
        let fields: String =
            self.policy.iter().map(|change| format!("the policy {}, ", change.after)).collect();
        let policy = format!(
            "version {version} in force: {fields}{changed} changed, {added} added, {removed} removed, {restarted} restarted, \
             {resumed} resumed"
        );
        let policy = self.reloaded.then_some(policy);
        policy.into_iter().chain(self.also.iter().cloned()).collect::<Vec<_>>().join("; ")
    }
}

impl ControlPlane {
    /// Puts in force what is on disk. What looks like an accident is an admin's affair.
    pub(super) async fn reload(&self, act: &Act<'_>, form: &ReloadForm) -> Result<AdminAnswer, Problem> {
        let about = if form.force { "what the guard refuses" } else { "" };
        if form.force {
            act.allow(Role::Admin, about)?;
        }
        let reloader = &self.reloader;
        let before = self.service.deciding();
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
        let changes = before.changes(&self.service.deciding());
        let view = ReloadView::new(done, reloader.status().version.map(|version| version.short()), &changes);
        act.audit(about, &view.outcome());
        AdminAnswer::json(&view)
    }
}
