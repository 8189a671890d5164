//! The attributes of a record: the same as of a request to the server, by the same config. Attributes that the log names
//! itself are taken as a program would send them.

use std::cell::Cell;

use http::header::{HOST, HeaderName, HeaderValue, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use tollgate::policy::Cost;
use tollgate::request::VALUE_BYTES_MAX;
use tollgate::{CheckRequest, Policy, Value};
use tollgate_sim::log::Record;
use tollgate_sim::replay::{Describe, Undecidable};
use tollgate_tower::attributes::{BUILT_IN, Needs, Reader};

use crate::identity::{AttributeOrigin, Identity};

/// Attributes that a record itself has, beside those of an HTTP request.
const USER: &str = "user";
const IP: &str = BUILT_IN[0];
const METHOD: &str = BUILT_IN[1];
const PATH: &str = BUILT_IN[3];
const BYTES: &str = "bytes";
const AGENT: &str = "user_agent";

/// Reads records as a server with this config reads requests.
pub(crate) struct RequestReader {
    reader: Reader,
    identity: Identity,
    /// The attributes that decisions depend on.
    used: Vec<String>,
    /// Attributes that a cost is computed from, which are numbers.
    numbers: Vec<String>,
    /// The attributes read from requests with an address, and from those without.
    needs: [Needs; 2],
    /// Whether anything but the address is read.
    reads_request: bool,
    /// A request whose parts are replaced for each record. While it is in use, another is made.
    parts: Cell<Option<Parts>>,
}

impl RequestReader {
    /// Reads what these policies use.
    pub(crate) fn new<'p>(reader: Reader, policies: impl Iterator<Item = &'p Policy> + Clone) -> Self {
        let uses = |name: &str| policies.clone().any(|policy| policy.uses(name));
        let names = BUILT_IN.into_iter().chain(reader.mapped.iter().map(|mapped| mapped.name.as_str()));
        let used: Vec<String> =
            names.chain([USER, BYTES, AGENT]).filter(|name| uses(name)).map(str::to_owned).collect();
        let costs = policies.clone().flat_map(Policy::limits).map(|limit| limit.cost());
        let numbers = costs.flat_map(|cost| match cost {
            Cost::Computed(expression) => expression.attributes().map(str::to_owned).collect(),
            _ => Vec::new(),
        });
        let numbers = numbers.collect();
        let is_used = |name: &str| used.iter().any(|used| used == name);
        let needs = [Needs::of(&reader, is_used), Needs::of(&reader, |name| name != IP && is_used(name))];
        let reads_request = needs[1] != Needs::of(&Reader::default(), |_| false);
        let identity = Identity::of(&reader);
        Self { reader, identity, used, numbers, needs, reads_request, parts: Cell::new(None) }
    }

    fn uses(&self, name: &str) -> bool {
        self.used.iter().any(|used| used == name)
    }

    /// The used attributes of a request, as far as the record has them. None is invented.
    fn needs(&self, record: &Record<'_>) -> Needs {
        let [all, without_address] = self.needs;
        let has_request = record.method.is_some() && record.target.is_some();
        if record.attributes.is_empty() && has_request {
            return if record.client.is_some() { all } else { without_address };
        }
        let is_given = |name: &str| record.attributes.iter().any(|(given, _)| given == name);
        let is_recorded = |name: &str| match name {
            IP => record.client.is_some(),
            METHOD => record.method.is_some(),
            PATH => record.target.is_some(),
            _ => true,
        };
        Needs::of(&self.reader, |name| self.uses(name) && !is_given(name) && is_recorded(name))
    }

    /// Replaces the parts by those of the record.
    fn fill(&self, parts: &mut Parts, record: &Record<'_>) -> Result<(), String> {
        parts.headers.clear();
        for (name, value) in &record.headers {
            add(&mut parts.headers, HeaderName::from_bytes(name.as_bytes()).ok(), value);
        }
        if !self.reads_request {
            return Ok(());
        }
        let method = record.method.as_deref().unwrap_or("GET");
        if parts.method.as_str() != method {
            parts.method =
                Method::from_bytes(method.as_bytes()).map_err(|_| not_readable("method", method))?;
        }
        let target = record.target.as_deref().unwrap_or("/");
        parts.uri = target.parse::<Uri>().map_err(|_| not_readable("target", target))?;
        if let Some(host) = &record.host {
            parts.headers.remove(HOST);
            add(&mut parts.headers, Some(HOST), host);
        }
        if let Some(agent) = record.user_agent.as_ref().filter(|_| !self.reader.mapped.is_empty()) {
            parts.headers.remove(USER_AGENT);
            add(&mut parts.headers, Some(USER_AGENT), agent);
        }
        Ok(())
    }

    /// The value of an attribute that the log names.
    fn value<'v>(&self, name: &str, text: &'v str) -> Value<'v> {
        let number = || self.numbers.iter().any(|number| number == name).then(|| text.parse().ok());
        number().flatten().map_or(Value::Text(text), Value::Number)
    }

    /// Adds what only a record has.
    fn add_own<'r>(
        &self,
        request: &mut CheckRequest<'r>,
        record: &'r Record<'_>,
    ) -> Result<(), tollgate::RequestError> {
        let is_missing = |request: &CheckRequest<'_>, name: &str| {
            self.uses(name) && !request.attributes().iter().any(|given| given.name == name)
        };
        if let Some(user) = record.user.as_deref().filter(|_| is_missing(request, USER)) {
            request.push(USER, user)?;
        }
        if let Some(agent) = record.user_agent.as_deref().filter(|_| is_missing(request, AGENT)) {
            // A program with a long name is no reason to leave its request out.
            request.push(AGENT, &agent[..agent.floor_char_boundary(VALUE_BYTES_MAX)])?;
        }
        let bytes = record.bytes.and_then(|bytes| i64::try_from(bytes).ok());
        if let Some(bytes) = bytes.filter(|_| is_missing(request, BYTES)) {
            request.push(BYTES, bytes)?;
        }
        Ok(())
    }
}

