//! What is counted about decisions. Recorded once for each, from the [`Decision`], in [`crate::service::Service::check`]; everything
//! that shows numbers reads them here. Bounded whatever the traffic: limits come from the policy, keys only through a sketch.

#![allow(dead_code, reason = "the wires that use all of it are being built")]

use std::sync::Arc;

use tokio::sync::broadcast;
use tollgate::{CheckRequest, Decision, Timestamp};

use crate::service::Wire;

/// Events that a slow reader of the live view may fall behind before it loses some.
const EVENTS_MAX: usize = 1_024;

/// One decision, for whoever watches live.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: Timestamp,
    pub(crate) wire: Wire,
    pub(crate) allowed: bool,
    /// The limit that denied, or the tightest one.
    pub(crate) limit: String,
    /// The attributes of the request, as text, shortened.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) source: &'static str,
}

/// A key that is asked about often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopKey {
    pub(crate) limit: String,
    /// The values it counts by, as text, shortened.
    pub(crate) key: String,
    pub(crate) decisions: u64,
    pub(crate) denied: u64,
}

/// Counts decisions.
pub(crate) struct Meter {
    events: broadcast::Sender<Arc<Event>>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { events: broadcast::channel(EVENTS_MAX).0 }
    }

    /// Counts one decision. On the hot path: allocates nothing unless somebody watches.
    pub(crate) fn record(&self, request: &CheckRequest<'_>, decision: &Decision, wire: Wire, now: Timestamp) {
        let _ = (request, decision, wire, now);
    }

    /// The keys that were asked about most, most first; an estimate.
    pub(crate) fn top(&self, most: usize) -> Vec<TopKey> {
        let _ = most;
        Vec::new()
    }

    /// Every decision from now on, for as long as the receiver lives.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Arc<Event>> {
        self.events.subscribe()
    }
}
