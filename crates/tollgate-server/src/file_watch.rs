//! Files that are watched while the server runs: the bytes of a file, or of everything in a directory, and the version
//! that names them. Symbolic links are followed, so a ConfigMap that Kubernetes swaps is seen by its target. `look`
//! bounds how long a disk may take.

use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring::digest::{Context, SHA256};

use crate::disk;

mod disk_task;
mod reloadable;

pub(crate) use disk_task::{DISK_TIMEOUT, DiskTask, DiskTaskOutcome};
pub(crate) use reloadable::{FileStatus, FileWords, Reloadable, ReloadableFiles, reload_files};

/// Maximum files of a directory, and its maximum depth: enough for a policy, and too few for a home directory that was
/// named by mistake.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 8;
/// Maximum bytes of all files together.
const BYTES_MAX: u64 = 64 << 20;
/// Number of looks after a change of metadata in which contents are read as well: two changes within one tick of a
/// filesystem's clock leave the same metadata.
const DISTRUST: u32 = 6;
/// Once in this many looks contents are read whatever the metadata says, because some filesystems report it wrongly.
const DISTRUST_EVERY: u32 = 75;

/// The purpose of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadMode {
    /// To detect a change.
    OnChange,
    /// To reload now, without waiting until the file is stable.
    Now,
    /// To reload now, even against the guard.
    Force,
}

/// The result of a look at the files beside the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileReload {
    /// The files on disk are in use already.
    Nothing,
    /// The files were read again; with a message for the operator.
    Read(String),
}

/// The SHA-256 of contents. For a single file it is what `sha256sum` prints.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Version([u8; 32]);

impl Version {
    /// The version of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(bytes);
        Self::finish(context)
    }

    fn finish(context: Context) -> Self {
        let mut version = [0; 32];
        version.iter_mut().zip(context.finish().as_ref()).for_each(|(byte, &hashed)| *byte = hashed);
        Self(version)
    }

    /// The whole hash, in hexadecimal.
    pub(crate) fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A prefix that is long enough to distinguish versions.
    pub(crate) fn short(self) -> String {
        self.0.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl std::fmt::Debug for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.short())
    }
}

/// The bytes under a path as they were at one moment.
#[derive(Debug)]
pub(crate) struct Capture {
    /// Each file with its path: relative to the directory, or the file's own name.
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
    pub(crate) is_directory: bool,
    pub(crate) version: Version,
}

/// Reads everything under a path.
///
/// # Errors
/// When a file cannot be read, or there is too much.
pub(crate) fn capture(path: &Path) -> Result<Capture, String> {
    let is_directory = metadata(path)?.is_dir();
    let (mut files, mut room) = (Vec::new(), BYTES_MAX);
    for (relative, _) in walk(path)? {
        let full = if is_directory { path.join(&relative) } else { path.to_owned() };
        let mut bytes = Vec::new();
        let read =
            disk::open(&full).and_then(|file| file.take(room.saturating_add(1)).read_to_end(&mut bytes));
        let read = read.map_err(|error| disk::unreadable(&full, &error))?;
        room = room.checked_sub(u64::try_from(read).unwrap_or(u64::MAX)).ok_or_else(|| too_much(path))?;
        files.push((relative, bytes));
    }
    let version = match files.as_slice() {
        [(_, bytes)] if !is_directory => Version::of(bytes),
        files => version_of(files),
    };
    Ok(Capture { files, is_directory, version })
}

/// The version of several files: names and contents, each with its length, so that no two lists give the same input.
fn version_of(files: &[(PathBuf, Vec<u8>)]) -> Version {
    let mut context = Context::new(&SHA256);
    for (name, bytes) in files {
        for part in [name.as_os_str().as_encoded_bytes(), bytes] {
            context.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            context.update(part);
        }
    }
    Version::finish(context)
}

fn too_much(path: &Path) -> String {
    format!(
        "{}: too much for a policy; accepted: at most {FILES_MAX} files, {} MiB in all, {DEPTH_MAX} directories deep",
        path.display(),
        BYTES_MAX >> 20
    )
}

fn metadata(path: &Path) -> Result<Metadata, String> {
    fs::metadata(path).map_err(|error| disk::unreadable(path, &error))
}

/// Refuses files that a read could block on without end.
///
/// # Errors
/// When the path is a pipe, a socket or a device. A missing file passes here; the code that reads it reports that.
pub(crate) fn is_file_or_directory(path: &Path) -> Result<(), String> {
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    refuse_special(path, &found)
}

fn refuse_special(path: &Path, found: &Metadata) -> Result<(), String> {
    if found.is_file() || found.is_dir() {
        return Ok(());
    }
    let kind = found.file_type();
    let what = match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(format!(
        "{}: it is {what}, which a server that is running cannot watch; accepted: a file or a directory",
        path.display()
    ))
}

/// Whether it can be watched. A pipe can be read only once, so it cannot.
pub(crate) fn is_watchable(path: &Path) -> bool {
    // A missing file may still appear.
    path.as_os_str() != "-" && fs::metadata(path).map_or(true, |found| found.is_file() || found.is_dir())
}

