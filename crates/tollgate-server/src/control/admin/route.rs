//! What a method and a path of the admin interface ask for, and who may ask it.

use hyper::Method;

use super::token::Role;
use crate::problem::{Kind, Problem};
use crate::service::holds::Id;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// The limits in force, with what is ruled about them, and the blocks.
    Limits,
    /// What is left for a key.
    Get,
    /// Why a request is answered as it is.
    Explain,
    /// The keys that are asked about most.
    Top,
    /// Decisions as they are made.
    Tail,
    /// Forget what was counted for a key.
    Reset,
    /// Deny a key for a while.
    Block,
    /// Take that back.
    Unblock,
    /// Turn a limit off for a while.
    Kill,
    /// Put a limit in shadow for a while.
    Shadow,
    /// Enforce a limit for a share of its keys for a while.
    Percent,
    /// Take any of the three back.
    Restore,
    /// Put in force what is on disk now.
    Reload,
    /// What another policy would change.
    Diff,
    /// How the comparison of that policy with the one in force stands.
    Compared(Id),
    /// End that comparison.
    Stop(Id),
    /// What operators did.
    Audit,
}

impl Verb {
    /// What a method and a path ask for.
    ///
    /// # Errors
    /// When nothing is at the path, or it accepts another method.
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
            "/admin/v1/audit" => (Verb::Audit, "GET"),
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
                          restore, reload, policy/diff and audit";
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

    /// The least role that may ask it. What is about all limits at once, or is forced, needs an admin as well; the body says whether it is.
    pub(super) const fn role(self) -> Role {
        match self {
            Verb::Limits | Verb::Get | Verb::Explain | Verb::Top | Verb::Tail => Role::Viewer,
            Verb::Compared(_) => Role::Viewer,
            Verb::Reset | Verb::Block | Verb::Unblock | Verb::Kill | Verb::Shadow | Verb::Percent => {
                Role::Operator
            }
            Verb::Restore | Verb::Reload | Verb::Diff | Verb::Stop(_) => Role::Operator,
            Verb::Audit => Role::Admin,
        }
    }

    /// Whether it means something while somebody else's rules are in force. Rulings do if they are about all limits.
    pub(super) const fn knows_foreign(self) -> bool {
        !matches!(self, Verb::Get | Verb::Explain | Verb::Reset | Verb::Percent | Verb::Diff)
    }

    /// Whether it changes what operators say over the policy, which is kept on disk.
    pub(super) const fn is_order(self) -> bool {
        matches!(
            self,
            Verb::Block | Verb::Unblock | Verb::Kill | Verb::Shadow | Verb::Percent | Verb::Restore
        )
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
            Verb::Compared(_) => "policy diff status",
            Verb::Stop(_) => "policy diff stop",
            Verb::Audit => "audit",
        }
    }
}
