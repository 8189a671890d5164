//! The address of an upstream, as a flag or a config names it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::Uri;
use tollgate::policy::Problem;

/// The address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub(crate) is_secure: bool,
    pub(crate) is_h2: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl FromStr for Target {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let accepted =
            "http://host:port, https://host or h2c://host:port (HTTP/2 without TLS), without a path";
        let refused = |why: &str| Problem::new(format!("{text:?} {why}"), accepted);
        let uri: Uri = text.parse().map_err(|_| refused("is not a URL"))?;
        let (is_secure, is_h2) = match uri.scheme_str() {
            Some("http") => (false, false),
            Some("https") => (true, false),
            Some("h2c") => (false, true),
            Some(_) => return Err(refused("has another scheme")),
            None => return Err(refused("has no scheme")),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| refused("has no host"))?;
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(refused("has a name and a password in it"));
        }
        if uri.path_and_query().is_some_and(|rest| rest.as_str() != "/") {
            return Err(refused("has a path: requests are sent on with their own"));
        }
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { is_secure, is_h2, host, port })
    }
}

impl Target {
    /// The host, and the port where it is not that of the scheme.
    #[must_use]
    pub fn authority(&self) -> String {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        let usual = if self.is_secure { 443 } else { 80 };
        let port = if self.port == usual { String::new() } else { format!(":{}", self.port) };
        format!("{open}{}{close}{port}", self.host)
    }
}

impl Target {
    /// Whether connections to it reach a listener of this machine at this address. Names other than `localhost` are not
    /// resolved.
    #[must_use]
    pub fn names_listener(&self, listener: SocketAddr) -> bool {
        if self.port != listener.port() {
            return false;
        }
        let listening = listener.ip().to_canonical();
        if self.host.eq_ignore_ascii_case("localhost") {
            return listening.is_loopback() || listening.is_unspecified();
        }
        self.host.parse::<IpAddr>().is_ok_and(|address| {
            let address = address.to_canonical();
            // The unspecified address listens on all of this machine's, and connects to a loopback address.
            let is_local = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
            address == listening || is_local(address) && listening.is_unspecified()
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.is_secure, self.is_h2) {
            (true, _) => "https",
            (false, true) => "h2c",
            (false, false) => "http",
        };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{}{close}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An upstream at a listener of the same process is recognised, and other ports and machines are not.
    #[test]
    fn listeners_are_recognised() {
        let is_own = |target: &str, listener: &str| {
            target.parse::<Target>().unwrap().names_listener(listener.parse().unwrap())
        };
        for (target, listener) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("h2c://localhost:8080", "127.0.0.1:8080"),
            ("http://LOCALHOST:8080", "0.0.0.0:8080"),
            ("http://127.0.0.9:8080", "0.0.0.0:8080"),
            ("http://[::1]:8080", "[::]:8080"),
            ("http://10.0.0.7:8080", "10.0.0.7:8080"),
            ("https://127.0.0.1", "127.0.0.1:443"),
        ] {
            assert!(is_own(target, listener), "{target} {listener}");
        }
        for (target, listener) in [
            ("http://127.0.0.1:8081", "127.0.0.1:8080"),
            ("http://127.0.0.2:8080", "127.0.0.1:8080"),
            ("http://localhost:8080", "10.0.0.7:8080"),
            ("http://10.0.0.8:8080", "0.0.0.0:8080"),
            ("http://service:8080", "127.0.0.1:8080"),
        ] {
            assert!(!is_own(target, listener), "{target} {listener}");
        }
    }
}
