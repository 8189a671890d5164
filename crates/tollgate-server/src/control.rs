//! The control plane of a running server: reloads, readiness, snapshots, operator state, the admin API and the console.
//! No decision passes through here.

pub(crate) mod admin;

use std::sync::{Arc, OnceLock};

use crate::fleet::FleetMember;
use crate::operator_state::OperatorStateFile;
use crate::outbound::OutboundProxy;
use crate::readiness::{Audience, Readiness, ReadinessReport};
use crate::reload::Reloader;
use crate::service::Service;
use crate::snapshot;
use admin::Admin;
use admin::web_console::WebConsole;

/// The state behind probes and the admin API.
pub(crate) struct ControlPlane {
    /// The service that makes the decisions.
    pub(crate) service: Arc<Service>,
    /// Requests reloads.
    pub(crate) reloader: Reloader,
    pub(crate) readiness: Readiness,
    /// The results of snapshots. Empty if none are taken.
    pub(crate) snapshots: Arc<snapshot::SharedStatus>,
    /// The operator state on disk. `None` without a state directory.
    pub(crate) operator_state: Option<Arc<OperatorStateFile>>,
    /// This node among the others that share its store.
    pub(crate) fleet: Arc<FleetMember>,
    /// The operators of the server.
    pub(crate) admin: Admin,
    /// The outbound proxy, once it is served; empty without one.
    pub(crate) outbound: OnceLock<Arc<OutboundProxy>>,
    /// The pages for operators.
    pub(crate) web_console: WebConsole,
    /// Held while all metrics are read.
    pub(crate) scraping: tokio::sync::Mutex<()>,
}

impl ControlPlane {
    /// The metrics in Prometheus format. They are read on a separate thread, because that may take longer than a
    /// decision should wait, and once at a time.
    pub(crate) async fn metrics(&self) -> String {
        let _alone = self.scraping.lock().await;
        let service = &self.service;
        let (meter, now, wall) =
            (Arc::clone(&service.meter), service.now(), service.engine.maintenance().wall());
        // It fails only when the server is about to end.
        tokio::task::spawn_blocking(move || meter.exposition(now, wall)).await.unwrap_or_default()
    }

    /// The readiness report for the operator.
    pub(crate) fn report(&self, audience: Audience) -> ReadinessReport {
        let memory = self.service.meter.overflow.status(self.service.now());
        self.readiness.report(
            Some(&self.reloader),
            self.operator_state.as_deref(),
            memory,
            audience,
            self.service.engine.maintenance().wall(),
        )
    }
}
