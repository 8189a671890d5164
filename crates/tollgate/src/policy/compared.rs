//! A request as a policy compares it, from every protocol: credentials by their digests, and addresses, paths, hosts and
//! methods in the normalised spelling of policies; paths in their loose form as well. The values that limits count by stay
//! unchanged.

use std::borrow::Cow;
use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::address::{Network, is_plain};
use crate::credential::{CredentialAttributes, CredentialDigest};
use crate::host::Host;
use crate::path::{EscapedSlashes, loose_path, normalise_path};
use crate::policy::Policy;
use crate::policy::condition::Condition;
use crate::policy::expression::Wanted;
use crate::policy::finding::{Problem, Severity};
use crate::policy::limit::{Cost, Limit};
use crate::policy::text::{Digits, as_text};
use crate::policy::vocabulary::{Kind, Vocabulary};
use crate::request::{Attribute, Descriptor, GET, HEAD, Spelling, Value};

/// The form in which the values of an attribute are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComparedAs {
    /// By the digest of a credential.
    Digest,
    /// By the digest of a credential, or as the address that a client without one has.
    DigestOrAddress,
    /// By the one spelling of an address.
    Address,
    /// By the one spelling of a path.
    Path,
    /// By the one spelling of a host.
    Host,
    /// By the one spelling of a method.
    Method,
}

/// A value in its form, if that differs from the value in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ComparedValue {
    /// A digest.
    Digest(CredentialDigest),
    /// A text.
    Text(String),
    /// A host, and the host with its port as another spelling.
    Host(Host<'static>),
    /// A method. HEAD counts as GET, too.
    Method(String),
    /// A path.
    Path(PathForms),
}

/// The forms of a path that differ from the text in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathForms {
    /// Its one spelling.
    one: Option<String>,
    /// The loose forms by which conditions compare it, too, besides its one spelling.
    loose: SmallVec<[String; 2]>,
}

impl PathForms {
    /// The forms of a text. Returns `None` if it is no path. A path that servers read differently has a loose form for
    /// each reading, where the gateway refuses the request.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let one = path(text);
        let spelled = one.as_deref().unwrap_or(text);
        if !spelled.starts_with('/') {
            return one.map(|one| Self { one: Some(one), loose: SmallVec::new() });
        }
        let mut loose: SmallVec<[String; 2]> = SmallVec::new();
        let mut add = |form: Cow<'_, str>| {
            if form != spelled && !loose.iter().any(|known| *known == form) {
                loose.push(form.into_owned());
            }
        };
        add(loose_path(spelled));
        if text.contains(DOUBTFUL) {
            let path = text.split_once('?').map_or(text, |(path, _)| path);
            let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
            let bare = segments.collect::<Vec<_>>().join("/");
            for reading in [EscapedSlashes::Keep, EscapedSlashes::Decode] {
                if let Ok(read) = normalise_path(&bare, reading) {
                    add(loose_path(&read));
                }
            }
        }
        Some(Self { one, loose })
    }

    /// The other spellings of a path with this one spelling.
    fn others<'r>(&'r self, one: &'r str) -> impl Iterator<Item = Spelling<'r>> {
        let itself = one.starts_with('/').then_some(one);
        self.loose.iter().map(String::as_str).chain(itself).map(Spelling::LoosePath)
    }

    /// The loose forms, for a path with this text.
    pub(crate) fn forms<'r>(&'r self, text: &'r str) -> impl Iterator<Item = &'r str> {
        self.others(self.one.as_deref().unwrap_or(text)).map(Spelling::text)
    }
}

/// Characters by which servers read a path in several ways: those of parameters, and of escaped slashes.
const DOUBTFUL: [char; 3] = [';', '%', '\\'];

impl ComparedValue {
    /// The attribute that it is compared by; `None` if that is the value in the request.
    pub(crate) fn value(&self) -> Option<&str> {
        match self {
            ComparedValue::Digest(digest) => Some(digest.as_str()),
            ComparedValue::Text(text) | ComparedValue::Method(text) => Some(text),
            ComparedValue::Host(host) => Some(host.name()),
            ComparedValue::Path(forms) => forms.one.as_deref(),
        }
    }

