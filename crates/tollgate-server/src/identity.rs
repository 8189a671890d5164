//! Who a request is about, on the ways in that are told attributes: JSON, RLS, RLQS, RESP and operators. Plain credentials become digests
//! here, and known callers get their attributes, as the gateway does with what it reads from HTTP; so all ways in count one identity.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::{
    CREDENTIAL, CheckRequest, CredentialAttributes, CredentialDigest, RequestError, VALUE_BYTES_MAX, Value,
};
use tollgate_tower::attributes::callers::{Caller, LiveCallers};
use tollgate_tower::attributes::source::Secrecy;
use tollgate_tower::attributes::{Mapped, Reader};

/// Whose words the attributes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// A program's or an operator's, who may name a credential by its digest.
    Trusted,
    /// A client's, passed on by a proxy: whatever it looks like, it is the credential's text.
    Client,
}

/// Which attributes hold credentials, and who is known.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    credentials: CredentialAttributes,
    /// Attributes whose values are digests or plain, by where they were found, and never a plain text.
    mixed: Vec<String>,
    callers: Option<LiveCallers>,
}

impl Identity {
    /// As requests of HTTP are read.
    pub(crate) fn of(reader: &Reader) -> Self {
        let named = |secrecy: Secrecy| {
            let is_so = move |mapped: &&Mapped| mapped.source.secrecy() == secrecy;
            reader.mapped.iter().filter(is_so).map(|mapped| mapped.name.as_str())
        };
        Self {
            credentials: CredentialAttributes::with(named(Secrecy::Digest).chain(named(Secrecy::Mixed))),
            mixed: named(Secrecy::Mixed).map(str::to_owned).collect(),
            callers: reader.callers.clone(),
        }
    }

    /// The attributes that hold credentials.
    pub(crate) const fn credentials(&self) -> &CredentialAttributes {
        &self.credentials
    }

    /// What is known of a request with these attributes.
    #[inline]
    pub(crate) fn known<'a>(&self, pairs: impl Iterator<Item = (&'a str, Value<'a>)>, word: Word) -> Known {
        let mut known = Known::default();
        for (position, (name, value)) in pairs.enumerate() {
            if !self.credentials.contains(name) {
                continue;
            }
            let Some(digest) = self.digest(name, value, word) else { continue };
            if name == CREDENTIAL
                && let Some(callers) = &self.callers
            {
                known.caller = callers.find(&digest);
                known.stranger = known.caller.is_none().then_some(position);
            }
            known.digests.push((position, digest));
        }
        known
    }

    /// The digest of a value; none where it is kept as it is.
    fn digest(&self, name: &str, value: Value<'_>, word: Word) -> Option<CredentialDigest> {
        let number;
        let text = match value {
            Value::Text(text) => text,
            Value::Number(value) => {
                number = value.to_string();
                number.as_str()
            }
        };
        // One that is too long is refused as any other value.
        if text.is_empty() || text.len() > VALUE_BYTES_MAX || (self.is_mixed(name) && is_address(text)) {
            return None;
        }
        Some(match word {
            Word::Trusted => CredentialDigest::of_value(text),
            Word::Client => CredentialDigest::of(text),
        })
    }

    fn is_mixed(&self, name: &str) -> bool {
        self.mixed.iter().any(|mixed| mixed == name)
    }

    /// A pair as it may be shown and compared with blocks, where rules of another program see the plain one.
    pub(crate) fn sealed(&self, name: &str, value: &str) -> Option<CredentialDigest> {
        if self.credentials.contains(name) {
            self.digest(name, Value::Text(value), Word::Client)
        } else {
            None
        }
    }
}

/// Whether a text is what stands for a client without a credential: an address or a network.
fn is_address(text: &str) -> bool {
    text.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok())
}

/// A credential that the callers file does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{CREDENTIAL}: the callers file does not know this credential, so its requests are counted by ip; name the ip, or add it with `tollgate callers add`"
)]
pub(crate) struct Stranger;

/// What is known of one request.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Digests, each with the position of its attribute.
    digests: SmallVec<[(usize, CredentialDigest); 1]>,
    /// The position of a credential that nobody has: it is no identity, and not told.
    stranger: Option<usize>,
    caller: Option<Arc<Caller>>,
}

impl Known {
    /// The digests alone, for what is to hold whatever the callers file says later.
    ///
    /// # Errors
    /// When the callers file does not know the credential, so that no request has it.
    pub(crate) fn alone(self) -> Result<Self, Stranger> {
        if self.stranger.is_some() { Err(Stranger) } else { Ok(Self { caller: None, ..self }) }
    }

