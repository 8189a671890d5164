//! The state of the active policy, for `/readyz`, metrics and the admin API.

use tollgate::Timestamp;

use crate::failure::Failure;
use crate::file_watch::Version;

/// Where the active policy came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The configured file or directory, which is watched.
    File,
    /// A copy of an earlier version, because the file was missing or wrong when the server started.
    LastGood,
    /// The example, standard input or a pipe, which cannot change.
    Fixed,
}

impl Origin {
    /// Its name in JSON and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Origin::File => "file",
            Origin::LastGood => "last-good",
            Origin::Fixed => "fixed",
        }
    }
}

/// The state of the policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyStatus {
    /// The name of the active policy, usually its path.
    pub(crate) name: String,
    /// Its version, the SHA-256 of its contents. Standard input has none.
    pub(crate) version: Option<Version>,
    pub(crate) origin: Origin,
    /// When it became active.
    pub(crate) loaded_at: Timestamp,
    /// Why it became active: an operator, a signal, or a change of the file. Empty at the start.
    pub(crate) loaded_by: String,
    /// What is accepted in it, and may be a mistake: one finding each.
    pub(crate) warnings: Vec<String>,
    /// The number of reloads that activated another policy.
    pub(crate) good: u64,
    /// The number of reloads that failed because the file was missing, wrong or suspicious.
    pub(crate) bad: u64,
    /// Why the file on disk is not active, while that is so.
    pub(crate) error: Option<Failure>,
    /// Why the state of the disk is unknown: a look has not ended. Set while that is so.
    pub(crate) stuck: Option<Failure>,
    /// Why the active policy could not be saved for the next start, while that is so.
    pub(crate) keep_error: Option<Failure>,
}

impl PolicyStatus {
    /// The status of a policy that has just become active.
    pub(crate) fn new(name: String, version: Option<Version>, origin: Origin, now: Timestamp) -> Self {
        Self {
            name,
            version,
            origin,
            loaded_at: now,
            loaded_by: String::new(),
            warnings: Vec::new(),
            good: 0,
            bad: 0,
            error: None,
            stuck: None,
            keep_error: None,
        }
    }

    /// Why the active policy may differ from the files on disk.
    pub(crate) fn trouble(&self) -> Option<&Failure> {
        self.stuck.as_ref().or(self.error.as_ref())
    }

    /// Whether an operator should look.
    pub(crate) const fn is_degraded(&self) -> bool {
        self.error.is_some() || self.stuck.is_some() || self.keep_error.is_some()
    }
}
