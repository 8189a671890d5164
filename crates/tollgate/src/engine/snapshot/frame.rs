//! The blocks of a snapshot. Each has its kind, its length and a checksum of everything up to its end. So a block that
//! is changed, lost, moved or added is noticed before it is decoded, and so is a missing end.
//!
//! ```text
//! "tollgate" | version:32 | blocks…        each block: kind:8 | length:32 | payload | checksum:64
//! ```
//!
//! Numbers are little-endian. The checksum is CRC-64/XZ.

use std::io::{self, Read, Write};

use super::RestoreError;
use super::fields::FrameFields;

/// The format that is written, and the newest that is read. Format 1 lacks [`Block::CallerPart`], and format 2 lacks
/// [`Block::Wall`].
pub const VERSION: u32 = 3;
const VERSION_MIN: u32 = 1;
const MAGIC: &[u8; 8] = b"tollgate";
/// Largest block, and so the largest part of [`Snapshots::write_with`](super::Snapshots::write_with): one key may have
/// a million permits.
pub const BLOCK_BYTES_MAX: u32 = 32 << 20;

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Head = 1,
    Limit = 2,
    Gone = 3,
    Holds = 4,
    Words = 5,
    Pairs = 6,
    Large = 7,
    End = 8,
    CallerPart = 9,
    Wall = 10,
}

impl Block {
    fn of(byte: u8) -> Option<Self> {
        use Block::{CallerPart, End, Gone, Head, Holds, Large, Limit, Pairs, Wall, Words};
        let all = [Head, Limit, Gone, Holds, Words, Pairs, Large, End, CallerPart, Wall];
        all.into_iter().find(|block| *block as u8 == byte)
    }
}

/// Writes blocks.
pub(super) struct Frames<'w, W> {
    to: &'w mut W,
    sum: Checksum,
    bytes: u64,
    fields: FrameFields,
}

impl<'w, W: Write> Frames<'w, W> {
    pub(super) fn new(to: &'w mut W) -> io::Result<Self> {
        let mut frames = Self { to, sum: Checksum::default(), bytes: 0, fields: FrameFields::default() };
        frames.put(MAGIC)?;
        frames.put(&VERSION.to_le_bytes())?;
        Ok(frames)
    }

    /// Writes one block.
    pub(super) fn write(&mut self, block: Block, fill: impl FnOnce(&mut FrameFields)) -> io::Result<()> {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        fill(&mut fields);
        let length = u32::try_from(fields.bytes().len()).ok().filter(|&length| length <= BLOCK_BYTES_MAX);
        let length = length
            .ok_or_else(|| io::Error::other("a limit, a counter or a part is too large to be written"))?;
        self.put(&[block as u8])?;
        self.put(&length.to_le_bytes())?;
        self.put(fields.bytes())?;
        self.put(&self.sum.value().to_le_bytes())?;
        self.fields = fields;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.add(bytes);
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    /// Flushes the writer. Returns the number of bytes written.
    pub(super) fn finish(self) -> io::Result<u64> {
        self.to.flush()?;
        Ok(self.bytes)
    }
}

/// Reads blocks.
pub(super) struct Unframed<'r, R> {
    from: &'r mut R,
    sum: Checksum,
    bytes: u64,
    payload: Vec<u8>,
}

impl<'r, R: Read> Unframed<'r, R> {
    /// # Errors
    /// When it is no snapshot, or of another version.
    pub(super) fn new(from: &'r mut R) -> Result<Self, RestoreError> {
        let mut frames = Self { from, sum: Checksum::default(), bytes: 0, payload: Vec::new() };
        if frames.array::<8>()? != *MAGIC {
            return Err(RestoreError::NotASnapshot);
        }
        match u32::from_le_bytes(frames.array()?) {
            VERSION_MIN..=VERSION => Ok(frames),
            0 => Err(RestoreError::NotASnapshot),
            found => Err(RestoreError::TooNew { found }),
        }
    }

    /// The next block, after its checksum was verified.
    pub(super) fn next(&mut self) -> Result<(Block, Vec<u8>), RestoreError> {
        let [kind] = self.array()?;
        let length = u32::from_le_bytes(self.array()?);
        if length > BLOCK_BYTES_MAX {
            return Err(self.damaged("a part says that it is larger than any can be"));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        // The buffer grows with the bytes that arrive, not with the stated length.
        let read = self.from.take(u64::from(length)).read_to_end(&mut payload)?;
        self.bytes += read as u64;
        if read as u64 != u64::from(length) {
            return Err(RestoreError::Truncated { bytes: self.bytes });
        }
        self.sum.add(&payload);
        let expected = self.sum.value();
        if u64::from_le_bytes(self.array()?) != expected {
            return Err(self.damaged("a checksum is wrong"));
        }
        let block = Block::of(kind).ok_or_else(|| self.damaged("a part is of no known kind"))?;
        Ok((block, payload))
    }

    /// Verifies that nothing follows.
    pub(super) fn end(&mut self) -> Result<(), RestoreError> {
        let mut rest = [0];
        match self.from.read(&mut rest)? {
            0 => Ok(()),
            _ => Err(self.damaged("something follows its end")),
        }
    }

    pub(super) fn damaged(&self, what: impl Into<String>) -> RestoreError {
        RestoreError::Damaged { at: self.bytes, what: what.into() }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let mut bytes = [0; N];
        match self.from.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(RestoreError::Truncated { bytes: self.bytes });
            }
            Err(error) => return Err(error.into()),
        }
        self.sum.add(&bytes);
        self.bytes += N as u64;
        Ok(bytes)
    }
}

/// CRC-64/XZ of all bytes so far.
#[derive(Clone, Copy)]
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let index = usize::from(byte ^ self.0.to_le_bytes()[0]);
            self.0 = TABLE[index] ^ (self.0 >> 8);
        }
    }

    const fn value(self) -> u64 {
        !self.0
    }
}

/// The effect of each byte on the checksum.
static TABLE: [u64; 256] = table();

const fn table() -> [u64; 256] {
    const POLYNOMIAL: u64 = 0xC96C_5795_D787_0F42;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut word = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 { (word >> 1) ^ POLYNOMIAL } else { word >> 1 };
            bit += 1;
        }
        table[byte] = word;
        byte += 1;
    }
    table
}

/// Sets correct checksums in bytes that have the shape of a snapshot, so that fuzzing reaches the code behind them.
#[cfg(feature = "fuzzing")]
#[must_use]
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    let (mut sum, mut out) = (Checksum::default(), Vec::with_capacity(bytes.len()));
    let (head, mut rest) = bytes.split_at(bytes.len().min(MAGIC.len() + 4));
    out.extend_from_slice(head);
    sum.add(head);
    while let Some((kind_and_length, after)) = rest.split_first_chunk::<5>() {
        let [_, length @ ..] = *kind_and_length;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(0);
        let Some((payload, after)) = after.split_at_checked(length) else { break };
        let Some((_, after)) = after.split_first_chunk::<8>() else { break };
        for bytes in [kind_and_length.as_slice(), payload] {
            sum.add(bytes);
            out.extend_from_slice(bytes);
        }
        let value = sum.value().to_le_bytes();
        sum.add(&value);
        out.extend_from_slice(&value);
        rest = after;
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum is the published one, by its published check value.
    #[test]
    fn the_checksum_is_crc_64_xz() {
        let mut sum = Checksum::default();
        sum.add(b"123456789");
        assert_eq!(sum.value(), 0x995D_C9BB_DF19_39FA);
    }
}
