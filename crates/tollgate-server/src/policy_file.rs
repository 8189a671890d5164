//! Loads policies from a file, a directory, standard input, or the built-in example, and detects their format.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tollgate::Policy;
use tollgate::credential::CredentialAttributes;
use tollgate::policy::source::{Outline, outline};
use tollgate::policy::{EXAMPLE, FILE_BYTES_MAX, Findings};
use tollgate_compat::{self as compat, CompatConfig, Format, Source};

use crate::disk;
use crate::{FAILURE, USAGE};

mod directory;

/// The name of the built-in policy in findings.
const EXAMPLE_NAME: &str = "the built-in example policy";
/// The name of standard input in findings.
const STDIN_NAME: &str = "<stdin>";

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyFileError {
    /// The file cannot be read.
    #[error("{name}: {reason}; {cure}")]
    Unreadable {
        /// The name that the user gave.
        name: String,
        /// The system's error.
        reason: String,
        /// The cure.
        cure: &'static str,
    },
    /// The file is a config of the server.
    #[error(
        "{name}: is a config, and not a policy: `tollgate config check` checks it; accepted: a policy, with `limits:`"
    )]
    Config {
        /// The name that the user gave.
        name: String,
    },
    /// The content is not a policy.
    #[error(transparent)]
    Wrong(#[from] Findings),
}

impl PolicyFileError {
    /// The exit status of a command that checks or converts the file.
    pub(crate) const fn status(&self) -> u8 {
        match self {
            PolicyFileError::Unreadable { .. } => USAGE,
            PolicyFileError::Config { .. } | PolicyFileError::Wrong(_) => FAILURE,
        }
    }
}

/// The rules that decide: a Tollgate policy, or another program's configuration.
#[derive(Debug)]
pub(crate) enum Rules {
    /// A policy file.
    Native(Policy),
    /// A compat configuration, and the guard policy that refuses every request that bypasses it.
    Compat(CompatConfig, Policy),
}

impl Rules {
    /// The engine's policy.
    pub(crate) const fn policy(&self) -> &Policy {
        match self {
            Rules::Native(policy) | Rules::Compat(_, policy) => policy,
        }
    }

    /// Another program's configuration, if it decides.
    pub(crate) const fn compat(&self) -> Option<&CompatConfig> {
        match self {
            Rules::Native(_) => None,
            Rules::Compat(compat, _) => Some(compat),
        }
    }

    /// Both parts, for a caller that takes ownership.
    pub(crate) fn into_parts(self) -> (Policy, Option<CompatConfig>) {
        match self {
            Rules::Native(policy) => (policy, None),
            Rules::Compat(compat, guard) => (guard, Some(compat)),
        }
    }

    /// The meaning of each rule, in a sentence.
    pub(crate) fn sentences(&self) -> Vec<String> {
        match self {
            Rules::Native(policy) => policy.sentences(),
            Rules::Compat(compat, _) => compat.sentences(),
        }
    }
}

/// The rules of a file, its name, and its warnings.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) rules: Rules,
    pub(crate) warnings: Findings,
}

impl Loaded {
    /// Whether these are the rules of the built-in example.
    pub(crate) fn is_example(&self) -> bool {
        self.name == EXAMPLE_NAME
    }
}

/// Loads the rules of a file or of the files in a directory, of standard input for `-`, or of the example if no path is
/// given.
pub(crate) fn load(path: Option<&PathBuf>) -> Result<Loaded, PolicyFileError> {
    load_for(path, &CredentialAttributes::default())
}

/// Loads rules when these attributes hold credentials.
pub(crate) fn load_for(
    path: Option<&PathBuf>,
    credentials: &CredentialAttributes,
) -> Result<Loaded, PolicyFileError> {
    let (name, sources) = match path {
        None => {
            let bytes = EXAMPLE.as_bytes().to_vec();
            (EXAMPLE_NAME.to_owned(), vec![Source { name: EXAMPLE_NAME.to_owned(), bytes }])
        }
        Some(path) if path.is_dir() => (path.display().to_string(), directory::read(path)?),
        Some(path) => {
            let source = read(path)?;
            (source.name.clone(), vec![source])
        }
    };
    let (rules, warnings) = rules(&name, &sources, credentials)?;
    Ok(Loaded { name, rules, warnings })
}

/// Compiles sources, all of which have the same format.
fn rules(
    name: &str,
    sources: &[Source],
    credentials: &CredentialAttributes,
) -> Result<(Rules, Findings), PolicyFileError> {
    let Some(first) = sources.first() else {
        return Err(directory::empty(name));
    };
    let format = Format::of(&first.bytes);
    if let Some(other) = sources.iter().find(|source| Format::of(&source.bytes) != format) {
        return Err(directory::mixed(name, (first, format), (other, Format::of(&other.bytes))));
    }
    if format != Format::Native {
        let (compat, warnings) = CompatConfig::compile(format, sources)?;
        return Ok((Rules::Compat(compat, compat::guard()?), warnings));
    }
    if sources.len() > 1 {
        return Err(directory::several(name, sources.len()));
    }
    if is_config(&first.bytes) {
        return Err(PolicyFileError::Config { name: first.name.clone() });
    }
    let policy = Policy::compile_for(&first.name, &first.bytes, credentials)?;
    let warnings = policy.warnings().clone();
    Ok((Rules::Native(policy), warnings))
}

/// The fields that a config has and no policy.
pub(crate) const CONFIG_FIELDS: [&str; 15] = [
    "trusted_proxies",
    "ipv6_prefix",
    "escaped_slashes",
    "path_match",
    "method_override",
    "header_names",
    "connections_per_address",
    "credentials",
    "callers",
    "jwt",
    "headers",
    "store",
    "routes",
    "outbound",
    "overload",
];

/// Whether a file has fields that only a config has, and no limits. Each of its fields would be a finding.
fn is_config(bytes: &[u8]) -> bool {
    let Outline::Table(fields) = outline(bytes, &["limits"]) else { return false };
    let has = |name: &str| fields.iter().any(|field| field == name);
    !has("limits") && CONFIG_FIELDS.iter().any(|field| has(field))
}

fn read(path: &Path) -> Result<Source, PolicyFileError> {
    if path.as_os_str() == "-" {
        let bytes = bounded(io::stdin().lock()).map_err(|error| unreadable(STDIN_NAME.to_owned(), &error))?;
        return Ok(Source { name: STDIN_NAME.to_owned(), bytes });
    }
    let name = path.display().to_string();
    match disk::read(path, u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX)) {
        Ok(bytes) => Ok(Source { name, bytes }),
        Err(error) => Err(unreadable(name, &error)),
    }
}

/// Reads up to one byte more than the compiler accepts. The compiler then reports that the file is too large, and the
/// maximum.
fn bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(name: String, error: &io::Error) -> PolicyFileError {
    let (reason, cure) = disk::refusal(error);
    PolicyFileError::Unreadable { name, reason, cure }
}
