//! Where policies are read from: a file, standard input, or the example inside the program.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tollgate::Policy;
use tollgate::policy::{EXAMPLE, FILE_BYTES_MAX, Findings};

/// How findings call the built-in policy.
const EXAMPLE_NAME: &str = "the built-in example policy";
/// How findings call standard input.
const STDIN_NAME: &str = "<stdin>";

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyFileError {
    /// The file cannot be read.
    #[error("{name}: {reason}; {cure}")]
    Unreadable {
        /// How the user called it.
        name: String,
        /// What the system says.
        reason: String,
        /// What to do about it.
        cure: &'static str,
    },
    /// What was read is not a policy.
    #[error(transparent)]
    Wrong(#[from] Findings),
}

/// What decides: a policy of our own, or somebody else's configuration.
#[derive(Debug)]
pub(crate) enum Rules {
    /// A policy file.
    Native(Policy),
}

impl Rules {
    /// The policy that decides.
    pub(crate) const fn policy(&self) -> &Policy {
        match self {
            Rules::Native(policy) => policy,
        }
    }

    /// The same, for whoever takes it over.
    pub(crate) fn into_policy(self) -> Policy {
        match self {
            Rules::Native(policy) => policy,
        }
    }
}

/// The rules of a file, how it is called, and its warnings.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) rules: Rules,
    pub(crate) warnings: Findings,
}

/// Reads the policy of a file, of standard input for `-`, or the example when no file is named.
pub(crate) fn load(path: Option<&PathBuf>) -> Result<Loaded, PolicyFileError> {
    let (name, bytes) = match path {
        None => (EXAMPLE_NAME.to_owned(), EXAMPLE.as_bytes().to_vec()),
        Some(path) => read(path)?,
    };
    let (policy, warnings) = Policy::compile(&name, &bytes)?;
    Ok(Loaded { name, rules: Rules::Native(policy), warnings })
}

fn read(path: &Path) -> Result<(String, Vec<u8>), PolicyFileError> {
    if path.as_os_str() == "-" {
        let bytes = bounded(io::stdin().lock()).map_err(|error| unreadable(STDIN_NAME.to_owned(), &error))?;
        return Ok((STDIN_NAME.to_owned(), bytes));
    }
    let name = path.display().to_string();
    match File::open(path).and_then(bounded) {
        Ok(bytes) => Ok((name, bytes)),
        Err(error) => Err(unreadable(name, &error)),
    }
}

/// Everything up to one byte more than the compiler accepts: it then says that the file is too large, and how large it may be.
fn bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(name: String, error: &io::Error) -> PolicyFileError {
    let (reason, cure) = match error.kind() {
        io::ErrorKind::NotFound => ("no such file".to_owned(), "check the path"),
        io::ErrorKind::PermissionDenied => ("permission denied".to_owned(), "make it readable for this user"),
        io::ErrorKind::IsADirectory => ("is a directory".to_owned(), "name a file in it"),
        _ => (error.to_string(), "name a file that can be read"),
    };
    PolicyFileError::Unreadable { name, reason, cure }
}
