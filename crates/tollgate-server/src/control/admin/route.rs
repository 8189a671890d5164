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
    /// List the APIs that are called, with their frozen buckets.
    Outbound,
    /// End the freezes of one of them.
    Thaw,
}

/// The verbs: each with its path below `/admin/v1/`, its method, and the minimum role. A request about all limits, or a
/// forced one, needs the role admin as well. The body shows whether it is one.
const VERBS: [(Verb, &str, &str, Role); 21] = [
    (Verb::Limits, "limits", "GET", Role::Viewer),
    (Verb::Get, "get", "POST", Role::Viewer),
    (Verb::Explain, "explain", "POST", Role::Viewer),
    (Verb::Top, "top", "GET", Role::Viewer),
    (Verb::Tail, "tail", "GET", Role::Viewer),
    (Verb::Reset, "reset", "POST", Role::Operator),
    (Verb::Block, "block", "POST", Role::Operator),
    (Verb::Unblock, "unblock", "POST", Role::Operator),
    (Verb::Kill, "kill", "POST", Role::Operator),
    (Verb::Shadow, "shadow", "POST", Role::Operator),
    (Verb::Percent, "percent", "POST", Role::Operator),
    (Verb::Restore, "restore", "POST", Role::Operator),
    (Verb::Reload, "reload", "POST", Role::Operator),
    (Verb::Diff, "policy/diff", "POST", Role::Operator),
    (Verb::Requests, "requests", "GET", Role::Operator),
    (Verb::Numbers, "numbers", "GET", Role::Viewer),
    (Verb::History, "history", "GET", Role::Viewer),
    (Verb::Audit, "audit", "GET", Role::Admin),
    (Verb::Fleet, "fleet", "GET", Role::Viewer),
    (Verb::Outbound, "outbound", "GET", Role::Viewer),
    (Verb::Thaw, "outbound/thaw", "POST", Role::Operator),
];

impl Verb {
    /// The verb of a method and a path.
    ///
    /// # Errors
    /// When the path does not exist, or accepts another method.
    pub(super) fn of(method: &Method, path: &str) -> Result<Self, Problem> {
        let below = path.strip_prefix("/admin/v1/").unwrap_or_default();
        let Some((verb, _, accepted, _)) = VERBS.iter().find(|(_, path, ..)| *path == below) else {
            return Self::of_comparison(method, below);
        };
        if method.as_str() == *accepted { Ok(*verb) } else { Err(wrong_method(accepted)) }
    }

    fn of_comparison(method: &Method, below: &str) -> Result<Self, Problem> {
        let id = below.strip_prefix("policy/diff/").and_then(Id::parse).ok_or_else(|| {
            let paths = VERBS.map(|(_, path, ..)| path).join(", ");
            Problem::new(Kind::NotFound, format!("under /admin/v1/ are {paths}"))
        })?;
        match *method {
            Method::GET => Ok(Verb::Compared(id)),
            Method::DELETE => Ok(Verb::Stop(id)),
            _ => Err(wrong_method("GET, DELETE")),
        }
    }

    /// The minimum role.
    pub(super) fn role(self) -> Role {
        match self {
            Verb::Compared(_) => Role::Viewer,
            Verb::Stop(_) => Role::Operator,
            _ => VERBS.iter().find(|(verb, ..)| *verb == self).map_or(Role::Admin, |(.., role)| *role),
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
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Diff => "policy diff",
            Verb::Thaw => "outbound thaw",
            Verb::Compared(_) => "policy diff status",
            Verb::Stop(_) => "policy diff stop",
            _ => VERBS.iter().find(|(verb, ..)| *verb == self).map_or("", |(_, path, ..)| path),
        }
    }
}

fn wrong_method(accepted: &'static str) -> Problem {
    Problem::new(Kind::MethodNotAllowed(accepted), format!("this path accepts {accepted}"))
}
