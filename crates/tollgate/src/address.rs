//! Client addresses: parsed from text, compared by their bits, and counted by their networks. An IPv4 address inside an
//! IPv6 address (mapped, NAT64, 6to4) is that IPv4 address, so one client has one key however its address is written.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::problem::Problem;

/// How many leading bits of an IPv6 address count by default: a provider's customer usually has all the addresses below
/// them.
pub const IPV6_PREFIX_DEFAULT: u8 = 64;
/// Bits of an IPv4 address.
const IPV4_BITS: u8 = 32;
/// Bits of an IPv6 address.
const IPV6_BITS: u8 = 128;
/// The longest text of a network: an IPv6 address of 39 characters and `/128`, with space to spare.
const TEXT_BYTES_MAX: usize = 48;
/// Translated IPv4 addresses (RFC 6052); the IPv4 address is the last 32 bits.
const NAT64: u128 = 0x0064_ff9b << 96;
/// Bits before the IPv4 address of a translated or mapped one.
const NAT64_BITS: u8 = 96;
/// Tunnelled IPv4 addresses (RFC 3056); the IPv4 address follows these 16 bits.
const SIX_TO_FOUR: u128 = 0x2002 << 112;
/// Bits before the IPv4 address of a tunnel.
const SIX_TO_FOUR_BITS: u8 = 16;

/// The IPv4 address inside an IPv6 address, if there is one; every other address as it is.
#[must_use]
pub fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address.to_canonical() else { return address.to_canonical() };
    let bits = v6.to_bits();
    let inside = if masked(bits, NAT64_BITS) == NAT64 {
        bits
    } else if masked(bits, SIX_TO_FOUR_BITS) == SIX_TO_FOUR {
        bits >> 80
    } else {
        return IpAddr::V6(v6);
    };
    let [.., a, b, c, d] = inside.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// The address of a client as programs and proxies write it: bare, with a port, in brackets, with a zone, or with white
/// space around it. Only the address says who the client is: a port is new with each connection.
#[must_use]
pub fn client(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Some(address) = zoned(text) {
        return Some(IpAddr::V6(address));
    }
    if let Some(inside) = text.strip_prefix('[') {
        let (address, port) = inside.split_once(']')?;
        let is_port =
            port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
        let address = address.parse().ok().or_else(|| zoned(address));
        return address.filter(|_| is_port).map(IpAddr::V6);
    }
    let (address, port) = text.split_once(':')?;
    port.parse::<u16>().ok()?;
    address.parse().ok().map(IpAddr::V4)
}

/// An IPv6 address with a zone. The zone has a meaning only on the host that wrote it.
fn zoned(text: &str) -> Option<Ipv6Addr> {
    let (address, zone) = text.split_once('%')?;
    address.parse().ok().filter(|_| !zone.is_empty())
}

/// Whether a text has only digits and dots. If it is an address, it is an IPv4 address, which has one spelling like that.
#[inline]
pub(crate) fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

fn masked(bits: u128, prefix: u8) -> u128 {
    bits & u128::MAX.checked_shl(u32::from(IPV6_BITS.saturating_sub(prefix))).unwrap_or(0)
}

/// A range of addresses of one family. A single address is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The first address, in its canonical form.
    first: IpAddr,
    /// How many leading bits its addresses share.
    prefix: u8,
}

impl Network {
    /// The network of an address with this prefix length.
    #[must_use]
    pub fn of(address: IpAddr, prefix: u8) -> Self {
        let around = match address {
            IpAddr::V4(address) => return Self::of_v4(address, prefix),
            IpAddr::V6(around) => around,
        };
        let outer = if masked(around.to_bits(), SIX_TO_FOUR_BITS) == SIX_TO_FOUR {
            SIX_TO_FOUR_BITS
        } else {
            NAT64_BITS
        };
        match canonical(address) {
            // The prefix counts the bits of the IPv6 address around the IPv4 address.
            IpAddr::V4(inside) if prefix >= outer => Self::of_v4(inside, prefix - outer),
            _ => {
                let prefix = prefix.min(IPV6_BITS);
                Self { first: IpAddr::V6(Ipv6Addr::from_bits(masked(around.to_bits(), prefix))), prefix }
            }
        }
    }

