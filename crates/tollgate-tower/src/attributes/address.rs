//! The address of the client: the peer, or what a trusted proxy reports. Addresses are compared by their bits, never by
//! their text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use tollgate::policy::Problem;

pub(super) use tollgate::address::{canonical, client};

/// Most networks of trusted proxies.
pub const TRUSTED_MAX: usize = 1_000;
/// Most hops of `X-Forwarded-For` that are read, from the right.
const HOPS_MAX: usize = 32;
/// Accepted numbers of leading bits of an IPv6 address that identify a client.
pub const IPV6_PREFIX: std::ops::RangeInclusive<u8> = 48..=128;
pub use tollgate::address::IPV6_PREFIX_DEFAULT;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// An IPv6 address. IPv4 is mapped, so that one comparison serves both.
    bits: u128,
    prefix: u32,
}

/// The bits of an address. Both forms of an IPv4 address have the same bits.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn masked(bits: u128, prefix: u32) -> u128 {
    bits & u128::MAX.checked_shl(128_u32.saturating_sub(prefix)).unwrap_or(0)
}

impl Network {
    fn new(address: IpAddr, prefix: u32) -> Option<Self> {
        let (length, offset) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        let network = Self { bits: bits(address), prefix: prefix + offset };
        (prefix <= length && masked(network.bits, network.prefix) == network.bits).then_some(network)
    }

    fn contains(&self, address: IpAddr) -> bool {
        masked(bits(address), self.prefix) == self.bits
    }
}

impl FromStr for Network {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let accepted = "an address or a network, such as 10.0.0.1, 10.0.0.0/8 or 2001:db8::/32";
        let refused = |why: &str| Problem::new(format!("{text:?} {why}"), accepted);
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().map_err(|_| refused("is not an address"))?;
        let prefix = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| refused("has no number of bits after /"))?,
            None if address.is_ipv4() => 32,
            None => 128,
        };
        Self::new(address, prefix).ok_or_else(|| refused("is not a network: it has bits behind its prefix"))
    }
}

/// The trusted proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted(Vec<Network>);

impl Default for Trusted {
    /// The loopback addresses.
    fn default() -> Self {
        let loopback = [
            Network::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
            Network::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
        ];
        Self(loopback.into_iter().flatten().collect())
    }
}

impl Trusted {
    /// Trusts the proxies in these networks.
    #[must_use]
    pub fn new(networks: Vec<Network>) -> Self {
        Self(networks)
    }

    /// Whether no proxy is trusted.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an address belongs to a trusted proxy.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// The client behind a peer: an untrusted peer itself, else the first hop from the right that is not trusted.
    ///
    /// `forwarded` are the values of `X-Forwarded-For` in the order of the request. A hop that is not an address ends the
    /// walk, because no trusted proxy wrote the hops to its left.
    pub fn client<'h>(&self, peer: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'h [u8]>) -> IpAddr {
        let mut client = peer;
        let hops = forwarded.rev().flat_map(|line| line.rsplit(|&byte| byte == b','));
        for hop in hops.take(HOPS_MAX) {
            if !self.contains(client) {
                break;
            }
            match hop_address(hop) {
                Some(address) => client = address,
                None => break,
            }
        }
        client
    }

    /// The trusted part of the path of a request: the client first, then each trusted proxy, the peer last. `forwarded` is
    /// as for [`Trusted::client`].
    pub fn chain<'h>(
        &self,
        peer: IpAddr,
        forwarded: impl DoubleEndedIterator<Item = &'h [u8]>,
    ) -> Vec<IpAddr> {
        let (mut chain, mut last) = (vec![peer], peer);
        let hops = forwarded.rev().flat_map(|line| line.rsplit(|&byte| byte == b','));
        for hop in hops.take(HOPS_MAX) {
            let Some(address) = hop_address(hop).filter(|_| self.contains(last)) else { break };
            chain.push(address);
            last = address;
        }
        chain.reverse();
        chain
    }
}

/// An address as proxies write it.
fn hop_address(hop: &[u8]) -> Option<IpAddr> {
    client(std::str::from_utf8(hop).ok()?)
}