    /// The digests alone, also of a credential that the callers file has forgotten: what holds about it can be taken back.
    pub(crate) fn in_any_case(self) -> Self {
        Self { caller: None, stranger: None, ..self }
    }

    /// Whether a credential was named that the callers file does not know.
    pub(crate) const fn is_stranger(&self) -> bool {
        self.stranger.is_some()
    }

    /// The request, with digests for credentials and what the callers file says. The file's word counts before any other.
    ///
    /// # Errors
    /// When a bound is passed.
    #[inline]
    pub(crate) fn request<'r>(
        &'r self,
        pairs: impl Iterator<Item = (&'r str, Value<'r>)>,
    ) -> Result<CheckRequest<'r>, RequestError> {
        let mut request = CheckRequest::new();
        for (position, (name, value)) in pairs.enumerate() {
            if self.stranger == Some(position)
                || self.caller.as_ref().is_some_and(|caller| caller.get(name).is_some())
            {
                continue;
            }
            let digest = self.digests.iter().find(|(of, _)| *of == position);
            request.push(name, digest.map_or(value, |(_, digest)| Value::Text(digest.as_str())))?;
        }
        for (name, value) in self.caller.iter().flat_map(|caller| caller.attributes()) {
            request.push(name, value)?;
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::callers::Callers;
    use tollgate_tower::attributes::source::Source;

    use super::*;

    fn told(identity: &Identity, pairs: &[(&str, &str)], word: Word) -> Vec<String> {
        let pairs = || pairs.iter().map(|(name, value)| (*name, Value::Text(value)));
        let known = identity.known(pairs(), word);
        let request = known.request(pairs()).unwrap();
        let text = |value| if let Value::Text(text) = value { text } else { "" };
        request.attributes().iter().map(|given| format!("{}={}", given.name, text(given.value))).collect()
    }

    /// A credential is its digest whoever names it; a client's own text is hashed also where it looks like a digest.
    #[test]
    fn credentials_are_digests() {
        let identity = Identity::default();
        let digest = CredentialDigest::of("k1");
        for value in ["k1", digest.as_str()] {
            assert_eq!(
                told(&identity, &[("api_key", value), ("ip", "k1")], Word::Trusted),
                [format!("api_key={digest}"), "ip=k1".to_owned()]
            );
        }
        assert_ne!(
            told(&identity, &[("api_key", digest.as_str())], Word::Client),
            [format!("api_key={digest}")]
        );
    }

    /// Of an attribute that is a credential or an address, the address stays.
    #[test]
    fn addresses_of_mixed_attributes_stay() {
        let source = Source::FirstOf(vec![Source::Credential, Source::Client]);
        let session = Source::Cookie("sid".to_owned()).hashed();
        let mapped = |name: &str, source| Mapped { name: name.to_owned(), source };
        let reader = Reader {
            mapped: vec![mapped("caller", source), mapped("session", session)],
            ..Reader::default()
        };
        let identity = Identity::of(&reader);
        let told = |name, value| told(&identity, &[(name, value)], Word::Trusted).remove(0);
        assert_eq!(told("caller", "10.0.0.1"), "caller=10.0.0.1");
        assert_eq!(told("caller", "2001:db8::/64"), "caller=2001:db8::/64");
        assert_eq!(told("caller", "k1"), format!("caller={}", CredentialDigest::of("k1")));
        assert_eq!(told("session", "10.0.0.1"), format!("session={}", CredentialDigest::of("10.0.0.1")));
    }

    /// Known credentials bring their caller's attributes, whatever else is said of those; unknown ones are nobody's.
    #[test]
    fn callers_have_attributes_and_strangers_none() {
        let callers = Callers::read("c", b"callers: [{key: k1, tenant: acme, plan: pro}]").unwrap();
        let reader = Reader { callers: Some(LiveCallers::new(callers)), ..Reader::default() };
        let identity = Identity::of(&reader);
        let known =
            told(&identity, &[("api_key", "k1"), ("plan", "enterprise"), ("ip", "::1")], Word::Trusted);
        let digest = CredentialDigest::of("k1");
        assert_eq!(
            known,
            [format!("api_key={digest}"), "ip=::1".into(), "plan=pro".into(), "tenant=acme".into()]
        );
        assert_eq!(told(&identity, &[("api_key", "k2"), ("ip", "::1")], Word::Trusted), ["ip=::1"]);
    }
}