    fn of_v4(address: Ipv4Addr, prefix: u8) -> Self {
        let prefix = prefix.min(IPV4_BITS);
        let mask = u32::MAX.checked_shl(u32::from(IPV4_BITS - prefix)).unwrap_or(0);
        Self { first: IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask)), prefix }
    }

    /// The range that contains only this address.
    #[must_use]
    pub fn single(address: IpAddr) -> Self {
        Self::of(address, if address.is_ipv4() { IPV4_BITS } else { IPV6_BITS })
    }

    /// Whether all addresses of another range are in this one.
    #[must_use]
    pub fn contains(&self, other: &Network) -> bool {
        other.prefix >= self.prefix
            && other.first.is_ipv4() == self.first.is_ipv4()
            && Self::of(other.first, self.prefix) == *self
    }

    /// Whether some address is in both ranges.
    #[must_use]
    pub(crate) fn overlaps(&self, other: &Network) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// Its first address.
    #[must_use]
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// How many leading bits its addresses share.
    pub(crate) const fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether it is the network of one client: a whole IPv4 address, or the default network of an IPv6 address.
    pub(crate) fn is_one_client(&self) -> bool {
        self.prefix == if self.first.is_ipv4() { IPV4_BITS } else { IPV6_PREFIX_DEFAULT }
    }

    /// Whether it contains only one address.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.prefix == if self.first.is_ipv4() { IPV4_BITS } else { IPV6_BITS }
    }

    /// Parses an address or a network as requests carry it. Bits after the prefix are dropped.
    pub(crate) fn given(text: &str) -> Option<Self> {
        match Written::given(text)? {
            Written::Address(address) => Some(Self::single(address)),
            Written::Network(address, prefix) => Some(Self::of(address, prefix)),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}/{}", self.first, self.prefix)
        }
    }
}

impl FromStr for Network {
    type Err = Problem;

    /// Parses an address or a network as a policy writes it. A text that no request could match is rejected.
    fn from_str(text: &str) -> Result<Self, Problem> {
        let (address, prefix) = match Written::read(text) {
            Some(Written::Address(address)) => return Ok(Self::single(address)),
            Some(Written::Network(address, prefix)) => (address, prefix),
            None => return Err(unreadable(text)),
        };
        let network = Self::of(address, prefix);
        let is_translated = address.is_ipv6() && canonical(address).is_ipv4() && !is_mapped(address);
        if is_translated && prefix < IPV6_BITS {
            let accepted = "that IPv4 address or network";
            return Err(Problem::new("counts as the IPv4 address inside it", accepted));
        }
        let is_exact = match (address, network.first) {
            (IpAddr::V6(around), IpAddr::V4(_)) => masked(around.to_bits(), prefix) == around.to_bits(),
            (address, first) => address == first,
        };
        if is_exact {
            Ok(network)
        } else {
            Err(Problem::new("has bits behind its prefix", network.to_string()))
        }
    }
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// Why a text is no network, with what was probably meant.
fn unreadable(text: &str) -> Problem {
    let accepted = "an address or a network, such as 10.0.0.1, 10.0.0.0/8 or 2001:db8::/32";
    if let Some((address, mask)) = text.split_once('/')
        && let (Ok(address), Ok(mask)) = (address.parse::<Ipv4Addr>(), mask.parse::<Ipv4Addr>())
        && let ones = mask.to_bits().leading_ones()
        && mask.to_bits().count_ones() == ones
    {
        let network = Network::of_v4(address, u8::try_from(ones).unwrap_or(IPV4_BITS));
        return Problem::new("has a mask where a number of bits is expected", network.to_string());
    }
    if let Some(network) = starred(text) {
        return Problem::new("has a * in an address", network.to_string());
    }
    Problem::new("is not an address", accepted)
}

/// The network that `10.0.*` means.
fn starred(text: &str) -> Option<Network> {
    let octets = text.trim_end_matches(['*', '.']);
    let parts: Vec<u8> = octets.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    let is_starred = text.contains('*') && (1..=3).contains(&parts.len());
    let octet = |place: usize| parts.get(place).copied().unwrap_or(0);
    let prefix = u8::try_from(parts.len()).ok()? * 8;
    is_starred.then(|| Network::of_v4(Ipv4Addr::new(octet(0), octet(1), octet(2), octet(3)), prefix))
}

/// An address as written in a text, with its prefix length if the text has one.
enum Written {
    Address(IpAddr),
    Network(IpAddr, u8),
}

impl Written {
    /// Parses an address or a network in any spelling that requests may have.
    fn given(text: &str) -> Option<Self> {
        Self::read(text).or_else(|| client(text).map(Self::Address))
    }

    /// Parses an address or a network in the spelling of a policy.
    fn read(text: &str) -> Option<Self> {
        let Some((address, prefix)) = text.split_once('/') else {
            return text.parse().ok().map(Written::Address);
        };
        let address: IpAddr = address.parse().ok()?;
        let is_plain = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = prefix.parse().ok().filter(|_| is_plain)?;
        let most = if address.is_ipv4() { IPV4_BITS } else { IPV6_BITS };
        (prefix <= most).then_some(Written::Network(address, prefix))
    }
}

/// How addresses become keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Prefixes {
    /// An IPv4 address whole, an IPv6 address by its /64, and a network as the caller gives it.
    #[default]
    Default,
    /// By at most this many leading bits.
    Bits {
        /// Of an IPv4 address.
        ipv4: u8,
        /// Of an IPv6 address.
        ipv6: u8,
    },
}

