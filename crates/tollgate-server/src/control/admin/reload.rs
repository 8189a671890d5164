//! Reload on request: the files on disk become active now. If an admin forces it, so does a policy that the guard
//! refuses.

use serde::Serialize;
use tollgate::SwapReport;
use tollgate::policy::Change;

use super::act::{Act, AdminAnswer};
use super::form::ReloadForm;
use super::policy_change::{self, ChangeView, FieldChangeView};
use super::token::Role;
use crate::problem::{AdminProblem, Problem};
use crate::reload::{PolicyOutcome, PolicyStatus, ReloadOutcome};
use crate::service::deciding::Deciding;

/// The result of a reload.
#[derive(Serialize)]
struct ReloadView<'a> {
    /// Whether the active policy changed.
    reloaded: bool,
    /// The active version. Standard input has none.
    version: Option<String>,
    /// Fields of the whole policy that changed.
    policy: Vec<FieldChangeView>,
    /// Every limit that changed, as `policy diff` lists them.
    changes: Vec<ChangeView<'a>>,
    changed: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
    restarted: Vec<String>,
    resumed: Vec<String>,
    /// Other files that were read again, in words: the callers file, the certificates.
    also: Vec<String>,
    /// Findings about the active policy: each is accepted and may be a mistake.
    warnings: &'a [String],
}

impl<'a> ReloadView<'a> {
    fn new(
        ReloadOutcome { policy, also }: ReloadOutcome,
        status: &'a PolicyStatus,
        changes: &'a [Change],
    ) -> Self {
        let (version, warnings) = (status.version.map(|version| version.short()), &status.warnings[..]);
        let (reloaded, report) = match policy {
            PolicyOutcome::Nothing => (false, SwapReport::default()),
            PolicyOutcome::Reloaded(report) => (true, report),
        };
        let SwapReport { fields, changed, added, removed, restarted, resumed } = report;
        let changes = changes.iter().map(ChangeView::from).collect();
        let policy = policy_change::fields(&fields);
        Self {
            reloaded,
            version,
            policy,
            changes,
            changed,
            added,
            removed,
            restarted,
            resumed,
            also,
            warnings,
        }
    }

    /// The result in words, for the audit log.
    fn outcome(&self) -> String {
        if !self.reloaded && self.also.is_empty() {
            return "what is on disk is active already".to_owned();
        }
        let [changed, added, removed, restarted, resumed] =
            [&self.changed, &self.added, &self.removed, &self.restarted, &self.resumed].map(Vec::len);
        let version = self.version.as_deref().unwrap_or_default();
        let fields: String =
            self.policy.iter().map(|change| format!("the policy {}, ", change.after)).collect();
        let policy = format!(
            "version {version} active: {fields}{changed} changed, {added} added, {removed} removed, {restarted} restarted, \
             {resumed} resumed"
        );
        let policy = self.reloaded.then_some(policy);
        policy.into_iter().chain(self.also.iter().cloned()).collect::<Vec<_>>().join("; ")
    }
}

/// Activates what is on disk. Forcing a policy past the guard needs the role admin.
pub(super) async fn reload(act: &Act<'_>, form: &ReloadForm) -> Result<AdminAnswer, Problem> {
    let about = if form.force { "what the guard refuses" } else { "" };
    if form.force {
        act.allow(Role::Admin, about)?;
    }
    let reloader = &act.control.reloader;
    let before = Deciding::of(act.service());
    let by = act.operator();
    let reloading = async { if form.force { reloader.force(by).await } else { reloader.now(by).await } };
    let done = tokio::select! {
        done = reloading => done,
        // A disk that does not answer must not delay a server that is stopping.
        () = act.control.readiness.stopped() => Err("the server is about to stop; nothing was reloaded".to_owned()),
    };
    let done = done.map_err(|why| {
        act.audit(about, &format!("refused: {why}"));
        Problem::of_findings(AdminProblem::Conflict, why)
    })?;
    let changes = before.changes(&Deciding::of(act.service()));
    let status = reloader.status();
    let view = ReloadView::new(done, &status, &changes);
    act.audit(about, &view.outcome());
    AdminAnswer::json(&view)
}
