//! A directory for one test, gone when the test is over.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Makes a directory that nobody else has, with a name in it for whoever finds it. Whoever asks removes it.
pub fn folder(name: &str) -> PathBuf {
    unique(&std::env::temp_dir(), name)
}

/// The id of a process is another's later on, which may have left something behind, and two tests may choose one name: a directory that
/// is there already is never taken.
fn unique(place: &Path, name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("tollgate-{name}-{}-{number}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => return path,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

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
        Self(unique(place, "test"))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a test named its directory by the process alone, and so did another of the same name; what one wrote the other read.
    #[test]
    fn no_directory_is_given_twice() {
        let (one, two) = (folder("same"), folder("same"));
        std::fs::write(one.join("file"), "mine").unwrap();
        assert!(one != two && !two.join("file").exists());
        [one, two].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
    }
}
