//! What is known and done about a running server beside its decisions: reloads, readiness, snapshots, operator state and the admin API.
//! No decision passes through here.

pub(crate) mod admin;

use std::sync::Arc;

use crate::orders::Orders;
use crate::readiness::{Audience, Readiness, ReadinessReport};
use crate::reload::Reloader;
use crate::service::Service;
use crate::snapshot;
use admin::Admin;

/// What operators and probes talk to.
pub(crate) struct ControlPlane {
    /// The decisions that it is about.
    pub(crate) service: Arc<Service>,
    /// Asks for another policy.
    pub(crate) reloader: Reloader,
    pub(crate) readiness: Readiness,
    /// What became of the snapshots of its counters; nothing if none are taken.
    pub(crate) snapshots: Arc<snapshot::Board>,
    /// Where what operators say is kept; none without a state directory.
    pub(crate) orders: Option<Arc<Orders>>,
    /// Who may operate the server.
    pub(crate) admin: Admin,
    /// Held while all numbers are read.
    pub(crate) scraping: tokio::sync::Mutex<()>,
}

impl ControlPlane {
    /// What was counted, as Prometheus reads it. It is read on a thread of its own, since it may take longer than a decision should
    /// wait, and once at a time.
    pub(crate) async fn metrics(&self) -> String {
        let _alone = self.scraping.lock().await;
        let service = &self.service;
        let (meter, now, wall) = (Arc::clone(&service.meter), service.now(), service.engine.wall());
        // It fails only when the server is about to end.
        tokio::task::spawn_blocking(move || meter.exposition(now, wall)).await.unwrap_or_default()
    }

    /// What the operator should know.
    pub(crate) fn report(&self, audience: Audience) -> ReadinessReport {
        let memory = self.service.meter.overflow.status(self.service.now());
        self.readiness.report(
            Some(&self.reloader),
            self.orders.as_deref(),
            memory,
            audience,
            self.service.engine.wall(),
        )
    }
}
