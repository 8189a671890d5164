//! The one spelling of a host: limits and routes are matched against it, and a gateway forwards it. A text that servers
//! may read differently is rejected.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use crate::problem::Problem;

/// Longest name of a host, in bytes: DNS has no longer names.
const NAME_BYTES_MAX: usize = 253;
/// The default ports, which may be omitted. Only the program that ended TLS knows which of them is the default, so
/// neither is written.
const USUAL_PORTS: [u16; 2] = [80, 443];

/// A host and its port in their one spelling.
///
/// ```
/// assert_eq!(tollgate::host::Host::parse("Example.com.:443")?.as_str(), "example.com");
/// # Ok::<(), tollgate::policy::Problem>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host<'h> {
    /// Both, as a request names them: the port only if it is not a default port.
    text: Cow<'h, str>,
    /// The length of the name in it.
    name_bytes: usize,
}

impl<'h> Host<'h> {
    /// Parses a host with or without a port. The name is written in lowercase and without the dot that ends a full
    /// name, an IPv6 address as it is printed. The port is a number from 1 to 65535 without leading zeros, and is
    /// omitted if it is a default port.
    ///
    /// # Errors
    /// When it is neither a name nor an address.
    pub fn parse(text: &'h str) -> Result<Self, Problem> {
        let (name, port) = split(text).ok_or_else(|| refused(text))?;
        let port = match port {
            None | Some("") => None,
            Some(digits) => Some(number(digits).ok_or_else(|| refused(text))?),
        };
        let port = port.filter(|port| !USUAL_PORTS.contains(port));
        let name = match name.strip_prefix('[') {
            Some(inside) => address(inside).map(Cow::Owned),
            None => registered(name),
        };
        let name = name.ok_or_else(|| refused(text))?;
        let name_bytes = name.len();
        let text = match port {
            None => name,
            // The usual case: the request has this spelling.
            Some(port) if matches!(&name, Cow::Borrowed(name) if is_followed_by(text, name, port)) => {
                Cow::Borrowed(text)
            }
            Some(port) => Cow::Owned(format!("{name}:{port}")),
        };
        Ok(Self { text, name_bytes })
    }

    /// The name or the address, without a port.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text.get(..self.name_bytes).unwrap_or_default()
    }

    /// The name with its port, if that is not a default port; this is what a gateway forwards.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it has a port that is not a default port.
    #[must_use]
    pub fn has_port(&self) -> bool {
        self.text.len() > self.name_bytes
    }

    /// The same host, independent of the text that it was parsed from.
    pub(crate) fn into_owned(self) -> Host<'static> {
        Host { text: Cow::Owned(self.text.into_owned()), name_bytes: self.name_bytes }
    }

    /// The name with its port.
    #[must_use]
    pub fn as_text(&self) -> Cow<'h, str> {
        self.text.clone()
    }

    /// The name, without its port.
    #[must_use]
    pub fn into_name(self) -> Cow<'h, str> {
        match self.text {
            Cow::Borrowed(text) => Cow::Borrowed(text.get(..self.name_bytes).unwrap_or_default()),
            Cow::Owned(mut text) => {
                text.truncate(self.name_bytes);
                Cow::Owned(text)
            }
        }
    }
}

fn refused(text: &str) -> Problem {
    let shown: String = text.chars().take(NAME_BYTES_MAX).collect();
    let accepted = "example.com, example.com:8443 or [2001:db8::1]";
    Problem::new(format!("{shown:?} is not a name and a port"), accepted)
}

/// The name, and the text after the colon behind it.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if text.starts_with('[') {
        let (name, rest) = text.split_at(text.find(']')? + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Some((name, Some(port))),
            None => rest.is_empty().then_some((name, None)),
        };
    }
    Some(text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))))
}

/// A port.
fn number(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&port| is_number && port > 0)
}

/// An IPv6 address with the bracket behind it, as it is printed.
fn address(inside: &str) -> Option<String> {
    let address: Ipv6Addr = inside.strip_suffix(']')?.parse().ok()?;
    Some(format!("[{address}]"))
}

/// A name, or an IPv4 address: labels of letters, digits, `-` and `_`.
fn registered(name: &str) -> Option<Cow<'_, str>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.bytes().all(is_fine)
    };
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(is_label) {
        return None;
    }
    let is_small = !name.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if is_small { Cow::Borrowed(name) } else { Cow::Owned(name.to_ascii_lowercase()) })
}

/// Whether a text is a name, a colon and a port, and nothing else.
fn is_followed_by(text: &str, name: &str, port: u16) -> bool {
    let port_text = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(':'));
    port_text.is_some_and(|digits| !digits.starts_with('0') && number(digits) == Some(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One host has one spelling, with its port and without.
    #[test]
    fn one_spelling() {
        for (text, name, whole) in [
            ("example.com", "example.com", "example.com"),
            ("Example.COM.", "example.com", "example.com"),
            ("example.com:", "example.com", "example.com"),
            ("example.com:080", "example.com", "example.com"),
            ("example.com.:443", "example.com", "example.com"),
            ("Example.com:08443", "example.com", "example.com:8443"),
            ("example.com:8443", "example.com", "example.com:8443"),
            ("example.com.:8443", "example.com", "example.com:8443"),
            ("example.com:1", "example.com", "example.com:1"),
            ("[2001:DB8:0::1]:443", "[2001:db8::1]", "[2001:db8::1]"),
            ("[::1]:", "[::1]", "[::1]"),
            ("[0:0::1]:3000", "[::1]", "[::1]:3000"),
        ] {
            let host = Host::parse(text).unwrap();
            assert_eq!((host.name(), host.as_str()), (name, whole), "{text}");
            assert_eq!(host.has_port(), name != whole, "{text}");
            assert_eq!(host.clone().into_name(), name, "{text}");
            assert_eq!(Host::parse(whole).unwrap(), host, "{text}");
        }
        assert!(matches!(Host::parse("example.com:8443").unwrap().text, Cow::Borrowed(_)));
        let longest = "a".repeat(NAME_BYTES_MAX);
        assert!(Host::parse(&longest).is_ok());
        assert!(Host::parse(&format!("{longest}a")).is_err());
    }
}
