//! The last good policy, saved on disk for the next start. A copy is complete before the pointer names it, so a crash
//! or a full disk leaves the previous copy.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::disk::{self, DIRECTORY_MODE, FILE_MODE};
use crate::file_watch::{self, Capture};

/// The file that names the last good copy.
const POINTER: &str = "last-good.json";
/// The prefix of the directories that hold copies. Their version follows it.
const COPY_PREFIX: &str = "policy-";
/// The prefix of incomplete copies.
const DRAFT_PREFIX: &str = ".draft-";
/// Maximum size of the pointer file.
const POINTER_BYTES_MAX: u64 = 64 << 10;

/// The content of the pointer file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    /// The original file or directory.
    policy: PathBuf,
    /// The copy, relative to the state directory.
    copy: PathBuf,
    /// The version of the copy, to verify it.
    version: String,
}

/// The location of the last good policy.
#[derive(Clone, Debug)]
pub(crate) struct LastGood {
    directory: PathBuf,
}

impl LastGood {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The state directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Saves a copy of a policy, which replaces the previous one.
    ///
    /// # Errors
    /// When the copy cannot be written. The previous one is then still there.
    pub(crate) fn keep(&self, policy: &Path, capture: &Capture) -> io::Result<()> {
        let version = capture.version.hex();
        let name = format!("{COPY_PREFIX}{version}");
        let inside = if capture.is_directory {
            PathBuf::from(&name)
        } else {
            Path::new(&name)
                .join(capture.files.first().map(|(name, _)| name.as_path()).unwrap_or(Path::new("")))
        };
        let pointer = Pointer { policy: std::path::absolute(policy)?, copy: inside, version };
        if self.pointer().is_ok_and(|kept| kept == pointer && self.is_whole(&kept)) && self.is_private(&name)
        {
            return Ok(());
        }
        create_directory(&self.directory)?;
        if !self.is_whole(&pointer) || !self.is_private(&name) {
            self.copy(&name, capture)?;
        }
        let text = serde_json::to_vec(&pointer).map_err(io::Error::other)?;
        let draft = self.directory.join(format!("{DRAFT_PREFIX}{POINTER}"));
        write(&draft, &text)?;
        fs::rename(&draft, self.directory.join(POINTER))?;
        sync(&self.directory)?;
        self.forget_all_but(&name);
        Ok(())
    }

