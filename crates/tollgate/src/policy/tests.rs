//! The policy as a whole: files in, matches and sentences out.

mod bad_files;
mod bounds;
mod conditions;
mod differences;
mod documents;
mod example;
mod extra_attributes;
mod many;
mod matching;
mod never;
mod sentences;
mod values;

use super::{Findings, Policy};

/// A policy from text that is known to be good.
fn policy(text: &str) -> Policy {
    match Policy::compile("policy.yaml", text.as_bytes()) {
        Ok(policy) => policy,
        Err(findings) => panic!("{findings}"),
    }
}

/// The findings of a policy that is known to be bad.
fn findings(text: &str) -> Findings {
    match Policy::compile("policy.yaml", text.as_bytes()) {
        Ok(policy) => panic!("compiles, with these warnings: {}", policy.warnings()),
        Err(findings) => findings,
    }
}

/// The warnings of a policy that is known to be usable.
fn warnings(text: &str) -> Findings {
    match Policy::compile("policy.yaml", text.as_bytes()) {
        Ok(policy) => policy.warnings().clone(),
        Err(findings) => panic!("{findings}"),
    }
}