impl Describe for RequestReader {
    fn describe<R>(
        &self,
        record: &Record<'_>,
        decide: impl FnOnce(&CheckRequest<'_>) -> R,
    ) -> Result<R, Undecidable> {
        let mut parts = self.parts.take().unwrap_or_else(|| http::Request::new(()).into_parts().0);
        let decided = self.described(&mut parts, record, decide);
        self.parts.set(Some(parts));
        decided.map_err(Undecidable)
    }
}

impl RequestReader {
    fn described<R>(
        &self,
        parts: &mut Parts,
        record: &Record<'_>,
        decide: impl FnOnce(&CheckRequest<'_>) -> R,
    ) -> Result<R, String> {
        let text = |error: tollgate::RequestError| error.to_string();
        self.fill(parts, record)?;
        let read = self
            .reader
            .of_request_for(record.client, parts, self.needs(record))
            .map_err(|unreadable| unreadable.to_string())?;
        let given = || record.attributes.iter().map(|(name, value)| (&**name, self.value(name, value)));
        let known = self.identity.identify(given(), AttributeOrigin::Trusted);
        let mut request = known.request(given()).map_err(text)?;
        read.write_to(&mut request).map_err(text)?;
        self.add_own(&mut request, record).map_err(text)?;
        request.set_cost(record.cost.unwrap_or(1)).map_err(text)?;
        Ok(decide(&request))
    }
}

fn add(headers: &mut HeaderMap, name: Option<HeaderName>, value: &str) {
    // A field that HTTP does not allow was none.
    if let Some((name, value)) = name.zip(HeaderValue::from_str(value).ok()) {
        headers.append(name, value);
    }
}

fn not_readable(field: &str, text: &str) -> String {
    let shown: String = text.chars().take(60).collect();
    format!("{field}: no server accepts {}", crate::text::plain(&shown))
}
