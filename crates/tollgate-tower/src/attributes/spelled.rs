//! Given attributes in the spelling of an HTTP reader: the address as limits count it, the normalised host and path, and
//! the other spellings that conditions match. So an operator who explains a decision of a gateway checks the same request.

use tollgate::path::loose_path;
use tollgate::request::Spelling;
use tollgate::{CheckRequest, RequestError, Value};

use super::address::{Counted, client};
use super::host::Host;
use super::path::{PathMatch, normalise};
use super::{BUILT_IN, HOST_INDEX, IP_INDEX, PATH_INDEX, Reader};

/// The attributes that an HTTP reader would spell differently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelled {
    ip: Option<String>,
    /// The name, and the name with its port if that is not the default port.
    host: Option<(String, Option<String>)>,
    /// The normalised path, and its loose form if limits match it as well.
    path: Option<(String, Option<String>)>,
}

impl Spelled {
    /// Spells the given attributes as a reader would. A value that the reader would refuse stays as it is.
    #[must_use]
    pub fn by(reader: &Reader, given: &CheckRequest<'_>) -> Self {
        let text = |index: usize| {
            let attribute = given.attributes().iter().find(|attribute| attribute.name == BUILT_IN[index])?;
            if let Value::Text(text) = attribute.value { Some(text) } else { None }
        };
        let ip = text(IP_INDEX).and_then(|ip| {
            let client = Counted { address: client(ip)?, ipv6_prefix: reader.ipv6_prefix };
            let mut counted = String::new();
            client.write_ip(&mut counted).ok()?;
            (counted != ip).then_some(counted)
        });
        let host = text(HOST_INDEX).and_then(|host| {
            let host = Host::parse(host).ok()?;
            Some((host.name().to_owned(), host.has_port().then(|| host.as_str().to_owned())))
        });
        let path = text(PATH_INDEX).and_then(|path| {
            let path = normalise(path, reader.slashes).ok()?;
            let loose = (reader.paths == PathMatch::Loose).then(|| loose_path(&path).into_owned());
            Some((path.into_owned(), loose))
        });
        Self { ip, host, path }
    }

    /// The request as the reader would read it. Returns `None` if that is the given one.
    ///
    /// # Errors
    /// A value exceeds a bound.
    pub fn request<'r, 'a: 'r>(
        &'r self,
        given: &CheckRequest<'a>,
    ) -> Result<Option<CheckRequest<'r>>, RequestError> {
        if *self == Self::default() {
            return Ok(None);
        }
        let mut request = CheckRequest::new();
        for attribute in given.attributes() {
            let is = |index: usize| attribute.name == BUILT_IN[index];
            match (&self.ip, &self.host, &self.path) {
                (Some(ip), _, _) if is(IP_INDEX) => request.push(attribute.name, ip)?,
                (_, Some((host, with_port)), _) if is(HOST_INDEX) => {
                    let with_port = with_port.as_deref().map(Spelling::AsIs);
                    push(&mut request, attribute.name, host, with_port)?;
                }
                (_, _, Some((path, loose))) if is(PATH_INDEX) => {
                    let other = loose.as_deref().map_or(Spelling::AsIs(path), Spelling::LoosePath);
                    request.push_spelled(attribute.name, path, other)?;
                }
                _ => request.push(attribute.name, attribute.value)?,
            }
        }
        request.cost(given.units()).map(Some)
    }

    /// The request as it is given, without other spellings than that of a path that is compared as it is.
    ///
    /// # Errors
    /// None: the given request is within all bounds.
    pub fn as_given<'r, 'a: 'r>(given: &CheckRequest<'a>) -> Result<CheckRequest<'r>, RequestError> {
        let mut as_given = CheckRequest::new().cost(given.units())?;
        for attribute in given.attributes() {
            let is_exact = |(name, spelling)| name == attribute.name && matches!(spelling, Spelling::AsIs(_));
            let is_exact = attribute.name == BUILT_IN[PATH_INDEX] && given.first().spelled().any(is_exact);
            match attribute.value {
                Value::Text(path) if is_exact => {
                    as_given.push_spelled(attribute.name, path, Spelling::AsIs(path))?;
                }
                value => as_given.push(attribute.name, value)?,
            }
        }
        Ok(as_given)
    }

    /// Both readings as descriptors of one request: as the reader would read it, and as it is given.
    ///
    /// # Errors
    /// A value exceeds a bound.
    pub fn readings<'r, 'a: 'r>(
        &'r self,
        given: &CheckRequest<'a>,
    ) -> Result<CheckRequest<'r>, RequestError> {
        let as_given = Self::as_given(given)?;
        Ok(match self.request(given)? {
            Some(read) => read.and(as_given),
            None => as_given,
        })
    }
}

fn push<'r>(
    request: &mut CheckRequest<'r>,
    name: &'r str,
    value: &'r str,
    other: Option<Spelling<'r>>,
) -> Result<(), RequestError> {
    match other {
        Some(other) => request.push_spelled(name, value, other),
        None => request.push(name, value),
    }
}
