//! Other people's configurations, unchanged: which format a file has, what it means, and how it answers. Each format decides by its
//! own rules; what is counted lives in the engine's store beside everything else.

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

/// A request lacks the attribute that it costs by, so it is refused.
const GUARD: &str = "limits: [{name: ask-by-rls-or-json, rate: 1/h, cost: no_such_attribute_is_ever_sent}]";

/// The name of its limit.
const GUARD_NAME: &str = "ask-by-rls-or-json";

/// One file: how it is called, and what is in it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Our own.
    Native,
    /// envoyproxy/ratelimit's.
    Envoy,
    /// Limitador's.
    Limitador,
}

impl Format {
    /// The format of what is written in a file, by its outermost shape.
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

    /// How people call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Format::Native => "Tollgate policy",
            Format::Envoy => "envoyproxy/ratelimit configuration",
            Format::Limitador => "Limitador limits",
        }
    }
}

/// What the operator may choose about answers, beside the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Answers carry headers for the client.
    pub(crate) has_headers: bool,
    /// Nothing is refused; the single statuses still tell what would be.
    pub(crate) is_shadow: bool,
    /// Every rule is a quota: a request is refused when all of its rules refuse.
    pub(crate) is_quota: bool,
    /// The most that a limit may allow which a request brings along; larger ones are lowered to it.
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
    /// Compiles the files of one configuration, with its warnings.
    ///
    /// # Errors
    /// Every problem of every file at once, warnings among them.
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

    /// What each rule means, in a sentence.
    pub(crate) fn sentences(&self) -> Vec<String> {
        match self {
            Foreign::Envoy(config) => config.sentences(),
            Foreign::Limitador(config) => config.sentences(),
        }
    }

    /// The name of each rule, without its numbers, with what it means.
    pub(crate) fn meanings(&self) -> Vec<(String, String)> {
        match self {
            Foreign::Envoy(config) => config.meanings(),
            Foreign::Limitador(config) => config.meanings(),
        }
    }

    /// The numbers of each rule, for whoever compares two configurations.
    pub(crate) fn numbers(&self) -> Vec<Numbered> {
        match self {
            Foreign::Envoy(config) => config.numbers(),
            Foreign::Limitador(config) => config.numbers(),
        }
    }

    /// The windows that it counts in.
    fn tallies<S: Store>(&self, engine: &Engine<S>) -> Result<Tallies, QuotaError> {
        let lengths = match self {
            Foreign::Envoy(_) => Vec::new(),
            Foreign::Limitador(config) => config.lengths(),
        };
        Tallies::new(engine, lengths.into_iter())
    }

    /// What metrics call its rules.
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

/// What a rule comes to.
#[derive(Debug)]
pub(crate) struct Numbered {
    /// Its name: what it is about, without its numbers.
    pub(crate) name: String,
    /// Why it refuses nobody, if so.
    pub(crate) off: Option<&'static str>,
    pub(crate) units: u64,
    pub(crate) seconds: u64,
}

/// What the engine decides by while a foreign configuration is in force: it refuses everything. Whoever asks the engine past the
/// configuration gets no answer that could admit too much.
///
/// # Errors
/// When it does not compile, which a test would have told.
pub(crate) fn guard() -> Result<Policy, Findings> {
    Policy::compile("the guard", GUARD.as_bytes()).map(|(policy, _)| policy)
}

/// Whether a policy is the one that refuses everything, which no operator wrote.
pub(crate) fn is_guard(policy: &Policy) -> bool {
    matches!(policy.limits(), [only] if only.name() == GUARD_NAME)
}

/// An answer, and what single rules said to it.
pub(crate) struct Answered<'c> {
    pub(crate) answer: Answer,
    pub(crate) rules: Vec<Rule<'c>>,
}

/// A configuration in force: its rules, and the windows that they count in.
pub(crate) struct InForce {
    pub(crate) rules: Arc<Foreign>,
    /// How many rules there are.
    pub(crate) rules_total: usize,
    tallies: Tallies,
    pub(crate) ledger: Arc<CounterLedger>,
    /// Since when, and the how manieth configuration of this server it is.
    pub(crate) applied_at: Timestamp,
    pub(crate) version: u64,
}

impl InForce {
    /// Puts rules in force on an engine's store.
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

    /// The same for an engine that hashes keys with another secret by now.
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

    /// Answers Envoy's question, which was checked.
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

    /// Decides by Limitador's rules; nothing when the configuration is another one.
    pub(crate) async fn decide<S: Store>(
        &self,
        asked: &Asked<'_>,
        engine: &Engine<S>,
        now: Timestamp,
    ) -> Option<Ruling<'_>> {
        let Foreign::Limitador(config) = &*self.rules else { return None };
        Some(limitador::answer::decide(config, asked, &self.counters(engine), &self.ledger, now).await)
    }

    /// The counters of a limit of Limitador's that live, as far as they are known.
    pub(crate) async fn listed<S: Store>(
        &self,
        limit: &limitador::LimitadorLimit,
        engine: &Engine<S>,
        now: Timestamp,
    ) -> Vec<limitador::Listed> {
        limitador::listed(limit, &self.counters(engine), &self.ledger, now).await
    }
}
