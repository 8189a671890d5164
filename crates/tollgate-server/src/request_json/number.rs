//! The values inside a question: whole numbers within a range, and attributes that are text or whole numbers.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The value of an attribute, as it was given.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Given<'b> {
    Text(Cow<'b, str>),
    Number(i64),
}

/// A whole number within a range.
#[derive(Clone, Copy)]
pub(super) struct NumberRange {
    pub(super) least: u64,
    pub(super) most: u64,
}

impl NumberRange {
    fn refuse<E: Error>(self, what: impl fmt::Display) -> E {
        E::custom(format_args!(
            "{what} is not accepted; accepted: a whole number from {} to {}",
            self.least, self.most
        ))
    }
}

impl<'de> DeserializeSeed<'de> for NumberRange {
    type Value = u64;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NumberRange {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {} to {}", self.least, self.most)
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        if (self.least..=self.most).contains(&number) { Ok(number) } else { Err(self.refuse(number)) }
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        Err(self.refuse(number))
    }
    fn visit_f64<E: Error>(self, number: f64) -> Result<u64, E> {
        match whole(number).and_then(|whole| u64::try_from(whole).ok()) {
            Some(whole) => self.visit_u64(whole),
            None => Err(self.refuse(format_args!("{number:?}"))),
        }
    }
    fn visit_str<E: Error>(self, _text: &str) -> Result<u64, E> {
        Err(self.refuse("text"))
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<u64, E> {
        Err(self.refuse(value))
    }
    fn visit_unit<E: Error>(self) -> Result<u64, E> {
        Err(self.refuse("null"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, _items: A) -> Result<u64, A::Error> {
        Err(self.refuse("an array"))
    }
    fn visit_map<A: MapAccess<'de>>(self, _map: A) -> Result<u64, A::Error> {
        Err(self.refuse("an object"))
    }
}

/// The whole number that was written with a fraction of zero or an exponent, such as 1.0 or 1e3: to JSON it is the same number.
pub(crate) fn whole(number: f64) -> Option<i64> {
    // Numbers beyond the integer's range, and only those, are read as 2^63 or more.
    const END: f64 = 9_223_372_036_854_775_808.0;
    let is_whole = number.trunc().to_bits() == number.to_bits() && number.abs() < END;
    #[allow(clippy::cast_possible_truncation, reason = "it is whole, and within what the integer holds")]
    is_whole.then_some(number as i64)
}

/// The value of an attribute.
pub(super) struct AttributeValue;

fn refuse<E: Error>(what: impl fmt::Display) -> E {
    E::custom(format_args!(
        "{what} is not accepted; accepted: text and whole numbers from {} to {}",
        i64::MIN,
        i64::MAX
    ))
}

impl<'de> DeserializeSeed<'de> for AttributeValue {
    type Value = Given<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AttributeValue {
    type Value = Given<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a whole number")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Given::Text(Cow::Borrowed(text)))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Given::Text(Cow::Owned(text.to_owned())))
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Given::Number(number))
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        i64::try_from(number).map(Given::Number).map_err(|_| refuse(number))
    }
    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        match whole(number) {
            Some(whole) => Ok(Given::Number(whole)),
            None => Err(refuse(format_args!("{number:?}"))),
        }
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        // Limits compare text, so a policy can say `beta: "true"`; which of the two was meant is the caller's to say.
        Err(E::custom(format_args!(
            "{value} is not accepted; accepted: text, such as \"{value}\", and whole numbers"
        )))
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Err(E::custom("null is not accepted; leave out what is not known"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, _items: A) -> Result<Self::Value, A::Error> {
        Err(refuse("an array"))
    }
    fn visit_map<A: MapAccess<'de>>(self, _map: A) -> Result<Self::Value, A::Error> {
        Err(refuse("an object"))
    }
}
