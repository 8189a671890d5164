//! Maps a method and a path of the admin API to a verb and the role it needs.

use hyper::Method;

use super::token::Role;
use crate::problem::{Kind, Problem};
use crate::service::holds::Id;

/// The verbs of the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// List the active limits, their overrides, and the blocks.
    Limits,
    /// Show what is left for a key.
    Get,
    /// Explain the decision about a request.
    Explain,
    /// List the keys with the most decisions.
    Top,
    /// Stream decisions as they are made.
    Tail,
    /// Reset the counters of a key.
    Reset,
    /// Deny a key for a while.
    Block,
    /// Remove a block.
    Unblock,
    /// Turn a limit off for a while.
    Kill,
    /// Put a limit in shadow for a while.
    Shadow,
    /// Enforce a limit for a share of its keys for a while.
    Percent,
    /// Remove any of the three overrides.
    Restore,
    /// Activate what is on disk.
    Reload,
    /// Show what a candidate policy would change.
    Diff,
    /// Show the requests of the last hour, for other nodes.
    Requests,
    /// Show the numbers of the console, for other nodes.
    Numbers,
    /// Show the history of all decisions or of a limit, for other nodes.
    History,
    /// Show the state of a comparison.
    Compared(Id),
    /// End that comparison.
    Stop(Id),
    /// List the actions of operators.
    Audit,
    /// List the nodes of the fleet.
    Fleet,
}

impl Verb {
    /// The verb of a method and a path.
    ///
    /// # Errors
    /// When the path does not exist, or accepts another method.
    pub(super) fn of(method: &Method, path: &str) -> Result<Self, Problem> {
        let (verb, accepted) = match path {
            "/admin/v1/limits" => (Verb::Limits, "GET"),
            "/admin/v1/get" => (Verb::Get, "POST"),
            "/admin/v1/explain" => (Verb::Explain, "POST"),
            "/admin/v1/top" => (Verb::Top, "GET"),
            "/admin/v1/tail" => (Verb::Tail, "GET"),
            "/admin/v1/reset" => (Verb::Reset, "POST"),
            "/admin/v1/block" => (Verb::Block, "POST"),
            "/admin/v1/unblock" => (Verb::Unblock, "POST"),
            "/admin/v1/kill" => (Verb::Kill, "POST"),
            "/admin/v1/shadow" => (Verb::Shadow, "POST"),
            "/admin/v1/percent" => (Verb::Percent, "POST"),
            "/admin/v1/restore" => (Verb::Restore, "POST"),
            "/admin/v1/reload" => (Verb::Reload, "POST"),
            "/admin/v1/policy/diff" => (Verb::Diff, "POST"),
            "/admin/v1/requests" => (Verb::Requests, "GET"),
            "/admin/v1/numbers" => (Verb::Numbers, "GET"),
            "/admin/v1/history" => (Verb::History, "GET"),
            "/admin/v1/audit" => (Verb::Audit, "GET"),
            "/admin/v1/fleet" => (Verb::Fleet, "GET"),
            _ => return Self::of_comparison(method, path),
        };
        if method.as_str() == accepted {
            return Ok(verb);
        }
        Err(Problem::new(Kind::MethodNotAllowed(accepted), format!("this path accepts {accepted}")))
    }

    fn of_comparison(method: &Method, path: &str) -> Result<Self, Problem> {
        let id = path.strip_prefix("/admin/v1/policy/diff/").and_then(Id::parse).ok_or_else(|| {
            let detail = "under /admin/v1/ are limits, get, explain, top, tail, reset, block, unblock, kill, shadow, percent, \
                          restore, reload, policy/diff, requests, numbers, history, audit and fleet";
            Problem::new(Kind::NotFound, detail)
        })?;
        match *method {
            Method::GET => Ok(Verb::Compared(id)),
            Method::DELETE => Ok(Verb::Stop(id)),
            _ => {
                let accepted = "GET, DELETE";
                Err(Problem::new(Kind::MethodNotAllowed(accepted), format!("this path accepts {accepted}")))
            }
        }
    }

    /// The minimum role. A request about all limits, or a forced one, needs the role admin as well. The body shows
    /// whether it is one.
    pub(super) const fn role(self) -> Role {
        match self {
            Verb::Limits | Verb::Get | Verb::Explain | Verb::Top | Verb::Tail => Role::Viewer,
            Verb::Compared(_) | Verb::Fleet | Verb::Numbers | Verb::History => Role::Viewer,
            Verb::Reset | Verb::Block | Verb::Unblock | Verb::Kill | Verb::Shadow | Verb::Percent => {
                Role::Operator
            }
            Verb::Restore | Verb::Reload | Verb::Diff | Verb::Requests | Verb::Stop(_) => Role::Operator,
            Verb::Audit => Role::Admin,
        }
    }

    /// Whether the verb applies while another program's rules are active. Overrides do if they are about all limits.
    pub(super) const fn applies_to_compat(self) -> bool {
        !matches!(self, Verb::Get | Verb::Explain | Verb::Reset | Verb::Percent | Verb::Diff)
    }

    /// Whether nodes ask each other for it.
    pub(super) const fn is_for_nodes(self) -> bool {
        let is_view = matches!(self, Verb::Get | Verb::Explain | Verb::Top | Verb::Tail | Verb::Audit);
        is_view || matches!(self, Verb::Requests | Verb::Numbers | Verb::History)
    }

    /// Its name in the audit log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Verb::Limits => "limits",
            Verb::Get => "get",
            Verb::Explain => "explain",
            Verb::Top => "top",
            Verb::Tail => "tail",
            Verb::Reset => "reset",
            Verb::Block => "block",
            Verb::Unblock => "unblock",
            Verb::Kill => "kill",
            Verb::Shadow => "shadow",
            Verb::Percent => "percent",
            Verb::Restore => "restore",
            Verb::Reload => "reload",
            Verb::Diff => "policy diff",
            Verb::Requests => "requests",
            Verb::Numbers => "numbers",
            Verb::History => "history",
            Verb::Compared(_) => "policy diff status",
            Verb::Stop(_) => "policy diff stop",
            Verb::Audit => "audit",
            Verb::Fleet => "fleet",
        }
    }
}
