//! The admin API for a running server, under `/admin/v1/` of the HTTP listener. The path of a request: `guard` (host,
//! site and token) → `route` (the verb, and the role it needs) → `act` (the request with its instant) → `verbs`
//! (calls the function of the verb) → `reply`. Every change is written to the `audit` log before the operator gets an
//! answer. `web_console` has the pages for browsers, which use the same verbs.

// What every verb uses.
mod token;
mod audit;
mod guard;
mod route;
mod form;
mod wording;
mod view;
mod traffic_view;
mod policy_change;
mod tail;
mod act;
mod attribute_checks;
mod sharing;

// The verbs.
mod counters;
mod outbound;
mod overload;
mod overrides;
mod reload;
mod fleet;
mod past_hour;
mod diff;

mod verbs;
mod reply;
pub(crate) mod web_console;

pub(crate) use policy_change::{changes, fields};
pub(crate) use reply::{AdminClient, respond};
#[allow(unreachable_pub, reason = "the command line exports it")]
pub use token::GivenToken;
pub(crate) use token::{Credentials, TokenSettings, check_token_list, credentials};

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate::Clock;

use audit::Audit;
use guard::{Hosts, Logins};
use token::Tokens;

/// The prefix of every path of the admin API.
pub(crate) const PREFIX: &str = "/admin/";
/// Maximum number of concurrent live views.
const WATCHERS_MAX: usize = 16;
/// Maximum number of concurrent answers with the requests of the last hour: each may have tens of megabytes.
const KEPT_REQUESTS_MAX: usize = 2;

/// The operators of the server, and the log of their actions.
pub(crate) struct Admin {
    tokens: Tokens,
    hosts: Hosts,
    logins: Logins,
    audit: Audit,
    watchers: Arc<Semaphore>,
    kept_requests: Arc<Semaphore>,
    /// For the comparison of a policy with the last hour, one at a time.
    comparing: Semaphore,
    /// For live views, which outlast the request that started them.
    clock: Clock,
}

impl Admin {
    /// Admits the holders of these tokens if they address the server by its address or by one of these names.
    pub(crate) fn new(tokens: Tokens, address: SocketAddr, names: &[String], clock: Clock) -> Self {
        Self {
            tokens,
            hosts: Hosts::new(address, names),
            logins: Logins::new(clock.clone()),
            audit: Audit::default(),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
            kept_requests: Arc::new(Semaphore::new(KEPT_REQUESTS_MAX)),
            comparing: Semaphore::new(1),
            clock,
        }
    }

    /// For a server where any client that can connect may ask for decisions, without a token and without TLS.
    pub(crate) fn open_to_all(mut self) -> Self {
        self.hosts.is_open = true;
        self
    }
}
