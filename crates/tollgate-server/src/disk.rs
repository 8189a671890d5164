//! Files that are replaced as a whole or not at all, and damaged files that are set aside for inspection.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(crate) use tollgate::policy::source::plain_cause;
pub(crate) use tollgate_gateway::disk::{answers, read, refusal, unreadable};

/// Readable by the owner only: the files contain keys, or the secret of their hashes.
pub(crate) const FILE_MODE: u32 = 0o600;
/// The mode of a directory, for the same reason.
pub(crate) const DIRECTORY_MODE: u32 = 0o700;
const BUFFER_BYTES: usize = 1 << 18;
/// Maximum number of damaged files of a name that are kept. A further one replaces the last.
pub(crate) const ASIDE_MAX: u32 = 5;

/// Why a file was not replaced. The previous one is still there.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {}", plain_cause(error))]
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
