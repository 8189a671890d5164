//! The fields of an answer in HPACK (RFC 7541), read for one fact: whether the call succeeded.
//!
//! Nothing is decoded for that. A text has one Huffman code, so `grpc-status` and `0` are recognised in either form
//! without decoding. No sizes are counted, because a server that follows the standard never refers to an entry that was
//! dropped from the table.

use std::collections::VecDeque;

use super::frame::Broken;

/// Entries of the static table. The entries of the connection follow, the latest first.
const STATIC_ENTRIES: usize = 61;
/// Maximum entries that can be referred to: the table has 4096 bytes by default, and each entry takes 32 and its text.
const RECENT_MAX: usize = 4096 / 32;
/// Maximum bytes of a number after the first.
const NUMBER_BYTES_MAX: u32 = 4;

const STATUS: [&[u8]; 2] = [b"grpc-status", &[0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f]];
const ZERO: [&[u8]; 2] = [b"0", &[0x07]];

/// The meaning of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// The call succeeded.
    Fine,
    /// The call failed.
    Failed,
    /// Something else.
    Other,
}

/// The fields of one connection. Their encoding refers to earlier fields.
#[derive(Debug, Default)]
pub(super) struct Fields {
    recent: VecDeque<Field>,
}

impl Fields {
    /// Reads a complete block. All blocks of the connection must be read, in order. Returns whether the call succeeded;
    /// `Other` if the block has no status.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Field, Broken> {
        let mut rest = block;
        let mut status = Field::Other;
        while let Some(&first) = rest.first() {
            let field = if first & 0x80 != 0 {
                let index = number(&mut rest, 7)?;
                self.entry(index)?
            } else if first & 0x40 != 0 {
                let field = self.literal(&mut rest, 6)?;
                self.recent.push_front(field);
                self.recent.truncate(RECENT_MAX);
                field
            } else if first & 0x20 != 0 {
                // The table's new size.
                number(&mut rest, 5)?;
                Field::Other
            } else {
                self.literal(&mut rest, 4)?
            };
            match field {
                Field::Other => {}
                // Of two statuses, the failed one counts.
                Field::Fine if status == Field::Failed => {}
                found => status = found,
            }
        }
        Ok(status)
    }

    fn entry(&self, index: usize) -> Result<Field, Broken> {
        match index.checked_sub(STATIC_ENTRIES + 1) {
            None if index == 0 => Err(Broken::Ill("a field without an index")),
            // The static table has no entry for the status of a call.
            None => Ok(Field::Other),
            Some(recent) => self.recent.get(recent).copied().ok_or(Broken::Ill("an unknown field index")),
        }
    }

    /// A field whose value, and perhaps its name, is a literal.
    fn literal(&self, rest: &mut &[u8], bits: u32) -> Result<Field, Broken> {
        let is_status = match number(rest, bits)? {
            0 => text_is(rest, STATUS)?,
            index => self.entry(index)? != Field::Other,
        };
        let is_zero = text_is(rest, ZERO)?;
        Ok(match (is_status, is_zero) {
            (false, _) => Field::Other,
            (true, true) => Field::Fine,
            (true, false) => Field::Failed,
        })
    }
}

