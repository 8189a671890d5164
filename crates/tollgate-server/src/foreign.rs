//! Configurations of other programs, used unchanged: which format a file has, what it means, and how it answers. Each
//! format decides by its own rules; its counters live in the engine's store with all others.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod convert;
pub(crate) mod counters;
pub(crate) mod envoy;
pub(crate) mod limitador;
pub(crate) mod plain;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tollgate::policy::Findings;
use tollgate::policy::source::{Outline, Report, outline, with_room};
use tollgate::store::Store;
use tollgate::{Engine, Policy, QuotaError, Timestamp};

pub(crate) use convert::Conversion;

use crate::rls::{Answer, Question};
use crate::telemetry::Rule;
use counters::{Counters, Tallies};
use limitador::CounterLedger;
use limitador::answer::{Asked, Ruling};

/// Every request lacks the attribute that this limit takes its cost from, so every request is refused.
const GUARD: &str = "limits: [{name: ask-by-rls-or-json, rate: 1/h, cost: no_such_attribute_is_ever_sent}]";

/// The name of that limit.
const GUARD_NAME: &str = "ask-by-rls-or-json";

/// One file: its name and its contents.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Tollgate's own.
    Native,
    /// envoyproxy/ratelimit's.
    Envoy,
    /// Limitador's.
    Limitador,
}

impl Format {
    /// Detects the format of a file by its outermost structure.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        match outline(bytes, &["limits", "descriptors"]) {
            Outline::List => Format::Limitador,
            Outline::Table(fields) if fields.iter().any(|field| field == "limits") => Format::Native,
            Outline::Table(fields)
                if fields.iter().any(|field| field == "descriptors" || field == "domain") =>
            {
                Format::Envoy
            }
            _ => Format::Native,
        }
    }

    /// The name for messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Format::Native => "Tollgate policy",
            Format::Envoy => "envoyproxy/ratelimit configuration",
            Format::Limitador => "Limitador limits",
        }
    }
}

/// Options for answers that are not in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether answers carry headers for the client.
    pub(crate) has_headers: bool,
    /// Whether nothing is refused; the single statuses still report what would be.
    pub(crate) is_shadow: bool,
    /// Whether every rule is a quota: a request is refused when all of its rules refuse.
    pub(crate) is_quota: bool,
    /// The maximum of a limit that a request brings along; larger ones are lowered to it.
    pub(crate) override_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { has_headers: false, is_shadow: false, is_quota: false, override_max: u32::MAX }
    }
}

/// A configuration.
#[derive(Debug)]
pub(crate) enum Foreign {
    /// envoyproxy/ratelimit's.
    Envoy(envoy::EnvoyConfig),
    /// Limitador's.
    Limitador(limitador::LimitadorConfig),
}

impl Foreign {
    /// Compiles the files of one configuration. Returns it with its warnings.
    ///
    /// # Errors
    /// All problems of all files, including warnings.
    pub(crate) fn compile(format: Format, sources: &[Source]) -> Result<(Self, Findings), Findings> {
        let compile = || {
            let mut report = Report::new("");
            let foreign = match format {
                Format::Limitador => Foreign::Limitador(limitador::compile(sources, &mut report)),
                _ => Foreign::Envoy(envoy::compile(sources, &mut report)),
            };
            if report.errors() == 0 {
                Ok((foreign, report.into_findings()))
            } else {
                Err(report.into_findings())
            }
        };
        // On a stack that no expression in a file can exhaust.
        with_room(compile).unwrap_or_else(compile)
    }

    /// Its format.
    pub(crate) const fn format(&self) -> Format {
        match self {
            Foreign::Envoy(_) => Format::Envoy,
            Foreign::Limitador(_) => Format::Limitador,
        }
    }

    /// The meaning of each rule, as a sentence.
    pub(crate) fn sentences(&self) -> Vec<String> {
        match self {
            Foreign::Envoy(config) => config.sentences(),
            Foreign::Limitador(config) => config.sentences(),
        }
    }

    /// The name of each rule, without its numbers, with its meaning.
    pub(crate) fn meanings(&self) -> Vec<(String, String)> {
        match self {
            Foreign::Envoy(config) => config.meanings(),
            Foreign::Limitador(config) => config.meanings(),
        }
    }

    /// The numbers of each rule, for a comparison of two configurations.
    pub(crate) fn numbers(&self) -> Vec<Numbered> {
        match self {
            Foreign::Envoy(config) => config.numbers(),
            Foreign::Limitador(config) => config.numbers(),
        }
    }

    /// The windows of its counters.
    fn tallies<S: Store>(&self, engine: &Engine<S>) -> Result<Tallies, QuotaError> {
        let lengths = match self {
            Foreign::Envoy(_) => Vec::new(),
            Foreign::Limitador(config) => config.lengths(),
        };
        Tallies::new(engine, lengths.into_iter())
    }

