//! The files of a directory, as a mounted configuration has them.

use std::fs;
use std::path::{Path, PathBuf};

use super::{PolicyFileError, unreadable};
use tollgate_compat::{Format, Source};

/// Most files in a directory.
const FILES_MAX: usize = 1_000;
/// Deepest directory inside a directory.
const DEPTH_MAX: usize = 8;

/// Reads every file in a directory and below, in the order of their names. Those whose name begins with a dot are left out: a
/// mounted ConfigMap has everything twice, once under such a name.
pub(super) fn read(path: &Path) -> Result<Vec<Source>, PolicyFileError> {
    let mut files = Vec::new();
    collect(path, 0, &mut files)?;
    if files.len() > FILES_MAX {
        let reason = format!("more than {FILES_MAX} files in this directory");
        let name = path.display().to_string();
        return Err(PolicyFileError::Unreadable { name, reason, cure: "name one with fewer" });
    }
    files.iter().map(|file| super::read(file)).collect()
}

fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), PolicyFileError> {
    let name = || path.display().to_string();
    if depth > DEPTH_MAX {
        let reason = format!("more than {DEPTH_MAX} directories inside each other");
        return Err(PolicyFileError::Unreadable {
            name: name(),
            reason,
            cure: "put the files nearer to the top",
        });
    }
    let entries = fs::read_dir(path).map_err(|error| unreadable(name(), &error))?;
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(name(), &error))?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, depth + 1, files)?;
        } else if path.is_file() {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            break;
        }
    }
    Ok(())
}

/// A directory without files.
pub(super) fn empty(name: &str) -> PolicyFileError {
    let reason = "there is no file in this directory".to_owned();
    PolicyFileError::Unreadable {
        name: name.to_owned(),
        reason,
        cure: "name a file, or a directory with one",
    }
}

/// Several files of our own format.
pub(super) fn several(name: &str, files: usize) -> PolicyFileError {
    let reason = format!("there are {files} files in this directory");
    PolicyFileError::Unreadable { name: name.to_owned(), reason, cure: "a policy is one file: name it" }
}

/// Files of different formats.
pub(super) fn mixed(name: &str, one: (&Source, Format), other: (&Source, Format)) -> PolicyFileError {
    let (one, of_one, other, of_other) = (&one.0.name, one.1.name(), &other.0.name, other.1.name());
    let reason = format!("its files have different formats: {one} ({of_one}) and {other} ({of_other})");
    PolicyFileError::Unreadable {
        name: name.to_owned(),
        reason,
        cure: "name a directory whose files have one format",
    }
}
