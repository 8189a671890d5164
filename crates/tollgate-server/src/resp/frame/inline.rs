//! Inline commands, as a person types them into telnet: words, or quoted texts with escapes, as in redis.

use super::{ARGUMENTS_MAX, ArgumentSpan, FrameError, place};

/// The first words of an HTTP request or of a header line. None of them is a command here. A web page wrote what
/// follows them, so none of it may be executed.
const HTTP_WORDS: [&[u8]; 10] =
    [b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"TRACE", b"Host:"];

/// Splits a line. The arguments are appended to `bytes`, and their spans to `spans`.
pub(super) fn read(
    line: &[u8],
    spans: &mut Vec<ArgumentSpan>,
    bytes: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        if spans.len() == ARGUMENTS_MAX {
            return Err(FrameError::Arguments);
        }
        let start = bytes.len();
        rest = argument(rest, bytes)?.trim_ascii_start();
        spans.push((place(start), place(bytes.len())));
        let word = bytes.get(start..).unwrap_or_default();
        if spans.len() == 1 && HTTP_WORDS.iter().any(|http| http.eq_ignore_ascii_case(word)) {
            return Err(FrameError::Http);
        }
    }
    Ok(())
}

/// Reads one argument. The rest starts with a space, or is empty.
fn argument<'l>(line: &'l [u8], bytes: &mut Vec<u8>) -> Result<&'l [u8], FrameError> {
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | 0 => return Ok(after),
            b'"' => return ended(double_quoted(after, bytes)?),
            b'\'' => return ended(single_quoted(after, bytes)?),
            _ => bytes.push(byte),
        }
    }
    Ok(rest)
}

/// A closing quote must be followed by a space, or by nothing.
fn ended(rest: &[u8]) -> Result<&[u8], FrameError> {
    match rest.first() {
        Some(byte) if !byte.is_ascii_whitespace() => Err(FrameError::Quotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'l>(line: &'l [u8], bytes: &mut Vec<u8>) -> Result<&'l [u8], FrameError> {
    let mut rest = line;
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(hexadecimal(*high) << 4 | hexadecimal(*low));
                after
            }
            [b'\\', escaped, after @ ..] => {
                bytes.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [b'"', after @ ..] => return Ok(after),
            [byte, after @ ..] => {
                bytes.push(*byte);
                after
            }
            [] => return Err(FrameError::Quotes),
        };
    }
}

fn single_quoted<'l>(line: &'l [u8], bytes: &mut Vec<u8>) -> Result<&'l [u8], FrameError> {
    let mut rest = line;
    loop {
        rest = match rest {
            [b'\\', b'\'', after @ ..] => {
                bytes.push(b'\'');
                after
            }
            [b'\'', after @ ..] => return Ok(after),
            [byte, after @ ..] => {
                bytes.push(*byte);
                after
            }
            [] => return Err(FrameError::Quotes),
        };
    }
}

/// The value of a hexadecimal digit.
fn hexadecimal(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.to_ascii_uppercase().wrapping_sub(b'A').wrapping_add(10),
    }
}
