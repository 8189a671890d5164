//! An active configuration: answers by its rules, with counters in an engine's store.

use std::sync::Arc;

use tollgate::store::Store;
use tollgate::{Engine, QuotaError, Timestamp};

use crate::config::CompatConfig;
use crate::counters::{Counters, Tallies};
use crate::limitador::CounterLedger;
use crate::limitador::decide::{Asked, LimitadorDecision};
use crate::rls::RlsRequest;
use crate::rule::{Answered, Options};
use crate::{envoy, limitador};

/// An active configuration: its rules, and the windows of their counters.
pub struct ActiveConfig {
    /// Its rules.
    pub rules: Arc<CompatConfig>,
    /// The number of rules.
    pub rules_total: usize,
    tallies: Tallies,
    ledger: Arc<CounterLedger>,
    /// Since when it is active.
    pub applied_at: Timestamp,
    /// Its number among the configurations of this server.
    pub version: u64,
}

impl ActiveConfig {
    /// Activates rules on an engine's store.
    ///
    /// # Errors
    /// When a window's length is out of range.
    pub fn new<S: Store>(
        rules: impl Into<Arc<CompatConfig>>,
        engine: &Engine<S>,
        before: Option<&ActiveConfig>,
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
    /// As [`ActiveConfig::new`].
    pub fn rekeyed<S: Store>(&self, engine: &Engine<S>) -> Result<Self, QuotaError> {
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
    pub async fn answer<S: Store>(
        &self,
        rls_request: &RlsRequest,
        engine: &Engine<S>,
        options: &Options,
        now: Timestamp,
    ) -> Answered<'_> {
        let counters = self.counters(engine);
        match &*self.rules {
            CompatConfig::Envoy(config) => {
                envoy::decide::answer(config, rls_request, &counters, options, now).await
            }
            CompatConfig::Limitador(config) => {
                limitador::decide::answer(config, rls_request, &counters, &self.ledger, options, now).await
            }
        }
    }

    /// Decides by Limitador's rules; `None` when the configuration has another format.
    pub async fn decide<S: Store>(
        &self,
        asked: &Asked<'_>,
        engine: &Engine<S>,
        now: Timestamp,
    ) -> Option<LimitadorDecision<'_>> {
        let CompatConfig::Limitador(config) = &*self.rules else { return None };
        Some(limitador::decide::decide(config, asked, &self.counters(engine), &self.ledger, now).await)
    }

    /// The open counters of a limit of Limitador's, as far as they are listed.
    pub async fn listed<S: Store>(
        &self,
        limit: &limitador::LimitadorLimit,
        engine: &Engine<S>,
        now: Timestamp,
    ) -> Vec<limitador::Listed> {
        limitador::listed(limit, &self.counters(engine), &self.ledger, now).await
    }
}
