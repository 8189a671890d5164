//! The address of a store that a fleet shares, as an operator writes it. It may have a password in it, so it is shown without, and
//! no message repeats what was typed.

use std::fmt;

/// Most hosts that an address may name; a client learns the others from them.
const HOSTS_MAX: usize = 32;
/// Longest address.
const ADDRESS_BYTES_MAX: usize = 4_096;
/// Highest number of a database that is accepted: what Redis can be told to have.
const DATABASE_MAX: u32 = 65_535;

/// What all messages end with.
pub(crate) const ACCEPTED: &str = "accepted: memory, redis://host:6379, rediss://host:6379 (TLS), redis-cluster://host1:6379,host2:6379, \
                                   rediss-cluster://…, redis-sentinel://host1:26379,host2:26379/service or rediss-sentinel://…, \
                                   each with user:password@ before the first host where the store asks for one";

/// How the servers behind an address belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One server.
    Single,
    /// A cluster that shares the keys out.
    Cluster,
    /// One server that others watch, and replace.
    Sentinel,
}

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl Host {
    /// Whether nobody but this machine is on the way to it.
    pub(crate) fn is_loopback(&self) -> bool {
        let address = self.name.parse::<std::net::IpAddr>();
        address.map_or(self.name == "localhost", |address| address.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// An address that was understood. Has no `Debug`, as its password.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) kind: Kind,
    pub(crate) is_secure: bool,
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
    /// What a sentinel calls the server; empty elsewhere.
    pub(crate) service: String,
}

impl Address {
    /// Understands what was typed.
    ///
    /// # Errors
    /// When it is no address; the message says what would be accepted, and repeats nothing that may be a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        read(text).map_err(|problem| format!("not the address of a store: {problem}; {ACCEPTED}"))
    }

    /// The whole address, with its password: for whoever connects, and for nobody to see.
    pub(crate) fn url(&self) -> String {
        let password = self.password.as_deref().map(|password| format!(":{}", escaped(password)));
        let user = self.user.as_deref().map(escaped).unwrap_or_default();
        match password {
            Some(password) => self.written(&format!("{user}{password}@")),
            None if user.is_empty() => self.written(""),
            None => self.written(&format!("{user}@")),
        }
    }

    fn written(&self, credentials: &str) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        let mut text = format!("{}://{credentials}{}", self.scheme(), hosts.join(","));
        if self.kind == Kind::Sentinel {
            text.push('/');
            text.push_str(&escaped(&self.service));
        }
        if self.database > 0 {
            text.push_str(&format!("/{}", self.database));
        }
        text
    }

    const fn scheme(&self) -> &'static str {
        match (self.kind, self.is_secure) {
            (Kind::Single, false) => "redis",
            (Kind::Single, true) => "rediss",
            (Kind::Cluster, false) => "redis-cluster",
            (Kind::Cluster, true) => "rediss-cluster",
            (Kind::Sentinel, false) => "redis-sentinel",
            (Kind::Sentinel, true) => "rediss-sentinel",
        }
    }

    /// Whether what is said to it can be read on the way.
    pub(crate) fn is_exposed(&self) -> bool {
        !self.is_secure && !self.hosts.iter().all(Host::is_loopback)
    }
}

/// Without the password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_deref().map(escaped).unwrap_or_default();
        let credentials = match (&self.password, user.is_empty()) {
            (Some(_), _) => format!("{user}:***@"),
            (None, true) => String::new(),
            (None, false) => format!("{user}@"),
        };
        f.write_str(&self.written(&credentials))
    }
}

fn read(text: &str) -> Result<Address, &'static str> {
    if text.len() > ADDRESS_BYTES_MAX {
        return Err("it is too long");
    }
    let (scheme, rest) = text.split_once("://").ok_or("it has no scheme, such as redis://")?;
    let (kind, is_secure) = match scheme.to_ascii_lowercase().as_str() {
        "redis" | "valkey" => (Kind::Single, false),
        "rediss" | "valkeys" => (Kind::Single, true),
        "redis-cluster" => (Kind::Cluster, false),
        "rediss-cluster" => (Kind::Cluster, true),
        "redis-sentinel" => (Kind::Sentinel, false),
        "rediss-sentinel" => (Kind::Sentinel, true),
        _ => return Err("its scheme is unknown"),
    };
    if rest.contains(['?', '#']) {
        return Err(
            "it has parameters (write ? as %3F and # as %23 in a password, and other settings as flags)",
        );
    }
    // A password may have an @ in it that nobody escaped, and a host has none.
    let (credentials, place) =
        rest.rsplit_once('@').map_or((None, rest), |(before, after)| (Some(before), after));
    let (user, password) = credentials.map(read_credentials).transpose()?.unwrap_or_default();
    let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
    let hosts = read_hosts(hosts, kind)?;
    let (service, database) = read_path(path, kind)?;
    Ok(Address { kind, is_secure, hosts, user, password, database, service })
}

type Credentials = (Option<String>, Option<String>);

