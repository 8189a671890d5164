//! JSON in which nothing is named twice. Which of two values counts, every reader decides for itself, so that none is priced.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json};

/// An object in which no name is given twice, at any depth.
#[derive(Debug, Default)]
pub(super) struct Once(pub(super) Map<String, Json>);

impl<'d> Deserialize<'d> for Once {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        match Value::deserialize(from)?.0 {
            Json::Object(object) => Ok(Self(object)),
            _ => Err(D::Error::custom("no JSON object")),
        }
    }
}

/// Any value of which that holds.
struct Value(Json);

impl<'d> Deserialize<'d> for Value {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reading).map(Self)
    }
}

struct Reading;

impl<'d> Visitor<'d> for Reading {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON in which nothing is named twice")
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
        while let Some(Value(value)) = from.next_element()? {
            list.push(value);
        }
        Ok(Json::Array(list))
    }

    fn visit_map<A: MapAccess<'d>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut object = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("{name:.64} is given twice; send it once")));
            }
            let Value(value) = from.next_value()?;
            object.insert(name, value);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is named once is read as any reader would, and nothing is named twice, however deep.
    #[test]
    fn nothing_is_named_twice() {
        let text = r#"{"a":{"b":[1,-2,0.5,null,true,"x",{"a":1}]},"b":{}}"#;
        let expected: Map<String, Json> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::from_str::<Once>(text).unwrap().0, expected);
        for twice in [r#"{"n":1000,"n":1}"#, r#"{"a":[{"b":{"n":1,"\u006e":2}}]}"#, "[]", "null", "1"] {
            assert!(serde_json::from_str::<Once>(twice).is_err(), "{twice}");
        }
    }
}
