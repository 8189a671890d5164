//! What is known about a request, value by value, and how the engine is told. A value may have another spelling, by which conditions hold as
//! well: a host its port, a path its loose form.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::request::{SPELLINGS_MAX, Spelling};
use tollgate::{CheckRequest, RequestError};

use super::address::Counted;
use super::callers::Caller;
use super::text::{Short, Text};
use super::{BUILT_IN, HOST_PLACE, IP_PLACE, NO_ADDRESS};

/// Another spelling of a value.
#[derive(Clone, Debug)]
pub(super) enum Other<'s> {
    /// A host with its port.
    WithPort(Cow<'s, str>),
    /// The loose form of a path.
    Loose(String),
    /// A path is its own loose form.
    LooseItself,
}

impl Other<'_> {
    fn of<'r>(&'r self, value: &'r str) -> Spelling<'r> {
        match self {
            Other::WithPort(text) => Spelling::AsIs(text),
            Other::Loose(path) => Spelling::LoosePath(path),
            Other::LooseItself => Spelling::LoosePath(value),
        }
    }
}

/// What is known about a request.
#[derive(Debug, Default)]
pub struct Attributes<'s> {
    values: SmallVec<[(&'s str, Text<'s>); 5]>,
    /// Other spellings, each with the place of its value.
    others: SmallVec<[(usize, Other<'s>); SPELLINGS_MAX]>,
    /// What the callers file says of whoever sent it.
    pub(super) caller: Option<Arc<Caller>>,
}

impl<'s> Attributes<'s> {
    /// The value of one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        found.or_else(|| self.caller.as_ref().and_then(|caller| caller.get(name)))
    }

    /// The host with its port, unless that goes without saying: what is sent on, where limits see the name alone.
    #[must_use]
    pub fn host_and_port(&self) -> Option<&str> {
        let place = self.values.iter().position(|(name, _)| *name == BUILT_IN[HOST_PLACE])?;
        let with_port = self.others.iter().find_map(|(of, other)| match other {
            Other::WithPort(text) if *of == place => Some(&**text),
            _ => None,
        });
        with_port.or_else(|| self.get(BUILT_IN[HOST_PLACE]))
    }

    /// Adds who sent it.
    #[inline]
    pub(super) fn ip(&mut self, client: Option<&Counted>) {
        let ip = client.map_or(Text::Borrowed(NO_ADDRESS), |client| Text::Short(Short::client(client)));
        self.values.push((BUILT_IN[IP_PLACE], ip));
    }

    pub(super) fn push(&mut self, name: &'s str, value: Text<'s>) {
        self.values.push((name, value));
    }

    pub(super) fn push_spelled(&mut self, name: &'s str, value: Text<'s>, other: Other<'s>) {
        self.others.push((self.values.len(), other));
        self.push(name, value);
    }

    /// Names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (String, String)> {
        let given = self.caller.iter().flat_map(|caller| caller.attributes());
        let read = self.values.iter().map(|(name, value)| (*name, value.as_str()));
        read.chain(given).map(|(name, value)| (name.to_owned(), value.to_owned()))
    }

    /// The question for the engine.
    ///
    /// # Errors
    /// When a value is longer than an attribute may be.
    pub fn request(&self) -> Result<CheckRequest<'_>, RequestError> {
        let mut request = CheckRequest::new();
        self.tell(&mut request)?;
        Ok(request)
    }

    /// The same, written where it is needed: a question is large.
    #[inline]
    pub(crate) fn tell<'r>(&'r self, request: &mut CheckRequest<'r>) -> Result<(), RequestError> {
        for (place, (name, value)) in self.values.iter().enumerate() {
            let value = value.as_str();
            match self.others.iter().find(|(of, _)| *of == place) {
                None => request.push(name, value)?,
                Some((_, other)) => request.push_spelled(name, value, other.of(value))?,
            }
        }
        for (name, value) in self.caller.iter().flat_map(|caller| caller.attributes()) {
            request.push(name, value)?;
        }
        Ok(())
    }
}
