//! `tollgate config check`: reports every problem of config files, and what a server would say of a policy with them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tollgate::Clock;

use crate::cli::ConfigCheckArguments;
use crate::config::{self, Config, ConfigError, ConfigFlags};
use crate::console::Console;
use crate::identity::Identity;
use crate::policy_file::{self, PolicyFileError};
use crate::{FAILURE, SUCCESS, USAGE};

/// The findings about one file.
#[derive(Debug, Default)]
struct CheckedFile {
    name: String,
    status: u8,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl CheckedFile {
    fn show(&self, console: &mut Console) {
        if self.errors.is_empty() {
            console.line(format_args!("{}: accepted", self.name));
        }
        self.errors.iter().chain(&self.warnings).for_each(|finding| console.problem(finding));
    }

    fn json(&self) -> Value {
        json!({
            "file": self.name, "valid": self.errors.is_empty(), "errors": self.errors, "warnings": self.warnings,
        })
    }
}

/// Checks every file, even if others have problems.
pub(crate) fn run(arguments: &ConfigCheckArguments, console: &mut Console) -> u8 {
    let mut status = SUCCESS;
    let mut reports: Vec<Value> = Vec::new();
    for path in &arguments.files {
        let loaded = opened(path);
        // Without a config it is not known what the policy is served with.
        let policy = arguments.policy.as_ref().zip(loaded.as_ref().ok());
        let policy = policy.map(|(policy, config)| checked_policy(policy, config));
        let config = checked_config(path.display().to_string(), loaded);
        if arguments.json {
            let mut report = config.json();
            if let Some(policy) = &policy {
                report["policy"] = policy.json();
            }
            reports.push(report);
        } else {
            config.show(console);
            policy.iter().for_each(|policy| policy.show(console));
        }
        for checked in policy.iter().chain([&config]) {
            let is_denied = arguments.deny_warnings && !checked.warnings.is_empty();
            status = status.max(checked.status).max(if is_denied { FAILURE } else { SUCCESS });
        }
    }
    if arguments.json {
        console.line(json!({ "files": reports }));
    }
    status
}

/// A config, and the files that it names, as a server opens them.
fn opened(path: &Path) -> Result<Config, ConfigError> {
    let mut config = config::load(Some(path), &[])?;
    config.open(&ConfigFlags::default(), Clock::precise().now())?;
    if config.overload.is_some() && config.routes.is_empty() {
        let name = path.display();
        config.warnings.push(format!(
            "{name}: warning: overload is about the gateway, and there is none; accepted: `routes` beside it, or \
             `tollgate serve --upstream URL`"
        ));
    }
    Ok(config)
}

fn checked_config(name: String, opened: Result<Config, ConfigError>) -> CheckedFile {
    match opened {
        Ok(config) => CheckedFile { name, warnings: config.warnings, ..CheckedFile::default() },
        Err(ConfigError::Unreadable(problem)) => {
            CheckedFile { name, status: USAGE, errors: vec![problem], ..CheckedFile::default() }
        }
        Err(ConfigError::Wrong(findings, flags)) => {
            let errors = findings.to_string().lines().map(str::to_owned).chain(flags).collect();
            CheckedFile { name, status: FAILURE, errors, ..CheckedFile::default() }
        }
    }
}

/// The policy as a server with this config would start with it.
fn checked_policy(path: &PathBuf, config: &Config) -> CheckedFile {
    let name = path.display().to_string();
    let served = config.served();
    let identity = Identity::of(&served.reader);
    match policy_file::load_for(Some(path), identity.credentials()) {
        Ok(loaded) => {
            let doubts = served.doubts(&loaded);
            let warnings = loaded.warnings.iter().chain(&doubts).map(ToString::to_string).collect();
            CheckedFile { name, warnings, ..CheckedFile::default() }
        }
        Err(error) => {
            let errors = match &error {
                PolicyFileError::Wrong(findings) => findings.iter().map(ToString::to_string).collect(),
                PolicyFileError::Unreadable { .. } | PolicyFileError::Config { .. } => {
                    vec![error.to_string()]
                }
            };
            CheckedFile { name, status: error.status(), errors, ..CheckedFile::default() }
        }
    }
}
