//! Who a request is about, on the ways in that are told attributes: JSON, RLS, RLQS, RESP and operators. Plain credentials become digests
//! here, and known callers get their attributes, as the gateway does with what it reads from HTTP; so all ways in count one identity.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::credential::{CREDENTIAL, CredentialAttributes};
use tollgate::request::VALUE_BYTES_MAX;
use tollgate::{CheckRequest, CredentialDigest, RequestError, Value};
use tollgate_tower::attributes::address::Counted;
use tollgate_tower::attributes::callers::{ActiveCallers, Caller};
use tollgate_tower::attributes::source::{Secrecy, Source};
use tollgate_tower::attributes::{BUILT_IN, Mapped, Reader};

/// The attribute that is the client's address.
const ADDRESS: &str = BUILT_IN[0];

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
    callers: Option<ActiveCallers>,
    choices: Vec<Arc<Choice>>,
    ipv6_prefix: u8,
}

/// An attribute that is the first of others that a request has. What reads HTTP finds it by itself; elsewhere it is derived from
/// what is told, so that all ways in count the same.
#[derive(Debug)]
struct Choice {
    name: String,
    of: Vec<String>,
    /// Whether its value is the digest of theirs.
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
    /// As requests of HTTP are read.
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
        let mut told = SmallVec::<[(&str, Value<'_>); 8]>::new();
        for (position, (name, value)) in pairs.enumerate() {
            if !self.choices.is_empty() {
                told.push((name, value));
            }
            if !self.credentials.contains(name) {
                continue;
            }
            let Some(digest) = self.digest(name, value, word) else {
                let client = |text| self.credentials.client(name, text);
                let client = if let Value::Text(text) = value { client(text) } else { None };
                known.clients.extend(client.map(|client| (position, client)));
                continue;
            };
            if name == CREDENTIAL
                && let Some(callers) = &self.callers
            {
                known.caller = callers.find(&digest);
                known.stranger = known.caller.is_none().then_some(position);
            }
            known.digests.push((position, digest));
        }
        for choice in &self.choices {
            known.chosen.extend(self.choose(choice, &told, &known));
        }
        known
    }

    /// What an attribute is that was not told, if it can be anything.
    fn choose(&self, choice: &Arc<Choice>, told: &[(&str, Value<'_>)], known: &Known) -> Option<Chosen> {
        // What the callers file says of anybody is nobody's own word.
        if self.callers.as_ref().is_some_and(|callers| callers.gives(&choice.name)) {
            return None;
        }
        let chosen = |rank, value| Some(Chosen { choice: Arc::clone(choice), rank, value });
        if told.iter().any(|(name, _)| *name == choice.name) {
            return chosen(TOLD, None);
        }
        let mut values = (TOLD + 1..).zip(&choice.of);
        let (rank, value) =
            values.find_map(|(rank, name)| Some((rank, self.value_of(name, told, known)?)))?;
        let value = if choice.is_hashed { CredentialDigest::of(&value).to_string() } else { value };
        chosen(rank, Some(value))
    }

    /// What a request is known to have as an attribute.
    fn value_of(&self, name: &str, told: &[(&str, Value<'_>)], known: &Known) -> Option<String> {
        if let Some(value) = known.caller.as_ref().and_then(|caller| caller.get(name)) {
            return Some(value.to_owned());
        }
        let position = told.iter().position(|(given, _)| *given == name)?;
        if known.stranger == Some(position) {
            return None;
        }
        if let Some((_, digest)) = known.digests.iter().find(|(of, _)| *of == position) {
            return Some(digest.to_string());
        }
        let text = match told.get(position)?.1 {
            // As the client's address is written where it is read from a connection.
            Value::Text(text)
                if name == ADDRESS
                    && let Ok(address) = text.parse() =>
            {
                Counted { address, ipv6_prefix: self.ipv6_prefix }.to_string()
            }
            Value::Text(text) => text.to_owned(),
            Value::Number(number) => number.to_string(),
        };
        Some(text).filter(|text| !text.is_empty())
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
    /// Addresses in the place of credentials, in their one spelling, each with the position of its attribute.
    clients: SmallVec<[(usize, String); 1]>,
    /// The position of a credential that nobody has: it is no identity, and not told.
    stranger: Option<usize>,
    caller: Option<Arc<Caller>>,
    /// Attributes that are the first of others.
    chosen: SmallVec<[Chosen; 1]>,
}

/// The rank of what was told itself.
const TOLD: usize = 0;

/// What an attribute is that is the first of others.
#[derive(Debug)]
struct Chosen {
    choice: Arc<Choice>,
    /// Which of the others it is, from 1, or [`TOLD`].
    rank: usize,
    /// None where it was told, so that nothing is to be added.
    value: Option<String>,
}

impl Known {
    /// Makes one choice for a request that is told in several views: only the views that have the first of the alternatives have
    /// the attribute.
    pub(crate) fn agree(views: &mut [Known]) {
        let all: SmallVec<[(String, usize); 4]> = views
            .iter()
            .flat_map(|view| view.chosen.iter().map(|chosen| (chosen.choice.name.clone(), chosen.rank)))
            .collect();
        let is_first = |chosen: &mut Chosen| {
            all.iter().all(|(name, rank)| *name != chosen.choice.name || *rank >= chosen.rank)
        };
        views.iter_mut().for_each(|view| view.chosen.retain(is_first));
    }

    /// The digests alone, for what is to hold whatever the callers file says later.
    ///
    /// # Errors
    /// When the callers file does not know the credential, so that no request has it.
    pub(crate) fn alone(self) -> Result<Self, Stranger> {
        if self.stranger.is_some() {
            Err(Stranger)
        } else {
            Ok(Self { caller: None, chosen: SmallVec::new(), ..self })
        }
    }

    /// The digests alone, also of a credential that the callers file has forgotten: what holds about it can be taken back.
    pub(crate) fn in_any_case(self) -> Self {
        Self { caller: None, stranger: None, chosen: SmallVec::new(), ..self }
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
            let digest =
                self.digests.iter().find(|(of, _)| *of == position).map(|(_, digest)| digest.as_str());
            let client =
                self.clients.iter().find(|(of, _)| *of == position).map(|(_, client)| client.as_str());
            request.push(name, digest.or(client).map_or(value, Value::Text))?;
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
        // The story: `block caller=2001:db8::1` blocked what no request has, and `get` found no counter.
        for (given, kept) in [
            ("10.0.0.1", "caller=10.0.0.1"),
            ("2001:db8::/64", "caller=2001:db8::/64"),
            ("2001:db8::1", "caller=2001:db8::/64"),
            ("::ffff:10.0.0.1", "caller=10.0.0.1"),
        ] {
            assert_eq!(told("caller", given), kept);
        }
        assert_eq!(told("caller", "k1"), format!("caller={}", CredentialDigest::of("k1")));
        assert_eq!(told("session", "10.0.0.1"), format!("session={}", CredentialDigest::of("10.0.0.1")));
    }

    fn choosing(alternatives: Vec<Source>, callers: Option<ActiveCallers>) -> Identity {
        let source = Source::FirstOf(alternatives);
        let mapped = vec![Mapped { name: "caller".to_owned(), source }];
        Identity::of(&Reader { mapped, callers, ..Reader::default() })
    }

    /// The story: a limit by `caller`, the first of `api_key` and `ip`, held at the gateway only; `explain api_key=k1` said that the
    /// request has no caller. What is told is chosen from as what is read.
    #[test]
    fn the_first_of_several_is_derived() {
        let identity = choosing(vec![Source::Credential, Source::Client], None);
        let chosen = |pairs: &[(&str, &str)]| {
            let told = told(&identity, pairs, Word::Trusted);
            told.into_iter().filter(|pair| pair.starts_with("caller=")).collect::<Vec<_>>()
        };
        let digest = format!("caller={}", CredentialDigest::of("k1"));
        assert_eq!(chosen(&[("ip", "192.0.2.1"), ("api_key", "k1")]), [digest.as_str()]);
        assert_eq!(chosen(&[("ip", "192.0.2.1")]), ["caller=192.0.2.1"]);
        assert_eq!(chosen(&[("ip", "::ffff:192.0.2.1")]), ["caller=192.0.2.1"]);
        assert_eq!(chosen(&[("ip", "2001:db8::7"), ("api_key", "")]), ["caller=2001:db8::/64"]);
        assert_eq!(chosen(&[("caller", "k1"), ("ip", "192.0.2.1")]), [digest.as_str()], "told itself");
        assert!(chosen(&[("path", "/")]).is_empty());
        let callers = Callers::read("c", b"callers: [{key: k1, tenant: acme}]").unwrap();
        let callers = Some(ActiveCallers::new(callers));
        let known = choosing(vec![Source::OfCaller("tenant".to_owned()), Source::Client], callers);
        assert!(
            told(&known, &[("api_key", "k1"), ("ip", "::1")], Word::Trusted)
                .contains(&"caller=acme".to_owned())
        );
        let stranger = told(&known, &[("api_key", "k2"), ("ip", "192.0.2.1")], Word::Trusted);
        assert_eq!(stranger, ["ip=192.0.2.1", "caller=192.0.2.1"]);
    }

    /// A request in several views has one caller: the first alternative that any of them has.
    #[test]
    fn views_make_one_choice() {
        let identity = choosing(vec![Source::Credential, Source::Client], None);
        let views: [&[(&str, &str)]; 3] = [&[("ip", "192.0.2.1")], &[("api_key", "k1")], &[("path", "/")]];
        let pairs = |view: &[(&'static str, &'static str)]| {
            view.iter().map(|(name, value)| (*name, Value::Text(value))).collect::<Vec<_>>().into_iter()
        };
        let mut known = views.map(|view| identity.known(pairs(view), Word::Client));
        Known::agree(&mut known);
        let has = |(view, known): (&&[(&'static str, &'static str)], &Known)| {
            let request = known.request(pairs(view)).unwrap();
            request.attributes().iter().any(|given| given.name == "caller")
        };
        assert_eq!(views.iter().zip(&known).map(has).collect::<Vec<_>>(), [false, true, false]);
    }

    /// Known credentials bring their caller's attributes, whatever else is said of those; unknown ones are nobody's.
    #[test]
    fn callers_have_attributes_and_strangers_none() {
        let callers = Callers::read("c", b"callers: [{key: k1, tenant: acme, plan: pro}]").unwrap();
        let reader = Reader { callers: Some(ActiveCallers::new(callers)), ..Reader::default() };
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
