//! The live overview as server-sent events. Every viewer gets the same bytes, serialised once; a viewer that is slow
//! misses seconds.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tollgate::Clock;

use super::super::reply::AdminClient;
use super::super::tail::EventBody;
use super::super::token::Role;
use super::LatestEvent;
use super::session::{ConsoleSession, Sessions};
use crate::control::ControlPlane;
use crate::problem::{AdminProblem, Problem};
use crate::shutdown::{Stop, stopped};

/// Maximum number of events queued for a viewer.
const EVENTS_MAX: usize = 4;

/// One event in the format of server-sent events. JSON has no line breaks.
pub(super) fn event(name: &str, document: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(document).unwrap_or_default();
    format!("event: {name}\ndata: {json}\n\n").into()
}

/// A viewer, and what ends its view.
struct Viewer {
    session: Arc<ConsoleSession>,
    sessions: Arc<Sessions>,
    clock: Clock,
    stop: Stop,
    _permit: OwnedSemaphorePermit,
}

/// Starts a view of the overview.
///
/// # Errors
/// When there are as many viewers as there may be.
pub(super) fn events(
    control: &ControlPlane,
    session: Arc<ConsoleSession>,
    asker: AdminClient,
) -> Result<EventBody, Problem> {
    let console = &control.web_console;
    let permit = Arc::clone(&console.viewers).try_acquire_owned().map_err(|_| {
        let detail = "as many consoles are open as may be; close one, or use `tollgate top`";
        Problem::of_admin(AdminProblem::TooManyWatchers, detail)
    })?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let viewer = Viewer {
        session,
        sessions: Arc::clone(&console.sessions),
        clock: control.admin.clock.clone(),
        stop: asker.stop,
        _permit: permit,
    };
    tokio::spawn(pump(console.latest.subscribe(), viewer, sender));
    Ok(EventBody::new(events, asker.answering))
}

async fn pump(mut latest: watch::Receiver<LatestEvent>, mut viewer: Viewer, events: mpsc::Sender<Bytes>) {
    // The first bytes at once, so that the browser sees that it is connected.
    let mut next = vec![Bytes::from_static(b"retry: 2000\n\n")];
    loop {
        for event in next.drain(..) {
            match events.try_send(event) {
                // A slow viewer gets a later second.
                Ok(()) | Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Closed(_)) => return,
            }
        }
        tokio::select! {
            changed = latest.changed() => if changed.is_err() { return },
            () = stopped(&mut viewer.stop) => return,
            () = events.closed() => return,
        }
        if !viewer.sessions.holds(&viewer.session, viewer.clock.now()) {
            return;
        }
        let LatestEvent { overview, audit } = latest.borrow_and_update().clone();
        next.push(overview);
        if viewer.session.who.role >= Role::Admin {
            next.push(audit);
        }
    }
}
