//! The console: pages for operators in a browser, under `/console` of the HTTP listener. The path of a request:
//! `route` → `guard` (host and site) → `session` (the cookie, and the token of a form) → `act` (the verbs of the admin
//! API) or `overview` (what is shown) → `page` (HTML) or JSON. The `recorder` measures each second, and serialises one
//! overview for all viewers.

mod form;
mod route;
mod session;
mod panel;
mod intent;
mod sentence;
mod rate_limit_header;
mod near;
mod counts;
mod others;
mod recorder;
mod panels;
mod overview;
mod page;
mod act;
mod what_if;
mod events;
mod respond;

pub(super) use form::FormFields;
pub(super) use others::own_numbers;
pub(crate) use recorder::record;
pub(super) use respond::history;
pub(crate) use respond::respond;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use recorder::Recorder;
use session::Sessions;

/// The path of the console. Every other path of it begins with this and a slash.
pub(crate) const PATH: &str = "/console";
/// Maximum number of viewers of the live overview.
const VIEWERS_MAX: usize = 64;

/// Whether a path belongs to the console.
pub(crate) fn owns(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The state of the console.
pub(crate) struct WebConsole {
    sessions: Arc<Sessions>,
    /// The last measurement. `None` before the first measurement.
    recorder: Mutex<Option<Recorder>>,
    /// The latest overview, as an event for every viewer.
    latest: watch::Sender<LatestEvent>,
    viewers: Arc<Semaphore>,
    /// The nodes that are being asked: one look at a time for each, however many viewers there are.
    asking: Mutex<HashSet<String>>,
}

/// One overview as bytes, serialised once for all viewers.
#[derive(Clone, Debug, Default)]
struct LatestEvent {
    overview: Bytes,
    /// Only for the role admin.
    audit: Bytes,
}

impl WebConsole {
    /// The console of a server that listens on this port. Browsers send cookies to every port of a host, so the name of
    /// the cookie tells servers on one machine apart.
    pub(crate) fn new(port: u16) -> Self {
        Self {
            sessions: Arc::new(Sessions::new(port)),
            recorder: Mutex::default(),
            latest: watch::Sender::default(),
            viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
            asking: Mutex::default(),
        }
    }

    fn asking(&self) -> MutexGuard<'_, HashSet<String>> {
        // A panic while it was locked left no half of a change.
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recorder(&self) -> MutexGuard<'_, Option<Recorder>> {
        // A panic while it was locked cost one measurement.
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only `/console` and what is below it are the console's.
    #[test]
    fn paths_of_the_console() {
        assert!(owns("/console") && owns("/console/") && owns("/console/events"));
        assert!(!owns("/consoles") && !owns("/") && !owns("/console.js"));
    }

    /// The page, its script and its style are small enough to be read.
    #[test]
    fn the_assets_are_small() {
        let bytes = page::TEMPLATE.len() + page::LOGIN.len() + respond::SCRIPT.len() + respond::STYLE.len();
        assert!(bytes <= 150 << 10, "{bytes} bytes");
    }
}
