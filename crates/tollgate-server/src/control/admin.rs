//! What operators do to a running server, under `/admin/v1/` of the HTTP listener. The way of a request: `guard` (which host, which
//! site, whose token) → `route` (what is asked, and who may) → `form` (JSON) → `answer` (the service) → `reply`. Every change is
//! written to the `audit` log before it is answered.

mod answer;
mod audit;
mod form;
mod guard;
mod overload;
mod reload;
mod reply;
mod route;
mod tail;
mod token;
mod view;
mod wording;

pub(crate) use reply::{Asker, respond};
#[allow(unreachable_pub, reason = "the command line exports it")]
pub use token::GivenToken;
pub(crate) use token::{Credentials, TokenSettings, credentials};
pub(crate) use view::{changes, fields};

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate::Clock;

use audit::Audit;
use guard::{Hosts, Logins};
use token::Tokens;

/// What every path of this interface begins with.
pub(crate) const PREFIX: &str = "/admin/";
/// Most live views at once.
const WATCHERS_MAX: usize = 16;

/// Who may operate the server, and what they did.
pub(crate) struct Admin {
    tokens: Tokens,
    hosts: Hosts,
    logins: Logins,
    audit: Audit,
    watchers: Arc<Semaphore>,
    /// For live views, which outlast the request that began them.
    clock: Clock,
}

impl Admin {
    /// Lets the holders of these tokens in, who call the server by its address or one of these names.
    pub(crate) fn new(tokens: Tokens, address: SocketAddr, names: &[String], clock: Clock) -> Self {
        Self {
            tokens,
            hosts: Hosts::new(address, names),
            logins: Logins::new(clock.clone()),
            audit: Audit::default(),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
            clock,
        }
    }

    /// The same, where whoever can connect may ask for decisions, without a token and without TLS.
    pub(crate) fn where_all_may_ask(mut self, is_open: bool) -> Self {
        self.hosts.is_open = is_open;
        self
    }
}