/// An address as limits count it: a whole IPv4 address, or the network of an IPv6 address.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// The address of the client.
    pub address: IpAddr,
    /// Number of leading bits of an IPv6 address that count.
    pub ipv6_prefix: u8,
}

impl Counted {
    /// The first address of the network that counts as one client.
    #[must_use]
    pub fn network(&self) -> IpAddr {
        match canonical(self.address) {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(masked(address.to_bits(), u32::from(self.ipv6_prefix))))
            }
        }
    }
}

impl Counted {
    /// Writes the client for the attribute `ip`. By default that is the whole address: limits count it by its /64, and
    /// conditions see all of it. Another prefix hides the rest of the address from both, and is part of the text.
    pub(super) fn write_ip(&self, into: &mut impl fmt::Write) -> fmt::Result {
        match canonical(self.address) {
            IpAddr::V6(address) if self.ipv6_prefix == IPV6_PREFIX_DEFAULT => write!(into, "{address}"),
            IpAddr::V6(address) if self.ipv6_prefix >= 128 => write!(into, "{address}/128"),
            _ => write!(into, "{self}"),
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            IpAddr::V6(network) if self.ipv6_prefix < 128 => write!(f, "{network}/{}", self.ipv6_prefix),
            whole => write!(f, "{whole}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(trusted: &str, peer: &str, lines: &[&str]) -> String {
        let networks = trusted.split_whitespace().map(|network| network.parse().unwrap()).collect();
        let (trusted, peer) = (Trusted::new(networks), peer.parse().unwrap());
        let lines = lines.iter().map(|line| line.as_bytes());
        let client = trusted.client(peer, lines.clone());
        let chain = trusted.chain(peer, lines);
        assert_eq!((chain.first(), chain.last()), (Some(&client), Some(&peer)), "{chain:?}");
        assert!(chain[1..].iter().all(|hop| trusted.contains(*hop)), "{chain:?}");
        client.to_string()
    }

    #[test]
    fn the_client_is_found_in_honest_and_forged_chains() {
        let ours = "10.0.0.0/8 ::1 2001:db8::/32";
        let cases: &[(&str, &[&str], &str)] = &[
            ("203.0.113.7", &[], "203.0.113.7"),
            // This peer is not trusted.
            ("203.0.113.7", &["198.51.100.1"], "203.0.113.7"),
            ("203.0.113.7", &["10.0.0.1"], "203.0.113.7"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.7"], "203.0.113.7"),
            // The client's own entries are on the left.
            ("10.0.0.1", &["1.2.3.4, 203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &["10.0.0.9, 203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &["203.0.113.7, 10.0.0.2"], "203.0.113.7"),
            ("10.0.0.1", &["1.2.3.4, 203.0.113.7, 10.0.0.3, 10.0.0.2"], "203.0.113.7"),
            // Several lines are one list.
            ("10.0.0.1", &["1.2.3.4", "203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &["203.0.113.7", "10.0.0.2"], "203.0.113.7"),
            // All are trusted: the leftmost one.
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            // A hop that is not an address ends the walk.
            ("10.0.0.1", &["203.0.113.7, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.7, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.7,"], "10.0.0.1"),
            ("10.0.0.1", &["999.1.1.1"], "10.0.0.1"),
            ("10.0.0.1", &["0x7f.1"], "10.0.0.1"),
            ("10.0.0.1", &["010.0.0.2"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.7; x"], "10.0.0.1"),
            // Ports and brackets.
            ("10.0.0.1", &["203.0.113.7:51234"], "203.0.113.7"),
            ("10.0.0.1", &["203.0.113.7:x"], "10.0.0.1"),
            ("10.0.0.1", &["[2001:db9::7]:443"], "2001:db9::7"),
            ("10.0.0.1", &["[2001:db9::7]"], "2001:db9::7"),
            ("10.0.0.1", &["[2001:db9::7]x"], "10.0.0.1"),
            ("10.0.0.1", &["2001:db9::7"], "2001:db9::7"),
            // IPv4 in IPv6 is IPv4, on either side.
            ("::ffff:10.0.0.1", &["203.0.113.7"], "203.0.113.7"),
            ("::ffff:203.0.113.9", &["198.51.100.1"], "::ffff:203.0.113.9"),
            ("10.0.0.1", &["203.0.113.7, ::ffff:10.0.0.2"], "203.0.113.7"),
            ("10.0.0.1", &["203.0.113.7, ::ffff:a00:2"], "203.0.113.7"),
            ("::1", &["203.0.113.7, 2001:db8:1::1"], "203.0.113.7"),
        ];
        for (peer, lines, expected) in cases {
            assert_eq!(client(ours, peer, lines), *expected, "{peer} {lines:?}");
        }
        assert_eq!(client("0.0.0.0/0", "10.0.0.1", &["203.0.113.7"]), "203.0.113.7");
        assert_eq!(client("", "127.0.0.1", &["203.0.113.7"]), "127.0.0.1");
    }

    #[test]
    fn a_long_chain_is_read_up_to_its_bound() {
        let line = format!("203.0.113.7{}", ", 10.0.0.2".repeat(1_000));
        assert_eq!(client("10.0.0.0/8", "10.0.0.1", &[&line]), "10.0.0.2");
    }

    /// Errors say what would be accepted.
    #[test]
    fn networks_are_parsed_strictly() {
        for right in
            ["10.0.0.0/8", "10.0.0.1", "0.0.0.0/0", "::/0", "::1", "2001:db8::/32", "::ffff:10.0.0.0/104"]
        {
            assert!(right.parse::<Network>().is_ok(), "{right}");
        }
        for wrong in [
            "",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "::1/129",
            "example.com",
            "10.0.0/8",
        ] {
            let refused = wrong.parse::<Network>().unwrap_err().to_string();
            assert!(refused.contains("accepted: an address or a network"), "{wrong}: {refused}");
        }
        let v4: Network = "::ffff:10.0.0.0/104".parse().unwrap();
        assert_eq!(v4, "10.0.0.0/8".parse().unwrap());
    }

    fn counted(address: &str, ipv6_prefix: u8) -> String {
        Counted { address: address.parse().unwrap(), ipv6_prefix }.to_string()
    }

    /// Both forms of an IPv4 address count as one.
    #[test]
    fn ipv6_counts_by_network_and_ipv4_by_address() {
        assert_eq!(counted("203.0.113.7", 64), "203.0.113.7");
        assert_eq!(counted("::ffff:203.0.113.7", 64), "203.0.113.7");
        assert_eq!(counted("::ffff:cb00:7107", 64), "203.0.113.7");
        assert_eq!(counted("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::/64");
        assert_eq!(counted("2001:db8:1:2:3:4:5:6", 48), "2001:db8:1::/48");
        assert_eq!(counted("2001:db8:1:2:3:4:5:6", 128), "2001:db8:1:2:3:4:5:6");
        assert_eq!(counted("::1", 64), "::/64");
        assert_eq!(counted("64:ff9b::203.0.113.7", 64), "203.0.113.7");
        assert_eq!(counted("2002:cb00:7107:1::1", 64), "203.0.113.7");
    }

    proptest! {
        /// Headers of an untrusted peer never change its address.
        #[test]
        fn an_untrusted_peer_is_the_client(peer: u32, lines in proptest::collection::vec("[ -~]{0,40}", 0..4)) {
            let peer = IpAddr::V4(Ipv4Addr::from_bits(peer | 0x8000_0000));
            let found = Trusted::default().client(peer, lines.iter().map(String::as_bytes));
            prop_assert_eq!(found, peer);
        }

        /// All addresses of one network count as one client, and those of two networks as two.
        #[test]
        fn one_network_is_one_client(network: u64, first: u64, second: u64) {
            let address = |network: u64, host: u64| {
                Ipv6Addr::from_bits(u128::from(network) << 64 | u128::from(host)).to_string()
            };
            prop_assume!(network > 1 && network != u64::MAX);
            prop_assert_eq!(counted(&address(network, first), 64), counted(&address(network, second), 64));
            prop_assert_ne!(counted(&address(network, first), 64), counted(&address(network ^ 1, first), 64));
        }
    }
}
