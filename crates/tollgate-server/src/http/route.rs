//! Maps a method and a path to a route. Paths are matched exactly: no two spellings mean the same.

use hyper::Method;
use tollgate_compat::limitador::decide::Action;

use super::authz::ProxyKind;
use crate::problem::{Kind, Problem};
use crate::service::holds::Id;

const PATHS: &str = "GET /, GET /console, POST /v1/check, POST /v1/check/batch, /v1/authz and /v1/authz/nginx with any method, POST /v1/reservations, POST /v1/reservations/{id}/commit, \
                     DELETE /v1/reservations/{id}, POST /v1/reports/{id}, DELETE /v1/permits/{id}, POST /json, POST /check, POST /report, \
                     POST /check_and_report, GET /limits/{namespace}, GET /counters/{namespace}, GET /status, \
                     GET /v1/openapi.json, GET /healthz, GET /readyz and GET /metrics";

/// Accepted at a path for proxies, whatever the method of the request that the proxy holds.
const ANY_METHOD: &str = "*";

/// The routes of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpRoute {
    Check,
    Batch,
    Authz(ProxyKind),
    Reserve,
    Commit(Id),
    Cancel(Id),
    Report(Id),
    Release(Id),
    Root,
    Health,
    Metrics,
    OpenApi,
    Ready,
    /// envoyproxy/ratelimit's JSON.
    Rls,
    /// Limitador's `/check`, `/report` and `/check_and_report`.
    Limitador(Action),
    LimitadorStatus,
    /// The namespace is the rest of the path.
    LimitadorLimits,
    LimitadorCounters,
}

impl HttpRoute {
    /// The route of a method and a path.
    ///
    /// # Errors
    /// When the path does not exist, or accepts other methods.
    pub(super) fn of(method: &Method, path: &str) -> Result<Self, Problem> {
        let (route, accepted) = Self::at(path)?;
        let is_accepted =
            accepted == ANY_METHOD || accepted.split(", ").any(|known| known == method.as_str());
        if is_accepted {
            return Ok(route);
        }
        let detail = format!("this path accepts {accepted}");
        Err(Problem::new(Kind::MethodNotAllowed(accepted), detail))
    }

    fn at(path: &str) -> Result<(Self, &'static str), Problem> {
        let route = match path {
            "/v1/check" => (HttpRoute::Check, "POST"),
            "/" => (HttpRoute::Root, "GET, HEAD"),
            "/v1/check/batch" => (HttpRoute::Batch, "POST"),
            "/v1/authz" => (HttpRoute::Authz(ProxyKind::Plain), ANY_METHOD),
            "/v1/authz/nginx" => (HttpRoute::Authz(ProxyKind::Nginx), ANY_METHOD),
            "/v1/reservations" => (HttpRoute::Reserve, "POST"),
            "/v1/openapi.json" => (HttpRoute::OpenApi, "GET, HEAD"),
            "/healthz" => (HttpRoute::Health, "GET, HEAD"),
            "/metrics" => (HttpRoute::Metrics, "GET, HEAD"),
            "/readyz" => (HttpRoute::Ready, "GET, HEAD"),
            "/json" => (HttpRoute::Rls, "POST"),
            "/check" => (HttpRoute::Limitador(Action::Check), "POST"),
            "/report" => (HttpRoute::Limitador(Action::Report), "POST"),
            "/check_and_report" => (HttpRoute::Limitador(Action::CheckAndReport), "POST"),
            "/status" => (HttpRoute::LimitadorStatus, "GET, HEAD"),
            _ if path.starts_with("/limits/") => (HttpRoute::LimitadorLimits, "GET, HEAD"),
            _ if path.starts_with("/counters/") => (HttpRoute::LimitadorCounters, "GET, HEAD"),
            _ => return Self::of_thing(path),
        };
        Ok(route)
    }

    /// A path that names one permit or reservation.
    fn of_thing(path: &str) -> Result<(Self, &'static str), Problem> {
        if let Some(id) = path.strip_prefix("/v1/permits/") {
            return Ok((HttpRoute::Release(id_of(id, Kind::NotFound)?), "DELETE"));
        }
        if let Some(id) = path.strip_prefix("/v1/reports/") {
            return Ok((HttpRoute::Report(id_of(id, Kind::UnknownReservation)?), "POST"));
        }
        if let Some(rest) = path.strip_prefix("/v1/reservations/") {
            return match rest.strip_suffix("/commit") {
                Some(id) => Ok((HttpRoute::Commit(id_of(id, Kind::UnknownReservation)?), "POST")),
                None => Ok((HttpRoute::Cancel(id_of(rest, Kind::UnknownReservation)?), "DELETE")),
            };
        }
        Err(Problem::new(Kind::NotFound, format!("this server answers {PATHS}")))
    }
}

fn id_of(text: &str, otherwise: Kind) -> Result<Id, Problem> {
    Id::parse(text).ok_or_else(|| {
        Problem::new(otherwise, "an id is 32 hexadecimal digits, as an earlier answer gave it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn kind(method: Method, path: &str) -> Kind {
        HttpRoute::of(&method, path).unwrap_err().kind
    }

    /// Every path of the interface is known under its method, and no other spelling is.
    #[test]
    fn paths_and_methods() {
        let id = Id::parse(ID).unwrap();
        let of = |method: Method, path: &str| HttpRoute::of(&method, path).unwrap();
        assert_eq!(of(Method::POST, "/v1/check"), HttpRoute::Check);
        let propfind = Method::from_bytes(b"PROPFIND").unwrap();
        assert_eq!(of(propfind, "/v1/authz"), HttpRoute::Authz(ProxyKind::Plain));
        assert_eq!(of(Method::POST, &format!("/v1/reservations/{ID}/commit")), HttpRoute::Commit(id));
        assert_eq!(of(Method::DELETE, &format!("/v1/reservations/{ID}")), HttpRoute::Cancel(id));
        assert_eq!(of(Method::POST, &format!("/v1/reports/{ID}")), HttpRoute::Report(id));
        assert_eq!(of(Method::DELETE, &format!("/v1/permits/{ID}")), HttpRoute::Release(id));
        for path in ["/v1/check/", "//v1/check", "/v1/checks", "/v1/permits", "/V1/check", "/v1/permits/zz"] {
            assert_eq!(kind(Method::POST, path), Kind::NotFound, "{path}");
        }
        assert_eq!(kind(Method::GET, "/v1/check"), Kind::MethodNotAllowed("POST"));
        assert_eq!(kind(Method::DELETE, "/v1/reservations/x"), Kind::UnknownReservation);
    }
}
