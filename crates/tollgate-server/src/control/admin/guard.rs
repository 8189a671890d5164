//! Admission to the admin API: the right host, so that no name chosen by a web page leads here; no other site; and a
//! known token. A source that guesses tokens must wait, but a right token never does. The decision paths use the same
//! guard against browsers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::{HeaderMap, Request};
use tollgate::{Clock, Gate, KeyedGate, Quota, Rate, Ticks};

use super::Admin;
use super::token::{AcceptedToken, TokenHolder};
use crate::fleet::{FleetMember, NodeKey, NodeSignature, OtherVersion};
use crate::problem::AdminProblem;
use crate::problem::Problem;

/// The header in which a browser names the site of a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Maximum number of wrong tokens from one source in a minute.
const FAILURES_A_MINUTE: u64 = 5;

/// The names by which clients may address the server.
pub(super) struct Hosts {
    address: SocketAddr,
    names: Vec<String>,
    /// Whether any client that can connect may ask.
    pub(super) is_open: bool,
}

impl Hosts {
    pub(super) fn new(address: SocketAddr, names: &[String]) -> Self {
        let names = names.iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect();
        Self { address, names, is_open: false }
    }

    /// Checks that a request uses one of these names, and does not come from a page of another site.
    fn admit<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let host = host_of(request)?;
        if !self.knows(host) {
            return Err(wrong_host());
        }
        is_same_site(request.headers(), host)
    }

    /// Checks by its host name whether a request may come from a program. A stranger's page has a name with a dot, and
    /// that name may resolve to this machine (DNS rebinding). Its browser then sends a GET without any sign of its
    /// origin. So where local clients need no credential, such a name must be one of the server's.
    fn admit_program<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        if !self.is_open || !self.address.ip().is_loopback() {
            return Ok(());
        }
        if request.uri().authority().is_none() && !request.headers().contains_key(HOST) {
            return Ok(()); // HTTP/1.0, which no browser speaks.
        }
        let host = host_of(request)?;
        if may_be_of_a_page(host) && !self.knows(host) { Err(wrong_host()) } else { Ok(()) }
    }

    /// Whether the host is one of the names, whatever the port.
    fn knows(&self, host: &str) -> bool {
        let name = without_port(host);
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return ip.is_loopback() || ip == self.address.ip() || self.names.contains(&ip.to_string());
        }
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name == "localhost" || self.names.contains(&name)
    }
}

fn wrong_host() -> Problem {
    Problem::of_admin(
        AdminProblem::WrongHost,
        "call the server localhost, by its address, or by a name that it was started with: --admin-host NAME",
    )
}