impl Prefixes {
    /// By this many bits, which are within the bounds of both families.
    pub(crate) fn new(ipv4: u8, ipv6: u8) -> Option<Self> {
        let is_valid = (1..=IPV4_BITS).contains(&ipv4) && (1..=IPV6_BITS).contains(&ipv6);
        is_valid.then_some(Prefixes::Bits { ipv4, ipv6 })
    }

    /// The network that an address counts as.
    #[must_use]
    pub fn network(self, text: &str) -> Option<Network> {
        let (address, given) = match Written::given(text)? {
            Written::Address(address) => (address, None),
            Written::Network(address, prefix) => (address, Some(prefix)),
        };
        let whole = given.map_or_else(|| Network::single(address), |prefix| Network::of(address, prefix));
        let most = match (self, whole.first, given) {
            (Prefixes::Default, _, Some(_)) | (Prefixes::Default, IpAddr::V4(_), None) => whole.prefix,
            (Prefixes::Default, IpAddr::V6(_), None) => IPV6_PREFIX_DEFAULT,
            (Prefixes::Bits { ipv4, .. }, IpAddr::V4(_), _) => ipv4,
            (Prefixes::Bits { ipv6, .. }, IpAddr::V6(_), _) => ipv6,
        };
        Some(Network::of(whole.first, whole.prefix.min(most)))
    }

    /// The text for a caller's address in a key. A text that is no address is used as it is.
    #[inline]
    pub(crate) fn counted<'t>(self, text: &'t str, room: &'t mut Text) -> &'t str {
        // The common case needs no parsing.
        if matches!(self, Prefixes::Default) && is_plain(text) {
            text
        } else {
            self.counted_slowly(text, room)
        }
    }

    #[cold]
    fn counted_slowly<'t>(self, text: &'t str, room: &'t mut Text) -> &'t str {
        match self.network(text) {
            Some(network) if write!(room, "{network}").is_ok() => room.as_str(),
            _ => text,
        }
    }
}

impl fmt::Display for Prefixes {
    /// As `by` writes it after the attribute.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefixes::Default => Ok(()),
            Prefixes::Bits { ipv4: IPV4_BITS, ipv6 } if *ipv6 > IPV4_BITS => write!(f, "/{ipv6}"),
            Prefixes::Bits { ipv4, ipv6 } => write!(f, "/{ipv4},{ipv6}"),
        }
    }
}

