//! The attributes of a request, and how they become a check request. A value may have another spelling that conditions
//! match as well: a host with its port, or the loose form of a path.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::request::{SPELLINGS_MAX, Spelling};
use tollgate::{CheckRequest, RequestError};

use super::address::Counted;
use super::callers::Caller;
use super::text::{Short, Text};
use super::{BUILT_IN, HOST_INDEX, IP_INDEX, NO_ADDRESS};

/// Another spelling of a value.
#[derive(Clone, Debug)]
pub(super) enum OtherSpelling<'s> {
    /// A host with its port.
    WithPort(Cow<'s, str>),
    /// The loose form of a path.
    Loose(String),
    /// A path is its own loose form.
    LooseItself,
    /// A path is compared as it is.
    Itself,
}

impl OtherSpelling<'_> {
    fn of<'r>(&'r self, value: &'r str) -> Spelling<'r> {
        match self {
            OtherSpelling::WithPort(text) => Spelling::AsIs(text),
            OtherSpelling::Loose(path) => Spelling::LoosePath(path),
            OtherSpelling::LooseItself => Spelling::LoosePath(value),
            OtherSpelling::Itself => Spelling::AsIs(value),
        }
    }
}

/// The attributes of a request.
#[derive(Debug, Default)]
pub struct Attributes<'s> {
    values: SmallVec<[(&'s str, Text<'s>); 5]>,
    /// Other spellings, each with the index of its value.
    others: SmallVec<[(usize, OtherSpelling<'s>); SPELLINGS_MAX]>,
    /// The caller's entry in the callers file.
    pub(super) caller: Option<Arc<Caller>>,
}

impl<'s> Attributes<'s> {
    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        found.or_else(|| self.caller.as_ref().and_then(|caller| caller.get(name)))
    }

    /// The host with its port, if that is not the default port. A proxy sends it on; limits see the name alone.
    #[must_use]
    pub fn host_and_port(&self) -> Option<&str> {
        let index = self.values.iter().position(|(name, _)| *name == BUILT_IN[HOST_INDEX])?;
        let with_port = self.others.iter().find_map(|(of, other)| match other {
            OtherSpelling::WithPort(text) if *of == index => Some(&**text),
            _ => None,
        });
        with_port.or_else(|| self.get(BUILT_IN[HOST_INDEX]))
    }

    /// Adds the client's address.
    #[inline]
    pub(super) fn ip(&mut self, client: Option<&Counted>) {
        let ip = client.map_or(Text::Borrowed(NO_ADDRESS), |client| Text::Short(Short::client(client)));
        self.values.push((BUILT_IN[IP_INDEX], ip));
    }

    pub(super) fn push(&mut self, name: &'s str, value: Text<'s>) {
        self.values.push((name, value));
    }

    pub(super) fn push_spelled(&mut self, name: &'s str, value: Text<'s>, other: OtherSpelling<'s>) {
        self.others.push((self.values.len(), other));
        self.push(name, value);
    }

    /// Names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (String, String)> {
        let given = self.caller.iter().flat_map(|caller| caller.attributes());
        let read = self.values.iter().map(|(name, value)| (*name, value.as_str()));
        read.chain(given).map(|(name, value)| (name.to_owned(), value.to_owned()))
    }

    /// The check request for the engine.
    ///
    /// # Errors
    /// A value is longer than an attribute may be.
    pub fn request(&self) -> Result<CheckRequest<'_>, RequestError> {
        let mut request = CheckRequest::new();
        self.write_to(&mut request)?;
        Ok(request)
    }

    /// Writes the attributes into a check request in place, because it is large.
    ///
    /// # Errors
    /// A value is longer than an attribute may be, or the request has an attribute of the same name.
    #[inline]
    pub fn write_to<'r>(&'r self, request: &mut CheckRequest<'r>) -> Result<(), RequestError> {
        for (index, (name, value)) in self.values.iter().enumerate() {
            let value = value.as_str();
            match self.others.iter().find(|(of, _)| *of == index) {
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
