//! A request without its time, as text: what a policy reads of it. Requests of one client are often alike, so the ring
//! keeps each such text once for a minute.

use serde::ser::{Serialize, Serializer};
use tollgate::credential::CREDENTIAL;
use tollgate::request::{Descriptor, Spelling};
use tollgate::{CheckRequest, RequestError, Value};

use super::Reading;
use crate::text::unsecret;

/// The attribute whose other spelling a request adds by itself.
const METHOD: &str = "method";

/// The kept descriptors of a request: for each the cost, the attributes, and other spellings of their values.
pub(super) struct Shape<'s, 'r> {
    pub(super) request: &'s CheckRequest<'r>,
    pub(super) reading: &'s Reading,
}

impl Serialize for Shape<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let descriptors = self.request.descriptors().map(|descriptor| {
            let of = KeptDescriptor { descriptor, reading: self.reading };
            (descriptor.units(), KeptAttributes(of), KeptSpellings(of))
        });
        serializer.collect_seq(descriptors)
    }
}

#[derive(Clone, Copy)]
struct KeptDescriptor<'s, 'r> {
    descriptor: &'s Descriptor<'r>,
    reading: &'s Reading,
}

struct KeptAttributes<'s, 'r>(KeptDescriptor<'s, 'r>);

impl Serialize for KeptAttributes<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let KeptDescriptor { descriptor, reading } = self.0;
        let kept = descriptor.attributes().iter().filter(|attribute| reading.reads(attribute.name));
        serializer
            .collect_seq(kept.map(|attribute| (attribute.name, KeptValue(attribute.name, attribute.value))))
    }
}

/// A value. A credential that is not hashed yet is hashed here.
struct KeptValue<'v>(&'v str, Value<'v>);

impl Serialize for KeptValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.1 {
            Value::Text(text) if self.0 == CREDENTIAL => serializer.serialize_str(&unsecret(self.0, text)),
            Value::Text(text) => serializer.serialize_str(text),
            Value::Number(number) => serializer.serialize_i64(number),
        }
    }
}

struct KeptSpellings<'s, 'r>(KeptDescriptor<'s, 'r>);

impl Serialize for KeptSpellings<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let KeptDescriptor { descriptor, reading } = self.0;
        let kept = descriptor.spelled().filter(|(name, _)| *name != METHOD && reading.reads(name));
        serializer.collect_seq(kept.map(|(name, spelling)| match spelling {
            Spelling::AsIs(text) => (name, false, text),
            Spelling::LoosePath(text) => (name, true, text),
        }))
    }
}

/// A kept request that was read again: its descriptors.
pub(super) struct KeptRequest(Vec<OwnedDescriptor>);

/// The cost, the attributes, and other spellings: a name, whether it is a loose path, and the text.
type OwnedDescriptor = (u64, Vec<(String, serde_json::Value)>, Vec<(String, bool, String)>);

impl KeptRequest {
    /// Reads a text of [`Shape`].
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self).filter(|Self(descriptors)| !descriptors.is_empty())
    }

    /// The request.
    ///
    /// # Errors
    /// When it exceeds a bound of requests, as one of another node could.
    pub(super) fn request(&self) -> Result<CheckRequest<'_>, RequestError> {
        let mut descriptors = self.0.iter().map(descriptor);
        let mut request = descriptors.next().unwrap_or_else(|| Ok(CheckRequest::new()))?;
        for further in descriptors {
            request = request.and(further?);
        }
        Ok(request)
    }
}

fn descriptor((cost, attributes, spellings): &OwnedDescriptor) -> Result<CheckRequest<'_>, RequestError> {
    let mut request = CheckRequest::new().cost(*cost)?;
    for (name, value) in attributes {
        let spelling = spellings.iter().find(|(of, ..)| of == name);
        match (value.as_str(), spelling) {
            (Some(text), Some((_, true, loose))) => {
                request.push_spelled(name, text, Spelling::LoosePath(loose))?;
            }
            (Some(text), Some((_, false, other))) => {
                request.push_spelled(name, text, Spelling::AsIs(other))?;
            }
            (Some(text), None) => request.push(name, text)?,
            (None, _) => request.push(name, value.as_i64().unwrap_or_default())?,
        }
    }
    Ok(request)
}
