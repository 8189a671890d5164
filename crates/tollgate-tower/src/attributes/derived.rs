//! Attributes that are derived from the others, as a reader would derive them: the template of the path, and whatever else a config
//! makes of the attributes that every request has. So an operator names the path, and need not know the templates.

use std::borrow::Cow;
use std::cell::OnceCell;

use http::HeaderMap;
use tollgate::Value;

use super::address::{Counted, client};
use super::host::Host;
use super::path::normalise;
use super::query::Query;
use super::{BUILT_IN, HOST_INDEX, IP_INDEX, METHOD_INDEX, Mapped, PATH_INDEX, Reader, Subject};

impl Reader {
    /// The mapped attributes that follow from those that are given, with their names. Those that are given themselves are not among them, nor
    /// those that are the first of others, nor what only the callers file gives.
    #[must_use]
    pub fn derived(&self, given: &[(&str, Value<'_>)]) -> Vec<(&str, String)> {
        if self.mapped.is_empty() {
            return Vec::new();
        }
        let text = |index: usize| {
            given.iter().find_map(|(name, value)| match value {
                Value::Text(text) if *name == BUILT_IN[index] => Some(*text),
                _ => None,
            })
        };
        let headers = HeaderMap::new();
        let address = text(IP_INDEX).and_then(client);
        let subject = Subject {
            peer: None,
            client: address.map(|address| Counted { address, ipv6_prefix: self.ipv6_prefix }),
            method: text(METHOD_INDEX),
            host: text(HOST_INDEX).and_then(|host| Host::parse(host).ok()),
            path: text(PATH_INDEX).and_then(|path| normalise(path, self.slashes).ok()),
            paths: self.paths,
            query: Query::default(),
            headers: &headers,
            credentials: &self.credentials,
            callers: None,
            identified: OnceCell::new(),
            extensions: None,
            is_vouched: false,
        };
        let is_open = |mapped: &&Mapped| {
            let is_known = given.iter().any(|(name, _)| *name == mapped.name);
            let is_given = self.callers.as_ref().is_some_and(|callers| callers.gives(&mapped.name));
            !is_known && !is_given && mapped.source.alternatives().is_none()
        };
        let value = |mapped: &Mapped| mapped.source.read(&subject).ok().flatten().map(Cow::into_owned);
        let open = self.mapped.iter().filter(is_open);
        open.filter_map(|mapped| Some((mapped.name.as_str(), value(mapped)?))).collect()
    }
}
