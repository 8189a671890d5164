//! `cargo xtask semver`: whether the libraries changed no more since a release than their version says, as
//! cargo-semver-checks judges it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::install;
use super::shell::{Directories, Shell};

/// The crates that programs of others build on. The rest are parts of the program.
const LIBRARIES: [&str; 4] = ["tollgate", "tollgate-tower", "tollgate-outbound", "tollgate-redis"];

const USAGE: &str = "\
Usage: cargo xtask semver [--baseline REV]

Compares the public API of the libraries with that of a release. It fails if something is gone or has changed that the
version in Cargo.toml does not allow. It installs cargo-semver-checks under .cache where that is missing.

  --baseline REV  compare with this commit, branch or tag; by default the newest tag v*
";

/// What the arguments ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    Help,
    /// A comparison with this commit, or with the newest release.
    Compare(Option<String>),
}

/// Compares, prints what cargo-semver-checks prints, and returns the exit status: 1 if the version is too low.
pub(crate) fn semver(arguments: &[String]) -> Result<(String, u8), String> {
    let Wish::Compare(given) = wish(arguments)? else { return Ok((USAGE.to_owned(), 0)) };
    let is_stopped = Arc::new(AtomicBool::new(false));
    let mut shell = Shell::new(&Directories::find()?, "semver", &is_stopped)?;
    let baseline = match given {
        Some(revision) => known(&mut shell, revision)?,
        None => newest(&shell.output("git -c versionsort.suffix=- tag --list v* --sort=-version:refname")?)?,
    };
    install::semver_checks(&mut shell)?;
    let mut command = shell.command("cargo semver-checks");
    command.args(["--baseline-rev", &baseline]);
    command.args(LIBRARIES.iter().flat_map(|library| ["--package", library]));
    let status =
        command.status().map_err(|error| format!("cargo semver-checks cannot be started: {error}"))?;
    Ok((String::new(), u8::from(!status.success())))
}

fn wish(arguments: &[String]) -> Result<Wish, String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let given = match words.as_slice() {
        [] => return Ok(Wish::Compare(None)),
        ["help" | "--help" | "-h"] => return Ok(Wish::Help),
        ["--baseline", revision] => revision,
        [one] => one.strip_prefix("--baseline=").unwrap_or_default(),
        _ => "",
    };
    // git would read a revision that begins with - as a flag.
    if given.is_empty() || given.starts_with('-') {
        return Err(format!("not understood: {}\n\n{USAGE}", words.join(" ")));
    }
    Ok(Wish::Compare(Some(given.to_owned())))
}

/// The revision, if there is a commit of that name.
fn known(shell: &mut Shell, revision: String) -> Result<String, String> {
    if shell.succeeds(&format!("git rev-parse --verify --quiet {revision}^{{commit}}")) {
        return Ok(revision);
    }
    Err(format!(
        "there is no commit {revision}; in a shallow clone, run `git fetch --unshallow --tags` first"
    ))
}

/// The newest of the tags, which are sorted.
fn newest(tags: &str) -> Result<String, String> {
    tags.lines().map(str::trim).find(|tag| !tag.is_empty()).map(str::to_owned).ok_or_else(|| {
        "there is no tag v* to compare with; run `git fetch --tags`, or name a commit: cargo xtask semver --baseline REV"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Result<Wish, String> {
        wish(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    /// A revision is named with the flag, in both of its forms. Everything else is refused with the usage.
    #[test]
    fn arguments_are_read() {
        let compare = |revision: &str| Ok(Wish::Compare(Some(revision.to_owned())));
        assert_eq!(asked(""), Ok(Wish::Compare(None)));
        assert_eq!(asked("--baseline v0.1.0"), compare("v0.1.0"));
        assert_eq!(asked("--baseline=HEAD~50"), compare("HEAD~50"));
        assert_eq!(asked("--help"), Ok(Wish::Help));
        for wrong in
            ["--baseline", "--baseline=", "--baseline --help", "v0.1.0", "--base v1", "--baseline a b"]
        {
            let refused = asked(wrong).unwrap_err();
            assert!(refused.starts_with(&format!("not understood: {wrong}\n\nUsage: ")), "{refused}");
        }
    }

    /// The first tag is the newest. Without a release the error says what to do.
    #[test]
    fn the_newest_release_is_the_baseline() {
        assert_eq!(newest("v0.10.0\nv0.9.1\n"), Ok("v0.10.0".to_owned()));
        for none in ["", "\n"] {
            assert!(newest(none).unwrap_err().contains("cargo xtask semver --baseline REV"));
        }
    }

    /// Every library is a published crate of this workspace.
    #[test]
    fn the_libraries_are_published() {
        let root = Directories::find().unwrap().root;
        for library in LIBRARIES {
            let manifest =
                std::fs::read_to_string(root.join("crates").join(library).join("Cargo.toml")).unwrap();
            assert!(!manifest.lines().any(|line| line == "publish = false"), "{library}");
        }
    }
}
