//! The callers file of a running server: read at the start, watched like the policy, and replaced only by a valid
//! version. While the file is wrong the previous callers stay known, and `/readyz`, the log and the metrics show it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate::Timestamp;
use tollgate_tower::attributes::Reader;
use tollgate_tower::attributes::callers::{ActiveCallers, CALLERS_BYTES_MAX, Callers};

use crate::disk;
use crate::file_watch::{FileWords, Reloadable, ReloadableFiles};

const WORDS: FileWords = FileWords { were: "the callers file was", stay: "stay known" };

/// A callers file, and its known callers.
pub(crate) struct CallersFile {
    path: PathBuf,
    /// Attributes that the config reads from requests. A caller cannot define them as well.
    mapped: Vec<String>,
    active: ActiveCallers,
    files: ReloadableFiles,
}

impl CallersFile {
    /// Reads the file, for a server that reads requests with `reader`.
    ///
    /// # Errors
    /// When it cannot be read. The message says what would be accepted.
    pub(crate) fn open(path: &Path, reader: &Reader, now: Timestamp) -> Result<Arc<Self>, String> {
        let mapped: Vec<String> = reader.mapped.iter().map(|mapped| mapped.name.clone()).collect();
        let files = ReloadableFiles::new(WORDS, vec![path.to_owned()], now);
        let active = ActiveCallers::new(load(path, &mapped)?);
        Ok(Arc::new(Self { path: path.to_owned(), mapped, active, files }))
    }

    /// The known callers, now and after every reload.
    pub(crate) fn active(&self) -> ActiveCallers {
        self.active.clone()
    }

    /// The number of known callers.
    pub(crate) fn known(&self) -> usize {
        self.active.now().len()
    }
}

impl Reloadable for CallersFile {
    fn files(&self) -> &ReloadableFiles {
        &self.files
    }

    fn load(&self) -> Result<String, String> {
        self.active.replace(load(&self.path, &self.mapped)?);
        Ok(format!(", {} known", self.known()))
    }
}

/// The callers of a file.
fn load(path: &Path, mapped: &[String]) -> Result<Callers, String> {
    let callers =
        Callers::read(&path.display().to_string(), &read(path)?).map_err(|findings| findings.to_string())?;
    if let Some(name) = mapped.iter().find(|name| callers.gives(name)) {
        return Err(format!(
            "{}: callers have the attribute {name}, and `attributes` of the config reads it from requests; accepted: one of the two",
            path.display()
        ));
    }
    Ok(callers)
}

/// The bytes of a callers file, up to one byte more than its maximum size.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let most = u64::try_from(CALLERS_BYTES_MAX).unwrap_or(u64::MAX);
    disk::read(path, most).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{}: no such file; `tollgate callers add` makes one", path.display())
        }
        _ => disk::unreadable(path, &error),
    })
}