/// Whether a page on the public web can have this host. An address leads where it says. A name without a dot, or one
/// below `localhost`, does not exist in the public DNS.
fn may_be_of_a_page(host: &str) -> bool {
    let name = without_port(host);
    let is_address = name.starts_with('[') || name.parse::<IpAddr>().is_ok();
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    !is_address && name.contains('.') && !name.ends_with(".localhost")
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Counts wrong tokens by source address.
pub(super) struct Logins {
    failures: Option<KeyedGate>,
}

impl Logins {
    pub(super) fn new(clock: Clock) -> Self {
        let quota = Quota::token_bucket(Rate::per_minute(FAILURES_A_MINUTE).burst(FAILURES_A_MINUTE));
        Self { failures: quota.ok().map(|quota| Gate::builder(quota).clock(clock).keyed()) }
    }

    /// How long a source with too many wrong tokens must wait, if it must.
    fn wait(&self, source: IpAddr) -> Option<Ticks> {
        let state = self.failures.as_ref()?.charge(&source, 0);
        (state.remaining == 0).then_some(state.next_unit_after)
    }

    fn failed(&self, source: IpAddr) {
        if let Some(failures) = &self.failures {
            // Only counted here: the next wrong token from this source gets the wait.
            let _ = failures.check(&source);
        }
    }

    /// The answer to a wrong token. A source that has to wait is not counted again, and its attempts are not logged.
    fn wrong(&self, source: IpAddr) -> Problem {
        if let Some(wait) = self.wait(source) {
            let seconds = wait.ceil_seconds();
            let detail = format!(
                "the token is not known, and too many wrong tokens came from this address; try again in {seconds} s"
            );
            return Problem::of_admin(AdminProblem::TooManyLogins { seconds }, detail);
        }
        self.failed(source);
        tracing::warn!(target: "audit", source = %source, "a wrong admin token");
        let detail = "the token is not known; a token that a server made is gone when it is started again";
        Problem::of_admin(AdminProblem::NoToken, detail)
    }
}

/// The address by which failures are counted: a whole /64 of IPv6 is one source.
fn source_of(peer: Option<IpAddr>) -> IpAddr {
    match peer.map(|peer| peer.to_canonical()) {
        Some(IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        Some(address) => address,
        None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// The sender of a request.
pub(super) struct Sender<'a> {
    pub(super) who: &'a TokenHolder,
    /// The key with which this node asks others in the name of the sender.
    pub(super) key: &'a NodeKey,
    /// The signed question, if another node asks.
    pub(super) question: Option<&'a NodeSignature>,
}

/// A request of another node, by what is known of its signature.
pub(super) enum NodeRequest<'a> {
    /// The holder of this token asks through another node. The answer is proven, also if it is a refusal.
    Signed(NodeSignature, &'a AcceptedToken),
    /// No known token has signed it.
    Unknown,
    /// The node signs in another way.
    OtherVersion,
}

impl Admin {
    /// The request of another node. `None` if no node sent it.
    pub(super) fn node_request<B>(
        &self,
        request: &Request<B>,
        fleet: &FleetMember,
    ) -> Option<NodeRequest<'_>> {
        let question = match NodeSignature::read(request.headers())? {
            Ok(question) => question,
            Err(OtherVersion) => return Some(NodeRequest::OtherVersion),
        };
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        let asked = fleet.asked_for(request.method().as_str(), path);
        let signer = asked.and_then(|asked| self.tokens.signer(&question, asked));
        Some(signer.map_or(NodeRequest::Unknown, |token| NodeRequest::Signed(question, token)))
    }

    /// Identifies the sender of a request.
    ///
    /// # Errors
    /// When the request is not admitted. The message says what would be accepted.
    pub(super) fn admit<'s, B>(
        &'s self,
        request: &Request<B>,
        asking: Option<&'s NodeRequest<'s>>,
        peer: Option<IpAddr>,
        fleet: &FleetMember,
    ) -> Result<Sender<'s>, Problem> {
        self.admit_page(request)?;
        match asking {
            Some(NodeRequest::Signed(question, AcceptedToken { who, key, .. })) => {
                let accepted = fleet.questions.accept(question, fleet.wall_now());
                accepted.map_err(|error| Problem::of_admin(AdminProblem::Conflict, error))?;
                return Ok(Sender { who, key, question: Some(question) });
            }
            Some(NodeRequest::Unknown) => return Err(self.logins.wrong(source_of(peer))),
            Some(NodeRequest::OtherVersion) => {
                let detail = "the node that asks signs its questions as another version does: run one version on all \
                              nodes of a fleet";
                return Err(Problem::of_admin(AdminProblem::Conflict, detail));
            }
            None => {}
        }
        let Some(token) = bearer(request.headers()) else {
            let detail = "send Authorization: Bearer TOKEN; the server printed its token when it started";
            return Err(Problem::of_admin(AdminProblem::NoToken, detail));
        };
        let AcceptedToken { who, key, .. } = self.identify(token, peer)?;
        Ok(Sender { who, key, question: None })
    }

    /// Finds a token. A right token is accepted before any wait: operators who share an address with an attacker
    /// must still be able to operate the server.
    ///
    /// # Errors
    /// When the token is not known. A source that guesses must wait.
    pub(super) fn identify(&self, token: &str, peer: Option<IpAddr>) -> Result<&AcceptedToken, Problem> {
        self.tokens.known(token).ok_or_else(|| self.logins.wrong(source_of(peer)))
    }

    /// Checks that a request uses a name of the server, and does not come from a page of another site.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn admit_page<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        self.hosts.admit(request)
    }

    /// Checks only that a request uses a name of the server: a link on another site may lead to a page that shows
    /// nothing without a cookie.
    ///
    /// # Errors
    /// When it uses another name.
    pub(super) fn admit_host<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        if self.hosts.knows(host_of(request)?) { Ok(()) } else { Err(wrong_host()) }
    }

    /// Refuses a request that a browser sends for a page of another site, or for a name that is not this server's.
    /// Programs send neither `Origin` nor `Sec-Fetch-Site`. Browsers leave out both as well if a page of a plain
    /// `http://` name sends a GET to that same name, so the name is always checked.
    ///
    /// # Errors
    /// When a browser sent the request for such a page, or may have.
    pub(crate) fn refuse_other_sites<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let headers = request.headers();
        if headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE) {
            return self.hosts.admit(request);
        }
        self.refuse_other_names(request)
    }

    /// Checks only the name, for a request that may come from a page of any site, such as one that a proxy asks about.
    ///
    /// # Errors
    /// When the request uses a name that a page may have, and nothing else keeps pages out.
    pub(crate) fn refuse_other_names<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        self.hosts.admit_program(request)
    }
}

