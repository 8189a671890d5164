//! Parses a store's URL.

use std::fmt;
use std::net::IpAddr;

use super::{Login, Password, SettingsError};

const PORT_DEFAULT: u16 = 6379;
const SENTINEL_PORT_DEFAULT: u16 = 26379;
/// Maximum number of hosts in a URL.
const HOSTS_MAX: usize = 64;
/// Maximum database number. The server's configuration may allow fewer.
const DATABASE_MAX: i64 = 65_535;

/// A host name and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    /// The port.
    pub port: u16,
}

/// Where the store is, and of which kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A single Redis.
    Standalone(Host),
    /// A Redis Cluster, discovered through any of these nodes.
    Cluster(Vec<Host>),
    /// A primary that sentinels name.
    Sentinel {
        /// The sentinels to query.
        sentinels: Vec<Host>,
        /// The service that they watch.
        service: String,
    },
}

pub(super) struct ParsedUrl {
    pub(super) topology: Topology,
    pub(super) login: Option<Login>,
    pub(super) database: i64,
    pub(super) is_encrypted: bool,
}

impl Host {
    /// Whether it is a loopback address.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.name == "localhost" || self.name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port == 0 {
            formatter.write_str(&self.name) // A service behind sentinels.
        } else if self.name.contains(':') {
            write!(formatter, "[{}]:{}", self.name, self.port)
        } else {
            write!(formatter, "{}:{}", self.name, self.port)
        }
    }
}

impl Topology {
    /// The hosts in the URL.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        match self {
            Topology::Standalone(host) => std::slice::from_ref(host),
            Topology::Cluster(hosts) => hosts,
            Topology::Sentinel { sentinels, .. } => sentinels,
        }
    }

    /// The kind of store, as in the URL's scheme.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Topology::Standalone(_) => "redis",
            Topology::Cluster(_) => "redis-cluster",
            Topology::Sentinel { .. } => "redis-sentinel",
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://", self.kind())?;
        for (position, host) in self.hosts().iter().enumerate() {
            write!(formatter, "{}{host}", if position == 0 { "" } else { "," })?;
        }
        match self {
            Topology::Sentinel { service, .. } => write!(formatter, "/{service}"),
            Topology::Standalone(_) | Topology::Cluster(_) => Ok(()),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<ParsedUrl, SettingsError> {
    let scheme = |scheme: &str| SettingsError::Scheme(scheme.chars().take(20).collect());
    let Some((kind, rest)) = text.split_once("://") else {
        // Without a scheme, the whole text may be a password.
        return Err(scheme(""));
    };
    let (kind, is_encrypted) = match kind {
        "redis" => ("standalone", false),
        "rediss" => ("standalone", true),
        "redis-cluster" => ("cluster", false),
        "rediss-cluster" => ("cluster", true),
        "redis-sentinel" => ("sentinel", false),
        "rediss-sentinel" => ("sentinel", true),
        other => return Err(scheme(other)),
    };
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (Some(parse_login(login)?), rest),
        None => (None, rest),
    };
    if rest.contains(['?', '#']) {
        return Err(SettingsError::Query);
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.strip_suffix('/').unwrap_or(path);
    let port = if kind == "sentinel" { SENTINEL_PORT_DEFAULT } else { PORT_DEFAULT };
    let mut hosts = parse_hosts(hosts, port)?;
    let (topology, database) = match kind {
        "standalone" => {
            let first = hosts.swap_remove(0);
            if !hosts.is_empty() {
                return Err(SettingsError::Hosts("a redis:// or rediss:// URL"));
            }
            (Topology::Standalone(first), parse_database(path)?)
        }
        "cluster" if path.is_empty() => (Topology::Cluster(hosts), 0),
        "cluster" => return Err(SettingsError::Path("of a cluster nothing follows: it has only database 0")),
        _ => parse_service(hosts, path)?,
    };
    Ok(ParsedUrl { topology, login, database, is_encrypted })
}

fn parse_service(sentinels: Vec<Host>, path: &str) -> Result<(Topology, i64), SettingsError> {
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    let named = !service.is_empty() && service.chars().all(|letter| letter.is_ascii_graphic());
    if !named {
        return Err(SettingsError::Path(
            "a sentinel URL names the service that they watch, as in redis-sentinel://one,two,three/mymaster",
        ));
    }
    Ok((Topology::Sentinel { sentinels, service: service.to_owned() }, parse_database(database)?))
}

fn parse_database(text: &str) -> Result<i64, SettingsError> {
    if text.is_empty() {
        return Ok(0);
    }
    let number = text.parse::<i64>().ok().filter(|number| (0..=DATABASE_MAX).contains(number));
    number.ok_or(SettingsError::Path("comes nothing or the number of a database, as in redis://cache:6379/2"))
}

fn parse_hosts(text: &str, port: u16) -> Result<Vec<Host>, SettingsError> {
    if text.is_empty() {
        return Err(SettingsError::Host("the URL names no host".to_owned()));
    }
    let hosts = text.split(',').map(|host| parse_host(host, port)).collect::<Result<Vec<_>, _>>()?;
    if hosts.len() > HOSTS_MAX {
        return Err(SettingsError::Host(format!("{} hosts are more than {HOSTS_MAX}", hosts.len())));
    }
    Ok(hosts)
}

fn parse_host(text: &str, default_port: u16) -> Result<Host, SettingsError> {
    // The text after a colon may be a password without its @host, so it is not echoed.
    let shown = text.split(':').next().unwrap_or_default();
    let wrong = || SettingsError::Host(format!("`{shown}` with what follows it is not a host"));
    let (name, port) = if let Some(rest) = text.strip_prefix('[') {
        let (name, port) = rest.split_once(']').ok_or_else(wrong)?;
        name.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
        (name, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(wrong)?) })
    } else {
        match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        }
    };
    let is_name = name.chars().all(|letter| letter.is_ascii_alphanumeric() || ".-_:".contains(letter));
    if name.is_empty() || !is_name {
        return Err(wrong());
    }
    let port = match port {
        Some(port) => port.parse::<u16>().ok().filter(|&port| port > 0).ok_or_else(wrong)?,
        None => default_port,
    };
    Ok(Host { name: name.to_owned(), port })
}

fn parse_login(text: &str) -> Result<Login, SettingsError> {
    let (user, password) = text.split_once(':').ok_or(SettingsError::Login)?;
    let user = Some(decode(user)?).filter(|user| !user.is_empty());
    Ok(Login { user, password: Password::Plain(decode(password)?) })
}

fn decode(text: &str) -> Result<String, SettingsError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (high, low) = (digit().ok_or(SettingsError::Login)?, digit().ok_or(SettingsError::Login)?);
        bytes.push(u8::try_from(high * 16 + low).unwrap_or(0));
    }
    String::from_utf8(bytes).map_err(|_| SettingsError::Login)
}
