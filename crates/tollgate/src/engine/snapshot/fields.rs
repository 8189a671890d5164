//! Numbers, texts and lists as bytes and back. The reader checks that every number is possible.

use crate::memory::NUMBERS_MAX;
use crate::policy::TEXT_BYTES_MAX;
use crate::time::Timestamp;

/// Bytes being written.
#[derive(Default)]
pub(super) struct FrameFields(Vec<u8>);

impl FrameFields {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn instant(&mut self, at: Timestamp) {
        self.u64(at.unix_micros());
    }

    /// Bytes as they are, to the end of the part.
    pub(super) fn rest(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.length(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    /// How many items follow. A length that does not fit does not fit a block either, which is then rejected.
    fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// A list, each of its items written by `write`.
    pub(super) fn list<I>(&mut self, items: I, mut write: impl FnMut(&mut Self, I::Item))
    where
        I: IntoIterator<IntoIter: ExactSizeIterator>,
    {
        let items = items.into_iter();
        self.length(items.len());
        items.for_each(|item| write(self, item));
    }

    /// An optional value.
    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Bytes still to be read. Errors are texts.
pub(super) struct Unread<'b>(&'b [u8]);

impl<'b> Unread<'b> {
    /// Reads all of these bytes.
    pub(super) fn whole<T>(
        bytes: &'b [u8],
        read: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut unread = Self(bytes);
        let value = read(&mut unread)?;
        if unread.is_empty() { Ok(value) } else { Err("a part is longer than its content".to_owned()) }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All remaining bytes.
    pub(super) const fn rest(&mut self) -> &'b [u8] {
        let rest = self.0;
        self.0 = &[];
        rest
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or("a part is shorter than its content")?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of at most `most`.
    pub(super) fn u64_to(&mut self, most: u64) -> Result<u64, String> {
        match self.u64()? {
            number if number <= most => Ok(number),
            number => Err(format!("{number} is more than {most}")),
        }
    }

    pub(super) fn instant(&mut self) -> Result<Timestamp, String> {
        self.u64_to(Timestamp::MAX.unix_micros()).map(Timestamp::from_unix_micros)
    }

    /// The number of a quota.
    pub(super) fn number(&mut self) -> Result<u32, String> {
        match self.u32()? {
            number if (number as usize) < NUMBERS_MAX => Ok(number),
            number => Err(format!("there is no quota number {number}")),
        }
    }

    /// How many items follow: no more than there are bytes, because each takes one at least.
    pub(super) fn length(&mut self) -> Result<usize, String> {
        let length = self.u32()? as usize;
        if length <= self.0.len() { Ok(length) } else { Err("a list is longer than its part".to_owned()) }
    }

    pub(super) fn text(&mut self) -> Result<&'b str, String> {
        let length = self.length()?;
        if length > TEXT_BYTES_MAX {
            return Err(format!("a text of {length} bytes"));
        }
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| "a text is not UTF-8".to_owned())
    }

    /// An optional value.
    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            other => Err(format!("neither there nor not there: {other}")),
        }
    }
}