    /// Another spelling of it.
    pub(crate) fn other(&self) -> Option<&str> {
        match self {
            ComparedValue::Host(host) if host.has_port() => Some(host.as_str()),
            ComparedValue::Method(method) if method == HEAD => Some(GET),
            _ => None,
        }
    }

    /// Adds its other spellings to the attribute at an index.
    fn spell<'r>(&'r self, position: usize, request: &mut Descriptor<'r>) {
        if let Some(other) = self.other() {
            request.add_spelling(position, Spelling::AsIs(other));
        }
        if let ComparedValue::Path(forms) = self
            && let Some(Attribute { value: Value::Text(one), .. }) = request.attributes().get(position)
        {
            forms.others(one).for_each(|other| request.add_spelling(position, other));
        }
    }
}

/// The replaced values of a request, each with the position of its attribute.
pub(crate) type Replaced = SmallVec<[(usize, ComparedValue); 2]>;

impl ComparedAs {
    const fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Address => Some(ComparedAs::Address),
            Kind::Path => Some(ComparedAs::Path),
            Kind::Host => Some(ComparedAs::Host),
            Kind::Method => Some(ComparedAs::Method),
            Kind::Text => None,
        }
    }

    /// A value in this form. Returns `None` if it already has it, or cannot have it.
    fn formed(self, value: Value<'_>) -> Option<ComparedValue> {
        match (self, value) {
            (ComparedAs::DigestOrAddress, Value::Text(text)) if Network::given(text).is_some() => None,
            (ComparedAs::Digest | ComparedAs::DigestOrAddress, value) => {
                let mut digits = Digits::new();
                let text = as_text(value, &mut digits);
                let digest = CredentialDigest::of_value(text);
                (digest.as_str() != text).then_some(ComparedValue::Digest(digest))
            }
            (ComparedAs::Address, Value::Text(text)) => address(text).map(ComparedValue::Text),
            (ComparedAs::Path, Value::Text(text)) => path(text).map(ComparedValue::Text),
            (ComparedAs::Host, Value::Text(text)) => host(text).map(ComparedValue::Host),
            (ComparedAs::Method, Value::Text(text)) => method(text).map(ComparedValue::Method),
            (_, Value::Number(_)) => None,
        }
    }
}

/// The normalised spelling of a value, by the name of its attribute. Returns `None` if it already has it, or has none.
pub(crate) fn by_name(name: &str, text: &str) -> Option<ComparedValue> {
    ComparedAs::of(Kind::of(name))?.formed(Value::Text(text))
}

fn address(text: &str) -> Option<String> {
    if is_plain(text) {
        return None;
    }
    Network::given(text).map(|network| network.to_string()).filter(|one| one != text)
}

/// Some callers send the path with its query, such as Envoy's `:path`. No path of a policy has one, so it is left out:
/// otherwise a client would pass every limit on a path by a query of its own.
fn path(text: &str) -> Option<String> {
    let path = text.split_once('?').map_or(text, |(path, _)| path);
    let one = normalise_path(path, EscapedSlashes::Keep).ok()?;
    (one != text).then(|| one.into_owned())
}

fn method(text: &str) -> Option<String> {
    text.bytes().any(|byte| byte.is_ascii_lowercase()).then(|| text.to_ascii_uppercase())
}

fn host(text: &str) -> Option<Host<'static>> {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    if text.bytes().all(is_plain) && !text.ends_with('.') {
        return None;
    }
    let host = Host::parse(text).ok()?;
    (host.has_port() || host.as_str() != text).then(|| host.into_owned())
}

