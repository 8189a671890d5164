//! Numbers as values of headers, and lines of them. The same ones are sent again and again: what small quotas have left, the second at which a window ends.

use std::cell::RefCell;
use std::thread::LocalKey;

use http::header::HeaderValue;
use tollgate::headers::Line;

/// How many numbers are written ahead, from 0.
const SMALL: usize = 1_000;

/// All of them, of three digits each.
#[allow(clippy::cast_possible_truncation, reason = "each is one digit")]
const NUMBERS: &str = {
    const DIGITS: [u8; 3 * SMALL] = {
        let mut digits = [b'0'; 3 * SMALL];
        let mut number = 0;
        while number < SMALL {
            digits[3 * number] += (number / 100) as u8;
            digits[3 * number + 1] += (number / 10 % 10) as u8;
            digits[3 * number + 2] += (number % 10) as u8;
            number += 1;
        }
        digits
    };
    match std::str::from_utf8(&DIGITS) {
        Ok(text) => text,
        Err(_) => "",
    }
};

/// How many numbers and how many lines a thread remembers.
const REMEMBERED: usize = 64;

/// Values that a thread wrote last, each at its own place.
type Written<K> = RefCell<[(K, HeaderValue); REMEMBERED]>;

/// What a line says: which form it is of, what is left, and the seconds beside it.
type Said = (u64, u64, Option<u64>);

thread_local! {
    static NUMBERS_WRITTEN: Written<u64> =
        const { RefCell::new([const { (0, HeaderValue::from_static("0")) }; REMEMBERED]) };
    /// No form has the last number there is.
    static LINES_WRITTEN: Written<Said> =
        const { RefCell::new([const { ((u64::MAX, 0, None), HeaderValue::from_static("")) }; REMEMBERED]) };
}

/// A number as a header's value.
#[inline]
pub(crate) fn value(number: u64) -> HeaderValue {
    match usize::try_from(number) {
        Ok(small @ 0..SMALL) => {
            let skipped = if small < 10 { 2 } else { usize::from(small < 100) };
            HeaderValue::from_static(NUMBERS.get(3 * small + skipped..3 * small + 3).unwrap_or_default())
        }
        _ => remembered(&NUMBERS_WRITTEN, number, number, || {
            // Digits are always sendable.
            HeaderValue::from_bytes(itoa::Buffer::new().format(number).as_bytes())
                .unwrap_or(HeaderValue::from_static("0"))
        }),
    }
}

/// A line about a quota as a header's value. What is left of it says where it is remembered: callers of a limit differ in that.
#[inline]
pub(crate) fn line(said: Said, write: impl Fn() -> Line) -> HeaderValue {
    remembered(&LINES_WRITTEN, said.0.wrapping_add(said.1), said, || {
        // A form writes printable text, so it is always sendable.
        HeaderValue::from_bytes(write().as_bytes()).unwrap_or(HeaderValue::from_static(""))
    })
}

/// A value that was written before, or is now.
#[inline]
fn remembered<K: PartialEq + Copy>(
    written: &'static LocalKey<Written<K>>,
    place: u64,
    key: K,
    write: impl Fn() -> HeaderValue,
) -> HeaderValue {
    let before = written.try_with(|written| {
        let mut written = written.try_borrow_mut().ok()?;
        #[allow(clippy::cast_possible_truncation, reason = "what is cut off is not looked at")]
        let slot = written.get_mut(place as usize % REMEMBERED)?;
        if slot.0 != key {
            *slot = (key, write());
        }
        Some(slot.1.clone())
    });
    // A thread that ends remembers nothing.
    before.ok().flatten().unwrap_or_else(write)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A number is written as everybody writes it, however often it was asked for, and whatever was before.
        #[test]
        fn numbers_are_written_in_decimal(
            numbers in prop::collection::vec(prop_oneof![0..2_000u64, 1_000..1_100u64, any::<u64>()], 1..200)
        ) {
            for number in numbers {
                let (value, wanted) = (value(number), number.to_string());
                prop_assert_eq!(value.to_str().unwrap(), wanted.as_str());
            }
        }
    }

    /// A line is what its form wrote for these numbers, though lines of other forms and numbers are remembered at the same place.
    #[test]
    fn lines_are_those_of_their_form() {
        use tollgate::headers::{Form, HeaderPolicy};
        use tollgate::{Answer, Audience, CheckRequest, Engine, ManualClock, Policy};
        let now = ManualClock::new().now();
        let policy = HeaderPolicy { anonymous: tollgate::headers::Exposure::Full, ..HeaderPolicy::default() };
        let forms: Vec<_> = ["one", "two"]
            .into_iter()
            .map(|name| {
                let file = format!("limits: [{{name: {name}, rate: 200/h}}]");
                let engine = Engine::new(Policy::compile("policy.yaml", file.as_bytes()).unwrap().0, now);
                let decisions: Vec<_> =
                    (0..150).map(|_| engine.check_now(&CheckRequest::new(), now)).collect();
                let answer = Answer::of(&decisions[0], &policy, Audience::default(), now);
                (Form::of(&decisions[0], &answer, &policy, now).unwrap(), decisions)
            })
            .collect();
        for _ in 0..2 {
            for index in 0..150 {
                for (serial, (form, decisions)) in forms.iter().enumerate() {
                    let numbers = form.numbers(&decisions[index].limits().next().unwrap(), now);
                    let said = (serial as u64, numbers.remaining, numbers.effective);
                    let written = line(said, || form.rate_limit(&numbers));
                    assert_eq!(written.as_bytes(), form.rate_limit(&numbers).as_bytes());
                }
            }
        }
    }
}
