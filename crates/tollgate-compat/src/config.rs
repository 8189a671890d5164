//! One configuration of another program: compiles its files, explains and converts them. `active` answers by it.

use tollgate::policy::source::{Report, with_room};
use tollgate::policy::{Findings, Problem};
use tollgate::store::Store;
use tollgate::{Engine, Policy, QuotaError};

use crate::convert::{self, Conversion};
use crate::counters::Tallies;
use crate::format::{Format, Source};
use crate::rule::Numbered;
use crate::{envoy, limitador};

/// Every request lacks the attribute that this limit takes its cost from, so every request is refused.
const GUARD: &str = "limits: [{name: ask-by-rls-or-json, rate: 1/h, cost: no_such_attribute_is_ever_sent}]";

/// The name of that limit.
const GUARD_NAME: &str = "ask-by-rls-or-json";

/// A configuration.
#[derive(Debug)]
pub enum CompatConfig {
    /// envoyproxy/ratelimit's.
    Envoy(envoy::EnvoyConfig),
    /// Limitador's.
    Limitador(limitador::LimitadorConfig),
}

impl CompatConfig {
    /// Compiles the files of one configuration. Returns it with its warnings.
    ///
    /// # Errors
    /// All problems of all files, including warnings.
    pub fn compile(format: Format, sources: &[Source]) -> Result<(Self, Findings), Findings> {
        let compile = || {
            let mut report = Report::new("");
            let config = match format {
                Format::Limitador => CompatConfig::Limitador(limitador::compile(sources, &mut report)),
                _ => CompatConfig::Envoy(envoy::compile(sources, &mut report)),
            };
            if report.errors() == 0 {
                Ok((config, report.into_findings()))
            } else {
                Err(report.into_findings())
            }
        };
        // On a stack that no expression in a file can exhaust.
        with_room(compile).unwrap_or_else(compile)
    }

    /// Its format.
    #[must_use]
    pub const fn format(&self) -> Format {
        match self {
            CompatConfig::Envoy(_) => Format::Envoy,
            CompatConfig::Limitador(_) => Format::Limitador,
        }
    }

    /// The meaning of each rule, as a sentence.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        match self {
            CompatConfig::Envoy(config) => config.sentences(),
            CompatConfig::Limitador(config) => config.sentences(),
        }
    }

    /// The name of each rule, without its numbers, with its meaning.
    #[must_use]
    pub fn meanings(&self) -> Vec<(String, String)> {
        match self {
            CompatConfig::Envoy(config) => config.meanings(),
            CompatConfig::Limitador(config) => config.meanings(),
        }
    }

    /// The numbers of each rule, for a comparison of two configurations.
    #[must_use]
    pub fn numbers(&self) -> Vec<Numbered> {
        match self {
            CompatConfig::Envoy(config) => config.numbers(),
            CompatConfig::Limitador(config) => config.numbers(),
        }
    }

    /// The windows of its counters.
    pub(crate) fn tallies<S: Store>(&self, engine: &Engine<S>) -> Result<Tallies, QuotaError> {
        let lengths = match self {
            CompatConfig::Envoy(_) => Vec::new(),
            CompatConfig::Limitador(config) => config.lengths(),
        };
        Tallies::new(engine, lengths.into_iter())
    }

    /// The names of its rules in the metrics.
    #[must_use]
    pub fn metrics(&self) -> Vec<&str> {
        match self {
            CompatConfig::Envoy(config) => config.metrics(),
            CompatConfig::Limitador(config) => config.metrics(),
        }
    }

    /// Writes the rules of one domain as the text of a policy file.
    ///
    /// # Errors
    /// When there are several domains, and none or an unknown one is named.
    pub fn converted(&self, domain: Option<&str>) -> Result<Conversion, Problem> {
        let domains = self.domains();
        let known = || domains.iter().take(20).copied().collect::<Vec<_>>().join(", ");
        let domain = match (domain, domains.as_slice()) {
            (Some(domain), all) if all.contains(&domain) => domain,
            (Some(domain), _) => {
                return Err(Problem::new(format!("there is no domain {domain:?}"), known()));
            }
            (None, [only]) => only,
            (None, []) => return Err(Problem::new("there is no rule to convert", "at least one")),
            (None, _) => {
                let several = format!("a policy answers one domain, and there are {}", domains.len());
                return Err(Problem::new(several, known()));
            }
        };
        let converted = match self {
            CompatConfig::Envoy(config) => config.converted(domain),
            CompatConfig::Limitador(config) => config.converted(domain),
        };
        Ok(convert::policy(domain, self.format().name(), converted))
    }

    /// The names of its domains, or namespaces.
    #[must_use]
    pub fn domains(&self) -> Vec<&str> {
        match self {
            CompatConfig::Envoy(config) => config.names(),
            CompatConfig::Limitador(config) => config.names(),
        }
    }
}

/// The engine's policy while a compat configuration is active: it refuses everything. A caller that asks the engine
/// directly, past the configuration, gets no answer that could admit too much.
///
/// # Errors
/// When it does not compile, which a test would have found.
pub fn guard() -> Result<Policy, Findings> {
    Policy::compile("the guard", GUARD.as_bytes())
}

/// Whether a policy is the one that refuses everything, which no operator wrote.
#[must_use]
pub fn is_guard(policy: &Policy) -> bool {
    matches!(policy.limits(), [only] if only.name() == GUARD_NAME)
}