/// The files under a path in the order of their names, with their metadata. Names that begin with a dot are skipped:
/// Kubernetes keeps the versions of a ConfigMap there, and editors their drafts.
fn walk(path: &Path) -> Result<Vec<(PathBuf, Metadata)>, String> {
    let root = metadata(path)?;
    refuse_special(path, &root)?;
    if !root.is_dir() {
        return Ok(vec![(path.file_name().map(PathBuf::from).unwrap_or_default(), root)]);
    }
    let mut found = Vec::new();
    descend(path, Path::new(""), 0, &mut found)?;
    found.sort_by(|one: &(PathBuf, Metadata), other| one.0.cmp(&other.0));
    Ok(found)
}

fn descend(
    root: &Path,
    relative: &Path,
    depth: usize,
    found: &mut Vec<(PathBuf, Metadata)>,
) -> Result<(), String> {
    let directory = root.join(relative);
    let unreadable = |error: std::io::Error| disk::unreadable(&directory, &error);
    for entry in fs::read_dir(&directory).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let relative = relative.join(name);
        let metadata = metadata(&root.join(&relative))?;
        if metadata.is_dir() {
            if depth >= DEPTH_MAX {
                return Err(too_much(root));
            }
            descend(root, &relative, depth + 1, found)?;
        } else if metadata.is_file() {
            if found.len() >= FILES_MAX {
                return Err(too_much(root));
            }
            found.push((relative, metadata));
        }
    }
    Ok(())
}

/// The result of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Contents.
    Version(Version),
    /// Nothing readable, with the reason.
    Unreadable(String),
}

impl Seen {
    /// The version of the contents, if they could be read.
    pub(crate) const fn version(&self) -> Option<Version> {
        match self {
            Seen::Version(version) => Some(*version),
            Seen::Unreadable(_) => None,
        }
    }
}

/// Looks at paths repeatedly. While the metadata is unchanged, contents are not read.
#[derive(Debug)]
pub(crate) struct FileWatcher {
    paths: Vec<PathBuf>,
    stamp: Option<Version>,
    seen: Seen,
    looks: u32,
}

impl FileWatcher {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, stamp: None, seen: Seen::Unreadable("not looked at yet".to_owned()), looks: 0 }
    }

    /// Looks at the paths now.
    pub(crate) fn scan(&mut self) -> Seen {
        let stamp = self.stamp();
        self.looks = self.looks.wrapping_add(1);
        if stamp.is_none() || stamp != self.stamp {
            self.looks = 0;
        }
        self.stamp = stamp;
        if self.looks < DISTRUST || self.looks.is_multiple_of(DISTRUST_EVERY) {
            self.seen = self.contents();
        }
        self.seen.clone()
    }

    fn contents(&self) -> Seen {
        let mut versions = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            match capture(path) {
                Ok(capture) => versions.push(capture.version),
                Err(error) => return Seen::Unreadable(error),
            }
        }
        match versions.as_slice() {
            [version] => Seen::Version(*version),
            versions => Seen::Version(Version::of(&versions.iter().flat_map(|v| v.0).collect::<Vec<u8>>())),
        }
    }

    /// A hash of all that the system reports about the files without reading them.
    fn stamp(&self) -> Option<Version> {
        let mut context = Context::new(&SHA256);
        for path in &self.paths {
            for (name, about) in walk(path).ok()? {
                context.update(name.as_os_str().as_encoded_bytes());
                let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
                times.iter().for_each(|time| context.update(&time.to_be_bytes()));
                [about.dev(), about.ino(), about.len()].iter().for_each(|n| context.update(&n.to_be_bytes()));
            }
        }
        Some(Version::finish(context))
    }
}

/// Decides when to act on a change: when it was seen twice in a row. A file that is still being written differs from
/// look to look.
#[derive(Debug, Default)]
pub(crate) struct Debounce {
    acted_on: Option<Seen>,
    pending: Option<Seen>,
}

impl Debounce {
    /// Whether to act on what was seen.
    pub(crate) fn saw(&mut self, seen: &Seen) -> bool {
        if self.acted_on.as_ref() == Some(seen) {
            self.pending = None;
            return false;
        }
        let is_stable = self.pending.as_ref() == Some(seen);
        if is_stable {
            self.acted(seen.clone());
        } else {
            self.pending = Some(seen.clone());
        }
        is_stable
    }

    /// Records that this was acted on.
    pub(crate) fn acted(&mut self, seen: Seen) {
        self.acted_on = Some(seen);
        self.pending = None;
    }
}

/// The message about a look at the disk that has not ended.
pub(crate) fn hangs(what: &str, timeout: Duration) -> String {
    format!(
        "{what}: reading did not end within {} s, so the file system does not answer; the active version stays active, and \
         reloading goes on by itself when it answers. Check the mount, or put the file on another one",
        timeout.as_secs()
    )
}

#[cfg(test)]
mod tests;
