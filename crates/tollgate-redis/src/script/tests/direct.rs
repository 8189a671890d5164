//! The script alone, through an engine: by Redis's clock or an injected one.

use std::sync::{Arc, Mutex};

use redis::Value;
use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::policy::{Cost, Limit};
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{CheckRequest, Decision, Engine, Policy, Quota, Rate, Timestamp};

use super::server::Server;
use super::twin::mark;
use crate::key::Key;
use crate::script::{Operation, ScriptRequest, ScriptResponse};

/// Which clock decides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClockSource {
    Redis,
    Injected,
}

pub(crate) struct Direct {
    pub(crate) server: Arc<Server>,
    clock_source: ClockSource,
    /// The operation that a charge runs. After a debit follows a peek.
    operation: Operation,
    /// The key that was last charged.
    pub(crate) key: Mutex<Option<Key>>,
}

impl Direct {
    async fn ask(&self, operation: Operation, charges: &[Charge<'_>], now: Timestamp) -> Answers {
        charges.iter().for_each(mark);
        *self.key.lock().unwrap() = charges.first().map(Key::of);
        let mut request = ScriptRequest::new(operation, charges, now);
        loop {
            let time = match self.clock_source {
                ClockSource::Redis => String::new(),
                ClockSource::Injected => now.unix_micros().to_string(),
            };
            let value = self.server.call(&[request.encode().unwrap()], &time).await.unwrap();
            let Value::Array(values) = value else { panic!("{value:?}") };
            match request.interpret(&values[0]) {
                ScriptResponse::Answers(answers) => return answers,
                ScriptResponse::Done => return Answers::new(),
                ScriptResponse::Resend => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Store for Direct {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        let answers = self.ask(self.operation, charges, now).await;
        if self.operation == Operation::Charge {
            return Ok(answers);
        }
        let looks: Vec<Charge<'_>> = charges.iter().map(|charge| charge.costing(0)).collect();
        Ok(self.ask(Operation::Charge, &looks, now).await)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.ask(Operation::Refund, charges, now).await;
        Ok(())
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.ask(Operation::Reset, charges, now).await;
        Ok(())
    }

    fn hold(&self, _: &Hold) {}
}

/// An engine with one limit on the script.
pub(crate) fn engine(
    server: &Arc<Server>,
    quota: &Quota,
    clock_source: ClockSource,
    operation: Operation,
) -> Engine<Direct> {
    let limit = Limit::new("limit", quota.clone()).by(["key"]).cost(Cost::Asked);
    let store = Direct { server: Arc::clone(server), clock_source, operation, key: Mutex::default() };
    Engine::builder().policy(Policy::new(vec![limit]).unwrap()).store(store).build()
}

/// Charges a key.
pub(crate) async fn take(engine: &Engine<Direct>, key: &str, cost: u64, now: Timestamp) -> Decision {
    let request = CheckRequest::new().with("key", key).unwrap().cost(cost).unwrap();
    engine.check(&request, now).await
}

/// One quota of 10 units for each form of state.
pub(crate) fn quotas() -> Vec<(&'static str, Quota)> {
    let month = Calendar::new(CalendarUnit::Month, "Europe/Rome").unwrap();
    let permits = std::time::Duration::from_secs(60);
    vec![
        ("gcra", Quota::gcra(Rate::per_minute(10)).unwrap()),
        ("gcra, fractions", Quota::gcra(Rate::per_second(7).burst(10)).unwrap()),
        ("token-bucket", Quota::token_bucket(Rate::per_minute(10)).unwrap()),
        ("token-bucket, fractions", Quota::token_bucket(Rate::per_second(9_999_991).burst(10)).unwrap()),
        ("leaky-bucket", Quota::leaky_bucket(Rate::per_minute(10), 9).unwrap()),
        ("fixed-window, epoch", Quota::fixed_window(Rate::per_minute(10), Align::Epoch).unwrap()),
        ("fixed-window, first hit", Quota::fixed_window(Rate::per_minute(10), Align::FirstHit).unwrap()),
        ("fixed-window, calendar", Quota::fixed_window(Rate::per_month(10), Align::Calendar(month)).unwrap()),
        (
            "sliding-window, precision 1",
            Quota::sliding_window(Rate::per_minute(10), 1, Estimate::Interpolate).unwrap(),
        ),
        (
            "sliding-window, precision 10",
            Quota::sliding_window(Rate::per_minute(10), 10, Estimate::Strict).unwrap(),
        ),
        ("sliding-log", Quota::sliding_log(Rate::per_minute(10)).unwrap()),
        ("concurrency", Quota::concurrency(10, permits).unwrap()),
    ]
}