fn read_credentials(text: &str) -> Result<Credentials, &'static str> {
    let (user, password) =
        text.split_once(':').map_or((text, None), |(user, password)| (user, Some(password)));
    let user = unescaped(user)?;
    let password = password.map(unescaped).transpose()?;
    Ok(((!user.is_empty()).then_some(user), password.filter(|password| !password.is_empty())))
}

fn read_hosts(text: &str, kind: Kind) -> Result<Vec<Host>, &'static str> {
    let port = if kind == Kind::Sentinel { 26_379 } else { 6_379 };
    let hosts: Vec<Host> = text.split(',').map(|host| read_host(host, port)).collect::<Result<_, _>>()?;
    match (hosts.len(), kind) {
        (1, _) | (2..=HOSTS_MAX, Kind::Cluster | Kind::Sentinel) => Ok(hosts),
        (_, Kind::Single) => Err("it names several hosts (for a cluster write redis-cluster://)"),
        _ => Err("it names more than 32 hosts"),
    }
}

fn read_host(text: &str, port: u16) -> Result<Host, &'static str> {
    let (name, given) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, after) = rest.split_once(']').ok_or("a host begins with [ and has no ]")?;
            name.parse::<std::net::Ipv6Addr>().map_err(|_| "a host in [ ] is no IPv6 address")?;
            (
                name,
                after
                    .strip_prefix(':')
                    .or_else(|| after.is_empty().then_some(""))
                    .ok_or("a host in [ ] is followed by no port")?,
            )
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || !text.starts_with('[') && !name.chars().all(is_name) {
        return Err("a host is missing, or is no name and no address (write IPv6 in [ ])");
    }
    let port = match given {
        "" if !text.ends_with(':') => port,
        _ => given.parse().ok().filter(|&port| port > 0).ok_or("a port is no number from 1 to 65535")?,
    };
    Ok(Host { name: name.to_owned(), port })
}

/// What a sentinel calls the server, and the number of the database.
fn read_path(path: &str, kind: Kind) -> Result<(String, u32), &'static str> {
    let path = path.trim_end_matches('/');
    let (service, database) = match kind {
        Kind::Sentinel => path.split_once('/').unwrap_or((path, "")),
        Kind::Single | Kind::Cluster => ("", path),
    };
    if kind == Kind::Sentinel && service.is_empty() {
        return Err("it does not say what the sentinels call the server, such as …/mymaster");
    }
    let database = match database {
        "" => 0,
        _ => {
            database.parse().ok().filter(|&number| number <= DATABASE_MAX).ok_or("a database is no number")?
        }
    };
    if kind == Kind::Cluster && database > 0 {
        return Err("a cluster has no database but 0");
    }
    Ok((unescaped(service)?, database))
}

/// Text in which %XX stands for a byte.
fn unescaped(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "% is followed by no two hexadecimal digits (write % itself as %25)";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or(WRONG);
                u8::try_from(digit()? * 16 + digit()?).map_err(|_| WRONG)?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| "a name or a password is no UTF-8")
}

fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every form that is accepted, and how it is shown.
    #[test]
    fn addresses_are_understood_and_shown_without_passwords() {
        let forms = [
            ("redis://localhost", "redis://localhost:6379"),
            ("valkey://localhost", "redis://localhost:6379"),
            ("rediss://h:7000/3", "rediss://h:7000/3"),
            ("redis://:s3cret@h", "redis://:***@h:6379"),
            ("redis://u:s3cret@h", "redis://u:***@h:6379"),
            ("redis://u@h", "redis://u@h:6379"),
            ("redis-cluster://u:p%40s3cret@a:1,b:2,[::1]:3", "redis-cluster://u:***@a:1,b:2,[::1]:3"),
            ("redis-sentinel://u:s3cret@a,b:2/mymaster/4", "redis-sentinel://u:***@a:26379,b:2/mymaster/4"),
            ("redis://u:p@s3cret@h", "redis://u:***@h:6379"),
        ];
        for (text, shown) in forms {
            let address = Address::parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
            assert_eq!(address.to_string(), shown);
            assert_eq!(Address::parse(&address.url()).unwrap().url(), address.url(), "{text}");
        }
        assert_eq!(Address::parse("redis://u:p%40s%2F3@h").unwrap().password.as_deref(), Some("p@s/3"));
    }

    /// What is wrong is told with what would be accepted, and without what was typed.
    #[test]
    fn problems_never_show_what_was_typed() {
        for text in [
            "s3cret",
            "http://u:s3cret@h",
            "redis://u:s3cret@",
            "redis://u:s3cret@h:0",
            "redis://u:s3cret@h:99999",
            "redis://u:s3cret@h/x",
            "redis://u:s3cret@h1,h2",
            "redis://u:s3cret@h/1?timeout=1",
            "redis://u:s3cret%zz@h",
            "redis://u:s3cret@[::1",
            "redis-cluster://u:s3cret@h/1",
            "redis-sentinel://u:s3cret@h",
            "redis://u:s3cret@::1",
        ] {
            let problem = Address::parse(text).err().unwrap_or_else(|| panic!("{text}"));
            assert!(
                !problem.contains("s3cret") && problem.contains("accepted: memory, redis://"),
                "{problem}"
            );
        }
    }
}