impl Limit {
    /// Resolves how its cost reads attributes, and the spellings of its tiers and overrides. Returns the problems with the
    /// texts of its cost. Its conditions are resolved when they are read.
    pub(crate) fn settle(&mut self, vocabulary: &Vocabulary) -> Vec<(Severity, Problem)> {
        let by = self.by.first().map(|by| vocabulary.kind(by.name()));
        let tiers = self.quotas.tier_by.iter().map(|name| vocabulary.kind(name)).collect::<Vec<_>>();
        self.quotas.settle(by, &tiers);
        match &mut self.cost {
            Cost::Computed(expression) => expression.settle(vocabulary, Wanted::WholeNumber),
            Cost::Asked | Cost::Units(_) | Cost::Attribute(_) => Vec::new(),
        }
    }

    /// The attributes whose values it names. Tables compare addresses by their bits, so these need no spelling.
    fn named(&self) -> impl Iterator<Item = (&str, ByBits)> {
        let in_conditions = self.when.iter().flat_map(|condition| {
            let by_bits = if matches!(condition, Condition::OneOf { .. }) { ByBits::Yes } else { ByBits::No };
            condition.mentioned().map(move |name| (name, by_bits))
        });
        let in_cost = match &self.cost {
            Cost::Computed(expression) => Some(expression.attributes()),
            Cost::Asked | Cost::Units(_) | Cost::Attribute(_) => None,
        };
        let overridden = self.by.first().filter(|_| !self.quotas.overrides.is_empty()).map(|by| by.name());
        let others = in_cost.into_iter().flatten().chain(self.tier_by().iter().map(String::as_str));
        in_conditions
            .chain(others.map(|name| (name, ByBits::No)))
            .chain(overridden.map(|name| (name, ByBits::Yes)))
    }
}

/// Whether addresses are compared by their bits, so that no spelling of them matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByBits {
    Yes,
    No,
}

/// The attributes whose values these limits name, if the values have a form of their own.
pub(crate) fn names(
    limits: &[Limit],
    credentials: &CredentialAttributes,
    vocabulary: &Vocabulary,
) -> Vec<(String, ComparedAs)> {
    let mut names = BTreeMap::new();
    for (name, by_bits) in limits.iter().flat_map(Limit::named) {
        let form = match ComparedAs::of(vocabulary.kind(name)) {
            _ if credentials.may_be_address(name) => Some(ComparedAs::DigestOrAddress),
            _ if credentials.contains(name) => Some(ComparedAs::Digest),
            Some(ComparedAs::Address) if by_bits == ByBits::Yes => None,
            form => form,
        };
        if let Some(form) = form.filter(|_| !names.contains_key(name)) {
            names.insert(name.to_owned(), form);
        }
    }
    names.into_iter().collect()
}

impl Policy {
    /// A request as the policy compares it. Returns `None` if it is unchanged. `replaced` holds the other values.
    #[inline]
    pub(crate) fn compared<'r, 'a: 'r>(
        &self,
        request: &Descriptor<'a>,
        replaced: &'r mut Replaced,
    ) -> Option<Descriptor<'r>> {
        if self.compared.is_empty() {
            return None;
        }
        *replaced = self.formed(request);
        if replaced.is_empty() {
            return None;
        }
        let values = replaced.iter().filter_map(|(position, formed)| Some((*position, formed.value()?)));
        let mut compared = request.replaced(values);
        replaced.iter().for_each(|(position, formed)| formed.spell(*position, &mut compared));
        Some(compared)
    }

    fn formed(&self, request: &Descriptor<'_>) -> Replaced {
        let mut replaced = Replaced::new();
        for (position, given) in request.attributes().iter().enumerate() {
            let form = self.compared.iter().find(|(name, _)| name == given.name).map(|(_, form)| *form);
            let formed = match (form, given.value) {
                // A protocol that spells a path has decided how it is compared.
                (Some(ComparedAs::Path), Value::Text(text))
                    if request.spellings_of(position).next().is_none() =>
                {
                    PathForms::of(text).map(ComparedValue::Path)
                }
                (form, value) => form.and_then(|form| form.formed(value)),
            };
            replaced.extend(formed.map(|formed| (position, formed)));
        }
        replaced
    }
}
