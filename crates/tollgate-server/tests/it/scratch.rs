//! A directory for one test, gone when the test is over; and patience with what happens a little later.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long to wait between two looks, and how many there are before a test gives up: half a minute.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOKS_MAX: u32 = 600;

/// A directory of its own.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path of a file here, as an argument.
    pub(crate) fn text(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file under its name at once, as a careful editor does.
    pub(crate) fn replace(&self, name: &str, text: &str) {
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

/// A moment's rest.
pub(crate) fn rest(time: Duration) {
    std::thread::park_timeout(time);
}

/// Looks until something is so. `what` is told when it never is.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(found) = look() {
            return found;
        }
        rest(LOOK_EVERY);
    }
    panic!("it never happened: {what}");
}
