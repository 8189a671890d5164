//! Bytes of a log: from a file or a pipe, plain, gzip or zstd by their first bytes, with a count of what was read.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes of compressed input that are read at once.
const CHUNK: usize = 128 << 10;
/// Largest window of zstd: what `zstd` itself decodes without `--long`.
const ZSTD_WINDOW_MAX: u64 = 128 << 20;

/// The problem of a source that goes on after its compressed data, which is whole.
pub(super) const TRAILING: &str =
    "other bytes follow the compressed data; all of it was read, and they were ignored";

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
        Compression::Gzip => Box::new(GzipMembers::new(BufReader::with_capacity(CHUNK, whole))),
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

/// The text of all gzip members of a source, one after the other. As for `gzip`, zeros after them are padding.
struct GzipMembers<R>(Option<GzDecoder<R>>);

impl<R: BufRead> GzipMembers<R> {
    fn new(source: R) -> Self {
        Self(Some(GzDecoder::new(source)))
    }

    /// The member that follows, if one does.
    fn next(mut source: R) -> io::Result<Option<GzDecoder<R>>> {
        loop {
            let ahead = source.fill_buf()?;
            match ahead.iter().position(|byte| *byte != 0) {
                Some(0) if ahead[0] == 0x1F => return Ok(Some(GzDecoder::new(source))),
                Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, TRAILING)),
                None if ahead.is_empty() => return Ok(None),
                None => {
                    let padding = ahead.len();
                    source.consume(padding);
                }
            }
        }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            self.0 = self.0.take().map(GzDecoder::into_inner).map(Self::next).transpose()?.flatten();
        }
        Ok(0)
    }
}

/// An empty block that ends its frame, and a checksum, which is not compared. A decoder keeps the text that later blocks
/// may repeat until its frame ends.
const ZSTD_END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// The text of all zstd frames of a source, one after the other.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
    /// Why the frame ended early. It is returned after the text that was decoded before.
    problem: Option<io::Error>,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_MAX);
        Self { source, decoder, in_frame: false, problem: None }
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
                Err(error) => return Err(zstd_problem(&error)),
            }
        }
    }

    /// Decodes until there is text, or the frame ends.
    fn decode(&mut self) {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            let one = BlockDecodingStrategy::UptoBlocks(1);
            if let Err(error) = self.decoder.decode_blocks(&mut self.source, one) {
                self.problem = Some(zstd_problem(&error));
                // If even that fails, there is no text to give.
                let _ = self.decoder.decode_blocks(&ZSTD_END[..], BlockDecodingStrategy::UptoBlocks(1));
                return;
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
            if self.problem.is_none() {
                self.decode();
            }
            let read = self.decoder.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            if let Some(problem) = self.problem.take() {
                self.in_frame = false;
                return Err(problem);
            }
            self.leave()?;
        }
    }
}

/// A problem of the decoder: the source ended, or failed, or what it says is wrong.
fn zstd_problem(error: &FrameDecoderError) -> io::Error {
    if let FrameDecoderError::WindowSizeTooBig { requested, max } = error {
        let text = format!("a zstd frame needs a window of {requested} bytes; at most {max} are accepted");
        return io::Error::other(text);
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return io::Error::new(error.kind(), error.to_string());
        }
        cause = error.source();
    }
    io::Error::other("a zstd frame is wrong")
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

    /// The story: of a log that `zstd` itself compressed and that was cut short, nothing was read, and it was called
    /// damaged. All blocks before the cut are read, as `zstd -dc` does.
    #[test]
    fn a_cut_frame_gives_its_blocks() {
        let packed = include_bytes!("../../tests/data/blocks.log.zst");
        let line = |number: u32| format!("request {number:05}\n").repeat(10);
        let text: String = (0..5_000).map(line).collect();
        assert!(read(packed.to_vec()).0 == text.as_bytes());
        for (percent, blocks) in [(50, 2), (75, 3), (95, 5)] {
            let (read, outcome, _) = read(packed[..packed.len() * percent / 100].to_vec());
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{percent} %");
            assert!(text.as_bytes().starts_with(&read));
            assert_eq!(read.len(), blocks * (128 << 10), "{percent} %");
        }
        let mut wrong = packed.to_vec();
        wrong[packed.len() / 2..].fill(0xFF);
        let (read, outcome, _) = read(wrong);
        assert_eq!(outcome.unwrap_err().to_string(), "a zstd frame is wrong");
        assert!(text.as_bytes().starts_with(&read[..2 * (128 << 10)]));
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
    }

    /// The story: a whole gzip with other bytes behind it was called cut short. Zeros are padding, as for `gzip`.
    #[test]
    fn bytes_after_the_members_are_named() {
        for behind in [&b"garbage"[..], b"\x1e", b"\0\0x"] {
            let (read, outcome, _) = read([&gzip(b"a\n"), behind].concat());
            assert_eq!((&read[..], outcome.unwrap_err().to_string().as_str()), (&b"a\n"[..], TRAILING));
        }
        let (read, outcome, _) = read([&gzip(b"a\n")[..], &[0; 512]].concat());
        assert!(read == b"a\n" && outcome.is_ok(), "{outcome:?}");
    }
}
