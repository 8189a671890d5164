//! What is known about the policy in force: for `/readyz`, metrics and the admin interface.

use tollgate::Timestamp;

use crate::failure::Failure;
use crate::file_watch::Version;

/// Where the policy in force came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The file or directory that the server was told, which is watched.
    File,
    /// The copy of an earlier one, because that file was missing or wrong when the server started.
    LastGood,
    /// The example, standard input or a pipe: nothing that could change.
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
    /// How the policy in force is called: its path, as a rule.
    pub(crate) name: String,
    /// What it is a version of; the SHA-256 of its contents. Standard input has none.
    pub(crate) version: Option<Version>,
    pub(crate) origin: Origin,
    /// When it was put in force.
    pub(crate) loaded_at: Timestamp,
    /// Reloads that put another policy in force.
    pub(crate) good: u64,
    /// Reloads that did not, because the file was missing, wrong or suspicious.
    pub(crate) bad: u64,
    /// Why the file is not what is in force, as long as it is not.
    pub(crate) error: Option<Failure>,
    /// Why it is not known what is on disk: a look at it has not ended. As long as that is so.
    pub(crate) stuck: Option<Failure>,
    /// Why the policy in force could not be kept for the next start, as long as that is so.
    pub(crate) keep_error: Option<Failure>,
}

impl PolicyStatus {
    /// A policy that was just put in force.
    pub(crate) fn new(name: String, version: Option<Version>, origin: Origin, now: Timestamp) -> Self {
        Self {
            name,
            version,
            origin,
            loaded_at: now,
            good: 0,
            bad: 0,
            error: None,
            stuck: None,
            keep_error: None,
        }
    }

    /// Why what is in force may not be what is on disk.
    pub(crate) fn trouble(&self) -> Option<&Failure> {
        self.stuck.as_ref().or(self.error.as_ref())
    }

    /// Whether an operator should look.
    pub(crate) const fn is_degraded(&self) -> bool {
        self.error.is_some() || self.stuck.is_some() || self.keep_error.is_some()
    }
}
