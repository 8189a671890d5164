//! A server's description of itself for the other nodes of its fleet.

use std::net::SocketAddr;

use tollgate::Clock;

use super::banner::Access;
use crate::fleet::{NodeAbout, TokenOrigin};

/// The name and the address of this node. A listener on a wildcard has no address that other nodes could use, unless
/// one is given.
pub(super) fn about(
    advertised: Option<String>,
    address: SocketAddr,
    access: Access,
    token: TokenOrigin,
    clock: &Clock,
) -> NodeAbout {
    let scheme = if access.has_tls { "https" } else { "http" };
    let own = (!address.ip().is_unspecified()).then(|| format!("{scheme}://{address}"));
    let admin = advertised.or(own);
    let name =
        admin.as_deref().and_then(|url| url.split_once("://")).map(|(_, authority)| authority.to_owned());
    let now = clock.now();
    let started = now.on_wall(clock.wall_offset(now));
    NodeAbout { name: name.unwrap_or_else(|| address.to_string()), admin, started, token }
}

/// The names by which the admin interface may be called: those that are given, and the host that other nodes use.
pub(super) fn hosts(mut given: Vec<String>, advertised: Option<&str>) -> Vec<String> {
    let uri = advertised.and_then(|url| url.parse::<http::Uri>().ok());
    let host = uri.as_ref().and_then(http::Uri::host);
    given.extend(host.map(|host| host.trim_start_matches('[').trim_end_matches(']').to_owned()));
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node is named by the address that others use, and is called by its host.
    #[test]
    fn nodes_have_names() {
        let access = |has_tls| Access { needs_token: false, has_tls, has_client_ca: false };
        let of = |given: Option<&str>, address: &str, has_tls| {
            let (given, address) = (given.map(str::to_owned), address.parse().unwrap());
            let about = about(given, address, access(has_tls), TokenOrigin::Given, &Clock::precise());
            (about.name, about.admin.unwrap_or_default())
        };
        let pair = |name: &str, admin: &str| (name.to_owned(), admin.to_owned());
        assert_eq!(of(None, "127.0.0.1:8080", false), pair("127.0.0.1:8080", "http://127.0.0.1:8080"));
        assert_eq!(of(None, "10.0.0.1:80", true), pair("10.0.0.1:80", "https://10.0.0.1:80"));
        assert_eq!(of(None, "0.0.0.0:80", false), pair("0.0.0.0:80", ""));
        assert_eq!(of(Some("https://node-1"), "0.0.0.0:80", true), pair("node-1", "https://node-1"));
        assert_eq!(hosts(vec!["a".to_owned()], Some("http://[::2]:80")), ["a", "::2"]);
        assert_eq!(hosts(Vec::new(), None), Vec::<String>::new());
    }
}
