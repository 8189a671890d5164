//! The `credentials` section of the config: where the service behind Tollgate looks for the credential of a request.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tollgate_tower::attributes::credential::{CredentialLocation, Credentials, LOCATIONS_MAX};

use super::attributes::plain;
use crate::text::unknown_name;

const ACCEPTED: [&str; 5] = ["bearer", "basic", "{header: X-API-Key}", "{cookie: NAME}", "{query: NAME}"];

/// One location, as the config writes it. Not an untagged enum, so that a wrong field of the table is named.
#[derive(Debug)]
pub(super) enum LocationDocument {
    Scheme(String),
    Named(NamedCredential),
}

impl<'d> Deserialize<'d> for LocationDocument {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SchemeOrTable)
    }
}

struct SchemeOrTable;

impl<'d> Visitor<'d> for SchemeOrTable {
    type Value = LocationDocument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ACCEPTED.join(", "))
    }

    fn visit_str<E>(self, scheme: &str) -> Result<LocationDocument, E> {
        Ok(LocationDocument::Scheme(scheme.to_owned()))
    }

    fn visit_map<A: MapAccess<'d>>(self, map: A) -> Result<LocationDocument, A::Error> {
        NamedCredential::deserialize(MapAccessDeserializer::new(map)).map(LocationDocument::Named)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedCredential {
    header: Option<String>,
    cookie: Option<String>,
    query: Option<String>,
}

/// Compiles the section. By default the locations are `X-API-Key` and the bearer token.
pub(super) fn compile(locations: Option<Vec<LocationDocument>>, problems: &mut Vec<String>) -> Credentials {
    let Some(locations) = locations else { return Credentials::default() };
    if locations.len() > LOCATIONS_MAX {
        problems.push(format!("credentials: more than {LOCATIONS_MAX}; name those that the service reads"));
    }
    let mut read: Vec<CredentialLocation> = Vec::new();
    for (index, location) in locations.into_iter().enumerate().take(LOCATIONS_MAX) {
        match one(location) {
            Ok(location) if read.contains(&location) => {
                problems.push(format!("credentials[{index}]: is named twice"))
            }
            Ok(location) => read.push(location),
            Err(problem) => problems.push(format!("credentials[{index}]: {problem}")),
        }
    }
    Credentials::new(read)
}

fn one(location: LocationDocument) -> Result<CredentialLocation, String> {
    let named = match location {
        LocationDocument::Scheme(scheme) => {
            return match scheme.as_str() {
                "bearer" => Ok(CredentialLocation::Bearer),
                "basic" => Ok(CredentialLocation::Basic),
                _ => Err(unknown_name(&format!("{scheme:?} is not known"), &scheme, &ACCEPTED)),
            };
        }
        LocationDocument::Named(named) => named,
    };
    match (named.header, named.cookie, named.query) {
        (Some(header), None, None) if header.eq_ignore_ascii_case("authorization") => {
            Err("header: Authorization has several schemes; accepted: bearer and basic".to_owned())
        }
        (Some(header), None, None) => header
            .parse()
            .map(CredentialLocation::Header)
            .map_err(|_| format!("header: {header:?} is no name of a header, such as X-API-Key")),
        (None, Some(name), None) => plain(name, "cookie").map(CredentialLocation::Cookie),
        (None, None, Some(name)) => plain(name, "query").map(CredentialLocation::Query),
        _ => Err(format!("has no place, or several; accepted: {}", ACCEPTED.join(", "))),
    }
}
