//! Files that are replaced as a whole or not at all, and files that are damaged: set aside for whoever wants to know why.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Nobody else's business: what is kept has keys in it, or the secret of their hashes.
pub(crate) const FILE_MODE: u32 = 0o600;
/// The same for a directory.
pub(crate) const DIRECTORY_MODE: u32 = 0o700;
const BUFFER_BYTES: usize = 1 << 18;
/// How long a file may take to be read: a pipe that no program writes to, and a file system that hangs, would never end.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Most damaged files of a name that are kept; a further one takes the place of the last.
pub(crate) const ASIDE_MAX: u32 = 5;

/// Why a file was not replaced. The one before is still there.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {error}")]
pub(crate) struct DiskError {
    /// What was tried.
    step: &'static str,
    /// What the system says.
    error: io::Error,
}

impl DiskError {
    /// What went wrong at a step.
    pub(crate) fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { step, error }
    }
}

/// Reads a file, of a larger one only `bytes_max` bytes and one more: enough to refuse it. A pipe is read to its end, so that a secret
/// or a config may come from another program.
///
/// # Errors
/// When it cannot be read, or not within [`READ_TIMEOUT`].
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_within(path, bytes_max, READ_TIMEOUT)
}

fn read_within(path: &Path, bytes_max: u64, timeout: Duration) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    // A thread of its own, since neither opening nor reading has a deadline. One that hangs ends with the process.
    std::thread::Builder::new().name("tollgate-read".to_owned()).spawn(move || {
        let mut bytes = Vec::new();
        let read = File::open(path)
            .and_then(|file| file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes))
            .map(|_| bytes);
        let _ = sender.send(read); // The reader may have given up.
    })?;
    receiver.recv_timeout(timeout).unwrap_or_else(|_| {
        let seconds = timeout.as_secs();
        Err(io::Error::other(format!(
            "not read within {seconds} s: no program writes to the pipe, or its file system does not answer"
        )))
    })
}

/// Opens a file that is to be a regular one. A pipe or a device in its place is refused, not waited for.
///
/// # Errors
/// When it cannot be opened, or is something else.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Writes a file beside the one that is there, and then puts it in its place.
///
/// # Errors
/// When the disk does not take it, or whoever fills it has nothing to write.
pub(crate) fn replace<T, E: From<DiskError>>(
    directory: &Path,
    name: &str,
    fill: impl FnOnce(&mut BufWriter<&File>) -> Result<T, E>,
) -> Result<T, E> {
    // What a crash leaves of it is never read.
    let temporary = directory.join(format!("{name}.tmp"));
    let written = filled(&temporary, fill).and_then(|filled| {
        fs::rename(&temporary, directory.join(name)).map_err(DiskError::at("putting it in place"))?;
        // And the name, too.
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(DiskError::at("waiting for the disk"))?;
        Ok(filled)
    });
    if written.is_err() {
        // A full disk is not helped by half a file. If that fails, too, the next attempt will say why.
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
    // Only what is known to be on the disk takes the place of what is.
    file.sync_all().map_err(DiskError::at("waiting for the disk"))?;
    Ok(filled)
}

/// Gives a damaged file another name, and tells which.
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

    /// A pipe that no program writes to is given up in time, and one that a program writes to is read to its end.
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
        // It may have been cut off.
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
