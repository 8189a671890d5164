//! Temporary directories.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Creates a unique directory whose path contains `name`. The caller removes it.
pub fn folder(name: &str) -> PathBuf {
    unique(&std::env::temp_dir(), name)
}

/// Creates a directory that did not exist. An existing one is never reused: process ids repeat, so an earlier process may
/// have left its directory, and two tests may choose the same name.
fn unique(parent: &Path, name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("tollgate-{name}-{}-{number}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => return path,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates one below the system's directory for temporary files.
    #[expect(clippy::new_without_default, reason = "a default value should not create a directory")]
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// Creates one in memory if the system supports it: a Redis Cluster syncs its node table to disk at each change.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory) } else { Self::new() }
    }

    fn below(parent: &Path) -> Self {
        Self(unique(parent, "test"))
    }

    /// The path of the directory.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path of a file in the directory, as text for an argument.
    pub fn text(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a file and returns its path, as text for an argument.
    pub fn file(&self, name: &str, text: &str) -> String {
        self.write(name, text);
        self.text(name)
    }

    /// Replaces a file atomically, as a careful editor does.
    pub fn replace(&self, name: &str, text: &str) {
        let draft = self.0.join(format!(".{name}.draft"));
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, self.0.join(name)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: two tests with the same name named their directories after the process id, and one read what the other
    /// had written.
    #[test]
    fn every_directory_is_unique() {
        let (one, two) = (folder("same"), folder("same"));
        std::fs::write(one.join("file"), "mine").unwrap();
        assert!(one != two && !two.join("file").exists());
        [one, two].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
    }
}
