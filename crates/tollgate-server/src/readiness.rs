//! The answer of `/readyz`. A server is ready if it answers decisions, whatever the state of its policy file or its
//! store: a fleet that turns unready together, because of a shared file or store, is an outage. Only a server that
//! received a stop signal is not ready.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;
use tollgate::time::WallOffset;

use crate::callers::CallersFile;
use crate::failure::Failure;
use crate::file_watch::{FileStatus, Reloadable};
use crate::operator_state::OperatorStateFile;
use crate::reload::{PolicyStatus, Reloader};
use crate::store_watch::{StoreReport, StoreWatch};
use crate::time_text::rfc3339;
use crate::tls::Tls;

/// Whether the server is ready, and the state for its operator.
#[derive(Default)]
pub(crate) struct Readiness {
    pub(crate) tls: Option<Arc<Tls>>,
    /// The callers file, if there is one.
    pub(crate) callers: Option<Arc<CallersFile>>,
    /// The shared store, if there is one.
    pub(crate) store: Option<Arc<StoreWatch>>,
    stopping: watch::Sender<bool>,
}

impl Readiness {
    /// The readiness of a server with these files and this store.
    pub(crate) fn of(
        tls: Option<Arc<Tls>>,
        callers: Option<Arc<CallersFile>>,
        store: Option<Arc<StoreWatch>>,
    ) -> Self {
        Self { tls, callers, store, stopping: watch::Sender::default() }
    }

    /// Records the stop signal: load balancers should send no requests here from now on.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits for the stop signal.
    pub(crate) async fn stopped(&self) {
        // It fails only without a sender, which lives as long as this.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Whether requests should come here.
    pub(crate) fn is_ready(&self) -> bool {
        !*self.stopping.borrow()
    }

    /// The report to send.
    pub(crate) fn report(
        &self,
        reloader: Option<&Reloader>,
        operator_state: Option<&OperatorStateFile>,
        memory: Option<Failure>,
        audience: Audience,
        wall: WallOffset,
    ) -> ReadinessReport {
        let failed = |failure: &Failure| ErrorReport::of(failure, wall);
        let policy = reloader.map(Reloader::status);
        let tls = self.tls.as_ref().map(|tls| tls.files().status());
        let callers = self.callers.as_ref().map(|callers| (callers.known(), callers.files().status()));
        let operator_state_error = operator_state.and_then(OperatorStateFile::error);
        let is_degraded = operator_state_error.is_some()
            || memory.is_some()
            || self.store.as_ref().is_some_and(|store| store.is_degraded())
            || policy.as_ref().is_some_and(|status| status.is_degraded())
            || tls.as_ref().is_some_and(|status| status.trouble().is_some())
            || callers.as_ref().is_some_and(|(_, status)| status.trouble().is_some());
        let status = match (self.is_ready(), is_degraded) {
            (false, _) => "stopping",
            (true, true) => "degraded",
            (true, false) => "ok",
        };
        match audience {
            Audience::Anybody => ReadinessReport {
                status,
                policy: None,
                tls: None,
                callers: None,
                operator_state: None,
                store: None,
                memory: None,
            },
            Audience::Admitted => ReadinessReport {
                status,
                policy: policy.map(|status| PolicyReport::of(&status, wall)),
                tls: tls.map(|status| FileReport::of(&status, wall)),
                callers: callers
                    .map(|(known, status)| CallersReport { known, file: FileReport::of(&status, wall) }),
                store: self.store.as_ref().map(|store| store.report(wall)),
                operator_state: operator_state_error
                    .map(|error| OperatorStateReport { error: failed(&error) }),
                memory: memory.map(|error| MemoryReport { error: failed(&error) }),
            },
        }
    }
}

/// The recipient of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// A client without a token, usually a probe. It gets no names or errors of files.
    Anybody,
    /// A client that may ask for decisions.
    Admitted,
}

/// The body of the answer.
#[derive(Debug, Serialize)]
pub(crate) struct ReadinessReport {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<FileReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callers: Option<CallersReport>,
    /// The shared store. It never makes a server unready, because all servers would be unready together.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreReport>,
    /// The operator state, while it is not on disk or if it was unreadable at the start.
    #[serde(rename = "orders", skip_serializing_if = "Option::is_none")]
    operator_state: Option<OperatorStateReport>,
    /// The memory for counters, while it is full: new keys then share counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryReport>,
}

/// The active policy, and why the file on disk is another one, while that is so.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    name: String,
    origin: &'static str,
    version: Option<String>,
    loaded_at: String,
    reloads: Reloads,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_error: Option<ErrorReport>,
}

#[derive(Debug, Serialize)]
struct Reloads {
    good: u64,
    bad: u64,
}

#[derive(Debug, Serialize)]
struct FileReport {
    version: Option<String>,
    loaded_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorReport>,
}

#[derive(Debug, Serialize)]
struct CallersReport {
    known: usize,
    #[serde(flatten)]
    file: FileReport,
}

#[derive(Debug, Serialize)]
struct OperatorStateReport {
    error: ErrorReport,
}

#[derive(Debug, Serialize)]
struct MemoryReport {
    error: ErrorReport,
}

#[derive(Debug, Serialize)]
struct ErrorReport {
    text: String,
    at: String,
}

impl PolicyReport {
    /// Whether the file on disk is not active.
    pub(crate) const fn has_error(&self) -> bool {
        self.error.is_some()
    }

    pub(crate) fn of(status: &PolicyStatus, wall: WallOffset) -> Self {
        let failed = |failure: &Failure| ErrorReport::of(failure, wall);
        Self {
            name: status.name.clone(),
            origin: status.origin.name(),
            version: status.version.map(|version| version.short()),
            loaded_at: rfc3339(status.loaded_at, wall),
            reloads: Reloads { good: status.good, bad: status.bad },
            error: status.trouble().map(failed),
            keep_error: status.keep_error.as_ref().map(failed),
        }
    }
}

impl FileReport {
    fn of(status: &FileStatus, wall: WallOffset) -> Self {
        Self {
            version: status.version.map(|version| version.short()),
            loaded_at: rfc3339(status.loaded_at, wall),
            error: status.trouble().map(|failure| ErrorReport::of(failure, wall)),
        }
    }
}

impl ErrorReport {
    fn of(failure: &Failure, wall: WallOffset) -> Self {
        Self { text: failure.text.clone(), at: rfc3339(failure.at, wall) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(readiness: &Readiness) -> String {
        serde_json::to_string(&readiness.report(None, None, None, Audience::Admitted, WallOffset::NONE))
            .unwrap()
    }

    /// A server is unready only after the stop signal.
    #[test]
    fn stopping_is_not_ready() {
        let readiness = Readiness::default();
        assert_eq!((readiness.is_ready(), json(&readiness).as_str()), (true, r#"{"status":"ok"}"#));
        readiness.stop();
        assert_eq!((readiness.is_ready(), json(&readiness).as_str()), (false, r#"{"status":"stopping"}"#));
    }
}
