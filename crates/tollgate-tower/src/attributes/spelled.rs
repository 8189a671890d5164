//! Attributes that a person or a program gives, as a reader of HTTP would: the address as it counts, the one spelling of a host
//! and of a path, and beside it the other spellings that conditions hold for. So whoever explains a decision of a gateway asks what the
//! gateway asked.

use std::net::IpAddr;

use tollgate::path::loose_path;
use tollgate::request::Spelling;
use tollgate::{CheckRequest, RequestError, Value};

use super::address::Counted;
use super::host::Host;
use super::path::{PathMatch, normalise};
use super::{BUILT_IN, HOST_PLACE, IP_PLACE, PATH_PLACE, Reader};

/// How a reader of HTTP spells the attributes of a request; none of those that it would tell as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelled {
    ip: Option<String>,
    /// Its name, and with its port if that does not go without saying.
    host: Option<(String, Option<String>)>,
    /// Its one spelling, and its loose form where limits are matched by that, too.
    path: Option<(String, Option<String>)>,
}

impl Spelled {
    /// How this reader would spell what is given. What it would refuse is left as it is.
    #[must_use]
    pub fn by(reader: &Reader, given: &CheckRequest<'_>) -> Self {
        let text = |place: usize| {
            let attribute = given.attributes().iter().find(|attribute| attribute.name == BUILT_IN[place])?;
            if let Value::Text(text) = attribute.value { Some(text) } else { None }
        };
        let ip = text(IP_PLACE).and_then(|ip| {
            let client = Counted { address: ip.parse::<IpAddr>().ok()?, ipv6_prefix: reader.ipv6_prefix };
            let mut counted = String::new();
            client.write_ip(&mut counted).ok()?;
            (counted != ip).then_some(counted)
        });
        let host = text(HOST_PLACE).and_then(|host| {
            let host = Host::parse(host).ok()?;
            Some((host.name().to_owned(), host.has_port().then(|| host.as_str().to_owned())))
        });
        let path = text(PATH_PLACE).and_then(|path| {
            let path = normalise(path, reader.slashes).ok()?;
            let loose = (reader.paths == PathMatch::Loose).then(|| loose_path(&path).into_owned());
            Some((path.into_owned(), loose))
        });
        Self { ip, host, path }
    }

    /// The request as it would be read; none where that is the one that is given.
    ///
    /// # Errors
    /// When a bound is passed.
    pub fn request<'r, 'a: 'r>(
        &'r self,
        given: &CheckRequest<'a>,
    ) -> Result<Option<CheckRequest<'r>>, RequestError> {
        if *self == Self::default() {
            return Ok(None);
        }
        let mut request = CheckRequest::new();
        for attribute in given.attributes() {
            let is = |place: usize| attribute.name == BUILT_IN[place];
            match (&self.ip, &self.host, &self.path) {
                (Some(ip), _, _) if is(IP_PLACE) => request.push(attribute.name, ip)?,
                (_, Some((host, with_port)), _) if is(HOST_PLACE) => {
                    let with_port = with_port.as_deref().map(Spelling::AsIs);
                    push(&mut request, attribute.name, host, with_port)?;
                }
                (_, _, Some((path, loose))) if is(PATH_PLACE) => {
                    push(&mut request, attribute.name, path, loose.as_deref().map(Spelling::LoosePath))?;
                }
                _ => request.push(attribute.name, attribute.value)?,
            }
        }
        request.cost(given.units()).map(Some)
    }

    /// The request in both readings: as it would be read, and as it is given.
    ///
    /// # Errors
    /// When a bound is passed.
    pub fn readings<'r, 'a: 'r>(
        &'r self,
        given: &CheckRequest<'a>,
    ) -> Result<Vec<CheckRequest<'r>>, RequestError> {
        let mut as_given = CheckRequest::new().cost(given.units())?;
        for attribute in given.attributes() {
            as_given.push(attribute.name, attribute.value)?;
        }
        Ok(self.request(given)?.into_iter().chain([as_given]).collect())
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