/// A buffer for the text of any network, so that a key is made without allocating.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl Text {
    pub(crate) const EMPTY: Text = Text { bytes: [0; TEXT_BYTES_MAX], length: 0 };

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(prefixes: Prefixes, text: &str) -> String {
        prefixes.counted(text, &mut Text::EMPTY.clone()).to_owned()
    }

    /// Every spelling of an address, and every address of its network, has one key.
    #[test]
    fn addresses_count_by_network() {
        let both = Prefixes::new(24, 48).unwrap();
        for (given, by_default, by_both) in [
            ("203.0.113.7", "203.0.113.7", "203.0.113.0/24"),
            ("203.0.113.7/32", "203.0.113.7", "203.0.113.0/24"),
            ("::ffff:203.0.113.7", "203.0.113.7", "203.0.113.0/24"),
            ("::ffff:cb00:7107", "203.0.113.7", "203.0.113.0/24"),
            ("64:ff9b::203.0.113.7", "203.0.113.7", "203.0.113.0/24"),
            ("2002:cb00:7107:1::1", "203.0.113.7", "203.0.113.0/24"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64", "2001:db8:1::/48"),
            ("2001:DB8:1:2::6", "2001:db8:1:2::/64", "2001:db8:1::/48"),
            ("2001:db8:1:2::/64", "2001:db8:1:2::/64", "2001:db8:1::/48"),
            ("2001:db8:1:2::9/64", "2001:db8:1:2::/64", "2001:db8:1::/48"),
            // A caller that sends a network has decided what counts as one.
            ("2001:db8:1:2::9/128", "2001:db8:1:2::9", "2001:db8:1::/48"),
            ("2001:db8::/32", "2001:db8::/32", "2001:db8::/32"),
            ("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8"),
            // The story: a program sent the address with the port of the connection, so each connection had its own key.
            ("203.0.113.7:49152", "203.0.113.7", "203.0.113.0/24"),
            ("[::ffff:203.0.113.7]:49152", "203.0.113.7", "203.0.113.0/24"),
            ("[2001:db8:1:2::6]:443", "2001:db8:1:2::/64", "2001:db8:1::/48"),
            ("[2001:db8:1:2::6]", "2001:db8:1:2::/64", "2001:db8:1::/48"),
            ("fe80::1%eth0", "fe80::/64", "fe80::/48"),
            ("[fe80::1%eth0]:443", "fe80::/64", "fe80::/48"),
            (" 203.0.113.7\n", "203.0.113.7", "203.0.113.0/24"),
            ("none", "none", "none"),
            ("010.0.0.1", "010.0.0.1", "010.0.0.1"),
            ("1.2.3", "1.2.3", "1.2.3"),
            ("203.0.113.7:", "203.0.113.7:", "203.0.113.7:"),
            ("203.0.113.7:65536", "203.0.113.7:65536", "203.0.113.7:65536"),
            ("[203.0.113.7]:80", "[203.0.113.7]:80", "[203.0.113.7]:80"),
            ("fe80::1%", "fe80::1%", "fe80::1%"),
            ("", "", ""),
        ] {
            assert_eq!(counted(Prefixes::Default, given), by_default, "{given}");
            assert_eq!(counted(both, given), by_both, "{given}");
        }
    }

    /// Texts in a policy are parsed strictly, and an error says what would be accepted.
    #[test]
    fn networks_are_read_strictly() {
        for right in ["10.0.0.0/8", "10.0.0.1", "0.0.0.0/0", "::/0", "2001:db8::/32", "::ffff:10.0.0.0/104"] {
            assert!(right.parse::<Network>().is_ok(), "{right}");
        }
        for (wrong, accepted) in [
            ("10.1.2.3/8", "accepted: 10.0.0.0/8"),
            ("2001:db8::1/32", "accepted: 2001:db8::/32"),
            ("10.0.0.0/255.0.0.0", "accepted: 10.0.0.0/8"),
            ("10.0.*", "accepted: 10.0.0.0/16"),
            ("192.168.1.*", "accepted: 192.168.1.0/24"),
            ("10.0.0.0/33", "accepted: an address or a network"),
            ("10.0.0.0/+8", "accepted: an address or a network"),
            ("10.0.0.1:80", "accepted: an address or a network"),
            (" 10.0.0.1", "accepted: an address or a network"),
            ("10.0.0.1-10.0.0.9", "accepted: an address or a network"),
            ("64:ff9b::/96", "accepted: that IPv4 address"),
            ("localhost", "accepted: an address or a network"),
        ] {
            let refused = wrong.parse::<Network>().unwrap_err().to_string();
            assert!(refused.contains(accepted), "{wrong}: {refused}");
        }
        let mapped: Network = "::ffff:10.0.0.0/104".parse().unwrap();
        assert_eq!(mapped, "10.0.0.0/8".parse().unwrap());
    }

    /// A range of one family never contains an address of the other.
    #[test]
    fn families_are_apart() {
        let network = |text: &str| text.parse::<Network>().unwrap();
        assert!(!network("::/0").contains(&network("10.0.0.1")));
        assert!(!network("0.0.0.0/0").contains(&network("2001:db8::1")));
        assert!(network("0.0.0.0/0").contains(&network("10.0.0.0/8")));
        assert!(network("10.0.0.0/8").overlaps(&network("0.0.0.0/0")));
        assert!(!network("10.0.0.0/8").contains(&network("0.0.0.0/0")));
    }

    proptest! {
        /// The text of a key counts as itself, so an operator may paste what a screen shows.
        #[test]
        fn keys_count_as_themselves(bits: u128, v4: u32, ipv4 in 1u8..=32, ipv6 in 1u8..=128) {
            let addresses = [Ipv6Addr::from_bits(bits).to_string(), Ipv4Addr::from_bits(v4).to_string()];
            for prefixes in [Prefixes::Default, Prefixes::new(ipv4, ipv6).unwrap()] {
                for address in &addresses {
                    let key = counted(prefixes, address);
                    prop_assert_eq!(counted(prefixes, &key), key);
                }
            }
        }

        /// A network contains exactly the addresses that share its leading bits.
        #[test]
        fn networks_hold_what_shares_their_bits(one: u32, other: u32, prefix in 0u8..=32) {
            let network = Network::of(IpAddr::V4(Ipv4Addr::from_bits(one)), prefix);
            let shares = prefix == 0 || (one ^ other) >> (32 - prefix) == 0;
            let other = Network::single(IpAddr::V4(Ipv4Addr::from_bits(other)));
            prop_assert_eq!(network.contains(&other), shares);
        }
    }
}
