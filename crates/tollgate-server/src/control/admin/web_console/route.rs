//! Maps a method and a path of the console to a route.

use hyper::Method;

use crate::problem::{Kind, Problem};

/// The routes of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConsoleRoute {
    /// The console, or the form to log in.
    Overview,
    Script,
    StyleSheet,
    Login,
    Logout,
    /// The overview each second, as server-sent events.
    Events,
    /// Counts by second and by minute.
    History,
    /// Decisions as they are made.
    Tail,
    /// A key or a limit, and what may be done about it.
    Subject,
    /// Do it.
    Act,
    /// The effect that another policy would have had on the last hour.
    WhatIf,
    /// The texts by which decisions about a credential are found.
    Digest,
}

impl ConsoleRoute {
    /// The route of a method and a path.
    ///
    /// # Errors
    /// When the path does not exist, or accepts another method.
    pub(super) fn of(method: &Method, path: &str) -> Result<Self, Problem> {
        let (route, accepted) = match path {
            "/console" | "/console/" => (ConsoleRoute::Overview, "GET"),
            "/console/console.js" => (ConsoleRoute::Script, "GET"),
            "/console/console.css" => (ConsoleRoute::StyleSheet, "GET"),
            "/console/login" => (ConsoleRoute::Login, "POST"),
            "/console/logout" => (ConsoleRoute::Logout, "POST"),
            "/console/events" => (ConsoleRoute::Events, "GET"),
            "/console/history" => (ConsoleRoute::History, "GET"),
            "/console/tail" => (ConsoleRoute::Tail, "GET"),
            "/console/subject" => (ConsoleRoute::Subject, "GET"),
            "/console/act" => (ConsoleRoute::Act, "POST"),
            "/console/what-if" => (ConsoleRoute::WhatIf, "POST"),
            "/console/digest" => (ConsoleRoute::Digest, "POST"),
            _ => return Err(Problem::new(Kind::NotFound, "the console is at /console")),
        };
        if method.as_str() == accepted {
            return Ok(route);
        }
        Err(Problem::new(Kind::MethodNotAllowed(accepted), format!("this path accepts {accepted}")))
    }

    /// Whether a link on a page of another site may lead here. Nothing here needs a cookie, or shows anything without
    /// one, and browsers do not send it along with such a request.
    pub(super) const fn is_public(self) -> bool {
        matches!(self, ConsoleRoute::Overview | ConsoleRoute::Script | ConsoleRoute::StyleSheet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every change is a POST, and pages of other sites are refused.
    #[test]
    fn changes_are_posts_of_this_site() {
        for path in
            ["/console/login", "/console/logout", "/console/act", "/console/what-if", "/console/digest"]
        {
            assert!(ConsoleRoute::of(&Method::GET, path).is_err(), "{path}");
            assert!(!ConsoleRoute::of(&Method::POST, path).unwrap().is_public(), "{path}");
        }
        assert_eq!(ConsoleRoute::of(&Method::GET, "/console"), Ok(ConsoleRoute::Overview));
        assert!(ConsoleRoute::of(&Method::GET, "/console/nothing").is_err());
    }
}
