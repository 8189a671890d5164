//! Files that are replaced as a whole or not at all, and damaged files that are set aside for inspection.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Readable by the owner only: the files contain keys, or the secret of their hashes.
pub(crate) const FILE_MODE: u32 = 0o600;
/// The mode of a directory, for the same reason.
pub(crate) const DIRECTORY_MODE: u32 = 0o700;
const BUFFER_BYTES: usize = 1 << 18;
/// Timeout for reading a file: a pipe without a writer, or a file system that hangs, would never end.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of damaged files of a name that are kept. A further one replaces the last.
pub(crate) const ASIDE_MAX: u32 = 5;

/// Why a file was not replaced. The previous one is still there.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {error}")]
pub(crate) struct DiskError {
    /// The step that failed.
    step: &'static str,
    /// The system's error.
    error: io::Error,
}

impl DiskError {
    /// An error of a step.
    pub(crate) fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { step, error }
    }
}

/// Reads a file. Of a larger file it reads only `bytes_max` bytes and one more, which is enough to refuse it. A pipe is
/// read to its end, so that another program can provide a secret or a config.
///
/// # Errors
/// When it cannot be read, or not within [`READ_TIMEOUT`].
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_within(path, bytes_max, READ_TIMEOUT)
}

fn read_within(path: &Path, bytes_max: u64, timeout: Duration) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    within(timeout, "no program writes to the pipe, or its file system does not answer", move || {
        let mut bytes = Vec::new();
        File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Checks that the file system of a path answers. One that hangs would stop the process for good.
///
/// # Errors
/// When it does not answer within [`READ_TIMEOUT`]. A path that is missing is no error.
pub(crate) fn answers(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    within(READ_TIMEOUT, "its file system does not answer", move || {
        let _ = fs::metadata(path); // Those who use the path report what is wrong with it.
        Ok(())
    })
}

/// Calls the system in a separate thread, because its calls have no deadline. A thread that hangs ends with the process.
fn within<T: Send + 'static>(
    timeout: Duration,
    cause: &str,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("tollgate-read".to_owned()).spawn(move || {
        let _ = sender.send(call()); // The receiver may have given up.
    })?;
    receiver.recv_timeout(timeout).unwrap_or_else(|_| {
        Err(io::Error::other(format!("not read within {} s: {cause}", timeout.as_secs())))
    })
}

/// Opens a regular file. A pipe or a device is refused without waiting for it.
///
/// # Errors
/// When it cannot be opened, or is not a regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Writes a temporary file, and renames it over the existing one.
///
/// # Errors
/// When writing fails, or `fill` returns an error.
pub(crate) fn replace<T, E: From<DiskError>>(
    directory: &Path,
    name: &str,
    fill: impl FnOnce(&mut BufWriter<&File>) -> Result<T, E>,
) -> Result<T, E> {
    // A temporary file that a crash leaves behind is never read.
    let temporary = directory.join(format!("{name}.tmp"));
    let written = filled(&temporary, fill).and_then(|filled| {
        fs::rename(&temporary, directory.join(name)).map_err(DiskError::at("putting it in place"))?;
        // The directory entry is synced too.
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(DiskError::at("waiting for the disk"))?;
        Ok(filled)
    });
    if written.is_err() {
        // On a full disk an incomplete file only wastes space. If removing it fails as well, the next attempt reports
        // why.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn filled<T, E: From<DiskError>>(
    temporary: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> Result<T, E>,
) -> Result<T, E> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(DiskError::at("removing what was left of the last attempt")(error).into());
        }
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(temporary);
    let file = file.map_err(DiskError::at("creating a file"))?;
    let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, &file);
    let filled = fill(&mut buffered)?;
    buffered.flush().map_err(DiskError::at("writing"))?;
    drop(buffered);
    // The existing file is replaced only after the new one is known to be on disk.
    file.sync_all().map_err(DiskError::at("waiting for the disk"))?;
    Ok(filled)
}

/// Renames a damaged file, and returns the new path.
///
/// # Errors
/// When it cannot be renamed.
pub(crate) fn set_aside(directory: &Path, name: &str) -> io::Result<PathBuf> {
    let named = |number| directory.join(format!("{name}.bad-{number}"));
    let aside = (1..ASIDE_MAX).map(named).find(|path| !path.exists()).unwrap_or_else(|| named(ASIDE_MAX));
    fs::rename(directory.join(name), &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use tollgate_testkit::Scratch;

    use super::*;

    fn pipe(scratch: &Scratch, name: &str) -> PathBuf {
        let path = scratch.path(name);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    /// A hung mount under `--state-dir` stopped a start for good, without a word.
    #[test]
    fn a_file_system_that_hangs_is_an_error() {
        let (_never, hangs) = mpsc::channel::<()>();
        let hung = within(Duration::from_millis(20), "its file system does not answer", move || {
            let _ = hangs.recv();
            Ok(())
        });
        assert!(hung.unwrap_err().to_string().ends_with("its file system does not answer"));
        let scratch = Scratch::new();
        answers(&scratch.path("missing")).unwrap();
    }

    /// Reading a pipe without a writer times out, and a pipe with a writer is read to its end.
    #[test]
    fn a_pipe_is_read_within_a_deadline() {
        let scratch = Scratch::new();
        let error =
            read_within(&pipe(&scratch, "silent"), 10, Duration::from_millis(20)).unwrap_err().to_string();
        assert!(error.contains("no program writes to the pipe"), "{error}");
        let path = pipe(&scratch, "written");
        let writing = path.clone();
        let writer = std::thread::spawn(move || fs::write(writing, "0123456789abc"));
        assert_eq!(read(&path, 10).unwrap(), b"0123456789a", "and one byte more than it may have");
        // The write may have failed because the reader closed.
        let _ = writer.join();
    }

    /// Only a regular file is opened.
    #[test]
    fn a_pipe_is_not_opened() {
        let scratch = Scratch::new();
        assert!(open(&pipe(&scratch, "pipe")).unwrap_err().to_string().contains("no regular file"));
        assert!(open(scratch.folder()).is_err());
        assert!(open(&scratch.write("file", "x")).is_ok());
        assert_eq!(open(&scratch.path("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
