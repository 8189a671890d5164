//! Names of parameters in a query, in all spellings that frameworks read.

use std::borrow::Cow;

/// Whether any framework reads a parameter of this name.
pub(crate) fn is_named(query: &str, wanted: &str) -> bool {
    // No framework reads a name with a broken escape as this one.
    pieces(query).any(|piece| form_text(piece.name).is_some_and(|name| is_read_as(&name, wanted)))
}

/// The part after the first semicolon of a path, which some servers (Fastify 4) take for the query.
pub(crate) fn of_path(path: &str) -> &str {
    path.split_once(';').map_or("", |(_, parameters)| parameters)
}

/// A parameter of a query, as separated by `&` and `;`.
pub(crate) struct Piece<'q> {
    pub(crate) name: &'q str,
    pub(crate) value: &'q str,
    /// How many semicolons are between it and the last `&`.
    pub(crate) place: usize,
    /// Whether a semicolon follows before the next `&`.
    pub(crate) is_cut: bool,
}

/// The parameters of a query. Some frameworks split them at semicolons, too.
pub(crate) fn pieces(query: &str) -> impl Iterator<Item = Piece<'_>> {
    query.split('&').flat_map(|pair| {
        let is_cut = pair.contains(';');
        pair.split(';').enumerate().map(move |(place, piece)| {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            Piece { name, value, place, is_cut }
        })
    })
}

/// Whether some framework reads a name as another: with brackets around or behind it, in other case (ASP.NET), with
/// `.`, a space or an unclosed bracket for `_` or a space before it (PHP), or with a NUL behind it.
pub(crate) fn is_read_as(name: &str, wanted: &str) -> bool {
    if name == wanted {
        return true;
    }
    let name = name.split('\0').next().unwrap_or_default().trim_start();
    if is_same(name, wanted) {
        return true;
    }
    let mut parts = parts_of(name.trim_end());
    parts_of(wanted).all(|wanted| parts.next().is_some_and(|part| is_same(part, wanted)))
}

fn parts_of(name: &str) -> impl Iterator<Item = &str> {
    name.split(['[', ']']).filter(|part| !part.is_empty())
}

fn is_same(one: &str, other: &str) -> bool {
    let folded = |byte: u8| match byte {
        b' ' | b'.' | b'[' => b'_',
        _ => byte.to_ascii_lowercase(),
    };
    one.bytes().map(folded).eq(other.bytes().map(folded))
}

/// Decodes a name or a value as forms write it.
pub(crate) fn form_text(text: &str) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match (first, after) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) => {
                rest = after;
                escaped(*high, *low)?
            }
            (b'%', _) => return None,
            _ => first,
        });
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The byte that two hexadecimal digits encode.
pub fn escaped(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}
