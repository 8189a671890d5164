//! Files that are replaced as a whole or not at all, and files that are damaged: set aside for whoever wants to know why.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Nobody else's business: what is kept has keys in it, or the secret of their hashes.
pub(crate) const FILE_MODE: u32 = 0o600;
const BUFFER_BYTES: usize = 1 << 18;
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