/// The single host that a request names.
fn host_of<B>(request: &Request<B>) -> Result<&str, Problem> {
    let mut named = request.headers().get_all(HOST).iter();
    let host = match (request.uri().authority(), named.next(), named.next()) {
        (Some(authority), _, None) => Some(authority.as_str()),
        (None, Some(host), None) => host.to_str().ok(),
        _ => None,
    };
    host.ok_or_else(|| Problem::of_admin(AdminProblem::WrongHost, "name the host once, in a Host header"))
}

/// Checks that either a browser sent the request for a page of this server, or no browser sent it.
fn is_same_site(headers: &HeaderMap, host: &str) -> Result<(), Problem> {
    let origins = headers.get_all(ORIGIN).iter().map(|origin| origin.to_str().unwrap_or_default());
    let is_ours = |origin: &str| {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
    };
    let site = headers.get(FETCH_SITE).map(|site| site.as_bytes());
    let is_near = site.is_none_or(|site| site == b"same-origin" || site == b"none");
    if is_near && origins.into_iter().all(is_ours) {
        return Ok(());
    }
    Err(Problem::of_admin(
        AdminProblem::CrossSite,
        "a browser sent it for a page of another site; only pages of this server, and programs, may ask",
    ))
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepted are loopback by any name or port, the bound address and the given names, but no name that only begins
    /// like one.
    #[test]
    fn hosts() {
        let hosts = Hosts::new("10.1.2.3:8080".parse().unwrap(), &["Gate.Example".to_owned()]);
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:8080",
            "10.1.2.3:8080",
            "gate.example",
            "gate.example.:80",
        ] {
            assert!(hosts.knows(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.1.2.4",
            "gate.example.evil",
            "0.0.0.0",
            "localhost:80:80",
            "[::1",
        ] {
            assert!(!hosts.knows(host), "{host}");
        }
    }

    /// Hosts that a page on the public web can have, and hosts that it cannot have.
    #[test]
    fn names_of_pages() {
        for host in [
            "evil.example",
            "evil.example:8080",
            "EVIL.Example.",
            "localhost.evil.example",
            "1.2.3.4.evil.example",
        ] {
            assert!(may_be_of_a_page(host), "{host}");
        }
        for host in [
            "tollgate",
            "tollgate:8080",
            "localhost.",
            "app.localhost",
            "10.0.0.1:80",
            "[::1]:80",
            "[2001:db8::1]",
        ] {
            assert!(!may_be_of_a_page(host), "{host}");
        }
    }

    /// A page of another site is refused, whichever header reveals it. A request without such headers comes from a
    /// program.
    #[test]
    fn origins() {
        let with = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
        };
        let host = "127.0.0.1:8080";
        assert!(is_same_site(&HeaderMap::new(), host).is_ok());
        assert!(is_same_site(&with("origin", "http://127.0.0.1:8080"), host).is_ok());
        assert!(is_same_site(&with("sec-fetch-site", "same-origin"), host).is_ok());
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", "http://127.0.0.1:9090"),
            ("origin", "http://127.0.0.1:8080.evil.example"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(is_same_site(&with(name, value), host).is_err(), "{name}: {value}");
        }
    }

    /// One /64 is one source, and IPv4 in IPv6 is IPv4.
    #[test]
    fn sources() {
        let of = |text: &str| source_of(Some(text.parse().unwrap())).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
