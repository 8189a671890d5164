//! JSON without duplicate names. Parsers differ in which of two values they take, so duplicates are refused.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json};

/// An object without duplicate names, at any depth.
#[derive(Debug, Default)]
pub struct UniqueJson(pub Map<String, Json>);

impl<'d> Deserialize<'d> for UniqueJson {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        match UniqueValue::deserialize(from)?.0 {
            Json::Object(object) => Ok(Self(object)),
            _ => Err(D::Error::custom("no JSON object")),
        }
    }
}

/// A value without duplicate names, at any depth.
#[derive(Debug)]
pub struct UniqueValue(pub Json);

impl<'d> Deserialize<'d> for UniqueValue {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UniqueJsonVisitor).map(Self)
    }
}

struct UniqueJsonVisitor;

impl<'d> Visitor<'d> for UniqueJsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without duplicate names")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'d>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueValue(value)) = from.next_element()? {
            list.push(value);
        }
        Ok(Json::Array(list))
    }

    fn visit_map<A: MapAccess<'d>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut object = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("{name:.64?} is given twice; give it once")));
            }
            let UniqueValue(value) = from.next_value()?;
            object.insert(name, value);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document without duplicate names is read as usual. A duplicate is refused in any spelling, and named.
    #[test]
    fn duplicate_names_are_refused_at_any_depth() {
        let text = r#"{"a":{"b":[1,-2,0.5,null,true,"x",{"a":1}]},"b":{}}"#;
        let expected: Map<String, Json> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::from_str::<UniqueJson>(text).unwrap().0, expected);
        for twice in [r#"{"n":1000,"n":1}"#, r#"{"a":[{"b":{"n":1,"\u006e":2}}]}"#, "[]", "null", "1"] {
            assert!(serde_json::from_str::<UniqueJson>(twice).is_err(), "{twice}");
        }
        for text in [text, "7", "[]"] {
            let value: UniqueValue = serde_json::from_str(text).unwrap();
            assert_eq!(value.0, serde_json::from_str::<Json>(text).unwrap());
        }
        let refused = serde_json::from_str::<UniqueValue>(r#"[{"b":{"a":1,"\u0061":2}}]"#).unwrap_err();
        assert!(refused.to_string().contains("\"a\" is given twice"), "{refused}");
        assert!(serde_json::from_str::<UniqueValue>(&"[".repeat(100_000)).is_err());
    }
}
