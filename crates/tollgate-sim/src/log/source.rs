//! Bytes of a log: from a file or a pipe, plain, gzip or zstd by their first bytes, with a count of what was read.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes of compressed input that are read at once.
const CHUNK: usize = 128 << 10;
/// Largest window of zstd: what `zstd` itself decodes without `--long`.
const ZSTD_WINDOW_MAX: u64 = 128 << 20;

/// A source of bytes.
pub(super) type Source = Box<dyn Read + Send>;

/// Counts the bytes that pass.
struct Counted {
    inner: Source,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        // The count is only shown; no other memory depends on it.
        self.count.fetch_add(u64::try_from(read).unwrap_or(0), Ordering::Relaxed);
        Ok(read)
    }
}

/// The text of a source, decompressed if it is compressed. `count` follows the bytes that are read from the source.
pub(super) fn decompressed(source: Source, count: Arc<AtomicU64>) -> io::Result<Source> {
    let mut source = Counted { inner: source, count };
    let mut magic = Vec::with_capacity(4);
    Read::by_ref(&mut source).take(4).read_to_end(&mut magic)?;
    let compression = Compression::of(&magic);
    let whole = Cursor::new(magic).chain(source);
    Ok(match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK, whole))),
        Compression::Zstd => Box::new(ZstdFrames::new(BufReader::with_capacity(CHUNK, whole))),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    fn of(magic: &[u8]) -> Self {
        match magic {
            [0x1F, 0x8B, ..] => Self::Gzip,
            [0x28, 0xB5, 0x2F, 0xFD] | [0x50..=0x5F, 0x2A, 0x4D, 0x18] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// The text of all zstd frames of a source, one after the other.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_MAX);
        Self { source, decoder, in_frame: false }
    }

    /// Enters the next frame that has text. False at the end of the source.
    fn enter(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = Read::by_ref(&mut self.source).take(u64::from(length));
                    if io::copy(&mut skipped, &mut io::sink())? < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Compares the checksum of a frame that is read, if it has one.
    fn leave(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let (written, computed) =
            (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        if written.is_some() && written != computed {
            return Err(io::Error::other("the checksum of a zstd frame is wrong"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.enter()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
            }
            let read = self.decoder.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            self.leave()?;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    /// The bytes as gzip.
    pub(in crate::log) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// The bytes as zstd.
    pub(in crate::log) fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn read(bytes: Vec<u8>) -> (Vec<u8>, io::Result<usize>, u64) {
        let count = Arc::new(AtomicU64::new(0));
        let mut source = decompressed(Box::new(Cursor::new(bytes)), Arc::clone(&count)).unwrap();
        let mut text = Vec::new();
        let outcome = source.read_to_end(&mut text);
        (text, outcome, count.load(Ordering::Relaxed))
    }

    #[test]
    fn compression_is_found_by_the_first_bytes() {
        let text = b"one line\n".repeat(40_000);
        let skippable = [&b"\x50\x2A\x4D\x18\x03\0\0\0abc"[..], &zstd(&text)].concat();
        for packed in [text.clone(), gzip(&text), zstd(&text), skippable] {
            let size = u64::try_from(packed.len()).unwrap();
            let (read, outcome, count) = read(packed);
            assert!(read == text && outcome.is_ok(), "{outcome:?}");
            assert_eq!(count, size);
        }
        for short in [&b""[..], b"a", b"\x28"] {
            assert_eq!(read(short.to_vec()).0, short);
        }
    }

    /// Rotation appends members and frames to a file; all of them are read.
    #[test]
    fn members_and_frames_in_a_row() {
        let both = [gzip(b"a\n"), gzip(b"b\n")].concat();
        assert_eq!(read(both).0, b"a\nb\n");
        let both = [zstd(b"a\n"), zstd(b""), zstd(b"b\n")].concat();
        assert_eq!(read(both).0, b"a\nb\n");
    }

    /// A truncated source is an error after the text that could be read.
    #[test]
    fn cut_streams_are_errors() {
        let text: Vec<u8> =
            (0..200_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for packed in [gzip(&text), zstd(&text)] {
            let (read, outcome, _) = read(packed[..packed.len() / 2].to_vec());
            assert!(outcome.is_err() && !read.is_empty() && text.starts_with(&read));
        }
        let mut packed = gzip(&text);
        packed.extend_from_slice(b"garbage");
        let (read, outcome, _) = read(packed);
        assert!(outcome.is_err() && read == text);
    }
}
