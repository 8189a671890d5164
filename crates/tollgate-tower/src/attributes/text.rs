//! The value of an attribute: borrowed from the request, owned, or inline if it is as short as an address.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};

use tollgate::CredentialDigest;

use super::address::{Counted, canonical};

/// Enough bytes for every address with its prefix, in whole blocks.
const SHORT_BYTES: usize = 3 * BLOCK;
/// The check for UTF-8 reads aligned blocks of this size.
const BLOCK: usize = 16;

/// Every octet in decimal with a dot: four bytes of text in the low bits, the first lowest, and its length above.
const OCTETS: [u64; 256] = {
    let mut all = [0; 256];
    let mut octet = 0u8;
    loop {
        let digits = [b'0' + octet / 100, b'0' + octet / 10 % 10, b'0' + octet % 10];
        let (text, length) = match octet {
            0..10 => ([digits[2], b'.', 0, 0], 2),
            10..100 => ([digits[1], digits[2], b'.', 0], 3),
            _ => ([digits[0], digits[1], digits[2], b'.'], 4),
        };
        all[octet as usize] = (length << 32) | u32::from_le_bytes(text) as u64;
        if octet == u8::MAX {
            break;
        }
        octet += 1;
    }
    all
};

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum Text<'s> {
    Borrowed(&'s str),
    Owned(String),
    Short(Short),
}

/// A short inline text. The bytes are ASCII, and zero after the last.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
pub(super) struct Short {
    bytes: [u8; SHORT_BYTES],
    length: u8,
}

/// An IPv4 address in decimal. The bytes are zero after the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dotted {
    bytes: [u8; 2 * BLOCK],
    length: u8,
}

impl Dotted {
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "an entry holds 32 bits of text and a small length")]
    pub(super) fn new(address: Ipv4Addr) -> Self {
        let (mut bytes, mut length) = ([0; 2 * BLOCK], 0);
        for octet in address.octets() {
            let entry = OCTETS[usize::from(octet)];
            // Three octets take at most 12 bytes. The remainder only spares the bounds check.
            let start = length as usize % BLOCK;
            bytes[start..start + 4].copy_from_slice(&(entry as u32).to_le_bytes());
            length += entry >> 32;
        }
        // No dot follows the last octet.
        let length = (length as usize).wrapping_sub(1) % BLOCK;
        bytes[length] = 0;
        Self { bytes, length: length as u8 }
    }
}

impl Short {
    /// A client, as in the attribute `ip`.
    #[inline]
    pub(super) fn client(client: &Counted) -> Self {
        let mut short = Self { bytes: [0; SHORT_BYTES], length: 0 };
        match canonical(client.address) {
            IpAddr::V4(address) => {
                let text = Dotted::new(address);
                short.bytes[..2 * BLOCK].copy_from_slice(&text.bytes);
                short.length = text.length;
            }
            IpAddr::V6(_) => {
                // The longest address with its prefix takes 43 bytes, so it always fits.
                let _ = client.write_ip(&mut short);
            }
        }
        short
    }

    /// The digest of a credential. It has 39 bytes, so it always fits.
    pub(super) fn digest(digest: &CredentialDigest) -> Self {
        let mut short = Self { bytes: [0; SHORT_BYTES], length: 0 };
        let _ = short.write_str(digest.as_str());
        short
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(usize::from(self.length)) {
            *slot = byte;
            self.length += 1;
        }
    }

    pub(super) fn as_str(&self) -> &str {
        let length = usize::from(self.length);
        let blocks = &self.bytes[..length.next_multiple_of(BLOCK).min(SHORT_BYTES)];
        std::str::from_utf8(blocks).ok().and_then(|text| text.get(..length)).unwrap_or_default()
    }
}

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Owned(text) => text,
            Text::Short(short) => short.as_str(),
        }
    }
}

impl<'s> From<std::borrow::Cow<'s, str>> for Text<'s> {
    fn from(text: std::borrow::Cow<'s, str>) -> Self {
        match text {
            std::borrow::Cow::Borrowed(text) => Text::Borrowed(text),
            std::borrow::Cow::Owned(text) => Text::Owned(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_addresses_have_the_text_of_formatted_ones() {
        for address in [
            "0.0.0.0",
            "9.10.99.100",
            "255.255.255.255",
            "::ffff:1.2.3.4",
            "2001:db8:1:2:3:4:5:6",
            "::1",
            "64:ff9b::9.8.7.6",
        ] {
            for ipv6_prefix in [48, 64, 128] {
                let client = Counted { address: address.parse().unwrap(), ipv6_prefix };
                let mut ip = String::new();
                client.write_ip(&mut ip).unwrap();
                assert_eq!(Short::client(&client).as_str(), ip);
            }
        }
        let longest =
            Counted { address: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap(), ipv6_prefix: 127 };
        assert_eq!(Short::client(&longest).as_str(), longest.to_string());
    }
}
