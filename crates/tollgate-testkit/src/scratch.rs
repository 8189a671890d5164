//! A directory for one test, gone when the test is over.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of its own.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Where temporary files are kept.
    #[expect(clippy::new_without_default, reason = "making a directory is nothing that happens by default")]
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// In memory where that is possible: a cluster writes its map to the disk at each change, and waits for it.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory) } else { Self::new() }
    }

    fn below(place: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("tollgate-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The directory itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The path of a file here.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path of a file here, as an argument.
    pub fn text(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file here, and tells its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a file under its name at once, as a careful editor does.
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
