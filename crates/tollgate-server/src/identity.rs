//! Identifies the caller of a request on the protocols that send attributes: JSON, RLS, RLQS, RESP and the admin API.
//! Plain credentials become digests here, and known callers get their attributes. The gateway does the same with what
//! it reads from HTTP, so all protocols count the same identity.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::address;
use tollgate::credential::{CREDENTIAL, CredentialAttributes};
use tollgate::request::{Spelling, VALUE_BYTES_MAX};
use tollgate::{CheckRequest, CredentialDigest, RequestError, Value};
use tollgate_tower::attributes::address::Counted;
use tollgate_tower::attributes::callers::{ActiveCallers, Caller};
use tollgate_tower::attributes::path::PathMatch;
use tollgate_tower::attributes::source::{Secrecy, Source};
use tollgate_tower::attributes::{BUILT_IN, Mapped, Reader};

/// The attribute with the client's address.
const ADDRESS: &str = BUILT_IN[0];
/// The attribute that the config may compare as it is.
const PATH: &str = "path";

/// The origin of the attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttributeOrigin {
    /// A program or an operator, who may name a credential by its digest.
    Trusted,
    /// A client, whose values a proxy passes on. Whatever the value looks like, it is the text of the credential.
    Client,
}

/// The attributes with credentials, and the known callers.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    credentials: CredentialAttributes,
    /// Attributes whose values are either a digest or a plain value, depending on their source, but never a plain
    /// credential.
    mixed: Vec<String>,
    callers: Option<ActiveCallers>,
    choices: Vec<Arc<Choice>>,
    ipv6_prefix: u8,
    paths: PathMatch,
}

/// An attribute that is the first present one of several alternatives. Code that reads HTTP finds it itself. On other
/// protocols it is derived from the given attributes, so that all protocols count the same.
#[derive(Debug)]
struct Choice {
    name: String,
    of: Vec<String>,
    /// Whether its value is the digest of the alternative's value.
    is_hashed: bool,
}

impl Choice {
    fn of(mapped: &Mapped) -> Option<Arc<Self>> {
        let of = mapped.source.alternatives()?.into_iter().map(str::to_owned).collect();
        let is_hashed = matches!(mapped.source, Source::Hashed(_));
        Some(Arc::new(Self { name: mapped.name.clone(), of, is_hashed }))
    }
}

impl Identity {
    /// The identity rules of this reader of HTTP requests.
    pub(crate) fn of(reader: &Reader) -> Self {
        let named = |secrecy: Secrecy| {
            let is_so = move |mapped: &&Mapped| mapped.source.secrecy() == secrecy;
            reader.mapped.iter().filter(is_so).map(|mapped| mapped.name.as_str())
        };
        let credentials = CredentialAttributes::with(named(Secrecy::Digest).chain(named(Secrecy::Mixed)));
        Self {
            credentials: credentials.or_addresses(named(Secrecy::Mixed), reader.ipv6_prefix),
            mixed: named(Secrecy::Mixed).map(str::to_owned).collect(),
            callers: reader.callers.clone(),
            choices: reader.mapped.iter().filter_map(Choice::of).collect(),
            ipv6_prefix: reader.ipv6_prefix,
            paths: reader.paths,
        }
    }

    /// The attributes that hold credentials.
    pub(crate) const fn credentials(&self) -> &CredentialAttributes {
        &self.credentials
    }