    /// The names of its rules in the metrics.
    pub(crate) fn metrics(&self) -> Vec<&str> {
        match self {
            Foreign::Envoy(config) => config.metrics(),
            Foreign::Limitador(config) => config.metrics(),
        }
    }

    /// The names of its domains, or namespaces.
    pub(crate) fn domains(&self) -> Vec<&str> {
        match self {
            Foreign::Envoy(config) => config.names(),
            Foreign::Limitador(config) => config.names(),
        }
    }
}

/// The numbers of a rule.
#[derive(Debug)]
pub(crate) struct Numbered {
    /// Its subject, without its numbers.
    pub(crate) name: String,
    /// Why it refuses no request, if so.
    pub(crate) off: Option<&'static str>,
    pub(crate) units: u64,
    pub(crate) seconds: u64,
}

/// The engine's policy while a compat configuration is active: it refuses everything. A caller that asks the engine
/// directly, past the configuration, gets no answer that could admit too much.
///
/// # Errors
/// When it does not compile, which a test would have found.
pub(crate) fn guard() -> Result<Policy, Findings> {
    Policy::compile("the guard", GUARD.as_bytes()).map(|(policy, _)| policy)
}

/// Whether a policy is the one that refuses everything, which no operator wrote.
pub(crate) fn is_guard(policy: &Policy) -> bool {
    matches!(policy.limits(), [only] if only.name() == GUARD_NAME)
}

/// An answer, and the results of the single rules.
pub(crate) struct Answered<'c> {
    pub(crate) answer: Answer,
    pub(crate) rules: Vec<Rule<'c>>,
}

/// An active configuration: its rules, and the windows of their counters.
pub(crate) struct InForce {
    pub(crate) rules: Arc<Foreign>,
    /// The number of rules.
    pub(crate) rules_total: usize,
    tallies: Tallies,
    pub(crate) ledger: Arc<CounterLedger>,
    /// Since when it is active, and its number among the configurations of this server.
    pub(crate) applied_at: Timestamp,
    pub(crate) version: u64,
}

impl InForce {
    /// Activates rules on an engine's store.
    ///
    /// # Errors
    /// When a window's length is out of range.
    pub(crate) fn new<S: Store>(
        rules: impl Into<Arc<Foreign>>,
        engine: &Engine<S>,
        before: Option<&InForce>,
        now: Timestamp,
    ) -> Result<Self, QuotaError> {
        let rules = rules.into();
        let tallies = rules.tallies(engine)?;
        let ledger: Arc<CounterLedger> = before.map(|before| Arc::clone(&before.ledger)).unwrap_or_default();
        let version = before.map_or(1, |before| before.version + 1);
        let rules_total = rules.sentences().len();
        Ok(Self { rules, rules_total, tallies, ledger, applied_at: now, version })
    }

    /// The same configuration for an engine that hashes keys with a new secret.
    ///
    /// # Errors
    /// As [`InForce::new`].
    pub(crate) fn rekeyed<S: Store>(&self, engine: &Engine<S>) -> Result<Self, QuotaError> {
        let Self { rules, rules_total, ledger, applied_at, version, .. } = self;
        let tallies = rules.tallies(engine)?;
        Ok(Self {
            rules: Arc::clone(rules),
            rules_total: *rules_total,
            tallies,
            ledger: Arc::clone(ledger),
            applied_at: *applied_at,
            version: *version,
        })
    }

    fn counters<'s, S>(&'s self, engine: &'s Engine<S>) -> Counters<'s, S> {
        Counters { engine, tallies: &self.tallies }
    }

    /// Answers a validated question of Envoy's.
    pub(crate) async fn answer<S: Store>(
        &self,
        question: &Question,
        engine: &Engine<S>,
        options: &Options,
        now: Timestamp,
    ) -> Answered<'_> {
        let counters = self.counters(engine);
        match &*self.rules {
            Foreign::Envoy(config) => envoy::answer::answer(config, question, &counters, options, now).await,
            Foreign::Limitador(config) => {
                limitador::answer::answer(config, question, &counters, &self.ledger, options, now).await
            }
        }
    }

    /// Decides by Limitador's rules; `None` when the configuration has another format.
    pub(crate) async fn decide<S: Store>(
        &self,
        asked: &Asked<'_>,
        engine: &Engine<S>,
        now: Timestamp,
    ) -> Option<Ruling<'_>> {
        let Foreign::Limitador(config) = &*self.rules else { return None };
        Some(limitador::answer::decide(config, asked, &self.counters(engine), &self.ledger, now).await)
    }

    /// The open counters of a limit of Limitador's, as far as they are listed.
    pub(crate) async fn listed<S: Store>(
        &self,
        limit: &limitador::LimitadorLimit,
        engine: &Engine<S>,
        now: Timestamp,
    ) -> Vec<limitador::Listed> {
        limitador::listed(limit, &self.counters(engine), &self.ledger, now).await
    }
}