    /// The path of the last good copy of a policy.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn find(&self, policy: &Path) -> Result<PathBuf, String> {
        let pointer = self.pointer()?;
        let wanted = std::path::absolute(policy).map_err(|error| error.to_string())?;
        if pointer.policy != wanted {
            return Err(format!(
                "{} has a copy of {}, not of {}",
                self.directory.display(),
                pointer.policy.display(),
                wanted.display()
            ));
        }
        if !self.is_whole(&pointer) {
            return Err(format!("the copy in {} is damaged", self.directory.display()));
        }
        Ok(self.directory.join(pointer.copy))
    }

    fn pointer(&self) -> Result<Pointer, String> {
        let path = self.directory.join(POINTER);
        let file = disk::open(&path).map_err(|error| disk::unreadable(&path, &error))?;
        let read = io::read_to_string(io::Read::take(file, POINTER_BYTES_MAX));
        let text = read.map_err(|error| disk::unreadable(&path, &error))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Whether a copy exists and is unchanged.
    fn is_whole(&self, pointer: &Pointer) -> bool {
        let copy = file_watch::capture(&self.directory.join(&pointer.copy));
        copy.is_ok_and(|copy| copy.version.hex() == pointer.version)
    }

    /// Whether only this user can read a copy. A policy may contain credentials, and an earlier version let all users
    /// read it.
    fn is_private(&self, name: &str) -> bool {
        let found = fs::metadata(self.directory.join(name));
        found.is_ok_and(|found| found.permissions().mode() & 0o077 == 0)
    }

    fn copy(&self, name: &str, capture: &Capture) -> io::Result<()> {
        let (draft, copy) = (self.directory.join(format!("{DRAFT_PREFIX}{name}")), self.directory.join(name));
        for left_over in [&draft, &copy] {
            match fs::remove_dir_all(left_over) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let written = fill(&draft, capture).and_then(|()| fs::rename(&draft, &copy));
        if written.is_err() {
            // On a full disk an incomplete copy only wastes space.
            let _ = fs::remove_dir_all(&draft);
        }
        written.and_then(|()| sync(&self.directory))
    }

    /// Removes older copies. One that cannot be removed only costs disk space.
    fn forget_all_but(&self, name: &str) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let found = entry.file_name();
            let is_old = found.to_str().is_some_and(|found| found.starts_with(COPY_PREFIX) && found != name);
            if is_old {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn fill(draft: &Path, capture: &Capture) -> io::Result<()> {
    create_directory(draft)?;
    for (name, bytes) in &capture.files {
        let path = draft.join(name);
        if let Some(parent) = path.parent() {
            create_directory(parent)?;
        }
        write(&path, bytes)?;
    }
    sync(draft)
}

/// Creates a directory that only this user can read, if it does not exist.
fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Writes a file that only this user can read, and syncs it. An existing file is a draft of an earlier attempt.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Syncs the names in a directory to disk.
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use tollgate_testkit::Scratch;

    use super::*;

    fn kept(scratch: &Scratch) -> Vec<String> {
        let entries = fs::read_dir(scratch.path("state")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The newest copy is found under the name of the original file, and older copies are removed.
    #[test]
    fn the_newest_is_kept() {
        let scratch = Scratch::new();
        let last_good = LastGood::new(&scratch.path("state"));
        let policy = scratch.path("policy.yaml");
        assert!(last_good.find(&policy).is_err());
        for text in ["one", "two", "two"] {
            scratch.write("policy.yaml", text);
            last_good.keep(&policy, &file_watch::capture(&policy).unwrap()).unwrap();
            let copy = last_good.find(&policy).unwrap();
            assert_eq!(fs::read_to_string(&copy).unwrap(), text);
            assert!(copy.ends_with("policy.yaml"));
        }
        assert_eq!(kept(&scratch).len(), 2, "{:?}", kept(&scratch));
        assert!(last_good.find(&scratch.path("other.yaml")).unwrap_err().contains("not of"));
    }

    /// A directory is saved as a directory.
    #[test]
    fn directories_are_kept_whole() {
        let scratch = Scratch::new();
        let last_good = LastGood::new(&scratch.path("state"));
        let policy = scratch.path("policies");
        fs::create_dir_all(policy.join("deep")).unwrap();
        fs::write(policy.join("deep/a.yaml"), "a").unwrap();
        fs::write(policy.join("b.yaml"), "b").unwrap();
        last_good.keep(&policy, &file_watch::capture(&policy).unwrap()).unwrap();
        let copy = last_good.find(&policy).unwrap();
        assert_eq!(fs::read_to_string(copy.join("deep/a.yaml")).unwrap(), "a");
    }

    /// A copy that was changed, or a pointer that leads nowhere, is not a last good policy.
    #[test]
    fn damage_is_seen_and_repaired() {
        let scratch = Scratch::new();
        let last_good = LastGood::new(&scratch.path("state"));
        let policy = scratch.write("policy.yaml", "one");
        let capture = file_watch::capture(&policy).unwrap();
        last_good.keep(&policy, &capture).unwrap();
        fs::write(last_good.find(&policy).unwrap(), "").unwrap();
        assert!(last_good.find(&policy).unwrap_err().contains("damaged"));
        last_good.keep(&policy, &capture).unwrap();
        assert!(last_good.find(&policy).is_ok());
        fs::write(scratch.path("state").join(POINTER), "{").unwrap();
        assert!(last_good.find(&policy).is_err());
    }

    /// If nothing can be written, the previous copy stays the last good one.
    #[test]
    fn a_failed_copy_leaves_the_one_before() {
        let scratch = Scratch::new();
        let last_good = LastGood::new(&scratch.path("state"));
        let policy = scratch.write("policy.yaml", "one");
        last_good.keep(&policy, &file_watch::capture(&policy).unwrap()).unwrap();
        scratch.write("policy.yaml", "two");
        let next = file_watch::capture(&policy).unwrap();
        // A file with the name of the draft directory: the draft can be neither removed as a directory nor created.
        let draft = format!("{DRAFT_PREFIX}{COPY_PREFIX}{}", next.version.hex());
        scratch.write(&format!("state/{draft}"), "in the way");
        assert!(last_good.keep(&policy, &next).is_err());
        assert_eq!(fs::read_to_string(last_good.find(&policy).unwrap()).unwrap(), "one");
    }

    /// An earlier version let every user of the machine read the copy. Saving it again replaces it by one that only its
    /// owner can read.
    #[test]
    fn a_copy_that_others_could_read_is_made_anew() {
        let scratch = Scratch::new();
        let policy = scratch.write("policy.yaml", "one");
        let last_good = LastGood::new(&scratch.path("state"));
        let keep = || last_good.keep(&policy, &file_watch::capture(&policy).unwrap()).unwrap();
        keep();
        let copy = last_good.find(&policy).unwrap();
        let directory = copy.parent().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for (path, open) in [(directory, 0o755), (&copy, 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(open)).unwrap();
        }
        keep();
        let pointer = scratch.path("state").join(POINTER);
        let modes = [&scratch.path("state"), directory, &copy, &pointer].map(mode);
        assert_eq!(modes, [0o700, 0o700, 0o600, 0o600]);
        assert_eq!(fs::read_to_string(&copy).unwrap(), "one");
    }
}