    /// Identifies the caller of a request with these attributes.
    #[inline]
    pub(crate) fn identify<'a>(
        &self,
        pairs: impl Iterator<Item = (&'a str, Value<'a>)>,
        origin: AttributeOrigin,
    ) -> Identified {
        let mut known = Identified { paths: self.paths, ..Identified::default() };
        let mut given = SmallVec::<[(&str, Value<'_>); 8]>::new();
        for (position, (name, value)) in pairs.enumerate() {
            if !self.choices.is_empty() {
                given.push((name, value));
            }
            if !self.credentials.contains(name) {
                continue;
            }
            let Some(digest) = self.digest(name, value, origin) else {
                let client = |text| self.credentials.client(name, text);
                let client = if let Value::Text(text) = value { client(text) } else { None };
                known.clients.extend(client.map(|client| (position, client)));
                continue;
            };
            if name == CREDENTIAL
                && let Some(callers) = &self.callers
            {
                known.caller = callers.find(&digest);
                known.unknown = known.caller.is_none().then_some(position);
            }
            known.digests.push((position, digest));
        }
        for choice in &self.choices {
            known.chosen.extend(self.choose(choice, &given, &known));
        }
        known
    }

    /// Derives an attribute that was not given, if one of its alternatives is present.
    fn choose(
        &self,
        choice: &Arc<Choice>,
        given: &[(&str, Value<'_>)],
        known: &Identified,
    ) -> Option<Chosen> {
        // If the callers file defines this attribute for any caller, a request cannot claim it.
        if self.callers.as_ref().is_some_and(|callers| callers.gives(&choice.name)) {
            return None;
        }
        let chosen = |rank, value| Some(Chosen { choice: Arc::clone(choice), rank, value });
        if given.iter().any(|(name, _)| *name == choice.name) {
            return chosen(GIVEN, None);
        }
        let mut values = (GIVEN + 1..).zip(&choice.of);
        let (rank, value) =
            values.find_map(|(rank, name)| Some((rank, self.value_of(name, given, known)?)))?;
        let value = if choice.is_hashed { CredentialDigest::of(&value).to_string() } else { value };
        chosen(rank, Some(value))
    }

    /// The value of an attribute of a request, after identification.
    fn value_of(&self, name: &str, given: &[(&str, Value<'_>)], known: &Identified) -> Option<String> {
        if let Some(value) = known.caller.as_ref().and_then(|caller| caller.get(name)) {
            return Some(value.to_owned());
        }
        let position = given.iter().position(|(given, _)| *given == name)?;
        if known.unknown == Some(position) {
            return None;
        }
        if let Some((_, digest)) = known.digests.iter().find(|(of, _)| *of == position) {
            return Some(digest.to_string());
        }
        let text = match given.get(position)?.1 {
            // In the same form as an address that is read from a connection.
            Value::Text(text)
                if name == ADDRESS
                    && let Some(address) = address::client(text) =>
            {
                Counted { address, ipv6_prefix: self.ipv6_prefix }.to_string()
            }
            value => value.to_string(),
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// The digest of a value, or `None` if the value stays as it is.
    fn digest(&self, name: &str, value: Value<'_>, origin: AttributeOrigin) -> Option<CredentialDigest> {
        let number;
        let text = match value {
            Value::Text(text) => text,
            Value::Number(value) => {
                number = value.to_string();
                number.as_str()
            }
        };
        // A value that is too long is refused later like any other.
        if text.is_empty() || text.len() > VALUE_BYTES_MAX || (self.is_mixed(name) && is_address(text)) {
            return None;
        }
        Some(match origin {
            AttributeOrigin::Trusted => CredentialDigest::of_value(text),
            AttributeOrigin::Client => CredentialDigest::of(text),
        })
    }

    fn is_mixed(&self, name: &str) -> bool {
        self.mixed.iter().any(|mixed| mixed == name)
    }

    /// The digest of a credential for output and for blocks, where rules of another program see the plain value.
    pub(crate) fn sealed(&self, name: &str, value: &str) -> Option<CredentialDigest> {
        if self.credentials.contains(name) {
            self.digest(name, Value::Text(value), AttributeOrigin::Client)
        } else {
            None
        }
    }
}

/// Whether a text is an address or a network, which identifies a client without a credential.
fn is_address(text: &str) -> bool {
    text.split('/').next().is_some_and(|address| address::client(address).is_some())
}

/// A credential that the callers file does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{CREDENTIAL}: the callers file does not know this credential, so its requests are counted by ip; name the ip, or add it with `tollgate callers add`"
)]
pub(crate) struct UnknownCredential;

/// The identity of one request.
#[derive(Debug, Default)]
pub(crate) struct Identified {
    /// Digests, each with the index of its attribute.
    digests: SmallVec<[(usize, CredentialDigest); 1]>,
    /// Addresses instead of credentials, in canonical form, each with the index of its attribute.
    clients: SmallVec<[(usize, String); 1]>,
    /// The index of an unknown credential. It is no identity, and is dropped from the request.
    unknown: Option<usize>,
    caller: Option<Arc<Caller>>,
    /// Attributes that were derived from alternatives.
    chosen: SmallVec<[Chosen; 1]>,
    paths: PathMatch,
}

/// The rank of an attribute that was given itself.
const GIVEN: usize = 0;

/// The value of an attribute with alternatives.
#[derive(Debug)]
struct Chosen {
    choice: Arc<Choice>,
    /// The number of the alternative, from 1, or [`GIVEN`].
    rank: usize,
    /// `None` if the attribute was given, so that nothing is added.
    value: Option<String>,
}

impl Identified {
    /// Makes one choice for a request with several descriptors: only the descriptors with the first of the present
    /// alternatives keep the attribute.
    pub(crate) fn agree(requests: &mut [Identified]) {
        let all: SmallVec<[(String, usize); 4]> = requests
            .iter()
            .flat_map(|request| request.chosen.iter().map(|chosen| (chosen.choice.name.clone(), chosen.rank)))
            .collect();
        let is_first = |chosen: &mut Chosen| {
            all.iter().all(|(name, rank)| *name != chosen.choice.name || *rank >= chosen.rank)
        };
        requests.iter_mut().for_each(|request| request.chosen.retain(is_first));
    }

    /// The digests only, for state that must not depend on later changes of the callers file.
    ///
    /// # Errors
    /// When the callers file does not contain the credential, so that no request has it.
    pub(crate) fn alone(self) -> Result<Self, UnknownCredential> {
        if self.unknown.is_some() {
            Err(UnknownCredential)
        } else {
            Ok(Self { caller: None, chosen: SmallVec::new(), ..self })
        }
    }

    /// The digests only, even of a credential that the callers file no longer contains, so that a block of it can be
    /// removed.
    pub(crate) fn in_any_case(self) -> Self {
        Self { caller: None, unknown: None, chosen: SmallVec::new(), ..self }
    }

    /// Whether the request names a credential that the callers file does not contain.
    pub(crate) const fn is_stranger(&self) -> bool {
        self.unknown.is_some()
    }

    /// The request, with digests for credentials and the attributes of the callers file, which take precedence.
    ///
    /// # Errors
    /// When a bound is exceeded.
    #[inline]
    pub(crate) fn request<'r>(
        &'r self,
        pairs: impl Iterator<Item = (&'r str, Value<'r>)>,
    ) -> Result<CheckRequest<'r>, RequestError> {
        let mut request = CheckRequest::new();
        for (position, (name, value)) in pairs.enumerate() {
            if self.unknown == Some(position)
                || self.caller.as_ref().is_some_and(|caller| caller.get(name).is_some())
            {
                continue;
            }
            let digest =
                self.digests.iter().find(|(of, _)| *of == position).map(|(_, digest)| digest.as_str());
            let client =
                self.clients.iter().find(|(of, _)| *of == position).map(|(_, client)| client.as_str());
            match digest.or(client).map_or(value, Value::Text) {
                // Without another spelling it would be compared by its loose form, too.
                Value::Text(path) if self.paths == PathMatch::Exact && name == PATH => {
                    request.push_spelled(name, path, Spelling::AsIs(path))?;
                }
                value => request.push(name, value)?,
            }
        }
        for (name, value) in self.caller.iter().flat_map(|caller| caller.attributes()) {
            request.push(name, value)?;
        }
        for Chosen { choice, value, .. } in &self.chosen {
            if let Some(value) = value {
                request.push(&choice.name, value.as_str())?;
            }
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::callers::Callers;

    use super::*;

    fn identified(identity: &Identity, pairs: &[(&str, &str)], origin: AttributeOrigin) -> Vec<String> {
        let pairs = || pairs.iter().map(|(name, value)| (*name, Value::Text(value)));
        let known = identity.identify(pairs(), origin);
        let request = known.request(pairs()).unwrap();
        let text = |value| if let Value::Text(text) = value { text } else { "" };
        request.attributes().iter().map(|given| format!("{}={}", given.name, text(given.value))).collect()
    }

    /// A credential becomes its digest on every protocol. A client's text is hashed even if it looks like a digest.
    #[test]
    fn credentials_are_digests() {
        let identity = Identity::default();
        let digest = CredentialDigest::of("k1");
        for value in ["k1", digest.as_str()] {
            assert_eq!(
                identified(&identity, &[("api_key", value), ("ip", "k1")], AttributeOrigin::Trusted),
                [format!("api_key={digest}"), "ip=k1".to_owned()]
            );
        }
        assert_ne!(
            identified(&identity, &[("api_key", digest.as_str())], AttributeOrigin::Client),
            [format!("api_key={digest}")]
        );
    }

    /// If an attribute is a credential or an address, an address stays as it is.
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
        let identified =
            |name, value| identified(&identity, &[(name, value)], AttributeOrigin::Trusted).remove(0);
        // Regression: `block caller=2001:db8::1` blocked a value that no request has, and `get` found no counter.
        for (given, kept) in [
            ("10.0.0.1", "caller=10.0.0.1"),
            ("2001:db8::/64", "caller=2001:db8::/64"),
            ("2001:db8::1", "caller=2001:db8::/64"),
            ("::ffff:10.0.0.1", "caller=10.0.0.1"),
        ] {
            assert_eq!(identified("caller", given), kept);
        }
        assert_eq!(identified("caller", "k1"), format!("caller={}", CredentialDigest::of("k1")));
        assert_eq!(
            identified("session", "10.0.0.1"),
            format!("session={}", CredentialDigest::of("10.0.0.1"))
        );
    }

    fn choosing(alternatives: Vec<Source>, callers: Option<ActiveCallers>) -> Identity {
        let source = Source::FirstOf(alternatives);
        let mapped = vec![Mapped { name: "caller".to_owned(), source }];
        Identity::of(&Reader { mapped, callers, ..Reader::default() })
    }

    /// Regression: a limit by `caller`, the first of `api_key` and `ip`, applied at the gateway only. For `api_key=k1`,
    /// `explain` reported that the request has no caller. Given attributes now have the same alternatives as attributes
    /// read from HTTP.
    #[test]
    fn the_first_of_several_is_derived() {
        let identity = choosing(vec![Source::Credential, Source::Client], None);
        let chosen = |pairs: &[(&str, &str)]| {
            let given = identified(&identity, pairs, AttributeOrigin::Trusted);
            given.into_iter().filter(|pair| pair.starts_with("caller=")).collect::<Vec<_>>()
        };
        let digest = format!("caller={}", CredentialDigest::of("k1"));
        assert_eq!(chosen(&[("ip", "192.0.2.1"), ("api_key", "k1")]), [digest.as_str()]);
        assert_eq!(chosen(&[("ip", "192.0.2.1")]), ["caller=192.0.2.1"]);
        assert_eq!(chosen(&[("ip", "::ffff:192.0.2.1")]), ["caller=192.0.2.1"]);
        assert_eq!(chosen(&[("ip", "2001:db8::7"), ("api_key", "")]), ["caller=2001:db8::/64"]);
        assert_eq!(chosen(&[("caller", "k1"), ("ip", "192.0.2.1")]), [digest.as_str()], "given itself");
        assert!(chosen(&[("path", "/")]).is_empty());
        let callers = Callers::read("c", b"callers: [{key: k1, tenant: acme}]").unwrap();
        let callers = Some(ActiveCallers::new(callers));
        let known = choosing(vec![Source::OfCaller("tenant".to_owned()), Source::Client], callers);
        assert!(
            identified(&known, &[("api_key", "k1"), ("ip", "::1")], AttributeOrigin::Trusted)
                .contains(&"caller=acme".to_owned())
        );
        let unknown = identified(&known, &[("api_key", "k2"), ("ip", "192.0.2.1")], AttributeOrigin::Trusted);
        assert_eq!(unknown, ["ip=192.0.2.1", "caller=192.0.2.1"]);
    }

    /// A request with several descriptors has one caller: the first alternative that any of them has.
    #[test]
    fn descriptors_make_one_choice() {
        let identity = choosing(vec![Source::Credential, Source::Client], None);
        let requests: [&[(&str, &str)]; 3] = [&[("ip", "192.0.2.1")], &[("api_key", "k1")], &[("path", "/")]];
        let pairs = |request: &[(&'static str, &'static str)]| {
            request.iter().map(|(name, value)| (*name, Value::Text(value))).collect::<Vec<_>>().into_iter()
        };
        let mut known = requests.map(|request| identity.identify(pairs(request), AttributeOrigin::Client));
        Identified::agree(&mut known);
        let has = |(request, known): (&&[(&'static str, &'static str)], &Identified)| {
            let request = known.request(pairs(request)).unwrap();
            request.attributes().iter().any(|given| given.name == "caller")
        };
        assert_eq!(requests.iter().zip(&known).map(has).collect::<Vec<_>>(), [false, true, false]);
    }

    /// A known credential adds its caller's attributes, which override given ones. An unknown credential is no
    /// identity.
    #[test]
    fn callers_have_attributes_and_strangers_none() {
        let callers = Callers::read("c", b"callers: [{key: k1, tenant: acme, plan: pro}]").unwrap();
        let reader = Reader { callers: Some(ActiveCallers::new(callers)), ..Reader::default() };
        let identity = Identity::of(&reader);
        let known = identified(
            &identity,
            &[("api_key", "k1"), ("plan", "enterprise"), ("ip", "::1")],
            AttributeOrigin::Trusted,
        );
        let digest = CredentialDigest::of("k1");
        assert_eq!(
            known,
            [format!("api_key={digest}"), "ip=::1".into(), "plan=pro".into(), "tenant=acme".into()]
        );
        assert_eq!(
            identified(&identity, &[("api_key", "k2"), ("ip", "::1")], AttributeOrigin::Trusted),
            ["ip=::1"]
        );
    }
}
