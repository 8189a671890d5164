//! JSON in which no object has a key twice: one of two values would be ignored, and another program might ignore the
//! other one.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Maximum number of characters of a key that an error echoes.
const SHOWN_CHARS: usize = 64;

/// Reads one document.
///
/// # Errors
/// When it is not JSON, or has a key twice.
pub(super) fn value(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Distinct.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Reads one value.
struct Distinct;

impl<'de> DeserializeSeed<'de> for Distinct {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Distinct {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(truth.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Distinct)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if object.contains_key(&name) {
                let shown: String = name.chars().take(SHOWN_CHARS).collect();
                return Err(A::Error::custom(format_args!("{shown:?} is given twice; give it once")));
            }
            object.insert(name, fields.next_value_seed(Distinct)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document without duplicate keys is read as usual. A duplicate key is refused, at any depth and in any
    /// spelling.
    #[test]
    fn a_key_is_given_once() {
        for text in [r#"{"a":[1,-2,3.5,null,true,"x",{"a":{}}],"b":{"a":1}}"#, "7", "[]"] {
            assert_eq!(value(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            assert!(
                value(text.as_bytes()).unwrap_err().to_string().contains("\"a\" is given twice"),
                "{text}"
            );
        }
        assert!(value(b"{} {}").is_err() && value(b"").is_err());
        assert!(value("[".repeat(100_000).as_bytes()).is_err());
    }
}