/// Reads a number that begins in the low bits of the first byte.
fn number(rest: &mut &[u8], bits: u32) -> Result<usize, Broken> {
    const CUT: Broken = Broken::Ill("a number that is cut off");
    let (&first, mut after) = rest.split_first().ok_or(CUT)?;
    let most = (1 << bits) - 1;
    let mut value = usize::from(first) & most;
    if value == most {
        for place in 0.. {
            if place == NUMBER_BYTES_MAX {
                return Err(Broken::Ill("a number without end"));
            }
            let (&next, further) = after.split_first().ok_or(CUT)?;
            after = further;
            value += usize::from(next & 0x7f) << (7 * place);
            if next & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = after;
    Ok(value)
}

/// Reads a text, and returns whether it is this one, given as plain text and in Huffman code.
fn text_is(rest: &mut &[u8], [plain, huffman]: [&[u8]; 2]) -> Result<bool, Broken> {
    let is_huffman = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = number(rest, 7)?;
    let (text, after) = rest.split_at_checked(length).ok_or(Broken::Ill("a text that is cut off"))?;
    *rest = after;
    Ok(text == if is_huffman { huffman } else { plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(block: &[u8]) -> Result<Field, Broken> {
        Fields::default().read(block)
    }

    fn literal(first: u8, [name, value]: [(bool, &[u8]); 2]) -> Vec<u8> {
        let mut block = vec![first];
        for (is_huffman, text) in [name, value] {
            block.push(u8::from(is_huffman) << 7 | u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text);
        }
        block
    }

    /// A status is recognised in all its forms, and no other field is taken for one.
    #[test]
    fn a_status_is_recognised_in_every_form() {
        let (name, zero) = ([(false, STATUS[0]), (true, STATUS[1])], [(false, ZERO[0]), (true, ZERO[1])]);
        for first in [0x00, 0x10, 0x40] {
            for name in name {
                for zero in zero {
                    assert_eq!(read(&literal(first, [name, zero])), Ok(Field::Fine));
                }
                // 8 is RESOURCE_EXHAUSTED, and its Huffman code is 011110.
                for value in
                    [(false, &b"8"[..]), (true, &[0x7b]), (false, b""), (false, b"00"), (false, b"\x07")]
                {
                    assert_eq!(read(&literal(first, [name, value])), Ok(Field::Failed), "{value:?}");
                }
            }
            assert_eq!(read(&literal(first, [(false, b"grpc-statu"), zero[0]])), Ok(Field::Other));
            assert_eq!(read(&literal(first, [(false, STATUS[1]), zero[0]])), Ok(Field::Other));
        }
        assert_eq!(read(&[0x88]), Ok(Field::Other));
        let both = [literal(0, [name[0], (false, b"8")]), literal(0, [name[0], zero[0]])].concat();
        assert_eq!(read(&both), Ok(Field::Failed));
    }

    /// A field is later referred to by its distance from the latest.
    #[test]
    fn a_field_is_remembered() {
        let mut fields = Fields::default();
        let status = literal(0x40, [(true, STATUS[1]), (true, ZERO[1])]);
        assert_eq!(fields.read(&status), Ok(Field::Fine));
        assert_eq!(fields.read(&[0xbe]), Ok(Field::Fine));
        assert_eq!(fields.read(&[0xbf]), Err(Broken::Ill("an unknown field index")));
        // A new size of the table, and a date: index 33 of the static table.
        assert_eq!(fields.read(b"\x3f\xe1\x1f\x61\x03now"), Ok(Field::Other));
        assert_eq!(fields.read(&[0xbe]), Ok(Field::Other));
        assert_eq!(fields.read(&[0x88, 0xbe, 0xbf]), Ok(Field::Fine));
        // Its name with another value: index 63, without adding it to the table.
        assert_eq!(fields.read(b"\x0f\x30\x018"), Ok(Field::Failed));
        for _ in 0..RECENT_MAX {
            fields.read(b"\x61\x03now").unwrap();
        }
        assert_eq!(fields.recent.len(), RECENT_MAX);
    }

    /// A block that ends too early, or never, is refused.
    #[test]
    fn truncated_fields_are_refused() {
        let block = literal(0x40, [(true, STATUS[1]), (true, ZERO[1])]);
        for end in 1..block.len() {
            assert!(read(&block[..end]).is_err(), "{end}");
        }
        for block in
            [&b"\x80"[..], b"\xff", b"\xff\xff\xff\xff\xff\x00", b"\x00\x7f\xff\xff\xff\x7f", b"\xbe"]
        {
            assert!(read(block).is_err(), "{block:?}");
        }
    }
}
