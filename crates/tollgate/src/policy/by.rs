//! `by`: the attributes whose values make a limit's keys, and how an address becomes part of a key.

use std::fmt;

use crate::address::{Prefixes, Text};
use crate::policy::finding::{Problem, quoted};
use crate::policy::vocabulary::{Kind, Vocabulary};
use crate::request::Value;

/// One attribute that a limit counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    name: String,
    /// How its values count, if they are addresses.
    prefixes: Option<Prefixes>,
}

impl By {
    /// Reads `tenant`, `ip`, `ip/64` or `ip/24,64`.
    ///
    /// # Errors
    /// It does not name an attribute. The message says what would be accepted.
    pub(crate) fn read(written: &str, vocabulary: &Vocabulary) -> Result<Self, Problem> {
        let prefixed = written.rsplit_once('/').filter(|(name, bits)| {
            // Names of other programs may have slashes: `example.com/user` is a name, `tenant/64` is not.
            let is_number = bits.is_empty() || bits.starts_with(|first: char| first.is_ascii_digit());
            !vocabulary.declares(written) && (is_number || vocabulary.kind(name) == Kind::Address)
        });
        let Some((name, bits)) = prefixed else {
            let prefixes = (vocabulary.kind(written) == Kind::Address).then_some(Prefixes::Default);
            return Ok(Self { name: written.to_owned(), prefixes });
        };
        if vocabulary.kind(name) != Kind::Address {
            let message = format!("{} is no address, so it has no /{}", quoted(name), quoted(bits));
            let accepted = format!(
                "{}, or `attributes: [{{{}: address}}]` in the policy if its values are addresses",
                quoted(name),
                quoted(name)
            );
            return Err(Problem::new(message, accepted));
        }
        let prefixes = bits_of(bits).map_err(|message| {
            let accepted =
                format!("{name}/64 (IPv6 by its /64), or {name}/24,64 (IPv4 by its /24, IPv6 by its /64)");
            Problem::new(format!("{}: {message}", quoted(written)), accepted)
        })?;
        Ok(Self { name: name.to_owned(), prefixes: Some(prefixes) })
    }

    /// An attribute whose values count as they are.
    pub(crate) fn named(name: &str) -> Self {
        let prefixes = (Kind::of(name) == Kind::Address).then_some(Prefixes::Default);
        Self { name: name.to_owned(), prefixes }
    }

    /// The attribute.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its values count, if they are addresses.
    #[must_use]
    pub const fn prefixes(&self) -> Option<Prefixes> {
        self.prefixes
    }

    /// Whether its values count as they are, or by the default prefix for addresses.
    pub(crate) fn is_plain(&self) -> bool {
        self.prefixes.is_none_or(|prefixes| prefixes == Prefixes::Default)
    }

    /// The value in the key for the value in a request.
    #[inline]
    pub(crate) fn counted<'v>(&self, value: Value<'v>, room: &'v mut Text) -> Value<'v> {
        match (self.prefixes, value) {
            (Some(prefixes), Value::Text(text)) => Value::Text(prefixes.counted(text, room)),
            _ => value,
        }
    }

    /// The text of the value in the key, for reports.
    #[must_use]
    pub fn key_text(&self, value: Value<'_>) -> String {
        self.with_key_text(value, str::to_owned)
    }

    /// Passes the text of the value in the key, which is not allocated unless the value is a number.
    pub fn with_key_text<R>(&self, value: Value<'_>, read: impl FnOnce(&str) -> R) -> R {
        match self.counted(value, &mut Text::EMPTY.clone()) {
            Value::Text(text) => read(text),
            Value::Number(number) => read(&number.to_string()),
        }
    }

    /// The form, as a policy writes it, that distinguishes its keys from those of another `by`.
    pub(crate) fn identity(&self) -> String {
        let implied = Self::named(&self.name);
        match self.prefixes {
            _ if *self == implied => self.name.clone(),
            None => format!("{}/text", self.name),
            Some(Prefixes::Default) => format!("{}/address", self.name),
            Some(prefixes) => format!("{}{prefixes}", self.name),
        }
    }

    /// The opposite of [`By::identity`].
    pub(crate) fn of_identity(identity: &str) -> Self {
        let Some((name, bits)) = identity.rsplit_once('/') else { return Self::named(identity) };
        let prefixes = match bits {
            "text" => None,
            "address" => Some(Prefixes::Default),
            _ => match bits_of(bits) {
                Ok(prefixes) => Some(prefixes),
                Err(_) => return Self::named(identity),
            },
        };
        Self { name: name.to_owned(), prefixes }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.prefixes.unwrap_or_default())
    }
}

/// The bits after the slash: those of IPv6, or those of both families.
fn bits_of(bits: &str) -> Result<Prefixes, &'static str> {
    let number = |text: &str| {
        let text = text.trim();
        text.parse::<u8>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let unreadable = "a prefix is a number of bits, 1 to 32 for IPv4 and 1 to 128 for IPv6";
    match bits.split_once(',') {
        Some((ipv4, ipv6)) => {
            let both = number(ipv4).zip(number(ipv6));
            both.and_then(|(ipv4, ipv6)| Prefixes::new(ipv4, ipv6)).ok_or(unreadable)
        }
        None => match number(bits) {
            Some(1..=32) => Err("it does not say whether this is IPv4 or IPv6"),
            Some(ipv6) => Prefixes::new(32, ipv6).ok_or(unreadable),
            None => Err(unreadable),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prefix is read, kept in the identity of the counters, and applied to addresses only.
    #[test]
    fn prefixes_are_read() {
        let vocabulary = Vocabulary::default();
        for (written, shown) in
            [("ip", "ip"), ("ip/64", "ip/64"), ("ip/24,64", "ip/24,64"), ("ip/32,32", "ip/32,32")]
        {
            let by = By::read(written, &vocabulary).unwrap();
            assert_eq!((by.to_string().as_str(), by.name()), (shown, "ip"));
            assert_eq!(By::of_identity(&by.identity()), by);
        }
        for (written, accepted) in [
            ("ip/24", "ip/24,64"),
            ("ip/", "ip/64"),
            ("ip/129", "ip/64"),
            ("ip/0,64", "ip/24,64"),
            ("ip/24,129", "ip/24,64"),
            ("tenant/64", "attributes: [{tenant: address}]"),
        ] {
            let problem = By::read(written, &vocabulary).unwrap_err();
            assert!(problem.accepted.contains(accepted), "{written}: {}", problem.accepted);
        }
        let user = By::read("example.com/user", &vocabulary).unwrap();
        assert_eq!(user.name(), "example.com/user");
        assert_eq!(By::of_identity(&user.identity()), user);
        let client = By { name: "client".to_owned(), prefixes: Some(Prefixes::Default) };
        assert_eq!(By::of_identity(&client.identity()), client);
        assert_eq!(client.key_text(Value::Text("2001:db8::1")), "2001:db8::/64");
        assert_eq!(By::named("tenant").key_text(Value::Text("2001:db8::1")), "2001:db8::1");
    }
}
