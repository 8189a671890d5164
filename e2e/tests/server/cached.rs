//! Programs that `./test tools` has installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The tools that `./test tools` installed under `.cache`.
pub(crate) fn cached(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache").join(path);
    assert!(path.exists(), "{} is missing; run `./test tools` first", path.display());
    path
}

/// Runs a program to its end; it must be there, and succeed.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let run = command.output();
    let Output { status, stdout, stderr } =
        run.unwrap_or_else(|error| panic!("{command:?}: {error}; run `./test tools` first"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}
