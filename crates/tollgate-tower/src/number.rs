//! Numbers as values of headers. The same ones are sent again and again: what small quotas have left, the second at which a window ends.

use std::cell::RefCell;

use http::header::HeaderValue;

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

/// How many numbers a thread remembers.
const REMEMBERED: usize = 64;

thread_local! {
    /// The numbers that this thread wrote last, each at its own place.
    static WRITTEN: RefCell<[(u64, HeaderValue); REMEMBERED]> =
        const { RefCell::new([const { (0, HeaderValue::from_static("0")) }; REMEMBERED]) };
}

/// A number as a header's value.
#[inline]
pub(crate) fn value(number: u64) -> HeaderValue {
    match usize::try_from(number) {
        Ok(small @ 0..SMALL) => {
            let skipped = if small < 10 { 2 } else { usize::from(small < 100) };
            HeaderValue::from_static(NUMBERS.get(3 * small + skipped..3 * small + 3).unwrap_or_default())
        }
        _ => large(number),
    }
}

fn large(number: u64) -> HeaderValue {
    let remembered = WRITTEN.try_with(|written| {
        let mut written = written.try_borrow_mut().ok()?;
        #[allow(clippy::cast_possible_truncation, reason = "what is cut off is not looked at")]
        let place = written.get_mut(number as usize % REMEMBERED)?;
        if place.0 != number {
            *place = (number, write(number));
        }
        Some(place.1.clone())
    });
    // A thread that ends remembers nothing.
    remembered.ok().flatten().unwrap_or_else(|| write(number))
}

#[cold]
fn write(number: u64) -> HeaderValue {
    // Digits are always sendable.
    HeaderValue::from_bytes(itoa::Buffer::new().format(number).as_bytes())
        .unwrap_or(HeaderValue::from_static("0"))
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
}
