//! The admin API for a running server, under `/admin/v1/` of the HTTP listener. The path of a request: `guard` (host,
//! site and token) → `route` (the verb, and the role it needs) → `form` (JSON) → `verbs` (the service) → `reply`.
//! Every change is written to the `audit` log before the operator gets an answer. `web_console` has the pages for
//! browsers, which use the same verbs.

mod verbs;
mod attribute_checks;
mod audit;
mod fleet;
mod form;
mod guard;
mod traffic_view;
mod overload;
mod past_hour;
mod reload;
mod reply;
mod route;
mod tail;
mod token;
mod view;
mod policy_change;
pub(crate) mod web_console;
mod wording;

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
/// Maximum number of concurrent views for which other nodes are asked: each asks up to 64 nodes, for 4 MiB each.
const FAN_OUTS_MAX: usize = 8;
/// Maximum number of concurrent answers with the requests of the last hour: each may have tens of megabytes.
const KEPT_REQUESTS_MAX: usize = 2;

/// The operators of the server, and the log of their actions.
pub(crate) struct Admin {
    tokens: Tokens,
    hosts: Hosts,
    logins: Logins,
    audit: Audit,
    watchers: Arc<Semaphore>,
    fan_outs: Semaphore,
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
            fan_outs: Semaphore::new(FAN_OUTS_MAX),
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
